//! The first phase: from the log into subfiles on OSTs.
//!
//! # Order
//!
//! Dirty stripes are gathered into batches of about one stripe. A batch is dealt to an OST, copied
//! out of the log into one buffer and appended to the file's subfile there with one aligned write.
//! Every now and then the subfiles written to are **synced**, and only then is the log told
//! ([`File::subfiled`]). `layout_index::subfile` says what a kill at each step leaves.
//!
//! # Something fails
//!
//! A batch whose OST fails, fills or does not answer in time is dealt to another one: its bytes
//! are in the log until they are synced elsewhere. The write that hangs is left behind, and what
//! it writes late is at a place that no record names. When no OST takes a batch its bytes stay in
//! the log, and the second phase takes them from there.

mod unit;

use super::{Halt, Stopping, blocking, joined};
use crate::engine::Shared;
use crate::housekeeping::Targets;
use crate::ost::{Ost, OstError};
use crate::schedule::Scope;
use crate::trouble::{self, Trouble};
use layout_index::{ByteRange, DiskFile, File, StoreError, Subfile, Subfiled};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::timeout;
use unit::Refused;

/// Stripes listed at once.
const WINDOW: usize = 1024;

/// Batches whose OST was lost before it synced them are dealt again this often in one job.
const ROUNDS: usize = 4;

/// A writer who is always ahead does not keep the canonical file waiting for ever.
const PASSES: usize = 8;

/// Whether the limit of the drain's rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Limited,
    /// Somebody waits: an fsync, a close, an unlock, another node.
    Full,
}

/// What became of a file's bytes in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// They are not to go to subfiles, or no OST takes them: the second phase takes all there is.
    Not,
    /// What `scope` allows has left the log, but for what was written meanwhile.
    Out,
}

/// Moves what `scope` allows out of the log, if an OST takes it.
/// Goes on while writers keep it busy: that the log has room comes before the canonical file.
pub(super) async fn move_out(
    shared: &Arc<Shared>,
    file: &Arc<File>,
    name: &Arc<str>,
    scope: Scope,
    pace: Pace,
) -> Result<Moved, Halt> {
    let Some(targets) = &shared.targets else {
        return Ok(Moved::Not);
    };
    if file.in_log() == 0 {
        return Ok(Moved::Out);
    }
    // The first data of all waits for the first probe, which has a deadline of its own.
    let fleet = targets.fleet.clone();
    let patience = fleet.settings().probe.deadline * 2;
    blocking(move || fleet.wait_ready(Instant::now() + patience)).await?;
    let mut lost = 0;
    for _ in 0..PASSES {
        let mover = Mover::new(shared, targets, file, name, pace);
        let pass = mover.pass(scope).await?;
        lost += usize::from(pass.lost);
        // The second phase reports what is damaged, and takes what nobody else does.
        if mover.damaged.load(Ordering::Relaxed) || pass.refused || lost == ROUNDS {
            return Ok(Moved::Not);
        }
        if pass.bytes == 0 && !pass.lost {
            break;
        }
    }
    Ok(Moved::Out)
}

/// Part of the log on its way, as one write.
#[derive(Clone, Debug, Default)]
struct Batch {
    stripes: Vec<ByteRange>,
    bytes: u64,
}

/// A batch that is in a subfile, not yet synced.
struct Placed {
    ost: Ost,
    subfile: Arc<Subfile>,
    disk: Arc<dyn DiskFile>,
    units: Vec<Subfiled>,
    bytes: u64,
    /// [`Subfile::failed_syncs`] before it was written.
    failed_syncs: u64,
}

enum Step {
    Placed(Placed),
    /// No OST takes it.
    Refused,
    /// It is not in the log any more.
    Superseded,
    /// So many bytes have left the log.
    Recorded(u64),
    /// An OST was lost between a write and its sync.
    Lost,
}

/// The subfile on one OST that units of this file go to. Held over its making: others who need
/// the same one wait for it.
type Slot = Arc<Mutex<Option<Arc<Subfile>>>>;

struct Mover {
    shared: Arc<Shared>,
    targets: Arc<Targets>,
    file: Arc<File>,
    name: Arc<str>,
    slots: Mutex<HashMap<u32, Slot>>,
    /// Something in the log does not match its checksum.
    damaged: AtomicBool,
    pace: Pace,
}

