//! Compares the mount with the plain directory and the minimal FUSE file system in one run.

use clap::Parser;
use forebay_bench::cases::{self, Options};
use forebay_bench::fixture::{Baseline, Fixture};
use forebay_bench::report::{self, Machine};
use forebay_bench::teardown;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compare Forebay with a plain directory and with a minimal FUSE file system.
///
/// Prints medians and ratios, then a line for each target. Missed targets do not make it fail: the
/// machine decides too.
///
/// Examples:
///   forebay-bench
///   forebay-bench --rounds 9 --json bench.json
///   forebay-bench --rounds 1 --scale 0.02 --only write
///   forebay-bench --only write --block 4096 --rounds 15
///   forebay-bench --only write --against old/forebay
#[derive(Parser)]
#[command(verbatim_doc_comment)]
struct Cli {
    /// Rounds that count; the table shows their medians
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Multiplies the bytes and files of each case
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Numbers of processes that share a file
    #[arg(long, value_delimiter = ',', default_value = "1,2,4",
          value_parser = clap::value_parser!(u64).range(1..=256))]
    processes: Vec<u64>,
    /// Only this group
    #[arg(long, value_parser = ["write", "read", "read undrained", "read drained", "metadata"])]
    only: Option<String>,
    /// Only blocks of this many bytes: 1048576, 47008, 4096
    #[arg(long, value_parser = clap::value_parser!(u64))]
    block: Option<u64>,
    /// Where to put store and backing: a disk, not a tmpfs
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// The forebay binary; the one beside this program unless given
    #[arg(long)]
    forebay: Option<PathBuf>,
    /// Another forebay binary, measured in place of the minimal file system: "minimal" stands for it in the
    /// table
    #[arg(long, value_name = "FOREBAY", requires = "only")]
    against: Option<PathBuf>,
    /// Write every sample to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Rewrite the table in this page between its bench:begin and bench:end marks
    #[arg(long)]
    markdown: Option<PathBuf>,
}

fn run(cli: Cli) -> io::Result<()> {
    if !(cli.scale > 0.0 && cli.scale.is_finite()) {
        return Err(io::Error::other(
            "--scale must be above zero, for example 0.1",
        ));
    }
    if let Some(block) = cli
        .block
        .filter(|block| !cases::blocks().any(|b| b == *block))
    {
        return Err(io::Error::other(format!(
            "--block {block} is not measured; choose 1048576, 47008 or 4096"
        )));
    }
    let own = std::env::current_exe()?;
    let beside = |name: &str| own.parent().unwrap_or(Path::new(".")).join(name);
    let forebay = cli.forebay.unwrap_or_else(|| beside("forebay"));
    let options = Options {
        rounds: usize::from(cli.rounds),
        scale: cli.scale,
        processes: cli.processes,
        only: cli.only,
        block: cli.block,
        writer: beside("strided-writer"),
    };
    let machine = Machine::look(&cli.dir, options.rounds, options.scale)?;
    println!("{}\n", machine.sentence());

    let baseline = match cli.against {
        Some(_)
            if options
                .only
                .as_deref()
                .is_some_and(|only| !["write", "read undrained", "metadata"].contains(&only)) =>
        {
            return Err(io::Error::other(
                "--against cannot be used with cases that drain: give --only write, \"read undrained\" or metadata",
            ));
        }
        Some(program) => {
            println!("minimal stands for {}\n", program.display());
            Baseline::Forebay(program)
        }
        None => Baseline::Minimal(beside("minimal-fs")),
    };
    let fixture = Fixture::start(&cli.dir, &forebay, baseline)?;
    let cases = cases::run(&fixture, &options, &mut |case| {
        eprintln!("measured: {} {}", case.group, case.name);
    })?;
    fixture.stop()?;

    println!("{}", report::table(&cases));
    print!("{}", report::verdicts(&cases));
    if let Some(path) = cli.json {
        std::fs::write(&path, format!("{:#}\n", report::json(&machine, &cases)))?;
    }
    if let Some(path) = cli.markdown {
        report::rewrite_page(&path, "bench", &report::markdown(&machine, &cases))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match teardown::on_signals().and_then(|()| run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
