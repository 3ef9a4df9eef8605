//! The bandwidth that a job perceives for its checkpoints when the file system below is slow: with
//! closes that wait for that file system, and with closes after which the job computes while the
//! data is on its way.
//!
//! # The equation
//!
//! A job writes a checkpoint of *S* bytes, computes for *C* seconds, and opens the next one. If
//! writing to the store takes *Tc*, and *Ts* passes until the data is where other nodes see it, the
//! bandwidth that the job perceives is, by equation 1 of Congiu et al. (E10),
//!
//! ```text
//! S / (Tc + max(0, Ts - C))
//! ```
//!
//! With `--close defer-next` the second term is the open of the next checkpoint, which waits for the
//! last one; with `--close publish` it is the close itself, whatever *C* is.
//!
//! # What is measured
//!
//! *Tc* and *Ts* are measured once, on a file system that has nothing else to do; they give the
//! curve. Then jobs of several checkpoints run for each *C*; they give the points. Each job opens
//! one more file after its last checkpoint, so that no wait is left out. Computing is sleeping: it
//! takes no processor time from the daemon, as on a machine with cores to spare for the daemon.

pub mod job;
pub mod plots;
pub mod tables;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Close {
    DeferNext,
    Publish,
}

impl Close {
    pub const BOTH: [Close; 2] = [Close::DeferNext, Close::Publish];

    pub fn name(self) -> &'static str {
        match self {
            Close::DeferNext => "defer-next",
            Close::Publish => "publish",
        }
    }
}

/// Times of one checkpoint when nothing else runs, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// Writing and closing it, with a close that defers.
    pub store: f64,
    /// Publishing it after that close.
    pub publish: f64,
    /// Writing and closing it, with a close that publishes.
    pub both: f64,
}

impl Costs {
    /// Returns the bytes per second that a job perceives according to the equation.
    pub fn predicted(&self, close: Close, size: u64, compute: f64) -> f64 {
        let seconds = match close {
            Close::DeferNext => self.store + (self.publish - compute).max(0.0),
            Close::Publish => self.both,
        };
        size as f64 / seconds
    }
}

/// One job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    pub run: u32,
    pub close: Close,
    /// Seconds between two checkpoints.
    pub compute: f64,
    pub checkpoints: u32,
    pub bytes: u64,
    /// Seconds spent in opens, writes and closes.
    pub io: f64,
}

impl Sample {
    /// Returns the perceived bandwidth in bytes per second.
    pub fn perceived(&self) -> f64 {
        self.bytes as f64 / self.io
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Results {
    pub size: u64,
    pub costs: Costs,
    pub samples: Vec<Sample>,
}

impl Results {
    /// Returns the computing times that were measured, shortest first.
    pub fn computes(&self) -> Vec<f64> {
        let mut found: Vec<f64> = self.samples.iter().map(|s| s.compute).collect();
        found.sort_by(f64::total_cmp);
        found.dedup();
        found
    }

    /// Returns the perceived bandwidth of each job, in bytes per second.
    pub fn perceived(&self, close: Close, compute: f64) -> Vec<f64> {
        let of = self.samples.iter();
        of.filter(|s| s.close == close && s.compute == compute)
            .map(Sample::perceived)
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn results() -> Results {
        let costs = Costs {
            store: 0.5,
            publish: 4.0,
            both: 4.5,
        };
        let sample = |run, close, compute, io| Sample {
            run,
            close,
            compute,
            checkpoints: 4,
            bytes: 400_000_000,
            io,
        };
        Results {
            size: 100_000_000,
            costs,
            samples: vec![
                sample(0, Close::DeferNext, 0.0, 20.0),
                sample(0, Close::DeferNext, 4.0, 2.0),
                sample(1, Close::DeferNext, 4.0, 4.0),
                sample(0, Close::Publish, 4.0, 16.0),
            ],
        }
    }

    /// Publishing is hidden completely from C = Ts on, and not at all without computing.
    #[test]
    fn the_equation() {
        let costs = results().costs;
        let at = |close, compute| costs.predicted(close, 90, compute);
        assert_eq!(at(Close::DeferNext, 0.0), 20.0);
        assert_eq!(at(Close::DeferNext, 3.5), 90.0);
        assert_eq!(at(Close::DeferNext, 4.0), 180.0);
        assert_eq!(at(Close::DeferNext, 40.0), 180.0);
        assert_eq!(at(Close::Publish, 0.0), at(Close::Publish, 40.0));
    }

    #[test]
    fn samples_by_case() {
        let results = results();
        assert_eq!(results.computes(), [0.0, 4.0]);
        assert_eq!(results.perceived(Close::DeferNext, 4.0), [2e8, 1e8]);
        assert!(results.perceived(Close::Publish, 0.0).is_empty());
    }
}
