//! A user who has nothing to do with an attack, and must not notice it.
//!
//! [`Bystander`] does as [`BOB`], again and again, what users do: create, write, read, stat and `forebay
//! status`. Each of these must be answered within [`ANSWER`]. The calls run on a thread of their own, so that
//! the test can report a call that hangs instead of hanging with it.

use crate::test_mount::TestMount;
use crate::users::{BOB, as_user};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Limit for each call: "within a second".
pub const ANSWER: Duration = Duration::from_secs(1);

/// A call that has not returned after this long hangs.
const HANGS: Duration = Duration::from_secs(20);

enum Step {
    Begins(&'static str),
    Took(&'static str, Duration),
}

/// Starts with [`Bystander::beside`], ends with [`Bystander::was_not_disturbed`].
pub struct Bystander {
    stop: Arc<AtomicBool>,
    steps: Receiver<Step>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    /// Creates BOB's directory in the mount, and starts. Must be called before the attack.
    pub fn beside(mount: &TestMount) -> Self {
        let dir = mount.path("bob");
        fs::create_dir_all(&dir).expect("mkdir for bob");
        chown(&dir, Some(BOB), Some(BOB)).expect("chown bob's directory");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("chmod");
        let mut status = mount.forebay(["status", "--json"]);
        status.arg(mount.mnt());
        let stop = Arc::new(AtomicBool::new(false));
        let (send, steps) = channel();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            as_user(BOB, &[], || {
                let mut round = 0u32;
                while !stopped.load(Ordering::Relaxed) {
                    one_round(&dir.join(format!("f{}", round % 50)), &mut status, &send);
                    round += 1;
                }
            });
        });
        Self {
            stop,
            steps,
            thread: Some(thread),
        }
    }

    /// Must be called during the attack. Waits for `rounds` more rounds of calls, and fails if any call until
    /// then took longer than [`ANSWER`].
    pub fn is_not_disturbed(&self, rounds: usize) {
        let mut at = "begin";
        let mut since = Instant::now();
        let mut slow = Vec::new();
        // Calls that were done before this function was called are checked too, but do not count as rounds.
        let mut is_old = true;
        let mut left = rounds;
        while left > 0 {
            let step = self.steps.try_recv().or_else(|_| {
                is_old = false;
                self.steps.recv_timeout(HANGS)
            });
            match step {
                Ok(Step::Begins(what)) => (at, since) = (what, Instant::now()),
                Ok(Step::Took(what, took)) => {
                    if took > ANSWER {
                        slow.push((what, took));
                    }
                    left -= usize::from(what == "status" && !is_old);
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("a bystander's {at} hangs for {:?}", since.elapsed())
                }
                Err(RecvTimeoutError::Disconnected) => panic!("a bystander's {at} failed"),
            }
        }
        assert!(slow.is_empty(), "a bystander had to wait: {slow:?}");
    }

    /// Stops the calls, after the attack.
    pub fn was_not_disturbed(mut self) {
        self.is_not_disturbed(1);
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it runs");
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

fn one_round(path: &PathBuf, status: &mut std::process::Command, send: &Sender<Step>) {
    let timed = |what: &'static str, act: &mut dyn FnMut()| {
        let tell = |step| {
            if send.send(step).is_err() {
                eprintln!("the test has ended before its bystander");
            }
        };
        tell(Step::Begins(what));
        let began = Instant::now();
        act();
        tell(Step::Took(what, began.elapsed()));
    };
    timed("create", &mut || {
        match fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => panic!("bob unlinks: {e}"),
            _ => {}
        }
        fs::File::create_new(path).map(drop).expect("bob creates");
    });
    timed("write", &mut || {
        fs::write(path, b"bob's own bytes").expect("bob writes");
    });
    timed("read", &mut || {
        let got = fs::read(path).expect("bob reads");
        assert_eq!(got, b"bob's own bytes");
    });
    timed("stat", &mut || {
        assert_eq!(fs::metadata(path).expect("bob stats").len(), 15);
    });
    timed("status", &mut || {
        let out = status.output().expect("bob runs status");
        assert!(out.status.success(), "status of a bystander: {out:?}");
    });
}
