//! What all files of a store have in common: the log, the index, the counters.

use crate::error::{Result, StoreError};
use crate::extent::{Extent, Place};
use crate::policy::FileSettings;
use crate::store::Event;
use crate::store::file::File;
use crate::store::index::Index;
use crate::store::local_copies::LocalCopies;
use crate::store::log::Log;
use crate::store::maintain::Unfinished;
use crate::store::subfile::{Subfile, Subfiles};
use crate::types::{FileId, FileNo, Seq};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Called with each event that the drain may have to act on.
pub(crate) type Listener = Box<dyn Fn(Event) + Send + Sync>;

pub(crate) struct StoreState {
    pub log: Log,
    pub index: Index,
    pub files: Mutex<HashMap<FileId, Entry>>,
    pub users: Mutex<HashMap<u32, Arc<AtomicU64>>>,
    /// Dirty periods that have ended since the last checkpoint: the index may still have their
    /// rows, and their last record need not be durable.
    pub ended: Mutex<Vec<Arc<Tally>>>,
    pub listener: RwLock<Option<Listener>>,
    pub undrained: AtomicU64,
    /// The part of `undrained` that is in subfiles.
    pub in_subfiles: AtomicU64,
    pub subfiled: AtomicU64,
    pub canonical: AtomicU64,
    pub published: AtomicU64,
    pub superseded: AtomicU64,
    pub written_through: AtomicU64,
    /// Bytes of ranges that were drained over extents in RocksDB since the last merge. Until the
    /// next merge the counters and the segments still include them.
    pub hidden: AtomicU64,
    /// Number of extents in memory. Above `hot_limit` a merge begins; above twice that, writers
    /// wait.
    pub hot: AtomicU64,
    pub hot_limit: u64,
    /// Recovery had to replay, so a checkpoint is due. Otherwise a daemon that keeps dying early
    /// would replay more each time and never free a segment.
    pub behind: AtomicBool,
    /// The last checkpoint found no room on the store's disk.
    pub starved: AtomicBool,
    pub maintenance: Maintenance,
    pub subfiles: SubfileBook,
    pub local_copies: Arc<LocalCopies>,
    /// What holds for files without a policy of their own.
    pub file_settings: RwLock<FileSettings>,
}

impl std::fmt::Debug for StoreState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreState")
            .field("dir", &self.log.dir())
            .finish_non_exhaustive()
    }
}

/// A file in the registry: kept alive by the store while it is dirty, by its users otherwise.
#[derive(Debug)]
pub(crate) struct Entry {
    pub file: Weak<File>,
    pub pinned: Option<Arc<File>>,
}

/// How the maintenance thread is woken, stopped, and waited for.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    pub state: Mutex<MaintenanceState>,
    pub changed: Condvar,
    /// Held during a checkpoint, so that there is one at a time. Contains what the last one left
    /// when it ran out of room.
    pub merging: Mutex<Option<Unfinished>>,
}

#[derive(Debug, Default)]
pub(crate) struct MaintenanceState {
    pub stop: bool,
    pub kicked: bool,
    pub running: bool,
    pub thread: Option<std::thread::JoinHandle<()>>,
    /// Number of finished rounds, for writers that wait for room in memory.
    pub rounds: u64,
}

/// The subfiles that dirty periods refer to, by number, and those that have yet to be removed.
pub(crate) struct SubfileBook {
    pub known: RwLock<HashMap<u32, Arc<Subfile>>>,
    /// Subfiles that nothing refers to any more, to be removed after the next sync of the log.
    pub retired: Mutex<Vec<Arc<Subfile>>>,
    /// Names of subfiles that layouts need. They stay when the dirty period that made them ends.
    pub published: Mutex<HashSet<String>>,
    pub next: AtomicU32,
    pub opener: RwLock<Option<Arc<dyn Subfiles>>>,
}

impl Default for SubfileBook {
    fn default() -> Self {
        SubfileBook {
            known: RwLock::default(),
            retired: Mutex::default(),
            published: Mutex::default(),
            next: AtomicU32::new(1),
            opener: RwLock::default(),
        }
    }
}

impl SubfileBook {
    pub fn get(&self, no: u32) -> Option<Arc<Subfile>> {
        self.known.read().get(&no).cloned()
    }

    pub fn add(&self, subfile: Arc<Subfile>) {
        self.next.fetch_max(subfile.no() + 1, Ordering::Relaxed);
        self.known.write().entry(subfile.no()).or_insert(subfile);
    }

    /// Names of all subfiles that are in use or have yet to be removed.
    pub fn names(&self) -> HashSet<String> {
        let (known, retired) = (self.known.read(), self.retired.lock());
        let all = known.values().chain(retired.iter());
        all.map(|subfile| subfile.row().name.clone()).collect()
    }

    pub fn retire(&self, no: u32) {
        let subfile = self.known.write().remove(&no);
        let gone = subfile.filter(|s| !self.published.lock().contains(&s.row().name));
        self.retired.lock().extend(gone);
    }
}

/// Counters of what one dirty period holds.
#[derive(Debug)]
pub(crate) struct Tally {
    pub no: FileNo,
    pub id: FileId,
    /// Extents of this dirty period in RocksDB.
    pub cold: AtomicU64,
    /// Payload bytes of its extents, in memory or RocksDB. Exact after a merge; until then it
    /// includes bytes in RocksDB that newer ones in memory hide.
    pub undrained: AtomicU64,
    /// The part of `undrained` that is in subfiles.
    pub in_subfiles: AtomicU64,
    pub user: Arc<AtomicU64>,
}

