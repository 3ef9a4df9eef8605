//! The store as a whole: opening, the registry of files, the books, closing.

mod identity;
mod inspect;
mod lock;

pub use inspect::{InspectedFile, Inspection};

use crate::disk::Disk;
use crate::error::{Result, StoreError};
use crate::file::File;
use crate::index::Index;
use crate::kept::{self, Kept};
use crate::log::{self, Log};
use crate::peers::Overlap;
use crate::recovery::{self, RecoveryReport};
use crate::shared::{Entry, Shared, SubfileBook};
use crate::space::{Space, SpaceBook, SpaceOptions};
use crate::subfile::{Subfile, Subfiles};
use crate::types::{FileId, NodeId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A generous estimate of what one extent in memory takes, tree nodes included.
const EXTENT_MEMORY: u64 = 112;

/// What `status` says of a store whose disk others have filled.
const STARVED: &str =
    "its disk is full: make room there; until then what does not fit is written through";

#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub dir: PathBuf,
    pub node: String,
    /// Absolute path of the backing, kept in the superblock so that a store is not drained into
    /// another tree.
    pub backing: PathBuf,
    /// Bound on the index's memory, in bytes: half for extents in memory, half for RocksDB.
    pub index_memory: u64,
    pub space: SpaceOptions,
}

/// What the drain wants to hear. Called on the thread that caused it: must not block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A dirty life began.
    Dirty(FileId),
    /// The last writer closed it.
    Closed(FileId),
    /// The store is above its high watermark.
    Pressure,
}

/// Bytes by mark: since this daemon started, except `undrained`, which is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Taken into the log.
    pub appended: u64,
    /// Of those, what a power failure does not lose.
    pub durable: u64,
    /// Whose canonical copy is synced.
    pub canonical: u64,
    /// Dropped because something newer replaced them (overwrite, truncate, unlink).
    pub superseded: u64,
    /// Written through to the canonical file.
    pub through: u64,
    /// In the log or in subfiles, and not in the canonical file.
    pub undrained: u64,
    /// Of those, what is nowhere but in the log.
    pub in_log: u64,
    /// Written to subfiles, synced and recorded.
    pub subfiled: u64,
    /// Told to other nodes, by layouts: what went straight to the canonical file does not count.
    pub published: u64,
}

#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    dir: PathBuf,
    node: String,
    backing: PathBuf,
    id: u64,
    /// Of this opening of the store.
    run: u32,
    /// Names of the subfiles that records spoke of when it was opened. Those that were let go of
    /// may be removed like any other, and no sooner: the record may not be durable.
    found: HashSet<String>,
    /// It was made, or taken up after a release, by this opening.
    fresh: bool,
    lock: Mutex<Option<lock::Lock>>,
}

