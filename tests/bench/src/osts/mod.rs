//! Slow targets and writers that compete for locks, on the simulated parallel file system.
//!
//! Two parts, one for each question:
//!
//! - [`probing`]: how do a few slow OSTs affect a shared-file checkpoint that is written directly
//!   to the file system, through Forebay to subfiles on all OSTs, and through Forebay to subfiles
//!   on the OSTs that a probe chose?
//! - [`domains`]: how many locks move when the number of writers fits the file's OSTs, and when it
//!   does not?
//!
//! The simulator's model limits what the results can show (`tests/pfs-sim/README.md`): ratios and
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

/// Settings that both parts need.
#[derive(Clone, Debug)]
pub struct Common {
    /// Parent of the temporary directories.
    pub dir: PathBuf,
    pub runs: u32,
    /// Bytes of the checkpoint file.
    pub size: u64,
    /// Bytes per second of each OST.
    pub bandwidth: u64,
    pub seed: u64,
}

/// Stripe size, block of the job and unit of the drain.
pub const UNIT: u64 = 1 << 20;

/// How much the service time of each request varies, in both directions.
pub const JITTER: &str = "10%";

/// Prints a line for each measurement, and on a terminal a progress bar below them.
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

    /// Prints a line that is not a measurement.
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
