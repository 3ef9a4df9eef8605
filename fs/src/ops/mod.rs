//! What each operation means.
//!
//! # Consistency
//! Names and attributes live in the backing at once; only the bytes of regular files may be in
//! the log. So every operation here is one on the backing, done as the caller, corrected by what
//! the store knows of the file: size, modification time and blocks when shown, the log's own
//! records when changed. A file is *clean* (the canonical file is the whole truth) or *dirty*
//! (the store is). Going from clean to dirty, and any change of a clean file's size or allocation,
//! holds the store's `exclusive`, so neither can slip into the other.
//!
//! # Crash behaviour
//! An operation is answered when the backing has done it (names, attributes) or the log has it
//! (data, truncation). Nothing is kept here that a restart would miss: the tables only mirror what
//! the kernel and open handles refer to.
//!
//! # Threads
//! Everything may be called from any thread and, unless it says otherwise, may wait for the
//! backing. The transport decides where.
//!
//! # Identity
//! The caller's identity is taken for system calls on the backing and for nothing else. The store
//! is never called with it: what the store creates belongs to the daemon, and counts as its.

mod alloc;
mod append;
mod attr;
mod canonical;
mod coherent;
mod data;
mod dir;
mod export;
mod kept;
mod locks;
mod namespace;
mod nodes;
mod open;
mod pages;
mod policy;
mod sync;
mod unchanged;
mod xattr;

#[cfg(test)]
mod tests;

pub use crate::backing::ofd::LockKind;
pub use append::MAX_WRITE;
pub use canonical::OpenFile;
pub use kept::Prefetched;
pub use locks::{Conflict, LockRequest};
pub use nodes::{Close, Fsync, Others, Publisher};
pub use open::{Opened, Registrar};
pub(crate) use pages::PageDrop;
pub use policy::Explained;
pub use xattr::Xattr;

use crate::backing::{Backing, Creds, Largest, creds};
use crate::errno::{FsError, Result};
use crate::handle::{DirHandle, Handle};
use crate::inode::{Inode, InodeTable, NoHandle, Place};
use crate::places::Places;
use crate::policy::Policies;
use crate::types::{Caller, Entry, Name};
use dashmap::DashMap;
use layout_index::policy::Absorb;
use layout_index::{FileId, Store};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub struct OverlayOptions {
    pub backing: Backing,
    pub store: Arc<Store>,
    /// Where writes go, of files that have no policy of their own.
    pub absorb: Absorb,
    /// Who else decides about files.
    pub policies: Arc<Policies>,
    /// How long the kernel may keep names and attributes without asking.
    pub ttl: Duration,
    /// Where the file system below can be told where a new file's bytes go.
    pub placement: Option<Arc<dyn Placement>>,
    /// Other nodes over the same backing, if there can be some.
    pub others: Option<Others>,
    /// Locks are the backing's, and hold across nodes; false leaves them to the kernel.
    pub shared_locks: bool,
}

/// Chooses where the bytes of new canonical files go.
pub trait Placement: Send + Sync {
    /// Flags for the creation, so that the place can still be chosen.
    fn create_flags(&self) -> i32;
    /// Called with a file that was made just now, as the user who made it. Where this fails the
    /// file is wherever the file system below puts it, which is never an error.
    fn place(&self, file: BorrowedFd<'_>);
}

/// Called with a node number whose cached attributes the kernel must drop.
pub type Invalidate = Box<dyn Fn(u64) + Send + Sync>;

/// Called with files that the kernel should let go of. Must not wait: it is called within a
/// request, and the kernel may want locks for this that the request's caller holds.
pub(crate) type LetGo = Box<dyn Fn(Vec<Place>) + Send + Sync>;

/// The file system: one backing, one store.
pub struct Overlay {
    backing: Backing,
    store: Arc<Store>,
    absorb: Absorb,
    policies: Arc<Policies>,
    /// Counts changes of directories' attributes.
    directory_policies: AtomicU64,
    complaints: policy::Complaints,
    ttl: Duration,
    placement: Option<Arc<dyn Placement>>,
    others: Option<Others>,
    shared_locks: bool,
    locks: locks::Locks,
    places: Arc<Places>,
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
    /// Files that the drain has made clean; see `admit`.
    drained: AtomicU64,
    told_of_descriptors: AtomicBool,
}

impl Overlay {
    pub fn new(options: OverlayOptions) -> io::Result<Arc<Self>> {
        let descriptors = raise_file_limit()?;
        let OverlayOptions {
            backing,
            store,
            absorb,
            policies,
            ttl,
            placement,
            others,
            shared_locks,
        } = options;
        let root = backing.root().try_clone_to_owned()?;
        let inodes = InodeTable::new(root, &backing.root_identity(), descriptors);
        inodes.set_reopens(backing.reopens());
        Ok(Arc::new(Self {
            backing,
            store,
            absorb,
            policies,
            directory_policies: AtomicU64::new(0),
            complaints: policy::Complaints::default(),
            ttl,
            placement,
            others,
            shared_locks,
            locks: locks::Locks::default(),
            places: Arc::default(),
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
            drained: AtomicU64::new(0),
            told_of_descriptors: AtomicBool::new(false),
        }))
    }

    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    pub fn store(&self) -> &Arc<Store> {
        debug_assert!(creds::is_own(), "the store is called as somebody else");
        &self.store
    }

