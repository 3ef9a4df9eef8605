//! Closes that may have ended an open file, and with it its flock and open-file-description locks.
//!
//! The kernel says at each close that one copy of a descriptor goes (flush, waited for) and only
//! afterwards, without waiting, that it was the last (release). Between the two the locks are still
//! there, although the program's last close has returned. Giving them up with the flush would take
//! them from other copies of the descriptor, which the flush does not tell of. So the attempt that
//! finds such a lock in its way waits until the release has come, or until it is clear that none
//! follows (docs/decisions/0014-locks-and-the-last-close.md).
//!
//! # What each wait is for
//! - A flush through an open file that holds locks publishes (the release has nothing left to
//!   publish then) and notes the open file here, for [`FOR_RELEASE`].
//! - A release that has arrived is noted for as long as it takes, by the event loop: however busy the
//!   threads are that carry it out, it is known to have come.
//! - An attempt on this node looks here. Another node cannot: for it a byte of a file in the shared
//!   directory is locked while something of the file is noted. That goes with the daemon.
//!
//! # Threads
//! [`Overlay::release_begins`] never waits. Everything else may wait for the shared directory.

use super::{LockRequest, Overlay};
use crate::asker::Asker;
use crate::backing::ofd::{self, LockKind, Span};
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use layout_index::FileId;
use layout_index::commons::Commons;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After the answer to a flush: the kernel queues the release before the program's close returns, so
/// this is for threads that do not get a processor.
const FOR_RELEASE: Duration = Duration::from_secs(1);

/// An attempt waits no longer, whatever else is closed meanwhile: the close that it may count on
/// had returned before it began.
const LONGEST: Duration = Duration::from_secs(2);

/// Between two attempts: doubled each time, from the one to the other.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LAST_PAUSE: Duration = Duration::from_millis(5);

#[derive(Default)]
pub struct Closing {
    /// By handle. Held for map operations only: event loops come here.
    notes: Mutex<HashMap<u64, Note>>,
    /// Held over calls to the shared directory. Before `notes`.
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
    /// A thread takes marks away that have expired.
    swept: bool,
}

impl Note {
    fn counts(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

impl Marks {
    fn file(&mut self, commons: &Commons) -> io::Result<&File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => commons.closing_file()?,
        };
        Ok(self.file.insert(file))
    }
}

impl Closing {
    /// A copy of the descriptor is closed, and what its locks protect is published.
    fn flushed(self: &Arc<Self>, handle: &Handle, commons: Option<&Commons>) -> io::Result<()> {
        let mut marks = self.marks.lock();
        let file = handle.inode.id;
        let marked = match commons {
            Some(commons) => marks.file(commons).and_then(|marks| {
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

    /// The release of the handle has arrived and will be carried out.
    fn has_arrived(&self, fh: u64, file: FileId) {
        let mut notes = self.notes.lock();
        let note = notes.entry(fh).or_insert(Note {
            file,
            until: None,
            marked: false,
        });
        note.until = None;
    }

    /// The handle's locks are free.
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

    /// Another node has noted a close of the file.
    fn is_marked_elsewhere(&self, file: FileId, commons: &Commons) -> io::Result<bool> {
        let mut marks = self.marks.lock();
        let marks = marks.file(commons)?.as_fd();
        Ok(ofd::get(marks, LockKind::Exclusive, byte_of(file))?.is_some())
    }

    /// Takes away what has expired until nothing is left that may.
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

/// Files of the same byte wait for each other's closes, which costs time and nothing else.
fn byte_of(file: FileId) -> Span {
    let byte = (file.ino ^ file.birth) & (ofd::LAST >> 1);
    Span {
        first: byte,
        last: byte,
    }
}

impl Overlay {
    /// A copy of the handle's descriptor is closed, perhaps the last one. Its locks are published.
    pub(in crate::ops) fn may_be_last_close(&self, handle: &Handle) -> Result<()> {
        if self
            .locks
            .table
            .through(handle.inode.node, handle.fh)
            .is_empty()
        {
            return Ok(());
        }
        let published = self.lock_going(handle);
        let commons = self.others.as_ref().map(|others| others.peers.commons());
        if let Err(error) = self.locks.closing.flushed(handle, commons) {
            tracing::warn!(%error, "other nodes were not told of a close: they may find its locks held");
        }
        published
    }

    /// The last copy of the handle's descriptor is closed. Never waits; `release` does the rest.
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

    /// Nothing is in the way of `ask` but locks of open files that may be closed already.
    pub fn is_closing(&self, ask: &LockRequest) -> Result<bool> {
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
        let commons = others.peers.commons();
        Ok(self
            .locks
            .closing
            .is_marked_elsewhere(handle.inode.id, commons)?)
    }

    /// Asks until `attempt` says that nothing is in the way any more, or that has another reason than
    /// a close. The first `attempt` has been in vain.
    pub fn after_closes<T>(
        &self,
        ask: &LockRequest,
        attempt: impl Fn(&Overlay) -> Result<T>,
        in_the_way: impl Fn(&Result<T>) -> bool,
    ) -> Result<T> {
        let began = Instant::now();
        let mut asker = Asker::new(ask.asker.pid);
        let mut pause = FIRST_PAUSE;
        loop {
            // Asked before the attempt: what is not closing then has been given up before it.
            let closing = began.elapsed() < LONGEST && self.is_closing(ask)?;
            let answer = attempt(self);
            if !closing || !in_the_way(&answer) {
                return answer;
            }
            if self.locks.waiters.have_ended() || asker.is_interrupted() {
                return Err(FsError::Interrupted);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
}
