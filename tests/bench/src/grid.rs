//! A table, for the terminal and for a Markdown page.

/// The first column is text; columns that hold numbers are aligned to the right.
pub struct Grid {
    head: Vec<String>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// A heading that starts with `>` marks a column of numbers.
    pub fn new(head: &[&str]) -> Grid {
        Grid {
            right: head.iter().map(|h| h.starts_with('>')).collect(),
            head: head
                .iter()
                .map(|h| h.trim_start_matches('>').to_owned())
                .collect(),
            rows: Vec::new(),
        }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.head.len());
        self.rows.push(cells.into());
    }

    pub fn text(&self) -> String {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let length = |cell: &String| cell.chars().count();
        let widths: Vec<usize> = (0..self.head.len())
            .map(|i| all().map(|row| length(&row[i])).max().unwrap_or(0))
            .collect();
        let mut out = String::new();
        for row in all() {
            let cells = row.iter().zip(&self.right).zip(&widths);
            let line: Vec<String> = cells
                .map(|((cell, right), width)| match right {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                })
                .collect();
            out.push_str(line.join("  ").trim_end());
            out.push('\n');
        }
        out
    }

    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = |right: &bool| if *right { "--:" } else { "---" };
        let rules: Vec<&str> = self.right.iter().map(rule).collect();
        let mut out = line(&self.head);
        out.push_str(&format!("|{}|\n", rules.join("|")));
        out.extend(self.rows.iter().map(|row| line(row)));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        let mut grid = Grid::new(&["case", ">MB/s"]);
        grid.row(["direct".into(), "5".into()]);
        grid.row(["±".into(), "123456".into()]);
        let text = "case      MB/s\ndirect       5\n±       123456\n";
        assert_eq!(grid.text(), text);
        let page = "| case | MB/s |\n|---|--:|\n| direct | 5 |\n| ± | 123456 |\n";
        assert_eq!(grid.markdown(), page);
    }
}
