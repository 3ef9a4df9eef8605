//! Slow targets and fighting writers, on the simulated parallel file system.
//!
//! Two questions, each with its own part:
//!
//! - [`probing`]: what do a few slow OSTs do to a shared-file checkpoint that is written straight
//!   to the file system, through Forebay to subfiles on all OSTs, and to those that a probe chose?
//! - [`domains`]: how many locks move when the number of writers fits the file's OSTs, and when it
//!   does not?
//!
//! The simulator's model says what can be seen at all (`tests/pfs-sim/README.md`): ratios and
//! deviations mean something, seconds do not.

pub mod daemon;
pub mod domains;
pub mod draw;
pub mod place;
pub mod plots;
pub mod probing;
pub mod tables;
pub mod writers;

use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;

/// Where things are, for both parts.
#[derive(Clone, Debug)]
pub struct Common {
    /// Where the temporary directories go.
    pub dir: PathBuf,
    pub runs: u32,
    /// Of the checkpoint file.
    pub size: u64,
    /// Of each OST, in bytes per second.
    pub bandwidth: u64,
    pub seed: u64,
}

/// The unit of everything: stripe size, block of the job, unit of the drain.
pub const UNIT: u64 = 1 << 20;

/// How much the service time of each request varies, both ways.
pub const JITTER: &str = "10%";

/// A line for each measurement, and on a terminal a bar below them.
pub struct Reporter(ProgressBar);

impl Reporter {
    pub fn new(steps: u64) -> Reporter {
        let bar = ProgressBar::new(steps);
        let style = ProgressStyle::with_template("  [{bar:30}] {pos} of {len}  {msg}")
            .map(|style| style.progress_chars("##."))
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        Reporter(bar)
    }

    pub fn begin(&self, what: &str) {
        self.0.set_message(what.to_owned());
        self.0.tick();
    }

    pub fn done(&self, line: &str) {
        self.say(&format!("measured: {line}"));
        self.0.inc(1);
    }

    /// A line that is no measurement.
    pub fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Megabytes (10^6 bytes) per second.
pub fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / 1e6 / seconds
}
