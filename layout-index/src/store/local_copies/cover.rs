//! Which bytes of a file a copy has: ranges that neither overlap nor touch.

use crate::types::ByteRange;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cover {
    /// Start of each range, and its end.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Cover {
    /// Adds a range; returns how many bytes of it are new.
    pub fn insert(&mut self, range: ByteRange) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let ByteRange { mut start, mut end } = range;
        if let Some((s, e)) = self.ranges.range(..=start).next_back()
            && *e >= start
        {
            start = *s;
        }
        let mut had = 0;
        while let Some((s, e)) = self.ranges.range(start..=end).next().map(|(s, e)| (*s, *e)) {
            self.ranges.remove(&s);
            had += e - s;
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        let new = end - start - had;
        self.bytes += new;
        new
    }

    /// Removes a range; returns how many bytes of it were there.
    pub fn remove(&mut self, range: ByteRange) -> u64 {
        let mut gone = 0;
        for piece in self.within(range) {
            gone += piece.len();
            // The range that contains this piece begins at or before it.
            let whole = self.ranges.range(..=piece.start).next_back();
            let Some((s, e)) = whole.map(|(s, e)| (*s, *e)) else {
                continue;
            };
            self.ranges.remove(&s);
            if s < piece.start {
                self.ranges.insert(s, piece.start);
            }
            if piece.end < e {
                self.ranges.insert(piece.end, e);
            }
        }
        self.bytes -= gone;
        gone
    }

    /// The parts of `range` that are there, in order.
    pub fn within(&self, range: ByteRange) -> Vec<ByteRange> {
        let before = self.ranges.range(..range.start).next_back();
        let from = before.map_or(range.start, |(s, _)| *s);
        let pieces = self.ranges.range(from..range.end.max(from));
        pieces
            .filter_map(|(s, e)| ByteRange::new(*s, *e).intersect(&range))
            .collect()
    }

    pub fn has(&self, range: ByteRange) -> u64 {
        self.within(range).iter().map(ByteRange::len).sum()
    }

    /// The first range at or after `from` that is missing, up to `end`.
    pub fn next_gap(&self, from: u64, end: u64) -> Option<ByteRange> {
        let mut at = from;
        if let Some((_, e)) = self.ranges.range(..=from).next_back() {
            at = at.max(*e);
        }
        if at >= end {
            return None;
        }
        let next = self.ranges.range(at..).next().map_or(end, |(s, _)| *s);
        Some(ByteRange::new(at, next.min(end)))
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of ranges.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = ByteRange> + '_ {
        self.ranges.iter().map(|(s, e)| ByteRange::new(*s, *e))
    }
}

#[cfg(test)]
mod tests;
