//! Writing to the canonical file instead of the log, when the store cannot take the bytes.
//!
//! Order: canonical write; if the log holds older bytes of the range, canonical sync; `Through`
//! record; extents go. *Killed before the record*: the write was not acknowledged; recovery
//! shows the older bytes and the drain puts them back, whole. The sync comes before the record
//! because after it nothing else has the bytes that were there, and those may have been fsynced.

use super::File;
use super::write::write_range;
use crate::disk::DiskFile;
use crate::error::{Result, StoreError};
use crate::extent::{Extent, Place};
use crate::log::record::{Kind, Record};
use crate::shared::Gone;
use crate::types::{ByteRange, Timestamp};
use std::io::IoSlice;
use std::sync::atomic::Ordering;

impl File {
    /// Writes to the canonical file, keeping order with what the log holds. Clean or not. `NotAlone`
    /// when something is published, or about to be: drain it first. Waits
    /// for the drain of the same range and for the PFS: not on an event loop.
    pub fn write_through(&self, canonical: &dyn DiskFile, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let range = write_range(offset, data.len() as u64)?;
        // What is published lies over the canonical file.
        let Some(_moving) = self.moving.try_read().filter(|_| self.seen().is_alone()) else {
            return Err(StoreError::NotAlone);
        };
        loop {
            self.apply_trim(canonical)?;
            let _canonical = self.canonical.lock(range);
            let (inner, ticket) = self.hold(range);
            if inner
                .life
                .as_ref()
                .is_some_and(|life| life.row.limit != u64::MAX)
            {
                self.release(inner, ticket);
                continue;
            }
            drop(inner);
            let result = self.through_held(canonical, range, data);
            // While the drain is kept out of the range: what it kept of it before is out of date,
            // and what it keeps afterwards is not.
            self.shared.kept.forget(self.id);
            let mut inner = self.inner();
            inner.canonical_changes += 1;
            inner.touch(range);
            self.release(inner, ticket);
            return result;
        }
    }

    fn through_held(&self, canonical: &dyn DiskFile, range: ByteRange, data: &[u8]) -> Result<()> {
        let dirty = match self.view(range) {
            Err(StoreError::Clean) => None,
            view => {
                let view = view?;
                let undrained = |(_, e): &(u64, Extent)| e.place != Place::Canonical;
                Some((view.extents.iter().any(undrained), range.end > view.size))
            }
        };
        let name = || self.id.to_string();
        canonical
            .write_at(&[IoSlice::new(data)], range.start)
            .map_err(|e| StoreError::io("write", name(), e))?;
        self.shared
            .through
            .fetch_add(range.len(), Ordering::Relaxed);
        let Some((hides, grows)) = dirty else {
            return Ok(());
        };
        if hides {
            canonical
                .sync()
                .map_err(|e| StoreError::io("sync", name(), e))?;
        }
        let Some(no) = self.inner().life.as_ref().map(|life| life.no) else {
            return Ok(());
        };
        let time = Timestamp::now();
        let record = Record {
            offset: range.start,
            len: range.len(),
            time,
            ..Record::control(Kind::Through, no)
        };
        let seq = match self.shared.log.append_control(record) {
            // A broken log cannot say that its older bytes are void or that the file has grown,
            // so there the write fails. Elsewhere it stands by itself.
            Err(StoreError::Failed { .. } | StoreError::Full) if !hides && !grows => {
                self.shared.upto_now()
            }
            other => other?,
        };
        if let Some(life) = &mut self.inner().life {
            life.through(&self.shared, range, seq, time);
        }
        Ok(())
    }

    /// Makes every acknowledged byte in the log durable, and for a clean file the record that
    /// says so: else a power failure could bring drained bytes back over newer canonical ones.
    /// For bytes written through, see [`File::canonical_unsynced`].
    pub fn sync(&self) -> Result<()> {
        match self.shared.log.sync() {
            // The log is broken, but nothing of this file is in it, also not after a power
            // failure that takes the end of its last life.
            Err(StoreError::Failed { .. }) if self.is_clean() && !self.ended_lately() => Ok(()),
            other => other,
        }
    }

    fn ended_lately(&self) -> bool {
        let ended = self.shared.ended.lock();
        ended.iter().any(|tally| tally.id == self.id)
    }

    /// Something when the canonical file may have bytes that a power failure would lose: the
    /// caller syncs it and hands this number to [`File::canonical_synced`].
    pub fn canonical_unsynced(&self) -> Option<u64> {
        let inner = self.inner();
        (inner.canonical_changes > inner.canonical_synced).then_some(inner.canonical_changes)
    }

    pub fn canonical_synced(&self, changes: u64) {
        let mut inner = self.inner();
        inner.canonical_synced = inner.canonical_synced.max(changes);
    }
}

impl super::Life {
    pub(crate) fn through(
        &mut self,
        shared: &crate::shared::Shared,
        range: ByteRange,
        seq: crate::types::Seq,
        time: Timestamp,
    ) {
        self.row.size = self.row.size.max(range.end);
        self.row.mtime = time;
        self.hide(shared, range, seq, Gone::Superseded);
    }
}
