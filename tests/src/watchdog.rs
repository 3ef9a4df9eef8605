//! Ends a hang. A call into a mount whose daemon does not answer blocks for ever, and so would the test.
//! After the limit the daemon is killed and the mount detached, so that the blocked call fails and the test
//! can report it.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The process to kill, if one is running, and whether the limit was reached.
#[derive(Default)]
struct Shared {
    pid: Option<i32>,
    fired: bool,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Watchdog {
    shared: Arc<Mutex<Shared>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub fn new(mount: PathBuf, limit: Duration) -> Self {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (stop, stopped) = channel();
        let seen = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            if stopped.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let pid = {
                let mut shared = lock(&seen);
                shared.fired = true;
                shared.pid
            };
            eprintln!("watchdog: the test took longer than {limit:?}; its mount is taken away");
            if let Some(pid) = pid {
                eprint!("{}", stacks(pid));
                kill(pid);
            }
            if let Err(e) = crate::sys::force_detach(&mount) {
                eprintln!("watchdog: {}: {e}", mount.display());
            }
        });
        Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub fn watch(&self, pid: Option<i32>) {
        lock(&self.shared).pid = pid;
    }

    pub fn fired(&self) -> bool {
        lock(&self.shared).fired
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("watchdog: its thread panicked");
        }
    }
}

fn kill(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    if let Err(e) = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL) {
        eprintln!("watchdog: kill {pid}: {e}");
    }
}

/// Lists where each thread of the hanging daemon waits.
pub fn stacks(pid: i32) -> String {
    let mut out = String::new();
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return out;
    };
    for task in tasks.flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        out += &format!(
            "thread {} ({}) waits in {}\n",
            task.file_name().to_string_lossy(),
            read("comm").trim(),
            read("wchan").trim()
        );
    }
    out
}
