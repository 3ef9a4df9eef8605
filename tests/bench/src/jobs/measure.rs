//! The measurement: runs every kernel in every way, several times, and checks every file.
//!
//! A complete file is checked twice, while the OSTs are set to take no time: by the kernel, from
//! ranks that did not write it, and byte for byte against the file that the same kernel wrote
//! directly. If a file is wrong, the benchmark fails instead of reporting a figure.

use super::kernels::Kernel;
use super::stage::{Stage, failed};
use super::{Results, Sample, Way};
use crate::osts::Reporter;
use forebay_cluster::Mpi;
use forebay_jobs::{Program, job, program};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Clone)]
pub struct Options {
    /// Parent of the temporary directories.
    pub dir: PathBuf,
    pub forebay: PathBuf,
    pub forebay_args: Vec<String>,
    pub kernels: Vec<&'static Kernel>,
    /// Further arguments for all kernels.
    pub kernel_args: Vec<String>,
    pub mpi: Mpi,
    pub nodes: usize,
    pub ranks: usize,
    pub runs: u32,
    /// Bytes from each rank.
    pub size: u64,
    pub osts: usize,
    /// Bytes per second of each OST.
    pub bandwidth: u64,
    pub lock_cost: String,
    /// Bytes that a node may have on the way to each OST.
    pub write_behind: u64,
    pub seed: u64,
}

pub fn run(options: &Options) -> io::Result<Results> {
    // Builds the kernels before the clock runs and before there is anything to take down.
    let kernels = program(Program::Kernels, options.mpi);
    let steps = options.runs as usize * options.kernels.len() * Way::ALL.len();
    let reporter = Reporter::new(steps as u64);
    let mut results = Results::default();
    for run in 0..options.runs {
        reporter.begin(&format!("run {}: {} nodes", run + 1, options.nodes));
        let stage = Stage::set(options, options.seed + u64::from(run))?;
        let bench = Bench {
            options,
            program: &kernels,
            stage: &stage,
            run,
        };
        for kernel in &options.kernels {
            for way in Way::ALL {
                let name = format!("run {}, {}, {}", run + 1, kernel.name, way.name());
                reporter.begin(&name);
                let sample = bench
                    .measure(kernel, way)
                    .map_err(|e| io::Error::new(e.kind(), format!("{name}: {e}")))?;
                reporter.done(&format!(
                    "{name}: {:.1} MB/s, {} lock moves, complete after {:.1} s",
                    sample.rate(),
                    sample.lock_moves,
                    sample.complete
                ));
                results.samples.push(sample);
            }
            for way in Way::ALL {
                stage.remove(way, kernel.name)?;
            }
        }
        for complaint in stage.end()? {
            reporter.say(&format!("forebay said on {complaint}"));
        }
    }
    Ok(results)
}

struct Bench<'a> {
    options: &'a Options,
    program: &'a Path,
    stage: &'a Stage,
    run: u32,
}

/// The fields used here of the JSON line that a kernel prints; the line has more.
#[derive(Debug, PartialEq, Deserialize)]
struct Report {
    bytes: f64,
    seconds: f64,
}

impl Bench<'_> {
    fn measure(&self, kernel: &'static Kernel, way: Way) -> io::Result<Sample> {
        let stage = self.stage;
        let sim = stage.place().sim();
        sim.reset_counters()?;
        let said = self.job(kernel, way, None)?;
        let closed = Instant::now();
        let report = report(&said)?;
        if way != Way::Direct {
            stage.cluster().drain().map_err(failed)?;
        }
        stage.settle()?;
        let rest = closed.elapsed().as_secs_f64();
        let counted = sim.counters()?.total;
        stage.place().unhurt(|| {
            self.job(kernel, way, Some("--check"))?;
            match way {
                Way::Direct => Ok(()),
                Way::Publish | Way::Defer => self.compare(kernel, way),
            }
        })?;
        Ok(Sample {
            run: self.run,
            kernel: kernel.name,
            way,
            bytes: report.bytes as u64,
            seconds: report.seconds,
            complete: report.seconds + rest,
            lock_moves: counted.lock_moves,
            written: counted.bytes_written,
        })
    }

    /// Runs the kernel over all nodes and returns what it printed.
    fn job(&self, kernel: &Kernel, way: Way, more: Option<&str>) -> io::Result<String> {
        let options = self.options;
        let file = self.stage.path(way, kernel.name);
        let mut arguments = vec![kernel.program.into(), file.into_os_string()];
        arguments.extend(kernel.arguments(options.size).iter().map(Into::into));
        arguments.extend(options.kernel_args.iter().map(Into::into));
        let seed = options.seed + u64::from(self.run);
        arguments.extend(["--seed".into(), seed.to_string().into()]);
        arguments.extend(more.map(Into::into));
        let job = job(self.stage.cluster(), options.mpi, options.ranks);
        let done = job.run(self.program, &arguments).map_err(failed)?;
        match done.success() {
            true => Ok(done.stdout),
            false => Err(io::Error::other(format!("the kernel: {}", done.words()))),
        }
    }

    /// Compares the file with the one that was written directly. Each is read through another
    /// client.
    fn compare(&self, kernel: &Kernel, way: Way) -> io::Result<()> {
        let last = self.options.nodes - 1;
        let expected = self.stage.canonical(0, Way::Direct, kernel.name);
        let found = self.stage.canonical(last, way, kernel.name);
        same(&expected, &found)
    }
}

/// Finds the one line of JSON in the kernel's output.
fn report(said: &str) -> io::Result<Report> {
    let mut lines = said.lines().filter(|line| line.starts_with('{'));
    let (line, more) = (lines.next(), lines.next());
    match (line.map(serde_json::from_str), more) {
        (Some(Ok(report)), None) => Ok(report),
        _ => Err(io::Error::other(format!(
            "the kernel did not say once what it took:\n{said}"
        ))),
    }
}

fn same(expected: &Path, found: &Path) -> io::Result<()> {
    const AT_ONCE: usize = 4 << 20;
    let (mut one, mut other) = (File::open(expected)?, File::open(found)?);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    loop {
        a.clear();
        b.clear();
        (&mut one).take(AT_ONCE as u64).read_to_end(&mut a)?;
        (&mut other).take(AT_ONCE as u64).read_to_end(&mut b)?;
        if a != b {
            return Err(io::Error::other(format!(
                "{} is not what was written directly, {}",
                found.display(),
                expected.display()
            )));
        }
        if a.is_empty() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_found() {
        let said = "a warning\n{\"kernel\":\"s3d\",\"bytes\":1024,\"seconds\":0.5,\"open\":0.1}\n";
        let expected = Report {
            bytes: 1024.0,
            seconds: 0.5,
        };
        assert_eq!(report(said).expect("a line"), expected);
        for bad in ["", "nothing\n", "{\"bytes\":1}\n", &said.repeat(2)] {
            let sentence = report(bad).expect_err("no line").to_string();
            assert!(sentence.contains("did not say"), "{sentence}");
        }
    }

    #[test]
    fn a_byte_or_an_end_that_differs_is_seen() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).expect("write");
            path
        };
        let mut bytes = vec![7u8; (4 << 20) + 5];
        let (one, copy) = (file("one", &bytes), file("copy", &bytes));
        assert!(same(&one, &copy).is_ok());
        let shorter = file("shorter", &bytes[1..]);
        assert!(same(&one, &shorter).is_err() && same(&shorter, &one).is_err());
        *bytes.last_mut().expect("bytes") = 8;
        assert!(same(&one, &file("other", &bytes)).is_err());
    }
}
