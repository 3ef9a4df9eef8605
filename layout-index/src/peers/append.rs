//! Appends of several nodes: at most one node at a time knows that it knows where the file ends.
//!
//! A node that appends takes the file's append lock (`commons::append`), and refreshes before each append: other nodes
//! may cut the file, or write past its end, without the lock. It gives the lock up when its bytes are announced
//! or published, so a node that takes the lock later and refreshes finds the end behind them:
//!
//! - at each close, fsync and unlock, which announce or publish anyway;
//! - when another node wants the lock, or this one has not appended for a while: [`Peers::yield_append`];
//! - after each append, published, while other nodes want to append too. Nodes then take turns without
//!   waiting for the look at signs that the holder takes every tenth of a second.
//!
//! One `write` of a program that is longer than a request comes as several requests. While the last
//! one was as long as a request can be, the lock stays for a moment, so that the rest follows it, unless the same
//! thread asks for something else: its `write` is over then. A program that writes requests of full length all the
//! time looks the same, so where another node wants the lock such a row of requests keeps it for a bounded time only.
//!
//! # Crash behaviour
//! The lock goes with the daemon, the mark stays. What the daemon had appended and neither announced nor
//! published is in its store, and other nodes that want to append wait for it, as they wait for
//! announced bytes: [`Peers::resume_appends`] announces them at the next start. So no acknowledged
//! append is overwritten by another.
//!
//! # Threads
//! Taking the lock waits for the shared file system and for other nodes, with the file's `append`
//! held: only other appends to the same file wait for that.

use super::{AskCanonical, Peers, Wait, failed};
use crate::commons::AppendLock;
use crate::error::{Result, StoreError};
use crate::file::File;
use crate::store::file_of;
use crate::types::{FileId, NodeId};
use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// First and longest pause between two tries for the lock.
const SHORTEST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Between two looks whether the caller of a request that waits is still there.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// How often a node says again that it wants the lock.
const WANT_AGAIN: Duration = Duration::from_secs(1);

/// A node that wanted to append is expected to want it again for so long.
const CONTENDED_FOR: Duration = Duration::from_secs(2);

/// A lock that was not used for so long is given up.
const IDLE: Duration = Duration::from_secs(1);

/// How long the rest of a `write` may take to follow, also on a busy machine.
const REST_FOLLOWS: Duration = Duration::from_secs(1);

/// A row of requests of full length keeps the lock from nodes that want it no longer than this, and no longer than a
/// part of the time for which these nodes wait.
const LONGEST_ROW: Duration = Duration::from_secs(5);
const ROWS_IN_A_WAIT: u32 = 4;

/// In the place of a thread's number, where none is known.
const NO_THREAD: u32 = 0;

/// This node's part in appending to a file.
#[derive(Debug, Default)]
pub(crate) struct Append {
    lock: Option<AppendLock>,
    /// The last append ended then.
    used: Option<Instant>,
    /// The last append was as long as a request can be, and this thread's; 0 if that is not known.
    goes_on: Option<u32>,
    /// The first of a row of requests of full length ended then.
    row_began: Option<Instant>,
    /// How long such a row may be where another node waits.
    longest_row: Duration,
    /// Another node wanted the lock then.
    contended: Option<Instant>,
    /// Turns so far.
    count: u64,
}

/// What was appended at some moment, and the thread that was done with appending, if one is known.
#[derive(Clone, Copy, Debug)]
pub struct Appends {
    /// `None`: an append was under way.
    count: Option<u64>,
    thread: u32,
}

impl Append {
    fn is_contended(&self) -> bool {
        self.contended
            .is_some_and(|at| at.elapsed() < CONTENDED_FOR)
    }

    /// The rest of a `write` is expected, other than one of `thread`, and is waited for.
    fn has_rest(&self, thread: u32) -> bool {
        let is_over = |of: u32| of != 0 && of == thread;
        let is_expected = self.goes_on.is_some_and(|of| !is_over(of));
        is_expected && self.used_within(REST_FOLLOWS) && !self.is_overdue()
    }

    /// Another node has waited for long enough.
    fn is_overdue(&self) -> bool {
        let began = self.row_began.filter(|_| self.is_contended());
        began.is_some_and(|at| at.elapsed() >= self.longest_row)
    }

