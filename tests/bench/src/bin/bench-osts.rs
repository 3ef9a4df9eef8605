//! Measures slow OSTs and writers that compete for locks, on the simulated parallel file system.
//! Writes tables, JSON, figures and the section of docs/BENCHMARKS.md.

use clap::{Parser, ValueEnum};
use forebay_bench::osts::probing::{Case, Results};
use forebay_bench::osts::{Common, JITTER, UNIT, domains, plots, probing, tables};
use forebay_bench::report::{self, Machine};
use forebay_bench::{teardown, units};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measure what slow OSTs and unmapped writers cost, on the simulated parallel file system.
///
/// Two parts: a shared-file checkpoint on 16 OSTs of which two are slow, direct, through Forebay on
/// all OSTs, and through Forebay with probing; and lock moves of delegates that fit the OSTs of a
/// file and of some that do not. Missed targets do not make it fail: the machine decides too.
///
/// Examples:
///   bench-osts
///   bench-osts --only domains --runs 3
///   bench-osts --only probing --cases direct --runs 2 --size 64M
///   bench-osts --only probing --tenth --long 0 --update-docs
///   bench-osts --json osts.json --update-docs
#[derive(Parser)]
#[command(verbatim_doc_comment)]
struct Cli {
    /// Only this part
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Only these cases of the probing part
    #[arg(long, value_enum, value_delimiter = ',',
          default_values = ["direct", "all-osts", "probing"])]
    cases: Vec<Case>,
    /// Runs of each case
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Bytes of the shared file, a multiple of 1M
    #[arg(long, default_value = "256M", value_parser = units::parse_size)]
    size: u64,
    /// Checkpoints that a run of the probing part writes one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    checkpoints: u32,
    /// Checkpoints of the one long run that shows the probe's share; 0 for none
    #[arg(long, default_value_t = 32)]
    long: u32,
    /// Do not wait for the canonical file: the clock stops when no byte is only on the node
    #[arg(long)]
    until_safe: bool,

    /// Slow OSTs of the probing part have exactly a tenth of their bandwidth in each run, instead of a share
    /// that is drawn from 1/20 to 3/20
    #[arg(long)]
    tenth: bool,
    /// Writers of the checkpoint, each a client where they write directly
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    writers: u16,
    /// What a probe writes to each OST
    #[arg(long, default_value = "1M", value_parser = units::parse_size)]
    probe_size: u64,
    /// Bytes per second of each OST that is not slow
    #[arg(long, default_value = "10M", value_parser = units::parse_size)]
    bandwidth: u64,
    /// Numbers of delegates in the domains part
    #[arg(long, value_delimiter = ',', default_value = "4,8,9,16",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    delegates: Vec<u32>,
    /// What a lock move costs in the domains part
    #[arg(long, default_value = "2ms")]
    lock_cost: String,
    /// Decides which OSTs are slow, how slow, and all jitter
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to put Forebay's store: a disk, not a tmpfs
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// The forebay binary; the one beside this program unless given
    #[arg(long)]
    forebay: Option<PathBuf>,
    /// Another argument of `forebay mount`, such as --drain=on-close; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    forebay_arg: Vec<String>,
    /// Write every sample to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Rewrite BENCHMARKS.md in this directory between its marks, and the figures in plots/
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "docs")]
    update_docs: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Probing,
    Domains,
}

impl Cli {
    fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }

    fn common(&self) -> Common {
        Common {
            dir: self.dir.clone(),
            runs: self.runs,
            size: self.size,
            bandwidth: self.bandwidth,
            seed: self.seed,
        }
    }

    fn probing(&self) -> io::Result<probing::Options> {
        let own = std::env::current_exe()?;
        let beside = own.parent().unwrap_or(Path::new(".")).join("forebay");
        Ok(probing::Options {
            common: self.common(),
            cases: self.cases.clone(),
            tenth: self.tenth,
            writers: usize::from(self.writers),
            checkpoints: self.checkpoints,
            long: self.long,
            complete: !self.until_safe,
            probe_size: self.probe_size,
            forebay: self.forebay.clone().unwrap_or(beside),
            forebay_args: self.forebay_arg.clone(),
        })
    }

    fn domains(&self) -> domains::Options {
        domains::Options {
            common: self.common(),
            delegates: self.delegates.clone(),
            lock_cost: self.lock_cost.clone(),
        }
    }

    fn check(&self) -> io::Result<()> {
        let bad = |text: String| Err(io::Error::other(text));
        if !self.size.is_multiple_of(UNIT) {
            return bad(format!("--size {} is not a multiple of 1M", self.size));
        }
        if !self.dir.is_dir() {
            let dir = self.dir.display();
            return bad(format!("--dir {dir} is no directory; give one on a disk"));
        }
        if self.cases.is_empty() || self.delegates.is_empty() {
            return bad("--cases and --delegates need at least one value".into());
        }
        if !nix::unistd::geteuid().is_root() {
            return bad(
                "the simulated file system is mounted for others too: run this as root".into(),
            );
        }
        Ok(())
    }
}

