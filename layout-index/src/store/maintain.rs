//! Merges extents into the index, moves its checkpoint, frees and compacts segments.
//!
//! A checkpoint has these steps, in order:
//! 1. freeze every file's extents in memory, and note the number C below which nothing is in flight
//!    any more;
//! 2. sync the log: the index never refers to payload that a power failure could lose;
//! 3. write the frozen extents and the rows to RocksDB;
//! 4. write C and flush RocksDB;
//! 5. remove segments that were dead before C.
//!
//! If the daemon is killed before 4 is done, the old checkpoint holds; every segment that it needs
//! is still there, because 5 goes by the checkpoint on disk. If it is killed in 5, dead segments
//! are left over. The next start or checkpoint removes them, since nothing counts on them.
//!
//! # A disk that other programs fill
//! A checkpoint needs room for the index, and some is held for it ([`RESERVE`]). While the disk has
//! none and the reserve is used up, no checkpoint begins. A checkpoint that runs out of room in 3
//! or 4 stops there ([`Unfinished`]), and the next one continues from there with the same frozen
//! extents. Meanwhile readers find these in memory, and replay finds them in the log. Writers fill
//! what memory there is and are then written through; nothing of the log is freed.

use crate::error::{Result, StoreError};
use crate::extent::{ExtentMap, Place};
use crate::store::Event;
use crate::store::file::File;
use crate::store::index::{Change, FileRow};
use crate::store::log::record::Record;
use crate::store::log::segment::{Records, Segment};
use crate::store::state::{Gone, StoreState, Tally};
use crate::types::{ByteRange, FileNo, Seq};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between two rounds if nothing wakes the thread.
const TURN: Duration = Duration::from_millis(200);
/// Longest period that replay after a crash has to cover.
const CHECKPOINT_AGE: Duration = Duration::from_secs(30);
/// Dead segments wait this long for others to be freed with, unless the store is filling up.
const RECLAIM_AGE: Duration = Duration::from_secs(2);
/// While extents in RocksDB are being drained, merges follow at this interval: the counters, the
/// drain's progress and reclaim go by them.
const DRAIN_AGE: Duration = Duration::from_secs(1);
/// Free room on the disk without which no checkpoint begins: for the tables of a merge and for what
/// RocksDB rewrites beside them, plus `ROOM_FOR_EXTENT` for each extent that is merged.
const ROOM: u64 = 8 << 20;
const ROOM_FOR_EXTENT: u64 = 256;
/// Room that is held for the index while the disk has enough. It is given back right before a
/// checkpoint that would not fit otherwise, and that checkpoint then frees the segments that the
/// drain has emptied.
const RESERVE: u64 = 2 * ROOM;

