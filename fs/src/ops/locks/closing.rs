//! Closes that may have ended an open file, and with it its flock and open-file-description locks.
//!
//! At each close the kernel reports that one copy of a descriptor is closed (flush, which the close waits
//! for), and only afterwards that it was the last copy (release, which nothing waits for). Between the two
//! the locks are still there, although the program's last close has returned. Giving them up with the flush
//! would take them away from other copies of the descriptor, about which the flush says nothing. So an
//! attempt that is refused because of such a lock waits until the release has come, or until it is clear that
//! none follows (docs/decisions/0014-locks-and-the-last-close.md).
//!
//! # Steps
//! - A flush through an open file that holds locks publishes (so that the release has nothing left to
//!   publish) and notes the open file here, for [`FOR_RELEASE`].
//! - The event loop notes a release that has arrived until it is carried out: however busy the threads are
//!   that carry it out, it is known to have come.
//! - An attempt on this node checks these notes. Another node cannot: for other nodes a byte of a file in the
//!   shared directory is locked while there are notes of the file. That lock ends with the daemon.
//!
//! # Threads
//! [`Overlay::release_begins`] never waits. Everything else may wait for the shared directory.

use super::{Attempt, LockRequest, Overlay};
use crate::backing::ofd::{self, LockKind, Span};
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::requests::executor;
use layout_index::FileId;
use layout_index::sharing::shared_dir::SharedDir;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a note lasts after the answer to a flush. The kernel queues the release before the program's
/// close returns, so this is for threads that do not get a processor.
const FOR_RELEASE: Duration = Duration::from_secs(1);

/// An attempt waits no longer than this, whatever else is closed meanwhile: any close that it may rely on had
/// returned before it began.
const LONGEST: Duration = Duration::from_secs(2);

/// Pause between two attempts: doubled each time, from the first to the last of these.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LAST_PAUSE: Duration = Duration::from_millis(5);

#[derive(Default)]
pub struct Closing {
    /// Notes by handle. Locked for map operations only, because event loops use it.
    notes: Mutex<HashMap<u64, Note>>,
    /// Locked during calls to the shared directory. Must be locked before `notes`.
    marks: Mutex<Marks>,
}

struct Note {
    file: FileId,
    /// `None` once the release has arrived.
    until: Option<Instant>,
    marked: bool,
}

#[derive(Default)]
struct Marks {
    file: Option<File>,
    /// True while a thread removes marks that have expired.
    swept: bool,
}

impl Note {
    fn counts(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

impl Marks {
    fn file(&mut self, shared_dir: &SharedDir) -> io::Result<&File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => shared_dir.open_closing_file()?,
        };
        Ok(self.file.insert(file))
    }
}

impl Closing {
    /// Called when a copy of the descriptor is closed and what its locks protect is published.
    fn flushed(
        self: &Arc<Self>,
        handle: &Handle,
        shared_dir: Option<&SharedDir>,
    ) -> io::Result<()> {
        let mut marks = self.marks.lock();
        let file = handle.inode.id;
        let marked = match shared_dir {
            Some(shared_dir) => marks.file(shared_dir).and_then(|marks| {
                ofd::set(marks.as_fd(), Some(LockKind::Shared), byte_of(file)).map(|_| true)
            }),
            None => Ok(false),
        };
        let note = Note {
            file,
            until: Some(Instant::now() + FOR_RELEASE),
            marked: matches!(marked, Ok(true)),
        };
        let sweep = note.marked && !marks.swept;
        self.notes.lock().insert(handle.fh, note);
        if sweep {
            let closing = self.clone();
            let sweeper = std::thread::Builder::new().name("lock-marks".into());
            sweeper.spawn(move || closing.sweep())?;
            marks.swept = true;
        }
        marked.map(drop)
    }

    /// Called when the release of the handle has arrived and will be carried out.
    fn has_arrived(&self, fh: u64, file: FileId) {
        let mut notes = self.notes.lock();
        let note = notes.entry(fh).or_insert(Note {
            file,
            until: None,
            marked: false,
        });
        note.until = None;
    }

    /// Called when the handle's locks have been given up.
    fn released(&self, fh: u64) {
        let marked = self.notes.lock().get(&fh).map(|note| note.marked);
        match marked {
            None => {}
            Some(false) => drop(self.notes.lock().remove(&fh)),
            Some(true) => self.unmark(&mut self.marks.lock(), &[fh]),
        }
    }

    fn counts(&self, fh: u64) -> bool {
        self.notes.lock().get(&fh).is_some_and(Note::counts)
    }

    /// True if another node has noted a close of the file.
    fn is_marked_elsewhere(&self, file: FileId, shared_dir: &SharedDir) -> io::Result<bool> {
        let mut marks = self.marks.lock();
        let marks = marks.file(shared_dir)?.as_fd();
        Ok(ofd::get(marks, LockKind::Exclusive, byte_of(file))?.is_some())
    }

