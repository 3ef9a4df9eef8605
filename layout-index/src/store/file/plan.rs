//! Plans a read over the layers: where the newest bytes of a range are.
//!
//! The layers, from the top, are the store's own extents (memory over RocksDB), what is published,
//! the canonical file below every cut, and zeros. They are read in this order, and bytes are in a
//! lower layer before they leave the upper one, so that none is missed.
//!
//! A plan holds its segments open. The drain may free one in the meantime; the bytes read are then
//! those of the moment at which the plan was made, which a concurrent read may return.

use super::{DirtyPeriod, File, PublishedLayer, PublishedSource};
use crate::error::{Result, StoreError};
use crate::extent::{Extent, ExtentMap, Place, SubUnit, Unit};
use crate::store::log::segment::Segment;
use crate::store::subfile::Subfile;
use crate::types::{ByteRange, FileNo, Seq};
use std::sync::Arc;

/// Bytes in the log.
#[derive(Clone, Debug)]
pub struct LogPiece {
    pub unit: Unit,
    pub skip: u32,
    pub(super) segment: Arc<Segment>,
}

/// Bytes in a subfile.
#[derive(Clone, Debug)]
pub struct SubfilePiece {
    pub unit: SubUnit,
    pub skip: u32,
    pub subfile: Arc<Subfile>,
}

/// Where the newest bytes of a range are.
#[derive(Clone, Debug)]
pub enum Source {
    Log(LogPiece),
    Subfile(SubfilePiece),
    /// Zeros: a hole, or a range beyond the part of the canonical file that still counts.
    Zero,
    /// Published, by this node or another one.
    Published(PublishedSource),
    Canonical,
}

#[derive(Clone, Debug)]
pub struct Piece {
    pub range: ByteRange,
    pub source: Source,
}

/// A planned read: pieces in order, without gaps, cut at the end of the file.
#[derive(Clone, Debug)]
pub struct Plan {
    pub range: ByteRange,
    /// Size of the file when the plan was made.
    pub size: u64,
    pub pieces: Vec<Piece>,
}

impl Plan {
    /// True if the plan needs only the log, so that reading waits for no other machine.
    pub fn is_local(&self) -> bool {
        let local = |p: &Piece| matches!(p.source, Source::Log(_) | Source::Zero);
        self.pieces.iter().all(local)
    }
}

/// What the store's layers show of a range: the visible extents in order, with gaps where there are
/// none.
pub(super) struct View {
    pub extents: Vec<(u64, Extent)>,
    pub size: u64,
    pub limit: u64,
    /// `DirtyPeriod::freezes` when the memory layers were read.
    pub freezes: u64,
    pub lower_layers: bool,
    /// Newest sequence number up to which every record within the range is in place: no write in
    /// flight can get one that is as old or older.
    pub settled: Seq,
    /// Extents at or after this offset were not read, because there were too many before it.
    pub upto: u64,
}

impl View {
    /// The view of a clean file that is `size` long.
    fn nothing(size: u64) -> View {
        View {
            extents: Vec::new(),
            upto: u64::MAX,
            size,
            limit: u64::MAX,
            freezes: 0,
            lower_layers: false,
            settled: Seq(0),
        }
    }
}

impl File {
    /// Reads all layers as of one moment. Memory is read before RocksDB. If a merge began in
    /// between, RocksDB may already lack bytes whose successors were not in memory yet when that
    /// was read, so both are read again.
    pub(super) fn view(&self, range: ByteRange) -> Result<View> {
        self.view_upto(range, usize::MAX)
    }

    /// As [`File::view`], but only for the beginning of `range` if it has more than `most` extents;
    /// see [`View::upto`].
    pub(super) fn view_upto(&self, range: ByteRange, most: usize) -> Result<View> {
        loop {
            let (no, view) = self.read_layers(range, most)?;
            let same = |period: &DirtyPeriod| period.no == no && period.freezes == view.freezes;
            if !view.lower_layers || self.inner().period.as_ref().is_some_and(same) {
                return Ok(view);
            }
        }
    }

