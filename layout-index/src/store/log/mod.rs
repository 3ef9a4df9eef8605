//! The log: a few lanes, each appending to a segment of its own.
//!
//! Lanes let the processes of a node append at once without sharing a lock during the copy. Within
//! a lane, records are in the order of their sequence numbers, so replay merges the segments by
//! number and sees the one history that the files' range locks made.
//!
//! On disk an append writes the payload first and its records second. If the daemon is killed in
//! between, no record names the payload, which is as if the write had not happened; it was not
//! acknowledged. After a write error the lane gives the segment up, because what the failed call
//! left there is unknown.
//!
//! A failed sync, or an I/O error other than a lack of space, descriptors or memory, stops the log
//! for good ([`Log::failure`]): after such an error the page cache no longer says what the disk
//! holds.

pub mod lane;
pub mod record;
mod room;
pub mod segment;

pub use room::remove_reserve;

use crate::checksum;
use crate::disk::Disk;
use crate::error::{Result, StoreError};
use crate::store::space::SpaceBook;
use crate::types::{FileNo, Seq, Timestamp};
use lane::Lane;
use parking_lot::{Mutex, RwLock};
use record::{Kind, Record};
use segment::Segment;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// Writers that may append at the same time. More would leave more half-filled segments around.
pub const LANES: usize = 4;

#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Held open so that a sync needs no new descriptor, which may not be available at that moment.
    held_dir: Option<File>,
    /// Secret of this store, mixed into every record's checksum.
    key: u32,
    lanes: [Mutex<Lane>; LANES],
    segments: RwLock<HashMap<u32, Arc<Segment>>>,
    next_seq: AtomicU64,
    next_segment: AtomicU32,
    dir_unsynced: AtomicBool,
    /// Held during a sync of the directory, so that a second caller does not return before it is
    /// done.
    dir_syncing: Mutex<()>,
    /// Segments of an earlier daemon that was killed. What it had not synced is still not synced.
    inherited: Mutex<Vec<Arc<Segment>>>,
    /// Spare segments. They count as used space only once they are taken.
    spares: Mutex<Vec<Segment>>,
    /// True while room is held for the index.
    reserve: Mutex<bool>,
    /// When a segment last could not be made.
    found_full: Mutex<Option<Instant>>,
    failure: OnceLock<(String, String)>,
    pub space: Arc<SpaceBook>,
    /// Bytes of users' data that were appended, and how many of them are known to be durable.
    pub appended: AtomicU64,
    pub durable: AtomicU64,
}

/// Whether an append may use the room kept back for records without users' data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Data,
    Control,
}

impl Log {
    /// Opens the segments in `dir` and removes leftovers. Appends go to new segments.
    pub fn open(disk: Arc<dyn Disk>, dir: PathBuf, key: u32, space: SpaceBook) -> Result<Log> {
        let log = Log::open_read_only(disk, dir, key, space)?;
        let list = log
            .disk
            .list(&log.dir)
            .map_err(|e| StoreError::io("list", &log.dir, e))?;
        for name in list {
            let id = name.to_str().and_then(|n| n.strip_suffix(".data"));
            let id = id.and_then(|stem| u32::from_str_radix(stem, 16).ok());
            if id.is_some_and(|id| log.segment(id).is_none()) {
                let path = log.dir.join(name);
                log.disk
                    .remove(&path)
                    .map_err(|e| StoreError::io("remove leftover", path, e))?;
            }
        }
        Ok(log)
    }

    /// As [`Log::open`], but changes nothing.
    pub fn open_read_only(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        key: u32,
        space: SpaceBook,
    ) -> Result<Log> {
        let names = disk
            .list(&dir)
            .map_err(|e| StoreError::io("list", &dir, e))?;
        let held_dir = disk
            .hold_dir(&dir)
            .map_err(|e| StoreError::io("open", &dir, e))?;
        let mut segments = HashMap::new();
        let mut next = 1;
        for name in &names {
            let Some((stem, kind)) = name.to_str().and_then(|n| n.split_once('.')) else {
                continue;
            };
            let Ok(id) = u32::from_str_radix(stem, 16) else {
                continue;
            };
            next = next.max(id + 1);
            if kind == "records" {
                let segment = Segment::open(&*disk, &dir, id, salt(key, id))?;
                space.add(segment.footprint());
                segments.insert(id, Arc::new(segment));
            }
        }
        Ok(Log {
            disk,
            dir,
            held_dir,
            key,
            lanes: Default::default(),
            segments: RwLock::new(segments),
            next_seq: AtomicU64::new(1),
            next_segment: AtomicU32::new(next),
            dir_unsynced: AtomicBool::new(true),
            dir_syncing: Mutex::default(),
            inherited: Mutex::default(),
            spares: Mutex::default(),
            reserve: Mutex::default(),
            found_full: Mutex::default(),
            failure: OnceLock::new(),
            space: Arc::new(space),
            appended: AtomicU64::new(0),
            durable: AtomicU64::new(0),
        })
    }

