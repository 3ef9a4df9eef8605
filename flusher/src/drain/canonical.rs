//! The second phase: from log and subfiles into the canonical file.
//!
//! # Consistency
//!
//! The order is the rule: guard, snapshot, write, guard dropped, **sync**, `drained`.
//! - The snapshot is taken under the stripe's canonical guard, and no other canonical writer has
//!   the range until the write is done. So older bytes never land on newer ones.
//! - `drained` names the newest record the snapshot contained. Bytes written to the log after
//!   that stay undrained.
//! - `drained` is told only after the canonical file was synced with the write in it: log space
//!   is never given back for bytes that a power failure could still take.
//!
//! # Crash behaviour, step by step
//!
//! - Killed before or during [`File::apply_trim`]: the truncate is still pending; recovery trims
//!   again.
//! - Killed with some stripes written: recovery sees them undrained and writes them again, with
//!   the same bytes or newer ones.
//! - Killed after the sync, before `drained` is on disk: the same.
//! - Killed after `drained`, before [`File::finish`]: recovery sees a file without undrained
//!   bytes whose size and time are still owed; the next drain finishes it.
//! - Killed inside `finish`: either the end of the life was recorded or it is done again.
//!
//! # Errors
//!
//! The first canonical error ends the pass (a full disk does not want a thousand more attempts)
//! after what was written has been synced and recorded. A damaged stripe only takes itself out.
//! Both stick to the file until a whole pass succeeds.

