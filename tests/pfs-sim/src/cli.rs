//! The command line, and what the process does from the first mount to the last.

use crate::cluster::{Cluster, Common};
use crate::layout::{ANY, STRIPE_UNIT, Wish};
use crate::mount::{self, BigRequests, Look, Mounted};
use crate::ops::{Clients, Pfs};
use crate::settings::{Failure, OstSettings, nanos};
use crate::units;
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  pfs-sim /mnt/pfs
      16 OSTs of 100 MiB/s each, files striped over all of them
  pfs-sim /mnt/n0 /mnt/n1 --osts 4 --stripe-count 4 --lock-cost 2ms
      two clients of one file system
  pfs-sim /mnt/pfs --osts 16 --bandwidth 100M --jitter 10% --slow 3,7=10M
      two OSTs at a tenth of the speed
  echo '{\"ost\":3,\"fail\":\"hang\"}' > /mnt/pfs/.pfs-sim/control
  cat /mnt/pfs/.pfs-sim/counters";

/// A simulated striped parallel file system, for measuring.
///
/// All mount points show the same files; each is one client. Runs in the foreground until SIGTERM,
/// SIGINT or until everything is unmounted. Sizes take K, M, G and T (powers of 1024).
#[derive(Debug, Parser)]
#[command(name = "pfs-sim", after_help = EXAMPLES, args_override_self = true)]
pub struct Cli {
    /// Where to mount it
    #[arg(required = true)]
    mountpoints: Vec<PathBuf>,
    #[command(flatten)]
    look: Look,
    /// How many OSTs
    #[arg(long, default_value_t = 16)]
    osts: usize,
    /// Bytes per second of each OST
    #[arg(long, default_value = "100M", value_parser = units::rate)]
    bandwidth: u64,
    /// Time that each request takes beside its bytes
    #[arg(long, default_value = "200us", value_parser = units::time)]
    latency: Duration,
    /// By how much service times vary, both ways
    #[arg(long, default_value = "0%", value_parser = units::share)]
    jitter: f64,
    /// Requests that an OST works on at once
    #[arg(long, default_value_t = 8)]
    queue: usize,
    /// Size of each OST
    #[arg(long, default_value = "10G", value_parser = units::size)]
    capacity: u64,
    /// OSTs with another bandwidth, such as 3=10M or 0-2,7=10M; may be repeated
    #[arg(long, value_name = "OSTS=RATE", value_parser = slow)]
    slow: Vec<Slow>,
    /// Stripe size of files that say nothing else; a multiple of 64K
    #[arg(long, default_value = "1M", value_parser = stripe_size)]
    stripe_size: u64,
    /// OSTs of files that say nothing else: a number or "all"
    #[arg(long, default_value = "all", value_parser = stripe_count)]
    stripe_count: u16,
    /// What each lock that moves between clients costs its OST
    #[arg(long, default_value = "2ms", value_parser = units::time)]
    lock_cost: Duration,
    /// Locks cover whole multiples of this
    #[arg(long, default_value = "4K", value_parser = units::rate)]
    lock_unit: u64,
    /// Blocks that are read before a part of them is written; 0 for never
    #[arg(long, default_value = "4K", value_parser = units::size)]
    rmw_unit: u64,
    /// Bytes that a client may write to each OST ahead of what is served, as into a cache; 0 for none
    #[arg(long, default_value = "0", value_parser = units::size)]
    write_behind: u64,
    /// Refuse to open files with O_DIRECT, as some file systems do
    #[arg(long)]
    no_direct: bool,
    /// Answer ESTALE about files that have lost their last name and are not open
    #[arg(long)]
    forgets_removed: bool,
    /// What a client is, where locks are concerned
    #[arg(long, value_enum, default_value = "mount")]
    clients: Clients,
    /// Seed of the jitter
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the objects are: "memory", or a directory
    #[arg(long, default_value = "memory")]
    data: PathBuf,
    /// Memory to touch before mounting, so that the first writes do not wait for it
    #[arg(long, default_value = "0", value_parser = units::size)]
    warm: u64,
    /// Largest request that the kernel passes on, up to 16M
    #[arg(long, default_value = "4M", value_parser = max_request)]
    max_request: u32,
    /// Event loops for each mount point
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Slow {
    osts: Vec<usize>,
    bandwidth: u64,
}

fn slow(text: &str) -> Result<Slow, String> {
    let bad = || format!("\"{text}\" does not say which OSTs and how fast; write 3=10M or 0-2=10M");
    let (list, rate) = text.split_once('=').ok_or_else(bad)?;
    let mut osts = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| bad());
        osts.extend(number(first)?..=number(last)?);
    }
    if osts.is_empty() {
        return Err(bad());
    }
    let bandwidth = units::rate(rate)?;
    Ok(Slow { osts, bandwidth })
}

fn stripe_size(text: &str) -> Result<u64, String> {
    let size = units::size(text)?;
    if size == 0 || !size.is_multiple_of(STRIPE_UNIT) || size > u64::from(u32::MAX) {
        return Err(format!(
            "a stripe size of \"{text}\" is impossible; use a multiple of 64K below 4G"
        ));
    }
    Ok(size)
}

fn stripe_count(text: &str) -> Result<u16, String> {
    match (text, text.parse()) {
        ("all" | "-1", _) => Ok(ANY),
        (_, Ok(0)) | (_, Err(_)) => Err(format!(
            "\"{text}\" is no stripe count; write a number from 1 on, or \"all\""
        )),
        (_, Ok(count)) => Ok(count),
    }
}

fn max_request(text: &str) -> Result<u32, String> {
    match units::size(text)? {
        size @ 65536..=0x100_0000 => Ok(size as u32),
        _ => Err(format!(
            "requests of \"{text}\" are impossible; choose 64K to 16M"
        )),
    }
}

