//! How the data of one file leaves the log: to subfiles if that is wanted, then to its canonical
//! file.
//!
//! ```text
//! log ─▶ subfiles (subfiles/) ─▶ canonical file (lone.rs) ─▶ subfiles removed
//!  └──────────────────────────────────▶ ┘   when no other node uses the file, or by policy
//! ```
//!
//! Each of the two phases has its own order of steps and says what a kill at any of them leaves.
//! The first phase runs first, because it makes room in the log, and it goes on while the second
//! phase runs. A stripe that still has bytes in the log is left to the first phase: no byte is
//! written twice.
//!
//! # Something hangs
//!
//! If an OST hangs, the unit that was on its way is delayed by one deadline and then goes elsewhere
//! (`subfiles/`). If a canonical file hangs, there is no other place for the data. Its phase is
//! then set aside and ends whenever the file system lets it: everything it does late is what it
//! would have done in time. Meanwhile the file gets no second such phase, its new data still goes
//! to subfiles, and `status` says what the drain waits for. When the phase makes progress again,
//! the file's next job waits for its end.

mod canonical_file;
mod job;
mod lone;
mod mirror;
mod phase;
mod publish;
mod round;
mod shared_file;
mod subfiles;
mod term;
mod watchdog;
mod writer;

pub(crate) use job::FileJob;
pub(crate) use phase::Stuck;
pub(crate) use publish::publish;
pub(crate) use subfiles::Pace;

use crate::drain_error::DrainError;
use crate::schedule::{Outcome, Scope};
use crate::settings::Subfiles;
use phase::PROGRESS_TICK;
use shared_file::SharedJob;
use std::sync::Arc;
use subfiles::Moved;
use term::Held;
use tokio::task::{JoinError, JoinHandle};

async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DrainError> {
    joined(tokio::task::spawn_blocking(call).await)
}

/// A panic goes on in the caller; a task that was cancelled means that the runtime is shutting down.
fn joined<T>(result: Result<T, JoinError>) -> Result<T, DrainError> {
    match result.map_err(JoinError::try_into_panic) {
        Ok(value) => Ok(value),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Err(DrainError::Stopping),
    }
}

/// Drains what `scope` allows and returns how that went. Sets and clears the file's sticky error.
pub(crate) async fn drain_file(job: FileJob, scope: Scope) -> Outcome {
    if let Some(shared_files) = job.engine.shared_files.clone() {
        return shared_file::drain_shared(SharedJob { job, shared_files }, scope).await;
    }
    if job.file.is_clean() || job.file.is_unlinked() {
        return Outcome::Clean;
    }
    drain_alone(&job, scope, None).await
}

/// Drains without regard to other nodes: there are none, or none has published anything of the file
/// and this node has its term (`held`). If this is part of a step that was set aside and makes
/// progress again, the step must not wait for itself: `job` has the watchdog of the step.
async fn drain_alone(job: &FileJob, scope: Scope, held: Option<Arc<Held>>) -> Outcome {
    let FileJob { engine, file, .. } = job;
    let to_subfiles = held.is_none() && file.settings().subfiles == Subfiles::Always;
    let moved = match to_subfiles {
        false => Moved::Not(None),
        true => match subfiles::move_out(job, scope, Pace::Limited).await {
            Ok(moved) => moved,
            Err(error) => return error.stick(file),
        },
    };
    if engine.stuck.has_other(file.id(), &job.watchdog) {
        return job.wait_for_phase_aside().await;
    }
    // The log must not wait for a slow canonical file, so bytes are moved to subfiles meanwhile:
    // one such task at a time, and none that outlives this job.
    let mut first_phase: Option<JoinHandle<()>> = None;
    let move_on = || {
        let is_idle = first_phase.as_ref().is_none_or(JoinHandle::is_finished);
        if moved == Moved::Out && is_idle {
            let job = job.clone();
            first_phase = Some(tokio::spawn(async move {
                let moved = subfiles::move_out(&job, scope, Pace::Limited).await;
                if moved.is_err() {
                    tracing::debug!(file = %job.file.id(), "the log is left to the next job");
                }
            }));
        }
    };
    let second_phase = job.with_own_watchdog();
    let aside = job.clone();
    let ended = second_phase.run_phase(
        lone::drain_lone(second_phase.clone(), scope, moved, held),
        move_on,
        |ended| async move {
            let outcome = outcome(&aside, ended);
            retire_subfiles(&aside, outcome).await;
        },
    );
    let ended = ended.await;
    if let Some(first_phase) = first_phase
        && let Err(error) = first_phase.await
    {
        tracing::error!(file = %file.id(), %error, "moving to subfiles broke off");
    }
    let Some(ended) = ended else {
        return Outcome::Failed;
    };
    let outcome = outcome(job, ended);
    retire_subfiles(job, outcome).await;
    outcome
}

/// Turns the result of a phase into the job's outcome, whichever task waited for the phase.
fn outcome(job: &FileJob, ended: Result<Outcome, DrainError>) -> Outcome {
    ended.unwrap_or_else(|error| error.stick(&job.file))
}

/// Retires empty subfiles that the file does not need any more.
async fn retire_subfiles(job: &FileJob, outcome: Outcome) {
    if job.engine.keeper.is_none() || outcome == Outcome::Clean {
        return;
    }
    let file = job.file.clone();
    let done = tokio::task::spawn_blocking(move || {
        if let Err(error) = file.retire_empty_subfiles(layout_index::store::subfile::WASTE) {
            tracing::warn!(file = %file.id(), %error, "empty subfiles stay for now");
        }
    });
    if tokio::time::timeout(PROGRESS_TICK, done).await.is_err() {
        tracing::debug!("the store takes its time");
    }
}
