//! Merging extents into the index, moving its checkpoint, freeing and compacting segments.
//!
//! A checkpoint, in order:
//! 1. freeze every file's extents in memory, and note the number C below which nothing is in
//!    flight any more;
//! 2. sync the log: the index never refers to payload that a power failure could lose;
//! 3. write the frozen extents and the rows to RocksDB;
//! 4. write C and flush RocksDB;
//! 5. remove segments that were dead before C.
//!
//! *Killed before 4 is done*: the old checkpoint holds; every segment it needs is still there,
//! because 5 goes by the checkpoint on disk. *Killed in 5*: leftovers, removed at the next
//! checkpoint, for nothing counts on them.
//!
//! # A disk that others fill
//! A checkpoint needs room for the index, and some is held for it ([`RESERVE`]). While the disk has none
//! and that is used up it does not begin, and one that runs out of room in 3 or 4 stays where it is ([`Unfinished`]): the next goes on from there, with the same
//! frozen extents. Readers find those in memory meanwhile, and replay finds them in the log. Writers fill
//! what memory there is and are then written through; nothing of the log is freed.

use crate::error::{Result, StoreError};
use crate::extent::{ExtentMap, Place};
use crate::file::File;
use crate::index::{Change, FileRow};
use crate::log::record::Record;
use crate::log::segment::{Records, Segment};
use crate::shared::{Gone, Shared, Tally};
use crate::store::Event;
use crate::types::{ByteRange, FileNo, Seq};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often the thread looks when nobody wakes it.
const TURN: Duration = Duration::from_millis(200);
/// The longest that replay after a crash has to reach back, in time.
const CHECKPOINT_AGE: Duration = Duration::from_secs(30);
/// Dead segments wait this long for company, unless the store is filling up.
const RECLAIM_AGE: Duration = Duration::from_secs(2);
/// While extents in RocksDB are being drained, merges follow this closely: the books, the drain's
/// progress and reclaim go by them.
const DRAIN_AGE: Duration = Duration::from_secs(1);
/// Free room on the disk without which no checkpoint begins: for the tables of a merge and for what
/// RocksDB rewrites beside them; and for each extent that is merged.
const ROOM: u64 = 8 << 20;
const ROOM_FOR_EXTENT: u64 = 256;
/// Room that is held for the index while the disk has enough. It is given back right before a checkpoint
/// that would not fit, which then frees what the drain has emptied.
const RESERVE: u64 = 2 * ROOM;

/// A checkpoint between its steps 2 and 5.
#[derive(Debug)]
pub(crate) struct Unfinished {
    frozen: Vec<Frozen>,
    ended: Vec<Arc<Tally>>,
    upto: Seq,
    dead: Vec<(u32, u64)>,
    /// Files and lives that step 3 is done with, and where it is in the next file.
    merged: usize,
    merged_to: u64,
    removed: usize,
}

#[derive(Debug)]
struct Frozen {
    file: Arc<File>,
    no: FileNo,
    row: FileRow,
    recent: Arc<ExtentMap>,
    tally: Arc<Tally>,
}

pub(crate) fn checkpoint(shared: &Arc<Shared>) -> Result<()> {
    let mut unfinished = shared.maintenance.merging.lock();
    if let Some(failure) = shared.log.failure() {
        return Err(failure);
    }
    let result = has_room(shared).and_then(|()| {
        if let Some(earlier) = unfinished.take() {
            go_on(shared, &mut unfinished, earlier)?;
        }
        let new = begin(shared)?;
        go_on(shared, &mut unfinished, new)
    });
    shared.note_starved(matches!(result, Err(StoreError::Full)));
    result
}

fn has_room(shared: &Shared) -> Result<()> {
    let needed = ROOM + shared.hot.load(Ordering::Relaxed) * ROOM_FOR_EXTENT;
    match shared.log.free_bytes() {
        Ok(free) if free < needed => match free + RESERVE >= needed && shared.log.give_reserve() {
            true => Ok(()),
            false => Err(StoreError::Full),
        },
        // A disk that does not even say so fails what comes next.
        _ => Ok(()),
    }
}

