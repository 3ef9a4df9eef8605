//! `keep = true`: what the drain writes to a canonical file it also writes to the node's own copy,
//! from the same buffer. The copy is never an error of the drain: what it cannot take ends it.
//!
//! # Consistency
//! Every change that the drain makes to the canonical file passes here, so that what the copy covers
//! is what the canonical file has, as long as nobody else writes it. While a job runs nobody does:
//! this node has the term, or is the only one. Between two jobs somebody may. So a job that ends
//! before the file is clean notes the version of the canonical file ([`Mirror::pause`]), and the
//! next goes on with the copy only if it is still the same; so does the first job of a new life with
//! the copy of the last. In a round each node writes domains of
//! its own; what is published is taken out of the copy before, and this node's domains come back.
//!
//! Reading, and whose lease it is, are the business of the file that this one wraps.

use crate::engine::Shared;
use layout_index::kept::{Copy, Evict, Version, version_after_change};
use layout_index::layout::View;
use layout_index::{ByteRange, DiskFile, File, Kept};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Ranges looked up at once.
const WINDOW: usize = 1024;

pub(super) struct Mirror {
    canonical: Arc<dyn DiskFile>,
    kept: Arc<Kept>,
    copy: Arc<Copy>,
    /// Other nodes may write the canonical file between two jobs of this one.
    shared: bool,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mirror({:?})", self.canonical)
    }
}

impl Mirror {
    /// Goes on with what an earlier job kept, where that is still so. `None` if nothing is kept of
    /// this file.
    pub fn of(shared: &Shared, file: &File, canonical: Arc<dyn DiskFile>) -> Option<Arc<Mirror>> {
        if !shared.keeps(file) {
            // What an earlier job kept would miss what this one writes.
            shared.store.kept().forget_filling(file.id());
            return None;
        }
        let together = shared.together.is_some();
        // Where it cannot be told, it is another version than any.
        let now = canonical.version().ok();
        let kept = shared.store.kept().clone();
        let copy = kept.fill(file.id(), now, !together)?;
        Some(Mirror::new(canonical, kept, copy, together))
    }

    /// A round is about to begin. Any node may write what is published, so of that nothing counts
    /// but what this node writes itself.
    pub fn begin_round(&self, published: &View, unit: u64) {
        let mut from = 0;
        loop {
            let ranges = published.ranges(unit, from, WINDOW);
            let Some(last) = ranges.last() else { return };
            from = last.end;
            let pieces = ranges.into_iter().flat_map(|r| published.pieces(r));
            pieces.for_each(|p| self.kept.put_unknown(&self.copy, p.range));
        }
    }

    fn new(
        canonical: Arc<dyn DiskFile>,
        kept: Arc<Kept>,
        copy: Arc<Copy>,
        shared: bool,
    ) -> Arc<Mirror> {
        Arc::new(Mirror {
            canonical,
            kept,
            copy,
            shared,
        })
    }

    /// The job ends and the file is not clean. While nobody else may write the canonical file.
    pub fn pause(&self) {
        let at = match self.shared {
            true => version_after_change(&*self.canonical),
            false => None,
        };
        self.kept.pause(&self.copy, at);
    }

    /// The version of the canonical file, while nobody else may write it.
    pub fn version(&self) -> Option<Version> {
        version_after_change(&*self.canonical)
    }

    /// The file is clean, with the canonical file as `version` says.
    pub fn complete(&self, version: Option<Version>) {
        self.kept.complete(&self.copy, version);
    }

    /// What was kept counts for nothing.
    pub fn abandon(&self) {
        self.kept.drop_copy(&self.copy);
    }

    /// Makes the copy outlive the daemon. Waits for the store's disk.
    pub fn save(&self) {
        self.kept.save(&self.copy);
    }
}

impl DiskFile for Mirror {
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        if let Err(error) = self.canonical.write_at(bufs, offset) {
            // How much of it is there nobody knows.
            self.abandon();
            return Err(error);
        }
        if self
            .kept
            .put(&self.copy, bufs, offset, Evict::Oldest)
            .is_err()
        {
            tracing::debug!("the log has no room to spare: no copy of a drained file is kept");
            self.abandon();
        }
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.canonical.read_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.canonical.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let set = self.canonical.set_len(len);
        self.kept.put_size(&self.copy, len);
        set
    }

    fn size(&self) -> io::Result<u64> {
        self.canonical.size()
    }

    /// The drain allocates nothing but holes.
    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let done = self.canonical.allocate(mode, offset, len);
        match (ByteRange::at(offset, len), &done) {
            (Some(range), Ok(())) if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 => {
                self.kept.put_zeros(&self.copy, range);
            }
            // The drain writes zeros instead.
            (_, Err(_)) => {}
            _ => self.abandon(),
        }
        done
    }

    fn set_mtime(&self, mtime: u64) -> io::Result<()> {
        self.canonical.set_mtime(mtime)
    }

    fn version(&self) -> io::Result<Version> {
        self.canonical.version()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.canonical.fd()
    }
}

#[cfg(test)]
mod tests;
