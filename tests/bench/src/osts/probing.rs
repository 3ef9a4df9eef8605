//! A shared-file checkpoint while two OSTs are slow: written directly, through Forebay, and through
//! Forebay with probing.
//!
//! # What is the same for all cases
//!
//! The job: several writers write one file block by block in turn, after its size has been set. In
//! a run all cases meet the same contention ([`super::draw`]), each on a fresh file system. Runs
//! are interleaved: the first run of all cases, then the second.
//!
//! # What is compared
//!
//! Blocks are stripes, and the number of writers is a factor of the number of OSTs. So no lock
//! moves between the writers of the direct case, which also have a client's write-behind: the
//! direct case suffers only from the slow OSTs, and Forebay gains nothing from a job with a bad
//! access pattern.
//!
//! For Forebay three ends of a checkpoint are measured: perceived, when the writers have closed the
//! file; safe, when no byte is only in the node's log; and complete, when the canonical file has
//! all bytes. All three count from the first open.

use super::daemon::{Daemon, Probe, Wish};
use super::draw::{Contention, TENTH, VARYING, run_seed};
use super::place::Place;
use super::writers::{self, Clock, Writer};
use super::{Common, JITTER, Reporter, UNIT, rate};
use flusher::domain::Domains;
use pfs_sim::Sim;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

pub const OSTS: usize = 16;

/// Bytes that a client may have on the way to each OST: Lustre's default.
const WRITE_BEHIND: &str = "32M";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// The writers write the striped file themselves.
    Direct,
    /// Forebay with subfiles on all OSTs.
    AllOsts,
    /// Forebay with subfiles on the OSTs that its probe chose.
    Probing,
}

impl Case {
    pub fn name(self) -> &'static str {
        match self {
            Case::Direct => "direct",
            Case::AllOsts => "forebay, all OSTs",
            Case::Probing => "forebay, probing",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub common: Common,
    pub cases: Vec<Case>,
    /// Slow OSTs keep exactly a tenth of their bandwidth instead of a drawn share.
    pub tenth: bool,
    pub writers: usize,
    /// Checkpoints that one run writes one after the other.
    pub checkpoints: u32,
    /// Checkpoints of one additional run with probing, which shows the probe's share in a job of
    /// that length.
    pub long: u32,
    /// Whether the clock runs until the canonical file has all bytes. In the long run it always
    /// does.
    pub complete: bool,
    /// Bytes that a probe writes to each OST.
    pub probe_size: u64,
    pub forebay: PathBuf,
    /// Further arguments of `forebay mount`, as `--key=value`. They replace arguments of the same
    /// name that this module sets.
    pub forebay_args: Vec<String>,
}

/// One run of one case. Seconds are sums over its checkpoints.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub run: u32,
    pub case: Case,
    pub contention: Contention,
    pub bytes: u64,
    /// Until the last writer had closed the file. Direct writers sync before they close.
    pub perceived: f64,
    /// Until all bytes were on the file system.
    pub safe: f64,
    /// Until all bytes were in the canonical file; `None` if the run did not wait for that.
    pub complete: Option<f64>,
    pub probe: Option<Probe>,
    /// Bytes that the slow OSTs received; `written_bytes` counts all OSTs.
    pub slow_bytes: u64,
    pub written_bytes: u64,
    pub lock_moves: u64,
    /// Log lines in which the daemon complained.
    pub complaints: Vec<String>,
}

impl Sample {
    pub fn perceived_rate(&self) -> f64 {
        rate(self.bytes, self.perceived)
    }

    pub fn safe_rate(&self) -> f64 {
        rate(self.bytes, self.safe)
    }

    pub fn complete_rate(&self) -> Option<f64> {
        Some(rate(self.bytes, self.complete?))
    }