impl Mover {
    fn new(
        shared: &Arc<Shared>,
        targets: &Arc<Targets>,
        file: &Arc<File>,
        name: &Arc<str>,
        pace: Pace,
    ) -> Arc<Mover> {
        let slot = |s: Arc<Subfile>| {
            let ost = targets.ost_of(s.row())?;
            Some((ost.index, Arc::new(Mutex::new(Some(s)))))
        };
        Arc::new(Mover {
            slots: Mutex::new(file.subfiles().into_iter().filter_map(slot).collect()),
            shared: shared.clone(),
            targets: targets.clone(),
            file: file.clone(),
            name: name.clone(),
            damaged: AtomicBool::new(false),
            pace,
        })
    }

    /// Once over the file as large as it is now.
    async fn pass(self: &Arc<Self>, scope: Scope) -> Result<Pass, Halt> {
        let stripe = self.shared.settings.read().stripe;
        let end = self.file.stat().map_or(0, |s| s.size);
        let mut run = Run::new(self.clone());
        let mut batch = Batch::default();
        let mut from = 0;
        while from < end {
            let file = self.file.clone();
            let stripes = match blocking(move || file.log_stripes(stripe, from, WINDOW)).await? {
                Ok(stripes) => stripes,
                Err(StoreError::Clean) => break,
                Err(e) => return Err(self.trouble("listing the stripes of", e)),
            };
            let Some(last) = stripes.last() else { break };
            from = last.range.end;
            for one in stripes {
                if scope == Scope::FullStripes && !one.is_full() {
                    continue;
                }
                if batch.bytes > 0 && batch.bytes + one.bytes > stripe {
                    run.send(std::mem::take(&mut batch)).await?;
                }
                batch.bytes += one.bytes;
                batch.stripes.push(one.range);
            }
        }
        if batch.bytes > 0 {
            run.send(batch).await?;
        }
        run.finish().await
    }

    fn trouble(&self, op: &str, error: StoreError) -> Halt {
        Halt::Trouble(trouble::store(&self.name, op, error))
    }

    /// Deals a batch until an OST has taken it.
    async fn place(
        self: Arc<Self>,
        batch: Batch,
        _permit: OwnedSemaphorePermit,
    ) -> Result<Step, Halt> {
        let fleet = &self.targets.fleet;
        let mut tried = Vec::new();
        while let Some(ost) = fleet.deal(batch.bytes, &tried) {
            if self.shared.stopping.load(Ordering::Relaxed) {
                return Err(Halt::Stopping);
            }
            tried.push(ost.index);
            let (mover, batch) = (self.clone(), batch.clone());
            let write = tokio::task::spawn_blocking(move || mover.write(&batch, &ost));
            match timeout(fleet.settings().deadline, write).await.map(joined) {
                Ok(Ok(Ok(Some(placed)))) => return Ok(Step::Placed(placed)),
                // Unlinked or truncated away meanwhile.
                Ok(Ok(Ok(None) | Err(Refused::Store(StoreError::Clean)))) => {
                    return Ok(Step::Superseded);
                }
                Ok(Ok(Err(Refused::Ost(error)))) => {
                    tracing::warn!(name = %self.name, "{error}");
                    // The user's, wherever the bytes go: the canonical file will say so.
                    if error.errno() == Some(libc::EDQUOT) {
                        return Ok(Step::Refused);
                    }
                }
                // No room to say that there is a subfile; what drains makes room.
                Ok(Ok(Err(Refused::Store(StoreError::Full)))) => return Ok(Step::Refused),
                Ok(Ok(Err(Refused::Store(e)))) => return Err(self.trouble("subfiling", e)),
                Ok(Err(Stopping)) => return Err(Halt::Stopping),
                Err(_) => fleet.tick(Instant::now()),
            }
        }
        Ok(Step::Refused)
    }

    /// Syncs what the batches wrote, each OST for itself, and tells the log.
    async fn record(self: Arc<Self>, batches: Vec<Placed>) -> Result<Step, Halt> {
        let mut by_subfile: HashMap<u32, Vec<Placed>> = HashMap::new();
        for placed in batches {
            by_subfile
                .entry(placed.subfile.no())
                .or_default()
                .push(placed);
        }
        let mut syncs = JoinSet::new();
        for (_, placed) in by_subfile {
            syncs.spawn(self.clone().record_one(placed));
        }
        let (mut moved, mut lost) = (0, false);
        while let Some(synced) = syncs.join_next().await {
            match joined(synced).map_err(Halt::from)?? {
                Step::Recorded(bytes) => moved += bytes,
                _ => lost = true,
            }
        }
        Ok(if lost {
            Step::Lost
        } else {
            Step::Recorded(moved)
        })
    }

