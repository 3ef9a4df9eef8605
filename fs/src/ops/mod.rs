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

mod alloc;
mod attr;
mod canonical;
mod data;
mod dir;
mod namespace;
mod open;
mod sync;
mod xattr;

#[cfg(test)]
mod tests;

pub use canonical::OpenFile;
pub use open::{Opened, Registrar};
pub use xattr::Xattr;

use crate::backing::identity;
use crate::backing::{Backing, Creds};
use crate::errno::{FsError, Result};
use crate::handle::{DirHandle, Handle};
use crate::inode::{Inode, InodeTable};
use crate::types::{Caller, Entry, Name};
use dashmap::DashMap;
use layout_index::{FileId, Store};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub struct OverlayOptions {
    pub backing: Backing,
    pub store: Arc<Store>,
    /// False writes everything through to the canonical files.
    pub absorb: bool,
    /// How long the kernel may keep names and attributes without asking.
    pub ttl: Duration,
}

/// Called with a node number whose cached attributes the kernel must drop.
pub type Invalidate = Box<dyn Fn(u64) + Send + Sync>;

/// The file system: one backing, one store.
pub struct Overlay {
    backing: Backing,
    store: Arc<Store>,
    absorb: bool,
    ttl: Duration,
    inodes: InodeTable,
    handles: DashMap<u64, Arc<Handle>>,
    dirs: DashMap<u64, Arc<DirHandle>>,
    next: AtomicU64,
    invalidate: OnceLock<Invalidate>,
}

impl Overlay {
    pub fn new(options: OverlayOptions) -> io::Result<Arc<Self>> {
        raise_file_limit()?;
        let OverlayOptions {
            backing,
            store,
            absorb,
            ttl,
        } = options;
        let root = backing.root().try_clone_to_owned()?;
        let inodes = InodeTable::new(root, &backing.root_identity());
        Ok(Arc::new(Self {
            backing,
            store,
            absorb,
            ttl,
            inodes,
            handles: DashMap::new(),
            dirs: DashMap::new(),
            next: AtomicU64::new(1),
            invalidate: OnceLock::new(),
        }))
    }

    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How to tell the kernel that attributes changed behind its back. The first one stays.
    pub fn on_invalidate(&self, invalidate: Invalidate) {
        if self.invalidate.set(invalidate).is_err() {
            tracing::warn!("the overlay is mounted already; the first mount stays informed");
        }
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

    /// Counts one lookup of what `fd` stands for. The caller tells the kernel, or forgets it.
    fn admit(&self, fd: OwnedFd) -> Result<(Arc<Inode>, Entry)> {
        let it = identity::identify(fd.as_fd())?;
        if !self.backing.is_here(it.stat.dev) {
            return Err(FsError::OtherDevice);
        }
        let inode = self.inodes.remember(fd, &it);
        let entry = Entry {
            attr: self.attr_of(&inode, &it.stat),
            generation: inode.generation(),
        };
        Ok((inode, entry))
    }

    /// The kernel gives back `count` lookups of `node`. Never waits: if a node is left whose data
    /// nobody can reach any more, it is handed back for `drop_unreachable`.
    pub fn forget(&self, node: u64, count: u64) -> Option<Unreachable> {
        let inode = self.inodes.forget(node, count)?;
        inode.is_unlinked().then_some(Unreachable(inode.id))
    }

    /// No name, no handle and no lookup is left: what the log holds of the file goes.
    pub fn drop_unreachable(&self, gone: Unreachable) {
        let Unreachable(id) = gone;
        let Some(file) = self.store.lookup(id) else {
            return;
        };
        if !file.is_clean()
            && let Err(error) = file.discard()
        {
            tracing::error!(file = %id, %error, "the data of a removed file could not be dropped");
        }
    }

    /// The drain made this file clean: its descriptor is not needed for that any more.
    pub fn file_clean(&self, id: FileId) {
        let is_dirty = || self.store.lookup(id).is_some_and(|f| !f.is_clean());
        let gone = self.inodes.keep_while(&id, is_dirty);
        drop(gone);
    }

    /// Number of files and directories the kernel or undrained data keep open here.
    pub fn known_inodes(&self) -> usize {
        self.inodes.len()
    }
}

/// A removed file that nothing refers to any more; see [`Overlay::drop_unreachable`].
#[must_use]
#[derive(Debug)]
pub struct Unreachable(FileId);

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

/// Every known inode holds a descriptor, so take as many as the system gives.
fn raise_file_limit() -> io::Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open")
        .ok()
        .and_then(|s| s.trim().parse().ok())
        .unwrap_or(hard)
        .max(hard);
    if soft >= most {
        return Ok(());
    }
    // Only root may pass the hard limit; everyone may reach it.
    if setrlimit(Resource::RLIMIT_NOFILE, most, most).is_err() {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}
