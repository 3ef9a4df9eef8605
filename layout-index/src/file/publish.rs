//! The store's side of publishing: what a batch takes out of a file, and forgetting it.
//!
//! # Consistency
//!
//! A capture is taken with all writers out, so it is one moment of the file: a truncate is in it
//! together with exactly the bytes that came after it. From the capture until its record no bytes
//! of the file move to another place in the store (`moving`): they would get a newer number, would
//! not be forgotten, and would be published again later, over newer bytes of other nodes.
//!
//! # Crash behaviour
//!
//! *Killed before the layout has the batch*: the store has everything. *Killed after that, before
//! the records here*: the next start finds the batch in its own layout and calls
//! [`File::was_published`] before anybody writes. *Killed among the records*: the same.

use super::{Drained, File, Piece};
use crate::error::{Result, StoreError};
use crate::extent::{Extent, Place};
use crate::index::SubfileRow;
use crate::log::record::{Kind, Record};
use crate::shared::Gone;
use crate::types::{ByteRange, FileNo, Seq, Timestamp};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Extents of one batch.
const MOST: usize = 1 << 16;

/// Bytes of a file that are looked at at a time.
const WINDOW: u64 = 64 << 20;

/// What one batch takes.
#[derive(Debug)]
pub(crate) struct Capture {
    pub life: FileNo,
    pub upto: Seq,
    pub cut: Option<u64>,
    pub grown: u64,
    pub mtime: Timestamp,
    /// In file order.
    pub extents: Vec<(u64, Extent)>,
    /// Of those in the log, the bytes, piece by piece.
    pub pieces: Vec<Piece>,
    /// Those that the extents are in. They stay, whatever becomes of the life.
    pub subfiles: HashMap<u32, SubfileRow>,
    range: ByteRange,
    /// Something within the range is only in the log, and too much for the batch itself.
    pub left: bool,
    /// Where the next capture begins.
    pub next: Option<u64>,
}