    fn used_within(&self, time: Duration) -> bool {
        self.used.is_some_and(|at| at.elapsed() < time)
    }
}

/// No other node appends to the file while this is there.
pub struct AppendTurn<'a> {
    file: &'a Arc<File>,
    append: MutexGuard<'a, Append>,
}

impl AppendTurn<'_> {
    /// Other nodes want to append too: publish, then [`AppendTurn::give_up`].
    pub fn is_wanted(&self) -> bool {
        self.append.is_contended()
    }

    /// Requests of full length have kept the lock from another node for so long that the rest of a `write` does not
    /// keep it any more.
    pub fn is_overdue(&self) -> bool {
        self.append.is_overdue()
    }

    /// The bytes are appended, and the lock stays. `goes_on` is the thread of a request that was as long as
    /// a request can be.
    pub fn keep(mut self, goes_on: Option<u32>) {
        let now = Instant::now();
        let row_began = self.append.row_began.unwrap_or(now);
        self.append.row_began = goes_on.map(|_| row_began);
        self.append.used = Some(now);
        self.append.goes_on = goes_on;
    }

    /// The bytes are published or announced.
    pub fn give_up(mut self, peers: &Peers) {
        self.append.used = Some(Instant::now());
        self.append.goes_on = None;
        peers.let_append_go(self.file, self.append);
    }
}

