//! One node of an existing cluster: commands on it, and its daemon. The daemon is used only through
//! the `forebay` command.

use crate::failure::{Code, Failure, Result, doing};
use crate::job::{self, Done};
use crate::namespace;
use crate::process::Process;
use crate::state::{Network, Node, Place, State, VARIABLE};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Bounds a hang of `forebay`, which may have to recover a store first.
const PATIENCE: Duration = Duration::from_secs(180);
/// Limit for a drain without a limit: the file system below may be arbitrarily slow.
pub const FOREVER: Duration = Duration::from_secs(30 * 24 * 3600);

/// A node, together with the cluster's directory and state, which are needed to run commands on it.
#[derive(Clone, Copy)]
pub struct OnNode<'a> {
    pub place: &'a Place,
    pub state: &'a State,
    pub node: &'a Node,
}

impl<'a> OnNode<'a> {
    pub fn new(place: &'a Place, state: &'a State, index: usize) -> Result<OnNode<'a>> {
        Ok(OnNode {
            place,
            state,
            node: state.node(index)?,
        })
    }

    /// Returns all nodes in order.
    pub fn all(place: &'a Place, state: &'a State) -> impl Iterator<Item = OnNode<'a>> {
        let on = move |node| OnNode { place, state, node };
        state.nodes.iter().map(on)
    }

    pub fn name(&self) -> &'a str {
        &self.node.name
    }

    /// Returns a command that will run on this node, in `directory` as it is there.
    pub fn command(&self, program: impl AsRef<OsStr>, directory: &Path) -> Result<Command> {
        let keeper = self.node.keeper()?;
        let mut command = Command::new(program);
        command
            .env(VARIABLE, &self.place.0)
            .env("PATH", self.path())
            .env("FOREBAY_RUNTIME_DIR", self.place.runtime());
        let flags = namespace::of_node(self.state.network == Network::Own);
        namespace::enter(&mut command, keeper.process, flags, directory)?;
        Ok(command)
    }

    /// Returns the caller's `PATH` with the directory of the daemons' `forebay` appended.
    fn path(&self) -> OsString {
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        if let Some(dir) = self.state.forebay.parent() {
            path.push(":");
            path.push(dir);
        }
        path
    }

    /// Runs `forebay ARGUMENTS` on this node to its end.
    pub fn forebay<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
        limit: Duration,
    ) -> Result<Done> {
        let mut command = self.command(&self.state.forebay, Path::new("/"))?;
        let environment = self.state.environment.iter();
        command
            .args(arguments)
            .env("NO_COLOR", "1")
            .envs(environment.map(|(name, value)| (name, value)));
        job::run(command, limit, || {})
    }

    /// Mounts, and returns the daemon when it answers.
    pub fn start(&self) -> Result<Process> {
        let name = self.name();
        let (store, log) = (self.place.store(name), self.place.log(name));
        let mut arguments: Vec<&OsStr> = vec![
            "mount".as_ref(),
            self.state.mount.as_os_str(),
            "--backing".as_ref(),
            self.state.backing.as_os_str(),
            "--store".as_ref(),
            store.as_os_str(),
            "--node".as_ref(),
            name.as_ref(),
            "--log-file".as_ref(),
            log.as_os_str(),
        ];
        if let Some(config) = &self.state.config {
            arguments.extend(["--config".as_ref(), config.as_os_str()]);
        }
        arguments.extend(self.state.arguments.iter().map(OsStr::new));
        let done = self.forebay(&arguments, PATIENCE)?;
        if !done.success() {
            let code = match done.code() {
                2 => Code::Usage,
                _ => Code::Failed,
            };
            return Err(Failure::new(code, self.said("mount", &done)));
        }
        let pid = self.status()?["pid"].as_i64();
        let pid = pid.and_then(|pid| i32::try_from(pid).ok());
        let process = pid.and_then(|pid| Process::of(pid).ok());
        process.ok_or_else(|| {
            Failure::failed(format!(
                "node {name}: the daemon ended as soon as it was mounted; see {}",
                log.display()
            ))
        })
    }

    fn said(&self, verb: &str, done: &Done) -> String {
        format!("node {}: forebay {verb}: {}", self.name(), done.words())
    }

    /// Returns `forebay status --json` of its mount.
    pub fn status(&self) -> Result<Value> {
        let mount = self.state.mount.as_os_str();
        self.json([OsStr::new("status"), mount, "--json".as_ref()])
    }

    /// Returns how many bytes only the store of a dead daemon has; 0 if there is no store.
    pub fn left_in_store(&self) -> Result<u64> {
        let store = self.place.store(self.name());
        if !store.exists() {
            return Ok(0);
        }
        let mut command = Command::new(&self.state.forebay);
        command
            .args(["status", "--store"])
            .arg(&store)
            .arg("--json")
            .env("FOREBAY_RUNTIME_DIR", self.place.node_runtime(self.name()));
        let done = job::run(command, PATIENCE, || {})?;
        let report = self.parse("status", &done)?;
        report["bytes"]["undrained"].as_u64().ok_or_else(|| {
            Failure::failed(format!(
                "node {}: forebay status does not say what its store holds",
                self.name()
            ))
        })
    }

    fn json<const N: usize>(&self, arguments: [&OsStr; N]) -> Result<Value> {
        let done = self.forebay(arguments, PATIENCE)?;
        self.parse(&arguments[0].to_string_lossy(), &done)
    }

    fn parse(&self, verb: &str, done: &Done) -> Result<Value> {
        if !done.success() {
            return Err(Failure::failed(self.said(verb, done)));
        }
        serde_json::from_str(&done.stdout).map_err(|e| {
            Failure::failed(format!(
                "node {}: forebay {verb} --json is not JSON: {e}",
                self.name()
            ))
        })
    }

    /// Runs `forebay drain`. Without `limit` it may take as long as it needs.
    pub fn drain(&self, wait: bool, limit: Option<Duration>) -> Result<()> {
        self.running()?;
        let mount = self.state.mount.as_os_str();
        let mut arguments = vec!["drain".as_ref(), mount];
        if wait {
            arguments.push("--wait".as_ref());
        }
        let text = limit.map(|limit| humantime::format_duration(limit).to_string());
        if let Some(text) = &text {
            arguments.extend(["--timeout".as_ref(), OsStr::new(text)]);
        }
        let patience = match (wait, limit) {
            (true, None) => FOREVER,
            (_, limit) => limit.unwrap_or_default() + PATIENCE,
        };
        let done = self.forebay(&arguments, patience)?;
        match done.code() {
            0 => Ok(()),
            // The drain was requested without waiting: it is under way.
            3 if !wait => Ok(()),
            code => {
                let code = if code == 3 {
                    Code::StillDirty
                } else {
                    Code::Failed
                };
                Err(Failure::new(code, self.said("drain", &done)))
            }
        }
    }

    /// Runs `forebay umount` with these options.
    pub fn umount(&self, options: &[&str], patience: Duration) -> Result<()> {
        let mut arguments = vec!["umount".as_ref(), self.state.mount.as_os_str()];
        arguments.extend(options.iter().map(OsStr::new));
        let done = self.forebay(&arguments, patience)?;
        match done.code() {
            0 => Ok(()),
            code => {
                let code = match code {
                    3 => Code::StillDirty,
                    4 => Code::Busy,
                    5 => Code::NotThere,
                    _ => Code::Failed,
                };
                Err(Failure::new(code, self.said("umount", &done)))
            }
        }
    }

    /// Returns the daemon, or an error that says how to start it.
    pub fn running(&self) -> Result<Process> {
        self.node.daemon().ok_or_else(|| {
            Failure::new(
                Code::NotThere,
                format!(
                    "the daemon of node {0} does not run; start it: forebay-cluster restart {0}",
                    self.name()
                ),
            )
        })
    }

    /// Kills the daemon with `kill -9`. The dead mount stays, as after a crash.
    pub fn kill(&self) -> Result<()> {
        let daemon = self.running()?;
        daemon
            .end(Signal::SIGKILL, PATIENCE)
            .map_err(|e| Failure::failed(format!("node {}: {e}", self.name())))
    }

    /// Removes the mount of a daemon that no longer runs, if there is one. Data stays in its store.
    pub fn clear_dead_mount(&self) -> Result<()> {
        match self.umount(&["--keep"], PATIENCE) {
            Err(failure) if failure.code != Code::NotThere => Err(failure),
            _ => Ok(()),
        }
    }

    pub fn log(&self) -> Result<String> {
        let log = self.place.log(self.name());
        match std::fs::read(&log) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(e) => Err(doing("read", &log)(e)),
        }
    }
}
