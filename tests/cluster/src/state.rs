//! State of a cluster in a directory: where its parts are, and the file that records which
//! processes belong to it.
//!
//! # Crash consistency A process is recorded here before it may outlive the program that started it
//! ([`crate::keeper`]), and the file is replaced in one step. So `down` finds everything that
//! exists, wherever the program that made it was killed. Commands that change something hold
//! [`Lock`].

use crate::failure::{Code, Failure, Result, doing};
use crate::process::{self, Process};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

const VERSION: u32 = 1;

/// Variable that passes the state directory to commands and to everything that runs on a node.
pub const VARIABLE: &str = "FOREBAY_CLUSTER";
/// The default state directory.
pub const DEFAULT: &str = "/var/tmp/forebay-cluster";

/// The state directory, with the paths in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(pub PathBuf);

impl Place {
    pub fn file(&self) -> PathBuf {
        self.0.join("state.json")
    }

    fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// `/etc/hosts` of the nodes.
    pub fn hosts(&self) -> PathBuf {
        self.0.join("hosts")
    }

    /// The program that the MPIs use instead of `ssh`.
    pub fn launcher(&self) -> PathBuf {
        self.0.join(crate::launcher::NAME)
    }

    /// Host files of the MPIs.
    pub fn mpi(&self) -> PathBuf {
        self.0.join("mpi")
    }

    /// Forebay's runtime directory: the same path on every node, over which each node binds its own
    /// directory, so that ranks on all nodes can have the same environment.
    pub fn runtime(&self) -> PathBuf {
        self.0.join("run")
    }

    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    pub fn log(&self, node: &str) -> PathBuf {
        self.logs().join(format!("{node}.log"))
    }

    /// Everything of one node except its log.
    pub fn node(&self, node: &str) -> PathBuf {
        self.0.join(node)
    }

    pub fn store(&self, node: &str) -> PathBuf {
        self.node(node).join("store")
    }

    pub fn node_runtime(&self, node: &str) -> PathBuf {
        self.node(node).join("run")
    }

    pub fn display(&self) -> std::path::Display<'_> {
        self.0.display()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Each node has an address of its own on a bridge that only the nodes see
    Own,
    /// The nodes use the machine's network
    Host,
}

/// A process that keeps namespaces alive, and the identity of its mount namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeper {
    pub process: Process,
    pub namespace: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub name: String,
    pub keeper: Option<Keeper>,
    /// The daemon that was started last.
    pub daemon: Option<Process>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    version: u32,
    boot: String,
    /// False until all nodes have been up: a cluster that is not complete holds no user's data.
    pub complete: bool,
    /// Whether the directory was made for this cluster and is removed with it.
    pub made_directory: bool,
    pub mount: PathBuf,
    pub backing: PathBuf,
    pub forebay: PathBuf,
    pub config: Option<PathBuf>,
    /// Further arguments of `forebay mount`.
    pub arguments: Vec<String>,
    /// Variables of the daemons.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    pub network: Network,
    /// Keeps the bridge's network namespace. It uses the machine's mounts.
    pub switch: Option<Process>,
    pub nodes: Vec<Node>,
}

impl State {
    pub fn new(plan: &crate::spec::Plan, made_directory: bool) -> Result<State> {
        let boot = process::boot().map_err(|e| Failure::failed(format!("no boot id: {e}")))?;
        let node = |n| Node {
            name: format!("n{n}"),
            keeper: None,
            daemon: None,
        };
        Ok(State {
            version: VERSION,
            boot,
            complete: false,
            made_directory,
            mount: plan.mount.clone(),
            backing: plan.backing.clone(),
            forebay: plan.forebay.clone(),
            config: plan.config.clone(),
            arguments: plan.arguments.clone(),
            environment: plan.environment.clone(),
            network: plan.network,
            switch: None,
            nodes: (0..plan.nodes).map(node).collect(),
        })
    }

