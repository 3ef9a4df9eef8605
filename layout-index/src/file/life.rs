//! A dirty life: the state between a file's first absorbed write and the drain's last word.
//!
//! The methods here change memory only. They are called by the live paths after the record is
//! in the log, and by recovery in the order of the records: one set of rules for both.

use crate::extent::{Extent, ExtentMap, Place};
use crate::index::FileRow;
use crate::shared::{Gone, Shared, Tally};
use crate::subfile::Subfile;
use crate::types::{ByteRange, FileNo, Seq, Timestamp};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What is known of the layers below `hot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lower {
    /// They were merged: what is there is undrained.
    Merged,
    /// They could not be merged, and the caller looks what of them is visible.
    Hidden,
}

#[derive(Debug)]
pub(crate) struct Life {
    pub no: FileNo,
    pub row: FileRow,
    /// `row` differs from what the index has.
    pub row_changed: bool,
    pub hot: ExtentMap,
    pub frozen: Option<Arc<ExtentMap>>,
    pub tally: Arc<Tally>,
    /// Grows with every change; tells `finish` that something came in between.
    pub generation: u64,
    /// Grows with every freeze; tells who computed something from the layers that they moved.
    pub freezes: u64,
    /// Grows whenever bytes or a cut leave the life for the canonical file or a layout, and with
    /// every cut: tells who asked for the canonical file's size that it may be another by now.
    pub leaves: u64,
    /// The size below that `row.size` was made with last, and `leaves` at that time.
    pub based: Option<(u64, u64)>,
}

impl Life {
    pub fn new(no: FileNo, row: FileRow, tally: Arc<Tally>) -> Life {
        Life {
            no,
            row,
            row_changed: true,
            hot: ExtentMap::default(),
            frozen: None,
            tally,
            generation: 0,
            freezes: 0,
            leaves: 0,
            based: None,
        }
    }

    pub fn has_lower_layers(&self) -> bool {
        self.frozen.is_some() || self.tally.cold.load(Ordering::Acquire) > 0
    }

    fn changed(&mut self) {
        self.generation += 1;
        self.row_changed = true;
    }

    /// New bytes in the log. `moved` by compaction changes neither size nor time.
    pub fn put(&mut self, shared: &Shared, start: u64, extent: Extent, time: Option<Timestamp>) {
        let why = if time.is_some() {
            Gone::Superseded
        } else {
            Gone::Elsewhere
        };
        self.row.size = self.row.size.max(extent.end);
        if let Some(time) = time {
            self.row.mtime = time;
        }
        shared.took(&self.tally, start, &extent);
        self.insert(shared, start, extent, why);
    }

    fn insert(&mut self, shared: &Shared, start: u64, extent: Extent, why: Gone) {
        let before = self.hot.len();
        let tally = &self.tally;
        self.hot
            .insert(start, extent, |s, e| shared.dropped(tally, s, &e, why));
        count_hot(shared, before, self.hot.len());
        self.changed();
    }

    pub fn truncate(&mut self, shared: &Shared, size: u64, seq: Seq, time: Timestamp) {
        if size < self.row.size {
            self.row.limit = self.row.limit.min(size);
            self.row.shapes.retain(|(_, cut)| *cut < size);
            self.row.shapes.push((seq, size));
            self.hide(
                shared,
                ByteRange {
                    start: size,
                    end: u64::MAX,
                },
                seq,
                Gone::Superseded,
            );
        }
        self.row.size = size;
        self.row.grown = size;
        self.row.mtime = time;
        self.row.shaped = seq;
        self.leaves += 1;
        self.changed();
    }

    pub fn zero(
        &mut self,
        shared: &Shared,
        range: ByteRange,
        grow: bool,
        seq: Seq,
        time: Timestamp,
    ) {
        let end = if grow {
            range.end
        } else {
            range.end.min(self.row.size)
        };
        if range.start < end {
            self.insert(
                shared,
                range.start,
                Extent {
                    end,
                    seq,
                    place: Place::Zero,
                },
                Gone::Superseded,
            );
            self.row.size = self.row.size.max(end);
            // Bytes that made the file this long may be among those that are zeros now.
            self.row.grown = self.row.grown.max(end);
            self.row.shaped = seq;
        }
        self.row.mtime = time;
        self.changed();
    }

    pub fn set_mtime(&mut self, time: Timestamp) {
        self.row.mtime = time;
        self.changed();
    }

    pub fn add_subfile(&mut self, shared: &Shared, subfile: Arc<Subfile>) {
        if !self.has_subfile(subfile.no()) {
            self.row.subfiles.push(subfile.row().clone());
        }
        shared.subfiles.add(subfile);
        self.changed();
    }

    pub fn has_subfile(&self, no: u32) -> bool {
        self.row.subfiles.iter().any(|row| row.no == no)
    }

    /// Nothing refers to the subfile any more.
    pub fn drop_subfile(&mut self, shared: &Shared, no: u32) {
        self.row.subfiles.retain(|row| row.no != no);
        shared.subfiles.retire(no);
        self.changed();
    }

    pub fn unlink(&mut self) {
        self.row.unlinked = true;
        self.changed();
    }

    /// The canonical file (or nothing) is newest in `range` now, whatever the layers hold.
    pub fn hide(&mut self, shared: &Shared, range: ByteRange, seq: Seq, why: Gone) {
        self.leaves += 1;
        let before = self.hot.len();
        let tally = &self.tally;
        if self.frozen.is_some() || self.tally.cold.load(Ordering::Acquire) > 0 {
            let marker = Extent {
                end: range.end,
                seq,
                place: Place::Canonical,
            };
            self.hot.insert(range.start, marker, |s, e| {
                shared.dropped(tally, s, &e, why)
            });
        } else {
            self.hot
                .remove(range, |s, e| shared.dropped(tally, s, &e, why));
        }
        count_hot(shared, before, self.hot.len());
        self.changed();
    }

    /// Drops extents in memory within `range` that are not newer than `upto`; with `mark`, also
    /// hides what lower layers hold there. Parts in `keep` (sorted) are left alone.
    pub fn forget(
        &mut self,
        shared: &Shared,
        range: ByteRange,
        upto: Seq,
        keep: &[ByteRange],
        mark: bool,
    ) {
        self.leaves += 1;
        let before = self.hot.len();
        let mut kept: Vec<ByteRange> = keep.to_vec();
        let newer = self.hot.within(range).filter(|(_, e)| e.seq > upto);
        kept.extend(newer.map(|(s, e)| ByteRange {
            start: s,
            end: e.end,
        }));
        kept.sort_by_key(|r| r.start);
        let mut at = range.start;
        let tally = &self.tally;
        for stop in kept.iter().copied().chain([ByteRange {
            start: range.end,
            end: range.end,
        }]) {
            let gap = ByteRange {
                start: at,
                end: stop.start.min(range.end),
            };
            if gap.start < gap.end {
                let note = |s: u64, e: Extent| shared.dropped(tally, s, &e, Gone::Elsewhere);
                if mark {
                    shared.hidden.fetch_add(gap.len(), Ordering::Relaxed);
                    let marker = Extent {
                        end: gap.end,
                        seq: upto,
                        place: Place::Canonical,
                    };
                    self.hot.insert(gap.start, marker, note);
                } else {
                    self.hot.remove(gap, note);
                }
            }
            at = at.max(stop.end);
        }
        count_hot(shared, before, self.hot.len());
        self.changed();
    }

    /// The canonical file was cut at `limit`, or the cut and the growth to `grown` were published;
    /// a lower cut, or another growth, may have come since. `since` is the lowest cut that came
    /// after what was published, and is still to be done.
    pub fn trimmed(&mut self, limit: u64, grown: u64, since: u64) {
        if self.row.limit == limit {
            self.row.limit = since;
            self.row.shapes.retain(|(_, cut)| *cut >= since);
        }
        if self.row.grown == grown {
            self.row.grown = 0;
        }
        self.leaves += 1;
        self.changed();
    }

    /// Nothing undrained is left. With [`Lower::Hidden`], in memory.
    pub fn is_drained(&self, lower: Lower) -> bool {
        (lower == Lower::Hidden || !self.has_lower_layers())
            && self.hot.iter().all(|(_, e)| e.place == Place::Canonical)
    }

    /// Takes everything in memory out of the books: the life ends, drained or dropped.
    pub fn empty(&mut self, shared: &Shared, why: Gone) {
        let before = self.hot.len();
        let tally = &self.tally;
        self.hot
            .remove(ByteRange::ALL, |s, e| shared.dropped(tally, s, &e, why));
        count_hot(shared, before, self.hot.len());
        for row in self.row.subfiles.drain(..) {
            shared.subfiles.retire(row.no);
        }
    }
}

fn count_hot(shared: &Shared, before: usize, after: usize) {
    if after >= before {
        shared
            .hot
            .fetch_add((after - before) as u64, Ordering::Relaxed);
    } else {
        shared
            .hot
            .fetch_sub((before - after) as u64, Ordering::Relaxed);
    }
}