impl Cli {
    fn settings(&self) -> Result<Vec<OstSettings>, String> {
        if self.osts == 0 || self.osts > usize::from(ANY) {
            return Err(format!("{} OSTs are impossible; use 1 to 65535", self.osts));
        }
        if self.queue == 0 || self.threads == 0 {
            return Err("--queue and --threads must be at least 1".into());
        }
        let usual = OstSettings {
            bandwidth: self.bandwidth,
            latency_ns: nanos(self.latency),
            jitter: self.jitter,
            queue: self.queue,
            capacity: self.capacity,
            fail: Failure::None,
        };
        let mut all = vec![usual; self.osts];
        for slow in &self.slow {
            for ost in &slow.osts {
                let Some(settings) = all.get_mut(*ost) else {
                    return Err(format!(
                        "--slow names OST {ost}, but the last is {}",
                        self.osts - 1
                    ));
                };
                settings.bandwidth = slow.bandwidth;
            }
        }
        Ok(all)
    }

    fn common(&self) -> Common {
        Common {
            default_layout: Wish {
                stripe_size: Some(self.stripe_size),
                stripe_count: Some(self.stripe_count),
                ..Wish::default()
            },
            lock_cost_ns: AtomicU64::new(nanos(self.lock_cost)),
            lock_unit: self.lock_unit,
            rmw_unit: self.rmw_unit,
            write_behind: self.write_behind,
            no_direct: self.no_direct,
            forgets_removed: self.forgets_removed,
        }
    }
}

/// An event that can end the process.
enum Event {
    Signal,
    /// A session has ended: its mount was unmounted everywhere.
    Ended(io::Result<()>),
}

pub fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("pfs-sim: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    let settings = cli.settings()?;
    if !nix::unistd::geteuid().is_root() {
        return Err("mounting for all users needs root; run it with sudo".into());
    }
    let data = Some(cli.data.as_path()).filter(|data| *data != Path::new("memory"));
    let cluster = Cluster::new(settings, cli.common(), cli.seed, data)
        .map_err(|e| format!("{}: {e}; it cannot hold the objects", cli.data.display()))?;
    let cluster = Arc::new(cluster);
    let pfs = Arc::new(Pfs::new(
        cluster.clone(),
        cli.clients,
        cli.mountpoints.len(),
    ));
    be_a_server();
    crate::block::warm(cli.warm);
    let signals = block_signals().map_err(|e| format!("cannot wait for signals: {e}"))?;
    cluster
        .run()
        .map_err(|e| format!("cannot start a thread: {e}"))?;
    let mounted = mount_all(cli, &pfs)?;
    let mountpoints: Vec<PathBuf> = mounted.iter().map(|m| m.mountpoint.clone()).collect();
    let ended = serve(mounted, signals, &mountpoints);
    cluster.close();
    for mountpoint in &mountpoints {
        if let Err(e) = mount::unmount(mountpoint) {
            eprintln!("pfs-sim: {} stays mounted: {e}", mountpoint.display());
        }
    }
    ended.map_err(|e| e.to_string())
}

/// Raises the priority of this process. The servers of a real file system are other machines, so
/// their work takes no processor time from the clients. The nearest that one machine can do is to
/// schedule the server first.
fn be_a_server() {
    // SAFETY: the call only changes a number of this process.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) } != 0 {
        eprintln!("pfs-sim: runs at normal priority; under load its OSTs seem slower");
    }
}

/// Blocks these signals in this thread and in all threads that it starts later, for the thread that
/// waits for them.
fn block_signals() -> nix::Result<SigSet> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    signals.thread_block()?;
    Ok(signals)
}

fn mount_all(cli: &Cli, pfs: &Arc<Pfs>) -> Result<Vec<Mounted>, String> {
    let _big = BigRequests::allow(cli.max_request).unwrap_or_else(|e| {
        eprintln!("pfs-sim: requests stay small: {e}");
        None
    });
    let mut mounted: Vec<Mounted> = Vec::new();
    for (index, mountpoint) in cli.mountpoints.iter().enumerate() {
        match mount::mount(
            pfs,
            index,
            mountpoint,
            cli.threads,
            cli.max_request,
            &cli.look,
        ) {
            Ok(one) => mounted.push(one),
            Err(e) => {
                for done in &mounted {
                    if let Err(e) = mount::unmount(&done.mountpoint) {
                        eprintln!("pfs-sim: {} stays: {e}", done.mountpoint.display());
                    }
                }
                return Err(format!("{}: {e}", mountpoint.display()));
            }
        }
    }
    Ok(mounted)
}

/// Answers requests until a signal comes or no mount is left.
fn serve(mounted: Vec<Mounted>, signals: SigSet, names: &[PathBuf]) -> io::Result<()> {
    let (events, received) = mpsc::channel();
    let mut left = mounted.len();
    for one in mounted {
        let events = events.clone();
        std::thread::Builder::new()
            .name("mount".into())
            .spawn(move || {
                let ended = one.session.run();
                // Sending fails if the process is about to end and has dropped the receiver.
                events.send(Event::Ended(ended)).unwrap_or_default();
            })?;
    }
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let waited = signals.wait();
            if let Err(e) = waited {
                eprintln!("pfs-sim: cannot wait for signals: {e}");
            }
            events.send(Event::Signal).unwrap_or_default();
        })?;
    let names: Vec<String> = names
        .iter()
        .map(|name| name.display().to_string())
        .collect();
    let mut out = io::stdout();
    writeln!(out, "mounted {}", names.join(" "))?;
    out.flush()?;
    while left > 0 {
        match received.recv() {
            Ok(Event::Ended(result)) => {
                result?;
                left -= 1;
            }
            Ok(Event::Signal) | Err(_) => break,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
