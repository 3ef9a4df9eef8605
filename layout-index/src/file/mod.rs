//! One file as the store knows it: clean, or in a dirty life with bytes in the log.
//!
//! A file's newest bytes are found in layers: `hot` (extents in memory), over `frozen` (being
//! merged into RocksDB right now), over RocksDB, over the canonical file up to `limit`, over
//! zeros. Moves go downwards only, and a lower layer is complete before the upper one is
//! dropped, so a reader that looks from the top down never misses a byte.
//!
//! Locks, in the order in which they may be taken: `canonical` ranges (held over PFS I/O, never
//! waited for on an event loop), then write ranges (`active`), then `inner` (never held over
//! anything slower than a 64-byte append), then a lane.
//!
//! | who | holds |
//! |---|---|
//! | write | its range |
//! | truncate, zero, begin, discard | all write ranges |
//! | drain of a stripe | the stripe's canonical range |
//! | write-through | its canonical range, then its write range |
//! | trim | all canonical ranges |

mod drain;
mod exclusive;
mod kept;
mod life;
mod plan;
mod publish;
mod read;
mod stripes;
mod subfile;
mod through;
mod watch;
mod write;

pub use exclusive::Exclusive;
pub(crate) use exclusive::{IntroPayload, row_of};
pub(crate) use life::Life;
pub use plan::{LogPiece, Piece, Plan, Source, SubfilePiece};
pub(crate) use publish::Capture;
pub use subfile::Subfiled;
pub use watch::Watch;

use crate::peers::{Append, Seen};
use crate::policy::FilePolicy;
use crate::ranges::{RangeGuard, RangeLocks, RangeSet, Ticket};
use crate::shared::Shared;
use crate::store::Event;
use crate::types::{ByteRange, FileId, Seq, Timestamp};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What the log has to know of a file to find it again after a crash. Given once per dirty life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intro {
    /// Size of the canonical file when the life begins.
    pub size: u64,
    pub mtime: Timestamp,
    pub uid: u32,
    pub gid: u32,
    /// `name_to_handle_at(2)`: handle type (4 bytes, little-endian), then the handle; empty
    /// where the backing has none.
    pub handle: Vec<u8>,
    /// Path below the backing when the life began: a hint, checked against the identity.
    pub path: Vec<u8>,
}

/// What `stat` shows of a file whose newest bytes are (partly) in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtyStat {
    pub size: u64,
    pub mtime: Timestamp,
    /// Bytes that the canonical file does not have, about: some may count twice.
    pub undrained: u64,
}

/// One stripe that has undrained bytes; the range is cut at the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyStripe {
    pub range: ByteRange,
    /// Undrained bytes in it, zeroed ones included.
    pub bytes: u64,
}

impl DirtyStripe {
    /// The whole stripe, up to the end of the file, is undrained.
    pub fn is_full(&self) -> bool {
        self.bytes == self.range.len()
    }
}

/// The undrained pieces (log or zeros) of one stripe, frozen for the drain.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub range: ByteRange,
    /// `pieces` contains everything undrained up to this record.
    pub upto: Seq,
    pub pieces: Vec<Piece>,
}

/// A stripe whose snapshot is in the canonical file and synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    pub range: ByteRange,
    pub upto: Seq,
}

/// Why a file's data is not where it should be; sticks until a drain of it succeeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StickyError {
    pub errno: i32,
    pub message: String,
}

/// Keeps every other writer of the canonical file out of a range.
#[derive(Debug)]
pub struct CanonicalGuard<'a>(RangeGuard<'a>);

impl CanonicalGuard<'_> {
    pub fn range(&self) -> ByteRange {
        self.0.range()
    }
}

/// One file. There is exactly one object per file and store: see [`crate::Store::file`].
#[derive(Debug)]
pub struct File {
    id: FileId,
    shared: Arc<Shared>,
    inner: Mutex<Inner>,
    /// Signalled when a write range is released.
    released: Condvar,
    canonical: RangeLocks,
    writers: AtomicUsize,
    /// `None` until somebody has looked; see [`crate::policy`].
    policy: Mutex<Option<FilePolicy>>,
    /// Shared by whoever moves bytes of the file within the store or into the canonical file, and
    /// held alone over a publication; see `publish`.
    pub(crate) moving: RwLock<()>,
    seen: Mutex<Seen>,
    /// Held over a look at the shared directory.
    pub(crate) looking: Mutex<()>,
    /// Held over an append where other nodes may append too; before all other locks of the file.
    pub(crate) append: Mutex<Append>,
    sync_points: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub life: Option<Life>,
    pub active: RangeSet,
    watched: Vec<watch::Watched>,
    /// How many watches there have been.
    watches: u64,
    error: Option<StickyError>,
    /// How many different failures there have been.
    errors: u64,
    /// Counts changes to the canonical file outside the drain, and up to which it was synced.
    canonical_changes: u64,
    canonical_synced: u64,
    /// The canonical file was cut while no life could say so.
    canonical_cut: bool,
}

impl File {
    pub(crate) fn new(id: FileId, shared: Arc<Shared>) -> File {
        File {
            id,
            shared,
            inner: Mutex::default(),
            released: Condvar::new(),
            canonical: RangeLocks::default(),
            writers: AtomicUsize::new(0),
            policy: Mutex::default(),
            moving: RwLock::default(),
            seen: Mutex::default(),
            looking: Mutex::default(),
            append: Mutex::default(),
            sync_points: AtomicU64::new(0),
        }
    }

