//! One stripe: decides which writes to the canonical file a snapshot needs, and makes them.
//!
//! # Consistency
//!
//! Everything here happens under the stripe's canonical guard, so no other thread of this node
//! writes these bytes of the canonical file: reading around the dirty bytes and writing the whole
//! span back cannot undo another write. If other nodes may write the file, nothing is read around
//! ([`Work::exactly`]). Bytes come out of the log through the store's own read, which checks every
//! checksum; a stripe with one bad byte writes nothing at all.
//!
//! # Crash behaviour
//!
//! If the daemon is killed anywhere in here, recovery sees the stripe still undrained (nothing is
//! recorded until the canonical file is synced) and writes it again: all steps can be repeated.

use layout_index::{ByteRange, DiskFile, Piece, Source, StoreError};
use std::io::{self, IoSlice};

#[cfg(test)]
mod tests;

/// If one stripe has more separate runs than this, they are written as one read-modify-write.
const MAX_RUNS: usize = 8;

/// Block size of the file systems below.
const BLOCK: u64 = 4096;

/// Direct I/O and the page cache both work best with buffers that start on a page.
const ALIGN: usize = 4096;

/// Why a stripe did not reach the canonical file.
#[derive(Debug)]
pub(crate) enum Problem {
    /// Bytes in the log or in a subfile are damaged: trying again cannot help.
    Damaged(StoreError),
    /// The OST of a subfile did not answer.
    Away(StoreError),
    /// The store did not answer.
    Store(StoreError),
    /// A truncate came between trimming the canonical file and taking the snapshot of the stripe.
    TrimPending,
    /// The canonical file did not take or return the bytes.
    Canonical {
        op: &'static str,
        range: ByteRange,
        source: io::Error,
    },
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Checksum { .. } | StoreError::SubfileChecksum { .. } => {
                Problem::Damaged(error)
            }
            StoreError::SubfileIo { .. } | StoreError::Vanished { .. } => Problem::Away(error),
            StoreError::TrimPending => Problem::TrimPending,
            other => Problem::Store(other),
        }
    }
}

fn canonical(op: &'static str, range: ByteRange) -> impl FnOnce(io::Error) -> Problem {
    move |source| Problem::Canonical { op, range, source }
}

/// The changes that one snapshot needs in the canonical file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Bytes that come from the log or a subfile: runs without a gap, in order, each with its
    /// pieces.
    pub runs: Vec<Run>,
    /// Ranges to be punched out.
    pub zeros: Vec<ByteRange>,
    /// Set if there are too many runs: read this span, lay runs and zeros over it, and write it
    /// once.
    pub span: Option<ByteRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Zero,
    Settled,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub range: ByteRange,
    /// Indices into the snapshot's pieces.
    pub pieces: std::ops::Range<usize>,
}

impl Work {
    pub fn from_pieces(pieces: &[Piece]) -> Work {
        Work::plan(pieces.iter().map(|piece| match piece.source {
            Source::Log(_) | Source::Subfile(_) | Source::Published(_) => (piece.range, Kind::Data),
            Source::Zero => (piece.range, Kind::Zero),
            Source::Canonical => (piece.range, Kind::Settled),
        }))
    }

    /// Writes exactly these bytes. For files that other nodes may write through, past their stores,
    /// at the same time: no guard of this node keeps those writes out, and writing back what was
    /// read around would undo them.
    pub fn exactly(pieces: &[Piece]) -> Work {
        Work {
            span: None,
            ..Work::from_pieces(pieces)
        }
    }

    /// Widens a span that is read around anyway to the blocks of the file system, or to the ends of
    /// the stripe if the span is more than half of it: then nothing below has to read a block again
    /// to change a part of it. The span never goes beyond the file's end: a truncate that comes
    /// meanwhile cuts the canonical file after this write.
    pub fn aligned(mut self, stripe: ByteRange, size: u64) -> Work {
        if let Some(span) = &mut self.span {
            let wide = match span.len() > stripe.len() / 2 {
                true => stripe,
                false => ByteRange::new(
                    (span.start / BLOCK * BLOCK).max(stripe.start),
                    span.end.next_multiple_of(BLOCK).min(stripe.end),
                ),
            };
            *span = ByteRange::new(wide.start, wide.end.min(size).max(span.end));
        }
        self
    }

