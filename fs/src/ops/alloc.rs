//! Allocation, holes, and copies inside the file system.
//!
//! Space is allocated in the canonical file even if the data will go to the log, so that the backing's ENOSPC
//! and EDQUOT are returned to the job's request and not to the drain. A range of a dirty file that must read
//! as zeros is recorded in the log: its older bytes may be there as well as in the canonical file.

use super::Overlay;
use crate::backing::sys;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use layout_index::{ByteRange, DiskFile, Exclusive, Piece, Source, StoreError, Timestamp};
use std::io;

const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// One copy request moves at most this many bytes; the kernel asks again for the rest.
const COPY_MAX: u64 = 16 << 20;
const COPY_STEP: u64 = 1 << 20;

/// Number of pieces that a seek plans at first, and at a time after that: most searches end
/// within the first pieces.
const FIRST_PIECES: usize = 64;
const MORE_PIECES: usize = 8192;
/// A search that has passed this many pieces gives an answer that is allowed for any file: that a hole is
/// data, or that there is no hole before the end.
const MOST_PIECES: usize = 1 << 17;

impl Overlay {
    pub fn fallocate(
        &self,
        fh: u64,
        offset: u64,
        len: u64,
        mode: i32,
        kill_setid: bool,
    ) -> Result<()> {
        let handle = self.handle(fh)?;
        if !handle.writable {
            return Err(FsError::BadHandle(fh));
        }
        let range = ByteRange::at(offset, len)
            .filter(|r| r.end <= handle.largest)
            .ok_or(io::Error::from_raw_os_error(libc::EFBIG))?;
        self.strip_privileges(&handle.inode, kill_setid)?;
        let turn = self.turn_of_all(&handle.inode, &handle.file, handle.coherent)?;
        self.allocate(&handle, range, mode)?;
        if turn.is_some() {
            self.publish(&handle.file)?;
        }
        Ok(())
    }

    fn allocate(&self, handle: &Handle, range: ByteRange, mode: i32) -> Result<()> {
        let exclusive = handle.file.exclusive();
        self.begin_over_published(&handle.inode, &exclusive)?;
        let size = match handle.file.stat() {
            Some(stat) if !exclusive.is_clean() => stat.size,
            _ => return allocate_clean(handle, mode, range),
        };
        match dirty_fallocate(handle, &exclusive, range, size, mode) {
            Err(FsError::Store(StoreError::Clean)) => allocate_clean(handle, mode, range),
            other => other,
        }
    }

    /// Serves SEEK_DATA and SEEK_HOLE; the kernel handles the other kinds itself.
    pub fn lseek(&self, fh: u64, offset: i64, whence: i32) -> Result<u64> {
        let handle = self.handle(fh)?;
        let data = match whence {
            libc::SEEK_DATA => true,
            libc::SEEK_HOLE => false,
            _ => return Err(FsError::Invalid("only data and holes are sought here")),
        };
        let start = u64::try_from(offset).map_err(|_| FsError::NoData)?;
        match seek_dirty(&handle, start, data) {
            Err(FsError::Store(StoreError::Clean)) => {
                Ok(sys::lseek(handle.canonical.fd(), offset, whence)?)
            }
            other => other,
        }
    }

