//! Bandwidth that a job perceives for its checkpoints on a slow file system, once with closes that
//! defer and once with closes that publish. Writes a table, JSON, a figure and the section of
//! docs/BENCHMARKS.md.

use clap::Parser;
use forebay_bench::defer::job::{self, Options};
use forebay_bench::defer::{Results, plots, tables};
use forebay_bench::report::{self, Machine};
use forebay_bench::{teardown, units};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measure the bandwidth that a job perceives, with computing between its checkpoints.
///
/// Jobs write checkpoints to a slow simulated file system through `forebay mount --close defer-next` and
/// through `--close publish`, for several computing times; the result is held against equation 1 of
/// the E10 paper, S / (Tc + max(0, Ts - C)).
///
/// Examples:
///   bench-defer
///   bench-defer --runs 1 --checkpoints 2 --size 16M --compute 0,1
///   bench-defer --json defer.json --update-docs
#[derive(Parser)]
#[command(verbatim_doc_comment)]
struct Cli {
    /// Jobs of each kind
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Bytes of a checkpoint
    #[arg(long, default_value = "64M", value_parser = units::parse_size)]
    size: u64,
    /// Checkpoints of a job
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    checkpoints: u32,
    /// OSTs of the file system
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    osts: u16,
    /// Bytes per second of each OST
    #[arg(long, default_value = "5M", value_parser = units::parse_size)]
    bandwidth: u64,
    /// Computing times, as shares of what publishing one checkpoint takes
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,0.25,0.5,0.75,1,1.25,1.5,2,3"
    )]
    compute: Vec<f64>,
    /// Decides what the checkpoints have
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to put Forebay's store: a disk, not a tmpfs
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// The forebay binary; the one beside this program unless given
    #[arg(long)]
    forebay: Option<PathBuf>,
    /// Another argument of `forebay mount`, such as --drain=never; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    forebay_arg: Vec<String>,
    /// Write every sample to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Rewrite BENCHMARKS.md in this directory between its marks, and the figure in plots/
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "docs")]
    update_docs: Option<PathBuf>,
}

impl Cli {
    fn options(&self) -> io::Result<Options> {
        let bad = |text: String| Err(io::Error::other(text));
        let good = |share: &f64| share.is_finite() && (0.0..=1000.0).contains(share);
        if self.compute.is_empty() || !self.compute.iter().all(good) {
            return bad("--compute needs shares of Ts from 0 to 1000, such as 0,0.5,1".into());
        }
        if self.size == 0 || self.bandwidth == 0 {
            return bad("--size and --bandwidth must be more than nothing".into());
        }
        if !self.dir.is_dir() {
            let dir = self.dir.display();
            return bad(format!("--dir {dir} is no directory; give one on a disk"));
        }
        if !nix::unistd::geteuid().is_root() {
            return bad(
                "the simulated file system is mounted for others too: run this as root".into(),
            );
        }
        let own = std::env::current_exe()?;
        let beside = own.parent().unwrap_or(Path::new(".")).join("forebay");
        Ok(Options {
            dir: self.dir.clone(),
            forebay: self.forebay.clone().unwrap_or(beside),
            forebay_args: self.forebay_arg.clone(),
            runs: self.runs,
            size: self.size,
            checkpoints: self.checkpoints,
            osts: self.osts.into(),
            bandwidth: self.bandwidth,
            computes: self.compute.clone(),
            seed: self.seed,
        })
    }

    /// Describes the machine that the figures were measured on, and how busy it was.
    fn machine(&self) -> io::Result<String> {
        let machine = Machine::look(&self.dir, self.runs as usize, 1.0)?;
        Ok(format!(
            "{} jobs of each kind, {} checkpoints each; {} OSTs of {:.1} MiB/s; {}.",
            self.runs,
            self.checkpoints,
            self.osts,
            self.bandwidth as f64 / (1 << 20) as f64,
            machine.busy()?
        ))
    }
}

fn update(docs: &Path, machine: &str, results: &Results) -> io::Result<()> {
    let plots = docs.join("plots");
    std::fs::create_dir_all(&plots)?;
    let figure = plots.join("defer-perceived.svg");
    plots::perceived(&figure, results)
        .map_err(|e| io::Error::other(format!("{}: {e}", figure.display())))?;
    let body = format!(
        "{machine}\n\n{}\n\n{}\n![Perceived bandwidth](plots/defer-perceived.svg)\n",
        tables::costs(results),
        tables::grid(results).markdown()
    );
    report::rewrite_page(&docs.join("BENCHMARKS.md"), "bench-defer", &body)
}

fn run(cli: &Cli) -> io::Result<()> {
    let options = cli.options()?;
    let machine = cli.machine()?;
    println!("{machine}\n");
    let results = job::run(&options)?;
    println!("{}\n", tables::costs(&results));
    println!("{}", tables::grid(&results).text());
    if let Some(path) = &cli.json {
        let mut all = serde_json::to_value(&results)?;
        all["machine"] = machine.clone().into();
        std::fs::write(path, format!("{all:#}\n"))?;
    }
    match &cli.update_docs {
        Some(docs) => update(docs, &machine, &results),
        None => Ok(()),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match teardown::on_signals().and_then(|()| run(&cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-defer: {error}");
            ExitCode::FAILURE
        }
    }
}
