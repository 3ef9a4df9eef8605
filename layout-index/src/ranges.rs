//! Who is busy with which bytes of a file.
//!
//! [`RangeSet`] is the bare table. A file keeps one inside its own mutex for writers, so that
//! "is anyone writing here" and "what is the newest extent here" are answered in one critical
//! section. [`RangeLocks`] adds waiting, for those who write the canonical file.

use crate::types::ByteRange;
use parking_lot::{Condvar, Mutex};

/// A ticket for a range in a [`RangeSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Held {
    ticket: Ticket,
    range: ByteRange,
    floor: u64,
}

/// Ranges in use: as many as there are requests in flight, so a scan beats a tree.
#[derive(Debug, Default)]
pub struct RangeSet {
    held: Vec<Held>,
    next: u64,
}

impl RangeSet {
    /// Takes `range` unless someone holds a part of it. `floor` is the lowest sequence number
    /// that the holder can be given.
    pub fn try_hold(&mut self, range: ByteRange, floor: u64) -> Option<Ticket> {
        if self.held.iter().any(|h| h.range.overlaps(&range)) {
            return None;
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.held.push(Held {
            ticket,
            range,
            floor,
        });
        Some(ticket)
    }

    pub fn release(&mut self, ticket: Ticket) {
        if let Some(at) = self.held.iter().position(|h| h.ticket == ticket) {
            self.held.swap_remove(at);
        }
    }

    /// The lowest sequence number that a holder within `range` may still bring in.
    pub fn floor(&self, range: ByteRange) -> Option<u64> {
        self.held
            .iter()
            .filter(|h| h.range.overlaps(&range))
            .map(|h| h.floor)
            .min()
    }
}

/// Range locks that wait. Holders may sleep on slow I/O: never wait here on an event loop.
#[derive(Debug, Default)]
pub struct RangeLocks {
    set: Mutex<RangeSet>,
    released: Condvar,
}

#[derive(Debug)]
pub struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    ticket: Ticket,
    range: ByteRange,
}

impl RangeLocks {
    pub fn lock(&self, range: ByteRange) -> RangeGuard<'_> {
        let mut set = self.set.lock();
        loop {
            if let Some(ticket) = set.try_hold(range, 0) {
                return RangeGuard {
                    locks: self,
                    ticket,
                    range,
                };
            }
            self.released.wait(&mut set);
        }
    }
}

impl RangeGuard<'_> {
    pub fn range(&self) -> ByteRange {
        self.range
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.locks.set.lock().release(self.ticket);
        self.locks.released.notify_all();
    }
}
