//! How a mount ends, whoever wants it to: drain, unmount, close, and tell those who wait.
//!
//! ```text
//! serving ──stop()──▶ drained ──unmount──▶ unmounted ──close()──▶ closed
//!    ▲                   │ busy, failing or out of time
//!    └───────────────────┘
//! ```
//!
//! One stop at a time. `stop` runs on the thread of whoever asked (a control connection, a
//! signal); `close` on the daemon's main thread, when the session has ended. Data written between
//! the drain and the unmount is drained in `close`, from behind the mount that is gone.

use crate::control::protocol::{Reason, Refusal};
use crate::{holders, units};
use flusher::{Flusher, Progress, Selection, Verdict};
use layout_index::Store;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use parking_lot::{Condvar, Mutex};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub enum UnmountFailure {
    Busy,
    /// Somebody else was faster.
    Gone,
    Other(String),
}

/// Takes the mount away; `true` detaches it from the tree even while it is in use.
pub type Unmount = Box<dyn Fn(bool) -> Result<(), UnmountFailure> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Drain, then unmount.
    Drain,
    /// Unmount and leave undrained data in the store; refuse if the mount is in use.
    Keep,
    /// As `Keep`, and detach a mount that is in use.
    Now,
}

/// How it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    pub undrained: u64,
    pub files: usize,
    pub error: Option<String>,
}

enum State {
    Serving,
    Unmounted { drain: bool },
    Closed(Closing),
}

/// The session's end, when it has come.
#[derive(Default)]
struct Session {
    ended: Option<io::Result<()>>,
    /// Those who still use the mount are not waited for beyond this.
    give_up: Option<Instant>,
}

pub struct Lifecycle {
    unmount: Unmount,
    flusher: Arc<Flusher>,
    mount: PathBuf,
    stopping: Mutex<()>,
    hurry: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    session: Mutex<Session>,
    session_changed: Condvar,
}

/// A session whose connection was cut gets this long to notice.
const CUT: Duration = Duration::from_secs(2);
/// What arrived between the drain and the unmount is little; it gets this long at most.
const LATE_DRAIN: Duration = Duration::from_secs(120);

impl Lifecycle {
    pub fn new(unmount: Unmount, flusher: Arc<Flusher>, mount: PathBuf) -> Lifecycle {
        Lifecycle {
            unmount,
            flusher,
            mount,
            stopping: Mutex::new(()),
            hurry: AtomicBool::new(false),
            state: Mutex::new(State::Serving),
            changed: Condvar::new(),
            session: Mutex::default(),
            session_changed: Condvar::new(),
        }
    }

    /// Runs `session` to its end on a thread of its own and returns when it has ended, or when it
    /// was cut off and does not.
    pub fn wait(
        self: &Arc<Self>,
        session: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let me = self.clone();
        std::thread::Builder::new()
            .name("forebay-session".into())
            .spawn(move || {
                let ended = session();
                me.session.lock().ended = Some(ended);
                me.session_changed.notify_all();
            })?;
        let mut session = self.session.lock();
        loop {
            if let Some(ended) = session.ended.take() {
                return ended;
            }
            match session.give_up {
                Some(deadline) if Instant::now() >= deadline => return Ok(()),
                Some(deadline) => {
                    self.session_changed.wait_until(&mut session, deadline);
                }
                None => self.session_changed.wait(&mut session),
            }
        }
    }

    /// A drain that is being waited for is cut short: whoever waits goes on without it.
    pub fn hurry(&self) {
        self.hurry.store(true, Ordering::Release);
    }

    /// Ends the mount, or says why not. `watch` returns false when the asker has gone.
    pub fn stop(
        &self,
        stop: Stop,
        deadline: Option<Instant>,
        watch: &mut dyn FnMut(&Progress) -> bool,
    ) -> Result<Closing, Refusal> {
        let one = match stop {
            // The first signal's drain is being cut short: its unmount comes first.
            Stop::Now => self.stopping.lock(),
            _ => self.stopping.try_lock().ok_or_else(|| {
                Refusal::new(Reason::Busy, "another umount of this mount is under way")
            })?,
        };
        if matches!(*self.state.lock(), State::Serving) {
            let drained = stop == Stop::Drain && self.drain(deadline, watch)?;
            self.take_away(stop)?;
            let mut state = self.state.lock();
            if matches!(*state, State::Serving) {
                *state = State::Unmounted { drain: drained };
            }
        }
        drop(one);
        let mut state = self.state.lock();
        loop {
            if let State::Closed(closing) = &*state {
                return Ok(closing.clone());
            }
            self.changed.wait(&mut state);
        }
    }

