//! Which bytes of a file are in use by which operation.
//!
//! [`RangeSet`] is the bare table. A file keeps one inside its own mutex for writers, so that "is
//! this range being written" and "what is its newest extent" are answered in one critical section.
//! [`RangeLocks`] adds waiting, for threads that write the canonical file.

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
///
/// First come, first served: a range that a request waits for is not given to later requests.
/// Otherwise a truncate would wait for ever behind a stream of writes.
#[derive(Debug, Default)]
pub struct RangeSet {
    held: Vec<Held>,
    waiting: Vec<(Ticket, ByteRange)>,
    next: u64,
}

impl RangeSet {
    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    /// Takes `range` unless a part of it is held or waited for. `floor` is the lowest sequence
    /// number that the holder can be given. An empty range conflicts with no other.
    pub fn try_hold(&mut self, range: ByteRange, floor: u64) -> Option<Ticket> {
        let held = self.held.iter().any(|h| h.range.overlaps(&range));
        if held || self.waiting.iter().any(|(_, r)| r.overlaps(&range)) {
            return None;
        }
        let ticket = self.ticket();
        self.held.push(Held {
            ticket,
            range,
            floor,
        });
        Some(ticket)
    }

    /// Queues for `range`; [`RangeSet::try_turn`] says when it is free.
    pub fn wait_for(&mut self, range: ByteRange) -> Ticket {
        let ticket = self.ticket();
        self.waiting.push((ticket, range));
        ticket
    }

    /// Takes the range waited for, if its turn has come.
    pub fn try_turn(&mut self, ticket: Ticket, floor: u64) -> bool {
        let Some(at) = self.waiting.iter().position(|(t, _)| *t == ticket) else {
            return true;
        };
        let range = self.waiting[at].1;
        let held = self.held.iter().any(|h| h.range.overlaps(&range));
        if held || self.waiting[..at].iter().any(|(_, r)| r.overlaps(&range)) {
            return false;
        }
        self.waiting.remove(at);
        self.held.push(Held {
            ticket,
            range,
            floor,
        });
        true
    }

    /// True when a request waits for a range.
    pub fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
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

    /// The lowest sequence number that any holder may still bring in.
    pub fn lowest_floor(&self) -> Option<u64> {
        self.held.iter().map(|h| h.floor).min()
    }
}

/// Range locks that wait. Holders may sleep on slow I/O, so an event loop must never wait here.
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
        let ticket = set.wait_for(range);
        while !set.try_turn(ticket, 0) {
            self.released.wait(&mut set);
        }
        RangeGuard {
            locks: self,
            ticket,
            range,
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

#[cfg(test)]
mod tests {
    use super::*;

    const A: ByteRange = ByteRange { start: 0, end: 10 };
    const B: ByteRange = ByteRange { start: 10, end: 20 };

    #[test]
    fn who_waits_is_not_overtaken() {
        let mut set = RangeSet::default();
        let a = set.try_hold(A, 1).unwrap();
        let all = set.wait_for(ByteRange::ALL);
        assert!(set.try_hold(B, 2).is_none(), "overtook a waiter");
        assert!(!set.try_turn(all, 3));
        set.release(a);
        assert!(set.try_turn(all, 3));
        set.release(all);
        assert!(set.try_hold(B, 4).is_some());
    }

    #[test]
    fn an_empty_range_blocks_no_other_but_keeps_its_floor() {
        let mut set = RangeSet::default();
        let all = set.try_hold(ByteRange::ALL, 9).unwrap();
        let none = ByteRange { start: 0, end: 0 };
        assert!(set.try_hold(none, 5).is_some());
        set.release(all);
        assert!(set.try_hold(ByteRange::ALL, 7).is_some());
        assert_eq!(set.lowest_floor(), Some(5));
        assert_eq!(set.floor(A), Some(7));
    }
}