    fn read_layers(&self, range: ByteRange, most: usize) -> Result<(FileNo, View)> {
        let inner = self.inner();
        let period = inner.period.as_ref().ok_or(StoreError::Clean)?;
        let settled = inner
            .active
            .floor(range)
            .map_or_else(|| self.state.upto_now(), |f| Seq(f - 1));
        let mut view = View {
            extents: Vec::new(),
            size: period.row.size,
            limit: period.row.limit,
            freezes: period.freezes,
            lower_layers: period.has_lower_layers(),
            settled,
            upto: u64::MAX,
        };
        let (hot, hot_upto) = first_of(period.hot.within(range), most);
        view.upto = hot_upto;
        if !view.lower_layers {
            view.extents = hot;
            return Ok((period.no, view));
        }
        let frozen = period.frozen.iter().flat_map(|f| f.within(range));
        let (frozen, frozen_upto) = first_of(frozen, most);
        let no = period.no;
        drop(inner);
        let (cold, cold_upto) = self.state.index.extents_upto(no, range, most)?;
        view.upto = hot_upto.min(frozen_upto).min(cold_upto);
        let all = cold.into_iter().chain(frozen).chain(hot);
        let known = ByteRange::new(0, view.upto);
        view.extents = overlay(all.filter_map(|(start, extent)| extent.cut(start, known)));
        Ok((no, view))
    }

    /// The visible extents of all layers within `range`.
    pub(crate) fn visible(&self, range: ByteRange) -> Result<Vec<(u64, Extent)>> {
        Ok(self.view(range)?.extents)
    }

    /// Plans a read of `range`. Returns `Clean` when the file is clean and nothing is published;
    /// the caller then reads the canonical file.
    pub fn plan(&self, range: ByteRange) -> Result<Plan> {
        self.plan_upto(range, usize::MAX)
    }

    /// As [`File::plan`], but only for the beginning of `range`, about `most` pieces, so that the
    /// work does not grow with the length of the range. A caller that wants more continues at the
    /// end of [`Plan::range`], unless that is the end of the file.
    pub fn plan_upto(&self, range: ByteRange, most: usize) -> Result<Plan> {
        self.retry_moved(|| {
            let view = match self.view_upto(range, most) {
                Err(StoreError::Clean) => None,
                other => Some(other?),
            };
            // Read after the store: bytes are in the layer below before the store forgets them.
            let published = self.published_layer();
            let nothing = || published.as_ref().map(|layer| View::nothing(layer.size()));
            let view = view.or_else(nothing).ok_or(StoreError::Clean)?;
            self.plan_view(range, view, published.as_deref(), most)
        })
    }

    /// Calls `attempt` again if a segment was missing. A segment can go between reading RocksDB and
    /// holding the segment, when a merge and a checkpoint come in between. The next attempt sees
    /// where the bytes went.
    pub(super) fn retry_moved<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..16 {
            match attempt() {
                Err(StoreError::Unusable(_)) => {}
                other => return other,
            }
        }
        attempt()
    }

    fn plan_view(
        &self,
        range: ByteRange,
        view: View,
        published: Option<&dyn PublishedLayer>,
        most: usize,
    ) -> Result<Plan> {
        let end = range.end.min(view.size);
        let range = ByteRange {
            start: range.start.min(view.size),
            end: end.min(view.upto.max(range.start.min(view.size))),
        };
        let mut filling = Filling {
            pieces: Vec::with_capacity(view.extents.len() + 1),
            limit: view.limit,
            published,
            most,
            at: range.start,
        };
        let mut goes_on = true;
        let mut segment = None;
        let extents = view.extents.iter();
        for (start, extent) in extents.filter_map(|(start, extent)| extent.cut(*start, range)) {
            goes_on = filling.gap_upto(start);
            if !goes_on {
                break;
            }
            if extent.place != Place::Canonical {
                let piece = self.piece_near(start, &extent, &mut segment)?;
                filling.push(piece);
            }
        }
        if goes_on {
            filling.gap_upto(range.end);
        }
        Ok(Plan {
            range: ByteRange {
                start: range.start,
                end: filling.at,
            },
            size: view.size,
            pieces: filling.pieces,
        })
    }

    pub(super) fn piece(&self, start: u64, extent: &Extent) -> Result<Piece> {
        self.piece_near(start, extent, &mut None)
    }

    /// `last` is the segment of the previous piece, and most likely of this one too. It saves a
    /// lookup in the table of segments, which all threads share.
    fn piece_near(
        &self,
        start: u64,
        extent: &Extent,
        last: &mut Option<(u32, Arc<Segment>)>,
    ) -> Result<Piece> {
        let range = ByteRange {
            start,
            end: extent.end,
        };
        let source = match extent.place {
            Place::Log { unit, skip } => {
                let known = last.as_ref().filter(|(id, _)| *id == unit.segment);
                let segment = match known {
                    Some((_, segment)) => segment.clone(),
                    None => {
                        let found = self.state.segment_of(self.id, extent, start)?;
                        let found = found.ok_or(StoreError::Clean)?;
                        *last = Some((unit.segment, found.clone()));
                        found
                    }
                };
                Source::Log(LogPiece {
                    unit,
                    skip,
                    segment,
                })
            }
            Place::Subfile { unit, skip } => {
                let subfile = self.state.subfiles.get(unit.subfile);
                let subfile = subfile.ok_or_else(|| {
                    StoreError::Unusable(format!(
                        "file {} bytes {range}: no subfile has number {}",
                        self.id, unit.subfile
                    ))
                })?;
                Source::Subfile(SubfilePiece {
                    unit,
                    skip,
                    subfile,
                })
            }
            Place::Zero => Source::Zero,
            Place::Canonical => Source::Canonical,
        };
        Ok(Piece { range, source })
    }
}

