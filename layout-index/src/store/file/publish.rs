//! The store's side of publishing: what a batch takes out of a file, and how the store forgets it.
//!
//! # Consistency
//!
//! A capture is taken with all writers excluded, so it shows the file at one moment: a truncate is
//! in it together with exactly the bytes that came after it. From the capture until its record, no
//! bytes of the file move to another place in the store (`publication_lock`). Moved bytes would get a newer
//! number, would not be forgotten, and would be published again later, over newer bytes of other
//! nodes.
//!
//! # Crash behaviour
//!
//! - If the daemon is killed before the layout has the batch, the store has everything.
//! - If it is killed after that and before the records here, the next start finds the batch in its
//!   own layout and calls [`File::forget_published_before`] before any write.
//! - If it is killed among the records, the same happens.

use super::{Drained, File, Piece};
use crate::error::{Result, StoreError};
use crate::extent::{Extent, Place};
use crate::store::index::SubfileRow;
use crate::store::log::record::{Kind, Record};
use crate::store::state::Gone;
use crate::types::{ByteRange, FileNo, Seq, Timestamp};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Number of extents after which a batch ends.
const MOST: usize = 1 << 16;

/// Bytes of a file that are processed at a time.
const WINDOW: u64 = 64 << 20;

/// What one batch takes out of a file.
#[derive(Debug)]
pub(crate) struct Capture {
    pub period: FileNo,
    pub upto: Seq,
    pub cut: Option<u64>,
    pub grown: u64,
    pub mtime: Timestamp,
    /// In file order.
    pub extents: Vec<(u64, Extent)>,
    /// The pieces of those extents that are in the log.
    pub pieces: Vec<Piece>,
    /// Subfiles that the extents are in. They stay even when the dirty period ends.
    pub subfiles: HashMap<u32, SubfileRow>,
    range: ByteRange,
    /// Some bytes within the range are only in the log, and too many to put into the batch itself.
    pub left: bool,
    /// Where the next capture begins.
    pub next: Option<u64>,
}

impl Capture {
    /// True if it contains nothing that other nodes do not know.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty() && self.cut.is_none() && self.grown == 0
    }

    /// Ranges that the batch covers, as few as possible.
    fn runs(&self) -> Vec<ByteRange> {
        if !self.left {
            return vec![self.range];
        }
        let mut runs: Vec<ByteRange> = Vec::new();
        for (start, extent) in &self.extents {
            match runs.last_mut() {
                Some(last) if last.end == *start => last.end = extent.end,
                _ => runs.push(ByteRange::new(*start, extent.end)),
            }
        }
        runs
    }
}

impl File {
    /// Captures everything unpublished from `from` on that fits into one batch. Bytes that are only
    /// in the log are included up to `inline` bytes. Returns `None` when the file is clean. The
    /// caller holds `publication_lock`.
    pub(crate) fn capture(&self, from: u64, inline: u64) -> Result<Option<Capture>> {
        self.retry_moved(|| match self.capture_once(from, inline) {
            Err(StoreError::Clean) => Ok(None),
            other => other.map(Some),
        })
    }

    fn capture_once(&self, from: u64, inline: u64) -> Result<Capture> {
        let _all = self.exclusive();
        let mut capture = {
            let inner = self.inner();
            let period = inner.period.as_ref().ok_or(StoreError::Clean)?;
            Capture {
                period: period.no,
                upto: self.state.upto_now(),
                cut: Some(period.row.limit).filter(|limit| *limit != u64::MAX),
                grown: period.row.grown,
                mtime: period.row.mtime,
                extents: Vec::new(),
                pieces: Vec::new(),
                subfiles: HashMap::new(),
                range: ByteRange {
                    start: from,
                    end: u64::MAX,
                },
                left: false,
                next: None,
            }
        };
        let mut at = from;
        let mut in_log = 0;
        while let Some(start) = self.next_extent(at)? {
            if capture.extents.len() >= MOST {
                capture.range.end = start;
                capture.next = Some(start);
                break;
            }
            let window = ByteRange {
                start,
                end: start.saturating_add(WINDOW),
            };
            for (start, extent) in self.visible(window)? {
                match extent.place {
                    Place::Canonical => continue,
                    Place::Log { .. } => {
                        in_log += extent.end - start;
                        if in_log > inline {
                            capture.left = true;
                            continue;
                        }
                        capture.pieces.push(self.piece(start, &extent)?);
                    }
                    Place::Subfile { unit, .. } => self.keep_subfile(unit.subfile, &mut capture)?,
                    Place::Zero => {}
                }
                capture.extents.push((start, extent));
            }
            at = window.end;
        }
        Ok(capture)
    }