    /// Copies through the overlay, so that both sides are what reads and writes would see. Returns the number
    /// of copied bytes; fewer than requested is no error.
    #[allow(clippy::too_many_arguments)]
    pub fn copy_file_range(
        &self,
        fh_in: u64,
        offset_in: u64,
        fh_out: u64,
        offset_out: u64,
        len: u64,
        kill_setid: bool,
    ) -> Result<u64> {
        let (from, to) = (self.handle(fh_in)?, self.handle(fh_out)?);
        let len = len.min(COPY_MAX);
        let mut buf = vec![0u8; len.min(COPY_STEP) as usize];
        let mut copied = 0;
        while copied < len {
            let step = (len - copied).min(COPY_STEP) as usize;
            let moved = self
                .read(&from, offset_in + copied, &mut buf[..step])
                .and_then(|n| {
                    if n > 0 {
                        self.write(&to, offset_out + copied, &buf[..n], kill_setid, false)?;
                    }
                    Ok(n as u64)
                });
            match moved {
                Ok(0) => break,
                Ok(n) => copied += n,
                Err(_) if copied > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(copied)
    }
}

/// Allocates in the canonical file of a clean file.
fn allocate_clean(handle: &Handle, mode: i32, range: ByteRange) -> Result<()> {
    let done = handle.canonical.allocate(mode, range.start, range.len());
    handle.file.forget_local_copy();
    handle.file.touch(range);
    Ok(done?)
}

fn dirty_fallocate(
    handle: &Handle,
    exclusive: &Exclusive<'_>,
    range: ByteRange,
    size: u64,
    mode: i32,
) -> Result<()> {
    let now = Timestamp::now();
    let within = range.intersect(&ByteRange::new(0, size));
    match mode {
        0 => {
            handle.canonical.allocate(KEEP, range.start, range.len())?;
            if range.end > size {
                exclusive.truncate(range.end, now)?;
            }
        }
        KEEP => handle.canonical.allocate(KEEP, range.start, range.len())?,
        PUNCH | ZERO_KEEP => {
            if let Some(within) = within {
                exclusive.zero(within, false, now)?;
            }
        }
        ZERO => exclusive.zero(range, true, now)?,
        _ => return Err(FsError::Unsupported),
    }
    Ok(())
}

/// Seeks from extent to extent, so that the cost does not grow with the length of the file.
fn seek_dirty(handle: &Handle, start: u64, data: bool) -> Result<u64> {
    let mut at = start;
    let mut passed = 0;
    let mut pieces = FIRST_PIECES;
    loop {
        let rest = ByteRange::new(at.min(i64::MAX as u64), i64::MAX as u64);
        let plan = handle.file.plan_upto(rest, pieces)?;
        if at >= plan.size {
            // Every file has a hole at its end, which does not count for a search that began beyond the end.
            return if data || start >= plan.size {
                Err(FsError::NoData)
            } else {
                Ok(plan.size)
            };
        }
        for piece in &plan.pieces {
            if let Some(found) = seek_piece(handle, piece, data)? {
                return Ok(found);
            }
        }
        if plan.range.is_empty() {
            return Err(FsError::NoData);
        }
        at = plan.range.end;
        passed += plan.pieces.len();
        if passed >= MOST_PIECES && at < plan.size {
            return Ok(if data { at } else { plan.size });
        }
        pieces = MORE_PIECES;
    }
}

/// True if nothing was ever written to `range`, as far as this node knows.
pub(super) fn is_hole(handle: &Handle, range: ByteRange) -> Result<bool> {
    let pieces = match handle.file.plan(range) {
        Ok(plan) => plan.pieces,
        Err(StoreError::Clean) => vec![Piece {
            range,
            source: Source::Canonical,
        }],
        Err(e) => return Err(e.into()),
    };
    for piece in &pieces {
        if seek_piece(handle, piece, true)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The offset of the first byte of `piece` that is data, or that is in a hole if `data` is false.
fn seek_piece(handle: &Handle, piece: &Piece, data: bool) -> Result<Option<u64>> {
    let ByteRange { start, end } = piece.range;
    match piece.source {
        Source::Log(_) | Source::Subfile(_) | Source::Published(_) => Ok(data.then_some(start)),
        Source::Zero => Ok((!data).then_some(start)),
        Source::Canonical => {
            let whence = if data {
                libc::SEEK_DATA
            } else {
                libc::SEEK_HOLE
            };
            match sys::lseek(handle.canonical.fd(), start as i64, whence) {
                Ok(found) => Ok((found < end).then_some(found)),
                // The canonical file ends before this piece, so there is only a hole.
                Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok((!data).then_some(start)),
                Err(e) => Err(e.into()),
            }
        }
    }
}
