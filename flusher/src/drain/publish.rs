//! Publishing: puts what was written to a file where other nodes see it.

use super::job::FileJob;
use super::shared_file::{OTHERS_WORK_WAIT, SharedJob, drain_alone_and_tell};
use super::subfiles::{self, Moved, Pace};
use super::term::{Held, take_term};
use crate::drain_error::DrainError;
use crate::engine::EngineState;
use crate::schedule::{Outcome, Scope};
use layout_index::sharing::peers::INLINE;
use layout_index::{File, StoreError};
use std::sync::Arc;
use std::time::Instant;

/// After so many passes a writer that writes faster than its bytes can be moved is left to the next
/// job.
const MAX_PUBLISH_PASSES: usize = 8;

/// Publishes everything that was written until now, so that other nodes see it.
pub(crate) async fn publish(
    engine: &Arc<EngineState>,
    file: &Arc<File>,
    scope: Scope,
    pace: Pace,
) -> Result<(), DrainError> {
    let Some(shared_files) = engine.shared_files.clone() else {
        return Ok(());
    };
    shared_files.add(file, false);
    let _hurry = (pace == Pace::Full).then(|| engine.hurry(file.id()));
    let _egress = shared_files.egress_lock(file).await;
    let job = FileJob::new(engine, file);
    publish_locked(&SharedJob { job, shared_files }, scope, pace, None).await
}

/// The same for a caller that already has the lock of the file's way out of the log, and may
/// have the file's term.
pub(super) async fn publish_locked(
    job: &SharedJob,
    scope: Scope,
    pace: Pace,
    held: Option<&Arc<Held>>,
) -> Result<(), DrainError> {
    let mut too_large = false;
    let mut target_errno = None;
    for _ in 0..MAX_PUBLISH_PASSES {
        let moved = match too_large || job.file.in_log() > INLINE {
            true => Some(subfiles::move_out(job, scope, pace).await?),
            false => None,
        };
        let published = job.with_peers("publishing", |job| {
            let ask = || job.engine.canonicals.stat_canonical(&job.file);
            match job.shared_files.peers.publish(&job.file, &ask) {
                // The next drain of the file drops what is left of it.
                Err(StoreError::Gone(_)) => Ok(true),
                other => other,
            }
        });
        if published.await? {
            return Ok(());
        }
        match moved {
            // The bytes that are left were written after this call began.
            Some(Moved::Out) => return Ok(()),
            // There were few bytes, and then another thread of this node made them too many. All of
            // them are still in the log, including those that were there before.
            None => {
                too_large = true;
                continue;
            }
            Some(Moved::Not(errno)) => target_errno = errno.or(target_errno),
        }
        if drain_directly(job, held).await? {
            return Ok(());
        }
    }
    // Prefer the file's own drain error: it is more specific.
    Err(match job.file.error() {
        Some(error) => DrainError::Earlier(error),
        None => DrainError::NoTarget {
            name: job.name.clone(),
            errno: target_errno,
        },
    })
}

/// Called if no target takes the data, or the store is too full to record where it went. If no
/// other node has published anything, the data goes straight to the canonical file. True if that
/// file has everything.
async fn drain_directly(job: &SharedJob, held: Option<&Arc<Held>>) -> Result<bool, DrainError> {
    let deadline = Instant::now() + job.engine.patience();
    while Instant::now() < deadline && !job.file.is_clean() {
        let taken = match held {
            Some(held) => Some(held.clone()),
            None => take_term(job).await?,
        };
        // A job of this file may have the term. It goes on as fast as it can now.
        let Some(held) = taken else {
            job.engine.sleep(OTHERS_WORK_WAIT).await;
            continue;
        };
        if !job.refresh_view().await? || job.file.has_published() {
            return Ok(false);
        }
        let outcome = drain_alone_and_tell(job, Scope::Everything, held).await?;
        return Ok(outcome == Outcome::Clean);
    }
    Ok(job.file.is_clean())
}