use super::gated::Gated;
use super::mirror::Mirror;
use super::pulse::Pulse;
use super::shared::Held;
use super::subfiles::Moved;
use super::{Attempt, Halt, Stopping, blocking, permit, watched};
use crate::engine::Shared;
use crate::schedule::Scope;
use crate::stripe::{self, Problem, Work};
use crate::trouble::{self, Trouble};
use layout_index::{
    ByteRange, DirtyStripe, DiskFile, Drained, File, Piece, Plan, Source, StoreError,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::task::JoinSet;

/// Stripes listed at once.
const WINDOW: usize = 1024;

/// A pass that meets this many truncates at one stripe lets the next job try.
const TRIMS: usize = 16;

struct Job {
    shared: Arc<Shared>,
    file: Arc<File>,
    canonical: Arc<dyn DiskFile>,
    name: Arc<str>,
    /// Stripes that have bytes in the log are not for this phase.
    leave_log: bool,
    pulse: Arc<Pulse>,
    /// Written, not yet synced.
    written: Vec<Drained>,
    bytes: u64,
    synced: Instant,
    damaged: Option<Trouble>,
    /// Bytes that an OST has and does not give.
    away: Option<Trouble>,
}

pub(super) async fn attempt(
    shared: Arc<Shared>,
    file: Arc<File>,
    name: Arc<str>,
    scope: Scope,
    moved: Moved,
    held: Option<Arc<Held>>,
    pulse: Arc<Pulse>,
) -> Result<Attempt, Halt> {
    let opened = {
        let (shared, file) = (shared.clone(), file.clone());
        watched(&pulse, move || shared.canonicals.open(&file)).await?
    };
    let canonical = match opened {
        Ok(Some(canonical)) => canonical,
        Ok(None) => {
            let (f, name) = (file.clone(), name.clone());
            watched(&pulse, move || f.discard())
                .await?
                .map_err(|e| Halt::Trouble(trouble::store(&name, "dropping the data of", e)))?;
            tracing::info!(file = %file.id(), name = %name, "the canonical file is gone: its undrained data was dropped");
            shared.canonicals.finished(file.id());
            return Ok(Attempt::Clean);
        }
        // It became clean by itself (truncated away, say): there is nothing to open it for.
        Err(_) if file.is_clean() => {
            shared.canonicals.finished(file.id());
            return Ok(Attempt::Clean);
        }
        Err(source) => {
            return Err(Halt::Trouble(trouble::canonical(&name, "opening", &source)));
        }
    };
    let canonical: Arc<dyn DiskFile> = match held {
        Some(held) => Arc::new(Gated::new(canonical, move || held.holds())),
        None => canonical,
    };
    let mirror = {
        let (shared, file, canonical) = (shared.clone(), file.clone(), canonical.clone());
        watched(&pulse, move || Mirror::of(&shared, &file, canonical)).await?
    };
    let canonical = match &mirror {
        Some(mirror) => mirror.clone(),
        None => canonical,
    };
    let mut job = Job {
        shared,
        file,
        canonical,
        name,
        leave_log: moved == Moved::Out,
        pulse,
        written: Vec::new(),
        bytes: 0,
        synced: Instant::now(),
        damaged: None,
        away: None,
    };
    let ended = job.go(scope).await;
    if let Some(mirror) = mirror {
        let clean = matches!(ended, Ok(Attempt::Clean));
        kept(&job.pulse, mirror, clean).await?;
    }
    ended
}

/// A copy was written beside the canonical file. Saving it holds up nobody.
async fn kept(pulse: &Arc<Pulse>, mirror: Arc<Mirror>, clean: bool) -> Result<(), Stopping> {
    if clean {
        drop(tokio::task::spawn_blocking(move || mirror.save()));
        return Ok(());
    }
    watched(pulse, move || mirror.pause()).await
}

impl Job {
    async fn go(&mut self, scope: Scope) -> Result<Attempt, Halt> {
        if !self.trim().await? {
            return Ok(Attempt::Dirty);
        }
        self.pass(Scope::FullStripes).await?;
        if scope == Scope::Everything {
            self.pass(Scope::Everything).await?;
            if self.damaged.is_none() && self.away.is_none() && self.finish().await? {
                return Ok(Attempt::Clean);
            }
        }
        if let Some(trouble) = self.away.take() {
            return Err(Halt::Trouble(trouble));
        }
        Ok(match self.damaged.take() {
            Some(trouble) => Attempt::Damaged(trouble),
            // What is left was written since, or cut again and again.
            None if scope == Scope::Everything => Attempt::Passed,
            None => Attempt::Dirty,
        })
    }

    /// False where other nodes have published something: it is not for the canonical file then.
    async fn trim(&self) -> Result<bool, Halt> {
        let (file, canonical) = (self.file.clone(), self.canonical.clone());
        match watched(&self.pulse, move || file.apply_trim(&*canonical)).await? {
            Ok(()) => Ok(true),
            Err(StoreError::NotAlone) => Ok(false),
            Err(e) => Err(Halt::Trouble(trouble::store(&self.name, "truncating", e))),
        }
    }

    async fn finish(&self) -> Result<bool, Halt> {
        let (file, canonical) = (self.file.clone(), self.canonical.clone());
        let only_node = self.shared.together.is_none();
        let clean = watched(&self.pulse, move || {
            let clean = match file.finish(&*canonical, only_node) {
                Err(StoreError::NotAlone) => false,
                other => other?,
            };
            if clean {
                file.clear_error();
            }
            Ok::<bool, StoreError>(clean)
        })
        .await?
        .map_err(|e| Halt::Trouble(trouble::store(&self.name, "finishing", e)))?;
        if clean {
            self.shared.canonicals.finished(self.file.id());
        }
        Ok(clean)
    }

    /// Goes once over the file as large as it is now: a writer who appends faster than the drain
    /// writes must not keep it from the stripes behind.
    async fn pass(&mut self, scope: Scope) -> Result<(), Halt> {
        let stripe = self.shared.settings.read().stripe;
        let end = self.file.stat().map_or(0, |s| s.size);
        let mut from = 0;
        let mut running = JoinSet::new();
        let mut halt = None;
        while from < end && halt.is_none() {
            let listed = {
                let file = self.file.clone();
                blocking(move || file.dirty_stripes(stripe, from, WINDOW)).await?
            };
            let stripes = match listed {
                Ok(stripes) => stripes,
                Err(StoreError::Clean) => break,
                Err(e) => {
                    let trouble = trouble::store(&self.name, "listing the stripes of", e);
                    halt = Some(Halt::Trouble(trouble));
                    break;
                }
            };
            let Some(last) = stripes.last() else { break };
            from = last.range.end;
            for stripe in stripes {
                if scope == Scope::FullStripes && !stripe.is_full() {
                    continue;
                }
                if let Err(h) = self.one(stripe, &mut running).await {
                    halt = Some(h);
                    break;
                }
            }
        }
        while let Some(result) = running.join_next().await {
            if let Err(h) = self.take(result) {
                halt.get_or_insert(h);
            }
        }
        let committed = self.commit().await;
        match halt {
            Some(halt) => Err(halt),
            None => committed,
        }
    }

    /// Sends one stripe on its way and collects those that have arrived.
    async fn one(
        &mut self,
        stripe: DirtyStripe,
        running: &mut JoinSet<Result<Option<Written>, Trouble>>,
    ) -> Result<(), Halt> {
        self.shared.pace(self.file.id(), stripe.bytes).await;
        if self.shared.stopping.load(Ordering::Relaxed) {
            return Err(Halt::Stopping);
        }
        let (there, pulse) = (self.shared.clone(), self.pulse.clone());
        let permit = permit(&there, &pulse, running, |done| self.take(done)).await?;
        let (shared, file) = (self.shared.clone(), self.file.clone());
        let (canonical, name) = (self.canonical.clone(), self.name.clone());
        let permit = pulse.keep(permit);
        let leave_log = self.leave_log;
        let waiting = pulse.enter();
        running.spawn_blocking(move || {
            let _until_then = (waiting, permit);
            move_stripe(&shared, &file, &*canonical, &name, stripe.range, leave_log)
        });
        while let Some(result) = running.try_join_next() {
            self.take(result)?;
        }
        let due = {
            let settings = self.shared.settings.read();
            self.bytes >= settings.sync_every || self.synced.elapsed() >= settings.sync_after
        };
        if due {
            self.commit().await?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        result: Result<Result<Option<Written>, Trouble>, tokio::task::JoinError>,
    ) -> Result<(), Halt> {
        match result {
            Ok(Ok(Some(written))) => {
                self.bytes += written.bytes;
                self.written.push(written.drained);
                self.shared.meter.record(written.bytes, Instant::now());
                Ok(())
            }
            Ok(Ok(None)) => Ok(()),
            Ok(Err(trouble)) if trouble.away => {
                self.away.get_or_insert(trouble);
                Ok(())
            }
            Ok(Err(trouble)) if trouble.damaged => {
                self.damaged.get_or_insert(trouble);
                Ok(())
            }
            Ok(Err(trouble)) => Err(Halt::Trouble(trouble)),
            Err(e) => match e.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Halt::Stopping),
            },
        }
    }

    /// Syncs the canonical file, then lets the log forget what is in it. Writes still under way
    /// are not in `written`, so the sync need not wait for them.
    async fn commit(&mut self) -> Result<(), Halt> {
        self.bytes = 0;
        self.synced = Instant::now();
        let done = std::mem::take(&mut self.written);
        if done.is_empty() {
            return Ok(());
        }
        let (shared, file) = (self.shared.clone(), self.file.clone());
        let (canonical, name) = (self.canonical.clone(), self.name.clone());
        watched(&self.pulse, move || {
            canonical
                .sync()
                .map_err(|source| trouble::canonical(&name, "syncing", &source))?;
            if shared.abandoned.load(Ordering::Acquire) {
                // The store may be closed by now. What was written stays undrained, and safe.
                return Ok(());
            }
            match file.drained(&done) {
                // Discarded meanwhile: there is nothing left to forget. Published meanwhile: these
                // bytes are published too.
                Ok(()) | Err(StoreError::Clean | StoreError::NotAlone) => Ok(()),
                Err(e) => Err(trouble::store(&name, "recording the drain of", e)),
            }
        })
        .await?
        .map_err(Halt::Trouble)
    }
}

