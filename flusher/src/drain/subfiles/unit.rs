//! One batch: copied out of the log into a buffer, and written from there to a subfile with one
//! write.

use super::{Batch, Mover, Written};
use crate::housekeeping;
use crate::ost::{Ost, OstError};
use crate::stripe::Work;
use layout_index::checksum::crc32c;
use layout_index::extent::{BLOCK, SubUnit, UNIT_MAX};
use layout_index::store::subfile::ALIGN;
use layout_index::{
    ByteRange, DiskFile, Piece, Plan, Seq, Snapshot, StoreError, Subfile, Subfiled,
};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a batch went.
struct Appended {
    subfile: Arc<Subfile>,
    disk: Arc<dyn DiskFile>,
    at: u64,
    failed_syncs: u64,
}

/// Why a batch did not get to an OST.
pub(super) enum Refused {
    Ost(OstError),
    Store(StoreError),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Refused::Store(error)
    }
}

/// Where the runs of a batch go in its buffer.
#[derive(Default)]
struct Layout {
    runs: Vec<PlacedRun>,
    len: u64,
}

struct PlacedRun {
    range: ByteRange,
    upto: Seq,
    pieces: Vec<Piece>,
    at: u64,
}

impl Layout {
    /// Adds runs one right behind the other until there are at least `most` bytes. The rest stays
    /// in the log for the next pass.
    fn add(&mut self, snapshot: Snapshot, most: u64) {
        for run in Work::from_pieces(&snapshot.pieces).runs {
            if self.len >= most {
                return;
            }
            self.runs.push(PlacedRun {
                range: run.range,
                upto: snapshot.upto,
                pieces: snapshot.pieces[run.pieces].to_vec(),
                at: self.len,
            });
            self.len += run.range.len();
        }
    }
}

impl Mover {
    /// Writes one batch to one OST. `None`: no byte of it is in the log any more.
    pub fn write(&self, batch: &Batch, ost: &Ost) -> Result<Option<Written>, Refused> {
        // The file's last name may have been removed since the job began.
        if self.job.file.is_unlinked() {
            return Ok(None);
        }
        let mut layout = Layout::default();
        let most = 2 * self.job.engine.settings.read().stripe;
        for range in &batch.stripes {
            match self.job.file.log_snapshot(*range) {
                Err(StoreError::Clean) => return Ok(None),
                snapshot => layout.add(snapshot?, most),
            }
        }
        let len = layout.len.next_multiple_of(ALIGN);
        if layout.runs.is_empty() {
            return Ok(None);
        }
        let flight = self.keeper.targets.begin(ost.index, len);
        self.job.engine.buffers.with(|buffer| {
            let bytes = buffer.slice(len as usize);
            // A buffer that was used before must not carry one user's bytes into another's file.
            bytes.fill(0);
            let units = self.fill(&layout, bytes)?;
            if units.is_empty() {
                return Ok(None);
            }
            let written = self.append(ost, bytes);
            match &written {
                Ok(_) => flight.done(),
                Err(Refused::Ost(error)) => flight.failed(error),
                Err(Refused::Store(_)) => drop(flight),
            }
            let Appended {
                subfile,
                disk,
                at,
                failed_syncs,
            } = written?;
            let units = units.into_iter().map(|mut unit| {
                unit.unit.subfile = subfile.no();
                unit.unit.block += (at / BLOCK) as u32;
                unit
            });
            let units: Vec<Subfiled> = units.collect();
            Ok(Some(Written {
                bytes: units.iter().map(|u| u.range.len()).sum(),
                units,
                subfile,
                disk,
                failed_syncs,
            }))
        })
    }

    /// Copies the runs out of the log. Units are cut from the buffer, no matter where runs begin
    /// and end in them, so that many short runs share one checksum. The units' blocks count from
    /// the beginning of the buffer.
    fn fill(&self, layout: &Layout, bytes: &mut [u8]) -> Result<Vec<Subfiled>, StoreError> {
        let mut copied = Vec::new();
        for run in &layout.runs {
            let plan = Plan {
                range: run.range,
                size: run.range.end,
                pieces: run.pieces.clone(),
            };
            let there = &mut bytes[run.at as usize..][..run.range.len() as usize];
            match self.job.file.read(&plan, there, None) {
                Err(StoreError::Checksum { .. }) => {
                    self.damaged.store(true, Ordering::Relaxed);
                    continue;
                }
                other => other?,
            }
            copied.push(run);
        }
        let whole = u64::from(UNIT_MAX);
        let units: Vec<SubUnit> = bytes[..layout.len as usize]
            .chunks(UNIT_MAX as usize)
            .enumerate()
            .map(|(n, unit)| SubUnit {
                subfile: 0,
                block: (n as u64 * whole / BLOCK) as u32,
                len: unit.len() as u32,
                crc: crc32c(unit),
            })
            .collect();
        let mut parts = Vec::new();
        for run in copied {
            let mut range = run.range;
            let mut at = run.at;
            while !range.is_empty() {
                let end = range.end.min(range.start + (whole - at % whole));
                parts.push(Subfiled {
                    range: ByteRange::new(range.start, end),
                    upto: run.upto,
                    unit: units[(at / whole) as usize],
                    skip: (at % whole) as u32,
                });
                at += end - range.start;
                range.start = end;
            }
        }
        Ok(parts)
    }

    /// Appends to the file's subfile on `ost`, and returns where.
    fn append(&self, ost: &Ost, bytes: &[u8]) -> Result<Appended, Refused> {
        let slot = self.slots.lock().entry(ost.index).or_default().clone();
        let failed = |what| move |e| Refused::Ost(OstError::new(ost, what, e));
        loop {
            let subfile = {
                let mut slot = slot.lock();
                match &*slot {
                    Some(known) if !known.is_spent() => known.clone(),
                    _ => {
                        let made = housekeeping::make_subfile(
                            &self.job.engine,
                            &self.keeper,
                            &self.job.file,
                            ost,
                        )
                        .map_err(|e| match e {
                            housekeeping::NotMade::Ost(e) => Refused::Ost(e),
                            housekeeping::NotMade::Store(e) => Refused::Store(e),
                        })?;
                        slot.insert(made).clone()
                    }
                }
            };
            let disk = match subfile.file(&*self.keeper.opener) {
                // The subfile's dirty period has ended and the subfile was removed: that is no
                // fault of the OST.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                    slot.lock().take_if(|known| Arc::ptr_eq(known, &subfile));
                    continue;
                }
                opened => opened.map_err(failed("opening a subfile"))?,
            };
            let at = subfile
                .reserve(&*disk, bytes.len() as u64)
                .map_err(failed("asking the size of a subfile"))?;
            let Some(at) = at else {
                slot.lock().take();
                continue;
            };
            let failed_syncs = subfile.failed_syncs();
            if let Err(e) = disk.write_at(&[IoSlice::new(bytes)], at) {
                subfile.reopen_after(&e, &disk);
                return Err(failed("writing to a subfile")(e));
            }
            return Ok(Appended {
                subfile,
                disk,
                at,
                failed_syncs,
            });
        }
    }
}
