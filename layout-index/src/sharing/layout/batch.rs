//! A batch: everything that a node publishes of a file at once.

use super::spans::Spans;
use crate::extent::BLOCK;
use crate::types::{ByteRange, Epoch, FileNo, NodeId, Seq, Timestamp};
use std::mem::size_of;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A subfile of the batch's node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubfileRef {
    pub run: u32,
    pub no: u32,
    /// Name of its storage target: compared with the configured names, never opened as a path. At
    /// most 255 bytes.
    pub ost: String,
}

/// Checks a target's name: it can come from another node and appears in messages.
pub(super) fn is_target(name: &str) -> bool {
    name.len() <= 255 && !name.contains(char::is_control)
}

impl SubfileRef {
    pub fn name(&self, node: NodeId) -> String {
        format!("{node}-{:08x}-{:08x}", self.run, self.no)
    }
}

/// A checksummed run of bytes in a subfile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Index into [`Batch::subfiles`].
    pub subfile: u32,
    /// Where the unit begins, in blocks of [`BLOCK`] bytes.
    pub block: u32,
    /// From 1 to [`crate::extent::UNIT_MAX`].
    pub len: u32,
    pub crc: u32,
}

impl Unit {
    /// Where the unit begins in the subfile.
    pub fn offset(&self) -> u64 {
        u64::from(self.block) * BLOCK
    }

    /// How many blocks the unit takes.
    pub(super) fn blocks(&self) -> u32 {
        self.len.div_ceil(BLOCK as u32)
    }
}

/// Where a strip's bytes begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// `skip` bytes into unit `first`; they go on in the units that follow it.
    Units {
        first: u32,
        skip: u32,
    },
    /// In the batch itself.
    Inline {
        at: u32,
    },
    Zero,
}

/// Pieces of `len` bytes, `stride` apart in the file, and stored one after the other in units or
/// inline.
///
/// A node's part of an interleaved file is one strip, however many pieces it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strip {
    pub start: u64,
    pub len: u64,
    /// 0 for a single piece, else more than `len`.
    pub stride: u64,
    pub count: u64,
    pub bytes: Bytes,
}

impl Strip {
    /// The end of the last piece.
    pub fn end(&self) -> u64 {
        self.start + (self.count - 1) * self.stride + self.len
    }

    pub fn bounds(&self) -> ByteRange {
        ByteRange::new(self.start, self.end())
    }

    /// Number of bytes in all pieces.
    pub fn total(&self) -> u64 {
        self.len * self.count
    }

    pub fn piece(&self, i: u64) -> ByteRange {
        let start = self.start + i * self.stride;
        ByteRange::new(start, start + self.len)
    }

    /// The first piece that ends after `at`.
    pub fn piece_after(&self, at: u64) -> Option<u64> {
        let Some(past) = at.checked_sub(self.start + self.len) else {
            return Some(0);
        };
        let i = past.checked_div(self.stride)? + 1;
        (i < self.count).then_some(i)
    }
}

/// What a batch states about the file as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub epoch: Epoch,
    /// The dirty period in the publisher's store, and the number of the last record of it that the
    /// batch includes: a node needs both for its own batches after a restart.
    pub period: FileNo,
    pub upto: Seq,
    /// Everything older at or beyond this offset is gone. Does not affect the batch's own strips.
    pub cut: Option<u64>,
    /// The file is at least this long. Never less than where the batch's own bytes end.
    pub grown: u64,
    pub mtime: Timestamp,
}

/// Strips in the order in which they were written (a later one lies over an earlier one), and the
/// tables that they point into. All indices and lengths are valid: see the documentation of the
/// module `layout`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub head: Head,
    subfiles: Vec<SubfileRef>,
    units: Vec<Unit>,
    strips: Vec<Strip>,
    inline: Arc<[u8]>,
    /// Where each unit ends in the stream of all units.
    unit_ends: Vec<u64>,
    spans: Spans,
}

/// The tables of a batch. The code that fills them must check them.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub subfiles: Vec<SubfileRef>,
    pub units: Vec<Unit>,
    pub strips: Vec<Strip>,
    pub inline: Vec<u8>,
}

/// Computes where each of `units` ends in their stream.
pub(super) fn unit_ends(units: &[Unit]) -> Vec<u64> {
    let mut end = 0;
    let add = |unit: &Unit| {
        end += u64::from(unit.len);
        end
    };
    units.iter().map(add).collect()
}

/// Returns the unit that holds byte `position` of the stream, and the offset in the unit.
pub(super) fn locate(ends: &[u64], position: u64) -> (usize, u64) {
    let unit = ends.partition_point(|end| *end <= position);
    (
        unit,
        position - unit.checked_sub(1).map_or(0, |before| ends[before]),
    )
}

impl Batch {
    pub(super) fn new(head: Head, tables: Tables, unit_ends: Vec<u64>) -> Batch {
        let Tables {
            mut subfiles,
            mut units,
            mut strips,
            inline,
        } = tables;
        subfiles.shrink_to_fit();
        units.shrink_to_fit();
        strips.shrink_to_fit();
        let spans = Spans::new(strips.len(), |i| strips[i as usize].bounds());
        Batch {
            head,
            subfiles,
            units,
            strips,
            inline: inline.into(),
            unit_ends,
            spans,
        }
    }