struct Written {
    drained: Drained,
    bytes: u64,
}

/// Guard, snapshot, write. `None` when nothing in the range is undrained any more.
fn move_stripe(
    shared: &Shared,
    file: &File,
    canonical: &dyn DiskFile,
    name: &str,
    range: ByteRange,
    leave_log: bool,
) -> Result<Option<Written>, Trouble> {
    let verify = shared.settings.read().verify;
    for _ in 0..TRIMS {
        // Its last name may have gone since the job began.
        if file.is_unlinked() {
            return Ok(None);
        }
        let guard = file.lock_canonical(range);
        let moved = file
            .snapshot(&guard)
            .map_err(Problem::from)
            .and_then(|snapshot| {
                let size = file.stat().map_or(0, |s| s.size);
                let work = match shared.together {
                    Some(_) => Work::exactly(&snapshot.pieces),
                    None => Work::of(&snapshot.pieces).aligned(snapshot.range, size),
                };
                let in_log = |p: &Piece| matches!(p.source, Source::Log(_));
                if work.is_empty() || leave_log && snapshot.pieces.iter().any(in_log) {
                    return Ok(None);
                }
                shared.buffers.with(|buffer| {
                    stripe::write(
                        snapshot.range,
                        &work,
                        canonical,
                        buffer,
                        verify,
                        |run, buf| {
                            let plan = Plan {
                                range: run.range,
                                size: run.range.end,
                                pieces: snapshot.pieces[run.pieces.clone()].to_vec(),
                            };
                            file.read(&plan, buf, None)
                        },
                    )
                })?;
                Ok(Some(Written {
                    drained: Drained {
                        range: snapshot.range,
                        upto: snapshot.upto,
                    },
                    bytes: work.bytes(),
                }))
            });
        drop(guard);
        match moved {
            Ok(written) => return Ok(written),
            Err(Problem::Store(StoreError::Clean | StoreError::NotAlone)) => return Ok(None),
            Err(Problem::TrimPending) => match file.apply_trim(canonical) {
                Ok(()) => {}
                Err(StoreError::NotAlone) => return Ok(None),
                Err(e) => return Err(trouble::store(name, "truncating", e)),
            },
            Err(problem) => return Err(trouble::stripe(name, range, problem)),
        }
    }
    // Somebody truncates without end. The bytes are still undrained, and the next job looks.
    Ok(None)
}