/// A checkpoint between its steps 2 and 5.
#[derive(Debug)]
pub(crate) struct Unfinished {
    frozen: Vec<Frozen>,
    ended: Vec<Arc<Tally>>,
    upto: Seq,
    dead: Vec<(u32, u64)>,
    /// How many files step 3 is done with, where it is in the next file, and how many ended dirty
    /// periods it has removed.
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

pub(crate) fn checkpoint(state: &Arc<StoreState>) -> Result<()> {
    let mut unfinished = state.maintenance.merging.lock();
    if let Some(failure) = state.log.failure() {
        return Err(failure);
    }
    let result = has_room(state).and_then(|()| {
        if let Some(earlier) = unfinished.take() {
            go_on(state, &mut unfinished, earlier)?;
        }
        let new = begin(state)?;
        go_on(state, &mut unfinished, new)
    });
    state.note_starved(matches!(result, Err(StoreError::Full)));
    result
}

fn has_room(state: &StoreState) -> Result<()> {
    let needed = ROOM + state.hot.load(Ordering::Relaxed) * ROOM_FOR_EXTENT;
    match state.log.free_bytes() {
        Ok(free) if free < needed => match free + RESERVE >= needed && state.log.give_reserve() {
            true => Ok(()),
            false => Err(StoreError::Full),
        },
        // There is room, or the disk cannot even say so and the next step fails.
        _ => Ok(()),
    }
}

/// Steps 1 and 2.
fn begin(state: &Arc<StoreState>) -> Result<Unfinished> {
    let dead = dead_segments(state);
    state.hidden.store(0, Ordering::Relaxed);
    state.behind.store(false, Ordering::Relaxed);
    let (frozen, ended, upto) = freeze(state);
    state.log.sync()?;
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
    state: &StoreState,
    unfinished: &mut Option<Unfinished>,
    mut checkpoint: Unfinished,
) -> Result<()> {
    match write_index(state, &mut checkpoint) {
        Ok(()) => {}
        Err(StoreError::Full) => {
            *unfinished = Some(checkpoint);
            return Err(StoreError::Full);
        }
        // After any other error the counters no longer match what the index holds. The next start
        // replays the log over the checkpoint that is on the disk.
        Err(error) => {
            state.log.stop("writing the extent index", &error);
            return Err(error);
        }
    }
    // Dirty periods that ended meanwhile are behind these.
    state.ended.lock().drain(..checkpoint.ended.len());
    for part in checkpoint.frozen {
        part.file.thaw(part.no);
        state
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
        // A segment that cannot be removed now is no reason to keep the others.
        if let Err(error) = state.log.free(id) {
            result = Err(error);
        }
    }
    result
}

fn write_index(state: &StoreState, checkpoint: &mut Unfinished) -> Result<()> {
    while let Some(part) = checkpoint.frozen.get(checkpoint.merged) {
        merge(state, part, &mut checkpoint.merged_to)?;
        checkpoint.merged += 1;
        checkpoint.merged_to = 0;
    }
    while let Some(tally) = checkpoint.ended.get(checkpoint.removed) {
        state.index.remove_file(tally.no, |start, extent| {
            state.dropped(tally, start, &extent, Gone::Superseded);
        })?;
        tally.cold.store(0, Ordering::Release);
        checkpoint.removed += 1;
    }
    state.index.commit(checkpoint.upto)
}

/// Sealed segments without live payload, each with a number above every record that emptied it.
fn dead_segments(state: &StoreState) -> Vec<(u32, u64)> {
    let dead = |s: &&Arc<Segment>| s.is_sealed() && s.live() == 0;
    let found: Vec<u32> = state
        .log
        .segments()
        .iter()
        .filter(dead)
        .map(|s| s.id)
        .collect();
    let seen_at = state.log.next_seq();
    found.into_iter().map(|id| (id, seen_at)).collect()
}

fn freeze(state: &Arc<StoreState>) -> (Vec<Frozen>, Vec<Arc<Tally>>, Seq) {
    // A record with a lower number is either in memory when its file is visited below, or still in
    // flight and then lowers the checkpoint.
    let mut next = state.log.next_seq();
    let mut frozen = Vec::new();
    for file in state.all_files() {
        let mut inner = file.inner();
        if let Some(floor) = inner.active.lowest_floor() {
            next = next.min(floor);
        }
        let Some(period) = &mut inner.period else {
            continue;
        };
        if period.hot.is_empty() && !period.row_changed {
            continue;
        }
        let recent = std::mem::take(&mut period.hot);
        let recent = Arc::new(recent);
        period.frozen = Some(recent.clone());
        period.freezes += 1;
        period.row_changed = false;
        let (no, row, tally) = (period.no, period.row.clone(), period.tally.clone());
        drop(inner);
        frozen.push(Frozen {
            file,
            no,
            row,
            recent,
            tally,
        });
    }
    let ended = state.ended.lock().clone();
    (frozen, ended, Seq(next - 1))
}

fn merge(state: &StoreState, part: &Frozen, from: &mut u64) -> Result<()> {
    let change = Change {
        no: part.no,
        row: &part.row,
        recent: &part.recent,
        has_cold: part.tally.cold.load(Ordering::Acquire) > 0,
    };
    state.index.merge(&change, from, &mut |merged| {
        for (start, extent) in merged.gone {
            state.dropped(&part.tally, *start, extent, Gone::Elsewhere);
        }
        // Two's complement: adding a negative count subtracts.
        part.tally
            .cold
            .fetch_add(merged.count as u64, Ordering::AcqRel);
    })
}

impl File {
    /// Drops the frozen extents: they are in RocksDB, and readers find them there.
    fn thaw(&self, no: FileNo) {
        if let Some(period) = self
            .inner()
            .period
            .as_mut()
            .filter(|period| period.no == no)
        {
            period.frozen = None;
        }
    }
}

pub(crate) fn tidy(state: &Arc<StoreState>) -> Result<()> {
    state.log.retire_idle()?;
    checkpoint(state)?;
    compact_one(state)
}

pub(crate) fn start(state: &Arc<StoreState>) -> Result<()> {
    let mut progress = state.maintenance.state.lock();
    if progress.running {
        return Ok(());
    }
    let weak = Arc::downgrade(state);
    let thread = std::thread::Builder::new()
        .name("maintain".into())
        .spawn(move || {
            let mut turn = Turn::default();
            while let Some(state) = weak.upgrade() {
                if !wait(&state) {
                    break;
                }
                turn.run(&state);
                let mut progress = state.maintenance.state.lock();
                progress.rounds += 1;
                state.maintenance.changed.notify_all();
            }
        })
        .map_err(|e| StoreError::io("start a thread for", state.log.dir(), e))?;
    progress.running = true;
    progress.kicked = state.behind.load(Ordering::Relaxed);
    progress.thread = Some(thread);
    Ok(())
}

/// Stops the thread and waits for it. If the thread were the last to let go of the store, it would
/// close RocksDB while the process exits.
pub(crate) fn stop(state: &StoreState) {
    let thread = {
        let mut progress = state.maintenance.state.lock();
        progress.stop = true;
        state.maintenance.changed.notify_all();
        progress.thread.take()
    };
    if thread.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("maintenance of the store ended in a panic");
    }
}

