//! Absorbs a write: range, log, extents, reply. Nothing else is on this path.
//!
//! If the daemon is killed after the append and before the reply, the bytes are there after
//! recovery although the caller got no reply: the write happened. If it is killed before the
//! record, the bytes are not there, and the caller got no reply.

use super::{File, Inner};
use crate::error::{Result, StoreError};
use crate::ranges::Ticket;
use crate::store::log::record::{Kind, Record};
use crate::store::log::{Room, Write};
use crate::types::{ByteRange, Timestamp};
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use std::sync::atomic::Ordering;

/// Records of one request and the segments they are in; a 1 MiB request makes eight.
type Placed = SmallVec<[(u32, Record); 8]>;

impl File {
    /// Absorbs a write without ever waiting. Returns `Busy` when an overlapping request is in
    /// flight or the index is short of memory, `Clean` when no dirty period has begun, or `Full` or
    /// `Failed`.
    ///
    /// `lane` spreads writers over the log's lanes; a handle should always pass the same number.
    pub fn try_write(&self, lane: u64, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if self.state.memory_is_short() {
            return Err(StoreError::Busy);
        }
        let range = write_range(offset, data.len() as u64)?;
        let mut inner = self.inner();
        if inner.period.is_none() {
            return Err(StoreError::Clean);
        }
        let floor = self.state.log.next_seq();
        let ticket = inner
            .active
            .try_hold(range, floor)
            .ok_or(StoreError::Busy)?;
        self.write_held(inner, ticket, lane, offset, data)
    }

    /// As [`File::try_write`], but waits for overlapping requests.
    pub fn write(&self, lane: u64, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.need_memory()?;
        let (inner, ticket) = self.hold(write_range(offset, data.len() as u64)?);
        self.write_held(inner, ticket, lane, offset, data)
    }

    /// Waits until there is memory for more extents.
    pub(super) fn need_memory(&self) -> Result<()> {
        if !self.state.memory_is_short() {
            return Ok(());
        }
        if let Some(failure) = self.state.log.failure() {
            return Err(failure);
        }
        self.state.wait_for_memory();
        match self.state.memory_is_short() {
            true => Err(StoreError::Full),
            false => Ok(()),
        }
    }

    fn write_held(
        &self,
        inner: MutexGuard<'_, Inner>,
        ticket: Ticket,
        lane: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let state = &*self.state;
        let no = match &inner.period {
            None => {
                self.release(inner, ticket);
                return Err(StoreError::Clean);
            }
            Some(period) => {
                let user = period.tally.user.load(Ordering::Relaxed);
                if user + data.len() as u64 > state.log.space.user_share() {
                    self.release(inner, ticket);
                    return Err(StoreError::Full);
                }
                period.no
            }
        };
        drop(inner);

        let write = Write {
            kind: Kind::Write,
            file: no,
            offset,
            data,
            time: Timestamp::now(),
            room: Room::Data,
        };
        let (inner, result) = self.append_and_insert(lane, write);
        self.release(inner, ticket);
        if state.hot.load(Ordering::Relaxed) > state.hot_limit {
            state.kick();
        }
        result
    }
}

impl File {
    /// Writes bytes that compaction moves to a new place. The caller holds the range.
    pub(crate) fn write_moved(&self, offset: u64, data: &[u8], time: Timestamp) -> Result<()> {
        let Some(file) = self.period_no() else {
            return Err(StoreError::Clean);
        };
        let write = Write {
            kind: Kind::Moved,
            file,
            offset,
            data,
            time,
            room: Room::Data,
        };
        self.append_and_insert(file.0, write).1
    }

    pub(super) fn append_and_insert(
        &self,
        lane: u64,
        write: Write<'_>,
    ) -> (MutexGuard<'_, Inner>, Result<()>) {
        let mut placed = Placed::new();
        let result = self.state.log.append(lane, write, |segment, record| {
            // Called under the lane's lock: the segment must not look dead between here and the
            // insert.
            segment.add_live(record.len);
            placed.push((segment.id, *record));
        });
        let time = (write.kind == Kind::Write).then_some(write.time);
        let mut inner = self.inner();
        if time.is_some() && !inner.watched.is_empty() {
            let end = write.offset + write.data.len() as u64;
            inner.touch(ByteRange::new(write.offset, end));
        }
        match &mut inner.period {
            // Inserted even if the rest of the append failed: what is in the log comes back after a
            // crash, so it must be visible now, and a later write over it must be recorded.
            Some(period) => {
                for (segment, record) in &placed {
                    period.put(&self.state, record.offset, record.extent(*segment), time);
                }
            }
            None => forget_placed(self, &placed),
        }
        (inner, result)
    }
}

fn forget_placed(file: &File, placed: &Placed) {
    for (segment, record) in placed {
        if let Some(segment) = file.state.log.segment(*segment) {
            segment.sub_live(record.len);
        }
    }
}

/// The range of a write. The kernel never sends a write that ends beyond `i64::MAX`, but the range
/// arithmetic must not depend on that.
pub(super) fn write_range(offset: u64, len: u64) -> Result<ByteRange> {
    ByteRange::at(offset, len)
        .filter(|r| r.end <= i64::MAX as u64)
        .ok_or_else(|| {
            let source = std::io::Error::from_raw_os_error(libc::EFBIG);
            StoreError::io("write", format!("at offset {offset}"), source)
        })
}
