//! The public interface of the library: a cluster for a test, which is taken down when it is
//! dropped.

use crate::failure::{Code, Failure, Result, doing};
use crate::job::{self, Done};
use crate::keeper::Tie;
use crate::mpi::{self, Mpi};
use crate::node::OnNode;
use crate::spec::{Plan, Spec};
use crate::state::{Lock, Place, State};
use crate::teardown::{self, Options};
use crate::up::{self, Hold};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Nodes with a running daemon each. Dropping the cluster ends them and throws undrained data away;
/// [`Cluster::down`] is the regular end. The nodes also end when this process is killed.
pub struct Cluster {
    place: Place,
    mount: PathBuf,
    backing: PathBuf,
    ties: Vec<Tie>,
    limit: Duration,
    down: bool,
    /// Removed after the nodes have ended.
    root: Option<TempDir>,
}

impl Cluster {
    /// Makes the nodes and returns when all daemons answer.
    pub fn up(mut spec: Spec) -> Result<Cluster> {
        let root = fill_in(&mut spec)?;
        let plan = Plan::of(&spec)?;
        let ties = up::up(&plan, Hold::WithThisProcess, &|| false)?;
        Ok(Cluster {
            place: plan.place,
            mount: plan.mount,
            backing: plan.backing,
            ties,
            limit: Duration::from_secs(120),
            down: false,
            root,
        })
    }

    /// Sets how long a command on the nodes may take before everything that runs on them is ended.
    pub fn set_limit(&mut self, limit: Duration) -> &mut Self {
        self.limit = limit;
        self
    }

    /// Returns where Forebay is mounted, on every node.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Returns the backing, which holds the canonical files.
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Returns the path of a canonical file, which programs outside of the overlay read.
    pub fn canonical(&self, name: impl AsRef<Path>) -> PathBuf {
        self.backing.join(name)
    }

    /// Returns a path in the mount of one node that can be used from outside of the node.
    pub fn at(&self, node: usize, name: impl AsRef<Path>) -> Result<PathBuf> {
        let state = self.state()?;
        let pid = state.node(node)?.keeper()?.process.pid;
        let inside = self.mount.strip_prefix("/").unwrap_or(&self.mount);
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        Ok(root.join(inside).join(name))
    }

    /// Returns the directory with stores, logs and the state, for `forebay-cluster --dir`.
    pub fn state_dir(&self) -> &Path {
        &self.place.0
    }

    pub fn state(&self) -> Result<State> {
        State::load(&self.place)
    }

    pub fn nodes(&self) -> Result<usize> {
        Ok(self.state()?.nodes.len())
    }

    /// Returns a command that will run on that node, in the mount, with this process's environment.
    pub fn command(&self, node: usize, program: impl AsRef<OsStr>) -> Result<Command> {
        let state = self.state()?;
        OnNode::new(&self.place, &state, node)?.command(program, &self.mount)
    }

