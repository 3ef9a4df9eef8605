//! The pieces of a range: from the newest batch to the oldest, each fills what is still open.

use super::View;
use super::order::Ranked;
use crate::sharing::layout::batch::{Batch, Bytes, Strip};
use crate::types::{ByteRange, NodeId};
use std::ops::ControlFlow;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct ViewPiece {
    pub range: ByteRange,
    pub source: ViewSource,
}

/// Where a piece's bytes are.
#[derive(Clone, Debug)]
pub enum ViewSource {
    /// `skip` bytes into a unit of the batch; the checksum covers the whole unit.
    Subfile {
        node: NodeId,
        batch: Arc<Batch>,
        unit: u32,
        skip: u32,
    },
    /// In the batch's [`Batch::inline`].
    Inline {
        batch: Arc<Batch>,
        at: u32,
    },
    Zero,
}

impl ViewPiece {
    /// Extends `self` by `next`, if the stored bytes are adjacent, too. Returns whether it did.
    fn join(&mut self, next: &ViewPiece) -> bool {
        let len = self.range.len();
        let goes_on = match (&self.source, &next.source) {
            (ViewSource::Zero, ViewSource::Zero) => true,
            (ViewSource::Inline { batch: a, at }, ViewSource::Inline { batch: b, at: next }) => {
                Arc::ptr_eq(a, b) && u64::from(*at) + len == u64::from(*next)
            }
            (
                ViewSource::Subfile {
                    batch: a,
                    unit,
                    skip,
                    ..
                },
                ViewSource::Subfile {
                    batch: b,
                    unit: next_unit,
                    skip: next_skip,
                    ..
                },
            ) => {
                Arc::ptr_eq(a, b)
                    && unit == next_unit
                    && u64::from(*skip) + len == u64::from(*next_skip)
            }
            _ => false,
        };
        let joined = goes_on && self.range.end == next.range.start;
        if joined {
            self.range.end = next.range.end;
        }
        joined
    }
}

/// A range with more open gaps than this is halved: filling a gap moves all gaps after it.
const MANY_GAPS: usize = 1024;

/// Minimum limit of pieces for one pass: with fewer, the same bytes would be searched again and
/// again.
const LEAST_PIECES: usize = 1024;

/// Returns the pieces of the beginning of `range`, about `most`, and where that beginning ends.
pub(super) fn pieces(view: &View, range: ByteRange, most: usize) -> (Vec<ViewPiece>, u64) {
    let mut out: Vec<ViewPiece> = Vec::new();
    let mut todo = vec![range];
    let at_once = most.max(LEAST_PIECES);
    while let Some(range) = todo.pop() {
        if range.is_empty() {
            continue;
        }
        if out.len() >= most {
            return (out, range.start);
        }
        match fill(view, range, at_once) {
            Some(found) => {
                for piece in found {
                    if !out.last_mut().is_some_and(|last| last.join(&piece)) {
                        out.push(piece);
                    }
                }
            }
            None => {
                let middle = range.start + range.len() / 2;
                todo.push(ByteRange::new(middle, range.end));
                todo.push(ByteRange::new(range.start, middle));
            }
        }
    }
    (out, range.end)
}

/// `None` if there are too many gaps, or more than `most` pieces.
fn fill(view: &View, range: ByteRange, most: usize) -> Option<Vec<ViewPiece>> {
    let order = view.order();
    let mut canvas = Canvas {
        gaps: vec![range],
        out: Vec::new(),
        most,
    };
    let mut strips = Vec::new();
    for rank in order.ranks_in(range) {
        let Some(open) = canvas.open() else { break };
        let ranked = &order.ranked[rank as usize];
        let Some(window) = open.intersect(&ranked.bounds) else {
            continue;
        };
        let all = ranked.batch.strips();
        strips.clear();
        ranked.batch.spans().overlapping(
            window,
            |i| all[i as usize].bounds(),
            |i| {
                strips.push(i);
                ControlFlow::Continue(())
            },
        );
        strips.sort_unstable_by(|a, b| b.cmp(a));
        for i in &strips {
            if !canvas.paint(ranked, &all[*i as usize]) {
                return None;
            }
        }
    }
    canvas.out.sort_unstable_by_key(|piece| piece.range.start);
    Some(canvas.out)
}

struct Canvas {
    /// Parts of the range that are not filled yet; disjoint, in order.
    gaps: Vec<ByteRange>,
    out: Vec<ViewPiece>,
    most: usize,
}

impl Canvas {
    /// From the first gap to the last.
    fn open(&self) -> Option<ByteRange> {
        let (first, last) = (self.gaps.first()?, self.gaps.last()?);
        Some(ByteRange::new(first.start, last.end))
    }

    /// Fills gaps with a strip's pieces. Returns false if there are too many gaps or pieces to go
    /// on.
    fn paint(&mut self, ranked: &Ranked, strip: &Strip) -> bool {
        let Some(window) = self.open().and_then(|open| open.intersect(&ranked.bounds)) else {
            return true;
        };
        let about = window.len().checked_div(strip.stride).unwrap_or(0);
        if about <= self.gaps.len() as u64 {
            return self.paint_within(ranked, strip, window);
        }
        let gaps = self.gaps.clone();
        gaps.iter()
            .filter_map(|gap| gap.intersect(&window))
            .all(|gap| self.paint_within(ranked, strip, gap))
    }

    fn paint_within(&mut self, ranked: &Ranked, strip: &Strip, window: ByteRange) -> bool {
        let Some(first) = strip.piece_after(window.start) else {
            return true;
        };
        for i in first..strip.count {
            let piece = strip.piece(i);
            let Some(part) = piece.intersect(&window) else {
                break;
            };
            self.fill(ranked, strip, i * strip.len, piece.start, part);
            if self.gaps.len() > MANY_GAPS || self.out.len() > self.most {
                return false;
            }
        }
        true
    }

    /// Fills the open parts of `part`; byte `start` of the file is byte `position` of the strip.
    fn fill(&mut self, ranked: &Ranked, strip: &Strip, position: u64, start: u64, part: ByteRange) {
        let first = self.gaps.partition_point(|gap| gap.end <= part.start);
        let touched = self.gaps[first..].partition_point(|gap| gap.start < part.end);
        let Some(last) = (first + touched).checked_sub(1).filter(|_| touched > 0) else {
            return;
        };
        let (left, right) = (self.gaps[first].start, self.gaps[last].end);
        for gap in &self.gaps[first..=last] {
            let Some(open) = gap.intersect(&part) else {
                continue;
            };
            let mut at = open.start;
            let from = position + (open.start - start);
            ranked.batch.places(strip, from, open.len(), |len, bytes| {
                self.out.push(ViewPiece {
                    range: ByteRange::new(at, at + len),
                    source: source(ranked, bytes),
                });
                at += len;
            });
        }
        let before = ByteRange {
            start: left,
            end: part.start,
        };
        let after = ByteRange {
            start: part.end,
            end: right,
        };
        let rest = [before, after].into_iter().filter(|gap| !gap.is_empty());
        self.gaps.splice(first..=last, rest);
    }
}

fn source(ranked: &Ranked, bytes: Bytes) -> ViewSource {
    let batch = || ranked.batch.clone();
    match bytes {
        Bytes::Units { first, skip } => ViewSource::Subfile {
            node: ranked.node,
            batch: batch(),
            unit: first,
            skip,
        },
        Bytes::Inline { at } => ViewSource::Inline { batch: batch(), at },
        Bytes::Zero => ViewSource::Zero,
    }
}
