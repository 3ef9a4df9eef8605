//! The I/O kernels of the papers as parallel jobs on several nodes: the bandwidth that they
//! perceive when they write to a parallel file system directly, and through Forebay.
//!
//! Each node is a client of one simulated file system and has a mount of its own, so nodes take
//! locks from each other; Forebay's daemons use the same mounts as their backing. The result is the
//! time that the kernel itself reports for its slowest rank, from before the open to after the
//! close. The load on the file system until the file was complete is reported too, because it
//! explains the times.

pub mod kernels;
pub mod measure;
pub mod plots;
pub mod stage;
pub mod tables;

use kernels::Kernel;
use serde::Serialize;

/// The way in which a kernel's file gets to the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// The ranks write to the file system directly.
    Direct,
    /// Through Forebay; a close waits until other nodes can read the data.
    Publish,
    /// Through Forebay; a close waits only for the node's own store.
    Defer,
}

impl Way {
    pub const ALL: [Way; 3] = [Way::Direct, Way::Publish, Way::Defer];

    /// The name of the way, and of its directory.
    pub fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Publish => "publish",
            Way::Defer => "defer",
        }
    }
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    pub run: u32,
    pub kernel: &'static str,
    pub way: Way,
    pub bytes: u64,
    /// From before the open to after the close, of the slowest rank.
    pub seconds: f64,
    /// From before the open until the file system had the whole canonical file.
    pub complete: f64,
    /// Lock moves of all files of the file system until then.
    pub lock_moves: u64,
    pub written: u64,
}

impl Sample {
    /// Perceived bandwidth, in MB/s.
    pub fn rate(&self) -> f64 {
        super::osts::rate(self.bytes, self.seconds)
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Results {
    pub samples: Vec<Sample>,
}

impl Results {
    /// The kernels that were measured, in their usual order.
    pub fn kernels(&self) -> impl Iterator<Item = &'static Kernel> {
        let measured = |kernel: &&Kernel| self.samples.iter().any(|s| s.kernel == kernel.name);
        kernels::ALL.iter().filter(measured)
    }

    pub fn of(&self, kernel: &Kernel, way: Way, value: impl Fn(&Sample) -> f64) -> Vec<f64> {
        let samples = self.samples.iter();
        samples
            .filter(|s| s.kernel == kernel.name && s.way == way)
            .map(value)
            .collect()
    }

    pub fn mean(&self, kernel: &Kernel, way: Way, value: impl Fn(&Sample) -> f64) -> Option<f64> {
        let spread = crate::stats::Spread::of(&self.of(kernel, way, value));
        spread.map(|spread| spread.mean)
    }

    /// Returns how many times faster than direct writes this way was, by the means.
    pub fn factor(&self, kernel: &Kernel, way: Way) -> Option<f64> {
        let mean = |way| self.mean(kernel, way, Sample::rate);
        Some(mean(way)? / mean(Way::Direct)?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn results() -> Results {
        let sample = |run, kernel, way, seconds, lock_moves| Sample {
            run,
            kernel,
            way,
            bytes: 32_000_000,
            seconds,
            complete: seconds + 1.0,
            lock_moves,
            written: 64_000_000,
        };
        Results {
            samples: vec![
                sample(0, "ior_hard", Way::Direct, 4.0, 600),
                sample(1, "ior_hard", Way::Direct, 4.0, 500),
                sample(0, "ior_hard", Way::Publish, 2.0, 9),
                sample(0, "ior_hard", Way::Defer, 0.25, 0),
                sample(1, "ior_hard", Way::Defer, 0.25, 1),
                sample(0, "coll_perf", Way::Direct, 1.0, 3),
                sample(0, "coll_perf", Way::Defer, 0.1, 3),
            ],
        }
    }

    #[test]
    fn factors_are_of_the_means() {
        let results = results();
        let names: Vec<&str> = results.kernels().map(|kernel| kernel.name).collect();
        assert_eq!(names, ["coll_perf", "ior_hard"]);
        let kernel = results.kernels().last().expect("two");
        assert_eq!(results.factor(kernel, Way::Defer), Some(16.0));
        assert_eq!(results.factor(kernel, Way::Publish), Some(2.0));
        let first = results.kernels().next().expect("two");
        assert_eq!(results.factor(first, Way::Publish), None);
    }
}
