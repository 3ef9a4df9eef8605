//! The nodes that the kernel, an open handle or undrained data still refer to.
//!
//! A node number is the backing's inode number, so users see the numbers they know. Each node holds an `O_PATH`
//! descriptor: while the node exists its number cannot go to another file, a rename does not lose it, and an
//! operation on it never walks a path. There is one `Inode` for each file: the file's I/O mode (direct or
//! passthrough) is decided under the lock of its `Inode`, and two objects could decide differently.
//!
//! A node is removed when nothing refers to it: no lookup of the kernel (`forget`), no handle, no undrained
//! data. A dirty file keeps its descriptor so that the drain finds it after a rename, but not if an eighth of
//! the descriptors is in use, or a quarter where files cannot be opened by handle.
//!
//! Descriptors are limited, and the kernel keeps a looked-up entry as long as it has memory. So new nodes are
//! refused before the last descriptors are taken, which the store and the drain need, and long before that
//! the kernel is asked to forget idle files. No user gets all descriptors (`shares`).

mod changed;
pub mod pages;
mod shares;
mod size;
mod table;

use changed::Changed;
use pages::Pages;
use size::KernelSize;
pub use table::{InodeTable, NoHandle, Place};

use crate::backing::identity::Identified;
use crate::policy::above::Climbed;
use crate::policy::learned::Learned;
use layout_index::FileId;
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// A file that is registered with the kernel for passthrough; opaque to everything but the transport.
pub type Registered = Arc<dyn Any + Send + Sync>;

/// How the open handles of a file do their I/O. The kernel allows only one mode at a time.
#[derive(Default)]
pub enum IoMode {
    #[default]
    Closed,
    /// The kernel sends reads and writes here. Holds the number of open handles.
    Direct(usize),
    /// The kernel reads and writes the canonical file itself.
    Passthrough {
        handles: usize,
        /// A writer has waited in vain for the readers to close; the next writer need not wait.
        settled: bool,
        registered: Registered,
    },
}

/// The file has no setuid or setgid bit, as far as this mount knows.
pub const NO_SETID: u8 = 1;
/// The file has no `security.capability` attribute, as far as this mount knows.
pub const NO_CAPS: u8 = 2;

pub struct Inode {
    pub node: u64,
    pub id: FileId,
    /// `S_IFMT` bits.
    pub kind: u32,
    fd: OwnedFd,
    /// See [`IoMode`]. Locked while an open or a release decides the mode.
    pub io: Mutex<IoMode>,
    /// Signalled when `io` becomes `Closed`.
    pub io_closed: Condvar,
    /// Those of `NO_SETID | NO_CAPS` that a write has found to hold. Cleared by anything that may bring privileges
    /// back.
    unprivileged: AtomicU8,
    /// Those of `NO_SETID | NO_CAPS` that writers had to ensure since the last check: see [`Inode::take_written`].
    written: AtomicU8,
    /// Incremented with each change that may bring privileges back, so that a check in progress does not
    /// record an outdated result.
    privilege_changes: AtomicU64,
    /// The last name is gone: what the log holds of the file is dropped with the last reference.
    unlinked: AtomicBool,
    /// The backing has made the existence of this file durable since this node was created.
    synced: AtomicBool,
    /// The ctime that was shown last.
    pub changed: Changed,
    /// For a directory: the directories at and above it that have policies for new files.
    pub climbed: Mutex<Option<Climbed>>,
    /// For a file: what its attributes said when an open last listed them.
    pub learned: Mutex<Option<Learned>>,
    /// For a file: the pages that the kernel keeps for mappings.
    pub pages: Pages,
    /// For a file: the size that the kernel believes it to have.
    pub kernel_size: KernelSize,
    /// See [`Inode::keep_no_attributes`].
    unkept: Mutex<bool>,
}

impl Inode {
    fn new(node: u64, fd: OwnedFd, it: &Identified) -> Self {
        Self {
            node,
            id: it.id,
            kind: it.stat.kind(),
            fd,
            io: Mutex::default(),
            io_closed: Condvar::new(),
            unprivileged: AtomicU8::new(0),
            written: AtomicU8::new(0),
            privilege_changes: AtomicU64::new(0),
            unlinked: AtomicBool::new(false),
            synced: AtomicBool::new(false),
            changed: Changed::default(),
            climbed: Mutex::default(),
            learned: Mutex::default(),
            pages: Pages::default(),
            kernel_size: KernelSize::default(),
            unkept: Mutex::default(),
        }
    }

    /// While the file is open here the kernel caches no attributes of it (see `Overlay::ttl`). For the
    /// attributes that it has from before, `drop_attributes` is called once: they are gone when this returns,
    /// whichever caller has triggered it. It must not be called at every open: the kernel discards an answer
    /// about attributes that is on its way meanwhile, and an `lseek` to the end of the file that has asked
    /// for it uses the old size.
    pub fn keep_no_attributes(&self, drop_attributes: impl FnOnce()) {
        let mut unkept = self.unkept.lock();
        if !*unkept {
            drop_attributes();
            *unkept = true;
        }
    }

    /// Must be called when the last handle was closed.
    fn keep_attributes(&self) {
        *self.unkept.lock() = false;
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn is_file(&self) -> bool {
        self.kind == libc::S_IFREG
    }

    pub fn is_dir(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    /// Distinguishes two files that had the same node number one after the other; the kernel keeps 31 bits of it.
    pub fn generation(&self) -> u64 {
        (self.id.birth ^ (self.id.birth >> 31)) & 0x7fff_ffff
    }

    /// True if a write need not check for `bits`.
    pub fn lacks(&self, bits: u8) -> bool {
        self.unprivileged.load(Ordering::Acquire) & bits == bits
    }

    pub fn privilege_changes(&self) -> u64 {
        self.privilege_changes.load(Ordering::Acquire)
    }

    /// Records that `bits` are absent, unless there was a privilege change since `seen`.
    pub fn note_lack(&self, bits: u8, seen: u64) {
        self.unprivileged.fetch_or(bits, Ordering::AcqRel);
        if self.privilege_changes() != seen {
            self.unprivileged.store(0, Ordering::Release);
        }
    }

    /// Must be called when a chmod, chown or attribute change may have set privileges, and at each open for
    /// writing, because the backing has other clients.
    pub fn privileges_may_have_changed(&self) {
        self.privilege_changes.fetch_add(1, Ordering::AcqRel);
        self.unprivileged.store(0, Ordering::Release);
    }

    /// Must be called when a caller is about to write that has to ensure `bits`.
    pub fn note_written(&self, bits: u8) {
        if self.written.load(Ordering::Acquire) & bits != bits {
            self.written.fetch_or(bits, Ordering::AcqRel);
        }
    }

    pub fn is_written(&self) -> bool {
        self.written.load(Ordering::Acquire) != 0
    }

    /// Takes the bits that such writers had to ensure until now. Another node may have set privileges since a
    /// write last checked for them, so the caller checks again.
    pub fn take_written(&self) -> u8 {
        self.written.swap(0, Ordering::AcqRel)
    }

    pub fn set_unlinked(&self) {
        self.unlinked.store(true, Ordering::Release);
    }

    pub fn is_unlinked(&self) -> bool {
        self.unlinked.load(Ordering::Acquire)
    }

    pub fn set_synced(&self) {
        self.synced.store(true, Ordering::Release);
    }

    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inode({} = {})", self.node, self.id)
    }
}