    pub fn subfiles(&self) -> &[SubfileRef] {
        &self.subfiles
    }

    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// A unit and the subfile it is in.
    pub fn unit(&self, unit: u32) -> (&SubfileRef, Unit) {
        let unit = self.units[unit as usize];
        (&self.subfiles[unit.subfile as usize], unit)
    }

    pub fn strips(&self) -> &[Strip] {
        &self.strips
    }

    pub fn inline(&self) -> &Arc<[u8]> {
        &self.inline
    }

    /// From the first byte of any strip to the last.
    pub fn bounds(&self) -> Option<ByteRange> {
        self.spans.bounds(|i| self.strips[i as usize].bounds())
    }

    /// Where the batch's own bytes end: a range of zeros need not be in the file.
    pub(super) fn data_end(&self) -> u64 {
        data_end(&self.strips)
    }

    pub(super) fn spans(&self) -> &Spans {
        &self.spans
    }

    /// The first byte of the file at or after `from` that the batch has.
    pub(super) fn next_byte(&self, from: u64) -> Option<u64> {
        let span = |i: u32| self.strips[i as usize].bounds();
        let mut lowest = self.spans.next_start(from, span);
        let here = ByteRange::at(from, 1)?;
        self.spans.overlapping(here, span, |i| {
            let strip = &self.strips[i as usize];
            let start = strip
                .piece_after(from)
                .map(|i| strip.piece(i).start.max(from));
            lowest = match (lowest, start) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if start == Some(from) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        lowest
    }

    /// The first bytes at or after `from` that the batch has, to the end of the piece they are in.
    pub(super) fn next_piece(&self, from: u64) -> Option<ByteRange> {
        let start = self.next_byte(from)?;
        let here = ByteRange::at(start, 1)?;
        let mut end = here.end;
        self.spans.overlapping(
            here,
            |i| self.strips[i as usize].bounds(),
            |i| {
                let strip = &self.strips[i as usize];
                let piece = strip.piece_after(start).map(|i| strip.piece(i));
                if let Some(piece) = piece.filter(|piece| piece.start <= start) {
                    end = end.max(piece.end);
                }
                ControlFlow::Continue(())
            },
        );
        Some(ByteRange { start, end })
    }

    /// Where byte 0 of a strip is in the stream of all units.
    pub(super) fn stream(&self, first: u32, skip: u32) -> u64 {
        let before = first.checked_sub(1);
        before.map_or(0, |unit| self.unit_ends[unit as usize]) + u64::from(skip)
    }

    /// Calls `found` with the places of `len` bytes that begin `from` bytes into the strip's bytes,
    /// unit by unit.
    pub(super) fn places(
        &self,
        strip: &Strip,
        from: u64,
        len: u64,
        mut found: impl FnMut(u64, Bytes),
    ) {
        match strip.bytes {
            Bytes::Zero => found(len, Bytes::Zero),
            // There are fewer than `u32::MAX` inline bytes.
            Bytes::Inline { at } => found(
                len,
                Bytes::Inline {
                    at: at + from as u32,
                },
            ),
            Bytes::Units { first, skip } => {
                let position = self.stream(first, skip) + from;
                let (mut unit, mut skip) = locate(&self.unit_ends, position);
                let mut left = len;
                while left > 0 {
                    let part = left.min(u64::from(self.units[unit].len) - skip);
                    let at = Bytes::Units {
                        first: unit as u32,
                        skip: skip as u32,
                    };
                    found(part, at);
                    left -= part;
                    skip = 0;
                    unit += 1;
                }
            }
        }
    }

    /// Calls `found` with every range of a subfile that a strip has its bytes in, and whether a
    /// unit ends with that range.
    pub(crate) fn in_subfiles(&self, mut found: impl FnMut(&SubfileRef, ByteRange, bool)) {
        for strip in &self.strips {
            self.places(strip, 0, strip.total(), |len, at| {
                if let Bytes::Units { first, skip } = at {
                    let (subfile, unit) = self.unit(first);
                    let start = unit.offset() + u64::from(skip);
                    let ends = u64::from(skip) + len == u64::from(unit.len);
                    found(subfile, ByteRange::new(start, start + len), ends);
                }
            });
        }
    }

    /// Memory that the batch takes, in bytes.
    pub fn memory(&self) -> usize {
        let names: usize = self.subfiles.iter().map(|s| s.ost.capacity()).sum();
        size_of::<Batch>()
            + names
            + self.subfiles.capacity() * size_of::<SubfileRef>()
            + self.units.capacity() * size_of::<Unit>()
            + self.strips.capacity() * size_of::<Strip>()
            + self.inline.len()
            + self.unit_ends.capacity() * size_of::<u64>()
            + self.spans.memory()
    }
}

pub(super) fn data_end(strips: &[Strip]) -> u64 {
    let data = strips.iter().filter(|s| s.bytes != Bytes::Zero);
    data.map(Strip::end).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
