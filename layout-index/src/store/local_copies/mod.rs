//! Local copies: bytes of canonical files on the node's own disk, to be read there again.
//!
//! A copy is only a cache. It is never written to the backing, losing it loses nothing, and any
//! doubt about it ends it. The extent index and the log know nothing of it. Reasons for the design:
//! `docs/decisions/0011-kept-copies.md`; the files: `docs/FORMAT.md`.
//!
//! # Consistency
//! A copy is of one version of the canonical file ([`Version`]: size and times). It is read only
//! while the file is clean and nothing of it is published, and only after a sync point (open, lock,
//! fsync) has found the canonical file to be of that version. Writing through, cutting, and seeing
//! something published all end the copy; the beginning of a dirty period takes it out of use. So it
//! never shows older bytes than the canonical file would have shown at the last sync point.
//!
//! # How it is filled
//! - The drain (`keep = true`) writes to the copy what it writes to the canonical file, while no
//!   other writer may write the canonical file. When the file settles, the version is noted.
//! - `forebay prefetch` reads the canonical file, whose version is noted before.
//!
//! # Crash behaviour
//! A sidecar is written after its bytes are synced, under a temporary name, and renamed
//! (`Copy::save`). A start removes data without a sidecar, and sidecars that are not valid.
//!
//! # Room
//! Copies take what the log leaves ([`crate::store::space::SpaceBook`]), less a segment for each lane.
//! When the log needs it, those that were not opened for the longest time go first.

mod copy;
mod cover;
mod filling;
mod reading;
mod room;
mod sidecar;
mod start;
mod version;

pub use copy::Copy;
pub use cover::Cover;
pub use filling::version_after_change;
pub(crate) use start::{Found, find};
pub use version::{Moment, TICK, Version};

use crate::disk::Disk;
use crate::store::space::SpaceBook;
use crate::types::FileId;
use copy::Phase;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

const SIDECAR: &str = "ranges";
const TEMPORARY: &str = "new";

/// Number and size of the local copies that there are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalCopyTotals {
    pub files: usize,
    pub bytes: u64,
}

/// The log and newer copies have all the room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// Which copies may be dropped to make room for another one.
#[derive(Clone, Copy, Debug)]
pub enum Evict {
    /// Any copy, the one unused for the longest time first.
    Oldest,
    /// Only copies that have not been used since then.
    UnusedSince(Instant),
}

/// Where the copies are stored.
#[derive(Debug)]
pub(crate) struct Home {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    key: u32,
    space: Arc<SpaceBook>,
    closed: AtomicBool,
    /// Number of data files that are open.
    open: AtomicUsize,
}

impl Home {
    fn data(&self, id: FileId, tag: u64) -> PathBuf {
        self.dir.join(format!("{id}-{tag:016x}"))
    }

    fn sidecar(&self, id: FileId, tag: u64) -> PathBuf {
        self.dir.join(format!("{id}-{tag:016x}.{SIDECAR}"))
    }

