//! How a mount ends, for whatever reason: drain, unmount, close, and tell the callers that wait for it.
//!
//! ```text
//! serving ──stop()──▶ drained ──unmount──▶ unmounted ──close()──▶ closed
//!    ▲ │                 │ busy, failing or out of time          ▲
//!    └─┼─────────────────┘                                      │
//!      └──another program's umount──▶ left ──drained, or told───┘
//! ```
//!
//! Only one `stop` runs at a time. It runs on the thread of its caller (a control connection, a signal);
//! `close` runs on the daemon's main thread when the session has ended. Data that is written after the drain
//! has begun is drained in `close`, when the mount is already gone.
//!
//! # Users cannot delay the end
//! The kernel ends the session with the last copy of the mount, and any user can keep a copy in a mount
//! namespace of their own. So a session gets [`CUT`] to end after the unmount; then its connection is aborted,
//! and its users get ENOTCONN. Nothing that they write afterwards is acknowledged.
//!
//! # Unmounted by another program
//! `umount(8)` (fstab, systemd, a shutdown, a user) does not ask the daemon and waits for nothing. The daemon
//! then drains what is left without its mount, and ends. It notices the unmount by the end of the session, or
//! in the mount table, because a copy in another namespace keeps the session alive. The next mount of the store
//! gets the store at once ([`Lifecycle::hand_over`]). If the daemon is killed meanwhile, the store has what is
//! left.
//!
//! The daemon never makes a request to its own mount (not even a `stat` for its device number): a daemon that
//! is killed while it waits for itself could not end.

use super::point::{self, Point, UnmountFailure};
use super::undrained;
use crate::control::protocol::{Reason, Refusal};
use crate::{holders, units};
use flusher::{Flusher, Progress, Selection, Verdict};
use forebay_fs::Mounted;
use layout_index::Store;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Drain, then unmount.
    Drain,
    /// Unmount and leave undrained data in the store; refuse if the mount is in use.
    Keep,
    /// As `Keep`, and detach a mount that is in use.
    Now,
}

/// How the mount ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    pub undrained: u64,
    pub files: usize,
    pub error: Option<String>,
}

enum State {
    Serving,
    Unmounted {
        drain: bool,
    },
    /// Another program has unmounted the mount, and the daemon drains what is left.
    Left,
    Closed(Closing),
}

/// Whether and how the session has ended.
#[derive(Default)]
struct Session {
    ended: Option<io::Result<()>>,
    /// Processes that still use the mount are not waited for beyond this time.
    give_up: Option<Instant>,
    /// The connection was aborted, or cannot be.
    cut: bool,
    over: bool,
}

pub struct Lifecycle {
    point: Arc<dyn Point>,
    /// The mount is dead but still in the tree.
    stays: AtomicBool,
    flusher: Arc<Flusher>,
    mount: PathBuf,
    stopping: Mutex<()>,
    hurry: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    session: Mutex<Session>,
    session_changed: Condvar,
}

/// Time that a session has to end when its mount is gone, and once more when its connection was aborted.
const CUT: Duration = Duration::from_secs(2);
/// Time limit for draining what arrived between the drain and the unmount, which is little.
const LATE_DRAIN: Duration = Duration::from_secs(120);
/// Maximum number of drains before the unmount. Each drains what was written during the one before.
const PASSES: usize = 3;
/// How often a drain that makes no progress is checked again when the mount is gone.
const AGAIN: Duration = Duration::from_secs(1);