    /// Runs a command on one node, in the mount, and waits for its end.
    pub fn exec<S: AsRef<OsStr>>(
        &self,
        node: usize,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Done> {
        let mut command = self.command(node, program)?;
        command.args(arguments);
        self.to_its_end(command, self.limit)
    }

    /// Runs an MPI program over all nodes, in the mount, and waits for its end.
    pub fn run<S: AsRef<OsStr>>(
        &self,
        mpi: Mpi,
        ranks: usize,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Done> {
        self.job(mpi, ranks).run(program, arguments)
    }

    /// Returns an MPI job whose nodes, variables and options can still be set.
    pub fn job(&self, mpi: Mpi, ranks: usize) -> Job<'_> {
        Job {
            cluster: self,
            mpi,
            ranks,
            nodes: Vec::new(),
            environment: Vec::new(),
            options: Vec::new(),
            limit: self.limit,
        }
    }

    fn to_its_end(&self, command: Command, limit: Duration) -> Result<Done> {
        job::run(command, limit, || {
            let ended = self.state().and_then(|state| {
                let ended = teardown::end_jobs(&self.place, &state);
                ended.map_err(|e| Failure::failed(e.to_string()))
            });
            if let Err(failure) = ended {
                eprintln!("the job's processes: {failure}");
            }
        })
    }

    /// Kills a node's daemon with `kill -9`. Its dead mount stays until [`Cluster::restart`].
    pub fn kill(&self, node: usize) -> Result<()> {
        kill(&self.place, node)
    }

    /// Starts a node's daemon again, on the same store.
    pub fn restart(&self, node: usize) -> Result<()> {
        restart(&self.place, node)
    }

    /// Drains every node and returns when all have finished.
    pub fn drain(&self) -> Result<()> {
        drain(&self.place, true, Some(self.limit))
    }

    /// Returns `forebay status --json` of one node.
    pub fn status(&self, node: usize) -> Result<Value> {
        let state = self.state()?;
        OnNode::new(&self.place, &state, node)?.status()
    }

    /// Returns the log of a node's daemons.
    pub fn log(&self, node: usize) -> Result<String> {
        let state = self.state()?;
        OnNode::new(&self.place, &state, node)?.log()
    }

    /// Drains, unmounts and ends everything. A test that succeeds should end with this.
    pub fn down(mut self) -> Result<()> {
        self.take_down(false)
    }

    fn take_down(&mut self, discard: bool) -> Result<()> {
        let options = Options {
            discard,
            keep_logs: false,
            timeout: Some(self.limit),
        };
        // If `down` stops to protect data, the ties are needed later, by the drop.
        let ties = match discard {
            true => std::mem::take(&mut self.ties),
            false => Vec::new(),
        };
        teardown::down(&self.place, &options, ties)?;
        self.down = true;
        for tie in self.ties.drain(..) {
            tie.reap()
                .map_err(|e| Failure::failed(format!("a keeper cannot be waited for: {e}")))?;
        }
        Ok(())
    }

    /// Returns the ends of the logs, as a hint why a test failed.
    fn last_words(&self) -> String {
        let mut text = String::new();
        for node in 0..self.nodes().unwrap_or(0) {
            let log = self.log(node).unwrap_or_else(|failure| failure.message);
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(15)..];
            text.push_str(&format!("--- log of n{node}\n{}\n", tail.join("\n")));
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.down {
            return;
        }
        if std::thread::panicking() {
            eprint!("{}", self.last_words());
        }
        if let Err(failure) = self.take_down(true) {
            eprintln!("the cluster in {}: {failure}", self.place.display());
            // The state in this directory is needed to end what is left, so the directory is kept.
            if let Some(root) = &mut self.root {
                root.disable_cleanup(true);
            }
        }
    }
}

/// Chooses paths below a temporary directory for everything that the test did not set.
fn fill_in(spec: &mut Spec) -> Result<Option<TempDir>> {
    if spec.backing.is_some() && spec.dir.is_some() {
        return Ok(None);
    }
    let root = tempfile::Builder::new()
        .prefix("forebay-cluster-")
        .tempdir()
        .map_err(|e| Failure::failed(format!("cannot make a temporary directory: {e}")))?;
    let make = |name: &str| -> Result<PathBuf> {
        let dir = root.path().join(name);
        std::fs::create_dir(&dir).map_err(doing("make", &dir))?;
        Ok(dir)
    };
    if spec.dir.is_none() {
        spec.dir = Some(root.path().join("state"));
    }
    if spec.backing.is_none() {
        spec.backing = Some(make("backing")?);
        // The mount is not put over the backing: a test that reads the mount's path from outside of
        // the nodes must find nothing there, rather than a file that is not drained yet.
        if spec.mount.is_none() {
            spec.mount = Some(make("mnt")?);
        }
    }
    Ok(Some(root))
}

/// An `mpirun` with ranks placed round robin over nodes.
pub struct Job<'a> {
    cluster: &'a Cluster,
    mpi: Mpi,
    ranks: usize,
    nodes: Vec<usize>,
    environment: Vec<(OsString, OsString)>,
    options: Vec<OsString>,
    limit: Duration,
}

