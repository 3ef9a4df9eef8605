//! Operations that exclude every writer of the file: beginning a dirty period, changing the size,
//! zeroing, ending a dirty period.
//!
//! Each appends its record first and changes memory second, while it holds all ranges. If the
//! daemon is killed in between, replay does the second part.

use super::{DirtyPeriod, File, Intro};
use crate::error::{Result, StoreError};
use crate::ranges::Ticket;
use crate::store::Event;
use crate::store::index::FileRow;
use crate::store::log::record::{Kind, Record};
use crate::store::log::{Room, Write};
use crate::store::state::Gone;
use crate::types::{ByteRange, FileId, FileNo, Seq, Timestamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Keeps all writers of the file out until it is dropped.
///
/// While the file is clean, the holder may change the canonical file, since no dirty period can
/// begin.
#[derive(Debug)]
pub struct Exclusive<'a> {
    file: &'a File,
    _held: Held<'a>,
}

/// A write range, released when dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(super) file: &'a File,
    pub(super) ticket: Ticket,
}

/// The payload of an `Intro` record.
#[derive(Serialize, Deserialize)]
pub(crate) struct IntroPayload {
    pub id: FileId,
    pub intro: Intro,
    /// The canonical file was cut to `intro.size`, and a power failure may undo that. Bytes beyond
    /// it must not be shown, and the drain cuts again.
    #[serde(default)]
    pub cut: bool,
}

impl File {
    /// Waits until no write is in flight and keeps new ones out until dropped.
    pub fn exclusive(&self) -> Exclusive<'_> {
        Exclusive {
            file: self,
            _held: self.hold_range(ByteRange::ALL),
        }
    }

    /// Keeps writers out of `range`.
    pub(crate) fn hold_range(&self, range: ByteRange) -> Held<'_> {
        let (inner, ticket) = self.hold(range);
        drop(inner);
        Held { file: self, ticket }
    }

    /// As [`File::hold_range`], but only if the range is free now.
    pub(crate) fn try_hold_range(&self, range: ByteRange) -> Option<Held<'_>> {
        let floor = self.state.log.next_seq();
        let ticket = self.inner().active.try_hold(range, floor)?;
        Some(Held { file: self, ticket })
    }

    /// Records that the last name is gone: recovery drops the data, and the drain leaves the file
    /// alone. Reads and writes through open handles continue.
    pub fn mark_unlinked(&self) -> Result<()> {
        let exclusive = self.exclusive();
        let Some(no) = self.period_no() else {
            return Ok(());
        };
        self.state
            .log
            .append_control(Record::control(Kind::Unlinked, no))?;
        exclusive.change(DirtyPeriod::unlink)
    }

    /// Notes that this node has removed the last name while a process may still have the file open, or that no
    /// process has it open any more. This is for what is published: a start finds the file gone.
    pub fn set_nameless(&self, nameless: bool) {
        self.nameless.store(nameless, Ordering::Release);
    }

    /// The file has no name, and the drain leaves it alone.
    pub fn is_unlinked(&self) -> bool {
        if self.nameless.load(Ordering::Acquire) {
            return true;
        }
        self.inner()
            .period
            .as_ref()
            .is_some_and(|period| period.row.unlinked)
    }

    /// Drops all undrained data, because the file itself is gone, and ends the dirty period.
    pub fn discard(&self) -> Result<()> {
        let exclusive = self.exclusive();
        let Some(no) = self.period_no() else {
            return Ok(());
        };
        self.state
            .log
            .append_control(Record::control(Kind::Discard, no))?;
        let pin = self.end_period(Gone::Superseded);
        self.state.local_copies.forget(self.id);
        drop(exclusive);
        drop(pin);
        Ok(())
    }

    /// Ends the dirty period in memory and leaves its number for the next merge to clear. The
    /// caller holds all ranges, and drops the returned value after it has released them.
    pub(crate) fn end_period(&self, why: Gone) -> Option<Arc<File>> {
        let mut inner = self.inner();
        if let Some(mut period) = inner.period.take() {
            period.empty(&self.state, why);
            if period.has_lower_layers() {
                // The counters include RocksDB's part until the next merge, which should come soon.
                self.state.hidden.fetch_add(1, Ordering::Relaxed);
            }
            self.state.ended.lock().push(period.tally.clone());
        }
        inner.error = None;
        drop(inner);
        self.state.unpin(self.id)
    }

    pub(crate) fn period_no(&self) -> Option<FileNo> {
        self.inner().period.as_ref().map(|period| period.no)
    }

    pub(crate) fn install(self: &Arc<Self>, period: DirtyPeriod) {
        self.inner().period = Some(period);
        self.state.pin(self);
    }
}