    /// Marks a subfile as needed by a layout. Called while writers are excluded, so that the
    /// subfile cannot be retired first.
    fn keep_subfile(&self, no: u32, capture: &mut Capture) -> Result<()> {
        if capture.subfiles.contains_key(&no) {
            return Ok(());
        }
        let book = &self.state.subfiles;
        let subfile = book.get(no).ok_or_else(|| {
            StoreError::Unusable(format!("file {}: no subfile has number {no}", self.id()))
        })?;
        let row = subfile.row().clone();
        book.published.lock().insert(row.name.clone());
        capture.subfiles.insert(no, row);
        Ok(())
    }

    /// Makes the store forget what is in the batch. The layout must have it, **synced**.
    pub(crate) fn forget_captured(&self, capture: &Capture) -> Result<()> {
        self.forget_published(capture.period, capture.upto, &capture.runs())?;
        self.forget_shape(capture.period, capture.upto, capture.cut, capture.grown)?;
        self.end_published(capture.mtime)
    }

    /// Applies what the store's own layout says after a start: these ranges of dirty period `period`
    /// were published up to record `upto`. No-op if that dirty period has ended.
    pub(crate) fn forget_published_before(
        &self,
        period: FileNo,
        upto: Seq,
        ranges: &[ByteRange],
        cut: Option<u64>,
        grown: u64,
        mtime: Timestamp,
    ) -> Result<()> {
        self.forget_published(period, upto, ranges)?;
        self.forget_shape(period, upto, cut, grown)?;
        self.end_published(mtime)
    }

