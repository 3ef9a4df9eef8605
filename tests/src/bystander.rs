//! A user who has nothing to do with an attack, and must not notice it.
//!
//! [`Bystander`] does, again and again and as [`BOB`], what users do: create, write, read, stat and
//! `forebay status`. Each of these must be answered within [`ANSWER`]. The calls run on a thread of
//! their own, so that one that hangs is reported by the test instead of hanging with it.

use crate::bay::Bay;
use crate::users::{BOB, as_user};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What "within a second" means.
pub const ANSWER: Duration = Duration::from_secs(1);

/// A call that has not returned after so long hangs.
const HANGS: Duration = Duration::from_secs(20);

enum Step {
    Begins(&'static str),
    Took(&'static str, Duration),
}

/// Began with [`Bystander::beside`], ends with [`Bystander::was_not_disturbed`].
pub struct Bystander {
    stop: Arc<AtomicBool>,
    steps: Receiver<Step>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    /// Makes BOB's directory in the mount, and starts. Call it before the attack.
    pub fn beside(bay: &Bay) -> Self {
        let dir = bay.path("bob");
        fs::create_dir_all(&dir).expect("mkdir for bob");
        chown(&dir, Some(BOB), Some(BOB)).expect("chown bob's directory");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("chmod");
        let mut status = bay.forebay(["status", "--json"]);
        status.arg(bay.mnt());
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

    /// Call it while the attack is on: waits for `rounds` more rounds of calls, and fails if one of all calls
    /// until then took longer than [`ANSWER`].
    pub fn is_not_disturbed(&self, rounds: usize) {
        let mut at = "begin";
        let mut since = Instant::now();
        let mut slow = Vec::new();
        // What was done before this call counts as undisturbed or not, and not as one of the rounds.
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

    /// Ends it, after the attack.
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
