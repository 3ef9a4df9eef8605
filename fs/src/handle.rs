//! What an open file or directory carries from request to request.

use crate::backing::{AsUser, dirent::Dirent};
use crate::inode::{Inode, Registered};
use crate::recent::Recent;
use crate::types::Caller;
use layout_index::File;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// An open file. `O_DIRECT` and the like are the kernel's business: it sends offsets. Where an append
/// goes with many nodes: `ops/append`.
pub struct Handle {
    /// Also the lane of the log that this handle's writes go to.
    pub fh: u64,
    pub inode: Arc<Inode>,
    pub file: Arc<File>,
    /// Opened with the opener's rights; for reading too wherever the opener may.
    pub canonical: AsUser,
    pub readable: bool,
    pub writable: bool,
    /// The kernel does reads and writes of this file on the canonical file; what still comes here
    /// (allocation, copies, sync, appends, O_DIRECT) must go there too.
    pub passthrough: Option<Registered>,
    /// Its writes go into the store.
    pub absorbs: bool,
    /// Its reads and writes take turns with those of other nodes.
    pub coherent: bool,
    /// Other nodes may write the file while it is read and written here: each read looks for what
    /// they have published, and a write records only what it changes.
    pub looks: bool,
    pub recent: Recent,
    pub opener: Caller,
    /// No byte at or behind this can be written.
    pub largest: u64,
    /// The number of the last drain error that this handle's fsync has told.
    pub told: AtomicU64,
}

/// An open directory: the backing's own stream, with its own offsets.
pub struct DirHandle {
    pub inode: Arc<Inode>,
    pub fd: OwnedFd,
    pub stream: Mutex<DirStream>,
    pub opener: u32,
}

/// Entries read ahead from the backing. `at` is the offset of the first of them.
#[derive(Default)]
pub struct DirStream {
    pub at: u64,
    pub ahead: std::collections::VecDeque<Dirent>,
    /// Where the descriptor itself stands.
    pub position: u64,
}

impl DirStream {
    pub fn seek(&mut self, offset: u64) {
        if offset != self.at {
            self.ahead.clear();
            self.at = offset;
        }
    }

    /// Past the first entry.
    pub fn step(&mut self) {
        if let Some(entry) = self.ahead.pop_front() {
            self.at = entry.next;
        }
    }
}