    fn forget_published(&self, period: FileNo, upto: Seq, ranges: &[ByteRange]) -> Result<()> {
        // A checkpoint must not count the record as applied before memory has changed too.
        let _floor = self.hold_range(ByteRange { start: 0, end: 0 });
        for range in ranges {
            if self.period_no() != Some(period) {
                return Ok(());
            }
            self.state.log.append_control(Record {
                offset: range.start,
                len: range.len(),
                arg: upto.0,
                ..Record::control(Kind::Drained, period)
            })?;
            let bytes = self.forget_drained(Drained {
                range: *range,
                upto,
            })?;
            self.state.published.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn forget_shape(&self, no: FileNo, upto: Seq, cut: Option<u64>, grown: u64) -> Result<()> {
        if cut.is_none() && grown == 0 {
            return Ok(());
        }
        let limit = cut.unwrap_or(u64::MAX);
        let mut inner = self.inner();
        let Some(period) = inner.period.as_mut().filter(|period| period.no == no) else {
            return Ok(());
        };
        // An equal `grown` proves nothing if the file was cut or grown again since.
        let grown = if period.row.shaped <= upto { grown } else { 0 };
        let later = period.row.shapes.iter().filter(|(seq, _)| *seq > upto);
        let since = later.map(|(_, cut)| *cut).min().unwrap_or(u64::MAX);
        self.state.log.append_control(Record {
            offset: grown,
            arg: limit,
            time: Timestamp(since.checked_add(1).unwrap_or(0)),
            ..Record::control(Kind::Trimmed, no)
        })?;
        period.trimmed(limit, grown, since);
        Ok(())
    }

    /// Ends the dirty period if other nodes know everything in it.
    fn end_published(&self, mtime: Timestamp) -> Result<()> {
        let lower = self.merge_lower()?;
        let generation = {
            let inner = self.inner();
            let Some(period) = &inner.period else {
                return Ok(());
            };
            let row = &period.row;
            let said = row.limit == u64::MAX && row.grown == 0 && row.mtime == mtime;
            if !period.is_drained(lower) || row.unlinked || !said {
                return Ok(());
            }
            period.generation
        };
        if !self.is_hidden(lower)? {
            return Ok(());
        }
        let Some((no, held)) = self.hold_if_unchanged(generation) else {
            return Ok(());
        };
        self.state
            .log
            .append_control(Record::control(Kind::Clean, no))?;
        let pin = self.end_period(Gone::Elsewhere);
        drop(held);
        drop(pin);
        Ok(())
    }

    /// Recomputes the size of the file: what this node has not published, laid over the canonical
    /// file as it is now. `ask` returns the size of the canonical file with what is published over
    /// it; it is called again if something of this file went there meanwhile.
    pub(crate) fn rebase(&self, ask: impl Fn() -> Result<u64>) -> Result<()> {
        let leaves = || self.inner().period.as_ref().map(|l| (l.no, l.leaves));
        loop {
            let Some(before) = leaves() else {
                return Ok(());
            };
            let size = ask()?;
            if self.is_based_on(before, size) {
                return Ok(());
            }
            let _all = self.exclusive();
            let Some(reach) = self.reach()? else {
                return Ok(());
            };
            let mut inner = self.inner();
            match &mut inner.period {
                Some(period) if (period.no, period.leaves) == before => {
                    let row = &mut period.row;
                    row.size = size.min(row.limit).max(row.grown).max(reach);
                    period.row_changed = true;
                    period.based = Some((size, period.leaves));
                    return Ok(());
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    /// True if the size was already computed from this one. Every read asks this, and must not make
    /// writers wait for it. What writes have added since is in the size already.
    fn is_based_on(&self, (no, leaves): (FileNo, u64), size: u64) -> bool {
        let inner = self.inner();
        let same =
            |period: &super::DirtyPeriod| period.no == no && period.based == Some((size, leaves));
        inner.period.as_ref().is_some_and(same)
    }

    /// Where the last unpublished byte ends. `None` when the file is clean.
    pub(super) fn reach(&self) -> Result<Option<u64>> {
        self.retry_moved(|| match self.reach_once() {
            Err(StoreError::Clean) => Ok(None),
            other => other.map(Some),
        })
    }

    /// Extents of lower layers may be hidden by a cut or a publication in an upper one.
    fn reach_once(&self) -> Result<u64> {
        let last = |map: &crate::extent::ExtentMap| {
            let counts = |(_, e): &(&u64, &Extent)| e.place != Place::Canonical;
            map.iter().rev().find(counts).map_or(0, |(_, e)| e.end)
        };
        let (no, hot, frozen, lower) = {
            let inner = self.inner();
            let period = inner.period.as_ref().ok_or(StoreError::Clean)?;
            let frozen = period.frozen.as_ref().map_or(0, |map| last(map));
            (
                period.no,
                last(&period.hot),
                frozen,
                period.has_lower_layers(),
            )
        };
        if !lower {
            return Ok(hot);
        }
        let cold = self.state.index.last_end(no)?;
        let mut end = self.uncovered(frozen.max(cold));
        while end > hot {
            let window = ByteRange {
                start: end.saturating_sub(WINDOW).max(hot),
                end,
            };
            let visible = self.visible(window)?;
            let counts = |(_, e): &&(u64, Extent)| e.place != Place::Canonical;
            if let Some((_, extent)) = visible.iter().rev().find(counts) {
                return Ok(extent.end.min(end));
            }
            end = window.start;
        }
        Ok(hot)
    }

    /// Returns `end`, or the start of the last marker if that hides everything from there to `end`.
    fn uncovered(&self, end: u64) -> u64 {
        let inner = self.inner();
        let last = inner.period.as_ref().and_then(|l| l.hot.iter().next_back());
        match last {
            Some((start, e)) if e.place == Place::Canonical && e.end >= end => end.min(*start),
            _ => end,
        }
    }
}
