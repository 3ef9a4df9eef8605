//! The first phase: from the log into subfiles on OSTs.
//!
//! # Order
//!
//! Dirty stripes are gathered into batches of about one stripe. A batch is assigned to an OST,
//! copied out of the log into one buffer and appended to the file's subfile there with one aligned
//! write. From time to time the subfiles written to are **synced**, and only then does the log
//! record that the bytes are there ([`File::subfiled`]). `layout_index::store::subfile` says what a kill
//! at each step leaves.
//!
//! # Something fails
//!
//! A batch whose OST fails, is full or does not answer in time is assigned to another one: its
//! bytes are in the log until they are synced elsewhere. A write that hangs is left behind, and
//! what it writes late is at a place that no record names. If no OST takes a batch, its bytes stay
//! in the log, and the second phase takes them from there.

mod run;
mod unit;

use super::job::FileJob;
use super::{blocking, joined};
use crate::drain_error::DrainError;
use crate::housekeeping::SubfileKeeper;
use crate::ost::{OstError, Picked};
use crate::schedule::Scope;
use layout_index::{ByteRange, DiskFile, StoreError, Subfile, Subfiled};
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
const STRIPES_PER_LISTING: usize = 1024;

/// Batches whose OST was lost before it synced them are assigned again this often in one job.
const MAX_LOST_PASSES: usize = 4;

/// After so many passes the canonical file is drained even if a writer is always ahead.
const MAX_PASSES: usize = 8;

/// How often one pass scans the stripes of a growing file.
const MAX_SCANS_PER_PASS: usize = 16;

/// Whether the drain's rate limit applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Limited,
    /// A caller waits: an fsync, a close, an unlock, or another node.
    Full,
}

/// How moving a file's bytes out of the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// They are not to go to subfiles, or no OST takes them: the second phase takes everything that
    /// is there. With the error number that an OST gave, if one did.
    Not(Option<i32>),
    /// Everything that `scope` allows has left the log, except for what was written meanwhile.
    Out,
}

/// Moves what `scope` allows out of the log, if an OST takes it. Continues while writers keep the
/// file busy: room in the log is more important than the canonical file.
pub(super) async fn move_out(job: &FileJob, scope: Scope, pace: Pace) -> Result<Moved, DrainError> {
    let Some(keeper) = &job.engine.keeper else {
        return Ok(Moved::Not(None));
    };
    if job.file.in_log() == 0 {
        return Ok(Moved::Out);
    }
    // The first data after a start waits for the first probe, which has a deadline of its own.
    let targets = keeper.targets.clone();
    let patience = targets.settings().probe.deadline * 2;
    blocking(move || targets.wait_ready(Instant::now() + patience)).await?;
    let mut lost = 0;
    for _ in 0..MAX_PASSES {
        let mover = Mover::new(job, keeper, pace);
        let pass = mover.pass(scope).await?;
        lost += usize::from(pass.lost);
        // The second phase reports damaged bytes, and takes those that no OST takes.
        if mover.damaged.load(Ordering::Relaxed) || pass.refused || lost == MAX_LOST_PASSES {
            let target_errno = *mover.target_errno.lock();
            return Ok(Moved::Not(
                target_errno.or_else(|| keeper.targets.refusal()),
            ));
        }
        if pass.bytes == 0 && !pass.lost {
            break;
        }
    }
    Ok(Moved::Out)
}

/// A part of the log that is moved with one write.
#[derive(Clone, Debug, Default)]
struct Batch {
    stripes: Vec<ByteRange>,
    bytes: u64,
}

/// A batch that is written to a subfile and not yet synced.
struct Placed {
    written: Written,
    picked: Picked,
    _ticket: Ticket,
}

struct Written {
    subfile: Arc<Subfile>,
    disk: Arc<dyn DiskFile>,
    units: Vec<Subfiled>,
    bytes: u64,
    /// [`Subfile::failed_syncs`] before the batch was written.
    failed_syncs: u64,
}

enum Step {
    Placed(Placed),
    /// No OST takes the batch.
    Refused,
    /// The batch is not in the log any more.
    Superseded,
    Synced {
        subfile: u32,
        /// Bytes that have left the log; `None` if the OST was lost before the sync.
        moved: Option<u64>,
    },
}

/// The subfile on one OST that this file's units go to. The lock is held while the subfile is made,
/// so that other threads that need the same one wait for it.
type Slot = Arc<Mutex<Option<Arc<Subfile>>>>;

struct Mover {
    job: FileJob,
    keeper: Arc<SubfileKeeper>,
    slots: Mutex<HashMap<u32, Slot>>,
    /// Some bytes in the log do not match their checksum.
    damaged: AtomicBool,
    /// The number of the last error that an OST gave.
    target_errno: Mutex<Option<i32>>,
    pace: Pace,
}

impl Mover {
    fn new(job: &FileJob, keeper: &Arc<SubfileKeeper>, pace: Pace) -> Arc<Mover> {
        let slot = |s: Arc<Subfile>| {
            let ost = keeper.ost_of(s.row())?;
            Some((ost.index, Arc::new(Mutex::new(Some(s)))))
        };
        Arc::new(Mover {
            slots: Mutex::new(job.file.subfiles().into_iter().filter_map(slot).collect()),
            job: job.clone(),
            keeper: keeper.clone(),
            damaged: AtomicBool::new(false),
            target_errno: Mutex::new(None),
            pace,
        })
    }

