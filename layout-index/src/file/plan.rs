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
}

impl View {
    /// Of a file without a life that is `size` long.
    fn nothing(size: u64) -> View {
        View {
            extents: Vec::new(),
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
        loop {
            let (no, view) = self.look(range)?;
            let same = |life: &Life| life.no == no && life.freezes == view.freezes;
            if !view.lower_layers || self.inner().life.as_ref().is_some_and(same) {
                return Ok(view);
            }
        }
    }

    fn look(&self, range: ByteRange) -> Result<(FileNo, View)> {
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
        };
        if !view.lower_layers {
            view.extents.extend(life.hot.within(range));
            return Ok((life.no, view));
        }
        let hot: Vec<_> = life.hot.within(range).collect();
        let frozen: Vec<_> = life.frozen.iter().flat_map(|f| f.within(range)).collect();
        let no = life.no;
        drop(inner);
        view.extents = self.overlay(no, range, frozen, hot)?;
        Ok((no, view))
    }

    fn overlay(
        &self,
        no: FileNo,
        range: ByteRange,
        frozen: Vec<(u64, Extent)>,
        hot: Vec<(u64, Extent)>,
    ) -> Result<Vec<(u64, Extent)>> {
        let mut map = ExtentMap::default();
        let cold = self.shared.index.extents(no, range)?;
        for (start, extent) in cold.into_iter().chain(frozen).chain(hot) {
            map.insert(start, extent, |_, _| {});
        }
        Ok(map.iter().map(|(s, e)| (*s, *e)).collect())
    }

    /// The visible extents of all layers within `range`.
    pub(crate) fn visible(&self, range: ByteRange) -> Result<Vec<(u64, Extent)>> {
        Ok(self.view(range)?.extents)
    }

    /// `Clean` when the file has no life and nothing is published: read the canonical file then.
    pub fn plan(&self, range: ByteRange) -> Result<Plan> {
        self.retry_moved(|| {
            let view = match self.view(range) {
                Err(StoreError::Clean) => None,
                other => Some(other?),
            };
            // After the store: bytes are here before they are forgotten there.
            let (published, canonical) = {
                let seen = self.seen();
                (seen.view.clone(), seen.canonical.size)
            };
            match view {
                Some(view) => self.plan_view(range, view, &published),
                None if published.is_empty() => Err(StoreError::Clean),
                None => {
                    let size = published.size(canonical);
                    let nothing = View::nothing(size);
                    self.plan_view(range, nothing, &published)
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

    fn plan_view(&self, range: ByteRange, view: View, published: &Published) -> Result<Plan> {
        let range = ByteRange {
            start: range.start.min(view.size),
            end: range.end.min(view.size),
        };
        let mut pieces = Vec::with_capacity(view.extents.len() + 1);
        let mut at = range.start;
        for (start, extent) in &view.extents {
            let Some((start, extent)) = extent.cut(*start, range) else {
                continue;
            };
            fill_gap(
                &mut pieces,
                ByteRange {
                    start: at,
                    end: start,
                },
                view.limit,
                published,
            );
            at = extent.end;
            let piece = ByteRange {
                start,
                end: extent.end,
            };
            match extent.place {
                Place::Canonical => fill_gap(&mut pieces, piece, view.limit, published),
                _ => pieces.push(self.piece(start, &extent)?),
            }
        }
        fill_gap(
            &mut pieces,
            ByteRange {
                start: at,
                end: range.end,
            },
            view.limit,
            published,
        );
        Ok(Plan {
            range,
            size: view.size,
            pieces,
        })
    }

    pub(super) fn piece(&self, start: u64, extent: &Extent) -> Result<Piece> {
        let range = ByteRange {
            start,
            end: extent.end,
        };
        let source = match extent.place {
            Place::Log { unit, skip } => {
                let segment = self.shared.segment_of(self.id, extent, start)?;
                let segment = segment.ok_or(StoreError::Clean)?;
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
        let mut pieces = Vec::new();
        fill_published(&mut pieces, range, published);
        pieces
    }
}

/// What lies below the store's own bytes: nothing beyond `limit`, and before it what is published
/// over the canonical file.
fn fill_gap(pieces: &mut Vec<Piece>, gap: ByteRange, limit: u64, published: &Published) {
    let below = ByteRange {
        start: gap.start,
        end: gap.end.min(limit),
    };
    if below.start < below.end {
        fill_published(pieces, below, published);
    }
    push(pieces, gap.start.max(limit), gap.end, Source::Zero);
}

fn fill_published(pieces: &mut Vec<Piece>, range: ByteRange, published: &Published) {
    if published.is_empty() {
        return push(pieces, range.start, range.end, Source::Canonical);
    }
    let cut = published.limit();
    let mut at = range.start;
    let fill = |pieces: &mut Vec<Piece>, start: u64, end: u64| {
        push(pieces, start, end.min(cut), Source::Canonical);
        push(pieces, start.max(cut), end, Source::Zero);
    };
    for piece in published.pieces(range) {
        fill(pieces, at, piece.range.start);
        at = piece.range.end;
        let source = match piece.source {
            ViewSource::Zero => Source::Zero,
            other => Source::Published(other),
        };
        push(pieces, piece.range.start, piece.range.end, source);
    }
    fill(pieces, at, range.end);
}

fn push(pieces: &mut Vec<Piece>, start: u64, end: u64, source: Source) {
    if start < end {
        let range = ByteRange { start, end };
        pieces.push(Piece { range, source });
    }
}
