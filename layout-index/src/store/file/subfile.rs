//! The store's side of moving bytes from the log to subfiles. `crate::store::subfile` lists the steps and
//! what a kill after each of them leaves.
//!
//! A move changes nothing that a reader sees, so it needs no canonical guard and may run beside
//! everything else. Bytes that were overwritten, truncated or punched while they were being copied
//! are left out when the move is recorded, under a hold of their range.

use super::{DirtyPeriod, DirtyStripe, File, Snapshot};
use crate::error::{Result, StoreError};
use crate::extent::{Extent, Place, SubUnit};
use crate::store::index::SubfileRow;
use crate::store::log::record::{Kind, Record, SubPlace};
use crate::store::log::{Room, Write};
use crate::store::subfile::Subfile;
use crate::types::{ByteRange, Seq, Timestamp};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a [`File::log_snapshot`] that are in a subfile, synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subfiled {
    pub range: ByteRange,
    pub upto: Seq,
    pub unit: SubUnit,
    /// Offset of the bytes within the unit.
    pub skip: u32,
}

impl File {
    /// Stripes with bytes that the log has and no subfile has. Otherwise as
    /// [`File::dirty_stripes`].
    pub fn log_stripes(&self, stripe: u64, from: u64, max: usize) -> Result<Vec<DirtyStripe>> {
        self.stripes(stripe, from, max, in_log)
    }

    /// Returns what of `range` is in the log now.
    pub fn log_snapshot(&self, range: ByteRange) -> Result<Snapshot> {
        self.retry_moved(|| {
            let view = self.view(range)?;
            let upto = view.settled;
            let end = ByteRange::new(0, view.size);
            let pieces = view
                .extents
                .iter()
                .filter(|(_, e)| e.seq <= upto && in_log(&e.place))
                .filter_map(|(s, e)| e.cut(*s, end))
                .map(|(s, e)| self.piece(s, &e))
                .collect::<Result<Vec<_>>>()?;
            Ok(Snapshot {
                range,
                upto,
                pieces,
            })
        })
    }

    /// The subfiles of the current dirty period.
    pub fn subfiles(&self) -> Vec<Arc<Subfile>> {
        let inner = self.inner();
        let rows = inner.period.iter().flat_map(|period| &period.row.subfiles);
        rows.filter_map(|row| self.state.subfiles.get(row.no))
            .collect()
    }

    /// Undrained bytes that only the log has, according to the counters.
    pub fn in_log(&self) -> u64 {
        let inner = self.inner();
        inner.period.as_ref().map_or(0, |period| {
            let all = period.tally.undrained.load(Ordering::Relaxed);
            all.saturating_sub(period.tally.in_subfiles.load(Ordering::Relaxed))
        })
    }

    /// Records that a subfile was made for this dirty period. Returns `Clean` when the dirty period
    /// has ended; the caller then removes the subfile again.
    pub fn add_subfile(&self, subfile: Arc<Subfile>) -> Result<()> {
        let data = serde_json::to_vec(subfile.row())
            .map_err(|e| StoreError::Unusable(format!("subfile of file {}: {e}", self.id)))?;
        // A checkpoint must not count the record as applied before memory has changed too.
        let _floor = self.hold_range(ByteRange { start: 0, end: 0 });
        let no = self.period_no().ok_or(StoreError::Clean)?;
        let write = Write {
            kind: Kind::Subfile,
            file: no,
            offset: 0,
            data: &data,
            time: Timestamp::now(),
            // The drain must be able to record this however full the disk is.
            room: Room::Control,
        };
        self.state.log.append(no.0, write, |_, _| {})?;
        // The dirty period may have ended since, and another begun. The record belongs to the first
        // one only.
        match self
            .inner()
            .period
            .as_mut()
            .filter(|period| period.no == no)
        {
            Some(period) => {
                period.add_subfile(&self.state, subfile);
                Ok(())
            }
            None => Err(StoreError::Clean),
        }
    }

