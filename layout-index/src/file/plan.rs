//! Planning a read over the layers: where the newest bytes of a range are.
//!
//! From the top: the store's own extents (memory over RocksDB), what is published, the canonical
//! file below every cut, zeros. They are looked at in this order, and bytes are in a lower layer
//! before they leave the upper one, so that none is missed.
//!
//! A plan holds its segments open: the drain may free one in the meantime, and the bytes read
//! are then those of the moment the plan was made, which a concurrent read may return.

use super::{File, Life};
use crate::error::{Result, StoreError};
use crate::extent::{Extent, ExtentMap, Place, SubUnit, Unit};
use crate::layout::{View as Published, ViewSource};
use crate::log::segment::Segment;
use crate::subfile::Subfile;
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
    /// Reads as zeros: a hole, or past what the canonical file may still show.
    Zero,
    /// Published, by this node or another.
    Published(ViewSource),
    Canonical,
}

#[derive(Clone, Debug)]
pub struct Piece {
    pub range: ByteRange,
    pub source: Source,
}

/// A read, planned: pieces in order, without gaps, cut at the end of the file.
#[derive(Clone, Debug)]
pub struct Plan {
    pub range: ByteRange,
    /// Size of the file when the plan was made.
    pub size: u64,
    pub pieces: Vec<Piece>,
}

impl Plan {
    /// Needs nothing but the log: reading it waits for no other machine.
    pub fn is_local(&self) -> bool {
        let local = |p: &Piece| matches!(p.source, Source::Log(_) | Source::Zero);
        self.pieces.iter().all(local)
    }
}

/// What the layers show of a range: visible extents in order, gaps where they show nothing.
pub(super) struct View {
    pub extents: Vec<(u64, Extent)>,
    pub size: u64,
    pub limit: u64,
    /// `Life::freezes` when the memory layers were read.
    pub freezes: u64,
    pub lower_layers: bool,
    /// The newest record that cannot be overtaken any more within the range.
    pub settled: Seq,
    /// What lies at or after this was not looked at, because there were too many extents before it.
    pub upto: u64,
}

impl View {
    /// Of a file without a life that is `size` long.
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
    /// All layers of one moment. Memory is read before RocksDB; where a merge has begun in between,
    /// RocksDB may already lack bytes whose successors were not in memory yet: look again.
    pub(super) fn view(&self, range: ByteRange) -> Result<View> {
        self.view_upto(range, usize::MAX)
    }

    /// The same for the beginning of `range`, if it has more than `most` extents; see [`View::upto`].
    pub(super) fn view_upto(&self, range: ByteRange, most: usize) -> Result<View> {
        loop {
            let (no, view) = self.look(range, most)?;
            let same = |life: &Life| life.no == no && life.freezes == view.freezes;
            if !view.lower_layers || self.inner().life.as_ref().is_some_and(same) {
                return Ok(view);
            }
        }
    }