/// Describes the machine that the figures were measured on, and how busy it was.
fn machine(cli: &Cli) -> io::Result<String> {
    let machine = Machine::look(&cli.dir, cli.runs as usize, 1.0)?;
    Ok(format!(
        "{} runs each, interleaved, seed {}; OSTs of {} MiB/s, jitter {JITTER}; file of {} MiB; {}.",
        machine.rounds,
        cli.seed,
        cli.bandwidth >> 20,
        cli.size >> 20,
        machine.busy()?
    ))
}

fn plot(result: Result<(), Box<dyn std::error::Error>>, path: &Path) -> io::Result<()> {
    result.map_err(|e| io::Error::other(format!("{}: {e}", path.display())))
}

struct Docs<'a> {
    dir: &'a Path,
    machine: &'a str,
    tenth: bool,
}

impl Docs<'_> {
    fn figure(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.dir.join("plots");
        std::fs::create_dir_all(&dir)?;
        Ok(dir.join(name))
    }

    fn section(&self, name: &str, body: &str) -> io::Result<()> {
        let page = self.dir.join("BENCHMARKS.md");
        report::rewrite_page(&page, name, &format!("{}\n\n{body}", self.machine))
    }

    fn probing(&self, results: &Results) -> io::Result<()> {
        let (section, figure) = match self.tenth {
            true => ("bench-osts-tenth", "osts-bandwidth-tenth.svg"),
            false => ("bench-osts-probing", "osts-bandwidth.svg"),
        };
        let path = self.figure(figure)?;
        plot(plots::bandwidth(&path, results), &path)?;
        let mut body = tables::probing_grid(results).markdown();
        body.push_str(&format!("\n![Bandwidth of each run](plots/{figure})\n\n"));
        for line in tables::probing_verdicts(results) {
            body.push_str(&format!("- {line}\n"));
        }
        self.section(section, &body)
    }

    fn domains(&self, samples: &[domains::Sample], lock_cost: &str) -> io::Result<()> {
        let path = self.figure("osts-lock-moves.svg")?;
        plot(plots::lock_moves(&path, samples), &path)?;
        let mut body = tables::domains_grid(samples).markdown();
        body.push_str(&format!("\nA lock move costs {lock_cost}.\n"));
        body.push_str("\n![Lock moves by delegates](plots/osts-lock-moves.svg)\n");
        self.section("bench-osts-domains", &body)
    }
}

fn run(cli: &Cli) -> io::Result<()> {
    cli.check()?;
    let machine = machine(cli)?;
    println!("{machine}\n");
    let docs = cli.update_docs.as_deref().map(|dir| Docs {
        dir,
        machine: &machine,
        tenth: cli.tenth,
    });
    let mut all = serde_json::json!({ "machine": machine, "seed": cli.seed });
    if cli.wants(Part::Probing) {
        let results = probing::run(&cli.probing()?)?;
        println!("{}", tables::probing_grid(&results).text());
        for line in tables::probing_verdicts(&results) {
            println!("{line}");
        }
        println!();
        all["probing"] = serde_json::to_value(&results)?;
        if let Some(docs) = &docs {
            docs.probing(&results)?;
        }
    }
    if cli.wants(Part::Domains) {
        let samples = domains::run(&cli.domains())?;
        println!("{}", tables::domains_grid(&samples).text());
        all["domains"] = serde_json::to_value(&samples)?;
        if let Some(docs) = &docs {
            docs.domains(&samples, &cli.lock_cost)?;
        }
    }
    if let Some(path) = &cli.json {
        std::fs::write(path, format!("{all:#}\n"))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match teardown::on_signals().and_then(|()| run(&cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-osts: {error}");
            ExitCode::FAILURE
        }
    }
}