    /// Moves the file at its current size, and scans it again while it grows faster than it is
    /// moved.
    async fn pass(self: &Arc<Self>, scope: Scope) -> Result<Pass, DrainError> {
        let mut run = Run::new(self.clone());
        self.scan(&mut run, scope).await?;
        let mut scans = 1;
        while run.join_one().await? {
            if scans < MAX_SCANS_PER_PASS
                && self.job.file.in_log() >= run.under_way() + run.worth_a_scan()
            {
                self.scan(&mut run, scope).await?;
                scans += 1;
            }
        }
        Ok(run.pass())
    }

    async fn scan(self: &Arc<Self>, run: &mut Run, scope: Scope) -> Result<(), DrainError> {
        let stripe = self.job.engine.settings.read().stripe;
        let end = self.job.file.stat().map_or(0, |s| s.size);
        let mut batch = Batch::default();
        let mut from = 0;
        while from < end {
            let file = self.job.file.clone();
            let stripes = match blocking(move || {
                file.log_stripes(stripe, from, STRIPES_PER_LISTING)
            })
            .await?
            {
                Ok(stripes) => stripes,
                Err(StoreError::Clean) => break,
                Err(e) => return Err(self.job.store_error("listing the stripes of")(e)),
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

    /// Writes a batch to the OST it was assigned to, or to others until one has taken it.
    async fn place(
        self: Arc<Self>,
        batch: Batch,
        picked: Picked,
        ticket: Ticket,
        _permit: OwnedSemaphorePermit,
    ) -> Result<Step, DrainError> {
        let targets = &self.keeper.targets;
        let mut tried = Vec::new();
        let mut next = Some(picked);
        while let Some(picked) = next.take().or_else(|| targets.pick(batch.bytes, &tried)) {
            self.job.check_stopping()?;
            tried.push(picked.ost.index);
            let (mover, batch, ost) = (self.clone(), batch.clone(), picked.ost.clone());
            let write = tokio::task::spawn_blocking(move || mover.write(&batch, &ost));
            match timeout(targets.settings().deadline, write)
                .await
                .map(joined)
            {
                Ok(Ok(Ok(Some(written)))) => {
                    return Ok(Step::Placed(Placed {
                        written,
                        picked,
                        _ticket: ticket,
                    }));
                }
                // The file was unlinked or truncated meanwhile.
                Ok(Ok(Ok(None) | Err(Refused::Store(StoreError::Clean)))) => {
                    return Ok(Step::Superseded);
                }
                Ok(Ok(Err(Refused::Ost(error)))) => {
                    tracing::warn!(name = %self.job.name, "{error}");
                    *self.target_errno.lock() = error.errno();
                    // The user's quota applies wherever the bytes go: the canonical file will give
                    // the same error.
                    if error.errno() == Some(libc::EDQUOT) {
                        return Ok(Step::Refused);
                    }
                }
                // The log has no room to record a subfile; draining makes room.
                Ok(Ok(Err(Refused::Store(StoreError::Full)))) => return Ok(Step::Refused),
                Ok(Ok(Err(Refused::Store(e)))) => return Err(self.job.store_error("subfiling")(e)),
                Ok(Err(stopping)) => return Err(stopping),
                Err(_) => targets.tick(Instant::now()),
            }
        }
        Ok(Step::Refused)
    }

    /// Syncs what batches wrote to one subfile, and has the log record that the bytes are there.
    /// Returns how many bytes have left the log; `None` if the OST was lost before that.
    async fn record(self: Arc<Self>, placed: Vec<Placed>) -> Result<Option<u64>, DrainError> {
        let Some(Placed {
            written, picked, ..
        }) = placed.first()
        else {
            return Ok(Some(0));
        };
        let targets = &self.keeper.targets;
        let flight = targets.begin(picked.ost.index, 0);
        let ost = picked.ost.clone();
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
        match timeout(targets.settings().deadline, sync).await.map(joined) {
            Ok(Ok(Ok(true))) => {}
            Ok(Ok(Ok(false))) => {
                tracing::warn!(
                    name = %self.job.name,
                    "a subfile of it was removed by a node that took this one for dead; its data goes to another one"
                );
                return Ok(None);
            }
            Ok(Ok(Err(error))) => {
                tracing::warn!(name = %self.job.name, "{error}");
                *self.target_errno.lock() = error.errno();
                return Ok(None);
            }
            Ok(Err(stopping)) => return Err(stopping),
            Err(_) => {
                targets.tick(Instant::now());
                return Ok(None);
            }
        }
        let mover = self.clone();
        blocking(move || {
            let mut moved = 0;
            for Placed { written: one, .. } in &placed {
                // A sync of the same subfile by another task failed and may have lost pages of this
                // batch.
                if one.failed_syncs != one.subfile.failed_syncs() {
                    return Ok(None);
                }
                if mover.job.engine.abandoned.load(Ordering::Acquire) {
                    break;
                }
                moved += mover.job.file.subfiled(&one.units)?;
                mover.job.engine.meter.record(one.bytes, Instant::now());
            }
            Ok(Some(moved))
        })
        .await?
        .map_err(self.job.store_error("recording subfiles of"))
    }
}