    /// Records that the subfiles have these bytes, **synced**, so that the log's copy of them is
    /// not needed any more. Bytes that are no longer the newest are left out. Returns the number of
    /// bytes moved.
    pub fn subfiled(&self, done: &[Subfiled]) -> Result<u64> {
        let _no_publication = self.publication_lock.read();
        let mut moved = 0;
        for part in done {
            debug_assert!(u64::from(part.skip) + part.range.len() <= u64::from(part.unit.len));
            moved += self.subfiled_one(part)?;
        }
        self.state.subfiled.fetch_add(moved, Ordering::Relaxed);
        Ok(moved)
    }

    fn subfiled_one(&self, part: &Subfiled) -> Result<u64> {
        // The holder of the range may be waiting for a file system that hangs. The bytes then stay
        // in the log.
        let Some(_held) = self.try_hold_range(part.range) else {
            return Ok(0);
        };
        let visible = match self.visible(part.range) {
            Err(StoreError::Clean) => return Ok(0),
            other => other?,
        };
        let mut moved = 0;
        for run in runs(&visible, part.upto) {
            // Record and memory change under one lock. A subfile that was retired in between would
            // be removed with the only copy of the bytes.
            let mut inner = self.inner();
            let Some(period) = &mut inner.period else {
                return Ok(moved);
            };
            if !period.has_subfile(part.unit.subfile) {
                return Ok(moved);
            }
            let record = Record {
                offset: run.start,
                len: run.len(),
                sub: SubPlace {
                    unit: part.unit,
                    skip: part.skip + (run.start - part.range.start) as u32,
                },
                ..Record::control(Kind::Subfiled, period.no)
            };
            let seq = self.state.log.append_control(record)?;
            let extent = Record { seq, ..record }.sub_extent();
            if period.has_lower_layers() {
                self.state.hidden.fetch_add(run.len(), Ordering::Relaxed);
            }
            period.put(&self.state, run.start, extent, None);
            moved += run.len();
        }
        Ok(moved)
    }

    /// Retires subfiles of this dirty period that nothing refers to and that have grown to `size`.
    /// Bytes that are being copied to one of them stay in the log.
    ///
    /// The records that emptied a subfile are synced before it is recorded as gone. Otherwise
    /// replay would drop a subfile for which it still finds extents.
    pub fn retire_empty_subfiles(&self, size: u64) -> Result<()> {
        let of_no_use = |s: &&Arc<Subfile>| s.live() == 0 && s.tail() >= size;
        for subfile in self.subfiles().iter().filter(of_no_use) {
            let tail = subfile.tail();
            self.state.log.sync()?;
            let mut inner = self.inner();
            let unchanged = |_: &&mut DirtyPeriod| subfile.live() == 0 && subfile.tail() == tail;
            let Some(period) = inner.period.as_mut().filter(unchanged) else {
                continue;
            };
            self.state.log.append_control(Record {
                arg: subfile.no().into(),
                ..Record::control(Kind::SubfileGone, period.no)
            })?;
            period.drop_subfile(&self.state, subfile.no());
        }
        Ok(())
    }

    /// Applies a `Subfile` record during recovery.
    pub(crate) fn found_subfile(&self, row: SubfileRow) {
        if let Some(period) = &mut self.inner().period {
            period.add_subfile(&self.state, Arc::new(Subfile::new(row)));
        }
    }
}

fn in_log(place: &Place) -> bool {
    matches!(place, Place::Log { .. })
}

/// Ranges that are in the log and not newer than `upto`.
fn runs(visible: &[(u64, Extent)], upto: Seq) -> Vec<ByteRange> {
    let mut runs: Vec<ByteRange> = Vec::new();
    for (start, extent) in visible {
        if extent.seq > upto || !in_log(&extent.place) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end == *start => last.end = extent.end,
            _ => runs.push(ByteRange::new(*start, extent.end)),
        }
    }
    runs
}
