//! The nodes that the kernel, an open handle or undrained data still refer to.
//!
//! A node number is the backing's inode number, so users see the numbers they know. Each node
//! holds an `O_PATH` descriptor: as long as it is here its number cannot go to another file, a
//! rename does not lose it, and an operation on it never walks a path. There is one `Inode` for
//! one file: its I/O mode (direct or passthrough) is decided under its own lock, and two objects
//! would decide apart.
//!
//! A node goes when nothing refers to it: no lookup of the kernel's (`forget`), no handle, no
//! undrained data (a dirty file keeps its descriptor so that the drain finds it after a rename; but
//! not when an eighth of the descriptors is in use, or a quarter where files cannot be opened by handle).
//!
//! Descriptors are finite, and the kernel keeps what it once looked up for as long as it has
//! memory. So new nodes are refused before the last descriptors are taken, which the store and
//! the drain cannot do without, and long before that the kernel is asked to let idle files go.
//! No user gets all of them (`shares`).

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

/// A file registered with the kernel for passthrough; opaque to everything but the transport.
pub type Registered = Arc<dyn Any + Send + Sync>;

/// How the open handles of a file do their I/O. The kernel allows only one way at a time.
#[derive(Default)]
pub enum IoMode {
    #[default]
    Closed,
    /// Requests come here. The count is of handles.
    Direct(usize),
    /// The kernel goes to the canonical file itself.
    Passthrough {
        handles: usize,
        /// A writer waited for the readers to go and they did not: the next need not.
        settled: bool,
        registered: Registered,
    },
}

/// No setuid or setgid bit, as far as this mount knows.
pub const NO_SETID: u8 = 1;
/// No `security.capability` attribute, as far as this mount knows.
pub const NO_CAPS: u8 = 2;

pub struct Inode {
    pub node: u64,
    pub id: FileId,
    /// `S_IFMT` bits.
    pub kind: u32,
    fd: OwnedFd,
    /// See [`IoMode`]; held while an open or release decides.
    pub io: Mutex<IoMode>,
    /// Signalled when `io` becomes `Closed`.
    pub io_closed: Condvar,
    /// `NO_SETID | NO_CAPS` once a write has checked; anything that may bring them back clears it.
    unprivileged: AtomicU8,
    /// Those of `NO_SETID | NO_CAPS` that writers had to care for since the last look: see
    /// [`Inode::take_written`].
    written: AtomicU8,
    /// Incremented with each change that may bring privileges back, so that a check in progress
    /// does not record an answer that is out of date.
    privilege_changes: AtomicU64,
    /// The last name is gone: what the log holds is dropped with the last reference.
    unlinked: AtomicBool,
    /// The backing has made this file's existence durable since this node is known.
    synced: AtomicBool,
    /// The time of the last change that was shown.
    pub changed: Changed,
    /// Of a directory: which directories at and above it have policies for new files.
    pub climbed: Mutex<Option<Climbed>>,
    /// Of a file: what its attributes said when an open listed them last.
    pub learned: Mutex<Option<Learned>>,
    /// Of a file: those that the kernel keeps for mappings.
    pub pages: Pages,
    /// Of a file: where the kernel believes that it ends.
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

    /// While the file is open here the kernel keeps no attributes of it (see `Overlay::ttl`). Calls
    /// `drop_attributes` for those that it has from before, once: when this returns they are gone,
    /// whoever has done it. To do it at every open would do harm: the kernel discards an answer
    /// about attributes that is on its way meanwhile, and an `lseek` to the end that has asked for it
    /// takes the size from before.
    pub fn keep_no_attributes(&self, drop_attributes: impl FnOnce()) {
        let mut unkept = self.unkept.lock();
        if !*unkept {
            drop_attributes();
            *unkept = true;
        }
    }

    /// The last handle is closed.
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

    /// Tells two files apart that had the same number; the kernel keeps 31 bits of it.
    pub fn generation(&self) -> u64 {
        (self.id.birth ^ (self.id.birth >> 31)) & 0x7fff_ffff
    }

    /// True when a write need not look for `bits`.
    pub fn lacks(&self, bits: u8) -> bool {
        self.unprivileged.load(Ordering::Acquire) & bits == bits
    }

    pub fn privilege_changes(&self) -> u64 {
        self.privilege_changes.load(Ordering::Acquire)
    }

    /// Records that `bits` are not there, unless something changed since `seen`.
    pub fn note_lack(&self, bits: u8, seen: u64) {
        self.unprivileged.fetch_or(bits, Ordering::AcqRel);
        if self.privilege_changes() != seen {
            self.unprivileged.store(0, Ordering::Release);
        }
    }

    /// A chmod, chown or attribute change may have set privileges; also at each open for writing,
    /// as the backing has other clients.
    pub fn privileges_may_have_changed(&self) {
        self.privilege_changes.fetch_add(1, Ordering::AcqRel);
        self.unprivileged.store(0, Ordering::Release);
    }

    /// A caller that must not leave `bits` standing is about to write.
    pub fn note_written(&self, bits: u8) {
        if self.written.load(Ordering::Acquire) & bits != bits {
            self.written.fetch_or(bits, Ordering::AcqRel);
        }
    }

    pub fn is_written(&self) -> bool {
        self.written.load(Ordering::Acquire) != 0
    }

    /// What such writers had to care for until now. Another node may have set privileges since a
    /// write looked for them last, so the caller that takes this looks again.
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
