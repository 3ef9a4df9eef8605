//! Runs the papers' kernels on several nodes of the simulated parallel file system, directly and
//! through Forebay. Writes tables, JSON, figures and the section of docs/BENCHMARKS.md.

use clap::Parser;
use forebay_bench::jobs::kernels::{self, Kernel};
use forebay_bench::jobs::measure::{self, Options};
use forebay_bench::jobs::{Results, plots, tables};
use forebay_bench::report::{self, Machine};
use forebay_bench::{teardown, units};
use forebay_cluster::Mpi;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measure what the papers' I/O kernels perceive, from open to close, directly and through Forebay.
///
/// Parallel jobs on several nodes (namespaces with a client of one simulated parallel file system each)
/// write one shared file: to the file system itself, and through Forebay with closes that publish and
/// closes that defer. Every file is checked when it is complete. No speed makes it fail.
///
/// Examples:
///   bench-jobs
///   bench-jobs --kernels ior_hard,s3d --runs 1 --size 1M
///   bench-jobs --json jobs.json --update-docs
#[derive(Parser)]
#[command(verbatim_doc_comment)]
struct Cli {
    /// Only these: coll_perf, flash_io, flash_io_collective, s3d, gcrm, vorpal, chombo, nekcem, ior_hard
    #[arg(long, value_delimiter = ',', value_parser = kernel_name)]
    kernels: Vec<&'static str>,
    /// Runs of each kernel and way
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Bytes from each rank, about
    #[arg(long, default_value = "4M", value_parser = units::parse_size)]
    size: u64,
    /// Nodes, each a client of the file system
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Ranks, round robin over the nodes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    ranks: u16,
    #[arg(long, value_enum, default_value = "mpich", help = "Whose ranks")]
    mpi: Mpi,
    /// OSTs of the file system; files are striped over all of them, 1 MiB at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    osts: u16,
    /// Bytes per second of each OST
    #[arg(long, default_value = "10M", value_parser = units::parse_size)]
    bandwidth: u64,
    /// What each lock that moves between nodes costs its OST
    #[arg(long, default_value = "2ms")]
    lock_cost: String,
    /// Bytes that a node may have on the way to each OST: what a close need not wait for
    #[arg(long, default_value = "256k", value_parser = units::parse_size)]
    write_behind: u64,
    /// Decides all jitter, and what the files have
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to put Forebay's stores: a disk, not a tmpfs
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// The forebay binary; the one beside this program unless given
    #[arg(long)]
    forebay: Option<PathBuf>,
    /// Another argument of `forebay mount`, such as --subfiles=always; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    forebay_arg: Vec<String>,
    /// Another word for all kernels, such as --hint and then romio_cb_write=enable; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    kernel_arg: Vec<String>,
    /// Write every sample to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Rewrite BENCHMARKS.md in this directory between its marks, and the figures in plots/
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "docs")]
    update_docs: Option<PathBuf>,
}

fn kernel_name(name: &str) -> Result<&'static str, String> {
    let found = Kernel::named(name).map(|kernel| kernel.name);
    found.ok_or_else(|| format!("there is no kernel '{name}'; --help lists them"))
}

impl Cli {
    fn options(&self) -> io::Result<Options> {
        let bad = |text: &str| Err(io::Error::other(text.to_owned()));
        if !self.dir.is_dir() {
            let dir = self.dir.display();
            return bad(&format!("--dir {dir} is no directory; give one on a disk"));
        }
        if !nix::unistd::geteuid().is_root() {
            return bad("nodes are namespaces with mounts of their own: run this as root");
        }
        let wanted =
            |kernel: &&Kernel| self.kernels.is_empty() || self.kernels.contains(&kernel.name);
        let own = std::env::current_exe()?;
        let beside = own.parent().unwrap_or(Path::new(".")).join("forebay");
        Ok(Options {
            dir: self.dir.clone(),
            forebay: self.forebay.clone().unwrap_or(beside),
            forebay_args: self.forebay_arg.clone(),
            kernel_args: self.kernel_arg.clone(),
            kernels: kernels::ALL.iter().filter(wanted).collect(),
            mpi: self.mpi,
            nodes: self.nodes.into(),
            ranks: self.ranks.into(),
            runs: self.runs,
            size: self.size,
            osts: self.osts.into(),
            bandwidth: self.bandwidth,
            lock_cost: self.lock_cost.clone(),
            write_behind: self.write_behind,
            seed: self.seed,
        })
    }

    /// Describes the machine that the figures were measured on, and how busy it was.
    fn machine(&self) -> io::Result<String> {
        let machine = Machine::look(&self.dir, self.runs as usize, 1.0)?;
        Ok(format!(
            "{} runs each, interleaved, seed {}; {} ranks of {} on {} nodes, about {} each; {} OSTs of {}/s, a lock \
             move costs {}, write-behind of {} for each node and OST; {}.",
            self.runs,
            self.seed,
            self.ranks,
            match self.mpi {
                Mpi::Mpich => "MPICH",
                Mpi::OpenMpi => "Open MPI",
            },
            self.nodes,
            units::block_name(self.size),
            self.osts,
            units::block_name(self.bandwidth),
            self.lock_cost,
            units::block_name(self.write_behind),
            machine.busy()?
        ))
    }
}

fn update(docs: &Path, machine: &str, results: &Results) -> io::Result<()> {
    let plots = docs.join("plots");
    std::fs::create_dir_all(&plots)?;
    let mut body = format!(
        "{machine}\n\n{}\n{}\n{}\n",
        tables::perceived(results).markdown(),
        tables::below(results).markdown(),
        tables::papers(results).markdown()
    );
    type Plot = fn(&Path, &Results) -> Result<(), Box<dyn std::error::Error>>;
    let figures: [(&str, &str, Plot); 3] = [
        (
            "jobs-perceived.svg",
            "Perceived bandwidth",
            plots::perceived,
        ),
        ("jobs-factors.svg", "Factors", plots::factors),
        ("jobs-lock-moves.svg", "Lock moves", plots::lock_moves),
    ];
    for (name, what, plot) in figures {
        let path = plots.join(name);
        plot(&path, results).map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?;
        body.push_str(&format!("![{what}](plots/{name})\n"));
    }
    report::rewrite_page(&docs.join("BENCHMARKS.md"), "bench-jobs", &body)
}

fn run(cli: &Cli) -> io::Result<()> {
    let options = cli.options()?;
    let machine = cli.machine()?;
    println!("{machine}\n");
    let results = measure::run(&options)?;
    println!("{}", tables::perceived(&results).text());
    println!("{}", tables::below(&results).text());
    println!("{}", tables::papers(&results).text());
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
            eprintln!("bench-jobs: {error}");
            ExitCode::FAILURE
        }
    }
}