impl Capture {
    /// It says nothing that others do not know.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty() && self.cut.is_none() && self.grown == 0
    }

    /// Ranges that the batch has, as few as can be.
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
    /// Everything unpublished from `from` on that fits one batch. Bytes that are only in the log
    /// are taken if they are not more than `inline`. `None` when there is no life. The caller has
    /// `moving`.
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
            let life = inner.life.as_ref().ok_or(StoreError::Clean)?;
            Capture {
                life: life.no,
                upto: self.shared.upto_now(),
                cut: Some(life.row.limit).filter(|limit| *limit != u64::MAX),
                grown: life.row.grown,
                mtime: life.row.mtime,
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

    /// While writers are out, so that nothing can let go of it before.
    fn keep_subfile(&self, no: u32, capture: &mut Capture) -> Result<()> {
        if capture.subfiles.contains_key(&no) {
            return Ok(());
        }
        let book = &self.shared.subfiles;
        let subfile = book.get(no).ok_or_else(|| {
            StoreError::Unusable(format!("file {}: no subfile has number {no}", self.id()))
        })?;
        let row = subfile.row().clone();
        book.published.lock().insert(row.name.clone());
        capture.subfiles.insert(no, row);
        Ok(())
    }

    /// Whether a publication is under way.
    pub fn is_publishing(&self) -> bool {
        self.seen().publishing
    }

    /// Waits for a publication that is under way. The store has forgotten its bytes before other
    /// nodes are told to look (the stamp comes last), so whoever finds nothing left to publish must
    /// not say so before that: somebody else's publication may have his bytes.
    pub fn wait_published(&self) {
        drop(self.moving.read());
    }

    /// The layout has the batch, **synced**: the store forgets what is in it.
    pub(crate) fn published(&self, capture: &Capture) -> Result<()> {
        self.forget_published(capture.life, capture.upto, &capture.runs())?;
        self.settle_shape(capture.life, capture.upto, capture.cut, capture.grown)?;
        self.end_published(capture.mtime)
    }

    /// What the store's own layout says after a start: these ranges of life `life` were published
    /// up to record `upto`. No-op for a life that has ended.
    pub(crate) fn was_published(
        &self,
        life: FileNo,
        upto: Seq,
        ranges: &[ByteRange],
        cut: Option<u64>,
        grown: u64,
        mtime: Timestamp,
    ) -> Result<()> {
        self.forget_published(life, upto, ranges)?;
        self.settle_shape(life, upto, cut, grown)?;
        self.end_published(mtime)
    }

    fn forget_published(&self, life: FileNo, upto: Seq, ranges: &[ByteRange]) -> Result<()> {
        // A checkpoint must not count the record as done before memory says so too.
        let _floor = self.hold_range(ByteRange { start: 0, end: 0 });
        for range in ranges {
            if self.life_no() != Some(life) {
                return Ok(());
            }
            self.shared.log.append_control(Record {
                offset: range.start,
                len: range.len(),
                arg: upto.0,
                ..Record::control(Kind::Drained, life)
            })?;
            let bytes = self.forget_drained(Drained {
                range: *range,
                upto,
            })?;
            self.shared.published.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn settle_shape(&self, no: FileNo, upto: Seq, cut: Option<u64>, grown: u64) -> Result<()> {
        if cut.is_none() && grown == 0 {
            return Ok(());
        }
        let limit = cut.unwrap_or(u64::MAX);
        let mut inner = self.inner();
        let Some(life) = inner.life.as_mut().filter(|life| life.no == no) else {
            return Ok(());
        };
        // Equal numbers say nothing where the file was cut or grown again since.
        let grown = if life.row.shaped <= upto { grown } else { 0 };
        let later = life.row.shapes.iter().filter(|(seq, _)| *seq > upto);
        let since = later.map(|(_, cut)| *cut).min().unwrap_or(u64::MAX);
        self.shared.log.append_control(Record {
            offset: grown,
            arg: limit,
            time: Timestamp(since.checked_add(1).unwrap_or(0)),
            ..Record::control(Kind::Trimmed, no)
        })?;
        life.trimmed(limit, grown, since);
        Ok(())
    }

    /// Ends the life if nothing of it is left that others do not know.
    fn end_published(&self, mtime: Timestamp) -> Result<()> {
        let lower = self.merge_lower()?;
        let generation = {
            let inner = self.inner();
            let Some(life) = &inner.life else {
                return Ok(());
            };
            let row = &life.row;
            let said = row.limit == u64::MAX && row.grown == 0 && row.mtime == mtime;
            if !life.is_drained(lower) || row.unlinked || !said {
                return Ok(());
            }
            life.generation
        };
        if !self.is_hidden(lower)? {
            return Ok(());
        }
        let Some((no, held)) = self.hold_if_unchanged(generation) else {
            return Ok(());
        };
        self.shared
            .log
            .append_control(Record::control(Kind::Clean, no))?;
        let pin = self.end_life(Gone::Elsewhere);
        drop(held);
        drop(pin);
        Ok(())
    }

    /// Lays what this node has not published over the canonical file as it is now. `ask` gives the
    /// size of that and of what is published over it; it is asked again if something of this file
    /// went there meanwhile.
    pub(crate) fn rebase(&self, ask: impl Fn() -> Result<u64>) -> Result<()> {
        let leaves = || self.inner().life.as_ref().map(|l| (l.no, l.leaves));
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
            match &mut inner.life {
                Some(life) if (life.no, life.leaves) == before => {
                    let row = &mut life.row;
                    row.size = size.min(row.limit).max(row.grown).max(reach);
                    life.row_changed = true;
                    life.based = Some((size, life.leaves));
                    return Ok(());
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    /// Whoever reads asks this every time, and writers are not to wait for that. What writes have
    /// added since is in the size already.
    fn is_based_on(&self, (no, leaves): (FileNo, u64), size: u64) -> bool {
        let inner = self.inner();
        let same = |life: &super::Life| life.no == no && life.based == Some((size, leaves));
        inner.life.as_ref().is_some_and(same)
    }

    /// Where the last unpublished byte ends. `None` without a life.
    pub(super) fn reach(&self) -> Result<Option<u64>> {
        self.retry_moved(|| match self.reach_once() {
            Err(StoreError::Clean) => Ok(None),
            other => other.map(Some),
        })
    }

    /// What lower layers have may be hidden by a cut or a publication in an upper one.
    fn reach_once(&self) -> Result<u64> {
        let last = |map: &crate::extent::ExtentMap| {
            let counts = |(_, e): &(&u64, &Extent)| e.place != Place::Canonical;
            map.iter().rev().find(counts).map_or(0, |(_, e)| e.end)
        };
        let (no, hot, frozen, lower) = {
            let inner = self.inner();
            let life = inner.life.as_ref().ok_or(StoreError::Clean)?;
            let frozen = life.frozen.as_ref().map_or(0, |map| last(map));
            (life.no, last(&life.hot), frozen, life.has_lower_layers())
        };
        if !lower {
            return Ok(hot);
        }
        let cold = self.shared.index.last_end(no)?;
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

    /// `end`, or where the last marker begins that hides everything up to there.
    fn uncovered(&self, end: u64) -> u64 {
        let inner = self.inner();
        let last = inner.life.as_ref().and_then(|l| l.hot.iter().next_back());
        match last {
            Some((start, e)) if e.place == Place::Canonical && e.end >= end => end.min(*start),
            _ => end,
        }
    }
}
