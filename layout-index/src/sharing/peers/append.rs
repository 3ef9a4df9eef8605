//! Appends by several nodes: at most one node at a time knows where the file ends.
//!
//! A node that appends takes the file's append lock (`shared_dir::append`), and refreshes before each
//! append: other nodes may cut the file, or write past its end, without the lock. It gives the lock
//! up when its bytes are announced or published, so a node that takes the lock later and refreshes
//! finds the end after them:
//!
//! - at each close, fsync and unlock, which announce or publish anyway;
//! - when another node wants the lock, or this node has not appended for a while:
//!   [`Peers::yield_append`];
//! - after each append, published, while other nodes want to append too. Nodes then take turns
//!   without waiting for the holder to look for signs, which it does every tenth of a second.
//!
//! One `write` of a program that is longer than a request comes as several requests. If the last
//! request had the maximum length, the lock stays for a moment, so that the rest can follow, unless
//! the same thread asks for something else: its `write` is over then. A program that writes
//! requests of maximum length all the time looks the same, so while another node wants the lock,
//! such a row of requests keeps it for a bounded time only.
//!
//! # Crash behaviour
//! The lock is freed with the daemon, the mark stays. Bytes that the daemon had appended and
//! neither announced nor published are in its store, and other nodes that want to append wait for
//! them, as they wait for announced bytes: [`Peers::resume_appends`] announces them at the next
//! start. So no acknowledged append is overwritten by another one.
//!
//! # Threads
//! Taking the lock waits for the shared file system and for other nodes, with the file's `append`
//! held: only other appends to the same file wait for that.

use super::shared_file::shared;
use super::{AskCanonical, Peers, Wait, failed};
use crate::error::{Result, StoreError};
use crate::sharing::shared_dir::AppendLock;
use crate::store::file::File;
use crate::store::file_of;
use crate::types::{FileId, NodeId};
use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// First and longest pause between two attempts to take the lock.
const SHORTEST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// How often a waiting request checks whether its caller is still there.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// How often a node makes the sign again that it wants the lock.
const WANT_AGAIN: Duration = Duration::from_secs(1);

/// How long a node that wanted to append is expected to want it again.
const CONTENDED_FOR: Duration = Duration::from_secs(2);

/// A lock that was not used for this long is given up.
const IDLE: Duration = Duration::from_secs(1);

/// How long the rest of a `write` may take to follow, also on a busy machine.
const REST_FOLLOWS: Duration = Duration::from_secs(1);

/// A row of requests of maximum length keeps the lock from nodes that want it no longer than this,
/// and no longer than one part in [`ROWS_IN_A_WAIT`] of the time for which these nodes wait.
const LONGEST_ROW: Duration = Duration::from_secs(5);
const ROWS_IN_A_WAIT: u32 = 4;

/// Stands for a thread whose number is not known.
const NO_THREAD: u32 = 0;

/// State of this node's appends to a file.
#[derive(Debug, Default)]
pub(super) struct Append {
    lock: Option<AppendLock>,
    /// When the last append ended.
    used: Option<Instant>,
    /// The thread of the last append if that had the maximum length of a request, so that the rest
    /// of a `write` may follow; 0 if the thread is not known.
    goes_on: Option<u32>,
    /// When the first request of a row of requests of maximum length ended.
    row_began: Option<Instant>,
    /// How long such a row may be while another node waits.
    longest_row: Duration,
    /// When another node last wanted the lock.
    contended: Option<Instant>,
    /// Number of turns so far.
    count: u64,
}

/// The appends up to some moment, and the thread that has finished appending, if it is known.
#[derive(Clone, Copy, Debug)]
pub struct Appends {
    /// `None` if an append was under way.
    count: Option<u64>,
    thread: u32,
}

impl Append {
    fn is_contended(&self) -> bool {
        self.contended
            .is_some_and(|at| at.elapsed() < CONTENDED_FOR)
    }

    /// Whether to wait for the rest of a `write` of a thread other than `thread`.
    fn has_rest(&self, thread: u32) -> bool {
        let is_over = |of: u32| of != 0 && of == thread;
        let is_expected = self.goes_on.is_some_and(|of| !is_over(of));
        is_expected && self.used_within(REST_FOLLOWS) && !self.is_overdue()
    }

    /// Whether another node has waited for long enough.
    fn is_overdue(&self) -> bool {
        let began = self.row_began.filter(|_| self.is_contended());
        began.is_some_and(|at| at.elapsed() >= self.longest_row)
    }

    fn used_within(&self, time: Duration) -> bool {
        self.used.is_some_and(|at| at.elapsed() < time)
    }
}

/// No other node appends to the file while this exists.
pub struct AppendTurn<'a> {
    file: &'a Arc<File>,
    append: MutexGuard<'a, Append>,
}

