//! A dirty period: a file's state between its first absorbed write and the end of its drain.
//!
//! The methods here change memory only. The running store calls them after the record is in the
//! log, and recovery calls them in the order of the records, so both follow the same rules.

use crate::extent::{Extent, ExtentMap, Place};
use crate::store::index::FileRow;
use crate::store::state::{Gone, StoreState, Tally};
use crate::store::subfile::Subfile;
use crate::types::{ByteRange, FileNo, Seq, Timestamp};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// State of the layers below `hot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lower {
    /// They were merged, so every extent in them is undrained.
    Merged,
    /// They could not be merged; the caller checks which of their extents are visible.
    Hidden,
}

#[derive(Debug)]
pub(crate) struct DirtyPeriod {
    pub no: FileNo,
    pub row: FileRow,
    /// `row` differs from what the index has.
    pub row_changed: bool,
    pub hot: ExtentMap,
    pub frozen: Option<Arc<ExtentMap>>,
    pub tally: Arc<Tally>,
    /// Incremented with every change, so that `finish` notices changes that came in between.
    pub generation: u64,
    /// Incremented with every freeze, so that a caller that computed something from the layers
    /// notices that they moved.
    pub freezes: u64,
    /// Incremented with every cut, and whenever bytes or a cut leave the dirty period for the
    /// canonical file or a layout. A caller that asked for the canonical file's size before may
    /// then have an outdated one.
    pub leaves: u64,
    /// Size of the layers below from which `row.size` was last computed, and `leaves` at that time.
    pub based: Option<(u64, u64)>,
}

impl DirtyPeriod {
    pub fn new(no: FileNo, row: FileRow, tally: Arc<Tally>) -> DirtyPeriod {
        DirtyPeriod {
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

    /// Adds bytes that were appended to the log or recorded in a subfile. `time` is `None` when
    /// they only moved: then neither size nor modification time changes.
    pub fn put(&mut self, state: &StoreState, start: u64, extent: Extent, time: Option<Timestamp>) {
        let why = if time.is_some() {
            Gone::Superseded
        } else {
            Gone::Elsewhere
        };
        self.row.size = self.row.size.max(extent.end);
        if let Some(time) = time {
            self.row.mtime = time;
        }
        state.took(&self.tally, start, &extent);
        self.insert(state, start, extent, why);
    }

    fn insert(&mut self, state: &StoreState, start: u64, extent: Extent, why: Gone) {
        let before = self.hot.len();
        let tally = &self.tally;
        self.hot
            .insert(start, extent, |s, e| state.dropped(tally, s, &e, why));
        count_hot(state, before, self.hot.len());
        self.changed();
    }

    pub fn truncate(&mut self, state: &StoreState, size: u64, seq: Seq, time: Timestamp) {
        if size < self.row.size {
            self.row.limit = self.row.limit.min(size);
            self.row.shapes.retain(|(_, cut)| *cut < size);
            self.row.shapes.push((seq, size));
            self.hide(
                state,
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
        state: &StoreState,
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
                state,
                range.start,
                Extent {
                    end,
                    seq,
                    place: Place::Zero,
                },
                Gone::Superseded,
            );
            self.row.size = self.row.size.max(end);
            // The bytes that made the file this long may be among those that are now zeros.
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

    pub fn add_subfile(&mut self, state: &StoreState, subfile: Arc<Subfile>) {
        if !self.has_subfile(subfile.no()) {
            self.row.subfiles.push(subfile.row().clone());
        }
        state.subfiles.add(subfile);
        self.changed();
    }

    pub fn has_subfile(&self, no: u32) -> bool {
        self.row.subfiles.iter().any(|row| row.no == no)
    }

    /// Drops a subfile that nothing refers to any more.
    pub fn drop_subfile(&mut self, state: &StoreState, no: u32) {
        self.row.subfiles.retain(|row| row.no != no);
        state.subfiles.retire(no);
        self.changed();
    }

    pub fn unlink(&mut self) {
        self.row.unlinked = true;
        self.changed();
    }

    /// From now on the newest bytes of `range` are those of the canonical file (or there are none),
    /// whatever the layers hold.
    pub fn hide(&mut self, state: &StoreState, range: ByteRange, seq: Seq, why: Gone) {
        self.leaves += 1;
        let before = self.hot.len();
        let tally = &self.tally;
        if self.frozen.is_some() || self.tally.cold.load(Ordering::Acquire) > 0 {
            let marker = Extent {
                end: range.end,
                seq,
                place: Place::Canonical,
            };
            self.hot
                .insert(range.start, marker, |s, e| state.dropped(tally, s, &e, why));
        } else {
            self.hot
                .remove(range, |s, e| state.dropped(tally, s, &e, why));
        }
        count_hot(state, before, self.hot.len());
        self.changed();
    }

    /// Drops extents in memory within `range` that are not newer than `upto`. With `mark`, also
    /// hides what lower layers hold there. Parts in `keep` are left alone.
    pub fn forget(
        &mut self,
        state: &StoreState,
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
                let note = |s: u64, e: Extent| state.dropped(tally, s, &e, Gone::Elsewhere);
                if mark {
                    state.hidden.fetch_add(gap.len(), Ordering::Relaxed);
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
        count_hot(state, before, self.hot.len());
        self.changed();
    }

    /// Records that the canonical file was cut at `limit`, or that the cut and the growth to
    /// `grown` were published. A lower cut, or another growth, may have come since. `since` is the
    /// lowest cut that came after what was published and is still to be done.
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

    /// True if nothing undrained is left. With [`Lower::Hidden`] only memory is checked.
    pub fn is_drained(&self, lower: Lower) -> bool {
        (lower == Lower::Hidden || !self.has_lower_layers())
            && self.hot.iter().all(|(_, e)| e.place == Place::Canonical)
    }

    /// Removes everything in memory from the counters, because the dirty period ends, drained or
    /// dropped.
    pub fn empty(&mut self, state: &StoreState, why: Gone) {
        let before = self.hot.len();
        let tally = &self.tally;
        self.hot
            .remove(ByteRange::ALL, |s, e| state.dropped(tally, s, &e, why));
        count_hot(state, before, self.hot.len());
        for row in self.row.subfiles.drain(..) {
            state.subfiles.retire(row.no);
        }
    }
}

fn count_hot(state: &StoreState, before: usize, after: usize) {
    if after >= before {
        state
            .hot
            .fetch_add((after - before) as u64, Ordering::Relaxed);
    } else {
        state
            .hot
            .fetch_sub((before - after) as u64, Ordering::Relaxed);
    }
}