    fn plan(pieces: impl Iterator<Item = (ByteRange, Kind)>) -> Work {
        let mut runs: Vec<Run> = Vec::new();
        let mut zeros: Vec<ByteRange> = Vec::new();
        for (i, (range, kind)) in pieces.enumerate() {
            match kind {
                Kind::Data => match runs.last_mut() {
                    Some(run) if run.range.end == range.start => {
                        run.range.end = range.end;
                        run.pieces.end = i + 1;
                    }
                    _ => runs.push(Run {
                        range,
                        pieces: i..i + 1,
                    }),
                },
                Kind::Zero => match zeros.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => zeros.push(range),
                },
                Kind::Settled => {}
            }
        }
        let span = match (runs.first(), runs.last()) {
            (Some(first), Some(last)) if runs.len() > MAX_RUNS => {
                Some(ByteRange::new(first.range.start, last.range.end))
            }
            _ => None,
        };
        Work { runs, zeros, span }
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.zeros.is_empty()
    }

    /// Returns how many bytes count as drained once this is done.
    pub fn bytes(&self) -> u64 {
        let data: u64 = self.runs.iter().map(|r| r.range.len()).sum();
        data + self.zeros.iter().map(ByteRange::len).sum::<u64>()
    }
}

/// Applies `work`, which lies within `range`, to `file`. `read` fills a buffer with a run's bytes
/// from the store and checks their checksums.
pub(crate) fn write(
    range: ByteRange,
    work: &Work,
    file: &dyn DiskFile,
    buffer: &mut Buffer,
    verify: bool,
    mut read: impl FnMut(&Run, &mut [u8]) -> layout_index::Result<()>,
) -> Result<(), Problem> {
    let stripe = buffer.slice(range.len() as usize);
    let at = |r: &ByteRange| (r.start - range.start) as usize..(r.end - range.start) as usize;

    if let Some(span) = &work.span {
        let around = &mut stripe[at(span)];
        let got = file
            .read_at(around, span.start)
            .map_err(canonical("reading around", *span))?;
        around[got..].fill(0);
        for zero in work.zeros.iter().filter_map(|z| z.intersect(span)) {
            stripe[at(&zero)].fill(0);
        }
    }
    for run in &work.runs {
        read(run, &mut stripe[at(&run.range)])?;
    }

    match &work.span {
        Some(span) => write_verified(file, *span, &stripe[at(span)], verify)?,
        None => {
            for run in &work.runs {
                write_verified(file, run.range, &stripe[at(&run.range)], verify)?;
            }
        }
    }
    for zero in &work.zeros {
        match &work.span {
            None => punch(file, *zero)?,
            Some(span) => {
                // Inside the span the zeros are written already; a range of zeros may stick out of
                // it.
                let before = ByteRange::new(zero.start, zero.end.min(span.start).max(zero.start));
                let after = ByteRange::new(zero.start.max(span.end).min(zero.end), zero.end);
                punch(file, before)?;
                punch(file, after)?;
            }
        }
    }
    Ok(())
}

fn write_verified(
    file: &dyn DiskFile,
    range: ByteRange,
    data: &[u8],
    verify: bool,
) -> Result<(), Problem> {
    file.write_at(&[IoSlice::new(data)], range.start)
        .map_err(canonical("writing", range))?;
    if !verify {
        return Ok(());
    }
    let mut back = vec![0; data.len()];
    let got = file
        .read_at(&mut back, range.start)
        .map_err(canonical("reading back", range))?;
    if got == data.len() && back == data {
        return Ok(());
    }
    let source = io::Error::new(
        io::ErrorKind::InvalidData,
        "the bytes read back differ from the bytes written",
    );
    Err(canonical("verifying", range)(source))
}

/// Makes `range` read as zeros. Bytes beyond the end of the file read as zeros already, and this
/// module does not set the size.
fn punch(file: &dyn DiskFile, range: ByteRange) -> Result<(), Problem> {
    let len = file
        .size()
        .map_err(canonical("asking the size for", range))?;
    let Some(range) = range.intersect(&ByteRange::new(0, len)) else {
        return Ok(());
    };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    match file.allocate(mode, range.start, range.len()) {
        Ok(()) => return Ok(()),
        Err(e) if !cannot_punch(&e) => return Err(canonical("punching a hole into", range)(e)),
        Err(_) => {}
    }
    let zeros = vec![0; range.len().min(1 << 20) as usize];
    let mut at = range.start;
    while at < range.end {
        let n = (range.end - at).min(zeros.len() as u64);
        file.write_at(&[IoSlice::new(&zeros[..n as usize])], at)
            .map_err(canonical("writing zeros to", range))?;
        at += n;
    }
    Ok(())
}

fn cannot_punch(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::ENODEV)
    )
}

/// A page-aligned buffer that is used for stripe after stripe.
#[derive(Debug, Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    pub fn slice(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len + ALIGN {
            self.0 = vec![0; len + ALIGN];
        }
        let start = self.0.as_ptr().align_offset(ALIGN).min(ALIGN);
        &mut self.0[start..start + len]
    }
}

/// Buffers that are not in use: as many as stripes were ever written at once.
#[derive(Debug, Default)]
pub(crate) struct Buffers(parking_lot::Mutex<Vec<Buffer>>);

impl Buffers {
    pub fn with<T>(&self, f: impl FnOnce(&mut Buffer) -> T) -> T {
        let mut buffer = self.0.lock().pop().unwrap_or_default();
        let result = f(&mut buffer);
        self.0.lock().push(buffer);
        result
    }
}
