//! Writes to the canonical file instead of the log, when the store cannot take the bytes.
//!
//! The order is: canonical write; canonical sync, if the log holds older bytes of the range;
//! `Through` record; the extents are dropped. If the daemon is killed before the record, the write
//! was not acknowledged: recovery shows the older bytes, and the drain puts all of them back. The
//! sync comes before the record because after the record nothing else has the older bytes, and
//! those may have been fsynced.

use super::File;
use super::write::write_range;
use crate::disk::DiskFile;
use crate::error::{Result, StoreError};
use crate::extent::{Extent, Place};
use crate::store::log::record::{Kind, Record};
use crate::store::state::Gone;
use crate::types::{ByteRange, Timestamp};
use std::io::IoSlice;
use std::sync::atomic::Ordering;

impl File {
    /// Writes to the canonical file, in order with what the log holds, whether the file is clean or
    /// dirty. Returns `NotAlone` when something is published or about to be; the caller drains that
    /// first. Waits for the drain of the same range and for the PFS, so it must not be called on an
    /// event loop.
    pub fn write_through(&self, canonical: &dyn DiskFile, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let range = write_range(offset, data.len() as u64)?;
        // What is published lies over the canonical file.
        let Some(_no_publication) = self.publication_lock.try_read().filter(|_| self.is_alone())
        else {
            return Err(StoreError::NotAlone);
        };
        loop {
            self.apply_trim(canonical)?;
            let _canonical = self.canonical.lock(range);
            let (inner, ticket) = self.hold(range);
            if inner
                .period
                .as_ref()
                .is_some_and(|period| period.row.limit != u64::MAX)
            {
                self.release(inner, ticket);
                continue;
            }
            drop(inner);
            let result = self.write_through_held(canonical, range, data);
            // Done while the drain is excluded from the range: what it put into the local copy
            // before is out of date, and what it puts there afterwards is not.
            self.state.local_copies.forget(self.id);
            let mut inner = self.inner();
            inner.canonical_changes += 1;
            inner.touch(range);
            self.release(inner, ticket);
            return result;
        }
    }

    fn write_through_held(
        &self,
        canonical: &dyn DiskFile,
        range: ByteRange,
        data: &[u8],
    ) -> Result<()> {
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
        self.state
            .written_through
            .fetch_add(range.len(), Ordering::Relaxed);
        let Some((hides, grows)) = dirty else {
            return Ok(());
        };
        if hides {
            canonical
                .sync()
                .map_err(|e| StoreError::io("sync", name(), e))?;
        }
        let Some(no) = self.inner().period.as_ref().map(|period| period.no) else {
            return Ok(());
        };
        let time = Timestamp::now();
        let record = Record {
            offset: range.start,
            len: range.len(),
            time,
            ..Record::control(Kind::Through, no)
        };
        let seq = match self.state.log.append_control(record) {
            // A broken or full log cannot record that its older bytes are void or that the file has
            // grown, so in these cases the write fails. Otherwise the write needs no record.
            Err(StoreError::Failed { .. } | StoreError::Full) if !hides && !grows => {
                self.state.upto_now()
            }
            other => other?,
        };
        if let Some(period) = &mut self.inner().period {
            period.written_through(&self.state, range, seq, time);
        }
        Ok(())
    }

    /// Makes every acknowledged byte in the log durable, and for a clean file the record that it is
    /// clean. Otherwise a power failure could bring drained bytes back over newer canonical ones.
    /// For bytes that were written through, see [`File::canonical_unsynced`].
    pub fn sync(&self) -> Result<()> {
        match self.state.log.sync() {
            // The log is broken, but nothing of this file is in it, even after a power failure that
            // loses the end of its last dirty period.
            Err(StoreError::Failed { .. }) if self.is_clean() && !self.ended_lately() => Ok(()),
            other => other,
        }
    }

    fn ended_lately(&self) -> bool {
        let ended = self.state.ended.lock();
        ended.iter().any(|tally| tally.id == self.id)
    }

    /// Returns a number when the canonical file may have bytes that a power failure would lose. The
    /// caller syncs the file and passes the number to [`File::canonical_synced`].
    pub fn canonical_unsynced(&self) -> Option<u64> {
        let inner = self.inner();
        (inner.canonical_changes > inner.canonical_synced).then_some(inner.canonical_changes)
    }

    pub fn canonical_synced(&self, changes: u64) {
        let mut inner = self.inner();
        inner.canonical_synced = inner.canonical_synced.max(changes);
    }
}

impl super::DirtyPeriod {
    pub(crate) fn written_through(
        &mut self,
        state: &crate::store::state::StoreState,
        range: ByteRange,
        seq: crate::types::Seq,
        time: Timestamp,
    ) {
        self.row.size = self.row.size.max(range.end);
        self.row.mtime = time;
        self.hide(state, range, seq, Gone::Superseded);
    }
}