/// Sleeps until the next round. Returns false when it is time to stop.
fn wait(state: &StoreState) -> bool {
    let mut progress = state.maintenance.state.lock();
    if !progress.stop && !progress.kicked {
        state.maintenance.changed.wait_for(&mut progress, TURN);
    }
    progress.kicked = false;
    if progress.stop {
        progress.running = false;
        state.maintenance.changed.notify_all();
    }
    !progress.stop
}

/// State that the thread keeps from round to round.
#[derive(Default)]
struct Turn {
    last_checkpoint: Option<Instant>,
    last_seq: u64,
    dead_since: Option<Instant>,
    failed: bool,
}

impl Turn {
    fn run(&mut self, state: &Arc<StoreState>) {
        if self.failed {
            return;
        }
        match self.try_run(state) {
            // `StoreState::note_starved` logs this, once.
            Ok(()) | Err(StoreError::Full) => {}
            Err(error) => {
                self.failed = state.log.failure().is_some();
                tracing::error!(%error, "maintenance of the store failed; it is tried again");
            }
        }
    }

    fn try_run(&mut self, state: &Arc<StoreState>) -> Result<()> {
        state.log.keep_spares();
        state.log.keep_reserve(RESERVE, 2 * ROOM);
        let pressed = state.log.space.above_high();
        if pressed || state.is_starved() || state.log.had_no_room() {
            state.tell(Event::Pressure);
        }
        if pressed || state.undrained.load(Ordering::Relaxed) == 0 {
            state.log.retire_idle()?;
        }
        if self.is_due(state, pressed) {
            self.last_seq = state.log.next_seq();
            checkpoint(state)?;
            self.last_checkpoint = Some(Instant::now());
            self.dead_since = None;
        }
        if pressed || state.log.space.used() > state.log.space.capacity() / 2 {
            compact_one(state)?;
        }
        state.local_copies.save_renewed();
        Ok(())
    }

    fn is_due(&mut self, state: &StoreState, pressed: bool) -> bool {
        if state.is_starved()
            || state.behind.load(Ordering::Relaxed)
            || state.hot.load(Ordering::Relaxed) > state.hot_limit
        {
            return true;
        }
        let dead = !dead_segments(state).is_empty();
        let since = match (dead, self.dead_since) {
            (false, _) => None,
            (true, known) => Some(known.unwrap_or_else(Instant::now)),
        };
        self.dead_since = since;
        if since.is_some_and(|t| pressed || t.elapsed() >= RECLAIM_AGE) {
            return true;
        }
        let since = *self.last_checkpoint.get_or_insert_with(Instant::now);
        if state.hidden.load(Ordering::Relaxed) > 0 && (pressed || since.elapsed() >= DRAIN_AGE) {
            return true;
        }
        since.elapsed() >= CHECKPOINT_AGE && state.log.next_seq() != self.last_seq
    }
}

/// Moves the live payload of the emptiest sealed segment to the end of the log, if that segment is
/// at least half dead. The copy has a record of its own: if the daemon is killed in between, both
/// are there and the newer wins, with the same bytes.
fn compact_one(state: &Arc<StoreState>) -> Result<()> {
    let half_dead =
        |s: &&Arc<Segment>| s.is_sealed() && s.live() > 0 && s.live() <= s.written() / 2;
    let segments = state.log.segments();
    let Some(segment) = segments.iter().filter(half_dead).min_by_key(|s| s.live()) else {
        return Ok(());
    };
    let mut by_no: HashMap<FileNo, Arc<File>> = HashMap::new();
    for file in state.all_files() {
        if let Some(no) = file.period_no() {
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
        // A publication may wait for other machines, so this does not wait for it. What is being
        // published is not worth moving.
        let Some(_no_publication) = self.publication_lock.try_read() else {
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