/// Steps 1 and 2.
fn begin(shared: &Arc<Shared>) -> Result<Unfinished> {
    let dead = dead_segments(shared);
    shared.hidden.store(0, Ordering::Relaxed);
    shared.behind.store(false, Ordering::Relaxed);
    let (frozen, ended, upto) = freeze(shared);
    shared.log.sync()?;
    Ok(Unfinished {
        frozen,
        ended,
        upto,
        dead,
        merged: 0,
        merged_to: 0,
        removed: 0,
    })
}

/// Steps 3 to 5. Leaves the checkpoint in `unfinished` when the disk is full.
fn go_on(
    shared: &Shared,
    unfinished: &mut Option<Unfinished>,
    mut checkpoint: Unfinished,
) -> Result<()> {
    match write_index(shared, &mut checkpoint) {
        Ok(()) => {}
        Err(StoreError::Full) => {
            *unfinished = Some(checkpoint);
            return Err(StoreError::Full);
        }
        // After any other error the books no longer say what the index holds. The next start replays
        // the log over the checkpoint that is on the disk.
        Err(error) => {
            shared.log.stop("writing the extent index", &error);
            return Err(error);
        }
    }
    // New ones are added behind these.
    shared.ended.lock().drain(..checkpoint.ended.len());
    for part in checkpoint.frozen {
        part.file.thaw(part.no);
        shared
            .hot
            .fetch_sub(part.recent.len() as u64, Ordering::Relaxed);
    }
    let upto = checkpoint.upto;
    let mut result = Ok(());
    for (id, _) in checkpoint
        .dead
        .into_iter()
        .filter(|(_, seen_at)| *seen_at <= upto.0 + 1)
    {
        // One that cannot be removed now is no reason to keep the others.
        if let Err(error) = shared.log.free(id) {
            result = Err(error);
        }
    }
    result
}

fn write_index(shared: &Shared, checkpoint: &mut Unfinished) -> Result<()> {
    while let Some(part) = checkpoint.frozen.get(checkpoint.merged) {
        merge(shared, part, &mut checkpoint.merged_to)?;
        checkpoint.merged += 1;
        checkpoint.merged_to = 0;
    }
    while let Some(tally) = checkpoint.ended.get(checkpoint.removed) {
        shared.index.remove_file(tally.no, |start, extent| {
            shared.dropped(tally, start, &extent, Gone::Superseded);
        })?;
        tally.cold.store(0, Ordering::Release);
        checkpoint.removed += 1;
    }
    shared.index.commit(checkpoint.upto)
}

/// Sealed segments without live payload, with a number that everything which emptied them is
/// below.
fn dead_segments(shared: &Shared) -> Vec<(u32, u64)> {
    let dead = |s: &&Arc<Segment>| s.is_sealed() && s.live() == 0;
    let found: Vec<u32> = shared
        .log
        .segments()
        .iter()
        .filter(dead)
        .map(|s| s.id)
        .collect();
    let seen_at = shared.log.next_seq();
    found.into_iter().map(|id| (id, seen_at)).collect()
}

fn freeze(shared: &Arc<Shared>) -> (Vec<Frozen>, Vec<Arc<Tally>>, Seq) {
    // Whatever has a lower number is either in memory when its file is looked at below, or in
    // flight there and then lowers the checkpoint.
    let mut next = shared.log.next_seq();
    let mut frozen = Vec::new();
    for file in shared.all_files() {
        let mut inner = file.inner();
        if let Some(floor) = inner.active.lowest_floor() {
            next = next.min(floor);
        }
        let Some(life) = &mut inner.life else {
            continue;
        };
        if life.hot.is_empty() && !life.row_changed {
            continue;
        }
        let recent = std::mem::take(&mut life.hot);
        let recent = Arc::new(recent);
        life.frozen = Some(recent.clone());
        life.freezes += 1;
        life.row_changed = false;
        let (no, row, tally) = (life.no, life.row.clone(), life.tally.clone());
        drop(inner);
        frozen.push(Frozen {
            file,
            no,
            row,
            recent,
            tally,
        });
    }
    let ended = shared.ended.lock().clone();
    (frozen, ended, Seq(next - 1))
}

