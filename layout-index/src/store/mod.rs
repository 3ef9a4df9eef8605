//! The store as a whole: opening, the registry of files, the counters, closing.

pub mod file;
mod identity;
pub mod index;
mod inspect;
pub mod local_copies;
mod lock;
pub mod log;
mod maintain;
pub mod recovery;
pub mod space;
pub(crate) mod state;
pub mod subfile;
pub mod superblock;

pub use inspect::{InspectedFile, Inspection};

use crate::disk::Disk;
use crate::error::{Result, StoreError};
use crate::policy::FileSettings;
use crate::store::file::File;
use crate::store::index::Index;
use crate::store::local_copies::LocalCopies;
use crate::store::log::Log;
use crate::store::recovery::RecoveryReport;
use crate::store::space::{Space, SpaceBook, SpaceOptions};
use crate::store::state::{Entry, StoreState, SubfileBook};
use crate::store::subfile::{Subfile, Subfiles};
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

/// What `status` says of a store whose disk other programs have filled.
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

/// An event that the drain may have to act on. The listener is called on the thread that caused it,
/// so it must not block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A dirty period began.
    Dirty(FileId),
    /// The last writer closed the file.
    Closed(FileId),
    /// The store is above its high watermark, or its disk is full.
    Pressure,
}

/// Bytes by how far they have come, since this daemon started. Only `undrained` and `in_log` are as
/// of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Taken into the log.
    pub appended: u64,
    /// Of those, bytes that a power failure does not lose.
    pub durable: u64,
    /// Bytes whose canonical copy is synced.
    pub canonical: u64,
    /// Dropped because something newer replaced them (overwrite, truncate, unlink).
    pub superseded: u64,
    /// Written through to the canonical file.
    pub written_through: u64,
    /// In the log or in subfiles, and not in the canonical file.
    pub undrained: u64,
    /// Of those, bytes that are only in the log.
    pub in_log: u64,
    /// Written to subfiles, synced and recorded.
    pub subfiled: u64,
    /// Published to other nodes in layouts. Bytes that went straight to the canonical file do not
    /// count.
    pub published: u64,
}

