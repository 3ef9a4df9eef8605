//! The cluster's processes: children in the foreground, so that each is ended by its id and
//! reaped, and none survives a test program that is killed.

use super::net;
use crate::sys;
use crate::wait::{LONG, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

pub struct Daemon {
    what: String,
    log: PathBuf,
    child: Child,
}

impl Daemon {
    /// What it prints goes to `log`, after what an earlier run printed.
    pub fn spawn(what: &str, mut command: Command, namespace: &Path, log: &Path) -> Self {
        let open = || -> File {
            let log = OpenOptions::new().create(true).append(true).open(log);
            log.expect("open a daemon's log")
        };
        command
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .current_dir("/");
        net::enter(&mut command, namespace);
        sys::die_with_parent(&mut command);
        let child = in_spawner(move || command.spawn());
        Self {
            what: what.to_owned(),
            log: log.to_owned(),
            child: child.unwrap_or_else(|e| panic!("start {what}: {e}")),
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal)
            .unwrap_or_else(|e| panic!("{signal} to {}: {e}", self.what));
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("wait for a child")
    }

    /// Fails the test, with the daemon's last words, if it is not running.
    pub fn check(&mut self) {
        if let Some(status) = self.ended() {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            panic!("{} ended by itself ({status}):\n{said}", self.what);
        }
    }

    /// As an administrator would: it writes out what it has.
    pub fn terminate(mut self) {
        self.signal(Signal::SIGTERM);
        let what = format!("{} ends after SIGTERM", self.what);
        wait_until(&what, LONG, || self.ended());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(e) = self.child.kill() {
            eprintln!("kill {}: {e}", self.what);
        }
        if let Err(e) = self.child.wait() {
            eprintln!("wait for {}: {e}", self.what);
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Runs `start` on a thread that lasts as long as the process. The kernel ends a child when the
/// thread that started it ends, and tests start and heal targets from short-lived threads.
fn in_spawner<T: Send + 'static>(start: impl FnOnce() -> T + Send + 'static) -> T {
    static SPAWNER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        std::thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Mutex::new(sender)
    });
    let (reply, answer) = channel();
    let job: Job = Box::new(move || {
        if reply.send(start()).is_err() {
            eprintln!("nobody waits for the process that was started");
        }
    });
    spawner
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send(job)
        .expect("the spawner runs");
    answer.recv().expect("the spawner answers")
}
