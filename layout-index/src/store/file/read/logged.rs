//! Reads planned pieces from the log.
//!
//! Small writes leave small units, which may be in any order in the file. Units that lie close
//! together in a segment are read with one call; each unit is checked once, and all of its pieces
//! are copied from it. So the cost of a read depends on the number of bytes and not on the number
//! of writes that made them: a file that was written backwards, byte by byte, must not cost a
//! system call for each byte.

use super::super::File;
use super::super::plan::LogPiece;
use super::SCRATCH;
use crate::checksum;
use crate::error::{Result, StoreError};
use crate::extent::UNIT_MAX;
use crate::types::ByteRange;
use std::cmp::Reverse;

/// A unit larger than this is read by itself, if possible into the caller's buffer without a copy.
const SMALL: u32 = 16 << 10;

/// Largest gap between two units that is read and thrown away to save a call.
const GAP: u32 = 4 << 10;

type Logged<'a> = (ByteRange, &'a LogPiece);

impl File {
    /// Reads `pieces` into `buf`, which begins at offset `start` of the file.
    pub(super) fn read_logged(
        &self,
        mut pieces: Vec<Logged<'_>>,
        start: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        // A unit grows while it is written, so pieces may name it with different lengths. The
        // longest comes first and has the bytes of all.
        pieces.sort_unstable_by_key(|(_, log)| {
            (log.unit.segment, log.unit.offset, Reverse(log.unit.len))
        });
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let (span, later) = rest.split_at(close_together(rest));
            self.read_span(span, start, buf)?;
            rest = later;
        }
        Ok(())
    }

    fn read_span(&self, span: &[Logged<'_>], start: u64, buf: &mut [u8]) -> Result<()> {
        let place =
            |range: &ByteRange| (range.start - start) as usize..(range.end - start) as usize;
        if let [(range, log)] = span {
            return self.read_log(*range, log, &mut buf[place(range)]);
        }
        // Pieces of a unit that does not match its checksum are read again one by one: a shorter
        // state of the unit may match.
        let mut unmatched: Vec<&Logged<'_>> = Vec::new();
        SCRATCH.with_borrow_mut(|scratch| {
            let (_, first) = span[0];
            let begin = first.unit.offset;
            let end = span.iter().map(|(_, log)| end_of(log)).max();
            scratch.resize((end.unwrap_or(begin) - begin) as usize, 0);
            let n = first.segment.read_payload(scratch, u64::from(begin))?;
            for run in span.chunk_by(|a, b| a.1.unit.offset == b.1.unit.offset) {
                let unit = run[0].1.unit;
                let at = (unit.offset - begin) as usize;
                let bytes = scratch[..n]
                    .get(at..at + unit.len as usize)
                    .filter(|bytes| checksum::crc32c(bytes) == unit.crc);
                for piece in run {
                    let (range, log) = piece;
                    let skip = log.skip as usize;
                    let part = bytes.and_then(|b| b.get(skip..skip + range.len() as usize));
                    match part {
                        Some(part) => buf[place(range)].copy_from_slice(part),
                        None => unmatched.push(piece),
                    }
                }
            }
            Ok::<_, StoreError>(())
        })?;
        for (range, log) in unmatched {
            self.read_log(*range, log, &mut buf[place(range)])?;
        }
        Ok(())
    }

    pub(crate) fn read_log(&self, range: ByteRange, log: &LogPiece, out: &mut [u8]) -> Result<()> {
        let damaged = || StoreError::Checksum {
            file: self.id,
            range,
            segment: log.unit.segment,
            offset: log.unit.offset,
        };
        if log.skip == 0 && out.len() == log.unit.len as usize {
            let n = log.segment.read_payload(out, u64::from(log.unit.offset))?;
            let good = n == out.len() && checksum::crc32c(out) == log.unit.crc;
            return if good { Ok(()) } else { Err(damaged()) };
        }
        SCRATCH.with_borrow_mut(|scratch| {
            log.segment
                .read_unit(&log.unit, scratch)?
                .ok_or_else(damaged)?;
            let skip = log.skip as usize;
            let part = scratch.get(skip..skip + out.len()).ok_or_else(damaged)?;
            out.copy_from_slice(part);
            Ok(())
        })
    }
}

/// Number of leading pieces, at least one, to read with one call. `pieces` is sorted.
fn close_together(pieces: &[Logged<'_>]) -> usize {
    let first = pieces[0].1.unit;
    let mut end = end_of(pieces[0].1);
    let joins = |log: &LogPiece, end: u32| {
        let unit = log.unit;
        unit.segment == first.segment
            && (unit.offset == first.offset
                || (unit.len <= SMALL
                    && unit.offset <= end.saturating_add(GAP)
                    && end_of(log) - first.offset <= UNIT_MAX))
    };
    let later = pieces[1..].iter().take_while(|(_, log)| {
        let joined = joins(log, end);
        if joined {
            end = end.max(end_of(log));
        }
        joined
    });
    1 + later.count()
}

fn end_of(log: &LogPiece) -> u32 {
    log.unit.offset.saturating_add(log.unit.len)
}
