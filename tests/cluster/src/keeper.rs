//! The process that keeps a node: it makes the namespaces, stays in them, and does nothing else, so
//! that a node outlives its daemon and the commands that run on it.
//!
//! # Lifetime
//!
//! The keeper is started with a pipe from the process that makes the cluster, and prints `ready`
//! when the namespaces exist. From then on
//! - the line `stay` on the pipe makes it run until `down` ends it. The command line sends it once
//!   the process is recorded in the state file;
//! - the end of the pipe makes it end everything that runs on its node, and then itself. So nothing
//!   is left of a cluster whose maker was killed before it had recorded the keeper. A test holds
//!   the pipe open and never sends `stay`, so nothing is left of a killed test either.
//!
//! The mounts and the network of a node go with its last process.

use crate::failure::{Failure, Result};
use crate::namespace;
use crate::process::{self, Process};
use crate::spec::Bind;
use crate::state::{Keeper, Place};
use crate::wait::{self, LONG};
use nix::sys::signal::Signal;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

const READY: &str = "ready";
const STAY: &str = "stay";
/// The hidden command of this program that runs a keeper.
pub const COMMAND: &str = "keep";
/// Name of the keeper that holds the network's namespace.
pub const SWITCH: &str = "switch";

/// A keeper that has just been started.
pub struct Started {
    pub keeper: Keeper,
    child: Child,
    pipe: ChildStdin,
}

/// Ties the lifetime of a keeper to that of this process.
pub struct Tie {
    child: Child,
    _pipe: ChildStdin,
}

/// Starts a keeper and waits until its namespaces exist.
pub fn start(
    program: &Path,
    place: &Place,
    name: &str,
    own_network: bool,
    binds: &[&Bind],
) -> Result<Started> {
    let mut command = Command::new(program);
    command
        .arg(COMMAND)
        .arg(name)
        .arg("--dir")
        .arg(&place.0)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if own_network {
        command.arg("--own-network");
    }
    for bind in binds {
        command.arg("--bind").args([&bind.source, &bind.target]);
    }
    let cannot = |e: io::Error| Failure::failed(format!("cannot start node {name}: {e}"));
    let mut child = command.spawn().map_err(cannot)?;
    let (Some(pipe), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Failure::failed("a process without pipes"));
    };
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).map_err(cannot)?;
    if line.trim() != READY {
        drop(pipe);
        let mut said = String::new();
        if let Some(mut err) = child.stderr.take() {
            err.read_to_string(&mut said).map_err(cannot)?;
        }
        child.wait().map_err(cannot)?;
        return Err(Failure::failed(format!(
            "node {name} cannot be made: {}",
            said.trim()
        )));
    }
    let pid = child.id() as i32;
    let keeper = Keeper {
        process: Process::of(pid).map_err(cannot)?,
        namespace: process::namespace_of(pid).map_err(cannot)?,
    };
    // All processes in a node's namespace are ended some day, so it must not be the namespace of
    // this process.
    let here = process::namespace_of(std::process::id() as i32).map_err(cannot)?;
    if name != SWITCH && keeper.namespace == here {
        return Err(Failure::failed(format!(
            "node {name} has no mount namespace of its own; does the kernel have them?"
        )));
    }
    Ok(Started {
        keeper,
        child,
        pipe,
    })
}

impl Started {
    /// Makes the keeper stay until it is ended by its process number. Must be called after that
    /// number is recorded.
    pub fn stay(mut self) -> Result<()> {
        writeln!(self.pipe, "{STAY}")
            .map_err(|e| Failure::failed(format!("a node ended at once: {e}")))
    }

    /// Makes the keeper end with this process.
    pub fn tie(self) -> Tie {
        Tie {
            child: self.child,
            _pipe: self.pipe,
        }
    }
}

impl Tie {
    /// Waits for a keeper that has been ended.
    pub fn reap(mut self) -> io::Result<()> {
        self.child.wait().map(drop)
    }
}

/// Runs the hidden command. Returns when the node has to end.
///
/// `binds` alternates between what is bound and where it is bound.
pub fn keep(place: &Place, name: &str, own_network: bool, binds: &[PathBuf]) -> Result<()> {
    make(place, name, own_network, binds).map_err(|e| Failure::failed(e.to_string()))?;
    let cannot = |e: io::Error| Failure::failed(format!("node {name}: {e}"));
    let mut out = io::stdout();
    writeln!(out, "{READY}")
        .and_then(|()| out.flush())
        .map_err(cannot)?;
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(cannot)?;
    while line.trim() == STAY {
        nix::unistd::pause();
    }
    end_all(name)
}

fn make(place: &Place, name: &str, own_network: bool, binds: &[PathBuf]) -> io::Result<()> {
    // Signals from the terminal of `up` are not meant for the keeper.
    nix::unistd::setsid()?;
    if name == SWITCH {
        return namespace::become_switch();
    }
    namespace::become_node(name, own_network)?;
    namespace::bind(&place.node_runtime(name), &place.runtime())?;
    for pair in binds.chunks_exact(2) {
        namespace::bind(&pair[0], &pair[1])?;
    }
    let hosts = Path::new("/etc/hosts");
    match hosts.exists() {
        true => namespace::bind(&place.hosts(), hosts),
        false => Ok(()),
    }
}

/// Ends every process on this node except this one.
fn end_all(name: &str) -> Result<()> {
    if name == SWITCH {
        return Ok(());
    }
    let cannot = |e: io::Error| Failure::failed(format!("node {name} cannot be cleared: {e}"));
    let me = process::namespace_of(std::process::id() as i32).map_err(cannot)?;
    end_inside(|| process::inside(&me)).map_err(cannot)
}

/// Kills the processes that `list` returns until it returns none: a process may start others just
/// before it is killed.
pub fn end_inside(list: impl Fn() -> io::Result<Vec<Process>>) -> io::Result<()> {
    let mut problem = None;
    let done = wait::poll(LONG, || {
        let kill_all = || -> io::Result<bool> {
            let found = list()?;
            for process in &found {
                process.end(Signal::SIGKILL, Duration::from_secs(10))?;
            }
            Ok(found.is_empty())
        };
        match kill_all() {
            Ok(true) => Some(true),
            Ok(false) => None,
            Err(e) => {
                problem = Some(e);
                Some(false)
            }
        }
    });
    match (done, problem) {
        (Some(true), _) => Ok(()),
        (_, Some(e)) => Err(e),
        (_, None) => Err(io::Error::other(
            "processes are started as fast as they are ended",
        )),
    }
}
