//! The cases that are measured. Each round runs a case in all its variants, in rotating order; the
//! first round does not count. Nothing is synced, so the figures are of the software and not of the
//! disk below it.

use crate::fixture::Fixture;
use crate::job::{Job, Op};
use crate::{stats, units};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// A directory beside the store; for drained files, the canonical file itself.
    Plain,
    Minimal,
    Forebay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Unit {
    #[serde(rename = "MB/s")]
    Megabytes,
    #[serde(rename = "ops/s")]
    Operations,
}

#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Target {
    pub against: Variant,
    pub ratio: f64,
}

#[derive(Clone, Debug, serde::Serialize)]
pub struct Case {
    pub group: &'static str,
    pub name: String,
    pub unit: Unit,
    pub target: Option<Target>,
    pub samples: BTreeMap<Variant, Vec<f64>>,
}

impl Case {
    pub fn median(&self, variant: Variant) -> Option<f64> {
        self.samples
            .get(&variant)
            .map(|values| stats::median(values))
    }

    /// Returns Forebay's median divided by that of `against`.
    pub fn ratio(&self, against: Variant) -> Option<f64> {
        Some(self.median(Variant::Forebay)? / self.median(against)?)
    }

    pub fn met(&self) -> Option<bool> {
        let target = self.target?;
        Some(self.ratio(target.against)? >= target.ratio)
    }
}

pub struct Options {
    pub rounds: usize,
    /// Multiplies the bytes and the files of every case.
    pub scale: f64,
    pub processes: Vec<u64>,
    /// Only groups whose name contains this.
    pub only: Option<String>,
    /// Only this block size.
    pub block: Option<u64>,
    /// The program that the ranks run.
    pub writer: PathBuf,
}

/// Block size, bytes per run, and target ratio of Forebay's writes to those of the minimal file
/// system.
const SIZES: [(u64, u64, f64); 3] = [
    (1 << 20, 512 << 20, 0.9),
    (47008, 256 << 20, 0.85),
    (4096, 128 << 20, 0.8),
];

/// The block sizes that are measured.
pub fn blocks() -> impl Iterator<Item = u64> {
    SIZES.iter().map(|(block, ..)| *block)
}

const DRAINED_TARGET: f64 = 0.9;
/// Bytes that are read from a drained file, in several passes: at the speed of the page cache a
/// single pass is too short to time.
const DRAINED_BYTES: f64 = (2u64 << 30) as f64;
const FILES: f64 = 3000.0;
/// Pause after each run, so that its aftermath (freed log space, dropped pages) does not disturb
/// the next one.
const SETTLE: Duration = Duration::from_millis(50);

/// Runs all cases; calls `done` with each case as it ends.
pub fn run(
    fixture: &Fixture,
    options: &Options,
    done: &mut dyn FnMut(&Case),
) -> io::Result<Vec<Case>> {
    let runner = Runner { fixture, options };
    let mut cases = Vec::new();
    let mut add = |case: Case| {
        done(&case);
        cases.push(case);
    };
    if options.wants("write") {
        for (block, total, target) in options.sizes() {
            for processes in &options.processes {
                add(runner.writes(block, total, *processes, target)?);
            }
        }
    }
    if options.wants("read undrained") || options.wants("read drained") {
        for (block, total, _) in options.sizes() {
            for processes in &options.processes {
                runner.reads(block, total, *processes, &mut add)?;
            }
        }
    }
    if options.wants("metadata") {
        runner.metadata(&mut add)?;
    }
    // The reads are measured in pairs, but the report shows one group after the other.
    cases.sort_by_key(|case| match case.group {
        "write" => 0,
        "read undrained" => 1,
        "read drained" => 2,
        _ => 3,
    });
    Ok(cases)
}

impl Options {
    fn wants(&self, group: &str) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| group.contains(only.as_str()))
    }

    fn sizes(&self) -> impl Iterator<Item = (u64, u64, f64)> {
        let block = self.block;
        SIZES
            .into_iter()
            .filter(move |(size, ..)| block.is_none_or(|block| block == *size))
    }
}

struct Runner<'a> {
    fixture: &'a Fixture,
    options: &'a Options,
}

const ALL: [Variant; 3] = [Variant::Plain, Variant::Minimal, Variant::Forebay];

