//! A job of several processes that write one shared file in an interleaved pattern. The content can
//! be computed again for checks. The demo runs it as its job, the benchmarks as their ranks.

use clap::{Parser, Subcommand};
use forebay_bench::job::{self, Job};
use forebay_bench::{pattern, units};
use std::io::{self, BufWriter};
use std::process::ExitCode;

/// Write one shared file from several processes, block by block in turn.
///
/// Example: strided-writer job /scratch/shared.dat --processes 4 --block 47008 --total 256M
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Run the job; prints its timing as JSON
    Job(Job),
    /// Write the expected content to standard output, from front to back, without any of the job's
    /// code for cutting it into blocks
    Reference {
        /// Bytes of the whole file
        #[arg(long, short, default_value = "256M", value_parser = units::parse_size)]
        total: u64,
        /// As given to the job
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// One process of a job (started by `job`)
    #[command(hide = true)]
    Rank {
        #[command(flatten)]
        job: Job,
        #[arg(long)]
        rank: u64,
    },
}

fn run() -> io::Result<()> {
    match Cli::parse().command {
        Cmd::Job(job) => {
            let outcome = job.run(&std::env::current_exe()?)?;
            println!("{}", serde_json::to_string(&outcome)?);
            Ok(())
        }
        Cmd::Reference { total, seed } => {
            pattern::write_reference(seed, total, &mut BufWriter::new(io::stdout().lock()))
        }
        Cmd::Rank { job, rank } => job::rank(&job, rank)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", job.file.display()))),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strided-writer: {error}");
            ExitCode::FAILURE
        }
    }
}