impl Store {
    /// Locks, checks and recovers the store, creating it in an empty or missing directory.
    pub fn open(
        options: StoreOptions,
        disk: Arc<dyn Disk>,
    ) -> Result<(Arc<Store>, RecoveryReport)> {
        let dir = options.dir.clone();
        create_dir_if_missing(&*disk, &dir)?;
        let lock = lock::Lock::take(&dir)?;
        let (superblock, fresh) = identity::prepare(&*disk, &options)?;
        let log_dir = dir.join("log");
        create_dir_if_missing(&*disk, &log_dir)?;
        // What a daemon that was killed had held for the index is for it now, also to be opened on a full disk.
        log::remove_reserve(&*disk, &log_dir);
        let free = disk
            .free_bytes(&dir)
            .map_err(|e| StoreError::io("statvfs", &dir, e))?;
        let kept = kept::find(&disk, dir.join("kept"), superblock.key)?;
        let taken = log_bytes(&*disk, &log_dir)? + kept.bytes();
        let book = SpaceBook::new(&options.space, free + taken);
        let index = Index::open(&dir.join("index"), options.index_memory / 2)?;
        // The names of the log's and the index's directories, before anything counts on them.
        disk.sync_dir(&dir)
            .map_err(|e| StoreError::io("sync", &dir, e))?;
        let log = Log::open(disk, log_dir, superblock.key, book)?;
        let kept = Kept::new(kept, log.space.clone());
        let shared = new_shared(log, index, kept, options.index_memory / 2 / EXTENT_MEMORY);
        let recovered = recovery::recover(&shared)
            .inspect(|_| shared.log.give_back())
            .and_then(|report| recovery::drop_unlinked(&shared).map(|()| report))
            // Files and store hold each other: without this the index would stay locked.
            .inspect_err(|_| shared.unpin_all());
        let report = recovered?;
        let found = shared.subfiles.names();
        let store = Store {
            found,
            shared,
            dir,
            node: superblock.node,
            backing: superblock.backing,
            id: superblock.id,
            run: random() as u32,
            fresh,
            lock: Mutex::new(Some(lock)),
        };
        Ok((Arc::new(store), report))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Who this node is to the others, for as long as the store is.
    pub fn id(&self) -> NodeId {
        NodeId(self.id)
    }

    /// Where this copy of the store is: see [`crate::commons::Commons::join_at`]. Empty once it is closed.
    pub fn home(&self) -> String {
        let lock = self.lock.lock();
        lock.as_ref().map_or(String::new(), lock::Lock::place)
    }

    /// Of this opening of the store.
    pub fn run(&self) -> u32 {
        self.run
    }

    /// The one object for this file; a clean one if the store knows nothing of it.
    pub fn file(&self, id: FileId) -> Arc<File> {
        file_of(&self.shared, id)
    }

    /// As [`Store::file`], but only if someone holds it or it has undrained data.
    pub fn lookup(&self, id: FileId) -> Option<Arc<File>> {
        self.shared
            .files
            .lock()
            .get(&id)
            .and_then(|entry| entry.file.upgrade())
    }

    /// All files in a dirty life.
    pub fn dirty_files(&self) -> Vec<Arc<File>> {
        self.shared
            .files
            .lock()
            .values()
            .filter_map(|entry| entry.pinned.clone())
            .collect()
    }

    pub fn space(&self) -> Space {
        let book = &self.shared.log.space;
        let segments = self.shared.log.segments();
        Space {
            capacity: book.capacity(),
            used: book.used(),
            live: segments.iter().map(|s| s.live()).sum(),
            high_watermark: book.high_watermark(),
            segment: book.segment_size(),
            segments: segments.len(),
            kept: book.kept(),
        }
    }

    /// Writes of other nodes that overlapped with this node's, without a sync point in between: how many
    /// were found since the start, and in which files.
    pub fn overlaps(&self) -> (u64, Vec<Overlap>) {
        self.shared.overlaps.all()
    }

    /// Copies of canonical files on this node.
    pub fn kept(&self) -> &Arc<Kept> {
        &self.shared.kept
    }

    /// How long a writer of `file` should wait now; zero below the high watermark, and for users whom others
    /// have left less than their part. `uid` owns the file if it has nothing in the log yet.
    pub fn write_delay(&self, file: &File, uid: u32) -> Duration {
        let space = &self.shared.log.space;
        let delay = space.delay();
        if delay.is_zero() {
            return delay;
        }
        match self.spares(file, Some(uid)) {
            true => Duration::ZERO,
            false => delay,
        }
    }

    /// Another user keeps the store above its watermark, so that this file need not be drained for that. Never while the
    /// disk of the store is full.
    pub fn is_spared(&self, file: &File) -> bool {
        !self.is_starved() && self.spares(file, None)
    }

    fn spares(&self, file: &File, uid: Option<u32>) -> bool {
        let users = self.shared.users.lock();
        let get = |bytes: &Arc<AtomicU64>| bytes.load(Ordering::Relaxed);
        let of_uid = || uid.and_then(|uid| users.get(&uid)).map_or(0, get);
        let own = file.bytes_of_user().unwrap_or_else(of_uid);
        let space = &self.shared.log.space;
        space.is_spared(own, users.values().map(get))
    }

    /// Other programs have filled the disk of the store: it takes no data until there is room again.
    pub fn is_starved(&self) -> bool {
        self.shared.is_starved() || self.shared.log.had_no_room()
    }

    pub fn totals(&self) -> Totals {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let undrained = get(&self.shared.undrained);
        Totals {
            appended: get(&self.shared.log.appended),
            // Drained bytes are durable too, whether or not the log was ever synced.
            durable: get(&self.shared.log.durable).max(get(&self.shared.canonical)),
            canonical: get(&self.shared.canonical),
            superseded: get(&self.shared.superseded),
            through: get(&self.shared.through),
            undrained,
            in_log: undrained.saturating_sub(get(&self.shared.in_subfiles)),
            subfiled: get(&self.shared.subfiled),
            published: get(&self.shared.published),
        }
    }

    /// Why the store takes no more writes, if so: for good, or until its disk has room again.
    pub fn failure(&self) -> Option<String> {
        let failed = self.shared.log.failure().map(|e| e.to_string());
        failed.or_else(|| self.is_starved().then(|| STARVED.into()))
    }

    pub fn set_listener(&self, listener: Box<dyn Fn(Event) + Send + Sync>) {
        *self.shared.listener.write() = Some(listener);
    }

    /// Who opens subfiles. Until this is called, bytes in them cannot be read.
    pub fn set_subfiles(&self, subfiles: Arc<dyn Subfiles>) {
        *self.shared.subfiles.opener.write() = Some(subfiles);
    }

    /// A number for a new subfile.
    pub fn new_subfile_no(&self) -> u32 {
        self.shared.subfiles.next.fetch_add(1, Ordering::Relaxed)
    }

    /// All subfiles that lives refer to.
    pub fn subfiles(&self) -> Vec<Arc<Subfile>> {
        self.shared
            .subfiles
            .known
            .read()
            .values()
            .cloned()
            .collect()
    }

    /// Subfiles that may be removed from their OSTs now: nothing refers to them, also not after
    /// a power failure. Whoever gets one from here removes it; if that fails, it is an orphan
    /// that the next start finds.
    pub fn take_retired_subfiles(&self) -> Result<Vec<Arc<Subfile>>> {
        if self.shared.subfiles.retired.lock().is_empty() {
            return Ok(Vec::new());
        }
        let retired = std::mem::take(&mut *self.shared.subfiles.retired.lock());
        match self.shared.log.sync() {
            Ok(()) => Ok(retired),
            Err(error) => {
                self.shared.subfiles.retired.lock().extend(retired);
                Err(error)
            }
        }
    }

    /// What the names of this store's subfiles begin with: no other store has the same.
    pub fn subfile_prefix(&self) -> String {
        format!("{:016x}-", self.id)
    }

    /// What those begin with that were made since the store was opened.
    pub fn subfile_run(&self) -> String {
        format!("{}{:08x}-", self.subfile_prefix(), self.run)
    }

    /// A file of this name on an OST is one that an earlier opening of this store made, and that
    /// nothing refers to: it may be removed.
    pub fn is_orphan(&self, name: &str) -> bool {
        name.starts_with(&self.subfile_prefix())
            && !name.starts_with(&self.subfile_run())
            && !self.found.contains(name)
            && !self.shared.subfiles.published.lock().contains(name)
    }

    /// Everything acknowledged is durable when this returns.
    pub fn sync(&self) -> Result<()> {
        self.shared.log.sync()
    }

    /// Moves the index's checkpoint to now, then frees segments that nothing needs.
    pub fn checkpoint(&self) -> Result<()> {
        crate::maintain::checkpoint(&self.shared)
    }

    /// One turn of maintenance here and now, however full the store is: idle segments are let
    /// go, the checkpoint moves, and one segment is compacted if that is worth it.
    pub fn tidy(&self) -> Result<()> {
        crate::maintain::tidy(&self.shared)
    }

    /// Runs merges, checkpoints, reclaim and compaction until [`Store::close`], on one thread.
    pub fn start_maintenance(&self) -> Result<()> {
        crate::maintain::start(&self.shared)
    }

    /// Stops maintenance, checkpoints, lets go of the lock. Undrained data stays for the next
    /// open.
    pub fn close(&self) -> Result<()> {
        crate::maintain::stop(&self.shared);
        *self.shared.listener.write() = None;
        let result = match self.shared.log.failure() {
            Some(failure) => Err(failure),
            None => match crate::maintain::checkpoint(&self.shared) {
                // The log has everything, and the next start replays it.
                Err(StoreError::Full) => Ok(()),
                other => other,
            },
        };
        self.shared.kept.close();
        self.shared.log.close();
        drop(self.shared.maintenance.merging.lock());
        self.lock.lock().take();
        result
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn node(&self) -> &str {
        &self.node
    }

    pub fn backing(&self) -> &Path {
        &self.backing
    }
}

impl Drop for Store {
    /// Without [`Store::close`] this is what a crash leaves: the log has everything.
    fn drop(&mut self) {
        crate::maintain::stop(&self.shared);
        self.shared.unpin_all();
    }
}

pub(crate) fn file_of(shared: &Arc<Shared>, id: FileId) -> Arc<File> {
    let mut files = shared.files.lock();
    if let Some(file) = files.get(&id).and_then(|entry| entry.file.upgrade()) {
        return file;
    }
    let file = Arc::new(File::new(id, shared.clone()));
    files.insert(
        id,
        Entry {
            file: Arc::downgrade(&file),
            pinned: None,
        },
    );
    file
}

fn new_shared(log: Log, index: Index, kept: Arc<Kept>, hot_limit: u64) -> Arc<Shared> {
    Arc::new(Shared {
        log,
        index,
        files: Mutex::default(),
        users: Mutex::default(),
        ended: Mutex::default(),
        listener: parking_lot::RwLock::new(None),
        undrained: AtomicU64::new(0),
        in_subfiles: AtomicU64::new(0),
        subfiled: AtomicU64::new(0),
        canonical: AtomicU64::new(0),
        published: AtomicU64::new(0),
        superseded: AtomicU64::new(0),
        through: AtomicU64::new(0),
        hidden: AtomicU64::new(0),
        hot: AtomicU64::new(0),
        hot_limit: (hot_limit / 3).max(1024),
        behind: AtomicBool::new(false),
        starved: AtomicBool::new(false),
        maintenance: Default::default(),
        subfiles: SubfileBook::default(),
        kept,
        overlaps: Default::default(),
    })
}

fn create_dir_if_missing(disk: &dyn Disk, dir: &Path) -> Result<()> {
    match disk.create_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(|e| StoreError::io("create", dir, e)),
    }
}

/// What the log's segments take already: part of the room that the capacity is a share of.
fn log_bytes(disk: &dyn Disk, dir: &Path) -> Result<u64> {
    let names = disk.list(dir).map_err(|e| StoreError::io("list", dir, e))?;
    names.iter().try_fold(0, |sum, name| {
        let path = dir.join(name);
        let size = disk.open(&path).and_then(|file| file.size());
        Ok(sum + size.map_err(|e| StoreError::io("stat", path, e))?)
    })
}

pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's per-process random keys are as unpredictable as this needs.
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}
