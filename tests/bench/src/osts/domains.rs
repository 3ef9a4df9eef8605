//! Lock moves when the number of writers fits the file's OSTs, and when it does not.
//!
//! Delegates, each a client, write a striped file unit by unit in turn ([`flusher::domain`]). If
//! their number is a factor or multiple of the number of OSTs, the same few clients return to each
//! object; with any other number all clients write to every object. The paper has 48 and 49
//! delegates on 48 servers; here it is 8 and 9 on 8.

use super::draw::run_seed;
use super::place::Place;
use super::writers::{self, Writer};
use super::{Common, JITTER, Reporter, UNIT, rate};
use flusher::domain::Domains;
use pfs_sim::Sim;
use serde::Serialize;
use std::io;

pub const OSTS: u32 = 8;

/// Bytes that a delegate may have on the way to each OST: few enough that the file goes out in
/// rounds, as from a drain that writes and syncs; enough that four delegates nearly keep eight OSTs
/// busy.
const WRITE_BEHIND: u64 = 2 * UNIT;

#[derive(Clone, Debug)]
pub struct Options {
    pub common: Common,
    pub delegates: Vec<u32>,
    /// Time that a lock move costs its OST.
    pub lock_cost: String,
}

/// One run with one number of delegates.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub run: u32,
    pub delegates: u32,
    /// Number of delegates that write to each object.
    pub sharing: u32,
    pub units: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub lock_moves: u64,
}

impl Sample {
    pub fn rate(&self) -> f64 {
        rate(self.bytes, self.seconds)
    }

    /// Whether the number of delegates is a factor or multiple of the number of OSTs.
    pub fn mapped(&self) -> bool {
        is_mapped(self.delegates)
    }
}

pub fn is_mapped(delegates: u32) -> bool {
    delegates.is_multiple_of(OSTS) || OSTS.is_multiple_of(delegates)
}

pub fn run(options: &Options) -> io::Result<Vec<Sample>> {
    let steps = u64::from(options.common.runs) * options.delegates.len() as u64;
    let reporter = Reporter::new(steps);
    let mut samples = Vec::new();
    for run in 0..options.common.runs {
        for delegates in &options.delegates {
            reporter.begin(&format!("{delegates} delegates, run {}", run + 1));
            let sample = measure(options, run, *delegates)?;
            reporter.done(&format!(
                "{delegates} delegates, run {}: {} lock moves, {:.0} MB/s",
                run + 1,
                sample.lock_moves,
                sample.rate()
            ));
            samples.push(sample);
        }
    }
    Ok(samples)
}

fn measure(options: &Options, run: u32, delegates: u32) -> io::Result<Sample> {
    let common = &options.common;
    let simulator = Sim::builder()
        .osts(OSTS as usize)
        .bandwidth(&common.bandwidth.to_string())
        .jitter(JITTER)
        .stripe(&UNIT.to_string(), OSTS as usize)
        .lock_cost(&options.lock_cost)
        .write_behind(&WRITE_BEHIND.to_string())
        .seed(run_seed(common.seed, run))
        .option("warm", common.size.to_string());
    let place = Place::start(&common.dir, delegates as usize + 1, simulator)?;

    let picked = Domains::with_count(UNIT, delegates);
    let paths = place.seen_by(delegates as usize, "canonical");
    // Setting the size takes the lock of the last object, so it is done by the client that writes
    // there anyway.
    let last = picked.domain_of(common.size - 1);
    writers::preset(&paths[last as usize], common.size)?;
    place.sim().reset_counters()?;
    let writer = |(domain, path)| Writer {
        path,
        ranges: picked.units(domain as u32, common.size).collect(),
    };
    let job: Vec<Writer> = paths.into_iter().enumerate().map(writer).collect();
    let content = run_seed(common.seed, run);
    let clock = writers::write(&job, content, true)?;

    let counters = place.sim().counters()?;
    let seen = place.client(delegates as usize).join("canonical");
    place.unhurt(|| writers::verify(&seen, common.size, content))?;
    place.stop()?;
    Ok(Sample {
        run,
        delegates,
        sharing: picked.sharing(OSTS),
        units: common.size.div_ceil(UNIT),
        bytes: common.size,
        seconds: clock.seconds(),
        lock_moves: counters.total.lock_moves,
    })
}
