//! A file that other nodes may also use.
//!
//! ```text
//!             ┌─ no other node has published, and this node has the term ─▶ straight from the log (alone)
//! unpublished ┤
//!             └─ otherwise ─▶ subfiles ─▶ published ─▶ round: domains ─▶ canonical file ─▶ base
//! ```
//!
//! `docs/decisions/0008-many-nodes.md` explains terms, leases and what a kill at any step leaves.
//! Nothing is written to the canonical file without checking the term right before it
//! ([`super::canonical_file::Gate`]).

use super::job::FileJob;
use super::publish::publish_locked;
use super::round::{self, Round};
use super::subfiles::Pace;
use super::term::{Held, take_term};
use super::{blocking, drain_alone, outcome};
use crate::drain_error::DrainError;
use crate::schedule::{Outcome, Scope};
use crate::settings::Subfiles;
use crate::shared_files::SharedFiles;
use layout_index::sharing::peers::Pending;
use layout_index::sharing::shared_dir::SharedDir;
use layout_index::{StoreError, Wait};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long a job waits before it ends if other nodes are working on the file.
pub(super) const OTHERS_WORK_WAIT: Duration = Duration::from_millis(100);

/// A job whose file other nodes may also use.
#[derive(Clone)]
pub(super) struct SharedJob {
    pub job: FileJob,
    pub shared_files: Arc<SharedFiles>,
}

impl std::ops::Deref for SharedJob {
    type Target = FileJob;

    fn deref(&self) -> &FileJob {
        &self.job
    }
}

impl SharedJob {
    pub fn shared_dir(&self) -> &SharedDir {
        self.shared_files.peers.shared_dir()
    }

    pub fn shared_dir_error(&self) -> impl Fn(io::Error) -> DrainError + use<> {
        let name = self.name.clone();
        move |source| DrainError::SharedDir {
            name: name.clone(),
            source,
        }
    }

    /// Runs a call about the file that waits for the store or the shared directory.
    pub async fn with_peers<T: Send + 'static>(
        &self,
        op: &'static str,
        call: impl FnOnce(&SharedJob) -> layout_index::Result<T> + Send + 'static,
    ) -> Result<T, DrainError> {
        let this = self.clone();
        let done = blocking(move || call(&this)).await?;
        done.map_err(self.store_error(op))
    }

    pub async fn with_shared_dir<T: Send + 'static>(
        &self,
        call: impl FnOnce(&SharedDir) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DrainError> {
        let this = self.clone();
        let done = blocking(move || call(this.shared_dir())).await?;
        done.map_err(self.shared_dir_error())
    }

    /// Refreshes the view. False if the canonical file is gone.
    pub async fn refresh_view(&self) -> Result<bool, DrainError> {
        let _waiting = self.watchdog.enter();
        let op = "looking at what nodes say of";
        self.with_peers(op, |job| {
            let ask = || job.engine.canonicals.stat_canonical(&job.file);
            match job.shared_files.peers.refresh(&job.file, &ask, Wait::No) {
                Err(StoreError::Gone(_)) => Ok(false),
                other => other.map(|_| true),
            }
        })
        .await
    }

    pub async fn fulfil_pending(&self, pending: Pending) -> Result<(), DrainError> {
        let op = "telling other nodes of";
        let fulfil = |job: &SharedJob| job.shared_files.peers.fulfil_pending(&job.file, pending);
        self.with_peers(op, fulfil).await
    }

    /// Drops the data of the file, because its canonical file is certainly gone.
    async fn discard_gone(&self) -> Result<Outcome, DrainError> {
        self.with_peers("dropping the data of", |job| {
            job.file.discard()?;
            job.shared_files.peers.discard(&job.file)
        })
        .await?;
        self.shared_files.withdraw_request(&self.file);
        tracing::info!(file = %self.file.id(), name = %self.name, "the canonical file is gone: what was not drained was dropped");
        self.engine.canonicals.file_clean(self.file.id());
        Ok(Outcome::Clean)
    }
}

pub(super) async fn drain_shared(job: SharedJob, scope: Scope) -> Outcome {
    let shared_files = &job.shared_files;
    if job.file.is_unlinked() && !shared_files.peers.has_pending(&job.file) {
        shared_files.remove_idle(&job.file);
        return Outcome::Clean;
    }
    shared_files.add(&job.file, false);
    if job.engine.stuck.contains(job.file.id()) {
        let ended = run_beside_phase_aside(&job, scope).await;
        return job_outcome(&job, ended);
    }
    let (step, aside) = (job.clone(), job.clone());
    let ended = job.run_phase(
        async move { run_step(&step, scope).await },
        || {},
        |ended| async move {
            job_outcome(&aside, ended);
        },
    );
    job_outcome(&job, ended.await.unwrap_or(Ok(Outcome::Failed)))
}