    async fn record_one(self: Arc<Self>, placed: Vec<Placed>) -> Result<Step, Halt> {
        let Some(Placed {
            ost, disk, subfile, ..
        }) = placed.first()
        else {
            return Ok(Step::Recorded(0));
        };
        let fleet = &self.targets.fleet;
        let flight = fleet.begin(ost.index, 0);
        let (ost, disk, subfile) = (ost.clone(), disk.clone(), subfile.clone());
        let sync = tokio::task::spawn_blocking(move || {
            let synced = subfile
                .sync(&*disk)
                .map_err(|e| OstError::new(&ost, "syncing a subfile", e));
            match &synced {
                Ok(()) => flight.done(),
                Err(error) => flight.failed(error),
            }
            synced
        });
        match timeout(fleet.settings().deadline, sync).await.map(joined) {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => {
                tracing::warn!(name = %self.name, "{error}");
                return Ok(Step::Lost);
            }
            Ok(Err(Stopping)) => return Err(Halt::Stopping),
            Err(_) => {
                fleet.tick(Instant::now());
                return Ok(Step::Lost);
            }
        }
        let mover = self.clone();
        blocking(move || {
            let mut moved = 0;
            for one in &placed {
                // Another's sync of the same file failed, and may have lost this one's pages.
                if one.failed_syncs != one.subfile.failed_syncs() {
                    return Ok(Step::Lost);
                }
                if mover.shared.abandoned.load(Ordering::Acquire) {
                    break;
                }
                moved += mover.file.subfiled(&one.units)?;
                mover.shared.meter.record(one.bytes, Instant::now());
            }
            Ok(Step::Recorded(moved))
        })
        .await?
        .map_err(|e| self.trouble("recording subfiles of", e))
    }
}

/// Batches under way in one pass.
struct Run {
    mover: Arc<Mover>,
    steps: JoinSet<Result<Step, Halt>>,
    /// Written, not yet synced.
    placed: Vec<Placed>,
    bytes: u64,
    synced: Instant,
    pass: Pass,
}

/// How a pass went.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    bytes: u64,
    /// An OST was lost with something that it had not synced: to be done again.
    lost: bool,
    /// Nobody takes some of it.
    refused: bool,
}

impl Run {
    fn new(mover: Arc<Mover>) -> Run {
        Run {
            mover,
            steps: JoinSet::new(),
            placed: Vec::new(),
            bytes: 0,
            synced: Instant::now(),
            pass: Pass::default(),
        }
    }

    async fn send(&mut self, batch: Batch) -> Result<(), Halt> {
        let shared = &self.mover.shared;
        if self.mover.pace == Pace::Limited {
            let wait = shared.throttle.take(batch.bytes, Instant::now());
            if !wait.is_zero() {
                shared.sleep(wait).await;
            }
        }
        if shared.stopping.load(Ordering::Relaxed) {
            return Err(Halt::Stopping);
        }
        let permits = self.mover.targets.permits.clone();
        let permit = permits.acquire_owned().await.map_err(|_| Halt::Stopping)?;
        self.steps.spawn(self.mover.clone().place(batch, permit));
        while let Some(step) = self.steps.try_join_next() {
            self.take(joined(step).map_err(Halt::from)??);
        }
        let due = {
            let settings = self.mover.shared.settings.read();
            self.bytes >= settings.sync_every || self.synced.elapsed() >= settings.sync_after
        };
        if due {
            self.commit();
        }
        Ok(())
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Placed(placed) => {
                self.bytes += placed.bytes;
                self.placed.push(placed);
            }
            Step::Recorded(bytes) => self.pass.bytes += bytes,
            Step::Lost => self.pass.lost = true,
            Step::Refused => self.pass.refused = true,
            Step::Superseded => {}
        }
    }

    fn commit(&mut self) {
        self.bytes = 0;
        self.synced = Instant::now();
        let placed = std::mem::take(&mut self.placed);
        if !placed.is_empty() {
            self.steps.spawn(self.mover.clone().record(placed));
        }
    }

    async fn finish(mut self) -> Result<Pass, Halt> {
        while !self.steps.is_empty() || !self.placed.is_empty() {
            while let Some(step) = self.steps.join_next().await {
                self.take(joined(step).map_err(Halt::from)??);
            }
            self.commit();
        }
        Ok(self.pass)
    }
}

impl From<Trouble> for Halt {
    fn from(trouble: Trouble) -> Halt {
        Halt::Trouble(trouble)
    }
}