    /// Loads the state; `None` if there is no cluster in that directory.
    pub fn load_if_any(place: &Place) -> Result<Option<State>> {
        let file = place.file();
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Ok(None),
            Err(e) => return Err(doing("read", &file)(e)),
        };
        let mut state: State = serde_json::from_slice(&text).map_err(|e| {
            Failure::failed(format!(
                "{} is not the state of a cluster ({e}); if it is damaged, end the processes of that cluster and remove the directory",
                file.display()
            ))
        })?;
        if state.version != VERSION {
            return Err(Failure::failed(format!(
                "{} has version {}, and this forebay-cluster knows {VERSION}; use the one that made it",
                file.display(),
                state.version
            )));
        }
        if process::boot().is_ok_and(|boot| boot != state.boot) {
            state.forget_processes();
        }
        Ok(Some(state))
    }

    pub fn load(place: &Place) -> Result<State> {
        State::load_if_any(place)?.ok_or_else(|| {
            Failure::new(
                Code::NotThere,
                format!(
                    "there is no cluster in {0}; make one: forebay-cluster up 2 --backing DIR --dir {0}",
                    place.display()
                ),
            )
        })
    }

    /// The machine has been rebooted, so the recorded processes are gone.
    fn forget_processes(&mut self) {
        self.switch = None;
        for node in &mut self.nodes {
            node.keeper = None;
            node.daemon = None;
        }
    }

    pub fn save(&self, place: &Place) -> Result<()> {
        let file = place.file();
        let fresh = file.with_extension("new");
        let text = serde_json::to_vec_pretty(self)
            .map_err(|e| Failure::failed(format!("cannot write down the state: {e}")))?;
        std::fs::write(&fresh, text).map_err(doing("write", &fresh))?;
        std::fs::rename(&fresh, &file).map_err(doing("write", &file))
    }

    pub fn node(&self, index: usize) -> Result<&Node> {
        self.nodes.get(index).ok_or_else(|| {
            Failure::new(
                Code::NotThere,
                format!(
                    "there is no node {index}: the cluster has {}",
                    match self.nodes.len() {
                        1 => "only node 0".to_owned(),
                        n => format!("the nodes 0 to {}", n - 1),
                    }
                ),
            )
        })
    }
}

impl Node {
    /// Returns the keeper; fails if the node's namespaces are gone, so that no command can run in
    /// them.
    pub fn keeper(&self) -> Result<&Keeper> {
        let alive = self.keeper.as_ref().filter(|k| k.process.is_alive());
        alive.ok_or_else(|| {
            Failure::new(
                Code::NotThere,
                format!(
                    "node {} is gone: the process that keeps its namespaces does not run; take the cluster down and make it again",
                    self.name
                ),
            )
        })
    }

    pub fn daemon(&self) -> Option<Process> {
        self.daemon.filter(Process::is_alive)
    }
}

/// Held while a command changes the cluster; only one command at a time may.
pub struct Lock {
    _held: Flock<File>,
}

impl Lock {
    /// Waits until the previous command releases the lock. Makes the file but not the directory.
    pub fn take(place: &Place) -> Result<Lock> {
        let path = place.lock_file();
        loop {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(doing("lock", &path))?;
            let held = Flock::lock(file, FlockArg::LockExclusive)
                .map_err(|(_, errno)| doing("lock", &path)(errno.into()))?;
            // The previous holder may have removed the file together with its cluster.
            let mine = held.metadata().map_err(doing("lock", &path))?.ino();
            if std::fs::metadata(&path).is_ok_and(|meta| meta.ino() == mine) {
                return Ok(Lock { _held: held });
            }
        }
    }
}

/// Removes the files of a cluster whose processes are all gone. Removes only names that the cluster
/// made; the directory itself goes if it was made for the cluster and nothing else is in it.
pub fn remove(place: &Place, state: &State, keep_logs: bool) -> Result<()> {
    let mut trees: Vec<PathBuf> = state.nodes.iter().map(|n| place.node(&n.name)).collect();
    trees.push(place.mpi());
    if !keep_logs {
        trees.push(place.logs());
    }
    for tree in trees {
        gone(&tree, std::fs::remove_dir_all(&tree))?;
    }
    gone(&place.runtime(), std::fs::remove_dir(place.runtime()))?;
    let lock = place.lock_file();
    // The state file is removed last except for the lock: until then `down` can be called again.
    for file in [place.hosts(), place.launcher(), place.file(), lock] {
        gone(&file, std::fs::remove_file(&file))?;
    }
    if state.made_directory && is_empty(&place.0) {
        gone(&place.0, std::fs::remove_dir(&place.0))?;
    }
    Ok(())
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

fn gone(path: &Path, removed: io::Result<()>) -> Result<()> {
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(doing("remove", path)(e)),
        _ => Ok(()),
    }
}

/// Returns whether a new cluster may use the directory: it must be empty or hold only what an
/// earlier cluster left.
pub fn is_free(dir: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name != "logs" && name != "lock" {
            return Ok(false);
        }
    }
    Ok(true)
}
