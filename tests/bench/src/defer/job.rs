//! The job, and the file system that it runs on. Each job gets a fresh file system, as in
//! [`crate::osts`].

use super::{Close, Costs, Results, Sample};
use crate::osts::daemon::{Daemon, Wish};
use crate::osts::place::Place;
use crate::osts::{Reporter, UNIT, rate};
use crate::stats::median;
use forebay_tests::rng::Rng;
use pfs_sim::Sim;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of one write call of the job.
const BLOCK: usize = 4 << 20;

#[derive(Clone, Debug)]
pub struct Options {
    /// Parent of the temporary directories.
    pub dir: PathBuf,
    pub forebay: PathBuf,
    pub forebay_args: Vec<String>,
    pub runs: u32,
    /// Bytes of a checkpoint.
    pub size: u64,
    pub checkpoints: u32,
    pub osts: usize,
    /// Bytes per second of each OST.
    pub bandwidth: u64,
    /// Computing times between two checkpoints, as shares of the time that publishing one
    /// checkpoint takes.
    pub computes: Vec<f64>,
    pub seed: u64,
}

pub fn run(options: &Options) -> io::Result<Results> {
    let jobs = Close::BOTH.len() * options.computes.len() * options.runs as usize;
    let reporter = Reporter::new(jobs as u64 + 1);
    reporter.begin("one checkpoint, alone");
    let costs = calibrate(options)?;
    reporter.done(&format!(
        "a checkpoint of {:.0} MB: Tc {:.3} s, Ts {:.3} s, both in one close {:.3} s",
        options.size as f64 / 1e6,
        costs.store,
        costs.publish,
        costs.both
    ));
    let mut samples = Vec::new();
    for run in 0..options.runs {
        for share in &options.computes {
            for close in Close::BOTH {
                let compute = share * costs.publish;
                reporter.begin(&format!("run {run}, {}, C {compute:.2} s", close.name()));
                let sample = one_job(options, close, compute, run)?;
                reporter.done(&format!(
                    "run {run}, {}, C {compute:.2} s: {:.1} MB/s",
                    close.name(),
                    rate(sample.bytes, sample.io)
                ));
                samples.push(sample);
            }
        }
    }
    Ok(Results {
        size: options.size,
        costs,
        samples,
    })
}

/// A daemon over a fresh file system.
struct Stage {
    daemon: Daemon,
    place: Place,
}

impl Stage {
    fn set(options: &Options, close: Close, run: u32) -> io::Result<Stage> {
        let builder = Sim::builder()
            .osts(options.osts)
            .bandwidth(&options.bandwidth.to_string())
            .stripe(&UNIT.to_string(), options.osts)
            // Without write-behind the writes that extend a file run one at a time, so only one OST
            // would be busy.
            .write_behind("32M")
            .seed(options.seed + u64::from(run))
            // Room for all checkpoints twice: once in subfiles and once in canonical files.
            .option(
                "warm",
                (2 * options.size * u64::from(options.checkpoints)).to_string(),
            );
        let place = Place::start(&options.dir, 1, builder)?;
        let (dir, root) = (place.scratch("forebay")?, place.lustre_root()?);
        let store = (2 << 30).max(2 * options.size * u64::from(options.checkpoints + 1));
        let mut args = vec![
            format!("--close={}", close.name()),
            format!("--drain-concurrency={}", options.osts),
            format!("--store-size={store}"),
            "--ost-deadline=10m".to_owned(),
        ];
        args.extend(options.forebay_args.iter().cloned());
        let daemon = Daemon::start(&Wish {
            program: &options.forebay,
            dir: &dir,
            backing: place.client(0),
            lustre_root: &root,
            args: &args,
        })?;
        Ok(Stage { daemon, place })
    }

    fn path(&self, checkpoint: u32) -> PathBuf {
        self.daemon.mount().join(format!("ckpt_{checkpoint:04}"))
    }

    /// Takes the stage down after checking that every checkpoint has the content that was written.
    fn end(self, checkpoints: u32, content: &Content) -> io::Result<()> {
        let Stage { daemon, place } = self;
        place.unhurt(|| {
            daemon.drain()?;
            for n in 0..checkpoints {
                let canonical = place.client(0).join(format!("ckpt_{n:04}"));
                content.verify(&canonical, n)?;
            }
            for complaint in daemon.stop()? {
                eprintln!("  forebay said: {complaint}");
            }
            Ok(())
        })?;
        place.stop()
    }
}