    fn temporary(&self, id: FileId, tag: u64) -> PathBuf {
        self.dir.join(format!("{id}-{tag:016x}.{TEMPORARY}"))
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// All local copies of a store.
#[derive(Debug)]
pub struct LocalCopies {
    home: Arc<Home>,
    copies: Mutex<HashMap<FileId, Arc<Copy>>>,
    /// Number of copies, to be read without the lock.
    count: AtomicUsize,
}

impl LocalCopies {
    pub(crate) fn new(found: Found, space: Arc<SpaceBook>) -> Arc<LocalCopies> {
        let home = Arc::new(Home {
            disk: found.disk,
            dir: found.dir,
            key: found.key,
            space,
            closed: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        });
        let copies: HashMap<_, _> = found
            .copies
            .into_iter()
            .map(|s| {
                home.space.add_copied(s.cover.bytes());
                let phase = Phase::Valid(s.version);
                let copy = Copy::new(&home, s.id, s.tag, None, phase, s.cover);
                (s.id, Arc::new(copy))
            })
            .collect();
        let copies = Arc::new(LocalCopies {
            count: AtomicUsize::new(copies.len()),
            home,
            copies: Mutex::new(copies),
        });
        let weak = Arc::downgrade(&copies);
        copies.home.space.on_shortage(Box::new(move || {
            if let Some(copies) = weak.upgrade() {
                copies.give_way();
            }
        }));
        copies.give_way();
        copies
    }

    /// The live copy of a file, in whatever phase.
    fn get(&self, id: FileId) -> Option<Arc<Copy>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.copies
            .lock()
            .get(&id)
            .filter(|c| !c.is_dead())
            .cloned()
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// True if there is a copy of this file, in whatever phase.
    pub fn has(&self, id: FileId) -> bool {
        self.get(id).is_some()
    }

    /// True if the file has a valid copy with all of its bytes. Whether a sync point has checked
    /// the version is not asked here.
    pub fn is_full(&self, id: FileId) -> bool {
        self.get(id).is_some_and(|c| c.is_full())
    }

    /// Makes a new, empty copy in place of whatever there was.
    fn create(&self, id: FileId, phase: Phase) -> Option<Arc<Copy>> {
        self.forget(id);
        if self.home.is_closed() {
            return None;
        }
        let tag = crate::store::random();
        let disk = &self.home.disk;
        let path = self.home.data(id, tag);
        let made = match disk.create(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                match disk.create_dir(&self.home.dir) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
                    _ => disk.create(&path),
                }
            }
            other => other,
        };
        let data = match made {
            Ok(data) => data,
            Err(error) => {
                tracing::warn!(file = %id, %error, "no copy of it can be kept");
                return None;
            }
        };
        let copy = Arc::new(Copy::new(
            &self.home,
            id,
            tag,
            Some(data),
            phase,
            Cover::default(),
        ));
        let mut copies = self.copies.lock();
        if let Some(other) = copies.insert(id, copy.clone()) {
            other.kill();
        }
        self.count.store(copies.len(), Ordering::Release);
        Some(copy)
    }

    fn remove(&self, copy: &Arc<Copy>) {
        copy.kill();
        let mut copies = self.copies.lock();
        if copies.get(&copy.id).is_some_and(|c| Arc::ptr_eq(c, copy)) {
            copies.remove(&copy.id);
        }
        self.count.store(copies.len(), Ordering::Release);
    }

    /// Ends the copy of a file, in whatever phase it is.
    pub fn forget(&self, id: FileId) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let copy = self.copies.lock().get(&id).cloned();
        if let Some(copy) = copy {
            self.remove(&copy);
        }
    }

    /// Ends the copy if it is valid, because something is published over the canonical file. A copy
    /// that the drain is filling stays: it is not read.
    pub(crate) fn forget_valid(&self, id: FileId) {
        if let Some(copy) = self.get(id).filter(|c| c.version().is_some()) {
            self.remove(&copy);
        }
    }

    /// Returns a copy of this version to read into: the one that exists, or a new one.
    pub fn stage(&self, id: FileId, version: Version) -> Option<Arc<Copy>> {
        match self.get(id) {
            Some(copy) if copy.version() == Some(version) => Some(copy),
            _ => self.create(id, Phase::Valid(version)),
        }
    }

    /// Makes a copy survive the daemon. Waits for the store's disk.
    pub fn save(&self, copy: &Arc<Copy>) {
        if let Err(error) = copy.save() {
            copy.fail("saving", &error);
        }
    }

    pub fn drop_copy(&self, copy: &Arc<Copy>) {
        self.remove(copy);
    }

    pub fn totals(&self) -> LocalCopyTotals {
        let copies = self.copies.lock();
        let live = copies.values().filter(|c| !c.is_dead());
        live.fold(LocalCopyTotals::default(), |sum, c| LocalCopyTotals {
            files: sum.files + 1,
            bytes: sum.bytes + c.bytes(),
        })
    }

    /// Saves all copies and removes no files from here on: the next daemon may have the store.
    pub(crate) fn close(&self) {
        let copies: Vec<_> = self.copies.lock().values().cloned().collect();
        copies.iter().for_each(|copy| self.save(copy));
        self.home.closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
