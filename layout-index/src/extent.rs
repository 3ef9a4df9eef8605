//! Extents: which bytes of a file are where, and the map that keeps the newest of them.
//!
//! A *unit* is what one checksum covers: up to 128 KiB of payload, contiguous in one segment.
//! Sequential small writes of one lane share a unit (each record carries the checksum of the
//! unit so far), so neighbours coalesce into one extent without losing the ability to verify:
//! any extent can be checked by reading its whole unit from the log.

use crate::types::{ByteRange, Seq};
use std::collections::BTreeMap;
use std::collections::btree_map;

/// The most payload that one checksum covers: bounds what a small read has to verify.
pub const UNIT_MAX: u32 = 128 * 1024;

/// A checksummed run of payload in a data segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub segment: u32,
    pub offset: u32,
    pub len: u32,
    pub crc: u32,
}

/// A checksummed run of bytes in a subfile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubUnit {
    /// [`crate::store::subfile::Subfile::no`].
    pub subfile: u32,
    /// Where it begins, in blocks of [`BLOCK`] bytes.
    pub block: u32,
    pub len: u32,
    pub crc: u32,
}

/// Units in subfiles begin on a multiple of this: a block number of four bytes then reaches 2 TiB.
pub const BLOCK: u64 = 512;

/// Where the newest bytes of an extent are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the log, `skip` bytes into the unit.
    Log { unit: Unit, skip: u32 },
    /// In a subfile on some target, `skip` bytes into the unit; the log need not have them any
    /// more.
    Subfile { unit: SubUnit, skip: u32 },
    /// Nowhere: the range was punched or zeroed and reads as zeros.
    Zero,
    /// In the canonical file. Only kept where it must hide an older extent of a lower layer.
    Canonical,
}

/// One extent; its start is its key in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub end: u64,
    /// The newest record that wrote any byte of it.
    pub seq: Seq,
    pub place: Place,
}

impl Extent {
    /// The part within `range` of an extent that starts at `start`.
    pub fn cut(&self, start: u64, range: ByteRange) -> Option<(u64, Extent)> {
        let part = ByteRange {
            start,
            end: self.end,
        }
        .intersect(&range)?;
        let place = match self.place {
            Place::Log { unit, skip } => Place::Log {
                unit,
                skip: skip + (part.start - start) as u32,
            },
            Place::Subfile { unit, skip } => Place::Subfile {
                unit,
                skip: skip + (part.start - start) as u32,
            },
            other => other,
        };
        Some((
            part.start,
            Extent {
                end: part.end,
                seq: self.seq,
                place,
            },
        ))
    }

    /// The segment in which this extent keeps payload alive, and how many bytes.
    pub fn payload(&self, start: u64) -> Option<(u32, u64)> {
        match self.place {
            Place::Log { unit, .. } => Some((unit.segment, self.end - start)),
            _ => None,
        }
    }

    /// Bytes of it that the canonical file does not have; a zeroed range has none.
    pub fn undrained(&self, start: u64) -> u64 {
        match self.place {
            Place::Log { .. } | Place::Subfile { .. } => self.end - start,
            Place::Zero | Place::Canonical => 0,
        }
    }
}

/// Disjoint extents in file order; inserting replaces what lies below.
#[derive(Clone, Debug, Default)]
pub struct ExtentMap {
    map: BTreeMap<u64, Extent>,
}

impl ExtentMap {
    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Inserts `[start, extent.end)` and calls `replaced` with every part that this hides.
    pub fn insert(&mut self, start: u64, extent: Extent, replaced: impl FnMut(u64, Extent)) {
        debug_assert!(start < extent.end);
        self.remove(
            ByteRange {
                start,
                end: extent.end,
            },
            replaced,
        );
        if let Some((&left_start, left)) = self.map.range_mut(..start).next_back()
            && let Some(joined) = join(left_start, left, start, &extent)
        {
            *left = joined;
            return;
        }
        self.map.insert(start, extent);
    }

    /// Removes every byte of `range`, calling `removed` with each part that was there.
    pub fn remove(&mut self, range: ByteRange, mut removed: impl FnMut(u64, Extent)) {
        if range.is_empty() {
            return;
        }
        // The common case of a new write at the end of what is known costs one lookup.
        if self
            .map
            .last_key_value()
            .is_none_or(|(_, last)| last.end <= range.start)
        {
            return;
        }
        if let Some((&left_start, left)) = self.map.range_mut(..range.start).next_back()
            && left.end > range.start
        {
            let whole = *left;
            left.end = range.start;
            if let Some((s, part)) = whole.cut(left_start, range) {
                removed(s, part);
            }
            if let Some((s, rest)) = whole.cut(
                left_start,
                ByteRange {
                    start: range.end,
                    end: u64::MAX,
                },
            ) {
                self.map.insert(s, rest);
                return;
            }
        }
        while let Some((&s, &whole)) = self.map.range(range.start..range.end).next() {
            self.map.remove(&s);
            if let Some((part_start, part)) = whole.cut(s, range) {
                removed(part_start, part);
            }
            if let Some((rest_start, rest)) = whole.cut(
                s,
                ByteRange {
                    start: range.end,
                    end: u64::MAX,
                },
            ) {
                self.map.insert(rest_start, rest);
            }
        }
    }

    /// The parts of extents that lie within `range`, in order.
    pub fn within(&self, range: ByteRange) -> impl Iterator<Item = (u64, Extent)> + '_ {
        let left = self.map.range(..range.start).next_back();
        let first = left
            .filter(|(_, e)| e.end > range.start)
            .map_or(range.start, |(s, _)| *s);
        let end = range.end.max(first);
        self.map
            .range(first..end)
            .filter_map(move |(s, e)| e.cut(*s, range))
    }

    pub fn iter(&self) -> btree_map::Iter<'_, u64, Extent> {
        self.map.iter()
    }
}

/// One extent for two neighbours, where the log and the file are both contiguous.
fn join(left_start: u64, left: &Extent, start: u64, right: &Extent) -> Option<Extent> {
    if left.end != start {
        return None;
    }
    let place = match (left.place, right.place) {
        (Place::Zero, Place::Zero) => Place::Zero,
        (Place::Canonical, Place::Canonical) => Place::Canonical,
        (
            Place::Log {
                unit: a,
                skip: a_skip,
            },
            Place::Log {
                unit: b,
                skip: b_skip,
            },
        ) if a.segment == b.segment
            && a.offset == b.offset
            && a.len <= b.len
            && u64::from(a_skip) + (left.end - left_start) == u64::from(b_skip) =>
        {
            Place::Log {
                unit: b,
                skip: a_skip,
            }
        }
        (
            Place::Subfile {
                unit: a,
                skip: a_skip,
            },
            Place::Subfile {
                unit: b,
                skip: b_skip,
            },
        ) if a == b && u64::from(a_skip) + (left.end - left_start) == u64::from(b_skip) => {
            Place::Subfile {
                unit: a,
                skip: a_skip,
            }
        }
        _ => return None,
    };
    Some(Extent {
        end: right.end,
        seq: left.seq.max(right.seq),
        place,
    })
}

#[cfg(test)]
mod tests;