/// The pieces of a range if the store had nothing of it and only `published` were published.
pub(crate) fn published_pieces(published: &dyn PublishedLayer, range: ByteRange) -> Vec<Piece> {
    let mut filling = Filling {
        pieces: Vec::new(),
        limit: u64::MAX,
        published: Some(published),
        most: usize::MAX,
        at: range.start,
    };
    filling.gap_upto(range.end);
    filling.pieces
}

/// The first `most` extents, and where the next one begins.
fn first_of(
    mut extents: impl Iterator<Item = (u64, Extent)>,
    most: usize,
) -> (Vec<(u64, Extent)>, u64) {
    let first = extents.by_ref().take(most).collect();
    (first, extents.next().map_or(u64::MAX, |(start, _)| start))
}

/// Merges extents; later ones hide earlier ones.
fn overlay(extents: impl Iterator<Item = (u64, Extent)>) -> Vec<(u64, Extent)> {
    let mut map = ExtentMap::default();
    for (start, extent) in extents {
        map.insert(start, extent, |_, _| {});
    }
    map.iter().map(|(s, e)| (*s, *e)).collect()
}

/// A plan that is being made, complete from its start to `at`.
struct Filling<'a> {
    pieces: Vec<Piece>,
    limit: u64,
    published: Option<&'a dyn PublishedLayer>,
    most: usize,
    at: u64,
}

impl Filling<'_> {
    fn push(&mut self, piece: Piece) {
        self.at = piece.range.end;
        self.pieces.push(piece);
    }

    /// Fills a gap between the store's own bytes up to `end`: with zeros beyond `limit`, and before
    /// that with what is published, over the canonical file. Returns false if there are too many
    /// pieces; the plan then ends where it is.
    fn gap_upto(&mut self, end: u64) -> bool {
        let below = end.min(self.limit);
        if self.at < below && !self.published_upto(below) {
            return false;
        }
        self.run(end, Source::Zero);
        true
    }

    fn published_upto(&mut self, end: u64) -> bool {
        let Some(published) = self.published else {
            self.run(end, Source::Canonical);
            return true;
        };
        let Some(most) = self.most.checked_sub(self.pieces.len()).filter(|n| *n > 0) else {
            return false;
        };
        let cut = published.limit();
        let (pieces, upto) = published.pieces_upto(ByteRange::new(self.at, end), most);
        for piece in pieces {
            self.below_published(piece.range.start, cut);
            self.run(piece.range.end, piece.source);
        }
        self.below_published(upto, cut);
        upto == end
    }

    /// Fills a range of which no batch has bytes.
    fn below_published(&mut self, end: u64, cut: u64) {
        self.run(end.min(cut), Source::Canonical);
        self.run(end, Source::Zero);
    }

    /// Adds one piece up to `end`, unless the plan is already there.
    fn run(&mut self, end: u64, source: Source) {
        if self.at < end {
            let range = ByteRange::new(self.at, end);
            self.push(Piece { range, source });
        }
    }
}