    fn look(&self, range: ByteRange, most: usize) -> Result<(FileNo, View)> {
        let inner = self.inner();
        let life = inner.life.as_ref().ok_or(StoreError::Clean)?;
        let settled = inner
            .active
            .floor(range)
            .map_or_else(|| self.shared.upto_now(), |f| Seq(f - 1));
        let mut view = View {
            extents: Vec::new(),
            size: life.row.size,
            limit: life.row.limit,
            freezes: life.freezes,
            lower_layers: life.has_lower_layers(),
            settled,
            upto: u64::MAX,
        };
        let (hot, hot_upto) = first_of(life.hot.within(range), most);
        view.upto = hot_upto;
        if !view.lower_layers {
            view.extents = hot;
            return Ok((life.no, view));
        }
        let frozen = life.frozen.iter().flat_map(|f| f.within(range));
        let (frozen, frozen_upto) = first_of(frozen, most);
        let no = life.no;
        drop(inner);
        let (cold, cold_upto) = self.shared.index.extents_upto(no, range, most)?;
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

    /// `Clean` when the file has no life and nothing is published: read the canonical file then.
    pub fn plan(&self, range: ByteRange) -> Result<Plan> {
        self.plan_upto(range, usize::MAX)
    }

    /// The same for the beginning of `range`, of about `most` pieces: the work does not grow with the
    /// length of the range. A caller that wants more goes on at the end of [`Plan::range`], unless that is
    /// the end of the file.
    pub fn plan_upto(&self, range: ByteRange, most: usize) -> Result<Plan> {
        self.retry_moved(|| {
            let view = match self.view_upto(range, most) {
                Err(StoreError::Clean) => None,
                other => Some(other?),
            };
            // After the store: bytes are here before they are forgotten there.
            let (published, canonical) = {
                let seen = self.seen();
                (seen.view.clone(), seen.canonical.size)
            };
            match view {
                Some(view) => self.plan_view(range, view, &published, most),
                None if published.is_empty() => Err(StoreError::Clean),
                None => {
                    let size = published.size(canonical);
                    let nothing = View::nothing(size);
                    self.plan_view(range, nothing, &published, most)
                }
            }
        })
    }

    /// A segment can go between looking into RocksDB and holding it, when a merge and a
    /// checkpoint come in between. Another look sees where the bytes went.
    pub(super) fn retry_moved<T>(&self, look: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..16 {
            match look() {
                Err(StoreError::Unusable(_)) => {}
                other => return other,
            }
        }
        look()
    }

    fn plan_view(
        &self,
        range: ByteRange,
        view: View,
        published: &Published,
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

    /// `last` is the segment of the piece before, which most likely is that of this one: the table of segments is
    /// shared by all.
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
                        let found = self.shared.segment_of(self.id, extent, start)?;
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
                let subfile = self.shared.subfiles.get(unit.subfile);
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

    /// What `published`, a part of this file's view, has of a range.
    pub fn published_pieces(&self, published: &Published, range: ByteRange) -> Vec<Piece> {
        let mut filling = Filling {
            pieces: Vec::new(),
            limit: u64::MAX,
            published,
            most: usize::MAX,
            at: range.start,
        };
        filling.gap_upto(range.end);
        filling.pieces
    }
}

/// The first `most` extents, and where the next one begins.
fn first_of(
    mut extents: impl Iterator<Item = (u64, Extent)>,
    most: usize,
) -> (Vec<(u64, Extent)>, u64) {
    let first = extents.by_ref().take(most).collect();
    (first, extents.next().map_or(u64::MAX, |(start, _)| start))
}

/// Later ones lie over earlier ones.
fn overlay(extents: impl Iterator<Item = (u64, Extent)>) -> Vec<(u64, Extent)> {
    let mut map = ExtentMap::default();
    for (start, extent) in extents {
        map.insert(start, extent, |_, _| {});
    }
    map.iter().map(|(s, e)| (*s, *e)).collect()
}

/// A plan that is being made, from its start to `at`.
struct Filling<'a> {
    pieces: Vec<Piece>,
    limit: u64,
    published: &'a Published,
    most: usize,
    at: u64,
}

impl Filling<'_> {
    fn push(&mut self, piece: Piece) {
        self.at = piece.range.end;
        self.pieces.push(piece);
    }

    /// What lies below the store's own bytes: nothing beyond `limit`, and before it what is published
    /// over the canonical file. False if that became too much, and the plan ends where it is.
    fn gap_upto(&mut self, end: u64) -> bool {
        let below = end.min(self.limit);
        if self.at < below && !self.published_upto(below) {
            return false;
        }
        self.run(end, Source::Zero);
        true
    }

    fn published_upto(&mut self, end: u64) -> bool {
        if self.published.is_empty() {
            self.run(end, Source::Canonical);
            return true;
        }
        let Some(most) = self.most.checked_sub(self.pieces.len()).filter(|n| *n > 0) else {
            return false;
        };
        let cut = self.published.limit();
        let (pieces, upto) = self
            .published
            .pieces_upto(ByteRange::new(self.at, end), most);
        for piece in pieces {
            self.below_published(piece.range.start, cut);
            let source = match piece.source {
                ViewSource::Zero => Source::Zero,
                other => Source::Published(other),
            };
            self.run(piece.range.end, source);
        }
        self.below_published(upto, cut);
        upto == end
    }

    /// No batch has anything of it.
    fn below_published(&mut self, end: u64, cut: u64) {
        self.run(end.min(cut), Source::Canonical);
        self.run(end, Source::Zero);
    }

    /// Nothing if that is where the plan is already.
    fn run(&mut self, end: u64, source: Source) {
        if self.at < end {
            let range = ByteRange::new(self.at, end);
            self.push(Piece { range, source });
        }
    }
}
