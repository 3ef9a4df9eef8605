//! Measures an index that is far larger than its memory: millions of extents of one file that
//! cannot coalesce, written straight into the store without a mount.
//!
//! Three processes run one after the other, so that each one's memory use is its own: the first
//! fills the store and dies without closing it (as under kill -9), the second recovers the store
//! and looks extents up, the third opens it after the clean close.

use clap::{Parser, Subcommand};
use forebay_bench::{report, stats, units};
use layout_index::{
    ByteRange, FileId, Intro, RealDisk, SpaceOptions, Store, StoreError, StoreOptions, Timestamp,
};
use rand::Rng;
use serde_json::{Value, json};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of one extent, and the distance from one extent to the next. The gap keeps them from
/// coalescing.
const EXTENT: u64 = 16;
const STRIDE: u64 = 32;

/// Fill the index of one file with extents; print memory, insert rate, lookups and recovery.
///
/// Example: index-bench --extents 10000000 --index-memory 256M
#[derive(Parser)]
struct Cli {
    /// How many
    #[arg(long, default_value_t = 10_000_000, global = true)]
    extents: u64,
    /// As the setting `index-memory`
    #[arg(long, default_value = "256M", value_parser = units::parse_size, global = true)]
    index_memory: u64,
    /// Lookups to time
    #[arg(long, default_value_t = 200_000, global = true)]
    lookups: u64,
    /// Insert all over the file instead of from front to back
    #[arg(long, global = true)]
    shuffle: bool,
    /// Where to put the store
    #[arg(long, default_value = "/var/tmp", global = true)]
    dir: PathBuf,
    /// Rewrite the table in this page between its index:begin and index:end marks
    #[arg(long)]
    markdown: Option<PathBuf>,
    #[command(subcommand)]
    phase: Option<Phase>,
}

/// One process of the benchmark.
#[derive(Clone, Copy, Subcommand)]
enum Phase {
    #[command(hide = true)]
    Fill,
    #[command(hide = true)]
    Recover,
    #[command(hide = true)]
    Reopen,
}

/// Returns a value of /proc/self/status in MiB.
fn memory(key: &str) -> io::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib = status
        .lines()
        .find_map(|line| {
            line.strip_prefix(key)?
                .strip_prefix(':')?
                .trim()
                .split(' ')
                .next()
        })
        .and_then(|word| word.parse::<f64>().ok());
    kib.map(|kib| kib / 1024.0)
        .ok_or_else(|| io::Error::other(format!("/proc/self/status has no {key}")))
}

fn store_error(error: StoreError) -> io::Error {
    io::Error::other(error.to_string())
}

const FILE: FileId = FileId { ino: 1, birth: 1 };

fn options(cli: &Cli) -> StoreOptions {
    StoreOptions {
        dir: cli.dir.join("store"),
        node: "bench".into(),
        backing: cli.dir.join("backing"),
        index_memory: cli.index_memory,
        space: SpaceOptions::default(),
    }
}

/// Maps `0..count` to a scattered permutation of itself. The prime does not divide any count that a
/// run can have.
fn scatter(n: u64, count: u64) -> u64 {
    const PRIME: u128 = 0xFFFF_FFFF_FFFF_FFC5;
    (u128::from(n) * PRIME % u128::from(count)) as u64
}

