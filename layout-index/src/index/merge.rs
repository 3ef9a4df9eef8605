//! Folding a file's recent extents into what RocksDB holds: one ordered walk over both.

use super::codec::{
    decode_extent, decode_extent_key, encode_extent, encode_row, extent_key, file_key,
};
use super::{FileRow, Index};
use crate::error::Result;
use crate::extent::{Extent, ExtentMap, Place};
use crate::types::{ByteRange, FileNo};
use rocksdb::{DBRawIterator, WriteBatch};

/// Keys in one batch: large enough to be cheap, small enough not to count as memory.
const BATCH: usize = 16 * 1024;
/// Steps to try before a seek: a seek costs about as much as this many.
const STEPS: usize = 24;

/// One file's part of a merge.
pub struct Change<'a> {
    pub no: FileNo,
    pub row: &'a FileRow,
    pub recent: &'a ExtentMap,
    /// False when the index is known to have no extents of this file.
    pub has_cold: bool,
}

/// How a merge changed the number and the bytes of a file's extents in the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    pub added: u64,
    pub removed: u64,
}

impl Index {
    /// Applies `change`; `gone` is called with every part of an older extent that it replaced.
    pub fn merge(&self, change: &Change<'_>, mut gone: impl FnMut(u64, Extent)) -> Result<Merged> {
        let mut out = Out {
            index: self,
            no: change.no,
            batch: WriteBatch::default(),
            merged: Merged::default(),
        };
        out.batch.put(file_key(change.no), encode_row(change.row)?);
        let mut cold = change.has_cold.then(|| Cold::new(self, change.no));
        for (&start, extent) in change.recent.iter() {
            let range = ByteRange {
                start,
                end: extent.end,
            };
            if let Some(cold) = &mut cold {
                cold.clear(range, &mut out, &mut gone)?;
            }
            if extent.place != Place::Canonical {
                out.put(start, extent)?;
            }
        }
        if let Some(cold) = &mut cold {
            cold.settle(&mut out)?;
        }
        self.write(out.batch)?;
        Ok(out.merged)
    }
}

struct Out<'a> {
    index: &'a Index,
    no: FileNo,
    batch: WriteBatch,
    merged: Merged,
}

impl Out<'_> {
    fn put(&mut self, start: u64, extent: &Extent) -> Result<()> {
        self.batch
            .put(extent_key(self.no, start), encode_extent(extent));
        self.merged.added += 1;
        self.spill()
    }

    fn delete(&mut self, start: u64) -> Result<()> {
        self.batch.delete(extent_key(self.no, start));
        self.merged.removed += 1;
        self.spill()
    }

    fn spill(&mut self) -> Result<()> {
        if self.batch.len() >= BATCH {
            self.index.write(std::mem::take(&mut self.batch))?;
        }
        Ok(())
    }
}

/// A cursor over the stored extents of one file, as they were when the merge began.
struct Cold<'a> {
    iter: DBRawIterator<'a>,
    no: FileNo,
    /// The extent under the cursor, cut by what has been cleared of it; with its stored start.
    current: Option<Current>,
    started: bool,
}

#[derive(Clone, Copy)]
struct Current {
    stored_start: u64,
    start: u64,
    extent: Extent,
    changed: bool,
}

impl<'a> Cold<'a> {
    fn new(index: &'a Index, no: FileNo) -> Cold<'a> {
        Cold {
            iter: index.db.raw_iterator(),
            no,
            current: None,
            started: false,
        }
    }

    /// Removes `range` from the stored extents. Ranges must come in order.
    fn clear(
        &mut self,
        range: ByteRange,
        out: &mut Out<'_>,
        gone: &mut impl FnMut(u64, Extent),
    ) -> Result<()> {
        self.advance_to(range.start, out)?;
        while let Some(mut current) = self.current {
            if current.start >= range.end {
                break;
            }
            if let Some((s, part)) = current.extent.cut(current.start, range) {
                gone(s, part);
                let left = ByteRange {
                    start: 0,
                    end: range.start,
                };
                if let Some((s, left)) = current.extent.cut(current.start, left) {
                    out.put(s, &left)?;
                    if s == current.stored_start {
                        // Replaced in place: the count of the stored one stands for it.
                        out.merged.removed += 1;
                        current.stored_start = u64::MAX;
                    }
                }
                let right = ByteRange {
                    start: range.end,
                    end: u64::MAX,
                };
                match current.extent.cut(current.start, right) {
                    Some((s, rest)) => {
                        if current.stored_start != u64::MAX {
                            out.delete(current.stored_start)?;
                        }
                        self.current = Some(Current {
                            stored_start: u64::MAX,
                            start: s,
                            extent: rest,
                            changed: true,
                        });
                        break;
                    }
                    None => {
                        if current.stored_start != u64::MAX {
                            out.delete(current.stored_start)?;
                        }
                        self.step(out, false)?;
                    }
                }
            } else {
                self.step(out, true)?;
            }
        }
        Ok(())
    }

    /// Moves to the first stored extent that ends after `at`.
    fn advance_to(&mut self, at: u64, out: &mut Out<'_>) -> Result<()> {
        if !self.started {
            self.started = true;
            self.seek(at)?;
        }
        let mut steps = 0;
        while let Some(current) = self.current {
            if current.extent.end > at {
                break;
            }
            if steps == STEPS {
                self.settle(out)?;
                self.seek(at)?;
            } else {
                self.step(out, true)?;
            }
            steps += 1;
        }
        Ok(())
    }

    fn seek(&mut self, at: u64) -> Result<()> {
        self.iter.seek_for_prev(extent_key(self.no, at));
        self.load()?;
        if self.current.is_none() {
            self.iter.seek(extent_key(self.no, at));
            self.load()?;
        }
        Ok(())
    }

    fn step(&mut self, out: &mut Out<'_>, keep: bool) -> Result<()> {
        if keep {
            self.settle(out)?;
        }
        if self.iter.valid() {
            self.iter.next();
        }
        self.load()
    }

    /// Writes back what is left of the current extent if it was cut.
    fn settle(&mut self, out: &mut Out<'_>) -> Result<()> {
        if let Some(current) = self.current.take()
            && current.changed
        {
            out.put(current.start, &current.extent)?;
        }
        Ok(())
    }

    fn load(&mut self) -> Result<()> {
        self.current = None;
        if let Some((key, value)) = self.iter.item()
            && let Some((no, start)) = decode_extent_key(key)
            && no == self.no
        {
            let extent = decode_extent(no, value)?;
            self.current = Some(Current {
                stored_start: start,
                start,
                extent,
                changed: false,
            });
        }
        Ok(self.iter.status()?)
    }
}

#[cfg(test)]
mod tests;
