//! Writes that change nothing: what they do not change is not recorded.
//!
//! MPI libraries write more than the job gave them. A collective write with holes, and data sieving,
//! read a range, change some bytes and write all of it back; in collective calls without a lock,
//! and the next call may do so on another node. HDF5 fills new chunks with zeros from other ranks than
//! those that write them. On one machine that is harmless: what is written back is what is there.
//! Between nodes it may be what was there before another node's last write, of which this one has
//! not heard; and would undo it.
//!
//! So through a handle that reads and writes ([`Handle::looks`]) two things are no writes:
//!
//! - **Bytes that are as they were read.** If the range was read last through this handle, only the
//!   bytes that differ from that are recorded.
//! - **Zeros where nothing is**, neither of this node nor published by another. They make the file
//!   longer, if they reach beyond its end.
//!
//! # Why that is right
//! On this node nobody can tell: bytes that are there need no second record. That holds while nobody
//! here has changed them since they were read ([`layout_index::Watch`]; asked under the same hold of the
//! range under which the rest is recorded), else all is recorded. For other nodes the write comes
//! after theirs if they published before a sync point of this node. A sync point after the read
//! makes the whole write count, and one before it has shown their bytes to the read. All others are
//! in no order with this write, and then their bytes may stay as well as not.
//!
//! # Reads past the end
//! Who reads past the end of the file, and then writes there, fills what it did not get with
//! whatever its buffer had, and nobody can tell that from data. It must not be wrong about the end
//! next time: so such a write is published before it is answered, with bytes and size, and reads on other
//! nodes see both. What was written there without such a read, and is not published, is not safe.
//!
//! # Crash behaviour
//! The runs are records like others. Killed between two of them, some of the write is there; it was
//! not answered.

use super::Overlay;
use super::alloc::is_hole;
use crate::backing::sys;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::recent::Changes;
use layout_index::{ByteRange, StoreError, Timestamp, Wait};

impl Overlay {
    /// A write through this handle may be one that is not recorded as it is. For ordinary writers
    /// one flag and one byte.
    pub(super) fn may_be_unchanged(&self, handle: &Handle, offset: u64, data: &[u8]) -> bool {
        handle.looks && (is_zero(data) || handle.recent.may_cover(range_of(offset, data)))
    }

    /// As `absorb`, but leaves out what the write does not change.
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

    /// Neither this node nor any other has put anything there. What others have published counts,
    /// whether this node has looked for it or not: it may be what these zeros are to replace.
    fn is_nothing(&self, handle: &Handle, range: ByteRange) -> Result<bool> {
        if !is_hole(handle, range)? {
            return Ok(false);
        }
        self.refresh(&handle.inode, &handle.file, Wait::No)?;
        is_hole(handle, range)
    }

    /// False if all of it must be written.
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

    /// The file ends no earlier than `data` does, and was written just now.
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

    /// The store takes nothing: the last byte goes to the canonical file, if the file ends before it.
    fn grow_through(&self, handle: &Handle, end: u64, data: &[u8]) -> Result<()> {
        // What others have published lies over the canonical file and has an end of its own.
        if !handle.file.published_view().is_empty() {
            self.settle(&handle.file)?;
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

/// Ends at the first byte that is something.
fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}