fn merge(shared: &Shared, part: &Frozen, from: &mut u64) -> Result<()> {
    let change = Change {
        no: part.no,
        row: &part.row,
        recent: &part.recent,
        has_cold: part.tally.cold.load(Ordering::Acquire) > 0,
    };
    shared.index.merge(&change, from, &mut |merged| {
        for (start, extent) in merged.gone {
            shared.dropped(&part.tally, *start, extent, Gone::Elsewhere);
        }
        // Two's complement: adding a negative count takes away.
        part.tally
            .cold
            .fetch_add(merged.count as u64, Ordering::AcqRel);
    })
}

impl File {
    /// The frozen extents are in RocksDB: readers find them there.
    fn thaw(&self, no: FileNo) {
        if let Some(life) = self.inner().life.as_mut().filter(|life| life.no == no) {
            life.frozen = None;
        }
    }
}

pub(crate) fn tidy(shared: &Arc<Shared>) -> Result<()> {
    shared.log.retire_idle()?;
    checkpoint(shared)?;
    compact_one(shared)
}

pub(crate) fn start(shared: &Arc<Shared>) -> Result<()> {
    let mut state = shared.maintenance.state.lock();
    if state.running {
        return Ok(());
    }
    let weak = Arc::downgrade(shared);
    let thread = std::thread::Builder::new()
        .name("maintain".into())
        .spawn(move || {
            let mut turn = Turn::default();
            while let Some(shared) = weak.upgrade() {
                if !wait(&shared) {
                    break;
                }
                turn.take(&shared);
                let mut state = shared.maintenance.state.lock();
                state.rounds += 1;
                shared.maintenance.changed.notify_all();
            }
        })
        .map_err(|e| StoreError::io("start a thread for", shared.log.dir(), e))?;
    state.running = true;
    state.kicked = shared.behind.load(Ordering::Relaxed);
    state.thread = Some(thread);
    Ok(())
}

/// Ends the thread and waits for it: were it to let go of the store last, RocksDB would be closed
/// by it while the process exits.
pub(crate) fn stop(shared: &Shared) {
    let thread = {
        let mut state = shared.maintenance.state.lock();
        state.stop = true;
        shared.maintenance.changed.notify_all();
        state.thread.take()
    };
    if thread.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("maintenance of the store ended in a panic");
    }
}

/// Sleeps until the next turn; false when it is time to stop.
fn wait(shared: &Shared) -> bool {
    let mut state = shared.maintenance.state.lock();
    if !state.stop && !state.kicked {
        shared.maintenance.changed.wait_for(&mut state, TURN);
    }
    state.kicked = false;
    if state.stop {
        state.running = false;
        shared.maintenance.changed.notify_all();
    }
    !state.stop
}

/// What the thread remembers from turn to turn.
#[derive(Default)]
struct Turn {
    last_checkpoint: Option<Instant>,
    last_seq: u64,
    dead_since: Option<Instant>,
    failed: bool,
}

impl Turn {
    fn take(&mut self, shared: &Arc<Shared>) {
        if self.failed {
            return;
        }
        match self.try_take(shared) {
            // Said once, by `Shared::note_starved`.
            Ok(()) | Err(StoreError::Full) => {}
            Err(error) => {
                self.failed = shared.log.failure().is_some();
                tracing::error!(%error, "maintenance of the store failed; it is tried again");
            }
        }
    }