impl Lifecycle {
    pub fn new(point: Box<dyn Point>, flusher: Arc<Flusher>, mount: PathBuf) -> Lifecycle {
        Lifecycle {
            point: point.into(),
            stays: AtomicBool::new(false),
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

    /// Runs `session` to its end on a thread of its own. Returns when it has ended, or when its connection
    /// was aborted and it still does not end.
    pub fn wait(self: &Arc<Self>, session: Mounted) -> io::Result<()> {
        let me = self.clone();
        std::thread::Builder::new()
            .name("forebay-session".into())
            .spawn(move || {
                let ended = session.wait();
                let mut session = me.session.lock();
                (session.ended, session.over) = (Some(ended), true);
                drop(session);
                me.session_changed.notify_all();
            })?;
        let mut session = self.session.lock();
        loop {
            if let Some(ended) = session.ended.take() {
                return ended;
            }
            match session.give_up {
                Some(deadline) if Instant::now() >= deadline => {
                    if session.cut {
                        return Ok(());
                    }
                    MutexGuard::unlocked(&mut session, || {
                        tracing::warn!(
                            "another mount namespace has a copy of the mount: it is cut off"
                        );
                        self.abort();
                    });
                    session.give_up = Some(Instant::now() + CUT);
                }
                Some(deadline) => {
                    self.session_changed.wait_until(&mut session, deadline);
                }
                None => self.session_changed.wait(&mut session),
            }
        }
    }

    /// Cuts the drain that a `stop` waits for short: the `stop` goes on without it.
    pub fn hurry(&self) {
        self.hurry.store(true, Ordering::Release);
    }

    /// False once the mount is gone, whichever program has unmounted it.
    pub fn is_serving(&self) -> bool {
        matches!(*self.state.lock(), State::Serving)
    }

    /// Checks whether another program has unmounted the mount. Returns false when there is nothing left to
    /// watch.
    pub fn notice_unmount(&self) -> bool {
        match self.point.is_mounted() {
            _ if !self.is_serving() => return false,
            Ok(true) => return true,
            Ok(false) => self.leave(),
            Err(error) => tracing::debug!(%error, "the mount table cannot be read"),
        }
        self.is_serving()
    }

    /// Must be called when the mount is gone. If no `stop` has unmounted it, what is left is drained from
    /// here on.
    fn leave(&self) {
        // A `stop` that is under way does the drain, and will find the mount gone.
        let _one = self.stopping.lock();
        {
            let mut state = self.state.lock();
            if !matches!(*state, State::Serving) {
                return;
            }
            *state = State::Left;
        }
        let progress = self.flusher.drain(Selection::All).progress();
        let mount = self.mount.display();
        if progress.files == 0 {
            tracing::info!("another program has unmounted {mount}; everything is drained");
            return;
        }
        tracing::warn!(
            "another program has unmounted {mount} with {} in {} undrained: the daemon drains them \
             without its mount and then ends; the next mount of the store takes over",
            units::bytes(progress.total - progress.done),
            units::files(progress.files)
        );
    }

    /// Must be called when the session has ended. If another program has unmounted the mount, drains what is
    /// left. Returns when that is done, or when a second signal or a command cuts it short.
    pub fn linger(&self) {
        self.leave();
        self.drain_what_is_left();
        // `umount -f` of a busy mount ends the session, and leaves the mount in the tree.
        if matches!(*self.state.lock(), State::Left) && self.point.is_mounted().unwrap_or(false) {
            match point::unmount(&self.point, true) {
                Ok(()) | Err(UnmountFailure::Gone) => {}
                Err(failure) => tracing::warn!(?failure, "the dead mount stays"),
            }
        }
    }

    fn drain_what_is_left(&self) {
        let hurry = || self.hurry.load(Ordering::Acquire);
        while matches!(*self.state.lock(), State::Left) && !hurry() {
            let handle = self.flusher.drain(Selection::All);
            match handle.wait_with(None, |_| !hurry()) {
                Verdict::Drained => return,
                // The drain tries again by itself, and `status` shows why it fails.
                _ if !hurry() => std::thread::sleep(AGAIN),
                _ => {}
            }
        }
    }

    /// Lets the next daemon of this store have it. Refused while this daemon has its mount.
    pub fn hand_over(&self) -> Result<Closing, Refusal> {
        // The thread that watches the mount table may not have noticed yet that the mount is gone.
        self.notice_unmount();
        if self.is_serving() {
            let mount = self.mount.display();
            return Err(Refusal::new(Reason::Busy, format!("{mount} is mounted")));
        }
        self.hurry();
        self.session.lock().give_up = Some(Instant::now());
        self.session_changed.notify_all();
        Ok(self.until_closed())
    }

    /// Ends the mount, or says why not. `watch` returns false when the caller is gone.
    pub fn stop(
        &self,
        stop: Stop,
        deadline: Option<Instant>,
        watch: &mut dyn FnMut(&Progress) -> bool,
    ) -> Result<Closing, Refusal> {
        let one = match stop {
            // The drain of the first signal is being cut short. Let that signal's unmount go first.
            Stop::Now => match self.stopping.try_lock_for(CUT) {
                Some(one) => one,
                None => {
                    // After the abort no request of the mount can hold the other `stop` up any longer.
                    self.abort();
                    self.stopping.lock()
                }
            },
            _ => self.stopping.try_lock().ok_or_else(|| {
                Refusal::new(Reason::Busy, "another umount of this mount is under way")
            })?,
        };
        let before = match *self.state.lock() {
            State::Serving => Some("still mounted"),
            State::Left => Some("not mounted any more, and the daemon goes on"),
            _ => None,
        };
        if let Some(before) = before {
            let drained = stop == Stop::Drain && self.drain(before, deadline, watch)?;
            if !drained && !self.is_serving() {
                self.hurry();
            }
            self.take_away(stop)?;
            let mut state = self.state.lock();
            if matches!(*state, State::Serving) {
                *state = State::Unmounted { drain: drained };
            }
            drop(state);
            self.end_session();
        }
        drop(one);
        let closing = self.until_closed();
        match self.stays.load(Ordering::Acquire) {
            true => Err(undrained::dead_mount_stays(&self.mount, &closing)),
            false => Ok(closing),
        }
    }

    fn until_closed(&self) -> Closing {
        let mut state = self.state.lock();
        loop {
            if let State::Closed(closing) = &*state {
                return closing.clone();
            }
            self.changed.wait(&mut state);
        }
    }

    /// Drains what was written before it began. A job or a copy of the mount that goes on writing does not
    /// delay it: what it writes meanwhile is drained when the mount is gone, and nothing writes any more.
    /// Returns false if another `stop`, which does not wait for a drain, has cut this one short. `now` says
    /// in an error what has become of the mount.
    fn drain(
        &self,
        now: &str,
        deadline: Option<Instant>,
        watch: &mut dyn FnMut(&Progress) -> bool,
    ) -> Result<bool, Refusal> {
        let hurry = || self.hurry.load(Ordering::Acquire);
        for _ in 0..PASSES {
            let handle = self.flusher.drain(Selection::Now);
            let mut asker_left = false;
            let verdict = handle.wait_with(deadline, |progress| {
                asker_left = !watch(progress);
                !asker_left && !hurry()
            });
            match verdict {
                Verdict::Drained if self.flusher.progress().files == 0 => break,
                Verdict::Drained => {}
                _ if hurry() => return Ok(false),
                _ if asker_left => return Err(undrained::asker_left()),
                verdict => return Err(undrained::refusal(verdict, &handle.progress(), now)),
            }
        }
        Ok(true)
    }

    fn take_away(&self, stop: Stop) -> Result<(), Refusal> {
        // After another program's umount the mount may still be in the tree, if its connection was ended from
        // outside.
        match point::unmount(&self.point, !self.is_serving()) {
            Ok(()) | Err(UnmountFailure::Gone) => Ok(()),
            Err(UnmountFailure::Busy) if stop == Stop::Now => self.cut_off(),
            Err(UnmountFailure::Hangs) => {
                if stop != Stop::Now && !self.holders().is_empty() {
                    return Err(self.refusal(UnmountFailure::Busy));
                }
                self.abort();
                self.leave_dead_mount();
                Ok(())
            }
            Err(failure) => Err(self.refusal(failure)),
        }
    }

    /// Leaves the dead mount in the tree. Its connection is aborted: the kernel answers for it, and nothing
    /// more is acknowledged.
    fn leave_dead_mount(&self) {
        self.stays.store(true, Ordering::Release);
        let mount = self.mount.display();
        tracing::warn!(
            "the mount point {mount} does not answer, for the file system that it lies below hangs: the dead mount stays"
        );
    }

    /// Ends a mount that is in use. Its users get ENOTCONN from here on; nothing that they write
    /// is acknowledged, so nothing acknowledged is lost.
    fn cut_off(&self) -> Result<(), Refusal> {
        tracing::warn!("the mount is in use and is cut off all the same");
        self.abort();
        match point::unmount(&self.point, true) {
            Ok(()) | Err(UnmountFailure::Gone) => Ok(()),
            Err(UnmountFailure::Hangs) => {
                self.leave_dead_mount();
                Ok(())
            }
            Err(failure) => Err(self.refusal(failure)),
        }
    }

    /// Aborts the connection. From here on the kernel answers for the mount.
    fn abort(&self) {
        if self.session.lock().over {
            // Another file system may have the mount's device number by now.
            return;
        }
        if let Err(error) = self.point.abort() {
            tracing::info!(%error, "the connection ends with the daemon");
        }
        self.session.lock().cut = true;
    }

    /// Must be called when the mount is gone: the session then has [`CUT`] to end.
    fn end_session(&self) {
        self.session.lock().give_up = Some(Instant::now() + CUT);
        self.session_changed.notify_all();
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
            UnmountFailure::Hangs => {
                Refusal::new(Reason::Failed, format!("{mount} does not answer"))
            }
            UnmountFailure::Other(error) => Refusal::new(
                Reason::Failed,
                format!("{mount} cannot be unmounted: {error}"),
            ),
        }
    }

    /// Returns the processes that hold the mount now.
    pub fn holders(&self) -> Vec<holders::Holder> {
        if self.session.lock().over {
            // Another file system may have the mount's device number by now.
            return Vec::new();
        }
        holders::find(self.point.device(), &[std::process::id() as i32])
    }

    /// Unmounts at once, because the start has failed half way.
    pub fn abandon(&self) {
        if let Err(failure) = self.point.unmount(true) {
            tracing::error!(?failure, "the mount could not be taken away again");
        }
    }

    /// Must be called when the session has ended. Stops the drain and closes the store.
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
        // Ask for the progress only now: the last checkpoint brings the counters up to date. The store's own
        // counters are not enough: they leave out what this node has published.
        let left = self.flusher.progress();
        let undrained = left.total - left.done;
        let error = match (ended, closed) {
            (Err(e), _) => Some(format!("the mount ended with an error: {e}")),
            (_, Err(e)) => Some(format!("the store was not closed cleanly: {e}")),
            _ => None,
        };
        if left.files > 0 {
            tracing::info!(
                files = left.files,
                undrained,
                "undrained data stays for the next mount of the store"
            );
        }
        Closing {
            undrained,
            files: left.files,
            error,
        }
    }

    /// Lets the callers go on that wait in `stop` or `hand_over`.
    pub fn closed(&self, closing: Closing) {
        *self.state.lock() = State::Closed(closing);
        self.changed.notify_all();
    }
}
