//! Watches: whether this node has changed bytes since they were read.
//!
//! When a program writes back what it has read, the overlay needs to know which of the bytes are
//! merely those that were read. They are, as long as this node has not changed them meanwhile:
//! changes on one node are ordered, and the last one counts. A watch begins before the read and is
//! checked while the range is held for the write, so that no change falls between the two. Changes
//! by other nodes are not noted: they have no order relative to what happens here until a sync
//! point ([`File::sync_points`]).
//!
//! A file without watches costs one check of an empty list with each write.

use super::write::write_range;
use super::{File, Inner};
use crate::error::{Result, StoreError};
use crate::store::log::record::Kind;
use crate::store::log::{Room, Write};
use crate::types::{ByteRange, Timestamp};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// More changed ranges than this are noted as one.
const MOST_TOUCHED: usize = 16;

#[derive(Debug)]
pub(super) struct Watched {
    id: u64,
    range: ByteRange,
    touched: Vec<ByteRange>,
}

impl Watched {
    fn touch(&mut self, range: ByteRange) {
        let Some(part) = self.range.intersect(&range) else {
            return;
        };
        match self.touched.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => self.touched.push(part),
        }
        if self.touched.len() > MOST_TOUCHED {
            let start = self.touched.iter().map(|r| r.start).min();
            let end = self.touched.iter().map(|r| r.end).max();
            if let (Some(start), Some(end)) = (start, end) {
                self.touched = vec![ByteRange { start, end }];
            }
        }
    }
}

impl Inner {
    /// Notes that this node changes these bytes.
    pub(super) fn touch(&mut self, range: ByteRange) {
        for watched in &mut self.watched {
            watched.touch(range);
        }
    }

    fn is_touched(&self, id: u64, range: ByteRange) -> bool {
        let watched = self.watched.iter().find(|w| w.id == id);
        watched.is_none_or(|w| w.touched.iter().any(|r| r.overlaps(&range)))
    }
}

/// Notes what this node changes within a range, until it is dropped.
#[derive(Debug)]
pub struct Watch {
    file: Arc<File>,
    id: u64,
}

impl Watch {
    /// Extends the range by that of `next`, which begins within it or where it ends.
    pub fn join(&self, next: Watch) {
        let mut inner = self.file.inner();
        let Some(at) = inner.watched.iter().position(|w| w.id == next.id) else {
            return;
        };
        let other = inner.watched.swap_remove(at);
        if let Some(watched) = inner.watched.iter_mut().find(|w| w.id == self.id) {
            watched.range.end = watched.range.end.max(other.range.end);
            for range in other.touched {
                watched.touch(range);
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut inner = self.file.inner();
        inner.watched.retain(|watched| watched.id != self.id);
    }
}

impl File {
    pub fn watch(self: &Arc<Self>, range: ByteRange) -> Watch {
        let mut inner = self.inner();
        inner.watches += 1;
        let id = inner.watches;
        inner.watched.push(Watched {
            id,
            range,
            touched: Vec::new(),
        });
        drop(inner);
        let file = self.clone();
        Watch { file, id }
    }

    /// Notes that this node changes bytes of the canonical file itself.
    pub fn touch(&self, range: ByteRange) {
        self.inner().touch(range);
    }

    /// True if this node has changed any byte of the range since `watch` began.
    pub fn is_touched(&self, watch: &Watch, range: ByteRange) -> bool {
        self.inner().is_touched(watch.id, range)
    }

    /// Number of refreshes of this node at a sync point. After one, what other nodes had published
    /// by then comes before whatever happens here.
    pub fn sync_points(&self) -> u64 {
        self.sync_points.load(Ordering::Acquire)
    }

    pub(crate) fn count_sync_point(&self) {
        self.sync_points.fetch_add(1, Ordering::AcqRel);
    }

    /// Absorbs only the `runs` of `data`, as one write of all of it: the rest is what was read
    /// under `watch`. Returns false and absorbs nothing if this node has changed any of it since.
    /// Waits like [`File::write`]; after an error some of the runs may have been absorbed.
    pub fn write_runs(
        &self,
        lane: u64,
        offset: u64,
        data: &[u8],
        runs: &[Range<usize>],
        watch: &Watch,
    ) -> Result<bool> {
        let state = &*self.state;
        self.need_memory()?;
        let range = write_range(offset, data.len() as u64)?;
        let (inner, ticket) = self.hold(range);
        let bytes: u64 = runs.iter().map(|run| run.len() as u64).sum();
        let refused = match &inner.period {
            None => Some(Err(StoreError::Clean)),
            Some(_) if inner.is_touched(watch.id, range) => Some(Ok(false)),
            Some(period) => {
                let user = period.tally.user.load(Ordering::Relaxed);
                let full = user + bytes > state.log.space.user_share();
                full.then_some(Err(StoreError::Full))
            }
        };
        let no = inner.period.as_ref().map(|period| period.no);
        let (None, Some(no)) = (&refused, no) else {
            self.release(inner, ticket);
            return refused.unwrap_or(Err(StoreError::Clean));
        };
        drop(inner);
        let time = Timestamp::now();
        let mut result = Ok(true);
        for run in runs {
            let write = Write {
                kind: Kind::Write,
                file: no,
                offset: offset + run.start as u64,
                data: &data[run.clone()],
                time,
                room: Room::Data,
            };
            if let Err(error) = self.append_and_insert(lane, write).1 {
                result = Err(error);
                break;
            }
        }
        self.release(self.inner(), ticket);
        if state.hot.load(Ordering::Relaxed) > state.hot_limit {
            state.kick();
        }
        result
    }
}

#[cfg(test)]
mod tests;
