//! A canonical file as the drain changes it: only while this node may, and with the same bytes in
//! the node's local copy.
//!
//! Each change has three steps: the lease is checked, the canonical file is changed, and then the
//! local copy. Reading and syncing change nothing, so nothing is checked before them.

use super::mirror::Mirror;
use super::term::Held;
use layout_index::{DiskFile, FileId, Peers, Version};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// How long this node may change a canonical file.
#[derive(Clone)]
pub(super) enum Gate {
    /// There are no other nodes.
    Open,
    /// As long as this node has the file's term.
    Term(Arc<Held>),
    /// As long as this node has a domain of a round.
    Domain {
        peers: Arc<Peers>,
        file: FileId,
        term: u64,
        domain: u32,
    },
    /// This node takes part in a round without the term: it changes the file within domains only.
    Closed,
}

impl Gate {
    pub fn holds(&self) -> bool {
        match self {
            Gate::Open => true,
            Gate::Term(held) => held.holds(),
            Gate::Domain {
                peers,
                file,
                term,
                domain,
            } => peers
                .shared_dir()
                .domains()
                .holds_domain(*file, *term, *domain),
            Gate::Closed => false,
        }
    }
}

#[derive(Clone)]
pub(super) struct CanonicalFile {
    below: Arc<dyn DiskFile>,
    gate: Gate,
    mirror: Option<Arc<Mirror>>,
}

impl std::fmt::Debug for CanonicalFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CanonicalFile({:?})", self.below)
    }
}

impl CanonicalFile {
    pub fn new(below: Arc<dyn DiskFile>, gate: Gate, mirror: Option<Arc<Mirror>>) -> CanonicalFile {
        CanonicalFile {
            below,
            gate,
            mirror,
        }
    }

    pub fn with_gate(&self, gate: Gate) -> CanonicalFile {
        CanonicalFile {
            gate,
            ..self.clone()
        }
    }

    pub fn mirror(&self) -> Option<&Arc<Mirror>> {
        self.mirror.as_ref()
    }

    pub fn may_change(&self) -> bool {
        self.gate.holds()
    }

    fn check_gate(&self) -> io::Result<()> {
        if self.may_change() {
            return Ok(());
        }
        // The copy would miss what other nodes write from now on.
        if let Some(mirror) = &self.mirror {
            mirror.abandon();
        }
        Err(io::Error::other("this node's lease has run out meanwhile"))
    }
}

impl DiskFile for CanonicalFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.check_gate()?;
        let written = self.below.write_at(bufs, offset);
        if let Some(mirror) = &self.mirror {
            mirror.written(bufs, offset, &written);
        }
        written
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.below.read_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.below.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_gate()?;
        let set = self.below.set_len(len);
        if let Some(mirror) = &self.mirror {
            mirror.size_set(len);
        }
        set
    }

    fn size(&self) -> io::Result<u64> {
        self.below.size()
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        self.check_gate()?;
        let done = self.below.allocate(mode, offset, len);
        if let Some(mirror) = &self.mirror {
            mirror.allocated(mode, offset, len, &done);
        }
        done
    }

    fn set_mtime(&self, mtime: u64) -> io::Result<()> {
        self.check_gate()?;
        self.below.set_mtime(mtime)
    }

    fn version(&self) -> io::Result<Version> {
        self.below.version()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.below.fd()
    }
}