#[derive(Debug)]
pub struct Store {
    state: Arc<StoreState>,
    dir: PathBuf,
    node: String,
    backing: PathBuf,
    id: u64,
    /// Random number of this opening of the store.
    run: u32,
    /// Names of the subfiles that records named when the store was opened. Those that were already
    /// retired then are removed like any other and not sooner, since the record that retired them
    /// may not be durable.
    found: HashSet<String>,
    /// This opening made the store, or took it up after a release.
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
        let lock = lock::Lock::acquire(&dir)?;
        let (superblock, fresh) = identity::prepare(&*disk, &options)?;
        let log_dir = dir.join("log");
        create_dir_if_missing(&*disk, &log_dir)?;
        // Releases the room that a killed daemon had held for the index, so that the index can be
        // opened on a full disk too.
        log::remove_reserve(&*disk, &log_dir);
        let free = disk
            .free_bytes(&dir)
            .map_err(|e| StoreError::io("statvfs", &dir, e))?;
        let copies = local_copies::find(&disk, dir.join("kept"), superblock.key)?;
        let taken = log_bytes(&*disk, &log_dir)? + copies.bytes();
        let book = SpaceBook::new(&options.space, free + taken);
        let index = Index::open(&dir.join("index"), options.index_memory / 2)?;
        // Makes the names of the log's and the index's directories durable before anything counts
        // on them.
        disk.sync_dir(&dir)
            .map_err(|e| StoreError::io("sync", &dir, e))?;
        let log = Log::open(disk, log_dir, superblock.key, book)?;
        let copies = LocalCopies::new(copies, log.space.clone());
        let state = new_shared(log, index, copies, options.index_memory / 2 / EXTENT_MEMORY);
        let recovered = recovery::recover(&state)
            .inspect(|_| state.log.give_back())
            .and_then(|report| recovery::drop_unlinked(&state).map(|()| report))
            // Files and the state of the store hold each other. Without this the index would stay
            // locked.
            .inspect_err(|_| state.unpin_all());
        let report = recovered?;
        let found = state.subfiles.names();
        let store = Store {
            found,
            state,
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

    pub(crate) fn state(&self) -> &Arc<StoreState> {
        &self.state
    }

    /// Identity of this node to other nodes, for as long as the store exists.
    pub fn id(&self) -> NodeId {
        NodeId(self.id)
    }

    /// Where this copy of the store is, as its node's record says it (`Standing::home`). Empty once
    /// the store is closed.
    pub fn home(&self) -> String {
        let lock = self.lock.lock();
        lock.as_ref().map_or(String::new(), lock::Lock::place)
    }

    /// Random number of this opening of the store.
    pub fn run(&self) -> u32 {
        self.run
    }

    /// The one object for this file; a clean one if the store knows nothing of it.
    pub fn file(&self, id: FileId) -> Arc<File> {
        file_of(&self.state, id)
    }

    /// As [`Store::file`], but only if the file is in use or has undrained data.
    pub fn lookup(&self, id: FileId) -> Option<Arc<File>> {
        self.state
            .files
            .lock()
            .get(&id)
            .and_then(|entry| entry.file.upgrade())
    }

    /// All files in a dirty period.
    pub fn dirty_files(&self) -> Vec<Arc<File>> {
        self.state
            .files
            .lock()
            .values()
            .filter_map(|entry| entry.pinned.clone())
            .collect()
    }

    pub fn space(&self) -> Space {
        let book = &self.state.log.space;
        let segments = self.state.log.segments();
        Space {
            capacity: book.capacity(),
            used: book.used(),
            live: segments.iter().map(|s| s.live()).sum(),
            high_watermark: book.high_watermark(),
            segment: book.segment_size(),
            segments: segments.len(),
            kept: book.copied(),
        }
    }

    /// Local copies of canonical files.
    pub fn local_copies(&self) -> &Arc<LocalCopies> {
        &self.state.local_copies
    }

    /// How long a writer of `file` should wait now. Zero below the high watermark, and for users
    /// within an equal part of it while another user has more than that. `uid` owns the file; it is
    /// needed if the file has nothing in the log yet.
    pub fn write_delay(&self, file: &File, uid: u32) -> Duration {
        let space = &self.state.log.space;
        let delay = space.delay();
        if delay.is_zero() {
            return delay;
        }
        match self.spares(file, Some(uid)) {
            true => Duration::ZERO,
            false => delay,
        }
    }

    /// True if another user keeps the store above its watermark, so that this file need not be
    /// drained because of that. Always false while the store's disk is full.
    pub fn is_spared(&self, file: &File) -> bool {
        !self.is_starved() && self.spares(file, None)
    }

    fn spares(&self, file: &File, uid: Option<u32>) -> bool {
        let users = self.state.users.lock();
        let get = |bytes: &Arc<AtomicU64>| bytes.load(Ordering::Relaxed);
        let of_uid = || uid.and_then(|uid| users.get(&uid)).map_or(0, get);
        let own = file.bytes_of_user().unwrap_or_else(of_uid);
        let space = &self.state.log.space;
        space.is_spared(own, users.values().map(get))
    }

    /// True if other programs have filled the store's disk. The store takes no data until there is
    /// room again.
    pub fn is_starved(&self) -> bool {
        self.state.is_starved() || self.state.log.had_no_room()
    }

    pub fn totals(&self) -> Totals {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let undrained = get(&self.state.undrained);
        Totals {
            appended: get(&self.state.log.appended),
            // Drained bytes are durable too, whether or not the log was ever synced.
            durable: get(&self.state.log.durable).max(get(&self.state.canonical)),
            canonical: get(&self.state.canonical),
            superseded: get(&self.state.superseded),
            written_through: get(&self.state.written_through),
            undrained,
            in_log: undrained.saturating_sub(get(&self.state.in_subfiles)),
            subfiled: get(&self.state.subfiled),
            published: get(&self.state.published),
        }
    }

    /// Why the store takes no more writes, if it takes none: for good, or until its disk has room
    /// again.
    pub fn failure(&self) -> Option<String> {
        let failed = self.state.log.failure().map(|e| e.to_string());
        failed.or_else(|| self.is_starved().then(|| STARVED.into()))
    }

    /// What holds for files without a policy of their own.
    pub fn file_settings(&self) -> FileSettings {
        *self.state.file_settings.read()
    }

    pub fn set_file_settings(&self, settings: FileSettings) {
        *self.state.file_settings.write() = settings;
    }

    pub fn set_listener(&self, listener: Box<dyn Fn(Event) + Send + Sync>) {
        *self.state.listener.write() = Some(listener);
    }

    /// Sets what opens subfiles. Until this is called, bytes in them cannot be read.
    pub fn set_subfiles(&self, subfiles: Arc<dyn Subfiles>) {
        *self.state.subfiles.opener.write() = Some(subfiles);
    }

    /// A number for a new subfile.
    pub fn new_subfile_no(&self) -> u32 {
        self.state.subfiles.next.fetch_add(1, Ordering::Relaxed)
    }

    /// All subfiles that dirty periods refer to.
    pub fn subfiles(&self) -> Vec<Arc<Subfile>> {
        self.state.subfiles.known.read().values().cloned().collect()
    }

    /// Returns the subfiles that may be removed from their targets now: nothing refers to them,
    /// even after a power failure. The caller removes them. If that fails, the next start finds
    /// them as orphans.
    pub fn take_retired_subfiles(&self) -> Result<Vec<Arc<Subfile>>> {
        if self.state.subfiles.retired.lock().is_empty() {
            return Ok(Vec::new());
        }
        let retired = std::mem::take(&mut *self.state.subfiles.retired.lock());
        match self.state.log.sync() {
            Ok(()) => Ok(retired),
            Err(error) => {
                self.state.subfiles.retired.lock().extend(retired);
                Err(error)
            }
        }
    }

    /// Prefix of the names of this store's subfiles; no other store has the same.
    pub fn subfile_prefix(&self) -> String {
        format!("{:016x}-", self.id)
    }

    /// Prefix of the names of subfiles that were made since the store was opened.
    pub fn subfile_run(&self) -> String {
        format!("{}{:08x}-", self.subfile_prefix(), self.run)
    }

    /// True if a file of this name on a target was made by an earlier opening of this store and
    /// nothing refers to it, so that it may be removed.
    pub fn is_orphan(&self, name: &str) -> bool {
        name.starts_with(&self.subfile_prefix())
            && !name.starts_with(&self.subfile_run())
            && !self.found.contains(name)
            && !self.state.subfiles.published.lock().contains(name)
    }

    /// Everything acknowledged is durable when this returns.
    pub fn sync(&self) -> Result<()> {
        self.state.log.sync()
    }

    /// Moves the index's checkpoint to now, then frees segments that nothing needs.
    pub fn checkpoint(&self) -> Result<()> {
        crate::store::maintain::checkpoint(&self.state)
    }

    /// Runs one round of maintenance now, however full the store is: seals idle segments, moves the
    /// checkpoint, and compacts one segment if that is worth it.
    pub fn tidy(&self) -> Result<()> {
        crate::store::maintain::tidy(&self.state)
    }

    /// Runs merges, checkpoints, reclaim and compaction until [`Store::close`], on one thread.
    pub fn start_maintenance(&self) -> Result<()> {
        crate::store::maintain::start(&self.state)
    }

    /// Stops maintenance, makes a checkpoint and releases the lock. Undrained data stays for the
    /// next opening.
    pub fn close(&self) -> Result<()> {
        crate::store::maintain::stop(&self.state);
        *self.state.listener.write() = None;
        let result = match self.state.log.failure() {
            Some(failure) => Err(failure),
            None => match crate::store::maintain::checkpoint(&self.state) {
                // The log has everything, and the next start replays it.
                Err(StoreError::Full) => Ok(()),
                other => other,
            },
        };
        self.state.local_copies.close();
        self.state.log.close();
        drop(self.state.maintenance.merging.lock());
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
    /// Without [`Store::close`] this leaves the same state as a crash: the log has everything.
    fn drop(&mut self) {
        crate::store::maintain::stop(&self.state);
        self.state.unpin_all();
    }
}

pub(crate) fn file_of(state: &Arc<StoreState>, id: FileId) -> Arc<File> {
    let mut files = state.files.lock();
    if let Some(file) = files.get(&id).and_then(|entry| entry.file.upgrade()) {
        return file;
    }
    let file = Arc::new(File::new(id, state.clone()));
    files.insert(
        id,
        Entry {
            file: Arc::downgrade(&file),
            pinned: None,
        },
    );
    file
}

fn new_shared(
    log: Log,
    index: Index,
    local_copies: Arc<LocalCopies>,
    hot_limit: u64,
) -> Arc<StoreState> {
    Arc::new(StoreState {
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
        written_through: AtomicU64::new(0),
        hidden: AtomicU64::new(0),
        hot: AtomicU64::new(0),
        hot_limit: (hot_limit / 3).max(1024),
        behind: AtomicBool::new(false),
        starved: AtomicBool::new(false),
        maintenance: Default::default(),
        subfiles: SubfileBook::default(),
        local_copies,
        file_settings: Default::default(),
    })
}

fn create_dir_if_missing(disk: &dyn Disk, dir: &Path) -> Result<()> {
    match disk.create_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(|e| StoreError::io("create", dir, e)),
    }
}

/// Bytes that the log's segments take already. They are part of the room of which the capacity is a
/// share.
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
