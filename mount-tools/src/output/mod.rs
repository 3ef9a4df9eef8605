//! Everything that is printed: colours, tables and bars for people, and JSON.
//!
//! File names and messages are input from other people: [`plain`] escapes the control characters in them
//! before they reach a terminal.

pub mod plot;
pub mod progress;
pub mod table;

use crate::exit_codes::{Failure, Result};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

/// The few colours that are used, or none.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    on: bool,
}

impl Style {
    /// Colours only on a terminal, and never with `NO_COLOR` set.
    pub fn for_stdout() -> Style {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Style {
            on: io::stdout().is_terminal() && !refused,
        }
    }

    #[cfg(test)]
    pub const fn forced(on: bool) -> Style {
        Style { on }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.on {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    pub fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }
}

/// Returns `text` with its control characters escaped.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Draws a filled bar of `width` cells; `mark` is drawn where the watermark lies.
pub fn bar(fraction: f64, mark: Option<f64>, width: usize) -> String {
    let cell = |f: f64| (f.clamp(0.0, 1.0) * width as f64).round() as usize;
    let (full, mark) = (cell(fraction), mark.map(|m| cell(m).min(width - 1)));
    (0..width)
        .map(|i| match () {
            () if mark == Some(i) => '|',
            () if i < full => '#',
            () => '.',
        })
        .collect()
}

/// Prints to standard output. A reader that has gone (`| head`) is not an error.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(failed),
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::failed(format!("cannot write the report: {error}"))
}

/// Prints a report, as JSON or as the text that `render` makes of it.
pub fn report<T: serde::Serialize>(
    report: &T,
    json: bool,
    render: impl FnOnce(&T, Style) -> String,
) -> Result<()> {
    match json {
        true => print_json(report, true),
        false => print(&render(report, Style::for_stdout())),
    }
}

/// Prints one JSON value on lines of its own.
pub fn print_json(value: &impl serde::Serialize, pretty: bool) -> Result<()> {
    let text = match pretty {
        true => serde_json::to_string_pretty(value),
        false => serde_json::to_string(value),
    };
    print(&(text.map_err(|e| failed(e.into()))? + "\n"))
}

/// Formats lines of a key and a value, with the values aligned.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows
        .iter()
        .map(|(k, _)| k.chars().count())
        .max()
        .unwrap_or(0);
    rows.iter().fold(String::new(), |mut out, (key, value)| {
        // Writing to a String cannot fail.
        let written = writeln!(out, "  {key:<width$}  {value}");
        debug_assert!(written.is_ok());
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_colours_when_off() {
        assert_eq!(Style::forced(false).red("x"), "x");
        assert_eq!(Style::forced(true).red("x"), "\x1b[31mx\x1b[0m");
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(plain("a\x1b[2Jb\nc\u{9b}d"), "a\\u{1b}[2Jb\\nc\\u{9b}d");
        assert_eq!(plain("grün 文"), "grün 文");
    }

    #[test]
    fn bars() {
        assert_eq!(bar(0.5, None, 10), "#####.....");
        assert_eq!(bar(0.2, Some(0.75), 8), "##....|.");
        assert_eq!(bar(7.0, Some(1.0), 4), "###|");
    }

    #[test]
    fn values_align() {
        let text = pairs(&[("a", "1".into()), ("long", "2".into())]);
        assert_eq!(text, "  a     1\n  long  2\n");
    }
}
