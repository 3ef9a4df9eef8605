//! A job as a parallel file system sees it: several processes share one file, and each process
//! accesses every n-th block.
//!
//! The ranks are separate processes that are started before the clock runs and held at a barrier:
//! each prints that it is ready when its data is made, and begins when it is told so on its
//! standard input. The clock (monotonic, the same for all processes) runs from the first rank's
//! open to the last rank's close.

use crate::{pattern, units};
use clap::{Args, ValueEnum};
use nix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    Write,
    Read,
}

/// One shared file and how it is cut up.
#[derive(Clone, Debug, Args)]
pub struct Job {
    /// The shared file
    pub file: PathBuf,
    /// What to do with it
    #[arg(long, value_enum, default_value = "write")]
    pub op: Op,
    /// Processes that share the file
    #[arg(long, short = 'n', default_value_t = 4)]
    pub processes: u64,
    /// Bytes of one write or read
    #[arg(long, short, default_value = "47008", value_parser = units::parse_size)]
    pub block: u64,
    /// Bytes of the whole file
    #[arg(long, short, default_value = "256M", value_parser = units::parse_size)]
    pub total: u64,
    /// Content: each seed gives a different file
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write one buffer over and over: for timing, where nobody looks at the content
    #[arg(long)]
    pub filler: bool,
    /// fsync before close
    #[arg(long)]
    pub fsync: bool,
    /// Go over the file this many times
    #[arg(long, default_value_t = 1)]
    pub passes: u64,
    /// Start the ranks on this many nodes in turn; the job itself runs on one of them
    #[arg(long, value_name = "N", requires = "cluster")]
    pub nodes: Option<u64>,
    /// The forebay-cluster program that gets them there
    #[arg(long, value_name = "FILE", requires = "nodes")]
    pub cluster: Option<PathBuf>,
}

/// The timing of a job.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Outcome {
    pub processes: u64,
    pub block: u64,
    pub bytes: u64,
    /// From the first rank's open to the last rank's close.
    pub seconds: f64,
    pub bytes_per_second: f64,
    pub slowest_rank_seconds: f64,
    pub fastest_rank_seconds: f64,
}

impl Job {
    fn rank_arguments(&self, rank: u64) -> Vec<std::ffi::OsString> {
        let mut args: Vec<std::ffi::OsString> = vec!["rank".into(), self.file.clone().into()];
        let op = match self.op {
            Op::Write => "write",
            Op::Read => "read",
        };
        for (key, value) in [
            ("op", op.to_string()),
            ("processes", self.processes.to_string()),
            ("block", self.block.to_string()),
            ("total", self.total.to_string()),
            ("seed", self.seed.to_string()),
            ("passes", self.passes.to_string()),
            ("rank", rank.to_string()),
        ] {
            args.push(format!("--{key}={value}").into());
        }
        if self.filler {
            args.push("--filler".into());
        }
        if self.fsync {
            args.push("--fsync".into());
        }
        args
    }

    /// Returns the command that starts the program here or on the rank's node. `forebay-cluster
    /// exec` replaces itself with the rank, so the rank is a child of the job in both cases.
    fn rank_command(&self, program: &Path, rank: u64) -> Command {
        let (Some(cluster), Some(nodes)) = (&self.cluster, self.nodes) else {
            return Command::new(program);
        };
        let mut command = Command::new(cluster);
        let node = rank % nodes.max(1);
        command
            .arg("exec")
            .arg(node.to_string())
            .arg("--")
            .arg(program);
        command
    }

    /// Offsets and lengths of one rank's blocks.
    fn blocks(&self, rank: u64) -> impl Iterator<Item = (u64, usize)> {
        let (block, total, step) = (self.block, self.total, self.processes * self.block);
        (0..)
            .map(move |i| rank * block + i * step)
            .take_while(move |at| *at < total)
            .map(move |at| (at, block.min(total - at) as usize))
    }