    fn try_take(&mut self, shared: &Arc<Shared>) -> Result<()> {
        shared.log.keep_spares();
        shared.log.keep_reserve(RESERVE, 2 * ROOM);
        let pressed = shared.log.space.above_high();
        if pressed || shared.is_starved() || shared.log.had_no_room() {
            shared.tell(Event::Pressure);
        }
        if pressed || shared.undrained.load(Ordering::Relaxed) == 0 {
            shared.log.retire_idle()?;
        }
        if self.is_due(shared, pressed) {
            self.last_seq = shared.log.next_seq();
            checkpoint(shared)?;
            self.last_checkpoint = Some(Instant::now());
            self.dead_since = None;
        }
        if pressed || shared.log.space.used() > shared.log.space.capacity() / 2 {
            compact_one(shared)?;
        }
        shared.kept.save_renewed();
        Ok(())
    }

    fn is_due(&mut self, shared: &Shared, pressed: bool) -> bool {
        if shared.is_starved()
            || shared.behind.load(Ordering::Relaxed)
            || shared.hot.load(Ordering::Relaxed) > shared.hot_limit
        {
            return true;
        }
        let dead = !dead_segments(shared).is_empty();
        let since = match (dead, self.dead_since) {
            (false, _) => None,
            (true, known) => Some(known.unwrap_or_else(Instant::now)),
        };
        self.dead_since = since;
        if since.is_some_and(|t| pressed || t.elapsed() >= RECLAIM_AGE) {
            return true;
        }
        let since = *self.last_checkpoint.get_or_insert_with(Instant::now);
        if shared.hidden.load(Ordering::Relaxed) > 0 && (pressed || since.elapsed() >= DRAIN_AGE) {
            return true;
        }
        since.elapsed() >= CHECKPOINT_AGE && shared.log.next_seq() != self.last_seq
    }
}

/// Moves the live payload of the emptiest sealed segment to the end of the log, if it is at
/// least half dead. The copy is a record of its own: *killed in between*, both are there and
/// the newer wins, with the same bytes.
fn compact_one(shared: &Arc<Shared>) -> Result<()> {
    let half_dead =
        |s: &&Arc<Segment>| s.is_sealed() && s.live() > 0 && s.live() <= s.written() / 2;
    let segments = shared.log.segments();
    let Some(segment) = segments.iter().filter(half_dead).min_by_key(|s| s.live()) else {
        return Ok(());
    };
    let mut by_no: HashMap<FileNo, Arc<File>> = HashMap::new();
    for file in shared.all_files() {
        if let Some(no) = file.life_no() {
            by_no.insert(no, file);
        }
    }
    let mut records = Records::new(segment);
    while let Some(found) = records.advance()? {
        let Ok((_, record)) = found else { continue };
        if !record.kind.is_data() {
            continue;
        }
        let Some(file) = by_no.get(&record.file) else {
            continue;
        };
        match file.relocate(segment, &record) {
            // A damaged unit stays where it is: reads and the drain report it.
            Err(StoreError::Checksum { .. }) | Ok(()) => {}
            Err(StoreError::Full) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl File {
    /// Appends again what `segment` still holds of a record's range.
    fn relocate(&self, segment: &Segment, record: &Record) -> Result<()> {
        let range = ByteRange {
            start: record.offset,
            end: record.offset + record.len,
        };
        // A publication waits for other machines. What is published is not worth moving.
        let Some(_moving) = self.moving.try_read() else {
            return Ok(());
        };
        let _held = self.hold_range(range);
        let mut parts = Vec::new();
        match self.visible(range) {
            Err(StoreError::Clean) => return Ok(()),
            found => {
                for (start, extent) in found? {
                    match extent.place {
                        Place::Log { unit, .. } if unit.segment == segment.id => {
                            parts.push((start, extent));
                        }
                        _ => {}
                    }
                }
            }
        }
        let mut bytes = Vec::new();
        for (start, extent) in parts {
            let Place::Log { unit, skip } = extent.place else {
                continue;
            };
            segment
                .read_unit(&unit, &mut bytes)?
                .ok_or(StoreError::Checksum {
                    file: self.id(),
                    range,
                    segment: unit.segment,
                    offset: unit.offset,
                })?;
            let len = (extent.end - start) as usize;
            let data = &bytes[skip as usize..skip as usize + len];
            self.write_moved(start, data, record.time)?;
        }
        Ok(())
    }
}
