//! What the drain does to a file's state. The flusher moves the bytes. The order is:
//!
//! 1. [`File::apply_trim`] cuts the canonical file where a truncate said so, syncs it and appends
//!    `Trimmed`.
//! 2. For each stripe: [`File::lock_canonical`], [`File::snapshot`], canonical write, unlock.
//! 3. The canonical file is synced.
//! 4. [`File::drained`] appends `Drained` records, then drops the extents.
//! 5. [`File::finish`] sets size and time, syncs, and appends `Clean`.
//!
//! - If the daemon is killed after 1, 2 or 3, the log still has everything; the step is repeated
//!   with the same result.
//! - If it is killed within 4, stripes with a record are drained and the others are done again.
//!   Newer bytes have newer records, so a stripe that is done again cannot bring back older ones.
//! - If it is killed in 5, the file is dirty without extents, and 5 is done again.

use super::dirty_period::Lower;
use super::exclusive::Held;
use super::{CanonicalGuard, Drained, File, Snapshot};
use crate::disk::DiskFile;
use crate::error::{Result, StoreError};
use crate::extent::Place;
use crate::store::local_copies::version_after_change;
use crate::store::log::record::{Kind, Record};
use crate::store::state::Gone;
use crate::types::{ByteRange, FileNo};
use std::sync::atomic::Ordering;

