//! Building a batch, piece by piece.
//!
//! Pieces may come in any order, and a later one lies over an earlier one. But only pieces that are
//! pushed one directly after the other are joined, so pushing them in file order gives the fewest
//! strips.

use super::batch::{self, Batch, Bytes, Head, Strip, SubfileRef, Tables, Unit};
use super::bytes::MAX_OFFSET;
use super::codec::{FIXED, MAX_BATCH, StripCodec, behind, goes_on, put_run};
use crate::extent::{BLOCK, SubUnit, UNIT_MAX};
use crate::types::ByteRange;
use std::collections::HashMap;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    #[error("bytes {0} cannot be published: they end beyond the largest offset of a file")]
    Range(ByteRange),
    #[error("bytes {range} cannot be published from {unit:?}, skipping {skip}: they are not in it")]
    Unit {
        range: ByteRange,
        unit: SubUnit,
        skip: u32,
    },
    #[error("bytes {range} cannot be published: {given} bytes were given")]
    Inline { range: ByteRange, given: usize },
    #[error(
        "the name of storage target {0:?} is longer than 255 bytes or cannot be shown; give it another one"
    )]
    Target(String),
    #[error(
        "a node has published with the largest epoch there is, so nothing can be newer; remove that layout from the shared directory"
    )]
    Epoch,
    #[error("a batch is at most {MAX_BATCH} bytes long; begin another one")]
    Full,
}

/// Where the bytes of a pushed range are.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// `skip` bytes into a unit; `unit.subfile` is ignored.
    Subfile {
        subfile: &'a SubfileRef,
        unit: SubUnit,
        skip: u32,
    },
    Inline(&'a [u8]),
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Units,
    Inline,
    Zero,
}

/// Pieces to which more may still be joined. `position` is in the stream of units, or in the inline
/// bytes.
#[derive(Clone, Copy, Debug)]
struct Run {
    kind: Kind,
    position: u64,
    start: u64,
    len: u64,
    stride: u64,
    count: u64,
}

impl Run {
    fn end(&self) -> u64 {
        self.start + (self.count - 1) * self.stride + self.len
    }

    fn bytes_go_on(&self, next: &Run) -> bool {
        let behind = self.position + self.count * self.len;
        self.kind == next.kind && (self.kind == Kind::Zero || behind == next.position)
    }

    /// `self` extended by `next`, if that begins where `self` ends.
    fn longer(&self, next: &Run) -> Option<Run> {
        let fits = self.count == 1 && self.end() == next.start && self.bytes_go_on(next);
        fits.then(|| Run {
            len: self.len + next.len,
            ..*self
        })
    }

    /// Splits a run of two pieces.
    fn parted(&self) -> (Run, Run) {
        let first = Run {
            stride: 0,
            count: 1,
            ..*self
        };
        let second = Run {
            start: self.start + self.stride,
            position: self.position + self.len,
            ..first
        };
        (first, second)
    }

    /// `self` with `next` as one more piece.
    fn with(&self, next: &Run) -> Option<Run> {
        let stride = next
            .start
            .checked_sub(self.start + (self.count - 1) * self.stride)?;
        let regular = match self.count {
            1 => stride > self.len,
            _ => stride == self.stride,
        };
        let fits = regular && self.len == next.len && self.bytes_go_on(next);
        fits.then(|| Run {
            stride,
            count: self.count + 1,
            ..*self
        })
    }
}

#[derive(Default)]
pub struct BatchBuilder {
    tables: Tables,
    subfiles: HashMap<SubfileRef, u32>,
    units: HashMap<Unit, u32>,
    unit_ends: Vec<u64>,
    /// The strip that is being built, and the piece that may still grow before it becomes a part of
    /// that strip. Two pieces do not make a strip yet.
    strip: Option<Run>,
    piece: Option<Run>,
    data_end: u64,
    codec: StripCodec,
    scratch: Vec<u8>,
    encoded: usize,
}

/// Upper limit of what the open strip, the open piece and one more push can add to the encoding.
const OPEN: usize = 512;

impl BatchBuilder {
    pub fn new() -> BatchBuilder {
        BatchBuilder::default()
    }

    pub fn is_empty(&self) -> bool {
        self.piece.is_none()
    }

    /// Upper limit of the length of [`Batch::encode`]'s result, so that a caller can begin another
    /// batch in time.
    pub fn encoded_len(&self) -> usize {
        FIXED + OPEN + self.encoded + self.tables.inline.len()
    }