fn fill(cli: &Cli) -> io::Result<Value> {
    let (store, _) = Store::open(options(cli), Arc::new(RealDisk)).map_err(store_error)?;
    store.start_maintenance().map_err(store_error)?;
    let before = memory("VmRSS")?;
    let file = store.file(FILE);
    file.exclusive()
        .begin(Intro {
            size: 0,
            mtime: Timestamp::now(),
            uid: 0,
            gid: 0,
            handle: Vec::new(),
            path: b"extents".to_vec(),
        })
        .map_err(store_error)?;
    file.add_writer();
    let start = Instant::now();
    for n in 0..cli.extents {
        let i = if cli.shuffle {
            scatter(n, cli.extents)
        } else {
            n
        };
        let mut data = [0; EXTENT as usize];
        data[..8].copy_from_slice(&i.to_le_bytes());
        file.write(0, i * STRIDE, &data).map_err(store_error)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    store.sync().map_err(store_error)?;
    let sync_seconds = start.elapsed().as_secs_f64();
    // Skips all cleanup in `drop`: this process ends by SIGKILL.
    std::mem::forget((file, store));
    Ok(json!({
        "rss_empty": before,
        "rss": memory("VmRSS")?,
        "rss_peak": memory("VmHWM")?,
        "inserts_per_second": cli.extents as f64 / seconds,
        "sync_seconds": sync_seconds,
    }))
}

fn recover(cli: &Cli) -> io::Result<Value> {
    let start = Instant::now();
    let (store, report) = Store::open(options(cli), Arc::new(RealDisk)).map_err(store_error)?;
    let seconds = start.elapsed().as_secs_f64();
    let rss_recovered = memory("VmRSS")?;
    let lost = cli.extents * EXTENT - report.undrained.min(cli.extents * EXTENT);
    if lost != 0 || !report.damaged.is_empty() {
        let text = format!("recovery lost {lost} bytes: {:?}", report.damaged);
        return Err(io::Error::other(text));
    }
    let file = store.file(FILE);
    let mut random = rand::rng();
    let (mut plans, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..cli.lookups {
        let i = random.random_range(0..cli.extents);
        let range = ByteRange::new(i * STRIDE, i * STRIDE + EXTENT);
        let start = Instant::now();
        let plan = file.plan(range).map_err(store_error)?;
        plans.push(start.elapsed().as_secs_f64() * 1e6);
        let mut data = [0; EXTENT as usize];
        file.read(&plan, &mut data, None).map_err(store_error)?;
        reads.push(start.elapsed().as_secs_f64() * 1e6);
        if data[..8] != i.to_le_bytes() {
            return Err(io::Error::other(format!("extent {i} came back wrong")));
        }
    }
    let result = json!({
        "recovery_seconds": seconds,
        "replayed": report.replayed,
        "rss_recovered": rss_recovered,
        "lookup_median_us": stats::median(&plans),
        "lookup_p99_us": stats::quantile(&plans, 0.99),
        "read_median_us": stats::median(&reads),
        "rss": memory("VmRSS")?,
        "rss_peak": memory("VmHWM")?,
    });
    drop(file);
    store.close().map_err(store_error)?;
    Ok(result)
}

fn reopen(cli: &Cli) -> io::Result<Value> {
    let start = Instant::now();
    let (store, _) = Store::open(options(cli), Arc::new(RealDisk)).map_err(store_error)?;
    let result = json!({
        "seconds": start.elapsed().as_secs_f64(),
        "rss": memory("VmRSS")?,
    });
    store.close().map_err(store_error)?;
    Ok(result)
}

/// Runs one phase in a process of its own and returns what it printed.
fn phase(cli: &Cli, dir: &Path, name: &str) -> io::Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .args([
            format!("--extents={}", cli.extents),
            format!("--index-memory={}", cli.index_memory),
            format!("--lookups={}", cli.lookups),
            name.to_string(),
        ])
        .args(cli.shuffle.then_some("--shuffle"))
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    // `fill` kills itself, so its exit status is not checked: only its output counts.
    serde_json::from_slice(&output.stdout)
        .map_err(|_| io::Error::other(format!("{name} ended with {}", output.status)))
}

fn bench(cli: &Cli) -> io::Result<()> {
    let dir = tempfile::Builder::new()
        .prefix("index-bench.")
        .tempdir_in(&cli.dir)?;
    std::fs::create_dir(dir.path().join("backing"))?;
    let fill = phase(cli, dir.path(), "fill")?;
    let recover = phase(cli, dir.path(), "recover")?;
    let reopen = phase(cli, dir.path(), "reopen")?;
    let get = |value: &Value, key: &str| value[key].as_f64().unwrap_or(f64::NAN);
    let rows = [
        ("extents", cli.extents.to_string()),
        (
            "inserted",
            if cli.shuffle {
                "all over the file"
            } else {
                "front to back"
            }
            .to_string(),
        ),
        ("index-memory", format!("{} MiB", cli.index_memory >> 20)),
        (
            "resident, empty store",
            format!("{:.0} MiB", get(&fill, "rss_empty")),
        ),
        (
            "resident after the inserts",
            format!("{:.0} MiB", get(&fill, "rss")),
        ),
        (
            "highest while inserting",
            format!("{:.0} MiB", get(&fill, "rss_peak")),
        ),
        (
            "inserts",
            format!("{:.0} per second", get(&fill, "inserts_per_second")),
        ),
        (
            "recovery after kill -9",
            format!("{:.2} s", get(&recover, "recovery_seconds")),
        ),
        (
            "records replayed",
            format!("{:.0}", get(&recover, "replayed")),
        ),
        (
            "random lookup, median",
            format!("{:.1} us", get(&recover, "lookup_median_us")),
        ),
        (
            "random lookup, 99th of 100",
            format!("{:.1} us", get(&recover, "lookup_p99_us")),
        ),
        (
            "lookup, read and check, median",
            format!("{:.1} us", get(&recover, "read_median_us")),
        ),
        (
            "highest while recovering and looking up",
            format!("{:.0} MiB", get(&recover, "rss_peak")),
        ),
        (
            "open after a clean close",
            format!("{:.2} s", get(&reopen, "seconds")),
        ),
    ];
    let mut page = String::from("| what | measured |\n|---|--:|\n");
    for (what, value) in &rows {
        println!("{what:<40} {value:>20}");
        page.push_str(&format!("| {what} | {value} |\n"));
    }
    match &cli.markdown {
        Some(path) => report::rewrite_page(path, "index", &page),
        None => Ok(()),
    }
}

fn run(cli: &Cli) -> io::Result<()> {
    let Some(phase) = cli.phase else {
        return bench(cli);
    };
    let result = match phase {
        Phase::Fill => fill(cli)?,
        Phase::Recover => recover(cli)?,
        Phase::Reopen => reopen(cli)?,
    };
    println!("{result}");
    io::stdout().flush()?;
    if matches!(phase, Phase::Fill) {
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("index-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