    /// Lower bound of the number that the next record gets.
    pub fn next_seq(&self) -> u64 {
        self.next_seq.load(Ordering::Acquire)
    }

    /// Makes numbering continue after `seq`. Called by recovery.
    pub fn resume_after(&self, seq: Seq) {
        self.next_seq.fetch_max(seq.0 + 1, Ordering::AcqRel);
    }

    /// Takes over `segments`, in which recovery found records that the index does not have yet and
    /// that may never have been synced. The next sync syncs them but appends no `Synced` record for
    /// them, so that torn records in them still count as torn.
    pub fn inherit(&self, segments: Vec<Arc<Segment>>) {
        *self.inherited.lock() = segments;
    }

    /// Gives back the room that an earlier daemon preallocated and never used. Segments that are
    /// being appended to are not touched. Where this fails, the room only stays taken.
    pub fn give_back(&self) {
        for segment in self.segments().iter().filter(|s| s.is_sealed()) {
            match segment.seal() {
                Ok(bytes) => self.space.release(bytes),
                Err(error) => tracing::warn!(%error, "unused room of the log stays taken"),
            }
        }
    }

    /// Refuses all further appends because something other than the log failed for good.
    pub fn stop(&self, what: &str, cause: &dyn std::fmt::Display) {
        if self.failure.set((what.into(), cause.to_string())).is_ok() {
            tracing::error!(what, error = %cause, "the store takes no more writes");
        }
    }

    /// Refuses all further appends because the store is closed: a thread that hung in another file
    /// system until now must not write beside the next daemon.
    pub fn close(&self) {
        self.failure
            .get_or_init(|| ("closing".into(), "the store is closed".into()));
        // An append that did not see this yet is done when its lane is free.
        for lane in &self.lanes {
            drop(lane.lock());
        }
        self.give_reserve();
        for spare in self.spares.lock().drain(..) {
            if let Err(error) = spare.remove(&*self.disk, &self.dir) {
                tracing::debug!(%error, "an empty segment is left to the next start");
            }
        }
    }

    pub fn segment(&self, id: u32) -> Option<Arc<Segment>> {
        self.segments.read().get(&id).cloned()
    }

    pub fn segments(&self) -> Vec<Arc<Segment>> {
        let mut all: Vec<_> = self.segments.read().values().cloned().collect();
        all.sort_by_key(|s| s.id);
        all
    }

    pub fn failure(&self) -> Option<StoreError> {
        let (what, cause) = self.failure.get()?;
        Some(StoreError::Failed {
            what: what.clone(),
            cause: cause.clone(),
        })
    }

    /// Classifies an error of a log call: a lack of space, descriptors or memory is `Full`,
    /// anything else stops the log.
    fn judge(&self, error: StoreError) -> StoreError {
        match error.raw_os_error() {
            // These are temporary. Meanwhile the write goes to the canonical file.
            Some(libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                StoreError::Full
            }
            _ => {
                let StoreError::Io { op, path, source } = &error else {
                    return error;
                };
                let what = format!("{op} {}", path.display());
                if self.failure.set((what, source.to_string())).is_ok() {
                    tracing::error!(error = %error, "the store takes no more writes");
                }
                self.failure().unwrap_or(error)
            }
        }
    }

    /// Appends payload for a range of a file. `placed` is called with each record made for it.
    pub fn append(
        &self,
        lane: u64,
        write: Write<'_>,
        placed: impl FnMut(&Segment, &Record),
    ) -> Result<()> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let mut lane = self.pick_lane(lane);
        lane.append(self, write, placed)
            .map_err(|e| self.judge(e))?;
        if write.kind == Kind::Write {
            self.appended
                .fetch_add(write.data.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Appends a record without payload and returns its number.
    pub fn append_control(&self, record: Record) -> Result<Seq> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let first = self.pick_lane(record.file.0).append_control(self, record);
        match first.map_err(|e| self.judge(e)) {
            // Another lane may have a segment with a free slot, or the last spare segment.
            Err(StoreError::Full) => {}
            other => return other,
        }
        for lane in &self.lanes {
            if let Some(done) = lane.lock().append_control_here(self, record) {
                return done.map_err(|e| self.judge(e));
            }
        }
        Err(StoreError::Full)
    }

    /// Returns the hinted lane if it is free, else any free lane, else the hinted one after waiting
    /// for the append that is in progress there.
    fn pick_lane(&self, hint: u64) -> parking_lot::MutexGuard<'_, Lane> {
        let first = (hint % LANES as u64) as usize;
        (0..LANES)
            .find_map(|n| self.lanes[(first + n) % LANES].try_lock())
            .unwrap_or_else(|| self.lanes[first].lock())
    }

