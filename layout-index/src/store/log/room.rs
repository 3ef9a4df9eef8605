//! Room on a disk that other programs fill too: spare segments for records, a reserve for the
//! index, and whether the disk was full a moment ago.
//!
//! # Crash behaviour
//! Spare segments are empty until they are taken; after a kill the next start gives their room back
//! ([`Log::give_back`]). The reserve stays until the next start removes it ([`remove_reserve`]).
//! That happens before the index is opened, which needs room on a full disk.

use super::{Log, salt, segment};
use crate::disk::Disk;
use crate::store::log::segment::Segment;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of records for which spare segments are made in advance; there are at least two. They take
/// records without users' data. When other programs fill the disk, truncations, removals,
/// write-through and the drain are recorded in them.
const SPARE_RECORDS: u64 = 2 << 20;
/// The name of the file that holds room for the index.
const RESERVE: &str = "reserve";

/// After the disk had no room for a segment, no segment for data is tried again for this long: a
/// file system takes milliseconds to say that it is full, and each write-through would wait for
/// that.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(100);
/// The disk counts as full for this long after a segment could not be made.
const STAYS_FULL: Duration = Duration::from_secs(2);

/// Removes the room that an earlier daemon has held for the index ([`Log::keep_reserve`]) and not
/// given back.
pub fn remove_reserve(disk: &dyn Disk, dir: &Path) {
    match disk.remove(&dir.join(RESERVE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, dir = %dir.display(), "room that was held for the index stays taken");
        }
        _ => {}
    }
}

impl Log {
    /// True if the disk had no room for a segment a moment ago.
    pub fn had_no_room(&self) -> bool {
        self.was_full_within(STAYS_FULL)
    }

    /// True if no segment for data should be tried now.
    pub(super) fn was_just_full(&self) -> bool {
        self.was_full_within(LOOK_FOR_ROOM)
    }

    fn was_full_within(&self, time: Duration) -> bool {
        self.found_full.lock().is_some_and(|at| at.elapsed() < time)
    }

    /// Makes spare segments in place of those that were taken, if there is room. Called by
    /// maintenance.
    pub fn keep_spares(&self) {
        let mut spares = self.spares.lock();
        let one = segment::records_len(self.space.segment_size());
        let wanted = (SPARE_RECORDS / one).max(2) as usize;
        while spares.len() < wanted && self.failure.get().is_none() {
            let id = self.next_segment.fetch_add(1, Ordering::Relaxed);
            let salt = salt(self.key, id);
            let records = segment::records_len(self.space.segment_size());
            match Segment::create(&*self.disk, &self.dir, id, salt, self.spare_size(), records) {
                Ok(spare) => spares.push(spare),
                Err(error) => {
                    tracing::debug!(%error, "no spare segment now");
                    return;
                }
            }
            self.dir_unsynced.store(true, Ordering::Release);
        }
    }

    /// Bytes of payload that a spare segment has room for: a few hundred bytes for each subfile.
    pub(super) fn spare_size(&self) -> u64 {
        (self.space.segment_size() / 16).max(64 << 10)
    }

    /// Takes a spare segment for records without users' data, when no other segment can be made.
    pub(super) fn take_spare(&self) -> Option<Arc<Segment>> {
        let spare = Arc::new(self.spares.lock().pop()?);
        self.space.add(spare.footprint());
        self.segments.write().insert(spare.id, spare.clone());
        Some(spare)
    }

    /// Holds `bytes` of the disk for the index, if those and `left` more are free.
    pub fn keep_reserve(&self, bytes: u64, left: u64) {
        let mut held = self.reserve.lock();
        let room = || self.free_bytes().is_ok_and(|free| free >= bytes + left);
        if *held || self.failure.get().is_some() || !room() {
            return;
        }
        *held = true;
        let file = self.disk.create(&self.dir.join(RESERVE));
        if let Err(error) = file.and_then(|file| file.allocate(0, 0, bytes)) {
            tracing::debug!(%error, "no room is held for the index now");
            drop(held);
            self.give_reserve();
        }
    }

    /// Gives that room back to the disk. Returns false if none was held.
    pub fn give_reserve(&self) -> bool {
        let held = std::mem::take(&mut *self.reserve.lock());
        if held && let Err(error) = self.disk.remove(&self.dir.join(RESERVE)) {
            tracing::debug!(%error, "room for the index stays taken");
        }
        held
    }
}
