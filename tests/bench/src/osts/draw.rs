//! Contention: which OSTs other jobs keep busy during a run, and how much bandwidth they leave.
//!
//! On a shared machine other targets are busy each time, and their load varies. Here two OSTs are
//! drawn anew for each run. Each keeps a share of its bandwidth that is drawn evenly from a
//! twentieth to three twentieths, a tenth on average ([`VARYING`]), or exactly a tenth ([`TENTH`]),
//! in which case runs differ only by jitter. All cases of a run get the same draw, so they differ
//! only by what they do.

use pfs_sim::{Change, Sim};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use std::io;
use std::ops::RangeInclusive;

pub const SLOW: usize = 2;
pub const VARYING: RangeInclusive<f64> = 0.05..=0.15;
pub const TENTH: RangeInclusive<f64> = 0.1..=0.1;

/// The slow OSTs of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contention {
    pub slow: Vec<SlowOst>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowOst {
    pub ost: usize,
    /// Bytes per second that are left.
    pub bandwidth: u64,
}

impl Contention {
    /// Draws the slow OSTs of run `run` of `seed` from `osts` OSTs of `bandwidth` each. Each slow
    /// OST keeps a `share` of it.
    pub fn draw(
        seed: u64,
        run: u32,
        osts: usize,
        bandwidth: u64,
        share: RangeInclusive<f64>,
    ) -> Contention {
        let mut rng = StdRng::seed_from_u64(run_seed(seed, run));
        let slow = rand::seq::index::sample(&mut rng, osts, SLOW.min(osts));
        let slow = slow.into_iter().map(|ost| SlowOst {
            ost,
            bandwidth: (bandwidth as f64 * rng.random_range(share.clone())) as u64,
        });
        Contention {
            slow: slow.collect(),
        }
    }

    pub fn apply(&self, sim: &Sim) -> io::Result<()> {
        for slow in &self.slow {
            let change = Change {
                bandwidth: Some(slow.bandwidth.to_string()),
                ..Change::default()
            };
            sim.set(slow.ost, change)?;
        }
        Ok(())
    }
}

/// Returns the seed for everything random in one run.
pub fn run_seed(seed: u64, run: u32) -> u64 {
    seed.wrapping_mul(1_000_003).wrapping_add(u64::from(run))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_tenth_on_average_and_other_osts_each_run() {
        let runs: Vec<Contention> = (0..500)
            .map(|run| Contention::draw(7, run, 16, 1 << 20, VARYING))
            .collect();
        let slow = || runs.iter().flat_map(|run| &run.slow);
        let shares: Vec<f64> = slow()
            .map(|slow| slow.bandwidth as f64 / (1 << 20) as f64)
            .collect();
        assert!(shares.iter().all(|share| (0.049..=0.15).contains(share)));
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        assert!((mean - 0.1).abs() < 0.005, "{mean}");
        let osts: BTreeSet<usize> = slow().map(|slow| slow.ost).collect();
        assert_eq!(osts.len(), 16, "every OST has its turn");
        assert!(runs.iter().all(|run| run.slow[0].ost != run.slow[1].ost));
    }

    #[test]
    fn exactly_a_tenth() {
        let drawn = Contention::draw(7, 0, 16, 1 << 20, TENTH);
        assert!(
            drawn
                .slow
                .iter()
                .all(|slow| slow.bandwidth == (1 << 20) / 10)
        );
    }

    #[test]
    fn the_seed_decides() {
        let draw = |seed, run| Contention::draw(seed, run, 16, 1 << 20, VARYING);
        assert_eq!(draw(1, 3), draw(1, 3));
        assert_ne!(draw(1, 3), draw(1, 4));
        assert_ne!(draw(1, 3), draw(2, 3));
    }
}