/// Content of the checkpoints, made before the clock runs. No two blocks are alike.
struct Content {
    blocks: Vec<Vec<u8>>,
}

impl Content {
    fn of(size: u64, seed: u64) -> Content {
        let mut rng = Rng::new(seed);
        let lens = (0..size)
            .step_by(BLOCK)
            .map(|at| (size - at).min(BLOCK as u64));
        Content {
            blocks: lens.map(|len| rng.bytes(len as usize)).collect(),
        }
    }

    /// Returns the blocks of checkpoint `n`, which begins with another block than checkpoint `n -
    /// 1`.
    fn of_checkpoint(&self, n: u32) -> impl Iterator<Item = &Vec<u8>> {
        let turn = n as usize % self.blocks.len();
        let (front, back) = self.blocks.split_at(turn);
        back.iter().chain(front)
    }

    fn write(&self, file: &mut File, n: u32) -> io::Result<()> {
        self.of_checkpoint(n)
            .try_for_each(|block| file.write_all(block))
    }

    fn verify(&self, path: &Path, n: u32) -> io::Result<()> {
        let found = std::fs::read(path)?;
        if found
            == self
                .of_checkpoint(n)
                .flatten()
                .copied()
                .collect::<Vec<u8>>()
        {
            return Ok(());
        }
        let text = format!("{} is not what was written", path.display());
        Err(io::Error::other(text))
    }
}

/// Returns the seconds of one open, and of the writes and the close that follow it.
fn checkpoint(stage: &Stage, content: &Content, n: u32) -> io::Result<(f64, f64)> {
    let begin = Instant::now();
    let mut file = File::create(stage.path(n))?;
    let open = begin.elapsed();
    content.write(&mut file, n)?;
    close(file)?;
    Ok((open.as_secs_f64(), (begin.elapsed() - open).as_secs_f64()))
}

/// Closes the file and returns the error of `close`, which dropping the file would hide.
fn close(file: File) -> io::Result<()> {
    nix::unistd::close(file).map_err(Into::into)
}

/// Returns the medians of a few checkpoints. Before each of them all earlier ones have been
/// drained.
fn calibrate(options: &Options) -> io::Result<Costs> {
    let content = Content::of(options.size, options.seed);
    let times = options.runs.clamp(1, 5);
    let (mut store, mut publish, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for close in Close::BOTH {
        let stage = Stage::set(options, close, 0)?;
        for n in 0..times {
            let (_, written) = checkpoint(&stage, &content, 2 * n)?;
            if close == Close::Publish {
                both.push(written);
            } else {
                store.push(written);
                let begin = Instant::now();
                drop(File::create(stage.path(2 * n + 1))?);
                publish.push(begin.elapsed().as_secs_f64());
            }
            stage.place.unhurt(|| {
                stage.daemon.drain()?;
                std::fs::remove_file(stage.path(2 * n))
            })?;
        }
        stage.end(0, &content)?;
    }
    Ok(Costs {
        store: median(&store),
        publish: median(&publish),
        both: median(&both),
    })
}

fn one_job(options: &Options, close: Close, compute: f64, run: u32) -> io::Result<Sample> {
    let content = Content::of(options.size, options.seed + u64::from(run));
    let stage = Stage::set(options, close, run)?;
    let mut io = 0.0;
    for n in 0..options.checkpoints {
        let (open, written) = checkpoint(&stage, &content, n)?;
        io += open + written;
        std::thread::sleep(Duration::from_secs_f64(compute));
    }
    // The open of the next checkpoint, which waits for the data of the last one.
    let begin = Instant::now();
    let next = File::create(stage.path(options.checkpoints))?;
    io += begin.elapsed().as_secs_f64();
    drop(next);
    stage.end(options.checkpoints, &content)?;
    Ok(Sample {
        run,
        close,
        compute,
        checkpoints: options.checkpoints,
        bytes: options.size * u64::from(options.checkpoints),
        io,
    })
}
