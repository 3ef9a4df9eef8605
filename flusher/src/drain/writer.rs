//! The one writer of canonical files. The drain of a file that this node has to itself (`lone`) and
//! the rounds of a file that other nodes share (`round`) both write through it.
//!
//! # Order
//!
//! 1. The canonical file is opened as its owner ([`CanonicalWriter::open`]). From here on each
//!    change checks the lease, changes the canonical file and then the local copy
//!    (`canonical_file`).
//! 2. What was truncated is cut off, and the cut is synced before any byte is written.
//! 3. Each unit waits for the rate limit and for a permit ([`CanonicalWriter::start`]). Then, under
//!    the guard of its range, its bytes are read from where they are, their checksums are verified,
//!    and they are written ([`CanonicalWriter::write`]). No other thread of this node writes the
//!    range meanwhile, so older bytes never land on newer ones.
//! 4. The canonical file is **synced**, and only then is it recorded that the bytes are there
//!    ([`CanonicalWriter::sync_then`]): in the store's log (`File::drained`), or in the shared
//!    directory (a domain is marked as done). Room is never given back for bytes that a power
//!    failure could still take.
//! 5. When nothing is left, size and time are set, the file is synced once more, and the end is
//!    recorded: the end of the dirty period (`File::finish`), or the base of the round.
//!
//! # Crash behaviour, step by step
//!
//! The bytes stay readable where they were (log, subfiles, layouts) until they are recorded as
//! drained, and each step can be repeated.
//!
//! | killed | alone: recovery sees | round: the next holder of the term sees |
//! |---|---|---|
//! | before or in 2 | the truncate is pending: it trims again | no plan: it cuts again |
//! | after 2 | nothing to trim; all stripes undrained | the plan: it goes on with it |
//! | in 3 | the stripes undrained: it writes them again, with the same bytes or newer ones | the domain not done: once the lease is over, a node writes it again, with the same bytes |
//! | between sync and record in 4 | the same | the same |
//! | after 4 | those stripes drained; size and time not set yet | the domain done |
//! | in 5, before the record | no undrained bytes: the next drain finishes the file | all domains done and no base: it finishes the round |
//! | after 5 | a clean file | the base: what it covers is dropped from the layouts |

use super::canonical_file::{CanonicalFile, Gate};
use super::job::FileJob;
use super::joined;
use super::mirror::Mirror;
use crate::drain_error::DrainError;
use crate::stripe::{self, Problem, Work};
use layout_index::{ByteRange, DiskFile, Piece, Plan};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinSet;

#[derive(Clone)]
pub(super) struct CanonicalWriter {
    pub job: FileJob,
    pub canonical: Arc<CanonicalFile>,
}

impl CanonicalWriter {
    /// Opens the canonical file as its owner. `None` if it is certainly gone.
    pub async fn open(job: &FileJob, gate: Gate) -> Result<Option<CanonicalWriter>, DrainError> {
        let FileJob { engine, file, .. } = job.clone();
        let opened = job
            .watched(move || engine.canonicals.open_canonical(&file))
            .await?;
        let Some(below) = opened.map_err(job.canonical_error("opening"))? else {
            return Ok(None);
        };
        // Without the term there is no moment at which this node knows that no other node writes.
        let mirror = match gate {
            Gate::Open | Gate::Term(_) => {
                let (this, below) = (job.clone(), below.clone());
                let continued = move || Mirror::for_drain(&this, &*below);
                job.watched(continued).await?
            }
            Gate::Domain { .. } | Gate::Closed => None,
        };
        Ok(Some(CanonicalWriter {
            job: job.clone(),
            canonical: Arc::new(CanonicalFile::new(below, gate, mirror)),
        }))
    }

    /// The same file, changed only while `gate` holds.
    pub fn with_gate(&self, gate: Gate) -> CanonicalWriter {
        CanonicalWriter {
            job: self.job.clone(),
            canonical: Arc::new(self.canonical.with_gate(gate)),
        }
    }

    /// Starts writing a unit of about `bytes`, and passes those that are done to `collect`.
    pub async fn start<T: Send + 'static>(
        &self,
        bytes: u64,
        running: &mut JoinSet<Result<T, DrainError>>,
        mut collect: impl FnMut(Result<T, DrainError>) -> Result<(), DrainError>,
        write: impl FnOnce(&CanonicalWriter) -> Result<T, DrainError> + Send + 'static,
    ) -> Result<(), DrainError> {
        let job = &self.job;
        job.engine.pace(job.file.id(), bytes).await;
        job.check_stopping()?;
        let permit = job.permit(running, &mut collect).await?;
        job.check_stopping()?;
        let until_then = (job.watchdog.enter(), job.watchdog.hold_permit(permit));
        let writer = self.clone();
        running.spawn_blocking(move || {
            let _until_then = until_then;
            write(&writer)
        });
        while let Some(done) = running.try_join_next() {
            collect(joined(done)?)?;
        }
        Ok(())
    }

    /// Writes the pieces of `range` that `work` names. Called under the canonical guard of the
    /// range.
    pub fn write(&self, range: ByteRange, pieces: &[Piece], work: &Work) -> Result<(), Problem> {
        let FileJob { engine, file, .. } = &self.job;
        let verify = engine.settings.read().verify;
        let read = |run: &stripe::Run, buf: &mut [u8]| {
            let plan = Plan {
                range: run.range,
                size: run.range.end,
                pieces: pieces[run.pieces.clone()].to_vec(),
            };
            file.read(&plan, buf, None)
        };
        engine
            .buffers
            .with(|buffer| stripe::write(range, work, &*self.canonical, buffer, verify, read))?;
        engine.meter.record(work.bytes(), Instant::now());
        Ok(())
    }

    /// Syncs the canonical file, and then has `record` say that what was written is in it.
    pub async fn sync_then(
        &self,
        record: impl FnOnce() -> Result<(), DrainError> + Send + 'static,
    ) -> Result<(), DrainError> {
        let canonical = self.canonical.clone();
        let failed = self.job.canonical_error("syncing");
        let synced = move || {
            canonical.sync().map_err(failed)?;
            record()
        };
        self.job.watched(synced).await?
    }
}

/// Waits for all units that were started, and returns the first error.
pub(super) async fn join_units<T: 'static>(
    running: &mut JoinSet<Result<T, DrainError>>,
    mut collect: impl FnMut(Result<T, DrainError>) -> Result<(), DrainError>,
) -> Result<(), DrainError> {
    let mut ended = Ok(());
    while let Some(done) = running.join_next().await {
        let collected = joined(done).and_then(&mut collect);
        ended = ended.and(collected);
    }
    ended
}