impl File {
    /// Waits until no other thread writes `range` of the canonical file. Must not be called on an
    /// event loop.
    pub fn lock_canonical(&self, range: ByteRange) -> CanonicalGuard<'_> {
        CanonicalGuard(self.canonical.lock(range))
    }

    /// Returns what is undrained in the guarded range now. The caller holds the guard until the
    /// canonical file is written. On `TrimPending` it releases the guard, calls
    /// [`File::apply_trim`] and tries again.
    pub fn snapshot(&self, guard: &CanonicalGuard<'_>) -> Result<Snapshot> {
        self.retry_moved(|| self.snapshot_once(guard.range()))
    }

    fn snapshot_once(&self, range: ByteRange) -> Result<Snapshot> {
        let view = self.view(range)?;
        if view.limit < range.end.min(view.size) {
            return Err(StoreError::TrimPending);
        }
        let upto = view.settled;
        let pieces = view
            .extents
            .iter()
            .filter(|(_, e)| e.seq <= upto && e.place != Place::Canonical)
            .filter_map(|(s, e)| {
                e.cut(
                    *s,
                    ByteRange {
                        start: 0,
                        end: view.size,
                    },
                )
            })
            .map(|(s, e)| self.piece(s, &e))
            .collect::<Result<Vec<_>>>()?;
        // Checked after the extents were read: if nothing is published even now, the bytes that
        // were read are older than whatever is published later.
        if !self.is_alone() {
            return Err(StoreError::NotAlone);
        }
        Ok(Snapshot {
            range,
            upto,
            pieces,
        })
    }

    /// Makes the store forget these pieces. The canonical file must have them, **synced**. Newer
    /// pieces stay.
    ///
    /// Returns `NotAlone` and forgets nothing if something is published by now. This node may have
    /// been publishing older bytes of the file, or an older cut, while these were written. What is
    /// published lies over the canonical file, and only the store's own copy lies over that.
    pub fn drained(&self, done: &[Drained]) -> Result<()> {
        let _no_publication = self.publication_lock.read();
        if self.has_published() {
            return Err(StoreError::NotAlone);
        }
        let Some(no) = self.inner().period.as_ref().map(|period| period.no) else {
            return Ok(());
        };
        // A checkpoint must not count the record as applied before memory has changed too.
        let _floor = self.hold_range(ByteRange { start: 0, end: 0 });
        for stripe in done {
            self.state.log.append_control(Record {
                offset: stripe.range.start,
                len: stripe.range.len(),
                arg: stripe.upto.0,
                ..Record::control(Kind::Drained, no)
            })?;
            let bytes = self.forget_drained(*stripe)?;
            self.state.canonical.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes drained extents from all layers. Returns the number of payload bytes that were
    /// visible.
    pub(crate) fn forget_drained(&self, stripe: Drained) -> Result<u64> {
        loop {
            // Extents newer than the snapshot stay, in whichever layer they are. To find them,
            // RocksDB is read without the lock, and the result is valid only if no freeze moved
            // anything meanwhile. Extents that were added since are newer and in memory.
            let view = match self.view(stripe.range) {
                Err(StoreError::Clean) => return Ok(0),
                other => other?,
            };
            let newer = view.extents.iter().filter(|(_, e)| e.seq > stripe.upto);
            let keep: Vec<ByteRange> = newer
                .map(|(s, e)| ByteRange {
                    start: *s,
                    end: e.end,
                })
                .collect();
            let mut inner = self.inner();
            let Some(period) = &mut inner.period else {
                return Ok(0);
            };
            if period.freezes != view.freezes {
                continue;
            }
            let mark = period.has_lower_layers();
            period.forget(&self.state, stripe.range, stripe.upto, &keep, mark);
            let drained = view.extents.iter().filter(|(_, e)| e.seq <= stripe.upto);
            return Ok(drained.map(|(s, e)| e.undrained(*s)).sum());
        }
    }

    /// Cuts the canonical file where a logged truncate said so, syncs it and records that. Must be
    /// called before the canonical file is written. No-op if no cut is pending.
    pub fn apply_trim(&self, canonical: &dyn DiskFile) -> Result<()> {
        let pending = || self.inner().period.as_ref().map(|l| (l.no, l.row.limit));
        match pending() {
            Some((_, limit)) if limit != u64::MAX => {}
            _ => return Ok(()),
        }
        let _all = self.canonical.lock(ByteRange::ALL);
        let Some((no, limit)) = pending() else {
            return Ok(());
        };
        if limit == u64::MAX {
            return Ok(());
        }
        // Checked after the limit was read: if nothing is published even now, the truncate that was
        // read is older than whatever is published later.
        if !self.is_alone() {
            return Err(StoreError::NotAlone);
        }
        // The truncate must be durable before the bytes that it cuts off are gone, and the
        // `Trimmed` record must be durable before anything is drained beyond the cut. Otherwise a
        // power failure could cut off newer bytes.
        self.state.log.sync()?;
        let name = || self.id.to_string();
        let len = canonical
            .size()
            .map_err(|e| StoreError::io("stat", name(), e))?;
        if len > limit {
            canonical
                .set_len(limit)
                .map_err(|e| StoreError::io("truncate", name(), e))?;
        }
        self.state.local_copies.cut(self.id, limit);
        canonical
            .sync()
            .map_err(|e| StoreError::io("sync", name(), e))?;
        let record = Record {
            arg: limit,
            ..Record::control(Kind::Trimmed, no)
        };
        {
            // Record and memory change under one lock. A checkpoint between them would count the
            // record as applied and keep the limit, and a crash would then cut off what is drained
            // beyond it next.
            let mut inner = self.inner();
            self.state.log.append_control(record)?;
            if let Some(period) = &mut inner.period {
                period.trimmed(limit, 0, u64::MAX);
            }
        }
        self.state.log.sync()
    }

    /// If nothing is undrained, sets size and time of the canonical file, syncs it and records that
    /// the file is clean. Returns true when the file is clean now, and false when there is more to
    /// drain. With `only_node` no other node changes the canonical file, so it gets exactly the
    /// size that the dirty period has.
    pub fn finish(&self, canonical: &dyn DiskFile, only_node: bool) -> Result<bool> {
        self.apply_trim(canonical)?;
        let lower = self.merge_lower()?;
        // No other thread changes the canonical file from here on, so this one may set its size.
        let _all = self.canonical.lock(ByteRange::ALL);
        let (generation, size, grown, mtime) = {
            let inner = self.inner();
            let Some(period) = &inner.period else {
                return Ok(true);
            };
            if !period.is_drained(lower) || period.row.unlinked || period.row.limit != u64::MAX {
                return Ok(false);
            }
            let row = &period.row;
            (period.generation, row.size, row.grown, row.mtime)
        };
        if !self.is_hidden(lower)? {
            return Ok(false);
        }
        let name = || self.id.to_string();
        let len = canonical
            .size()
            .map_err(|e| StoreError::io("stat", name(), e))?;
        // Cuts have a step of their own. Bytes that still lie beyond `size` may be another node's.
        // If there is no other node, they were drained from the end of a log that a power failure
        // lost.
        let size = if only_node { size } else { len.max(grown) };
        if len != size {
            canonical
                .set_len(size)
                .map_err(|e| StoreError::io("set the size of", name(), e))?;
        }
        match canonical.set_mtime(mtime.0) {
            // The drain may write this file, but only its owner may set its times. The file then
            // keeps the time at which it was drained.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
            other => other.map_err(|e| StoreError::io("set the time of", name(), e))?,
        }
        canonical
            .sync()
            .map_err(|e| StoreError::io("sync", name(), e))?;
        // Read while no other thread may write the file. A failure costs only the local copy.
        let copy = self.state.local_copies.filling(self.id);
        let version = copy.as_ref().and_then(|_| version_after_change(canonical));
        // Waits for a publication that is under way: other nodes would take the file for settled
        // and write it, and that publication would then come over their bytes. The lock is taken
        // ahead of publications that only wait for their turn: a write-through holds it too and may
        // wait for the canonical file, which is held here.
        let _no_publication = self.publication_lock.read_recursive();
        let Some((no, held)) = self.hold_if_unchanged(generation) else {
            return Ok(false);
        };
        self.state
            .log
            .append_control(Record::control(Kind::Clean, no))?;
        if !only_node {
            // Once the file is clean, this node tells other nodes that nothing is pending, and they
            // write the file. A power failure that lost these records would bring the old bytes
            // back over theirs.
            self.state.log.sync()?;
        }
        let pin = self.end_period(Gone::Elsewhere);
        if let Some(copy) = copy {
            self.state.local_copies.complete(&copy, version);
        }
        drop(held);
        drop(pin);
        Ok(true)
    }

    /// Merges the layers below memory, after which it is known whether RocksDB still has visible
    /// extents. While the store's disk has no room for a merge, [`File::is_hidden`] checks that.
    pub(super) fn merge_lower(&self) -> Result<Lower> {
        let lower = |period: &super::DirtyPeriod| period.has_lower_layers();
        if !self.inner().period.as_ref().is_some_and(lower) {
            return Ok(Lower::Merged);
        }
        match crate::store::maintain::checkpoint(&self.state) {
            Err(StoreError::Full) => Ok(Lower::Hidden),
            merged => merged.map(|()| Lower::Merged),
        }
    }

    /// True if nothing in the layers below is visible. Checked only if they could not be merged.
    /// The caller makes sure that nothing changes meanwhile.
    pub(super) fn is_hidden(&self, lower: Lower) -> Result<bool> {
        Ok(lower == Lower::Merged || self.reach()?.is_none_or(|end| end == 0))
    }

    /// Takes all write ranges, if none is held and nothing has changed since `generation`.
    pub(super) fn hold_if_unchanged(&self, generation: u64) -> Option<(FileNo, Held<'_>)> {
        let mut inner = self.inner();
        let period = inner
            .period
            .as_ref()
            .filter(|period| period.generation == generation)?;
        let no = period.no;
        let ticket = inner
            .active
            .try_hold(ByteRange::ALL, self.state.log.next_seq())?;
        Some((no, Held { file: self, ticket }))
    }
}
