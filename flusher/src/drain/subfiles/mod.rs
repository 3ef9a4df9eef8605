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

mod run;
mod unit;

use super::{Halt, Stopping, blocking, joined};
use crate::engine::Shared;
use crate::housekeeping::Targets;
use crate::ost::{Dealt, OstError};
use crate::schedule::Scope;
use crate::trouble::{self, Trouble};
use layout_index::{ByteRange, DiskFile, File, StoreError, Subfile, Subfiled};
use parking_lot::Mutex;
use run::{Pass, Run, Ticket};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use unit::Refused;

/// Stripes listed at once.
const WINDOW: usize = 1024;

/// Batches whose OST was lost before it synced them are dealt again this often in one job.
const ROUNDS: usize = 4;

/// A writer who is always ahead does not keep the canonical file waiting for ever.
const PASSES: usize = 8;

/// Looks at the stripes of a growing file in one pass.
const SCANS: usize = 16;

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
    /// They are not to go to subfiles, or no OST takes them: the second phase takes all there is. With
    /// what an OST said to it, if one did.
    Not(Option<i32>),
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
        return Ok(Moved::Not(None));
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
            let said = *mover.said.lock();
            return Ok(Moved::Not(said.or_else(|| targets.fleet.refusal())));
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
    written: Written,
    dealt: Dealt,
    _ticket: Ticket,
}

struct Written {
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
    Synced {
        subfile: u32,
        /// Bytes that have left the log; `None` if the OST was lost before the sync.
        moved: Option<u64>,
    },
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
    /// The last error of an OST.
    said: Mutex<Option<i32>>,
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
            said: Mutex::new(None),
            pace,
        })
    }

    /// Over the file as large as it is now, and again while it grows faster than it is moved.
    async fn pass(self: &Arc<Self>, scope: Scope) -> Result<Pass, Halt> {
        let mut run = Run::new(self.clone());
        self.scan(&mut run, scope).await?;
        let mut scans = 1;
        while run.settle_one().await? {
            if scans < SCANS && self.file.in_log() >= run.under_way() + run.enough() {
                self.scan(&mut run, scope).await?;
                scans += 1;
            }
        }
        Ok(run.pass())
    }

    async fn scan(self: &Arc<Self>, run: &mut Run, scope: Scope) -> Result<(), Halt> {
        let stripe = self.shared.settings.read().stripe;
        let end = self.file.stat().map_or(0, |s| s.size);
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
                if scope == Scope::FullStripes && !one.is_full() || run.has(one.range) {
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
        Ok(())
    }

    fn trouble(&self, op: &str, error: StoreError) -> Halt {
        Halt::Trouble(trouble::store(&self.name, op, error))
    }

    /// Writes a batch to the OST it was dealt to, or to another until one has taken it.
    async fn place(
        self: Arc<Self>,
        batch: Batch,
        dealt: Dealt,
        ticket: Ticket,
        _permit: OwnedSemaphorePermit,
    ) -> Result<Step, Halt> {
        let fleet = &self.targets.fleet;
        let mut tried = Vec::new();
        let mut next = Some(dealt);
        while let Some(dealt) = next.take().or_else(|| fleet.deal(batch.bytes, &tried)) {
            if self.shared.stopping.load(Ordering::Relaxed) {
                return Err(Halt::Stopping);
            }
            tried.push(dealt.ost.index);
            let (mover, batch, ost) = (self.clone(), batch.clone(), dealt.ost.clone());
            let write = tokio::task::spawn_blocking(move || mover.write(&batch, &ost));
            match timeout(fleet.settings().deadline, write).await.map(joined) {
                Ok(Ok(Ok(Some(written)))) => {
                    return Ok(Step::Placed(Placed {
                        written,
                        dealt,
                        _ticket: ticket,
                    }));
                }
                // Unlinked or truncated away meanwhile.
                Ok(Ok(Ok(None) | Err(Refused::Store(StoreError::Clean)))) => {
                    return Ok(Step::Superseded);
                }
                Ok(Ok(Err(Refused::Ost(error)))) => {
                    tracing::warn!(name = %self.name, "{error}");
                    *self.said.lock() = error.errno();
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

    /// Syncs what batches wrote to one subfile, and tells the log how much
    /// of it is there. `None`: the OST was lost before that.
    async fn record(self: Arc<Self>, placed: Vec<Placed>) -> Result<Option<u64>, Halt> {
        let Some(Placed { written, dealt, .. }) = placed.first() else {
            return Ok(Some(0));
        };
        let fleet = &self.targets.fleet;
        let flight = fleet.begin(dealt.ost.index, 0);
        let ost = dealt.ost.clone();
        let (disk, subfile) = (written.disk.clone(), written.subfile.clone());
        let sync = tokio::task::spawn_blocking(move || {
            let synced = subfile
                .sync_named(&*disk)
                .map_err(|e| OstError::new(&ost, "syncing a subfile", e));
            match &synced {
                Ok(_) => flight.done(),
                Err(error) => flight.failed(error),
            }
            synced
        });
        match timeout(fleet.settings().deadline, sync).await.map(joined) {
            Ok(Ok(Ok(true))) => {}
            Ok(Ok(Ok(false))) => {
                tracing::warn!(
                    name = %self.name,
                    "a subfile of it was removed by somebody who took this node for dead; its data goes to another one"
                );
                return Ok(None);
            }
            Ok(Ok(Err(error))) => {
                tracing::warn!(name = %self.name, "{error}");
                *self.said.lock() = error.errno();
                return Ok(None);
            }
            Ok(Err(Stopping)) => return Err(Halt::Stopping),
            Err(_) => {
                fleet.tick(Instant::now());
                return Ok(None);
            }
        }
        let mover = self.clone();
        blocking(move || {
            let mut moved = 0;
            for Placed { written: one, .. } in &placed {
                // Another's sync of the same file failed, and may have lost this one's pages.
                if one.failed_syncs != one.subfile.failed_syncs() {
                    return Ok(None);
                }
                if mover.shared.abandoned.load(Ordering::Acquire) {
                    break;
                }
                moved += mover.file.subfiled(&one.units)?;
                mover.shared.meter.record(one.bytes, Instant::now());
            }
            Ok(Some(moved))
        })
        .await?
        .map_err(|e| self.trouble("recording subfiles of", e))
    }
}

impl From<Trouble> for Halt {
    fn from(trouble: Trouble) -> Halt {
        Halt::Trouble(trouble)
    }
}