impl Job<'_> {
    /// Uses only these nodes, in this order.
    pub fn nodes(mut self, nodes: &[usize]) -> Self {
        self.nodes = nodes.to_vec();
        self
    }

    /// Sets a variable for every rank.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Adds an option of `mpirun`.
    pub fn option(mut self, option: impl Into<OsString>) -> Self {
        self.options.push(option.into());
        self
    }

    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Returns the `mpirun` command, for a test that starts it and does something else meanwhile.
    pub fn command<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Command> {
        let (place, state) = (&self.cluster.place, self.cluster.state()?);
        let nodes = mpi::choose(&state, &self.nodes)?;
        let launcher = mpi::program(&state, None, &self.mpi.launcher()?)?;
        let first = OnNode::new(place, &state, nodes[0])?;
        let mut command = first.command(launcher, &self.cluster.mount)?;
        command.envs(mpi::environment(place, &state, &nodes)?);
        command.arg("-n").arg(self.ranks.to_string());
        for (name, value) in &self.environment {
            command.env(name, value);
            // MPICH passes on all variables; Open MPI has to be told which ones.
            if self.mpi == Mpi::OpenMpi {
                command.arg("-x").arg(name);
            }
        }
        command.args(&self.options).arg(program.as_ref());
        command.args(arguments);
        Ok(command)
    }

    pub fn run<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Done> {
        let command = self.command(program, arguments)?;
        self.cluster.to_its_end(command, self.limit)
    }
}

/// Ends the cluster in that state directory at once, no matter which process made it and what runs
/// on it, and throws undrained data away. Succeeds if there is no cluster. For a caller that has to
/// end the cluster while the [`Cluster`] is owned elsewhere, such as a signal handler thread.
pub fn end(dir: &Path) -> Result<()> {
    let options = Options {
        discard: true,
        ..Options::default()
    };
    teardown::down(&Place(dir.to_owned()), &options, Vec::new()).map(drop)
}

pub fn kill(place: &Place, node: usize) -> Result<()> {
    let state = State::load(place)?;
    let _lock = Lock::take(place)?;
    OnNode::new(place, &state, node)?.kill()
}

/// Starts a node's daemon again. A daemon that runs is unmounted first; undrained data stays in its
/// store.
pub fn restart(place: &Place, node: usize) -> Result<()> {
    State::load(place)?.node(node)?;
    let _lock = Lock::take(place)?;
    let mut state = State::load(place)?;
    let on = OnNode::new(place, &state, node)?;
    match on.node.daemon() {
        Some(daemon) => {
            on.umount(&["--keep"], Duration::from_secs(60))?;
            let gone = |e: std::io::Error| Failure::failed(format!("node {}: {e}", on.name()));
            if let Some(handle) = daemon.open().map_err(gone)?
                && !handle.wait(Duration::from_secs(60)).map_err(gone)?
            {
                return Err(Failure::failed(format!(
                    "the daemon of node {} does not end",
                    on.name()
                )));
            }
        }
        None => on.clear_dead_mount()?,
    }
    let daemon = on.start()?;
    state.nodes[node].daemon = Some(daemon);
    state.save(place)
}

/// Tells all nodes to drain; with `wait`, then waits for each of them.
pub fn drain(place: &Place, wait: bool, limit: Option<Duration>) -> Result<()> {
    let state = State::load(place)?;
    let mut asked = 0;
    for on in OnNode::all(place, &state) {
        on.drain(false, None)?;
        asked += 1;
    }
    if asked == 0 {
        return Err(Failure::new(Code::NotThere, "the cluster has no node"));
    }
    if wait {
        for on in OnNode::all(place, &state) {
            on.drain(true, limit)?;
        }
    }
    Ok(())
}