    /// False when the drain was cut short by someone in a hurry.
    fn drain(
        &self,
        deadline: Option<Instant>,
        watch: &mut dyn FnMut(&Progress) -> bool,
    ) -> Result<bool, Refusal> {
        let hurry = || self.hurry.load(Ordering::Acquire);
        let handle = self.flusher.drain(Selection::All);
        let mut asker_left = false;
        let verdict = handle.wait_with(deadline, |progress| {
            asker_left = !watch(progress);
            !asker_left && !hurry()
        });
        if verdict == Verdict::Drained {
            return Ok(true);
        }
        if hurry() {
            return Ok(false);
        }
        if asker_left {
            return Err(Refusal::new(
                Reason::StillDirty,
                "nobody waits for the umount any more",
            ));
        }
        let progress = handle.progress();
        let left = progress.total - progress.done;
        Err(match verdict {
            Verdict::Failed => {
                let first = progress.errors.first();
                let why = first.map_or("the drain does not get on", |e| e.error.message.as_str());
                Refusal::new(
                    Reason::Failed,
                    format!(
                        "{} cannot be drained ({why}); still mounted. Mend that and try again, or leave the data in the store with --keep",
                        units::files(progress.files)
                    ),
                )
            }
            _ => Refusal::new(
                Reason::StillDirty,
                format!(
                    "{} in {} are not drained yet; still mounted. Give it more time, or leave the data in the store with --keep",
                    units::bytes(left),
                    units::files(progress.files)
                ),
            ),
        })
    }

    fn take_away(&self, stop: Stop) -> Result<(), Refusal> {
        match (self.unmount)(false) {
            Ok(()) | Err(UnmountFailure::Gone) => Ok(()),
            Err(UnmountFailure::Busy) if stop == Stop::Now => self.cut_off(),
            Err(failure) => Err(self.refusal(failure)),
        }
    }

    /// Ends a mount that is in use. Its users get ENOTCONN from here on; nothing that they write
    /// is acknowledged, so nothing acknowledged is lost.
    fn cut_off(&self) -> Result<(), Refusal> {
        tracing::warn!("the mount is in use and is cut off all the same");
        let aborted = holders::device(&self.mount)
            .and_then(abort_connection)
            .or_else(|_| force(&self.mount));
        if let Err(error) = aborted {
            tracing::info!(%error, "the connection ends with the daemon");
        }
        match (self.unmount)(true) {
            Ok(()) | Err(UnmountFailure::Gone) => {}
            Err(failure) => return Err(self.refusal(failure)),
        }
        self.session.lock().give_up = Some(Instant::now() + CUT);
        self.session_changed.notify_all();
        Ok(())
    }

    fn refusal(&self, failure: UnmountFailure) -> Refusal {
        let mount = self.mount.display();
        match failure {
            UnmountFailure::Busy => Refusal {
                holders: self.holders(),
                ..Refusal::new(Reason::Busy, format!("{mount} is in use"))
            },
            UnmountFailure::Gone => {
                Refusal::new(Reason::Failed, format!("{mount} is not mounted any more"))
            }
            UnmountFailure::Other(error) => Refusal::new(
                Reason::Failed,
                format!("{mount} cannot be unmounted: {error}"),
            ),
        }
    }

    /// Processes that hold the mount now.
    pub fn holders(&self) -> Vec<holders::Holder> {
        match holders::device(&self.mount) {
            Ok(dev) => holders::find(dev, &[std::process::id() as i32]),
            Err(_) => Vec::new(),
        }
    }

    /// The start failed half way: the mount goes, at once.
    pub fn abandon(&self) {
        if let Err(failure) = (self.unmount)(true) {
            tracing::error!(?failure, "the mount could not be taken away again");
        }
    }

    /// The session has ended: stops the drain and closes the store.
    pub fn close(&self, store: &Store, ended: io::Result<()>) -> Closing {
        let late = matches!(*self.state.lock(), State::Unmounted { drain: true });
        if late {
            let deadline = Instant::now() + LATE_DRAIN;
            let hurry = || self.hurry.load(Ordering::Acquire);
            self.flusher
                .drain(Selection::All)
                .wait_with(Some(deadline), |_| !hurry());
        }
        self.flusher.shutdown(false);
        let closed = store.close();
        // Only now: the last checkpoint brings the books up to date.
        let left: Vec<_> = store
            .dirty_files()
            .into_iter()
            .filter(|f| !f.is_unlinked())
            .collect();
        let undrained = left
            .iter()
            .filter_map(|f| f.stat())
            .map(|s| s.undrained)
            .sum();
        let error = match (ended, closed) {
            (Err(e), _) => Some(format!("the mount ended with an error: {e}")),
            (_, Err(e)) => Some(format!("the store was not closed cleanly: {e}")),
            _ => None,
        };
        if !left.is_empty() {
            tracing::info!(
                files = left.len(),
                undrained,
                "undrained data stays in the store"
            );
        }
        Closing {
            undrained,
            files: left.len(),
            error,
        }
    }

    /// Those who wait in `stop` go on.
    pub fn closed(&self, closing: Closing) {
        *self.state.lock() = State::Closed(closing);
        self.changed.notify_all();
    }
}

/// `umount -f`, which ends the connection of a FUSE mount and fails on a busy one all the same.
fn force(mount: &Path) -> io::Result<()> {
    let flags = MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW;
    match umount2(mount, flags) {
        Ok(()) | Err(Errno::EBUSY) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Ends a FUSE connection from outside: the kernel answers for it from now on.
fn abort_connection(device: u64) -> io::Result<()> {
    let minor = nix::sys::stat::minor(device);
    let path = format!("/sys/fs/fuse/connections/{minor}/abort");
    std::fs::OpenOptions::new()
        .write(true)
        .open(path)?
        .write_all(b"1")
}