/// Turns the result of a step into the job's outcome, whichever task waited for the step.
fn job_outcome(job: &SharedJob, ended: Result<Outcome, DrainError>) -> Outcome {
    match outcome(job, ended) {
        Outcome::Clean | Outcome::Dirty | Outcome::Passed
            if job.shared_files.remove_idle(&job.file) =>
        {
            job.file.clear_error();
            job.engine.canonicals.file_clean(job.file.id());
            Outcome::Clean
        }
        Outcome::Clean => Outcome::Passed,
        other => other,
    }
}

/// Runs while a step of the file hangs: new data is still published, unless publishing is what
/// hangs.
async fn run_beside_phase_aside(job: &SharedJob, scope: Scope) -> Result<Outcome, DrainError> {
    if !job.file.is_clean() && !job.file.is_unlinked() {
        let publish = async {
            let _egress = job.shared_files.egress_lock(&job.file).await;
            publish_locked(job, scope, Pace::Limited, None).await
        };
        match tokio::time::timeout(job.engine.patience(), publish).await {
            Ok(published) => published?,
            Err(_) => return Ok(Outcome::Failed),
        }
    }
    Ok(job.wait_for_phase_aside().await)
}

async fn run_step(job: &SharedJob, scope: Scope) -> Result<Outcome, DrainError> {
    let FileJob { engine, file, .. } = &job.job;
    let peers = &job.shared_files.peers;
    if file.is_unlinked() {
        // Its data is dropped when no process of this node has it open any more. Until then other
        // nodes must not wait for it.
        job.fulfil_pending(peers.pending(file)).await?;
        return Ok(Outcome::Clean);
    }
    // This lock is taken before the term, because the task that holds the lock may need the term.
    let egress_lock = job.shared_files.egress_lock(file).await;
    let held = take_term(job).await?;
    if !job.refresh_view().await? {
        return job.discard_gone().await;
    }
    // Targets may refuse data because they are full of what is published. Then the round below
    // makes room.
    let mut unpublished = None;
    if !file.is_clean() && !file.is_unlinked() {
        let alone = !file.has_published() && file.settings().subfiles != Subfiles::Always;
        if let Some(held) = held.as_ref().filter(|_| alone) {
            let outcome = drain_alone_and_tell(job, scope, held.clone()).await?;
            let others_published = file.has_published();
            let goes_on = matches!(outcome, Outcome::Dirty | Outcome::Passed);
            if !(goes_on && others_published) {
                return Ok(outcome);
            }
        }
        match publish_locked(job, scope, Pace::Limited, held.as_ref()).await {
            Err(DrainError::Stopping) => return Err(DrainError::Stopping),
            published => unpublished = published.err(),
        }
    } else if peers.has_pending(file) {
        job.fulfil_pending(peers.pending(file)).await?;
    }
    drop(egress_lock);
    let had_some = file.has_published();
    let round = round::run_round(job, held.clone()).await?;
    let reclaim = |job: &SharedJob| job.shared_files.peers.reclaim(&job.file).map(drop);
    job.with_peers("reclaiming what was published of", reclaim)
        .await?;
    if held.is_none() && !peers.has_part(file) {
        // The last node that had a part in the file cleans up: the holder of a term does so when
        // the term ends.
        drop(take_term(job).await?);
    }
    let made_room = had_some && round != Round::Others;
    let is_all = unpublished.is_none() && scope == Scope::Everything;
    if let Some(error) = unpublished.filter(|_| !made_room) {
        return Err(error);
    }
    if round == Round::Over && is_all {
        return Ok(Outcome::Passed);
    }
    if round == Round::Others {
        engine.sleep(OTHERS_WORK_WAIT).await;
    }
    Ok(Outcome::Dirty)
}

/// Drains straight from the log, because no other node has published anything, and then fulfils
/// what had been announced before.
pub(super) async fn drain_alone_and_tell(
    job: &SharedJob,
    scope: Scope,
    held: Arc<Held>,
) -> Result<Outcome, DrainError> {
    let pending = job.shared_files.peers.pending(&job.file);
    let outcome = drain_alone(job, scope, Some(held)).await;
    if outcome == Outcome::Clean {
        job.fulfil_pending(pending).await?;
    }
    Ok(outcome)
}