impl Exclusive<'_> {
    fn change(&self, change: impl FnOnce(&mut DirtyPeriod)) -> Result<()> {
        match &mut self.file.inner().period {
            Some(period) => {
                change(period);
                Ok(())
            }
            None => Err(StoreError::Clean),
        }
    }

    pub fn file(&self) -> &File {
        self.file
    }

    pub fn is_clean(&self) -> bool {
        self.file.period_no().is_none()
    }

    /// Begins a dirty period; no-op if one has begun. `intro` must describe the canonical file as
    /// it is while this is held.
    pub fn begin(&self, intro: Intro) -> Result<()> {
        self.begin_in(intro, Room::Data)
    }

    /// As [`Exclusive::begin`], for a change that can be recorded nowhere else: works also when the
    /// store's disk is full.
    pub fn begin_for_change(&self, intro: Intro) -> Result<()> {
        self.begin_in(intro, Room::Control)
    }

    fn begin_in(&self, intro: Intro, room: Room) -> Result<()> {
        if self.file.period_no().is_some() {
            return Ok(());
        }
        let file = self.file;
        let state = &file.state;
        state.local_copies.period_begins(file.id);
        *file.hint.lock() = Some(intro.clone());
        let no = state.log.new_file_no();
        let payload = IntroPayload {
            id: file.id,
            intro,
            cut: file.inner().canonical_cut,
        };
        let data = serde_json::to_vec(&payload)
            .map_err(|e| StoreError::Unusable(format!("introduction of file {}: {e}", file.id)))?;
        let write = Write {
            kind: Kind::Intro,
            file: no,
            offset: 0,
            data: &data,
            time: Timestamp::now(),
            room,
        };
        state.log.append(no.0, write, |_, _| {})?;
        let row = row_of(&payload);
        let tally = state.tally(no, row.id, row.uid);
        let mut inner = file.inner();
        inner.period = Some(DirtyPeriod::new(no, row, tally));
        inner.canonical_cut = false;
        // Earlier changes to the canonical file may not be durable yet.
        inner.canonical_changes += 1;
        drop(inner);
        let pinned = state
            .files
            .lock()
            .get(&file.id)
            .and_then(|entry| entry.file.upgrade());
        if let Some(this) = pinned {
            state.pin(&this);
        }
        state.tell(Event::Dirty(file.id));
        Ok(())
    }

    /// Notes that the canonical file was cut and synced, so that a dirty period that begins now
    /// need not cut it again. Where other nodes write the file it must not cut again: what they add
    /// meanwhile lies beyond that cut.
    pub fn cut_synced(&self) {
        self.file.inner().canonical_cut = false;
    }

    /// Changes the size. Returns `Clean` if the file is clean; the caller then changes the
    /// canonical file while it holds this.
    pub fn truncate(&self, size: u64, now: Timestamp) -> Result<()> {
        self.file.touch(ByteRange {
            start: size,
            end: u64::MAX,
        });
        let Some(no) = self.file.period_no() else {
            // The caller cuts the canonical file. The cut lasts only once it is synced, and a dirty
            // period that begins before must not count on it.
            let mut inner = self.file.inner();
            inner.canonical_changes += 1;
            inner.canonical_cut = true;
            return Err(StoreError::Clean);
        };
        let record = Record {
            offset: size,
            time: now,
            ..Record::control(Kind::Truncate, no)
        };
        let seq = self.file.state.log.append_control(record)?;
        self.change(|period| period.truncate(&self.file.state, size, seq, now))
    }

    /// Makes the range read as zeros from now on (punched or zeroed). Grows the file only if
    /// `grow`. Returns `Clean` as [`Exclusive::truncate`] does.
    pub fn zero(&self, range: ByteRange, grow: bool, now: Timestamp) -> Result<()> {
        self.file.touch(range);
        let Some(no) = self.file.period_no() else {
            self.file.inner().canonical_changes += 1;
            return Err(StoreError::Clean);
        };
        let record = Record {
            offset: range.start,
            len: range.len(),
            time: now,
            arg: grow.into(),
            ..Record::control(Kind::Zero, no)
        };
        let seq = self.file.state.log.append_control(record)?;
        self.change(|period| period.zero(&self.file.state, range, grow, seq, now))
    }

    /// Sets an explicit modification time, which the drain puts on the canonical file. Returns
    /// `Clean` as [`Exclusive::truncate`] does.
    pub fn set_mtime(&self, mtime: Timestamp) -> Result<()> {
        let no = self.file.period_no().ok_or(StoreError::Clean)?;
        let record = Record {
            time: mtime,
            ..Record::control(Kind::Mtime, no)
        };
        self.file.state.log.append_control(record)?;
        self.change(|period| period.set_mtime(mtime))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.file.release(self.file.inner(), self.ticket);
    }
}

pub(crate) fn row_of(payload: &IntroPayload) -> FileRow {
    let intro = &payload.intro;
    FileRow {
        id: payload.id,
        uid: intro.uid,
        gid: intro.gid,
        handle: intro.handle.clone(),
        path: intro.path.clone(),
        size: intro.size,
        mtime: intro.mtime,
        limit: if payload.cut { intro.size } else { u64::MAX },
        grown: 0,
        shapes: Vec::new(),
        shaped: Seq(0),
        unlinked: false,
        subfiles: Vec::new(),
    }
}