    /// Returns the share of the I/O time that was spent on probing.
    pub fn probe_share(&self) -> Option<f64> {
        Some(self.probe?.seconds / self.complete?)
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Results {
    pub samples: Vec<Sample>,
    pub long: Option<Sample>,
}

pub fn run(options: &Options) -> io::Result<Results> {
    let runs = options.common.runs;
    let long = options.long > 0 && options.cases.contains(&Case::Probing);
    let steps = u64::from(runs) * options.cases.len() as u64 + u64::from(long);
    let reporter = Reporter::new(steps);
    let mut results = Results::default();
    for run in 0..runs {
        for case in &options.cases {
            reporter.begin(&format!("{}, run {}", case.name(), run + 1));
            let sample = measure(options, *case, run, options.checkpoints)?;
            reporter.done(&line(&sample));
            results.samples.push(sample);
        }
    }
    if long {
        let checkpoints = options.long;
        reporter.begin(&format!("probing, {checkpoints} checkpoints"));
        let options = &Options {
            complete: true,
            ..options.clone()
        };
        let sample = measure(options, Case::Probing, runs, checkpoints)?;
        reporter.done(&line(&sample));
        results.long = Some(sample);
    }
    Ok(results)
}

fn line(sample: &Sample) -> String {
    let mut line = format!("{}, run {}: ", sample.case.name(), sample.run + 1);
    if sample.case == Case::Direct {
        line += &format!("{:.0} MB/s", sample.perceived_rate());
    } else {
        line += &format!(
            "{:.0} MB/s perceived, {:.0} safe",
            sample.perceived_rate(),
            sample.safe_rate(),
        );
        if let Some(rate) = sample.complete_rate() {
            line += &format!(", {rate:.0} complete");
        }
    }
    for complaint in &sample.complaints {
        line += &format!("\n  forebay said: {complaint}");
    }
    line
}

fn simulator(options: &Options, run: u32) -> pfs_sim::Builder {
    let common = &options.common;
    Sim::builder()
        .osts(OSTS)
        .bandwidth(&common.bandwidth.to_string())
        .jitter(JITTER)
        .stripe(&UNIT.to_string(), OSTS)
        .write_behind(WRITE_BEHIND)
        .seed(run_seed(common.seed, run))
        // Room for the checkpoint twice: as subfiles and as canonical file.
        .option("warm", (2 * common.size).to_string())
}

fn measure(options: &Options, case: Case, run: u32, checkpoints: u32) -> io::Result<Sample> {
    let common = &options.common;
    // One client for each writer, and one that only checks the result.
    let place = Place::start(&common.dir, options.writers + 1, simulator(options, run))?;
    let share = if options.tenth { TENTH } else { VARYING };
    let contention = Contention::draw(common.seed, run, OSTS, common.bandwidth, share);
    contention.apply(place.sim())?;
    let mut sample = Sample {
        run,
        case,
        contention,
        bytes: common.size * u64::from(checkpoints),
        perceived: 0.0,
        safe: 0.0,
        complete: (case == Case::Direct || options.complete).then_some(0.0),
        probe: None,
        slow_bytes: 0,
        written_bytes: 0,
        lock_moves: 0,
        complaints: Vec::new(),
    };
    match case {
        Case::Direct => direct(options, &place, checkpoints, &mut sample)?,
        Case::AllOsts | Case::Probing => through(options, &place, checkpoints, &mut sample)?,
    }
    place.stop()?;
    Ok(sample)
}

/// Returns what each writer does, through its own path.
fn job(options: &Options, paths: Vec<PathBuf>) -> Vec<Writer> {
    let picked = Domains::with_count(UNIT, paths.len() as u32);
    let writer = |(n, path)| Writer {
        path,
        ranges: picked.units(n as u32, options.common.size).collect(),
    };
    paths.into_iter().enumerate().map(writer).collect()
}

/// Returns the path of the writer of the last block. Setting the size takes the lock there, which
/// would have to move if another client had set it.
fn last<'a>(options: &Options, paths: &'a [PathBuf]) -> &'a Path {
    let picked = Domains::with_count(UNIT, paths.len() as u32);
    &paths[picked.domain_of(options.common.size - 1) as usize]
}

