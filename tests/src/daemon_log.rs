//! The daemon's log as evidence: a WARN or ERROR line that the test has not allowed fails the test.

use std::path::Path;

/// Returns the log without terminal colours; empty if there is none.
pub fn read(path: &Path) -> String {
    match std::fs::read(path) {
        Ok(bytes) => strip_colours(&String::from_utf8_lossy(&bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => panic!("cannot read the daemon's log {}: {e}", path.display()),
    }
}

pub fn tail(path: &Path, lines: usize) -> String {
    let text = read(path);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Returns the lines that say something is wrong and contain none of the allowed texts.
pub fn unexpected(text: &str, allowed: &[String]) -> Vec<String> {
    text.lines()
        .filter(|line| {
            line.contains("panicked at")
                || line
                    .split_whitespace()
                    .take(4)
                    .any(|word| word == "WARN" || word == "ERROR")
        })
        .filter(|line| !allowed.iter().any(|a| line.contains(a.as_str())))
        .map(str::to_owned)
        .collect()
}

fn strip_colours(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            for c in chars.by_ref() {
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_only_what_was_not_announced() {
        let text = "2026-01-01T00:00:00Z  INFO forebay: a WARN in the middle of a long sentence\n\
                    \u{1b}[2m2026-01-01T00:00:00Z\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m flusher: disk full\n\
                    2026-01-01T00:00:00Z ERROR fs: strange\n\
                    thread 'x' panicked at src/main.rs:1:1:";
        let clean = strip_colours(text);
        let found = unexpected(&clean, &["disk full".into()]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("strange"));
        assert!(found[1].contains("panicked"));
    }
}