    /// Where requests run that may wait.
    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// The user that opened a handle; `None` for one that no caller has.
    pub(crate) fn opener(&self, fh: u64) -> Option<Caller> {
        self.handles.get(&fh).map(|handle| handle.opener)
    }

    pub fn shared_locks(&self) -> bool {
        self.shared_locks
    }

    /// How to tell the kernel that attributes changed behind its back. The first one stays.
    pub fn on_invalidate(&self, invalidate: Invalidate) {
        if self.invalidate.set(invalidate).is_err() {
            tracing::warn!("the overlay is mounted already; the first mount stays informed");
        }
    }

    /// How to ask the kernel to let files go. The first one stays.
    pub(crate) fn on_let_go(&self, let_go: LetGo) {
        if self.let_go.set(let_go).is_err() {
            tracing::warn!("the overlay is mounted already; the first mount stays informed");
        }
    }

    /// As if the process could have no more than this many files open.
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

    /// Counts one lookup of what `fd` stands for, found as `name` in `dir`. The caller tells the
    /// kernel, or forgets it. Not with the caller's identity in force.
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

    /// The same for what was found without a name.
    fn admit_at(&self, fd: OwnedFd, place: Option<Place>, uid: u32) -> Result<(Arc<Inode>, Entry)> {
        let drained = self.drained.load(Ordering::Acquire);
        let it = self.backing.identify(fd.as_fd())?;
        if !self.backing.is_here(it.stat.dev) {
            return Err(FsError::OtherDevice);
        }
        let remembered = self.inodes.remember(fd, &it, place, uid);
        self.let_idle_files_go(uid);
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

    /// For operations that make a name: they are not begun if the new file could not be known.
    fn need_room(&self, uid: u32) -> Result<()> {
        if self.inodes.has_room(uid) {
            return Ok(());
        }
        // To wait for it would be in vain: the kernel has the directory locked until it is answered.
        self.let_idle_files_go(uid);
        Err(self.too_many_files())
    }

    fn need_handle(&self, node: u64, uid: u32) -> Result<()> {
        self.inodes.add_handle(node, uid).map_err(|e| match e {
            NoHandle::Unknown => FsError::Stale(node),
            NoHandle::Full => self.too_many_files(),
        })
    }

    /// When descriptors are short: those of undrained files that nothing else refers to are closed, and
    /// the kernel is asked for idle ones.
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

    /// The kernel gives back `count` lookups of `node`. Never waits: when that was the last
    /// reference, the node is handed back, to be let go of where waiting is no harm. Closing the
    /// last descriptor of a removed file makes the backing free it, which may take its time.
    pub fn forget(&self, node: u64, count: u64) -> Option<Unreferenced> {
        self.inodes.forget(node, count).map(Unreferenced)
    }

    /// Nothing refers to the node any more. If it has no name either, what the log holds of the
    /// file goes.
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
    }

    /// The drain made this file clean: its descriptor is not needed for that any more. Called
    /// while the drain still holds the file.
    pub fn file_clean(&self, id: FileId) {
        self.drained.fetch_add(1, Ordering::AcqRel);
        if let Some(inode) = self.inodes.get_by_id(&id)
            && let Err(error) = self.strip_after_writes(&inode)
        {
            tracing::warn!(file = %id, %error, "privileges of a drained file could not be looked at");
        }
        let is_dirty = || self.store().lookup(id).is_some_and(|f| !f.is_settled());
        if let Some(gone) = self.inodes.keep_while(&id, is_dirty) {
            self.let_go(Unreferenced(gone));
        }
    }

    /// Number of files and directories the kernel or undrained data keep open here.
    pub fn known_inodes(&self) -> usize {
        self.inodes.len()
    }
}

/// A node that nothing refers to any more; see [`Overlay::let_go`].
#[must_use]
#[derive(Debug)]
pub struct Unreferenced(Arc<Inode>);

/// An operation's directory, name and identity, checked in one place.
struct At {
    dir: Arc<Inode>,
    name: Name,
    creds: Creds,
}

impl Overlay {
    /// For operations that make or remove `name`: reserved names are refused.
    fn at(&self, caller: &Caller, parent: u64, name: &std::ffi::OsStr) -> Result<At> {
        Ok(At {
            name: Name::parse(name)?.allowed()?,
            dir: self.directory(parent)?,
            creds: Creds::of(caller),
        })
    }
}

/// Every known inode holds a descriptor, so take as many as the system gives. Returns how many.
fn raise_file_limit() -> io::Result<usize> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open")
        .ok()
        .and_then(|s| s.trim().parse().ok())
        .unwrap_or(hard)
        .max(hard);
    // Only root may pass the hard limit; everyone may reach it.
    if soft < most && setrlimit(Resource::RLIMIT_NOFILE, most, most).is_err() {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(usize::try_from(soft).unwrap_or(usize::MAX))
}
