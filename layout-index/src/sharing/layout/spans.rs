//! An index that finds the ranges, out of very many, that overlap a given one: a sorted list with
//! the largest end of every 32 ranges, of every 32 of those ends, and so on. A few ranges that span
//! the whole file do not slow down lookups of the others, as they would with a single running
//! maximum.

use crate::types::ByteRange;
use std::mem::size_of;
use std::ops::ControlFlow;

const FAN: usize = 32;

/// Ranges are identified by their index and stay with their owner, which supplies them through a
/// function that must return the same range at every call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans {
    len: usize,
    /// Indices sorted by start; `None` if the ranges were in that order from the beginning.
    order: Option<Vec<u32>>,
    /// The largest end of each [`FAN`] entries of the level below; the lowest level is the ranges.
    ends: Vec<Vec<u64>>,
}

impl Spans {
    /// Indexes `len` ranges, at most `u32::MAX`.
    pub fn new(len: usize, span: impl Fn(u32) -> ByteRange) -> Spans {
        let all = 0..len as u32;
        let sorted = all
            .clone()
            .skip(1)
            .all(|i| span(i - 1).start <= span(i).start);
        let order = (!sorted).then(|| {
            let mut order: Vec<u32> = all.collect();
            order.sort_by_key(|i| span(*i).start);
            order
        });
        let mut spans = Spans {
            len,
            order,
            ends: Vec::new(),
        };
        let mut below: Vec<u64> = (0..len).map(|at| span(spans.at(at)).end).collect();
        while !below.is_empty() {
            let top = below.len() <= FAN;
            let level = below.chunks(FAN).map(|c| c.iter().copied().max());
            below = level.map(Option::unwrap_or_default).collect();
            spans.ends.push(below.clone());
            if top {
                break;
            }
        }
        spans
    }

    fn at(&self, position: usize) -> u32 {
        self.order.as_ref().map_or(position as u32, |o| o[position])
    }

    /// How many ranges begin before `end`.
    fn before(&self, end: u64, span: impl Fn(u32) -> ByteRange) -> usize {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if span(self.at(middle)).start < end {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    pub fn bounds(&self, span: impl Fn(u32) -> ByteRange) -> Option<ByteRange> {
        let end = *self.ends.last()?.first()?;
        Some(ByteRange::new(span(self.at(0)).start, end))
    }

    /// The lowest start at or after `from`.
    pub fn next_start(&self, from: u64, span: impl Fn(u32) -> ByteRange) -> Option<u64> {
        let position = self.before(from, &span);
        (position < self.len).then(|| span(self.at(position)).start)
    }

    /// Calls `found` with every range that overlaps `range`, ordered by start, until it returns
    /// `Break`.
    pub fn overlapping(
        &self,
        range: ByteRange,
        span: impl Fn(u32) -> ByteRange,
        mut found: impl FnMut(u32) -> ControlFlow<()>,
    ) {
        let high = self.before(range.end, &span);
        if let Some(top) = self.ends.len().checked_sub(1) {
            // A break means that the caller has what it wants, so there is nothing to report.
            if self
                .visit(top, 0, high, range.start, &span, &mut found)
                .is_break()
            {}
        }
    }

    /// Visits block `block` of level `level`: the ranges below position `high` that end after
    /// `after`.
    fn visit(
        &self,
        level: usize,
        block: usize,
        high: usize,
        after: u64,
        span: &impl Fn(u32) -> ByteRange,
        found: &mut impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if self.ends[level][block] <= after {
            return ControlFlow::Continue(());
        }
        let width = FAN.pow(level as u32);
        let first = block * FAN;
        for child in first..first + FAN {
            if child * width >= high {
                break;
            }
            if level > 0 {
                self.visit(level - 1, child, high, after, span, found)?;
            } else {
                let i = self.at(child);
                if span(i).end > after {
                    found(i)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    pub fn memory(&self) -> usize {
        let order = self.order.as_ref().map_or(0, Vec::capacity);
        let ends: usize = self.ends.iter().map(Vec::capacity).sum();
        order * size_of::<u32>() + ends * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests;
