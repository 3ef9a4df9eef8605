//! How much of the node's disk the store may take, and how much it has taken.

use crate::store::log::segment::records_len;
use crate::store::log::{LANES, Room};
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MAX_SEGMENT: u64 = 64 << 20;
const MIN_SEGMENT: u64 = 1 << 20;
/// Segments that only records without users' data may take: enough to record everything as drained
/// when the store is full of data.
const RESERVED_SEGMENTS: u64 = 2;
/// Users with less than the watermark divided by this do not make the parts of other users smaller.
const NOTICEABLE: u64 = 64;
/// The longest delay of one write, just below a full store.
const MAX_DELAY: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq)]
pub struct SpaceOptions {
    /// Bytes the log may occupy; `None` takes 80 % of what it has and what is free when the store
    /// is opened.
    pub capacity: Option<u64>,
    /// Bytes of one data segment; `None` derives it from the capacity (64 MiB at most).
    pub segment: Option<u64>,
    /// Fraction of the capacity above which writers are slowed.
    pub high_watermark: f64,
    /// Fraction of the capacity that one user's undrained data may take.
    pub user_share: f64,
}

impl SpaceOptions {
    /// The smallest capacity that works: a smallest segment for each lane, and those kept back for
    /// records.
    pub const LEAST: u64 = (LANES as u64 + RESERVED_SEGMENTS) * (MIN_SEGMENT + MIN_SEGMENT / 8);
}

impl Default for SpaceOptions {
    fn default() -> Self {
        Self {
            capacity: None,
            segment: None,
            high_watermark: 0.75,
            user_share: 0.8,
        }
    }
}

/// The store's room at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Space {
    pub capacity: u64,
    /// Bytes in segments that exist.
    pub used: u64,
    /// Payload bytes that some extent still needs.
    pub live: u64,
    pub high_watermark: u64,
    pub segment: u64,
    pub segments: usize,
    /// Bytes that local copies take in addition.
    pub kept: u64,
}

/// Accounts for segments' bytes against the capacity, and for local copies in what those leave. The
/// log comes first: its reservations ignore copies, but call a handler that drops some.
pub struct SpaceBook {
    capacity: u64,
    segment: u64,
    high: u64,
    user_share: u64,
    used: AtomicU64,
    copied: AtomicU64,
    shortage: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for SpaceBook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (used, copied) = (self.used(), self.copied());
        write!(f, "SpaceBook({used} and {copied} of {})", self.capacity)
    }
}

impl SpaceBook {
    pub fn new(options: &SpaceOptions, free: u64) -> SpaceBook {
        let capacity = options.capacity.unwrap_or(free / 10 * 8);
        let segment = options
            .segment
            .unwrap_or(capacity / 32)
            .clamp(MIN_SEGMENT, MAX_SEGMENT);
        // Rounded to pages: fallocate and the kernel's copies like that best.
        let segment = segment / 4096 * 4096;
        SpaceBook {
            capacity,
            segment,
            high: (capacity as f64 * options.high_watermark) as u64,
            user_share: (capacity as f64 * options.user_share) as u64,
            used: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            shortage: OnceLock::new(),
        }
    }

    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Sets what is called when the log has taken room that copies have. Only the first one counts.
    pub(crate) fn on_shortage(&self, call: Box<dyn Fn() + Send + Sync>) {
        if self.shortage.set(call).is_err() {
            tracing::error!("the store has its local copies twice");
        }
    }

    /// True if copies take room that the log needs.
    pub(crate) fn is_short(&self) -> bool {
        let copied = self.copied();
        copied > 0 && self.used().saturating_add(copied) > self.capacity
    }

    /// Counts bytes of copies without asking whether there is room.
    pub(crate) fn add_copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release_copied(&self, bytes: u64) {
        self.copied.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes room for a copy, if the log has some to spare: a segment for each lane must be left.
    pub(crate) fn reserve_copied(&self, bytes: u64) -> bool {
        let spare = LANES as u64 * (self.segment + records_len(self.segment));
        let limit = self.capacity.saturating_sub(spare);
        self.copied
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |copied| {
                let after = copied.checked_add(bytes)?;
                (bytes == 0 || after.checked_add(self.used())? <= limit).then_some(after)
            })
            .is_ok()
    }