/// Why payload is no longer needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// Something newer replaced it before it was drained.
    Superseded,
    /// Its bytes are elsewhere: drained, published, or moved within the store.
    Elsewhere,
}

impl StoreState {
    pub fn tally(&self, no: FileNo, id: FileId, uid: u32) -> Arc<Tally> {
        let user = self.users.lock().entry(uid).or_default().clone();
        Arc::new(Tally {
            no,
            id,
            cold: AtomicU64::new(0),
            undrained: AtomicU64::new(0),
            in_subfiles: AtomicU64::new(0),
            user,
        })
    }

    /// Adds an extent to the counters. (Its segment's live bytes were counted when it was appended:
    /// the segment must not look dead in between.)
    pub fn took(&self, tally: &Tally, start: u64, extent: &Extent) {
        let bytes = extent.undrained(start);
        tally.undrained.fetch_add(bytes, Ordering::Relaxed);
        self.undrained.fetch_add(bytes, Ordering::Relaxed);
        match extent.place {
            Place::Log { .. } => {
                tally.user.fetch_add(bytes, Ordering::Relaxed);
            }
            Place::Subfile { unit, .. } => {
                tally.in_subfiles.fetch_add(bytes, Ordering::Relaxed);
                self.in_subfiles.fetch_add(bytes, Ordering::Relaxed);
                if let Some(subfile) = self.subfiles.get(unit.subfile) {
                    subfile.add_live(bytes);
                }
            }
            Place::Zero | Place::Canonical => {}
        }
    }

    /// Takes an extent, or a part of one, that is no longer needed out of the counters.
    pub fn dropped(&self, tally: &Tally, start: u64, extent: &Extent, why: Gone) {
        let bytes = extent.undrained(start);
        match extent.place {
            Place::Log { unit, .. } => {
                if let Some(segment) = self.log.segment(unit.segment) {
                    segment.sub_live(bytes);
                }
                tally.user.fetch_sub(bytes, Ordering::Relaxed);
            }
            Place::Subfile { unit, .. } => {
                tally.in_subfiles.fetch_sub(bytes, Ordering::Relaxed);
                self.in_subfiles.fetch_sub(bytes, Ordering::Relaxed);
                if let Some(subfile) = self.subfiles.get(unit.subfile) {
                    subfile.sub_live(bytes);
                }
            }
            Place::Zero | Place::Canonical => return,
        }
        tally.undrained.fetch_sub(bytes, Ordering::Relaxed);
        self.undrained.fetch_sub(bytes, Ordering::Relaxed);
        if why == Gone::Superseded {
            self.superseded.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub fn tell(&self, event: Event) {
        if let Some(listener) = &*self.listener.read() {
            listener(event);
        }
    }

    pub fn pin(&self, file: &Arc<File>) {
        if let Some(entry) = self.files.lock().get_mut(&file.id()) {
            entry.pinned = Some(file.clone());
        }
    }

    /// Returns the pin to the caller, which drops it outside all locks.
    pub fn unpin(&self, id: FileId) -> Option<Arc<File>> {
        self.files
            .lock()
            .get_mut(&id)
            .and_then(|entry| entry.pinned.take())
    }

    /// Unpins every file: files and this state hold each other.
    pub fn unpin_all(&self) {
        let pins: Vec<_> = self
            .files
            .lock()
            .values_mut()
            .filter_map(|entry| entry.pinned.take())
            .collect();
        drop(pins);
    }

    pub fn all_files(&self) -> Vec<Arc<File>> {
        self.files
            .lock()
            .values()
            .filter_map(|entry| entry.file.upgrade())
            .collect()
    }

    /// Wakes maintenance now rather than at its next round.
    pub fn kick(&self) {
        self.maintenance.state.lock().kicked = true;
        self.maintenance.changed.notify_all();
    }

    /// True when extents in memory exceed twice the limit, so that writers should wait for a merge.
    pub fn memory_is_short(&self) -> bool {
        self.hot.load(Ordering::Relaxed) > 2 * self.hot_limit
    }

    /// True if other programs have filled the disk: nothing is merged, and memory is not given
    /// back, until there is room again.
    pub fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    pub fn note_starved(&self, starved: bool) {
        if self.starved.swap(starved, Ordering::Relaxed) == starved {
            return;
        }
        if starved {
            tracing::warn!(
                dir = %self.log.dir().display(),
                "the disk of the store is full; the store holds what it has, and what does not fit is written through, until there is room on that disk"
            );
        } else {
            tracing::info!("there is room on the disk of the store again");
        }
    }

    /// Waits for one round of maintenance, which merges while memory is short. Returns at once if
    /// no thread does that, or the disk has no room for what a merge writes.
    pub fn wait_for_memory(&self) {
        if self.is_starved() {
            return;
        }
        let mut state = self.maintenance.state.lock();
        state.kicked = true;
        self.maintenance.changed.notify_all();
        let round = state.rounds;
        while state.running && state.rounds == round {
            self.maintenance.changed.wait(&mut state);
        }
    }

    pub fn segment_of(
        &self,
        file: FileId,
        extent: &Extent,
        start: u64,
    ) -> Result<Option<Arc<crate::store::log::segment::Segment>>> {
        let Some((id, _)) = extent.payload(start) else {
            return Ok(None);
        };
        match self.log.segment(id) {
            Some(segment) => Ok(Some(segment)),
            None => Err(StoreError::Unusable(format!(
                "file {file} offset {start}: segment {id} of the log is missing"
            ))),
        }
    }

    pub fn upto_now(&self) -> Seq {
        Seq(self.log.next_seq() - 1)
    }
}
