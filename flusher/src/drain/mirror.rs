//! `keep = true`: what the drain writes to a canonical file it also writes to the node's local
//! copy, from the same buffer. The copy never makes the drain fail: if the copy cannot take a
//! write, it is dropped.
//!
//! # Consistency
//! Every change that the drain makes to the canonical file passes through here. So the bytes that
//! the copy has are those of the canonical file as long as no other program or node writes that
//! file. While a job runs none does: this node has the term, or is the only one. Between two jobs
//! another may. So a job that ends before the file is clean notes the version of the canonical file
//! ([`Mirror::pause`]), and the next job goes on with the copy only if the version is still the
//! same. The first job of a new dirty period does the same with the copy of the last one. In a
//! round each node writes domains of its own: everything that is published is taken out of the copy
//! before the round, and the domains that this node writes are added again.

use super::canonical_file::CanonicalFile;
use super::job::FileJob;
use layout_index::sharing::layout::View;
use layout_index::store::local_copies::{Copy, Evict, Version, version_after_change};
use layout_index::{ByteRange, DiskFile, LocalCopies};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ranges listed at once.
const RANGES_PER_LISTING: usize = 1024;

/// The local copy of the file that is drained. The copy is dropped with this, unless the job has
/// paused or completed it.
#[derive(Debug)]
pub(super) struct Mirror {
    copies: Arc<LocalCopies>,
    copy: Arc<Copy>,
    /// Other nodes may write the canonical file between two jobs of this one.
    other_nodes: bool,
    ended: AtomicBool,
}

impl Drop for Mirror {
    fn drop(&mut self) {
        if !*self.ended.get_mut() {
            self.abandon();
        }
    }
}

impl Mirror {
    /// Goes on with the copy that an earlier job left, if that is still valid. `None` if this file
    /// has no local copy.
    pub fn for_drain(job: &FileJob, canonical: &dyn DiskFile) -> Option<Arc<Mirror>> {
        let FileJob { engine, file, .. } = job;
        let copies = engine.store.local_copies();
        if !file.settings().keep {
            // The copy of an earlier job would miss what this job writes.
            copies.forget_filling(file.id());
            return None;
        }
        let other_nodes = engine.shared_files.is_some();
        // If the version cannot be read, it counts as different from any other.
        let now = canonical.version().ok();
        let copy = copies.fill(file.id(), now, !other_nodes)?;
        Some(Arc::new(Mirror::new(copies.clone(), copy, other_nodes)))
    }

    fn new(copies: Arc<LocalCopies>, copy: Arc<Copy>, other_nodes: bool) -> Mirror {
        Mirror {
            copies,
            copy,
            other_nodes,
            ended: AtomicBool::new(false),
        }
    }

    /// Called before a round begins. Any node may write what is published, so the copy forgets all
    /// of it; only what this node writes itself comes back.
    pub fn begin_round(&self, published: &View, unit: u64) {
        let mut from = 0;
        loop {
            let ranges = published.ranges(unit, from, RANGES_PER_LISTING);
            let Some(last) = ranges.last() else { return };
            from = last.end;
            let pieces = ranges.into_iter().flat_map(|r| published.pieces(r));
            pieces.for_each(|p| self.copies.put_unknown(&self.copy, p.range));
        }
    }

    /// Called after a write to the canonical file.
    pub fn written(&self, bufs: &[IoSlice<'_>], offset: u64, written: &io::Result<()>) {
        // If the write failed, it is unknown how much of it was written.
        if written.is_err() {
            return self.abandon();
        }
        let put = self.copies.put(&self.copy, bufs, offset, Evict::Oldest);
        if put.is_err() {
            tracing::debug!(
                "the log has no room to spare: no local copy of a drained file is kept"
            );
            self.abandon();
        }
    }

    /// Called after the size of the canonical file was set, whether or not that failed.
    pub fn size_set(&self, len: u64) {
        self.copies.put_size(&self.copy, len);
    }

    /// Called after `allocate`, with which the drain only punches holes.
    pub fn allocated(&self, mode: i32, offset: u64, len: u64, done: &io::Result<()>) {
        match (ByteRange::at(offset, len), done) {
            (Some(range), Ok(())) if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 => {
                self.copies.put_zeros(&self.copy, range);
            }
            // The drain writes zeros instead.
            (_, Err(_)) => {}
            _ => self.abandon(),
        }
    }

    /// Called when the job ends and the file is not clean.
    pub fn pause(&self, canonical: &CanonicalFile) {
        let at = match self.other_nodes {
            true => version_after_change(canonical),
            false => None,
        };
        // Checked after the version was read. Without the lease another node may have written
        // already: the version would then be that of bytes that the copy does not have.
        match canonical.may_change() {
            true => self.copies.pause(&self.copy, at),
            false => self.abandon(),
        }
        self.ended.store(true, Ordering::Release);
    }

    /// Completes the copy: the file is clean, and the canonical file has this version.
    pub fn complete(&self, version: Option<Version>) {
        self.copies.complete(&self.copy, version);
    }

    /// Drops the copy.
    pub fn abandon(&self) {
        self.copies.drop_copy(&self.copy);
    }

    /// Makes a copy that is complete outlive the daemon. No caller waits for the store's disk.
    pub fn save(self: &Arc<Self>) {
        self.ended.store(true, Ordering::Release);
        let mirror = self.clone();
        drop(tokio::task::spawn_blocking(move || {
            mirror.copies.save(&mirror.copy);
        }));
    }
}

#[cfg(test)]
mod tests;