fn direct(
    options: &Options,
    place: &Place,
    checkpoints: u32,
    sample: &mut Sample,
) -> io::Result<()> {
    for n in 0..checkpoints {
        let name = format!("checkpoint.{n}");
        let paths = place.seen_by(options.writers, &name);
        writers::preset(last(options, &paths), options.common.size)?;
        let clock = writers::write(&job(options, paths), content(sample, n), true)?;
        let until = [&mut sample.perceived, &mut sample.safe];
        for seconds in until.into_iter().chain(&mut sample.complete) {
            *seconds += clock.seconds();
        }
        finish(options, place, &place.client(0).join(&name), n, sample)?;
    }
    Ok(())
}

fn through(
    options: &Options,
    place: &Place,
    checkpoints: u32,
    sample: &mut Sample,
) -> io::Result<()> {
    let (dir, root) = (place.scratch("forebay")?, place.lustre_root()?);
    let daemon = Daemon::start(&Wish {
        program: &options.forebay,
        dir: &dir,
        backing: place.client(0),
        lustre_root: &root,
        args: &arguments(options, sample.case),
    })?;
    if sample.case == Case::Probing {
        daemon.wait_probed()?;
    }
    for n in 0..checkpoints {
        let path = daemon.mount().join(format!("checkpoint.{n}"));
        writers::preset(&path, options.common.size)?;
        let paths = vec![path.clone(); options.writers];
        let Clock { start, end } = writers::write(&job(options, paths), content(sample, n), false)?;
        let safe = daemon.wait_safe()?;
        match &mut sample.complete {
            Some(complete) => {
                daemon.drain()?;
                *complete += start.elapsed().as_secs_f64();
            }
            None => place.unhurt(|| daemon.drain())?,
        }
        sample.perceived += (end - start).as_secs_f64();
        sample.safe += (safe - start).as_secs_f64();
        finish(options, place, &path, n, sample)?;
    }
    if sample.case == Case::Probing {
        sample.probe = Some(daemon.probe()?);
    }
    sample.complaints = daemon.stop()?;
    Ok(())
}

fn arguments(options: &Options, case: Case) -> Vec<String> {
    let probe = if case == Case::Probing { "on" } else { "off" };
    let store = (2 << 30).max(4 * options.common.size);
    let own = [
        ("ost-provider", "lustre"),
        ("subfiles", "always"),
        ("probe", probe),
        ("probe-size", &options.probe_size.to_string()),
        ("stripe", &UNIT.to_string()),
        ("drain-concurrency", &OSTS.to_string()),
        ("store-size", &store.to_string()),
    ];
    let given = &options.forebay_args;
    let mut args: Vec<String> = own
        .map(|(key, value)| (format!("--{key}="), value))
        .into_iter()
        .filter(|(key, _)| !given.iter().any(|arg| arg.starts_with(key)))
        .map(|(key, value)| key + value)
        .collect();
    args.extend(given.iter().cloned());
    args
}

/// Returns the seed of a checkpoint's content. No two checkpoints of a run are alike.
fn content(sample: &Sample, checkpoint: u32) -> u64 {
    (u64::from(sample.run) << 32) + u64::from(checkpoint)
}

/// Runs after the clock has stopped: reads the counters, compares the canonical file through
/// another client, and removes the checkpoint.
fn finish(
    options: &Options,
    place: &Place,
    path: &Path,
    checkpoint: u32,
    sample: &mut Sample,
) -> io::Result<()> {
    let counters = place.sim().counters()?;
    let slow = |ost: usize| sample.contention.slow.iter().any(|slow| slow.ost == ost);
    let of = |ost: &pfs_sim::OstCounters| ost.tally.bytes_written;
    let on_slow = counters.osts.iter().filter(|ost| slow(ost.ost)).map(of);
    sample.slow_bytes += on_slow.sum::<u64>();
    sample.written_bytes += counters.total.bytes_written;
    sample.lock_moves += counters.total.lock_moves;

    let name = path.file_name().unwrap_or_default();
    let seen = place.client(options.writers).join(name);
    place.unhurt(|| {
        writers::verify(&seen, options.common.size, content(sample, checkpoint))?;
        std::fs::remove_file(path)
    })?;
    place.sim().reset_counters()
}
