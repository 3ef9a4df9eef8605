//! The meaning of each operation.
//!
//! # Consistency
//! Names and attributes are in the backing at once; only the bytes of regular files may be in the log. So
//! every operation here is an operation on the backing, made as the caller, combined with what the store
//! knows of the file: size, modification time and blocks when they are shown, the log's own records when they
//! are changed. A file is *clean* (the canonical file is the whole truth) or *dirty* (the store is). The step
//! from clean to dirty, and any change of a clean file's size or allocation, is made under the store's
//! `exclusive`, so neither can happen during the other.
//!
//! # Crash behaviour
//! An operation is answered when the backing has done it (names, attributes) or the log has it (data,
//! truncation). Nothing is kept here that would be missed after a restart: the tables only mirror what the
//! kernel and open handles refer to.
//!
//! # Threads
//! Everything may be called from any thread and may wait for the backing, unless its documentation says
//! otherwise. The transport decides which thread to use.
//!
//! # Identity
//! The caller's identity is taken for system calls on the backing and for nothing else. The store is never
//! called with it: what the store creates belongs to the daemon, and counts in the daemon's quota.

mod alloc;
mod append;
mod attr;
mod canonical;
mod coherent;
mod data;
mod dir;
mod export;
mod local_copy;
mod locks;
mod namespace;
mod nodes;
mod open;
mod pages;
mod policy;
mod removals;
mod sync;
mod unchanged;
mod xattr;

#[cfg(test)]
pub(crate) mod tests;

pub use crate::backing::ofd::LockKind;
pub use append::MAX_WRITE;
pub use canonical::OpenFile;
pub use data::WriteMode;
pub use local_copy::Prefetched;
pub use locks::{Attempt, Conflict, LockRequest};
pub use nodes::{Close, Fsync, Others, pause};
pub use open::{Opened, Registrar};
pub(crate) use pages::PageDrop;
pub use policy::Explained;
pub use xattr::Xattr;

use crate::backing::{Backing, Creds, Largest, creds};
use crate::errno::{FsError, Result};
use crate::handle::{DirHandle, Handle};
use crate::inode::{Inode, InodeTable, NoHandle, Place};
use crate::policy::Policies;
use crate::requests::executor;
use crate::types::{Caller, Entry, Name};
use dashmap::DashMap;
use layout_index::{FileId, Placement, Store};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub struct OverlayOptions {
    pub backing: Backing,
    pub store: Arc<Store>,
    /// The settings that decide how single files are treated.
    pub policies: Arc<Policies>,
    /// How long the kernel may cache names and attributes.
    pub ttl: Duration,
    /// Set if the backing can be told where to put the bytes of a new file.
    pub placement: Option<Arc<dyn Placement>>,
    /// The other nodes over the same backing, if there can be any.
    pub others: Option<Others>,
    /// Locks are taken in the backing, and hold across nodes. If false they are left to the kernel.
    pub shared_locks: bool,
    pub descriptors: Descriptors,
}

/// Called with a node number whose cached attributes the kernel must drop.
pub type Invalidate = Box<dyn Fn(u64) + Send + Sync>;

/// Called with files that the kernel should forget. Must not wait: it is called within a request, and to
/// forget them the kernel may need locks that the request's caller holds.
pub(crate) type LetGo = Box<dyn Fn(Vec<Place>) + Send + Sync>;

/// The file system: one backing, one store.
pub struct Overlay {
    backing: Backing,
    store: Arc<Store>,
    policies: Arc<Policies>,
    /// Counts changes of directories' attributes.
    directory_policies: AtomicU64,
    complaints: policy::Complaints,
    ttl: Duration,
    placement: Option<Arc<dyn Placement>>,
    others: Option<Others>,
    shared_locks: bool,
    locks: locks::Locks,
    largest: Largest,
    inodes: InodeTable,
    handles: DashMap<u64, Arc<Handle>>,
    dirs: DashMap<u64, Arc<DirHandle>>,
    next: AtomicU64,
    invalidate: OnceLock<Invalidate>,
    let_go: OnceLock<LetGo>,
    page_drop: OnceLock<Box<dyn pages::PageDrop>>,
    refused: append::Refused,
    forgotten: export::Forgotten,
    removals: removals::Removals,
    /// Number of files that the drain has made clean; see `admit_at`.
    drained: AtomicU64,
    told_of_descriptors: AtomicBool,
}

