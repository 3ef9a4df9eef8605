//! Merges a file's recent extents into what RocksDB holds, with one ordered walk over both.

use super::codec::{
    decode_extent, decode_extent_key, encode_extent, encode_row, extent_key, file_key,
};
use super::{FileRow, Index};
use crate::error::Result;
use crate::extent::{Extent, ExtentMap, Place};
use crate::types::{ByteRange, FileNo};
use rocksdb::{DBRawIterator, WriteBatch};

/// Keys in one batch: large enough to be cheap, small enough not to matter for memory. Tests use a
/// tiny value, so that batches are written all the time.
const BATCH: usize = if cfg!(test) { 3 } else { 16 * 1024 };
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

/// What a batch that was written did to a file's stored extents.
pub struct Merged<'a> {
    /// Parts of older extents that are no longer there.
    pub gone: &'a [(u64, Extent)],
    /// Change in the number of stored extents.
    pub count: i64,
}

impl Index {
    /// Applies `change`; `written` is called after each batch.
    ///
    /// A batch ends only where everything that the recent extents do not cover is stored. What they
    /// do cover, readers see in memory, and replay sees in the log.
    ///
    /// `from` is where the first recent extent begins that is not stored yet: 0 at first, and
    /// advanced with each batch. After `Full`, the same call with the same `from` continues where
    /// it stopped.
    pub fn merge(
        &self,
        change: &Change<'_>,
        from: &mut u64,
        written: &mut dyn FnMut(Merged<'_>),
    ) -> Result<()> {
        let mut out = Out {
            index: self,
            no: change.no,
            batch: WriteBatch::default(),
            gone: Vec::new(),
            count: 0,
            from,
            written,
        };
        let done = *out.from;
        out.batch.put(file_key(change.no), encode_row(change.row)?);
        let mut cold = change.has_cold.then(|| Cold::new(self, change.no));
        for (&start, extent) in change.recent.iter().skip_while(|(s, _)| **s < done) {
            if let Some(cold) = &mut cold {
                cold.clear(
                    ByteRange {
                        start,
                        end: extent.end,
                    },
                    &mut out,
                )?;
            }
            if extent.place != Place::Canonical {
                out.put(start, extent);
            }
            out.spill(BATCH, extent.end)?;
        }
        out.spill(0, u64::MAX)
    }
}

struct Out<'a> {
    index: &'a Index,
    no: FileNo,
    batch: WriteBatch,
    gone: Vec<(u64, Extent)>,
    count: i64,
    from: &'a mut u64,
    written: &'a mut dyn FnMut(Merged<'_>),
}

impl Out<'_> {
    fn put(&mut self, start: u64, extent: &Extent) {
        self.batch
            .put(extent_key(self.no, start), encode_extent(extent));
        self.count += 1;
    }

    fn delete(&mut self, start: u64) {
        self.batch.delete(extent_key(self.no, start));
        self.count -= 1;
    }

    /// Writes the batch if it has at least `at` keys. Recent extents before `stored` are then in
    /// the index.
    fn spill(&mut self, at: usize, stored: u64) -> Result<()> {
        if self.batch.len() >= at {
            self.index.write(std::mem::take(&mut self.batch))?;
            *self.from = stored;
            (self.written)(Merged {
                gone: &self.gone,
                count: self.count,
            });
            self.gone.clear();
            self.count = 0;
        }
        Ok(())
    }
}

/// A cursor over the stored extents of one file, as they were when the merge began.
struct Cold<'a> {
    iter: DBRawIterator<'a>,
    no: FileNo,
    /// The extent under the cursor, or what is stored of it now.
    current: Option<(u64, Extent)>,
    started: bool,
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
    fn clear(&mut self, range: ByteRange, out: &mut Out<'_>) -> Result<()> {
        self.advance_to(range.start)?;
        while let Some((start, extent)) = self.current.filter(|(start, _)| *start < range.end) {
            out.gone.extend(extent.cut(start, range));
            out.delete(start);
            if let Some((s, left)) = extent.cut(
                start,
                ByteRange {
                    start: 0,
                    end: range.start,
                },
            ) {
                out.put(s, &left);
            }
            let right = ByteRange {
                start: range.end,
                end: u64::MAX,
            };
            match extent.cut(start, right) {
                Some((s, rest)) => {
                    out.put(s, &rest);
                    self.current = Some((s, rest));
                }
                None => self.step()?,
            }
            out.spill(BATCH, range.start)?;
        }
        Ok(())
    }

    /// Moves to the first stored extent that ends after `at`.
    fn advance_to(&mut self, at: u64) -> Result<()> {
        if !self.started {
            self.started = true;
            self.seek(at)?;
        }
        let mut steps = 0;
        while self.current.is_some_and(|(_, extent)| extent.end <= at) {
            if steps == STEPS {
                self.seek(at)?;
            } else {
                self.step()?;
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

    fn step(&mut self) -> Result<()> {
        if self.iter.valid() {
            self.iter.next();
        }
        self.load()
    }

    fn load(&mut self) -> Result<()> {
        self.current = None;
        if let Some((key, value)) = self.iter.item()
            && let Some((no, start)) = decode_extent_key(key)
            && no == self.no
        {
            self.current = Some((start, decode_extent(no, value)?));
        }
        Ok(self.iter.status()?)
    }
}

#[cfg(test)]
mod tests;
