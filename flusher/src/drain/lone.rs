//! The drain of a file that this node has to itself: from log and subfiles into the canonical file,
//! stripe by stripe, in the order of [`super::writer`].
//!
//! The snapshot of a stripe is taken under its canonical guard, and what is recorded as drained
//! names the newest record that the snapshot contained: bytes that are written to the log after
//! that stay undrained.
//!
//! # Errors
//!
//! The first error of the canonical file ends the pass (a full disk does not need a thousand more
//! attempts) after what was written has been synced and recorded. A damaged stripe is left out, and
//! the others are drained. Both errors stick to the file until a whole pass succeeds.

use super::blocking;
use super::canonical_file::Gate;
use super::job::FileJob;
use super::subfiles::Moved;
use super::term::Held;
use super::writer::{CanonicalWriter, join_units};
use crate::drain_error::DrainError;
use crate::schedule::{Outcome, Scope};
use crate::stripe::{Problem, Work};
use layout_index::{ByteRange, DirtyStripe, Drained, Piece, Source, StoreError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::task::JoinSet;

const STRIPES_PER_LISTING: usize = 1024;

/// After this many truncates at one stripe, the stripe is left to the next job.
const MAX_TRIMS_PER_STRIPE: usize = 16;

struct LoneDrain {
    writer: CanonicalWriter,
    /// Stripes that have bytes in the log are left to the first phase.
    leave_log: bool,
    /// Stripes that are written and not yet synced.
    written: Vec<Drained>,
    bytes: u64,
    synced: Instant,
    /// The first error of a stripe that does not keep others from being drained: its bytes are
    /// damaged, or the OST that has them does not answer.
    damaged: Option<DrainError>,
    away: Option<DrainError>,
}

/// `held` is the file's term, if there can be other nodes.
pub(super) async fn drain_lone(
    job: FileJob,
    scope: Scope,
    moved: Moved,
    held: Option<Arc<Held>>,
) -> Result<Outcome, DrainError> {
    let FileJob { engine, file, .. } = &job;
    let gate = held.map_or(Gate::Open, Gate::Term);
    let writer = match CanonicalWriter::open(&job, gate).await {
        Ok(Some(writer)) => writer,
        Ok(None) => {
            let gone = file.clone();
            let dropped = job.watched(move || gone.discard()).await?;
            dropped.map_err(job.store_error("dropping the data of"))?;
            tracing::info!(file = %file.id(), name = %job.name, "the canonical file is gone: its undrained data was dropped");
            engine.canonicals.file_clean(file.id());
            return Ok(Outcome::Clean);
        }
        // The file became clean meanwhile (it was truncated, say), so the canonical file is not
        // needed.
        Err(DrainError::Canonical { .. }) if file.is_clean() => {
            engine.canonicals.file_clean(file.id());
            return Ok(Outcome::Clean);
        }
        Err(error) => return Err(error),
    };
    let mut drain = LoneDrain {
        writer: writer.clone(),
        leave_log: moved == Moved::Out,
        written: Vec::new(),
        bytes: 0,
        synced: Instant::now(),
        damaged: None,
        away: None,
    };
    let ended = drain.drain_passes(scope).await;
    match writer.canonical.mirror() {
        Some(mirror) if matches!(ended, Ok(Outcome::Clean)) => mirror.save(),
        Some(mirror) => {
            let (mirror, canonical) = (mirror.clone(), writer.canonical.clone());
            job.watched(move || mirror.pause(&canonical)).await?;
        }
        None => {}
    }
    ended
}

impl LoneDrain {
    async fn drain_passes(&mut self, scope: Scope) -> Result<Outcome, DrainError> {
        let trimmed = self.apply_trim().await?;
        if trimmed {
            self.run_pass(Scope::FullStripes).await?;
            if scope == Scope::Everything {
                self.run_pass(Scope::Everything).await?;
                if self.damaged.is_none() && self.away.is_none() && self.finish().await? {
                    return Ok(Outcome::Clean);
                }
            }
            if let Some(error) = self.away.take().or(self.damaged.take()) {
                return Err(error);
            }
        }
        if scope == Scope::FullStripes {
            return Ok(Outcome::Dirty);
        }
        self.writer.job.file.clear_error();
        Ok(match trimmed {
            // The rest was written since, or a truncate came again and again.
            true => Outcome::Passed,
            false => Outcome::Dirty,
        })
    }

    /// False if other nodes have published something: then a pending truncate must not reach the
    /// canonical file.
    async fn apply_trim(&self) -> Result<bool, DrainError> {
        let CanonicalWriter { job, canonical } = self.writer.clone();
        let file = job.file.clone();
        match job.watched(move || file.apply_trim(&*canonical)).await? {
            Ok(()) => Ok(true),
            Err(StoreError::NotAlone) => Ok(false),
            Err(e) => Err(job.store_error("truncating")(e)),
        }
    }

    async fn finish(&self) -> Result<bool, DrainError> {
        let CanonicalWriter { job, canonical } = self.writer.clone();
        let file = job.file.clone();
        let only_node = job.engine.shared_files.is_none();
        let finished = job.watched(move || {
            let clean = match file.finish(&*canonical, only_node) {
                Err(StoreError::NotAlone) => false,
                other => other?,
            };
            if clean {
                file.clear_error();
            }
            Ok(clean)
        });
        let clean = finished.await?.map_err(job.store_error("finishing"))?;
        if clean {
            job.engine.canonicals.file_clean(job.file.id());
        }
        Ok(clean)
    }

    /// Goes once over the file at its current size: a writer that appends faster than the drain
    /// writes must not keep the drain from the stripes that it has left behind.
    async fn run_pass(&mut self, scope: Scope) -> Result<(), DrainError> {
        let mut running = JoinSet::new();
        let started = self.start_stripes(scope, &mut running).await;
        let joined = join_units(&mut running, |done| self.note_stripe(done)).await;
        let recorded = self.record().await;
        started.and(joined).and(recorded)
    }

    async fn start_stripes(
        &mut self,
        scope: Scope,
        running: &mut JoinSet<Result<Option<Written>, DrainError>>,
    ) -> Result<(), DrainError> {
        let writer = self.writer.clone();
        let FileJob { engine, file, .. } = &writer.job;
        let stripe = engine.settings.read().stripe;
        let end = file.stat().map_or(0, |s| s.size);
        let leave_log = self.leave_log;
        let mut from = 0;
        while from < end {
            let file = file.clone();
            let list = move || file.dirty_stripes(stripe, from, STRIPES_PER_LISTING);
            let stripes = match blocking(list).await? {
                Err(StoreError::Clean) => break,
                listed => listed.map_err(writer.job.store_error("listing the stripes of"))?,
            };
            let Some(last) = stripes.last() else { break };
            from = last.range.end;
            let chosen = |stripe: &DirtyStripe| scope == Scope::Everything || stripe.is_full();
            for DirtyStripe { range, bytes, .. } in stripes.into_iter().filter(chosen) {
                let drain = move |writer: &CanonicalWriter| drain_stripe(writer, range, leave_log);
                let note = |done| self.note_stripe(done);
                writer.start(bytes, running, note, drain).await?;
                let due = {
                    let settings = engine.settings.read();
                    self.bytes >= settings.sync_every
                        || self.synced.elapsed() >= settings.sync_after
                };
                if due {
                    self.record().await?;
                }
            }
        }
        Ok(())
    }

    fn note_stripe(&mut self, done: Result<Option<Written>, DrainError>) -> Result<(), DrainError> {
        match done {
            Ok(Some(written)) => {
                self.bytes += written.bytes;
                self.written.push(written.drained);
            }
            Ok(None) => {}
            Err(error @ DrainError::Away { .. }) => {
                self.away.get_or_insert(error);
            }
            Err(error) if error.is_damaged() => {
                self.damaged.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Syncs the canonical file, then lets the log forget what is in it. Writes that are still
    /// under way are not in `written`, so the sync need not wait for them.
    async fn record(&mut self) -> Result<(), DrainError> {
        self.bytes = 0;
        self.synced = Instant::now();
        let done = std::mem::take(&mut self.written);
        if done.is_empty() {
            return Ok(());
        }
        let job = self.writer.job.clone();
        let record = move || {
            if job.engine.abandoned.load(Ordering::Acquire) {
                // The store may be closed by now. What was written stays undrained, and is safe.
                return Ok(());
            }
            match job.file.drained(&done) {
                // If the data was discarded meanwhile, there is nothing left to forget. If it was
                // published meanwhile, these bytes are published too.
                Err(StoreError::Clean | StoreError::NotAlone) => Ok(()),
                other => other.map_err(job.store_error("recording the drain of")),
            }
        };
        self.writer.sync_then(record).await
    }
}

struct Written {
    drained: Drained,
    bytes: u64,
}

/// Takes the guard and a snapshot, and writes the stripe. `None` if nothing in the range is
/// undrained any more.
fn drain_stripe(
    writer: &CanonicalWriter,
    range: ByteRange,
    leave_log: bool,
) -> Result<Option<Written>, DrainError> {
    let FileJob {
        engine, file, name, ..
    } = &writer.job;
    for _ in 0..MAX_TRIMS_PER_STRIPE {
        // The file's last name may have been removed since the job began.
        if file.is_unlinked() {
            return Ok(None);
        }
        let guard = file.lock_canonical(range);
        let snapshot = file.snapshot(&guard).map_err(Problem::from);
        let drained = snapshot.and_then(|snapshot| {
            let size = file.stat().map_or(0, |s| s.size);
            let work = match engine.shared_files {
                Some(_) => Work::exactly(&snapshot.pieces),
                None => Work::from_pieces(&snapshot.pieces).aligned(snapshot.range, size),
            };
            let in_log = |p: &Piece| matches!(p.source, Source::Log(_));
            if work.is_empty() || leave_log && snapshot.pieces.iter().any(in_log) {
                return Ok(None);
            }
            writer.write(snapshot.range, &snapshot.pieces, &work)?;
            Ok(Some(Written {
                drained: Drained {
                    range: snapshot.range,
                    upto: snapshot.upto,
                },
                bytes: work.bytes(),
            }))
        });
        drop(guard);
        match drained {
            Err(Problem::Store(StoreError::Clean | StoreError::NotAlone)) => return Ok(None),
            Err(Problem::TrimPending) => match file.apply_trim(&*writer.canonical) {
                Ok(()) => {}
                Err(StoreError::NotAlone) => return Ok(None),
                Err(e) => return Err(writer.job.store_error("truncating")(e)),
            },
            other => return other.map_err(|problem| DrainError::stripe(name, range, problem)),
        }
    }
    // Truncates keep coming. The bytes are still undrained, and the next job drains them.
    Ok(None)
}