impl AppendTurn<'_> {
    /// Whether other nodes want to append too. Then the caller must publish and call
    /// [`AppendTurn::give_up`].
    pub fn is_wanted(&self) -> bool {
        self.append.is_contended()
    }

    /// Whether requests of maximum length have kept the lock from another node for so long that the
    /// rest of a `write` does not keep it any longer.
    pub fn is_overdue(&self) -> bool {
        self.append.is_overdue()
    }

    /// Ends the turn after the bytes are appended, and keeps the lock. `goes_on` is the thread of a
    /// request that had the maximum length.
    pub fn keep(mut self, goes_on: Option<u32>) {
        let now = Instant::now();
        let row_began = self.append.row_began.unwrap_or(now);
        self.append.row_began = goes_on.map(|_| row_began);
        self.append.used = Some(now);
        self.append.goes_on = goes_on;
    }

    /// Ends the turn after the bytes are published or announced, and gives the lock up.
    pub fn give_up(mut self, peers: &Peers) {
        self.append.used = Some(Instant::now());
        self.append.goes_on = None;
        peers.release_append(self.file, self.append);
    }
}

impl Peers {
    /// Waits for this node's turn to append to the file. During the turn the file's end is known.
    pub fn append_turn<'a>(
        &self,
        file: &'a Arc<File>,
        ask: AskCanonical<'_>,
    ) -> Result<AppendTurn<'a>> {
        let mut append = match shared(file).append.try_lock_for(LONGEST_PAUSE) {
            Some(append) => append,
            None => self.wait_for_append(file)?,
        };
        let is_new = append.lock.is_none();
        if is_new {
            let lock = self.take_append_lock(file, &mut append)?;
            append.lock = Some(lock);
            append.used = Some(Instant::now());
            append.row_began = None;
            append.longest_row = LONGEST_ROW.min(self.patience(file) / ROWS_IN_A_WAIT);
            self.appending.lock().insert(file.id(), file.clone());
        }
        if let Err(error) = self.refresh(file, ask, Wait::ForOthers) {
            if is_new {
                self.release_append(file, append);
            }
            return Err(error);
        }
        append.count += 1;
        Ok(AppendTurn { file, append })
    }

    /// Waits while another request of this node appends, or waits for its turn. That wait is
    /// bounded, and so is this one.
    fn wait_for_append<'a>(&self, file: &'a File) -> Result<MutexGuard<'a, Append>> {
        loop {
            (self.pause)(Duration::ZERO)?;
            if let Some(append) = shared(file).append.try_lock_for(WAIT_STEP) {
                return Ok(append);
            }
        }
    }

    fn take_append_lock(&self, file: &File, append: &mut Append) -> Result<AppendLock> {
        let failed = |e| failed("taking the append lock of", file, e);
        let patience = self.patience(file);
        let deadline = Instant::now() + patience;
        let id = file.id();
        // Nodes that wait for the lock try every few milliseconds: one of them should find it free.
        let was_just_here = append.is_contended() && append.used_within(LONGEST_PAUSE);
        if was_just_here && self.shared_dir.is_append_wanted(id).map_err(failed)? {
            (self.pause)(2 * LONGEST_PAUSE)?;
        }
        let lock = self.shared_dir.open_append_lock(id).map_err(failed)?;
        let mut wanted: Option<Instant> = None;
        let mut pause = SHORTEST_PAUSE;
        let too_late = |node: Option<NodeId>| StoreError::Appending {
            file: id,
            node: node.map_or("another node".into(), |node| {
                format!("node {}", self.shared_dir.membership().name_of(node))
            }),
            seconds: patience.as_secs_f64(),
        };
        while !lock.try_lock().map_err(failed)? {
            let now = Instant::now();
            append.contended = Some(now);
            if now >= deadline {
                return Err(too_late(None));
            }
            if wanted.is_none_or(|at| at.elapsed() >= WANT_AGAIN) {
                self.shared_dir.want_append(id).map_err(failed)?;
                wanted = Some(now);
            }
            (self.pause)(pause)?;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        // The mark belongs to a node that was killed and has bytes that are not announced. On a
        // file system without locks it may also belong to a node that is appending.
        while let Some(node) = self.shared_dir.mark_append(id).map_err(failed)? {
            if Instant::now() >= deadline {
                return Err(too_late(Some(node)));
            }
            if wanted.is_none_or(|at| at.elapsed() >= WANT_AGAIN) {
                self.shared_dir.want_append(id).map_err(failed)?;
                wanted = Some(Instant::now());
            }
            (self.pause)(LONGEST_PAUSE)?;
        }
        if wanted.is_some() {
            self.shared_dir.clear_append_wanted(id).map_err(failed)?;
        }
        Ok(lock)
    }

    /// After a start: announces bytes that an earlier run has appended and not announced. Returns
    /// the files.
    pub(super) fn resume_appends(&self) -> io::Result<Vec<Arc<File>>> {
        let mut announced = Vec::new();
        for id in self.shared_dir.marked_appends()? {
            let file = file_of(&self.state, id);
            if !file.is_clean() && !file.is_unlinked() {
                self.announce(&file).map_err(io::Error::other)?;
                announced.push(file);
            }
            self.shared_dir.unmark_append(id)?;
        }
        Ok(announced)
    }

    /// Gives append locks up when this node leaves. Marks stay on files whose bytes stay in the
    /// store.
    pub(super) fn end_all_appends(&self) {
        let held: Vec<Arc<File>> = self.appending.lock().values().cloned().collect();
        for file in &held {
            let append = shared(file).append.try_lock();
            let is_told = file.is_clean() && !file.is_publishing();
            if let Some(append) = append.filter(|append| append.lock.is_some() && is_told) {
                self.release_append(file, append);
            }
        }
    }

    /// Whether this node appends to any file, or has done so just now.
    pub fn is_appending(&self) -> bool {
        !self.appending.lock().is_empty()
    }

    /// Returns the files whose append lock is to be given up now, because another node wants it or
    /// it is idle.
    pub fn appends_to_yield(&self) -> io::Result<Vec<Arc<File>>> {
        let held: Vec<Arc<File>> = self.appending.lock().values().cloned().collect();
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = self.shared_dir.wanted_appends()?;
        let is_wanted = |id: FileId| wanted.contains(&id);
        let mut to_yield = held;
        // A file with an append under way is checked again next time.
        to_yield.retain(|file| {
            shared(file).append.try_lock().is_some_and(|mut append| {
                if is_wanted(file.id()) {
                    append.contended = Some(Instant::now());
                    return !append.has_rest(NO_THREAD);
                }
                !append.used_within(IDLE) && !append.has_rest(NO_THREAD)
            })
        });
        Ok(to_yield)
    }

    /// Announces the appended bytes and gives the lock up, unless an append is under way. Returns
    /// true if something was announced.
    pub fn yield_append(&self, file: &Arc<File>) -> Result<bool> {
        let append = shared(file)
            .append
            .try_lock()
            .filter(|append| append.lock.is_some() && !append.has_rest(NO_THREAD));
        let Some(append) = append else {
            return Ok(false);
        };
        let is_clean = file.is_clean();
        // Must be checked after `is_clean`: a publication may have forgotten the bytes here while
        // other nodes do not find them yet.
        if is_clean && file.is_publishing() {
            return Ok(false);
        }
        let announces = !is_clean && !file.is_unlinked();
        if announces {
            self.announce(file)?;
        }
        if append.is_contended() {
            let granted = self.shared_dir.clear_append_wanted(file.id());
            granted.map_err(|e| failed("giving up the append lock of", file, e))?;
        }
        self.release_append(file, append);
        Ok(announces)
    }

    /// Must be called before an announcement or a publication; the result is for
    /// [`Peers::end_appends`].
    pub fn appends_of(&self, file: &File, thread: u32) -> Appends {
        Appends {
            count: shared(file).append.try_lock().map(|append| append.count),
            thread,
        }
    }

    /// Gives the lock up after everything appended until `appends` is announced or published. The
    /// lock stays if there have been more appends since, or the rest of a `write` is to follow; it
    /// is then given up when another node wants it, or when it is idle.
    pub fn end_appends(&self, file: &Arc<File>, appends: Appends) {
        let append = shared(file).append.try_lock().filter(|append| {
            let is_done = !append.has_rest(appends.thread);
            append.lock.is_some() && appends.count == Some(append.count) && is_done
        });
        if let Some(append) = append {
            self.release_append(file, append);
        }
    }

    /// Gives the lock up. If the mark cannot be removed, the lock stays, and is given up once it is
    /// idle.
    fn release_append(&self, file: &Arc<File>, mut append: MutexGuard<'_, Append>) {
        if let Err(error) = self.shared_dir.unmark_append(file.id()) {
            append.used = Some(Instant::now());
            tracing::warn!(file = %file.id(), %error, "other nodes cannot append yet: this node's mark stays");
            return;
        }
        append.lock = None;
        let pinned = self.appending.lock().remove(&file.id());
        drop(append);
        drop(pinned);
    }
}

impl Peers {
    /// Whether a close must tell other nodes something, or has a lock to give up. Never waits.
    pub fn must_tell_others(&self, file: &File) -> bool {
        let appends = || {
            let append = shared(file).append.try_lock();
            append.is_none_or(|append| append.lock.is_some())
        };
        !file.is_clean() || file.is_publishing() || appends()
    }
}