    /// Removes expired marks until no mark is left that can expire.
    fn sweep(&self) {
        loop {
            std::thread::sleep(FOR_RELEASE / 2);
            let mut marks = self.marks.lock();
            let marked = |timed: fn(&Note) -> bool| -> Vec<u64> {
                let notes = self.notes.lock();
                let found = notes.iter().filter(|(_, note)| note.marked && timed(note));
                found.map(|(fh, _)| *fh).collect()
            };
            self.unmark(&mut marks, &marked(|note| !note.counts()));
            if marked(|note| note.until.is_some()).is_empty() {
                marks.swept = false;
                return;
            }
        }
    }

    fn unmark(&self, marks: &mut Marks, handles: &[u64]) {
        for fh in handles {
            let file = {
                let mut notes = self.notes.lock();
                let Some(gone) = notes.remove(fh) else {
                    continue;
                };
                let byte = byte_of(gone.file);
                let another = |note: &Note| note.marked && byte_of(note.file) == byte;
                match notes.values().any(another) {
                    true => continue,
                    false => gone.file,
                }
            };
            if let Some(open) = &marks.file
                && let Err(error) = ofd::set(open.as_fd(), None, byte_of(file))
            {
                tracing::warn!(%error, "the mark of a close could not be taken away, so all go");
                marks.file = None;
            }
        }
    }
}

/// Files with the same byte wait for each other's closes, which only costs time.
fn byte_of(file: FileId) -> Span {
    let byte = (file.ino ^ file.birth) & (ofd::LAST >> 1);
    Span {
        first: byte,
        last: byte,
    }
}

impl Overlay {
    /// Called when a copy of the handle's descriptor is closed, perhaps the last one.
    /// Publishes what its locks protect.
    pub(in crate::ops) fn may_be_last_close(&self, handle: &Handle) -> Result<()> {
        if self
            .locks
            .table
            .locks_of_handle(handle.inode.node, handle.fh)
            .is_empty()
        {
            return Ok(());
        }
        let published = self.lock_going(handle);
        let shared_dir = self.others.as_ref().map(|others| others.peers.shared_dir());
        if let Err(error) = self.locks.closing.flushed(handle, shared_dir) {
            tracing::warn!(%error, "other nodes were not told of a close: they may find its locks held");
        }
        published
    }

    /// Called when the last copy of the handle's descriptor is closed. Never waits; `release` does the rest.
    pub fn release_begins(&self, fh: u64) {
        let Some(inode) = self.handles.get(&fh).map(|handle| handle.inode.clone()) else {
            return;
        };
        if self.locks.table.is_held_through(inode.node, fh) {
            self.locks.closing.has_arrived(fh, inode.id);
        }
    }

    pub(in crate::ops) fn release_is_done(&self, fh: u64) {
        self.locks.closing.released(fh);
    }

    /// Called when `attempt` was refused because of another owner's lock. If that owner has closed its file, the
    /// lock is about to be released, and the attempt goes on until it is.
    pub(in crate::ops) fn try_after_closes<T: 'static>(
        &self,
        ask: LockRequest,
        attempt: fn(&Overlay, &LockRequest) -> Result<T>,
        is_refused: fn(&Result<T>) -> bool,
    ) -> Attempt<T> {
        match self.is_closing(&ask) {
            Ok(true) => Attempt::Wait(Box::new(move |fs| {
                fs.after_closes(&ask, attempt, is_refused)
            })),
            // The lock may have been given up between the first attempt and this check.
            Ok(false) => Attempt::Done(attempt(self, &ask)),
            Err(e) => Attempt::Done(Err(e)),
        }
    }

    /// True if `ask` conflicts only with locks of open files that may be closed already.
    fn is_closing(&self, ask: &LockRequest) -> Result<bool> {
        let handle = self.handle(ask.fh)?;
        let Some(kind) = ask.kind else {
            return Ok(false);
        };
        let (node, table) = (handle.inode.node, &self.locks.table);
        let here = table.handles_in_the_way(node, ask.owner, kind, ask.span()?);
        if !here.is_empty() {
            return Ok(here.iter().all(|fh| self.locks.closing.counts(*fh)));
        }
        let Some(others) = &self.others else {
            return Ok(false);
        };
        let shared_dir = others.peers.shared_dir();
        Ok(self
            .locks
            .closing
            .is_marked_elsewhere(handle.inode.id, shared_dir)?)
    }

    /// Repeats `attempt` until nothing is in its way any more, or something other than a close is. The first
    /// attempt was made by the caller and was refused.
    fn after_closes<T>(
        &self,
        ask: &LockRequest,
        attempt: fn(&Overlay, &LockRequest) -> Result<T>,
        is_refused: fn(&Result<T>) -> bool,
    ) -> Result<T> {
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            // This is checked before the attempt: a lock that is not closing any more was
            // given up before the attempt.
            let closing = began.elapsed() < LONGEST && self.is_closing(ask)?;
            let answer = attempt(self, ask);
            if !closing || !is_refused(&answer) {
                return answer;
            }
            if !executor::may_keep_waiting_for_lock() {
                return Err(FsError::Interrupted);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
}