impl Overlay {
    pub fn new(options: OverlayOptions) -> Arc<Self> {
        let OverlayOptions {
            backing,
            store,
            policies,
            ttl,
            placement,
            others,
            shared_locks,
            descriptors,
        } = options;
        let Descriptors { root, limit } = descriptors;
        let inodes = InodeTable::new(root, &backing.root_identity(), limit, backing.reopens());
        Arc::new(Self {
            backing,
            store,
            policies,
            directory_policies: AtomicU64::new(0),
            complaints: policy::Complaints::default(),
            ttl,
            placement,
            others,
            shared_locks,
            locks: locks::Locks::default(),
            largest: Largest::default(),
            inodes,
            handles: DashMap::new(),
            dirs: DashMap::new(),
            next: AtomicU64::new(1),
            invalidate: OnceLock::new(),
            let_go: OnceLock::new(),
            page_drop: OnceLock::new(),
            refused: append::Refused::default(),
            forgotten: export::Forgotten::default(),
            removals: removals::Removals::default(),
            drained: AtomicU64::new(0),
            told_of_descriptors: AtomicBool::new(false),
        })
    }

    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    pub fn store(&self) -> &Arc<Store> {
        debug_assert!(creds::is_own(), "the store is called as another user");
        &self.store
    }

    /// The caller that opened a handle; `None` if there is no such handle.
    pub(crate) fn opener(&self, fh: u64) -> Option<Caller> {
        self.handles.get(&fh).map(|handle| handle.opener)
    }

    pub fn shared_locks(&self) -> bool {
        self.shared_locks
    }

    /// Sets how to tell the kernel that attributes have changed without its knowledge. The first call counts.
    pub fn on_invalidate(&self, invalidate: Invalidate) {
        if self.invalidate.set(invalidate).is_err() {
            tracing::warn!("the overlay is mounted already; the first mount stays informed");
        }
    }

    /// Sets how to ask the kernel to forget files. The first call counts.
    pub(crate) fn on_let_go(&self, let_go: LetGo) {
        if self.let_go.set(let_go).is_err() {
            tracing::warn!("the overlay is mounted already; the first mount stays informed");
        }
    }

    /// Makes the overlay work as if the process could have no more than this many files open.
    pub fn limit_descriptors(&self, descriptors: usize) {
        self.inodes.set_descriptors(descriptors);
    }

    fn inode(&self, node: u64) -> Result<Arc<Inode>> {
        self.inodes.get(node).ok_or(FsError::Stale(node))
    }

    fn directory(&self, node: u64) -> Result<Arc<Inode>> {
        let inode = self.inode(node)?;
        if inode.is_dir() {
            Ok(inode)
        } else {
            Err(io::Error::from_raw_os_error(libc::ENOTDIR).into())
        }
    }

    pub fn handle(&self, fh: u64) -> Result<Arc<Handle>> {
        match self.handles.get(&fh) {
            Some(handle) => Ok(handle.clone()),
            None => Err(FsError::BadHandle(fh)),
        }
    }

    fn dir_handle(&self, fh: u64) -> Result<Arc<DirHandle>> {
        match self.dirs.get(&fh) {
            Some(handle) => Ok(handle.clone()),
            None => Err(FsError::BadHandle(fh)),
        }
    }

