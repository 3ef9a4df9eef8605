//! What the drain does to a file's state. The bytes are moved by the flusher; the order is:
//!
//! 1. [`File::apply_trim`]: the canonical file is cut where a truncate said, synced, `Trimmed`.
//! 2. Per stripe: [`File::lock_canonical`], [`File::snapshot`], canonical write, unlock.
//! 3. Canonical sync.
//! 4. [`File::drained`]: `Drained` records, then the extents go.
//! 5. [`File::finish`]: size and time, sync, `Clean`.
//!
//! *Killed after 1, 2 or 3*: the log still has everything; it is done again, to the same end.
//! *Killed within 4*: stripes with a record are drained, the others are done again. Newer bytes
//! have newer records, so a stripe that is done again cannot bring back older ones.
//! *Killed in 5*: the file is dirty with no extents, and 5 is done again.

use super::exclusive::Held;
use super::life::Lower;
use super::{CanonicalGuard, Drained, File, Snapshot};
use crate::disk::DiskFile;
use crate::error::{Result, StoreError};
use crate::extent::Place;
use crate::kept::version_after_change;
use crate::log::record::{Kind, Record};
use crate::shared::Gone;
use crate::types::{ByteRange, FileNo};
use std::sync::atomic::Ordering;

impl File {
    /// Waits until no one else writes the canonical file's `range`. Not on an event loop.
    pub fn lock_canonical(&self, range: ByteRange) -> CanonicalGuard<'_> {
        CanonicalGuard(self.canonical.lock(range))
    }

    /// What of the guarded range is undrained now. The guard is held until the canonical file is
    /// written. `TrimPending`: let go of the guard, [`File::apply_trim`], and try again.
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
        // After the look at the extents: bytes that are in it came before whatever is published.
        if !self.seen().is_alone() {
            return Err(StoreError::NotAlone);
        }
        Ok(Snapshot {
            range,
            upto,
            pieces,
        })
    }

    /// The canonical file was written and **synced**: forget these pieces. Newer ones stay.
    ///
    /// `NotAlone` and nothing forgotten if something is published by now. This node may have been
    /// publishing older bytes of the file, or an older cut, while these were written: that lies over
    /// the canonical file, and only the store's copy lies over that.
    pub fn drained(&self, done: &[Drained]) -> Result<()> {
        let _moving = self.moving.read();
        if !self.seen().view.is_empty() {
            return Err(StoreError::NotAlone);
        }
        let Some(no) = self.inner().life.as_ref().map(|life| life.no) else {
            return Ok(());
        };
        // A checkpoint must not count the record as done before memory says so too.
        let _floor = self.hold_range(ByteRange { start: 0, end: 0 });
        for stripe in done {
            self.shared.log.append_control(Record {
                offset: stripe.range.start,
                len: stripe.range.len(),
                arg: stripe.upto.0,
                ..Record::control(Kind::Drained, no)
            })?;
            let bytes = self.forget_drained(*stripe)?;
            self.shared.canonical.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes drained extents out of all layers; gives the payload bytes that were visible.
    pub(crate) fn forget_drained(&self, stripe: Drained) -> Result<u64> {
        loop {
            // Extents newer than the snapshot stay, in whichever layer they are. Finding them
            // takes a look into RocksDB without the lock, which holds only if no freeze moved
            // anything meanwhile; what came in since is newer and in memory.
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
            let Some(life) = &mut inner.life else {
                return Ok(0);
            };
            if life.freezes != view.freezes {
                continue;
            }
            let mark = life.has_lower_layers();
            life.forget(&self.shared, stripe.range, stripe.upto, &keep, mark);
            let drained = view.extents.iter().filter(|(_, e)| e.seq <= stripe.upto);
            return Ok(drained.map(|(s, e)| e.undrained(*s)).sum());
        }
    }

    /// Cuts the canonical file where a logged truncate said so, syncs it and records that. Call
    /// before writing to it. No-op if none is pending.
    pub fn apply_trim(&self, canonical: &dyn DiskFile) -> Result<()> {
        let pending = || self.inner().life.as_ref().map(|l| (l.no, l.row.limit));
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
        // After the look at the limit: a truncate that is in it came before whatever is published.
        if !self.seen().is_alone() {
            return Err(StoreError::NotAlone);
        }
        // The truncate is durable before what it cuts off is gone, and its end is durable before
        // anything is drained beyond it: else a power failure could cut off newer bytes.
        self.shared.log.sync()?;
        let name = || self.id.to_string();
        let len = canonical
            .size()
            .map_err(|e| StoreError::io("stat", name(), e))?;
        if len > limit {
            canonical
                .set_len(limit)
                .map_err(|e| StoreError::io("truncate", name(), e))?;
        }
        self.shared.kept.cut(self.id, limit);
        canonical
            .sync()
            .map_err(|e| StoreError::io("sync", name(), e))?;
        let record = Record {
            arg: limit,
            ..Record::control(Kind::Trimmed, no)
        };
        {
            // Record and memory in one go: a checkpoint between them would count the record as
            // done, keep the limit, and a crash would cut off what is drained beyond it next.
            let mut inner = self.inner();
            self.shared.log.append_control(record)?;
            if let Some(life) = &mut inner.life {
                life.trimmed(limit, 0, u64::MAX);
            }
        }
        self.shared.log.sync()
    }

    /// If nothing is undrained: sets size and time of the canonical file, syncs it, records that
    /// the file is clean. True when it is clean now; false when there is more to drain. `only_node`:
    /// nobody else changes the canonical file, so that it is made exactly as long as the life says.
    pub fn finish(&self, canonical: &dyn DiskFile, only_node: bool) -> Result<bool> {
        self.apply_trim(canonical)?;
        let lower = self.merge_lower()?;
        // Nobody else changes the canonical file from here on: its size is ours to set.
        let _all = self.canonical.lock(ByteRange::ALL);
        let (generation, size, grown, mtime) = {
            let inner = self.inner();
            let Some(life) = &inner.life else {
                return Ok(true);
            };
            if !life.is_drained(lower) || life.row.unlinked || life.row.limit != u64::MAX {
                return Ok(false);
            }
            let row = &life.row;
            (life.generation, row.size, row.grown, row.mtime)
        };
        if !self.is_hidden(lower)? {
            return Ok(false);
        }
        let name = || self.id.to_string();
        let len = canonical
            .size()
            .map_err(|e| StoreError::io("stat", name(), e))?;
        // A cut has its own step. What lies beyond all the same may be another node's; or, if there
        // is none, it was drained from the end of a log that a power failure took.
        let size = if only_node { size } else { len.max(grown) };
        if len != size {
            canonical
                .set_len(size)
                .map_err(|e| StoreError::io("set the size of", name(), e))?;
        }
        match canonical.set_mtime(mtime.0) {
            // A file that others may write but only its owner may date: its time is the drain's.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
            other => other.map_err(|e| StoreError::io("set the time of", name(), e))?,
        }
        canonical
            .sync()
            .map_err(|e| StoreError::io("sync", name(), e))?;
        // While nobody else may write it. A copy is not worth an error.
        let copy = self.shared.kept.filling(self.id);
        let version = copy.as_ref().and_then(|_| version_after_change(canonical));
        // Not while a publication is on its way: others would take the file for settled, write it,
        // and that publication would come over theirs. Past publications that only wait for their
        // turn: who writes through has it too, and may wait for the canonical file, which is held here.
        let _moving = self.moving.read_recursive();
        let Some((no, held)) = self.hold_if_unchanged(generation) else {
            return Ok(false);
        };
        self.shared
            .log
            .append_control(Record::control(Kind::Clean, no))?;
        if !only_node {
            // Whoever finds the file clean tells other nodes that nothing is owed, and they write it.
            // A power failure that took these records would bring the bytes back over theirs.
            self.shared.log.sync()?;
        }
        let pin = self.end_life(Gone::Elsewhere);
        if let Some(copy) = copy {
            self.shared.kept.complete(&copy, version);
        }
        drop(held);
        drop(pin);
        Ok(true)
    }

    /// Whether RocksDB still has visible extents is known after a merge. While the store's disk has no
    /// room for one, [`File::is_hidden`] finds it out.
    pub(super) fn merge_lower(&self) -> Result<Lower> {
        let lower = |life: &super::Life| life.has_lower_layers();
        if !self.inner().life.as_ref().is_some_and(lower) {
            return Ok(Lower::Merged);
        }
        match crate::maintain::checkpoint(&self.shared) {
            Err(StoreError::Full) => Ok(Lower::Hidden),
            merged => merged.map(|()| Lower::Merged),
        }
    }

    /// Nothing of the layers below is visible, if they could not be merged. The caller makes sure that
    /// nothing changes meanwhile.
    pub(super) fn is_hidden(&self, lower: Lower) -> Result<bool> {
        Ok(lower == Lower::Merged || self.reach()?.is_none_or(|end| end == 0))
    }

    /// All write ranges, if nobody has one and nothing has changed since `generation`.
    pub(super) fn hold_if_unchanged(&self, generation: u64) -> Option<(FileNo, Held<'_>)> {
        let mut inner = self.inner();
        let life = inner
            .life
            .as_ref()
            .filter(|life| life.generation == generation)?;
        let no = life.no;
        let ticket = inner
            .active
            .try_hold(ByteRange::ALL, self.shared.log.next_seq())?;
        Some((no, Held { file: self, ticket }))
    }
}