impl Peers {
    /// This node's turn to append to the file, whose end is known then. Waits for other nodes.
    pub fn append_turn<'a>(
        &self,
        file: &'a Arc<File>,
        ask: AskCanonical<'_>,
    ) -> Result<AppendTurn<'a>> {
        let mut append = match file.append.try_lock_for(LONGEST_PAUSE) {
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
                self.let_append_go(file, append);
            }
            return Err(error);
        }
        append.count += 1;
        Ok(AppendTurn { file, append })
    }

    /// Another request of this node appends, or waits for that. It is bounded, and so is this.
    fn wait_for_append<'a>(&self, file: &'a File) -> Result<MutexGuard<'a, Append>> {
        loop {
            self.pause(Duration::ZERO)?;
            if let Some(append) = file.append.try_lock_for(WAIT_STEP) {
                return Ok(append);
            }
        }
    }

    fn take_append_lock(&self, file: &File, append: &mut Append) -> Result<AppendLock> {
        let failed = |e| failed("taking the append lock of", file, e);
        let patience = self.patience(file);
        let deadline = Instant::now() + patience;
        let id = file.id();
        // Nodes that look for the lock do so every few milliseconds: one of them is to find it free.
        let was_just_here = append.is_contended() && append.used_within(LONGEST_PAUSE);
        if was_just_here && self.commons.is_append_wanted(id).map_err(failed)? {
            self.pause(2 * LONGEST_PAUSE)?;
        }
        let lock = self.commons.append_lock(id).map_err(failed)?;
        let mut wanted: Option<Instant> = None;
        let mut pause = SHORTEST_PAUSE;
        let too_late = |node: Option<NodeId>| StoreError::Appending {
            file: id,
            node: node.map_or("another node".into(), |node| {
                format!("node {}", self.commons.name_of(node))
            }),
            seconds: patience.as_secs_f64(),
        };
        while !lock.try_take().map_err(failed)? {
            let now = Instant::now();
            append.contended = Some(now);
            if now >= deadline {
                return Err(too_late(None));
            }
            if wanted.is_none_or(|at| at.elapsed() >= WANT_AGAIN) {
                self.commons.want_append(id).map_err(failed)?;
                wanted = Some(now);
            }
            self.pause(pause)?;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        // The mark of a node that was killed: it has bytes that are not announced. Where the file system has no locks, it
        // may be that of a node that appends.
        while let Some(node) = self.commons.mark_append(id).map_err(failed)? {
            if Instant::now() >= deadline {
                return Err(too_late(Some(node)));
            }
            if wanted.is_none_or(|at| at.elapsed() >= WANT_AGAIN) {
                self.commons.want_append(id).map_err(failed)?;
                wanted = Some(Instant::now());
            }
            self.pause(LONGEST_PAUSE)?;
        }
        if wanted.is_some() {
            self.commons.append_granted(id).map_err(failed)?;
        }
        Ok(lock)
    }

    /// After a start: announces what an earlier run has appended and not announced. Gives the files.
    pub(super) fn resume_appends(&self) -> io::Result<Vec<Arc<File>>> {
        let mut announced = Vec::new();
        for id in self.commons.marked_appends()? {
            let file = file_of(&self.shared, id);
            if !file.is_clean() && !file.is_unlinked() {
                self.intend(&file).map_err(io::Error::other)?;
                announced.push(file);
            }
            self.commons.unmark_append(id)?;
        }
        Ok(announced)
    }

    /// At the end of this node: marks stay on files whose bytes stay in the store.
    pub(super) fn end_all_appends(&self) {
        let held: Vec<Arc<File>> = self.appending.lock().values().cloned().collect();
        for file in &held {
            let append = file.append.try_lock();
            let is_told = file.is_clean() && !file.is_publishing();
            if let Some(append) = append.filter(|append| append.lock.is_some() && is_told) {
                self.let_append_go(file, append);
            }
        }
    }

    /// This node appends to some file, or has done so just now.
    pub fn is_appending(&self) -> bool {
        !self.appending.lock().is_empty()
    }

    /// The files whose append lock is to be given up now: another node wants it, or it is idle.
    pub fn appends_to_yield(&self) -> io::Result<Vec<Arc<File>>> {
        let held: Vec<Arc<File>> = self.appending.lock().values().cloned().collect();
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = self.commons.wanted_appends()?;
        let is_wanted = |id: FileId| wanted.contains(&id);
        let mut to_yield = held;
        // An append that is under way is looked at again.
        to_yield.retain(|file| {
            file.append.try_lock().is_some_and(|mut append| {
                if is_wanted(file.id()) {
                    append.contended = Some(Instant::now());
                    return !append.has_rest(NO_THREAD);
                }
                !append.used_within(IDLE) && !append.has_rest(NO_THREAD)
            })
        });
        Ok(to_yield)
    }

    /// Announces what was appended, and gives the lock up, unless an append is under way. True if
    /// something was announced.
    pub fn yield_append(&self, file: &Arc<File>) -> Result<bool> {
        let append = file
            .append
            .try_lock()
            .filter(|append| append.lock.is_some() && !append.has_rest(NO_THREAD));
        let Some(append) = append else {
            return Ok(false);
        };
        let is_clean = file.is_clean();
        // After that question: a publication that has forgotten the bytes here, and that other nodes do not find yet.
        if is_clean && file.is_publishing() {
            return Ok(false);
        }
        let announces = !is_clean && !file.is_unlinked();
        if announces {
            self.intend(file)?;
        }
        if append.is_contended() {
            let granted = self.commons.append_granted(file.id());
            granted.map_err(|e| failed("giving up the append lock of", file, e))?;
        }
        self.let_append_go(file, append);
        Ok(announces)
    }

    /// Before an announcement or a publication, for [`Peers::end_appends`].
    pub fn appends_of(&self, file: &File, thread: u32) -> Appends {
        Appends {
            count: file.append.try_lock().map(|append| append.count),
            thread,
        }
    }

    /// All that was appended until `appends` is announced or published. The lock stays if there is more by now,
    /// or the rest of a `write` is to follow; it then goes as one does that is wanted, or that rests.
    pub fn end_appends(&self, file: &Arc<File>, appends: Appends) {
        let append = file.append.try_lock().filter(|append| {
            let is_done = !append.has_rest(appends.thread);
            append.lock.is_some() && appends.count == Some(append.count) && is_done
        });
        if let Some(append) = append {
            self.let_append_go(file, append);
        }
    }

    /// If the mark cannot be removed, the lock stays, and is given up when it rests.
    fn let_append_go(&self, file: &Arc<File>, mut append: MutexGuard<'_, Append>) {
        if let Err(error) = self.commons.unmark_append(file.id()) {
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

impl File {
    /// A close has to tell other nodes something, or has a lock to give up. Never waits.
    pub fn is_to_tell(&self) -> bool {
        let appends = || {
            let append = self.append.try_lock();
            append.is_none_or(|append| append.lock.is_some())
        };
        !self.is_clean() || self.is_publishing() || appends()
    }
}
