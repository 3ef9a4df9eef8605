//! Writes that change nothing: the bytes that they do not change are not recorded.
//!
//! MPI libraries write more than the job asked for. A collective write with holes, and data sieving, read a range,
//! change some bytes and write all of it back; in collective calls this happens without a lock, and the next call
//! may do so on another node. HDF5 fills new chunks with zeros from other ranks than those that write them. On a
//! single machine that is harmless: the bytes that are written back are the bytes that are there. Between nodes
//! they may be older than another node's last write, which this node has not seen yet, and would undo it.
//!
//! So through a handle that reads and writes ([`Handle::looks`]) two things do not count as written:
//!
//! - **Bytes that are as they were read.** If the range was read last through this handle, only the bytes
//!   that differ from what was read are recorded.
//! - **Zeros where there is nothing**, neither of this node nor published by another. They extend the file if
//!   they reach beyond its end.
//!
//! # Why that is right
//! On this node the difference cannot be seen: bytes that are there already need no second record. That is
//! true as long as this node has not changed them since they were read ([`layout_index::Watch`], which is
//! checked under the same hold of the range under which the rest is recorded); otherwise all bytes are
//! recorded. For other nodes, this write comes after their writes if they published them before a sync point
//! of this node. If that sync point came after the read, the whole write is recorded; if it came before the
//! read, the read has seen their bytes. All other writes of other nodes are unordered with this one, so it is
//! right whether their bytes stay or not.
//!
//! # Reads past the end
//! A program that reads past the end of the file and then writes there fills the bytes that it did not get with
//! whatever its buffer held, and these cannot be told from data. It must not be wrong about the end the next time,
//! so such a write is published before it is answered, with bytes and size, and reads on other nodes see both.
//! Bytes that were written there without such a read, and that are not published, are not protected.
//!
//! # Crash behaviour
//! The runs are ordinary records. After a kill between two of them a part of the write is there, but
//! it was not acknowledged.

use super::Overlay;
use super::alloc::is_hole;
use crate::backing::sys;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::recent::Changes;
use layout_index::{ByteRange, StoreError, Timestamp, Wait};

impl Overlay {
    /// True if a write through this handle may be one that is not recorded as it is. For ordinary writers
    /// this checks one flag and one byte.
    pub(super) fn may_be_unchanged(&self, handle: &Handle, offset: u64, data: &[u8]) -> bool {
        handle.looks && (is_zero(data) || handle.recent.may_cover(range_of(offset, data)))
    }

    /// Like `absorb`, but leaves out the bytes that the write does not change.
    pub(super) fn absorb_changes(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        let back = handle
            .recent
            .changed(&handle.file, offset, data, |changes| {
                let past_the_end = changes.past_the_end;
                let done = self.absorb_runs(handle, offset, data, &changes)?;
                Ok::<_, FsError>((done, past_the_end))
            });
        let (done, past_the_end) = back.transpose()?.unwrap_or((false, false));
        if !done {
            if is_zero(data) && self.is_nothing(handle, range_of(offset, data))? {
                return self.grow(handle, offset, data);
            }
            self.absorb(handle, offset, data)?;
        }
        if past_the_end {
            self.publish(&handle.file)?;
        }
        Ok(())
    }

    /// True if neither this node nor another has put anything in the range. What other nodes have published
    /// counts, whether this node has refreshed or not: it may be what these zeros are meant to replace.
    fn is_nothing(&self, handle: &Handle, range: ByteRange) -> Result<bool> {
        if !is_hole(handle, range)? {
            return Ok(false);
        }
        self.refresh(&handle.inode, &handle.file, Wait::No)?;
        is_hole(handle, range)
    }

    /// False if all of the data must be written.
    fn absorb_runs(
        &self,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        changes: &Changes<'_>,
    ) -> Result<bool> {
        let Changes {
            runs: Some(runs),
            watch,
            ..
        } = changes
        else {
            return Ok(false);
        };
        let file = &handle.file;
        let range = range_of(offset, data);
        let written = self.absorb_by(handle, || {
            file.write_runs(handle.fh, offset, data, runs, watch)
        })?;
        match written {
            Some(false) => return Ok(false),
            Some(true) => {}
            None if file.is_touched(watch, range) => return Ok(false),
            None => {
                for run in runs {
                    self.write_through(handle, offset + run.start as u64, &data[run.clone()])?;
                }
            }
        }
        let reaches = || file.stat().is_some_and(|stat| stat.size >= range.end);
        match runs.last() {
            Some(last) if last.end == data.len() || reaches() => {}
            _ => self.grow(handle, offset, data)?,
        }
        Ok(true)
    }

    /// Extends the file to the end of `data` if it ends before, and sets its modification time.
    fn grow(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        let end = range_of(offset, data).end;
        let grown = self.absorb_by(handle, || {
            let exclusive = handle.file.exclusive();
            let size = handle.file.stat().ok_or(StoreError::Clean)?.size;
            let now = Timestamp::now();
            match end > size {
                true => exclusive.truncate(end, now),
                false => exclusive.set_mtime(now),
            }
        })?;
        match grown {
            Some(()) => Ok(()),
            None => self.grow_through(handle, end, data),
        }
    }

    /// For a store that accepts nothing: writes the last byte to the canonical file if the file ends before it.
    fn grow_through(&self, handle: &Handle, end: u64, data: &[u8]) -> Result<()> {
        // Published data of other nodes lies over the canonical file and has an end of its own.
        if handle.file.has_published() {
            self.drain_published(&handle.file)?;
        }
        let size = match handle.file.shown() {
            Some(shown) => shown.size,
            None => sys::stat(handle.canonical.fd())?.size,
        };
        match data.last_chunk::<1>() {
            Some(last) if size < end => self.write_through(handle, end - 1, last),
            _ => Ok(()),
        }
    }
}

fn range_of(offset: u64, data: &[u8]) -> ByteRange {
    ByteRange {
        start: offset,
        end: offset + data.len() as u64,
    }
}

/// Stops at the first byte that is not zero.
fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}
