//! One file as the store knows it: clean, or in a dirty period with bytes in the log.
//!
//! A file's newest bytes are found in layers, from the top: `hot` (extents in memory), `frozen`
//! (extents that are being merged into RocksDB right now), RocksDB, the view of what nodes have
//! published, the canonical file up to `limit`, and zeros. Bytes move downwards only, and a lower
//! layer is complete before the upper one is dropped, so a reader that goes from the top down never
//! misses a byte.
//!
//! Locks, in the order in which they may be taken: `canonical` ranges (held during PFS I/O, so an
//! event loop must never wait for them), then write ranges (`active`), then `inner` (never held
//! over anything slower than a 64-byte append), then a lane.
//!
//! | operation | holds |
//! |---|---|
//! | write | its write range |
//! | truncate, zero, begin, discard | all write ranges |
//! | drain of a stripe | the stripe's canonical range |
//! | write-through | its canonical range, then its write range |
//! | trim | all canonical ranges |

mod dirty_period;
mod drain;
mod exclusive;
mod local_copy;
mod plan;
mod publish;
mod published;
mod read;
mod stripes;
mod subfile;
mod watch;
mod write;
mod write_through;

pub(crate) use dirty_period::DirtyPeriod;
pub use exclusive::Exclusive;
pub(crate) use exclusive::{IntroPayload, row_of};
pub(crate) use plan::published_pieces;
pub use plan::{LogPiece, Piece, Plan, Source, SubfilePiece};
pub(crate) use publish::Capture;
pub use published::{PublishedLayer, PublishedSource};
pub use subfile::Subfiled;
pub use watch::Watch;

use crate::policy::{FilePolicy, FileSettings};
use crate::ranges::{RangeGuard, RangeLocks, RangeSet, Ticket};
use crate::store::Event;
use crate::store::state::StoreState;
use crate::types::{ByteRange, FileId, Seq, Timestamp};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// What the log must know about a file to find it again after a crash. Recorded once for each dirty
/// period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intro {
    /// Size of the canonical file when the dirty period begins.
    pub size: u64,
    pub mtime: Timestamp,
    pub uid: u32,
    pub gid: u32,
    /// `name_to_handle_at(2)`: handle type (4 bytes, little-endian), then the handle; empty
    /// where the backing has none.
    pub handle: Vec<u8>,
    /// Path below the backing when the dirty period began. Only a hint: it is checked against the
    /// identity.
    pub path: Vec<u8>,
}

/// What `stat` shows for a file whose newest bytes are at least partly in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtyStat {
    pub size: u64,
    pub mtime: Timestamp,
    /// Approximate number of bytes that the canonical file does not have; some may be counted
    /// twice.
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
    /// True if the whole stripe, up to the end of the file, is undrained.
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

/// Why a file's data is not where it should be. Kept until a drain of the file succeeds.
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
    state: Arc<StoreState>,
    inner: Mutex<Inner>,
    /// Signalled when a write range is released.
    released: Condvar,
    canonical: RangeLocks,
    writers: AtomicUsize,
    /// `None` until the policy has been looked up; see [`crate::policy`].
    policy: Mutex<Option<FilePolicy>>,
    /// Held for reading while bytes of the file move within the store or into the canonical file,
    /// and for writing during a publication; see `publish`.
    pub(crate) publication_lock: RwLock<()>,
    /// Taken after all other locks of the file.
    published: Mutex<published::Published>,
    /// Where the canonical file is, from the last dirty period or from the header of a layout.
    hint: Mutex<Option<Intro>>,
    sync_points: AtomicU64,
    /// See [`File::companion`].
    companion: OnceLock<Box<dyn Any + Send + Sync>>,
    /// See [`File::set_nameless`].
    nameless: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub period: Option<DirtyPeriod>,
    pub active: RangeSet,
    watched: Vec<watch::Watched>,
    /// Number of watches so far.
    watches: u64,
    error: Option<StickyError>,
    /// Number of different failures so far.
    errors: u64,
    /// Number of changes to the canonical file outside the drain, and how many of them are synced.
    canonical_changes: u64,
    canonical_synced: u64,
    /// The canonical file was cut while the file was clean, so no dirty period has recorded the
    /// cut.
    canonical_cut: bool,
}

impl File {
    pub(crate) fn new(id: FileId, state: Arc<StoreState>) -> File {
        File {
            id,
            state,
            inner: Mutex::default(),
            released: Condvar::new(),
            canonical: RangeLocks::default(),
            writers: AtomicUsize::new(0),
            policy: Mutex::default(),
            publication_lock: RwLock::default(),
            published: Mutex::default(),
            hint: Mutex::default(),
            sync_points: AtomicU64::new(0),
            companion: OnceLock::new(),
            nameless: AtomicBool::new(false),
        }
    }