    fn new_fh(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts one lookup of the file that `fd` stands for, found as `name` in `dir`. The caller must report
    /// it to the kernel, or undo it. Must not be called while the caller's identity is in force.
    fn admit(
        &self,
        fd: OwnedFd,
        dir: &Inode,
        name: &CStr,
        uid: u32,
    ) -> Result<(Arc<Inode>, Entry)> {
        let place = Place {
            parent: dir.node,
            name: name.to_owned(),
        };
        self.admit_at(fd, Some(place), uid)
    }

    /// The same for a file that was found without a name.
    fn admit_at(&self, fd: OwnedFd, place: Option<Place>, uid: u32) -> Result<(Arc<Inode>, Entry)> {
        let drained = self.drained.load(Ordering::Acquire);
        let it = self.backing.identify(fd.as_fd())?;
        if !self.backing.is_here(it.stat.dev) {
            return Err(FsError::OtherDevice);
        }
        let remembered = self.inodes.remember(fd, &it, place, uid);
        self.let_idle_files_go(uid);
        self.hold_back_lookup(uid);
        let Some(inode) = remembered else {
            return Err(self.too_many_files());
        };
        let drained = drained != self.drained.load(Ordering::Acquire);
        let attr = self
            .attr_of_found(&inode, &it.stat, drained)
            .inspect_err(|_| self.undo_lookup(inode.node))?;
        let entry = Entry {
            attr,
            generation: inode.generation(),
        };
        Ok((inode, entry))
    }

    /// Leaves the kernel time to let idle files go before a walk has all descriptors. A caller that is gone, or for which there
    /// is no place to wait, is answered at once.
    fn hold_back_lookup(&self, uid: u32) {
        let delay = self.inodes.lookup_delay(uid);
        if !delay.is_zero()
            && let Err(end) = executor::sleep(delay)
        {
            tracing::debug!(?end, "a lookup was not held back");
        }
    }

    /// For operations that make a name: they are not begun if there is no room for the new file's node.
    fn need_room(&self, uid: u32) -> Result<()> {
        if self.inodes.has_room(uid) {
            return Ok(());
        }
        // Waiting for room would be in vain: the kernel keeps the directory locked until the request is answered.
        self.let_idle_files_go(uid);
        Err(self.too_many_files())
    }

    fn need_handle(&self, node: u64, uid: u32) -> Result<()> {
        self.inodes.add_handle(node, uid).map_err(|e| match e {
            NoHandle::Unknown => FsError::Stale(node),
            NoHandle::Full => self.too_many_files(),
        })
    }

    /// If descriptors are short, closes those of undrained files that nothing else refers to, and asks the
    /// kernel to forget idle files.
    fn let_idle_files_go(&self, uid: u32) {
        let idle = self.inodes.idle_files(uid);
        if idle.is_empty() {
            return;
        }
        for spare in self.inodes.spare_dirty() {
            self.let_go(Unreferenced(spare));
        }
        if let Some(let_go) = self.let_go.get() {
            let_go(idle);
        }
    }

    fn too_many_files(&self) -> FsError {
        if !self.told_of_descriptors.swap(true, Ordering::Relaxed) {
            tracing::error!(
                known = self.inodes.len(),
                open = self.handles.len() + self.dirs.len(),
                "the kernel and the jobs hold as many files as there are descriptors, or one user as many \
                 as a user may have (half); new ones are refused with ENFILE. Raise the limit of open \
                 files (LimitNOFILE, fs.nr_open)"
            );
        }
        FsError::TooManyFiles
    }

    /// The kernel gives back `count` lookups of `node`. Never waits: if that was the last reference the node
    /// is returned, and the caller passes it to `let_go` where waiting does no harm. Closing the last
    /// descriptor of a removed file makes the backing free it, which may take a while.
    pub fn forget(&self, node: u64, count: u64) -> Option<Unreferenced> {
        self.inodes.forget(node, count).map(Unreferenced)
    }

    /// Must be called when nothing refers to the node any more. If the file has no name either, what the
    /// log holds of it is dropped.
    pub fn let_go(&self, gone: Unreferenced) {
        let Unreferenced(inode) = gone;
        if inode.is_unlinked() {
            self.drop_data(inode.id);
        } else if let Err(error) = self.strip_after_writes(&inode) {
            tracing::warn!(file = %inode.id, %error, "privileges of a written file could not be looked at");
        }
        self.forgotten.remember(&inode);
    }

    fn drop_data(&self, id: FileId) {
        let Some(file) = self.store().lookup(id) else {
            return;
        };
        if !file.is_clean()
            && let Err(error) = file.discard()
        {
            tracing::error!(file = %id, %error, "the data of a removed file could not be dropped");
        }
        file.set_nameless(false);
        match self.others.as_ref().map(|others| others.publisher()) {
            Some(Ok(publisher)) => publisher.drop_published(&file),
            // The next start of the store drops it.
            Some(Err(error)) => tracing::info!(file = %id, %error, "published data of it stays"),
            None => {}
        }
    }

    /// Number of files and directories that the kernel or undrained data keep open here.
    pub fn known_inodes(&self) -> usize {
        self.inodes.len()
    }
}

/// A node that nothing refers to any more; see [`Overlay::let_go`].
#[must_use]
#[derive(Debug)]
pub struct Unreferenced(Arc<Inode>);

/// The directory, name and identity of an operation, checked in one place.
struct EntryAt {
    dir: Arc<Inode>,
    name: Name,
    creds: Creds,
}

impl Overlay {
    /// For operations that make or remove `name`: reserved names are refused.
    fn entry_at(&self, caller: &Caller, parent: u64, name: &std::ffi::OsStr) -> Result<EntryAt> {
        Ok(EntryAt {
            name: Name::parse(name)?.allowed()?,
            dir: self.directory(parent)?,
            creds: Creds::of(caller),
        })
    }
}

/// Descriptors of the process that a file system begins with.
pub struct Descriptors {
    /// The backing's root once more, for the root's inode.
    root: OwnedFd,
    limit: usize,
}

impl Descriptors {
    /// Raises the limit of open files as far as possible, because every known inode holds a descriptor.
    pub fn prepare(backing: &Backing) -> io::Result<Descriptors> {
        Ok(Descriptors {
            root: backing.root().try_clone_to_owned()?,
            limit: raise_file_limit()?,
        })
    }
}

/// Returns the new limit.
fn raise_file_limit() -> io::Result<usize> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open")
        .ok()
        .and_then(|s| s.trim().parse().ok())
        .unwrap_or(hard)
        .max(hard);
    // Only root may exceed the hard limit; every user may reach it.
    if soft < most && setrlimit(Resource::RLIMIT_NOFILE, most, most).is_err() {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(usize::try_from(soft).unwrap_or(usize::MAX))
}