    pub fn push(&mut self, range: ByteRange, piece: Piece) -> Result<(), BuildError> {
        if range.is_empty() {
            return Ok(());
        }
        if range.end > MAX_OFFSET {
            return Err(BuildError::Range(range));
        }
        let inline = match piece {
            Piece::Inline(bytes) => bytes.len(),
            _ => 0,
        };
        if self.encoded_len() + inline > MAX_BATCH {
            return Err(BuildError::Full);
        }
        let (kind, position) = match piece {
            Piece::Zero => (Kind::Zero, 0),
            Piece::Inline(bytes) => {
                let given = bytes.len();
                if given as u64 != range.len() {
                    return Err(BuildError::Inline { range, given });
                }
                let at = self.tables.inline.len() as u64;
                self.tables.inline.extend_from_slice(bytes);
                (Kind::Inline, at)
            }
            Piece::Subfile {
                subfile,
                unit,
                skip,
            } => {
                let end = u64::from(skip) + range.len();
                let last = u64::from(unit.block) * BLOCK + u64::from(unit.len);
                if end > u64::from(unit.len) || unit.len > UNIT_MAX || last > BLOCK << 32 {
                    return Err(BuildError::Unit { range, unit, skip });
                }
                (Kind::Units, self.unit(subfile, unit)? + u64::from(skip))
            }
        };
        if kind != Kind::Zero {
            self.data_end = self.data_end.max(range.end);
        }
        let next = Run {
            kind,
            position,
            start: range.start,
            len: range.len(),
            stride: 0,
            count: 1,
        };
        self.piece = Some(match self.piece.take() {
            None => next,
            Some(piece) => piece.longer(&next).unwrap_or_else(|| {
                self.close_piece(piece);
                next
            }),
        });
        Ok(())
    }

    /// Returns where the unit begins in the stream of all units.
    fn unit(&mut self, subfile: &SubfileRef, unit: SubUnit) -> Result<u64, BuildError> {
        let subfile = match self.subfiles.get(subfile) {
            Some(known) => *known,
            None => {
                if !batch::is_target(&subfile.ost) {
                    return Err(BuildError::Target(subfile.ost.clone()));
                }
                let index = self.tables.subfiles.len() as u32;
                self.encoded += 9 + subfile.ost.len();
                self.tables.subfiles.push(subfile.clone());
                self.subfiles.insert(subfile.clone(), index);
                index
            }
        };
        let unit = Unit {
            subfile,
            block: unit.block,
            len: unit.len,
            crc: unit.crc,
        };
        let units = &mut self.tables.units;
        let start = self.unit_ends.last().copied().unwrap_or(0);
        if units.last() == Some(&unit) {
            return Ok(start - u64::from(unit.len));
        }
        if let Some(known) = self.units.get(&unit) {
            let end = self.unit_ends[*known as usize];
            return Ok(end - u64::from(unit.len));
        }
        if !units.last().is_some_and(|last| goes_on(last, &unit)) {
            self.scratch.clear();
            // The run's count is not known yet and takes at most five bytes.
            put_run(&mut self.scratch, behind(units), &unit, 0);
            self.encoded += self.scratch.len() + 4;
        }
        self.encoded += 4;
        self.units.insert(unit, units.len() as u32);
        units.push(unit);
        self.unit_ends.push(start + u64::from(unit.len));
        Ok(start)
    }

    fn close_piece(&mut self, piece: Run) {
        let Some(strip) = self.strip.take() else {
            self.strip = Some(piece);
            return;
        };
        if let Some(longer) = strip.with(&piece) {
            self.strip = Some(longer);
            return;
        }
        // Any two pieces have some distance, so two make no pattern: a strip of them saves nothing,
        // and if they are far apart, it would slow down every lookup between them.
        let last = match strip.count {
            2 => {
                let (first, second) = strip.parted();
                self.close_strip(first);
                second
            }
            _ => strip,
        };
        self.strip = Some(last.with(&piece).unwrap_or_else(|| {
            self.close_strip(last);
            piece
        }));
    }

    fn close_strip(&mut self, run: Run) {
        let bytes = match run.kind {
            Kind::Units => {
                let (first, skip) = batch::locate(&self.unit_ends, run.position);
                Bytes::Units {
                    first: first as u32,
                    skip: skip as u32,
                }
            }
            Kind::Inline => Bytes::Inline {
                at: run.position as u32,
            },
            Kind::Zero => Bytes::Zero,
        };
        let strip = Strip {
            start: run.start,
            len: run.len,
            stride: run.stride,
            count: run.count,
            bytes,
        };
        self.scratch.clear();
        self.codec.put(&mut self.scratch, &strip, run.position);
        self.encoded += self.scratch.len();
        self.tables.strips.push(strip);
    }

    /// Finishes the batch. Its growth is at least where its bytes end.
    pub fn finish(mut self, mut head: Head) -> Batch {
        if let Some(piece) = self.piece.take() {
            self.close_piece(piece);
        }
        match self.strip.take() {
            Some(pair) if pair.count == 2 => {
                let (first, second) = pair.parted();
                self.close_strip(first);
                self.close_strip(second);
            }
            Some(strip) => self.close_strip(strip),
            None => {}
        }
        head.grown = head.grown.max(self.data_end);
        Batch::new(head, self.tables, self.unit_ends)
    }
}

#[cfg(test)]
mod tests;
