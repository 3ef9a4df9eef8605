//! Operations that need every writer of the file out: beginning a life, changing the size,
//! zeroing, ending a life.
//!
//! Each appends its record first and changes memory second, under one hold of all ranges.
//! *Killed between*: replay does the second part.

use super::{File, Intro, Life};
use crate::error::{Result, StoreError};
use crate::index::FileRow;
use crate::log::record::{Kind, Record};
use crate::log::{Room, Write};
use crate::ranges::Ticket;
use crate::shared::Gone;
use crate::store::Event;
use crate::types::{ByteRange, FileId, FileNo, Seq, Timestamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// All writers of the file are out until this is dropped.
///
/// While the file is clean, the holder may change the canonical file: no life can begin.
#[derive(Debug)]
pub struct Exclusive<'a> {
    file: &'a File,
    _held: Held<'a>,
}

/// A write range, let go of when dropped.
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
    /// The canonical file was cut to `intro.size` and a power failure may undo that: what lies
    /// beyond is not to be seen, and the drain cuts again.
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

    /// The same, if nobody has it.
    pub(crate) fn try_hold_range(&self, range: ByteRange) -> Option<Held<'_>> {
        let floor = self.shared.log.next_seq();
        let ticket = self.inner().active.try_hold(range, floor)?;
        Some(Held { file: self, ticket })
    }

    /// The last name is gone: recovery drops the data, the drain leaves it alone. Reads and
    /// writes through open handles go on.
    pub fn mark_unlinked(&self) -> Result<()> {
        let exclusive = self.exclusive();
        let Some(no) = self.life_no() else {
            return Ok(());
        };
        self.shared
            .log
            .append_control(Record::control(Kind::Unlinked, no))?;
        exclusive.change(Life::unlink)
    }

    pub fn is_unlinked(&self) -> bool {
        self.inner()
            .life
            .as_ref()
            .is_some_and(|life| life.row.unlinked)
    }

    /// Drops all undrained data (no name and no handle is left) and ends the life.
    pub fn discard(&self) -> Result<()> {
        let exclusive = self.exclusive();
        let Some(no) = self.life_no() else {
            return Ok(());
        };
        self.shared
            .log
            .append_control(Record::control(Kind::Discard, no))?;
        let pin = self.end_life(Gone::Superseded);
        self.shared.kept.forget(self.id);
        drop(exclusive);
        drop(pin);
        Ok(())
    }

    /// Ends the life in memory and leaves its number for the next merge to clear. The caller
    /// holds all ranges and drops what this returns after letting go of them.
    pub(crate) fn end_life(&self, why: Gone) -> Option<Arc<File>> {
        let mut inner = self.inner();
        if let Some(mut life) = inner.life.take() {
            life.empty(&self.shared, why);
            if life.has_lower_layers() {
                // RocksDB's part leaves the books with the next merge, which should come soon.
                self.shared.hidden.fetch_add(1, Ordering::Relaxed);
            }
            self.shared.ended.lock().push(life.tally.clone());
        }
        inner.error = None;
        drop(inner);
        self.shared.unpin(self.id)
    }

    pub(crate) fn life_no(&self) -> Option<FileNo> {
        self.inner().life.as_ref().map(|life| life.no)
    }

    pub(crate) fn install(self: &Arc<Self>, life: Life) {
        self.inner().life = Some(life);
        self.shared.pin(self);
    }
}

impl Exclusive<'_> {
    fn change(&self, change: impl FnOnce(&mut Life)) -> Result<()> {
        match &mut self.file.inner().life {
            Some(life) => {
                change(life);
                Ok(())
            }
            None => Err(StoreError::Clean),
        }
    }

    pub fn file(&self) -> &File {
        self.file
    }

    pub fn is_clean(&self) -> bool {
        self.file.life_no().is_none()
    }

    /// Begins a dirty life; no-op if one has begun. `intro` must describe the canonical file as
    /// it is while this is held.
    pub fn begin(&self, intro: Intro) -> Result<()> {
        self.begin_in(intro, Room::Data)
    }

    /// The same for a change that has nowhere else to go: also when the disk of the store is full.
    pub fn begin_for_change(&self, intro: Intro) -> Result<()> {
        self.begin_in(intro, Room::Control)
    }

    fn begin_in(&self, intro: Intro, room: Room) -> Result<()> {
        if self.file.life_no().is_some() {
            return Ok(());
        }
        let file = self.file;
        let shared = &file.shared;
        shared.kept.life_begins(file.id);
        file.seen().hint = Some(intro.clone());
        let no = shared.log.new_file_no();
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
        shared.log.append(no.0, write, |_, _| {})?;
        let row = row_of(&payload);
        let tally = shared.tally(no, row.id, row.uid);
        let mut inner = file.inner();
        inner.life = Some(Life::new(no, row, tally));
        inner.canonical_cut = false;
        // What was done to the canonical file before may not be durable yet.
        inner.canonical_changes += 1;
        drop(inner);
        let pinned = shared
            .files
            .lock()
            .get(&file.id)
            .and_then(|entry| entry.file.upgrade());
        if let Some(this) = pinned {
            shared.pin(&this);
        }
        shared.tell(Event::Dirty(file.id));
        Ok(())
    }

    /// The canonical file was cut and synced: a life that begins now need not cut it again. Where
    /// other nodes write the file it must not: what they add meanwhile lies beyond that cut.
    pub fn cut_synced(&self) {
        self.file.inner().canonical_cut = false;
    }

    /// `Clean` if there is no life: change the canonical file while holding this.
    pub fn truncate(&self, size: u64, now: Timestamp) -> Result<()> {
        self.file.touch(ByteRange {
            start: size,
            end: u64::MAX,
        });
        let Some(no) = self.file.life_no() else {
            // The caller cuts the canonical file. Only its sync makes that last, and a life that
            // begins before then must not count on it.
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
        let seq = self.file.shared.log.append_control(record)?;
        self.change(|life| life.truncate(&self.file.shared, size, seq, now))
    }

    /// The range reads as zeros from now on (punched or zeroed). Grows the file only if `grow`.
    /// `Clean` as above.
    pub fn zero(&self, range: ByteRange, grow: bool, now: Timestamp) -> Result<()> {
        self.file.touch(range);
        let Some(no) = self.file.life_no() else {
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
        let seq = self.file.shared.log.append_control(record)?;
        self.change(|life| life.zero(&self.file.shared, range, grow, seq, now))
    }

    /// An explicit modification time; the drain puts it on the canonical file. `Clean` as above.
    pub fn set_mtime(&self, mtime: Timestamp) -> Result<()> {
        let no = self.file.life_no().ok_or(StoreError::Clean)?;
        let record = Record {
            time: mtime,
            ..Record::control(Kind::Mtime, no)
        };
        self.file.shared.log.append_control(record)?;
        self.change(|life| life.set_mtime(mtime))
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