    /// A number for a new dirty period, taken from the same counter as the sequence numbers, so
    /// that it is never reused.
    pub fn new_file_no(&self) -> FileNo {
        FileNo(self.take_seq(1))
    }

    fn take_seq(&self, count: u64) -> u64 {
        self.next_seq.fetch_add(count, Ordering::AcqRel)
    }

    fn new_segment(&self, room: Room) -> Result<Arc<Segment>> {
        let size = self.space.segment_size();
        let footprint = size + segment::records_len(size);
        if room == Room::Data && self.was_just_full() {
            return Err(StoreError::Full);
        }
        if !self.space.reserve(footprint, room) {
            return Err(StoreError::Full);
        }
        let id = self.next_segment.fetch_add(1, Ordering::Relaxed);
        let records = segment::records_len(size);
        match Segment::create(
            &*self.disk,
            &self.dir,
            id,
            salt(self.key, id),
            size,
            records,
        ) {
            Ok(segment) => {
                self.dir_unsynced.store(true, Ordering::Release);
                let segment = Arc::new(segment);
                self.segments.write().insert(id, segment.clone());
                Ok(segment)
            }
            Err(error) => {
                *self.found_full.lock() = Some(Instant::now());
                self.space.release(footprint);
                Err(error)
            }
        }
    }

    /// Free bytes on the disk that the log is on.
    pub fn free_bytes(&self) -> Result<u64> {
        let free = self.disk.free_bytes(&self.dir);
        free.map_err(|e| StoreError::io("statvfs", &self.dir, e))
    }

    /// Every record appended before this call, and its payload, is durable afterwards.
    pub fn sync(&self) -> Result<()> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let appended = self.appended.load(Ordering::Acquire);
        self.sync_lanes().map_err(|e| match self.judge(e) {
            // A sync that fails for lack of space has lost pages too.
            StoreError::Full => {
                let what = ("sync the log".to_string(), "no space left".to_string());
                self.failure.get_or_init(|| what);
                self.failure().unwrap_or(StoreError::Full)
            }
            other => other,
        })?;
        self.durable.fetch_max(appended, Ordering::AcqRel);
        Ok(())
    }

    fn sync_lanes(&self) -> Result<()> {
        let syncing = self.dir_syncing.lock();
        if self.dir_unsynced.swap(false, Ordering::AcqRel)
            && let Err(e) = self.disk.sync_held(&self.dir, self.held_dir.as_ref())
        {
            self.dir_unsynced.store(true, Ordering::Release);
            return Err(StoreError::io("sync", &self.dir, e));
        }
        drop(syncing);
        let mut inherited = self.inherited.lock();
        while let Some(segment) = inherited.last() {
            segment.sync()?;
            inherited.pop();
        }
        drop(inherited);
        for lane in &self.lanes {
            let unsynced = lane.lock().unsynced();
            for segment in unsynced {
                match segment.sync()? {
                    Some(upto) => lane.lock().note_synced(self, &segment, upto)?,
                    None => lane.lock().forget_if_sealed(&segment),
                }
            }
        }
        Ok(())
    }

    /// Seals segments that lanes append to but nothing needs, so that they can be freed.
    pub fn retire_idle(&self) -> Result<()> {
        for lane in &self.lanes {
            lane.lock()
                .retire_if_dead(self)
                .map_err(|e| self.judge(e))?;
        }
        Ok(())
    }

    /// Removes a sealed segment's files and returns how many bytes that freed. Must be called only
    /// after the index's durable checkpoint no longer refers to the segment; see `maintain`.
    pub fn free(&self, id: u32) -> Result<u64> {
        let Some(segment) = self.segment(id) else {
            return Ok(0);
        };
        segment.remove(&*self.disk, &self.dir)?;
        self.segments.write().remove(&id);
        self.space.release(segment.footprint());
        Ok(segment.footprint())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Argument of [`Log::append`].
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    pub kind: Kind,
    pub file: FileNo,
    pub offset: u64,
    pub data: &'a [u8],
    pub time: Timestamp,
    pub room: Room,
}

fn salt(key: u32, id: u32) -> u32 {
    checksum::append(key, &id.to_le_bytes())
}
