//! The progress bar of a drain or a prefetch, on standard error and only on a terminal, so that pipes and logs
//! stay clean.

use crate::units;
use flusher::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

pub struct DrainBar(Option<ProgressBar>);

impl DrainBar {
    pub fn new() -> DrainBar {
        DrainBar::labelled("drain")
    }

    pub fn labelled(what: &str) -> DrainBar {
        if !std::io::stderr().is_terminal() {
            return DrainBar(None);
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
        let style = ProgressStyle::with_template(&format!(
            "  {what} [{{bar:30}}] {{percent:>3}}%  {{binary_bytes}} of {{binary_total_bytes}}  {{msg}}"
        ))
        .map(|s| s.progress_chars("##."))
        .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        DrainBar(Some(bar))
    }

    pub fn show(&self, p: &Progress) {
        if let Some(bar) = &self.0 {
            bar.set_length(p.total);
            bar.set_position(p.done);
            bar.set_message(message(p));
        }
    }

    pub fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn message(p: &Progress) -> String {
    let files = format!("{} left", units::files(p.files));
    let eta = match p.eta {
        Some(s) if p.done < p.total => format!(", {} to go", units::seconds(s.ceil())),
        _ => String::new(),
    };
    let errors = match p.errors.len() {
        0 => String::new(),
        n => format!(", {n} failing"),
    };
    format!("{}, {files}{eta}{errors}", units::rate(p.rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_fast_how_long_and_what_fails() {
        let mut p = Progress {
            total: 100,
            done: 50,
            files: 2,
            rate: 1048576.0,
            eta: Some(61.2),
            ..Progress::default()
        };
        assert_eq!(message(&p), "1.00 MiB/s, 2 files left, 1m 2s to go");
        p.eta = None;
        p.files = 1;
        p.errors.push(flusher::FileError {
            id: layout_index::FileId { ino: 1, birth: 2 },
            error: layout_index::StickyError {
                errno: 28,
                message: "full".into(),
            },
        });
        assert_eq!(message(&p), "1.00 MiB/s, 1 file left, 1 failing");
    }
}
