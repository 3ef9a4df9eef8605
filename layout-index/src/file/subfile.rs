//! The store's side of moving bytes from the log to subfiles. `crate::subfile` has the order of
//! steps and what each leaves behind.
//!
//! A move changes nothing that a reader sees, so it needs no canonical guard and may go on beside
//! everything else: bytes that were overwritten, truncated or punched while they were on their way
//! are left out when the move is recorded, under a hold of their range.

use super::{DirtyStripe, File, Life, Snapshot};
use crate::error::{Result, StoreError};
use crate::extent::{Extent, Place, SubUnit};
use crate::index::SubfileRow;
use crate::log::record::{Kind, Record, SubPlace};
use crate::log::{Room, Write};
use crate::subfile::Subfile;
use crate::types::{ByteRange, Seq, Timestamp};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a [`File::log_snapshot`] that are in a subfile, synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subfiled {
    pub range: ByteRange,
    pub upto: Seq,
    pub unit: SubUnit,
    /// Where in the unit they begin.
    pub skip: u32,
}

impl File {
    /// Stripes of which the log has bytes that no subfile has; as [`File::dirty_stripes`].
    pub fn log_stripes(&self, stripe: u64, from: u64, max: usize) -> Result<Vec<DirtyStripe>> {
        self.stripes(stripe, from, max, in_log)
    }

    /// Of `range`, what is in the log now.
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

    /// The subfiles of the current life.
    pub fn subfiles(&self) -> Vec<Arc<Subfile>> {
        let inner = self.inner();
        let rows = inner.life.iter().flat_map(|life| &life.row.subfiles);
        rows.filter_map(|row| self.shared.subfiles.get(row.no))
            .collect()
    }

    /// Undrained bytes that only the log has, by the books.
    pub fn in_log(&self) -> u64 {
        let inner = self.inner();
        inner.life.as_ref().map_or(0, |life| {
            let all = life.tally.undrained.load(Ordering::Relaxed);
            all.saturating_sub(life.tally.in_subfiles.load(Ordering::Relaxed))
        })
    }

    /// A subfile was made for this life. `Clean` when the life has ended: remove it again.
    pub fn add_subfile(&self, subfile: Arc<Subfile>) -> Result<()> {
        let data = serde_json::to_vec(subfile.row())
            .map_err(|e| StoreError::Unusable(format!("subfile of file {}: {e}", self.id)))?;
        // No checkpoint counts the record as done before memory says so too.
        let _floor = self.hold_range(ByteRange { start: 0, end: 0 });
        let no = self.life_no().ok_or(StoreError::Clean)?;
        let write = Write {
            kind: Kind::Subfile,
            file: no,
            offset: 0,
            data: &data,
            time: Timestamp::now(),
            // The drain must be able to say so however full the disk is.
            room: Room::Control,
        };
        self.shared.log.append(no.0, write, |_, _| {})?;
        // The life may have ended since, and another begun: the record is of no other.
        match self.inner().life.as_mut().filter(|life| life.no == no) {
            Some(life) => {
                life.add_subfile(&self.shared, subfile);
                Ok(())
            }
            None => Err(StoreError::Clean),
        }
    }

    /// The subfiles were written and **synced**: the log's copy of these bytes is not needed any
    /// more. What is not the newest any longer stays out. Gives the bytes that were moved.
    pub fn subfiled(&self, done: &[Subfiled]) -> Result<u64> {
        let _moving = self.moving.read();
        let mut moved = 0;
        for part in done {
            debug_assert!(u64::from(part.skip) + part.range.len() <= u64::from(part.unit.len));
            moved += self.subfiled_one(part)?;
        }
        self.shared.subfiled.fetch_add(moved, Ordering::Relaxed);
        Ok(moved)
    }

    fn subfiled_one(&self, part: &Subfiled) -> Result<u64> {
        // Who has the range may wait for a file system that hangs: the bytes stay in the log then.
        let Some(_held) = self.try_hold_range(part.range) else {
            return Ok(0);
        };
        let visible = match self.visible(part.range) {
            Err(StoreError::Clean) => return Ok(0),
            other => other?,
        };
        let mut moved = 0;
        for run in runs(&visible, part.upto) {
            // Record and memory in one go: a subfile that is let go of in between would be gone
            // with the only copy.
            let mut inner = self.inner();
            let Some(life) = &mut inner.life else {
                return Ok(moved);
            };
            if !life.has_subfile(part.unit.subfile) {
                return Ok(moved);
            }
            let record = Record {
                offset: run.start,
                len: run.len(),
                sub: SubPlace {
                    unit: part.unit,
                    skip: part.skip + (run.start - part.range.start) as u32,
                },
                ..Record::control(Kind::Subfiled, life.no)
            };
            let seq = self.shared.log.append_control(record)?;
            let extent = Record { seq, ..record }.sub_extent();
            if life.has_lower_layers() {
                self.shared.hidden.fetch_add(run.len(), Ordering::Relaxed);
            }
            life.put(&self.shared, run.start, extent, None);
            moved += run.len();
        }
        Ok(moved)
    }

    /// Lets go of subfiles of this life that nothing refers to and that have grown to `size`. Bytes
    /// that are on their way to one of them stay in the log.
    ///
    /// What emptied it is durable before the record: replay would else drop a subfile that it
    /// still finds extents of.
    pub fn retire_empty_subfiles(&self, size: u64) -> Result<()> {
        let of_no_use = |s: &&Arc<Subfile>| s.live() == 0 && s.tail() >= size;
        for subfile in self.subfiles().iter().filter(of_no_use) {
            let tail = subfile.tail();
            self.shared.log.sync()?;
            let mut inner = self.inner();
            let unchanged = |_: &&mut Life| subfile.live() == 0 && subfile.tail() == tail;
            let Some(life) = inner.life.as_mut().filter(unchanged) else {
                continue;
            };
            self.shared.log.append_control(Record {
                arg: subfile.no().into(),
                ..Record::control(Kind::SubfileGone, life.no)
            })?;
            life.drop_subfile(&self.shared, subfile.no());
        }
        Ok(())
    }

    /// For recovery: what a `Subfile` record says.
    pub(crate) fn found_subfile(&self, row: SubfileRow) {
        if let Some(life) = &mut self.inner().life {
            life.add_subfile(&self.shared, Arc::new(Subfile::new(row)));
        }
    }
}

fn in_log(place: &Place) -> bool {
    matches!(place, Place::Log { .. })
}

/// Stretches that the log has, not newer than `upto`.
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