    pub fn id(&self) -> FileId {
        self.id
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// State that another part of the program keeps with this file, for as long as this object
    /// exists. The store does not look into it.
    pub(crate) fn companion<T: Any + Default + Send + Sync>(&self) -> &T {
        let companion = self.companion.get_or_init(|| Box::new(T::default()));
        let companion = companion.downcast_ref();
        companion.expect("all files have the same kind of companion")
    }

    /// True if nothing of this file is in the log and nothing of it is being drained.
    pub fn is_clean(&self) -> bool {
        self.inner().period.is_none()
    }

    /// Returns `None` when the file is clean; the canonical file's own attributes are then valid.
    pub fn stat(&self) -> Option<DirtyStat> {
        let inner = self.inner();
        let period = inner.period.as_ref()?;
        Some(DirtyStat {
            size: period.row.size,
            mtime: period.row.mtime,
            undrained: period.tally.undrained.load(Ordering::Relaxed),
        })
    }

    /// Bytes that the owner of this file has in the log, in all files. `None` when this file is
    /// clean.
    pub(crate) fn bytes_of_user(&self) -> Option<u64> {
        let inner = self.inner();
        let period = inner.period.as_ref()?;
        Some(period.tally.user.load(Ordering::Relaxed))
    }

    /// What `stat` shows while the canonical file is not up to date: from the current dirty period,
    /// or from what is published. `None` when the canonical file is up to date.
    pub fn shown(&self) -> Option<DirtyStat> {
        // Read before the layer below: bytes are there before the store forgets them.
        let period = self.stat();
        let published = self.published_layer();
        let allocated = published.as_ref().map_or(0, |layer| layer.allocated());
        match period {
            Some(stat) => Some(DirtyStat {
                undrained: stat.undrained.saturating_add(allocated),
                ..stat
            }),
            None => published.map(|layer| DirtyStat {
                size: layer.size(),
                mtime: layer.mtime().unwrap_or_default(),
                undrained: allocated,
            }),
        }
    }

    /// The introduction of the current dirty period, with the current size and modification time.
    pub fn intro(&self) -> Option<Intro> {
        let inner = self.inner();
        let row = &inner.period.as_ref()?.row;
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
        while !inner.active.try_turn(ticket, self.state.log.next_seq()) {
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

    /// Tells the listener when this was the last writer and the file is dirty.
    pub fn remove_writer(&self) {
        if self.writers.fetch_sub(1, Ordering::AcqRel) == 1 && !self.is_clean() {
            self.state.tell(Event::Closed(self.id));
        }
    }

    pub fn writers(&self) -> usize {
        self.writers.load(Ordering::Acquire)
    }

    /// Settings of this file that differ from the mount's. Empty until [`File::set_policy`] or
    /// [`File::learn_policy`] was called.
    pub fn policy(&self) -> FilePolicy {
        self.policy.lock().unwrap_or_default()
    }

    /// What holds for this file: its policy, and the mount's settings where the policy has none.
    pub fn settings(&self) -> FileSettings {
        let mount = *self.state.file_settings.read();
        mount.with(&self.policy())
    }

    pub fn has_policy(&self) -> bool {
        self.policy.lock().is_some()
    }

    /// Also tells the drain if the policy has changed, since the drain may be waiting because of
    /// the old one.
    pub fn set_policy(&self, policy: FilePolicy) {
        let before = self.policy.lock().replace(policy);
        if before.is_some_and(|before| before != policy) && !self.is_settled() {
            self.state.tell(Event::Dirty(self.id));
        }
    }

    /// Sets a policy that took time to look up, unless one was set meanwhile: that one is newer.
    pub fn learn_policy(&self, policy: FilePolicy) {
        self.policy.lock().get_or_insert(policy);
    }

    pub fn set_error(&self, error: StickyError) {
        let mut inner = self.inner();
        // A retry that fails in the same way is not reported again.
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

    /// Returns the error and its number, if it is newer than error number `seen`. Each open handle
    /// keeps its own count, so that every handle is told of the error once.
    pub fn error_after(&self, seen: u64) -> Option<(u64, StickyError)> {
        let inner = self.inner();
        let error = inner.error.clone().filter(|_| inner.errors > seen)?;
        Some((inner.errors, error))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let mut files = self.state.files.lock();
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