    pub fn segment_size(&self) -> u64 {
        self.segment
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    pub fn high_watermark(&self) -> u64 {
        self.high
    }

    pub fn user_share(&self) -> u64 {
        self.user_share
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn above_high(&self) -> bool {
        self.used() > self.high
    }

    pub fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes room for a segment, or returns false if there is none. Records without users' data are
    /// what empties a full store, so they get room whatever the capacity says: a segment for each
    /// lane at most, until the drain frees others.
    pub fn reserve(&self, bytes: u64, room: Room) -> bool {
        let kept_back = RESERVED_SEGMENTS * (self.segment + records_len(self.segment));
        let limit = match room {
            Room::Data => self.capacity.saturating_sub(kept_back),
            Room::Control => u64::MAX,
        };
        let taken = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                let after = used.checked_add(bytes)?;
                (after <= limit).then_some(after)
            })
            .is_ok();
        if self.is_short()
            && let Some(shortage) = self.shortage.get()
        {
            shortage();
        }
        taken
    }

    /// True if a user with `own` bytes is not slowed, because another user among `all` keeps the
    /// store above its watermark: that user has more than an equal part of the watermark, and `own`
    /// is no more than that. Only users with a noticeable amount count when the watermark is
    /// divided into parts.
    pub fn is_spared(&self, own: u64, all: impl Iterator<Item = u64>) -> bool {
        let noticeable = self.high / NOTICEABLE;
        let (users, most) = all.fold((0, 0), |(users, most), bytes| {
            (users + u64::from(bytes > noticeable), bytes.max(most))
        });
        let others = users - u64::from(own > noticeable);
        let part = self.high / (others + 1);
        own <= part && most > part
    }

    /// How long a writer should wait: zero up to the high watermark, then growing with the square
    /// of the distance to full, so that writers come down to the drain's pace without a jolt.
    pub fn delay(&self) -> Duration {
        let used = self.used();
        if used <= self.high {
            return Duration::ZERO;
        }
        let way = (used - self.high) as f64 / (self.capacity - self.high).max(1) as f64;
        MAX_DELAY.mul_f64((way * way).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(capacity: u64) -> SpaceBook {
        SpaceBook::new(
            &SpaceOptions {
                capacity: Some(capacity),
                ..Default::default()
            },
            0,
        )
    }

    #[test]
    fn data_leaves_room_for_control_records() {
        let book = book(64 << 20);
        let footprint = book.segment_size() + records_len(book.segment_size());
        while book.reserve(footprint, Room::Data) {}
        assert!(
            book.reserve(footprint, Room::Control),
            "control records found no room"
        );
    }

    /// S7.8: a user with less than an equal part is slowed neither by one user nor by several that
    /// have more.
    #[test]
    fn users_are_spared_the_delay_that_others_cause() {
        const MIB: u64 = 1 << 20;
        let book = book(100 * MIB);
        let spared = |own: u64, others: &[u64]| {
            let all = others.iter().copied().chain([own]).map(|n| n * MIB);
            book.is_spared(own * MIB, all.collect::<Vec<_>>().into_iter())
        };
        assert!(spared(0, &[80]) && spared(30, &[80]));
        assert!(!spared(40, &[80]), "it has more than half of the watermark");
        assert!(!spared(80, &[0]) && !spared(80, &[10]), "its own doing");
        assert!(!spared(76, &[]), "there is no other");
        assert!(spared(10, &[45, 45]));
        assert!(!spared(20, &[30, 20, 20]), "all have about the same");
        let crowd = [1; 50].into_iter().chain([80]).collect::<Vec<_>>();
        assert!(spared(20, &crowd), "small users take no part away");
    }

    #[test]
    fn delay_starts_at_the_high_watermark_and_grows() {
        let book = book(100 << 20);
        assert_eq!(book.delay(), Duration::ZERO);
        book.add(76 << 20);
        let first = book.delay();
        book.add(20 << 20);
        assert!(first > Duration::ZERO && first < book.delay());
        assert!(book.delay() <= MAX_DELAY);
    }
}