impl Runner<'_> {
    fn dir(&self, variant: Variant) -> PathBuf {
        match variant {
            Variant::Plain => self.fixture.plain(),
            Variant::Minimal => self.fixture.minimal(),
            Variant::Forebay => self.fixture.forebay(),
        }
    }

    fn interleave(
        &self,
        variants: &[Variant],
        mut measure: impl FnMut(Variant) -> io::Result<f64>,
    ) -> io::Result<BTreeMap<Variant, Vec<f64>>> {
        let mut samples: BTreeMap<Variant, Vec<f64>> = BTreeMap::new();
        for round in 0..=self.options.rounds {
            for i in 0..variants.len() {
                let variant = variants[(i + round) % variants.len()];
                let value = measure(variant)?;
                if round > 0 {
                    samples.entry(variant).or_default().push(value);
                }
                std::thread::sleep(SETTLE);
            }
        }
        Ok(samples)
    }

    fn job(&self, op: Op, file: PathBuf, block: u64, total: u64, processes: u64) -> Job {
        let blocks = (total as f64 * self.options.scale / block as f64).ceil() as u64;
        Job {
            file,
            op,
            processes,
            block,
            total: blocks.max(processes) * block,
            seed: 1,
            filler: true,
            fsync: false,
            passes: 1,
            nodes: None,
            cluster: None,
        }
    }

    fn time(&self, job: &Job) -> io::Result<f64> {
        Ok(job.run(&self.options.writer)?.bytes_per_second / 1e6)
    }

    fn writes(&self, block: u64, total: u64, processes: u64, target: f64) -> io::Result<Case> {
        let samples = self.interleave(&ALL, |variant| {
            let job = self.job(
                Op::Write,
                self.dir(variant).join("shared"),
                block,
                total,
                processes,
            );
            let value = self.time(&job)?;
            fs::remove_file(&job.file)?;
            Ok(value)
        })?;
        Ok(Case {
            group: "write",
            name: case_name(block, processes),
            unit: Unit::Megabytes,
            target: Some(Target {
                against: Variant::Minimal,
                ratio: target,
            }),
            samples,
        })
    }

    /// Reads one file back: first from the log, then, once it is drained, through the mount and
    /// directly from the backing.
    fn reads(
        &self,
        block: u64,
        total: u64,
        processes: u64,
        add: &mut dyn FnMut(Case),
    ) -> io::Result<()> {
        let read = |dir: PathBuf, bytes: f64| {
            let mut job = self.job(Op::Read, dir.join("shared"), block, total, processes);
            job.passes = (bytes / job.total as f64).ceil() as u64;
            self.time(&job)
        };
        for variant in ALL {
            let file = self.dir(variant).join("shared");
            self.time(&self.job(Op::Write, file, block, total, processes))?;
        }
        if self.options.wants("read undrained") {
            add(Case {
                group: "read undrained",
                name: case_name(block, processes),
                unit: Unit::Megabytes,
                target: None,
                samples: self.interleave(&ALL, |variant| read(self.dir(variant), 1.0))?,
            });
        }
        if self.options.wants("read drained") {
            self.fixture.drain(&self.fixture.forebay().join("shared"))?;
            // After this the minimal file system opens the canonical file under this name, by
            // passthrough.
            fs::remove_file(self.fixture.minimal().join("shared"))?;
            let drained_bytes = DRAINED_BYTES * self.options.scale;
            add(Case {
                group: "read drained",
                name: case_name(block, processes),
                unit: Unit::Megabytes,
                target: Some(Target {
                    against: Variant::Plain,
                    ratio: DRAINED_TARGET,
                }),
                samples: self.interleave(&ALL, |variant| match variant {
                    Variant::Plain => read(self.fixture.backing(), drained_bytes),
                    other => read(self.dir(other), drained_bytes),
                })?,
            });
        }
        for variant in ALL {
            fs::remove_file(self.dir(variant).join("shared"))?;
        }
        Ok(())
    }

    fn metadata(&self, add: &mut dyn FnMut(Case)) -> io::Result<()> {
        let count = (FILES * self.options.scale).ceil().max(10.0) as usize;
        let names = |dir: &Path| -> Vec<PathBuf> {
            (0..count).map(|i| dir.join(format!("file.{i}"))).collect()
        };
        type Step = fn(&Path) -> io::Result<()>;
        let steps: [(&str, Step); 3] = [
            ("create", |path| {
                drop(OpenOptions::new().write(true).create_new(true).open(path)?);
                Ok(())
            }),
            ("stat", |path| fs::metadata(path).map(drop)),
            ("unlink", |path| fs::remove_file(path)),
        ];
        let mut samples = vec![BTreeMap::<Variant, Vec<f64>>::new(); steps.len()];
        for round in 0..=self.options.rounds {
            for i in 0..ALL.len() {
                let variant = ALL[(i + round) % ALL.len()];
                let paths = names(&self.dir(variant));
                for (step, samples) in steps.iter().zip(&mut samples) {
                    let start = Instant::now();
                    for path in &paths {
                        step.1(path)?;
                    }
                    let rate = count as f64 / start.elapsed().as_secs_f64();
                    if round > 0 {
                        samples.entry(variant).or_default().push(rate);
                    }
                }
                std::thread::sleep(SETTLE);
            }
        }
        for ((name, _), samples) in steps.iter().zip(samples) {
            add(Case {
                group: "metadata",
                name: (*name).to_string(),
                unit: Unit::Operations,
                target: None,
                samples,
            });
        }
        Ok(())
    }
}

fn case_name(block: u64, processes: u64) -> String {
    let plural = if processes == 1 { "" } else { "es" };
    format!("{}, {processes} process{plural}", units::block_name(block))
}
