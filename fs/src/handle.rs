//! Open files and directories: the state that a handle keeps between requests.

use crate::backing::{AsUser, dirent::Dirent};
use crate::inode::{Inode, Registered};
use crate::recent::Recent;
use crate::types::Caller;
use layout_index::File;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// An open file. `O_DIRECT` and similar flags are handled by the kernel, which sends each request with an
/// offset. For the offset of an append where there are other nodes see `ops/append`.
pub struct Handle {
    /// The handle's number. It also selects the lane of the log that this handle's writes go
    /// to, if that lane is free.
    pub fh: u64,
    pub inode: Arc<Inode>,
    pub file: Arc<File>,
    /// Opened as the opener; for reading too wherever the opener may read.
    pub canonical: AsUser,
    pub readable: bool,
    pub writable: bool,
    /// Set if the kernel reads and writes the canonical file itself. Requests that still come here
    /// (allocation, copies, sync, appends, O_DIRECT) must go to the canonical file too.
    pub passthrough: Option<Registered>,
    /// Writes through this handle go into the store.
    pub absorbs: bool,
    /// Reads and writes through this handle take turns with those of other nodes (`absorb = coherent`).
    pub coherent: bool,
    /// Other nodes may write the file while this handle reads and writes it: each read refreshes first, and a
    /// write records only the bytes that it changes.
    pub looks: bool,
    pub recent: Recent,
    pub opener: Caller,
    /// Upper limit of the file size: no byte at or beyond this offset can be written.
    pub largest: u64,
    /// Number of the last drain error that an fsync of this handle has reported.
    pub told: AtomicU64,
}

/// An open directory: a descriptor of the backing's directory. Offsets are the backing's own.
pub struct DirHandle {
    pub inode: Arc<Inode>,
    pub fd: OwnedFd,
    pub stream: Mutex<DirStream>,
    pub opener: u32,
}

/// Entries read ahead from the backing. `at` is the offset of the first entry.
#[derive(Default)]
pub struct DirStream {
    pub at: u64,
    pub ahead: std::collections::VecDeque<Dirent>,
    /// The current offset of the descriptor itself.
    pub position: u64,
}

impl DirStream {
    pub fn seek(&mut self, offset: u64) {
        if offset != self.at {
            self.ahead.clear();
            self.at = offset;
        }
    }

    /// Moves past the first entry.
    pub fn step(&mut self) {
        if let Some(entry) = self.ahead.pop_front() {
            self.at = entry.next;
        }
    }
}