    pub fn id(&self) -> FileId {
        self.id
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// What the shared directory says. Never held over I/O, nor with any other lock taken after it.
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }

    /// Nothing of this file is in the log, and nothing of it is being drained.
    pub fn is_clean(&self) -> bool {
        self.inner().life.is_none()
    }

    /// `None` when clean: the canonical file's own attributes hold.
    pub fn stat(&self) -> Option<DirtyStat> {
        let inner = self.inner();
        let life = inner.life.as_ref()?;
        Some(DirtyStat {
            size: life.row.size,
            mtime: life.row.mtime,
            undrained: life.tally.undrained.load(Ordering::Relaxed),
        })
    }

    /// Bytes that the owner of this file has in the log, of all files; `None` when clean.
    pub(crate) fn bytes_of_user(&self) -> Option<u64> {
        let inner = self.inner();
        let life = inner.life.as_ref()?;
        Some(life.tally.user.load(Ordering::Relaxed))
    }

    /// What `stat` shows where the canonical file is not the whole truth: of the current life, or of
    /// what is published.
    pub fn shown(&self) -> Option<DirtyStat> {
        // Before the view is looked at: bytes are in it before the life forgets them.
        let life = self.stat();
        let (view, canonical) = {
            let seen = self.seen();
            (seen.view.clone(), seen.canonical.size)
        };
        match life {
            Some(stat) => Some(DirtyStat {
                undrained: stat.undrained.saturating_add(view.allocated()),
                ..stat
            }),
            None if view.is_empty() => None,
            None => Some(DirtyStat {
                size: view.size(canonical),
                mtime: view.mtime().unwrap_or_default(),
                undrained: view.allocated(),
            }),
        }
    }

    /// Where the canonical file may be found: what the current life knows, or the last one knew.
    pub fn hint(&self) -> Intro {
        self.intro()
            .or_else(|| self.seen().hint.clone())
            .unwrap_or_default()
    }

    /// The introduction of the current life, with the size and time of now.
    pub fn intro(&self) -> Option<Intro> {
        let inner = self.inner();
        let row = &inner.life.as_ref()?.row;
        Some(Intro {
            size: row.size,
            mtime: row.mtime,
            uid: row.uid,
            gid: row.gid,
            handle: row.handle.clone(),
            path: row.path.clone(),
        })
    }

    /// Waits for `range` to be free of writers and takes it.
    fn hold<'a>(&'a self, range: ByteRange) -> (MutexGuard<'a, Inner>, Ticket) {
        let mut inner = self.inner();
        let ticket = inner.active.wait_for(range);
        while !inner.active.try_turn(ticket, self.shared.log.next_seq()) {
            self.released.wait(&mut inner);
        }
        (inner, ticket)
    }

    fn release(&self, mut inner: MutexGuard<'_, Inner>, ticket: Ticket) {
        inner.active.release(ticket);
        if inner.active.is_awaited() {
            self.released.notify_all();
        }
    }

    pub fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::AcqRel);
    }

    /// Also tells the listener when it was the last.
    pub fn remove_writer(&self) {
        if self.writers.fetch_sub(1, Ordering::AcqRel) == 1 && !self.is_clean() {
            self.shared.tell(Event::Closed(self.id));
        }
    }

    pub fn writers(&self) -> usize {
        self.writers.load(Ordering::Acquire)
    }

    /// Where this file is to be treated otherwise than the mount's settings say. Nothing, until
    /// [`File::set_policy`] was called.
    pub fn policy(&self) -> FilePolicy {
        self.policy.lock().unwrap_or_default()
    }

    pub fn has_policy(&self) -> bool {
        self.policy.lock().is_some()
    }

    /// Also tells the drain if that is something new: it may have been waiting by the old one.
    pub fn set_policy(&self, policy: FilePolicy) {
        let before = self.policy.lock().replace(policy);
        if before.is_some_and(|before| before != policy) && !self.is_settled() {
            self.shared.tell(Event::Dirty(self.id));
        }
    }

    /// For an answer that took its time: what somebody has set meanwhile is newer.
    pub fn learn_policy(&self, policy: FilePolicy) {
        self.policy.lock().get_or_insert(policy);
    }

    pub fn set_error(&self, error: StickyError) {
        let mut inner = self.inner();
        // The same failure, tried again, is not told again.
        if inner.error.as_ref() != Some(&error) {
            inner.error = Some(error);
            inner.errors += 1;
        }
    }

    pub fn clear_error(&self) {
        self.inner().error = None;
    }

    pub fn error(&self) -> Option<StickyError> {
        self.inner().error.clone()
    }

    /// The error and its number, if it is newer than the one that `seen` is the number of. Each
    /// open handle keeps count for itself: what one was told, the others have yet to hear.
    pub fn error_after(&self, seen: u64) -> Option<(u64, StickyError)> {
        let inner = self.inner();
        let error = inner.error.clone().filter(|_| inner.errors > seen)?;
        Some((inner.errors, error))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let mut files = self.shared.files.lock();
        if files
            .get(&self.id)
            .is_some_and(|entry| entry.file.strong_count() == 0)
        {
            files.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests;
