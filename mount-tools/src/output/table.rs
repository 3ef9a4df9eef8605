//! Tables whose columns line up, measured without colour codes.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
    /// Extra lines, each with the number of the row that it stands under.
    notes: Vec<(usize, String)>,
}

impl Table {
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Table {
            columns: columns.to_vec(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.to_vec());
    }

    /// Adds a line under the last row. Its length does not change the columns.
    pub fn note(&mut self, text: String) {
        self.notes.push((self.rows.len(), text));
    }

    /// Formats the table, indented by two blanks and without blanks at the ends of lines.
    pub fn render(&self) -> String {
        let heads: Vec<String> = self.columns.iter().map(|(h, _)| h.to_string()).collect();
        let width: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let cells = self.rows.iter().map(|r| length(&r[i]));
                cells.max().unwrap_or(0).max(length(&heads[i]))
            })
            .collect();
        let mut out = String::new();
        for (n, row) in std::iter::once(&heads).chain(&self.rows).enumerate() {
            let mut line = String::new();
            for (i, cell) in row.iter().enumerate() {
                line.push_str("  ");
                let pad = " ".repeat(width[i] - length(cell));
                match self.columns[i].1 {
                    Align::Left => line.extend([cell.as_str(), &pad]),
                    Align::Right => line.extend([&pad, cell.as_str()]),
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
            for (_, note) in self.notes.iter().filter(|(under, _)| *under == n) {
                out.push_str(&format!("    {note}\n"));
            }
        }
        out
    }
}

/// Number of characters that take room on the screen.
fn length(text: &str) -> usize {
    let mut n = 0;
    let mut escape = false;
    for c in text.chars() {
        match c {
            '\x1b' => escape = true,
            'm' if escape => escape = false,
            _ if escape => {}
            _ => n += 1,
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_with_and_without_colour() {
        let mut table = Table::new(&[("file", Align::Left), ("bytes", Align::Right)]);
        table.row(["a".into(), "1".into()]);
        table.row(["\x1b[31mlonger\x1b[0m".into(), "123456".into()]);
        let lines: Vec<String> = table.render().lines().map(String::from).collect();
        assert_eq!(lines[0], "  file     bytes");
        assert_eq!(lines[1], "  a            1");
        assert_eq!(length(&lines[2]), length(&lines[1]));
    }

    #[test]
    fn notes_stand_under_their_rows_and_widen_nothing() {
        let mut table = Table::new(&[("a", Align::Left), ("b", Align::Left)]);
        table.row(["1".into(), "2".into()]);
        table.note("much longer than the columns".into());
        table.row(["3".into(), "4".into()]);
        assert_eq!(
            table.render(),
            "  a  b\n  1  2\n    much longer than the columns\n  3  4\n"
        );
    }
}