    /// Runs the job. `program` is started as each rank; its `rank` command must call [`rank`].
    pub fn run(&self, program: &Path) -> io::Result<Outcome> {
        if self.op == Op::Write {
            File::create(&self.file)?;
        }
        let mut ranks = Ranks(Vec::new());
        for rank in 0..self.processes {
            ranks.0.push(
                self.rank_command(program, rank)
                    .args(self.rank_arguments(rank))
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()?,
            );
        }
        let mut outputs = Vec::new();
        for child in &mut ranks.0 {
            let mut output = BufReader::new(child.stdout.take().expect("stdout is piped"));
            let mut line = String::new();
            output.read_line(&mut line)?;
            if line.trim() != "ready" {
                return Err(io::Error::other("a rank of the job did not start"));
            }
            outputs.push(output);
        }
        for child in &mut ranks.0 {
            child.stdin.take().expect("stdin is piped").write_all(GO)?;
        }
        let mut times = Vec::new();
        for output in &mut outputs {
            let mut line = String::new();
            output.read_line(&mut line)?;
            let (start, end) = line
                .trim()
                .split_once(' ')
                .and_then(|(s, e)| Some((s.parse::<u64>().ok()?, e.parse::<u64>().ok()?)))
                .ok_or_else(|| io::Error::other("a rank of the job failed; its reason is above"))?;
            times.push((start, end));
        }
        for child in &mut ranks.0 {
            let status = child.wait()?;
            if !status.success() {
                return Err(io::Error::other(format!(
                    "a rank of the job failed: {status}"
                )));
            }
        }
        let first = times.iter().map(|t| t.0).min().unwrap_or(0);
        let last = times.iter().map(|t| t.1).max().unwrap_or(0);
        let each = |t: &(u64, u64)| (t.1 - t.0) as f64 / 1e9;
        let seconds = (last - first) as f64 / 1e9;
        Ok(Outcome {
            processes: self.processes,
            block: self.block,
            bytes: self.total * self.passes,
            seconds,
            bytes_per_second: (self.total * self.passes) as f64 / seconds,
            slowest_rank_seconds: times.iter().map(each).fold(0.0, f64::max),
            fastest_rank_seconds: times.iter().map(each).fold(f64::INFINITY, f64::min),
        })
    }
}

/// The rank processes. None of them outlives the job, however the job ends.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Fails only if the rank has ended and was waited for.
            if child.kill().is_ok() {
                drop(child.wait());
            }
        }
    }
}

fn now() -> io::Result<u64> {
    let t = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// The line that a rank waits for.
const GO: &[u8] = b"go\n";

/// Bytes of the buffer that filler blocks are taken from: more than the processor's nearest caches
/// hold.
const FILLER: usize = 16 << 20;

/// Runs one rank in its process.
pub fn rank(job: &Job, rank: u64) -> io::Result<()> {
    let blocks: Vec<(u64, usize)> = job.blocks(rank).collect();
    let mut data = match (job.op, job.filler) {
        (Op::Read, _) => vec![0; job.block as usize],
        (Op::Write, true) => vec![0; FILLER.max(job.block as usize)],
        (Op::Write, false) => vec![0; blocks.iter().map(|b| b.1).sum()],
    };
    if job.op == Op::Write && !job.filler {
        let mut at = 0;
        for (offset, len) in &blocks {
            pattern::fill(job.seed, *offset, &mut data[at..at + len]);
            at += len;
        }
    } else {
        // Touches every page before the clock runs.
        pattern::fill(job.seed, rank, &mut data);
    }

    // Does not use `println!`, which panics when the job is gone. A write error ends the rank
    // instead.
    let mut out = io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    io::stdin().read_exact(&mut [0; GO.len()])?;

    let start = now()?;
    let write = job.op == Op::Write;
    let file = OpenOptions::new()
        .read(!write)
        .write(write)
        .open(&job.file)?;
    let mut at = 0;
    let passes = (0..job.passes).flat_map(|_| &blocks);
    for (offset, len) in passes {
        match job.op {
            Op::Read => file.read_exact_at(&mut data[..*len], *offset)?,
            Op::Write => {
                if at + len > data.len() {
                    at = 0;
                }
                file.write_all_at(&data[at..at + len], *offset)?;
                at += len;
            }
        }
    }
    if job.fsync {
        file.sync_all()?;
    }
    nix::unistd::close(file)?;
    let end = now()?;
    writeln!(out, "{start} {end}")?;
    out.flush()
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
