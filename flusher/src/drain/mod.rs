//! One file's way out of the log: to subfiles where that is wished, then to its canonical file.
//!
//! ```text
//! log ─▶ subfiles (subfiles.rs) ─▶ canonical file (canonical.rs) ─▶ subfiles removed
//!  └──────────────────────────────────▶ ┘   when nobody else writes the file, or by policy
//! ```
//!
//! Each of the two has its own order of steps and says what a kill at any of them leaves. The first
//! comes first, because it makes room in the log, and is looked after while the second goes on. A
//! stripe that still has bytes in the log is left to the first: no byte is written twice.
//!
//! # Something hangs
//!
//! An OST that hangs costs the unit that was on its way a deadline; the unit goes elsewhere
//! (`subfiles/`). A canonical file that hangs cannot be had elsewhere. Its phase is then left to
//! itself and ends whenever the file system lets it: everything it does late is what it would have
//! done in time. Meanwhile the file gets no second one, its new data still goes to subfiles, and
//! `status` says what is waited for. When the phase has come to life again, the file's next job
//! waits for its end.

mod canonical;
mod gated;
mod mirror;
mod pulse;
mod round;
pub(crate) mod shared;
mod subfiles;

use crate::engine::Shared;
use crate::schedule::{Outcome, Scope};
use crate::settings::Subfiles;
use crate::trouble::{self, Trouble};
use layout_index::File;
pub(crate) use pulse::Pulse;
use shared::Held;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use subfiles::Moved;
pub(crate) use subfiles::Pace;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinError, JoinSet};

/// How often a phase is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// The runtime is going away; nothing is wrong with the file.
struct Stopping;

pub(crate) enum Halt {
    Trouble(Trouble),
    Stopping,
}

impl From<Stopping> for Halt {
    fn from(_: Stopping) -> Self {
        Halt::Stopping
    }
}

enum Attempt {
    Clean,
    Dirty,
    /// See [`Outcome::Passed`].
    Passed,
    Damaged(Trouble),
}

async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stopping> {
    joined(tokio::task::spawn_blocking(f).await)
}

/// A call that may hang with the file system.
async fn watched<T: Send + 'static>(
    pulse: &Arc<Pulse>,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stopping> {
    let _waiting = pulse.enter();
    blocking(f).await
}

/// Waits for one of the drain's places. A phase that was set aside gets none: it does one thing at
/// a time, and nothing before all that hung has come back.
async fn permit<T: 'static>(
    shared: &Shared,
    pulse: &Pulse,
    running: &mut JoinSet<T>,
    mut take: impl FnMut(Result<T, JoinError>) -> Result<(), Halt>,
) -> Result<Option<OwnedSemaphorePermit>, Halt> {
    let permit = shared.permits.clone().acquire_owned();
    let permit = permit.await.map_err(|_| Halt::Stopping)?;
    if !pulse.is_aside() {
        return Ok(Some(permit));
    }
    drop(permit);
    while let Some(done) = running.join_next().await {
        take(done)?;
    }
    Ok(None)
}

fn joined<T>(result: Result<T, JoinError>) -> Result<T, Stopping> {
    match result {
        Ok(value) => Ok(value),
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Stopping),
        },
    }
}

/// Drains what `scope` allows and says how it went. Sets and clears the file's sticky error.
pub(crate) async fn file(shared: Arc<Shared>, file: Arc<File>, scope: Scope) -> Outcome {
    if shared.together.is_some() {
        return shared::file(shared, file, scope).await;
    }
    if file.is_clean() || file.is_unlinked() {
        return Outcome::Clean;
    }
    let name = trouble::name_of(&file);
    by_itself(&shared, &file, &name, scope, None, None).await
}

/// Without a thought for other nodes: there are none, or none has published anything of the file and
/// this one has its term. `step` is the one that this is part of: it does not wait for itself if it was
/// left to itself and has come to life again.
async fn by_itself(
    shared: &Arc<Shared>,
    file: &Arc<File>,
    name: &Arc<str>,
    scope: Scope,
    held: Option<Arc<Held>>,
    step: Option<&Arc<Pulse>>,
) -> Outcome {
    let to_subfiles = held.is_none() && shared.subfiles_of(file) == Subfiles::Always;
    let moved = match to_subfiles {
        false => Moved::Not(None),
        true => match subfiles::move_out(shared, file, name, scope, Pace::Limited).await {
            Ok(moved) => moved,
            Err(halt) => return outcome(file, scope, Err(halt)),
        },
    };
    if shared.stuck.has_other(file.id(), step) {
        return rejoin(shared, file).await;
    }
    let pulse = Arc::new(Pulse::default());
    let second = canonical::attempt(
        shared.clone(),
        file.clone(),
        name.clone(),
        scope,
        moved,
        held.clone(),
        pulse.clone(),
    );
    let mut second = tokio::spawn(second);
    // The log must not wait for a slow canonical file. One at a time, and none beyond this job.
    let mut first = None;
    let patience = shared.patience();
    let outcome = loop {
        tokio::select! {
            ended = &mut second => {
                let ended = joined(ended).unwrap_or(Err(Halt::Stopping));
                break outcome(file, scope, ended);
            }
            () = tokio::time::sleep(LOOK) => {}
        }
        if pulse.silent_for(patience).is_some() {
            let (there, this) = (shared.clone(), file.clone());
            leave_to_itself(shared, file, name, pulse, async move {
                let _held = held;
                let ended = joined(second.await).unwrap_or(Err(Halt::Stopping));
                let outcome = outcome(&this, scope, ended);
                tidy(&there, &this, outcome).await;
            });
            break Outcome::Failed;
        }
        if moved == Moved::Out
            && first
                .as_ref()
                .is_none_or(tokio::task::JoinHandle::is_finished)
        {
            let (shared, file, name) = (shared.clone(), file.clone(), name.clone());
            first = Some(tokio::spawn(async move {
                if subfiles::move_out(&shared, &file, &name, scope, Pace::Limited)
                    .await
                    .is_err()
                {
                    tracing::debug!(file = %file.id(), "the log is left to the next job");
                }
            }));
        }
    };
    if let Some(first) = first
        && let Err(error) = first.await
    {
        tracing::error!(file = %file.id(), %error, "moving to subfiles broke off");
    }
    if !shared.stuck.has_other(file.id(), step) {
        tidy(shared, file, outcome).await;
    }
    outcome
}

/// What hangs must not keep others from working. `rest` is what there is to do when it ends.
fn leave_to_itself(
    shared: &Arc<Shared>,
    file: &Arc<File>,
    name: &str,
    pulse: Arc<Pulse>,
    rest: impl Future<Output = ()> + Send + 'static,
) {
    let patience = shared.patience();
    pulse.set_aside();
    shared.stuck.add(file.id(), pulse.clone());
    tracing::warn!(file = %file.id(), name = %name, "the canonical file, or a target that has data of it, has not answered for {patience:?}; the drain of it goes on when it does");
    let (shared, id) = (shared.clone(), file.id());
    tokio::spawn(async move {
        rest.await;
        // First, so that nobody finds it failed and not waited for.
        shared.schedule.lock().relieve(id);
        shared.stuck.remove(id, &pulse);
        shared.wake(id);
    });
}

/// Waits for a phase that was left to itself, as long as it lives.
async fn rejoin(shared: &Shared, file: &File) -> Outcome {
    while shared.stuck.contains(file.id()) {
        let silent = shared.stuck.silent_for(file.id(), shared.patience());
        if silent.is_some() {
            return Outcome::Failed;
        }
        if shared.stopping.load(Ordering::Acquire) {
            return Outcome::Stopped;
        }
        shared.sleep(LOOK).await;
    }
    Outcome::Dirty
}

/// What the file does not need any more.
async fn tidy(shared: &Arc<Shared>, file: &Arc<File>, outcome: Outcome) {
    if shared.targets.is_none() || outcome == Outcome::Clean {
        return;
    }
    let file = file.clone();
    let done = tokio::task::spawn_blocking(move || {
        if let Err(error) = file.retire_empty_subfiles(layout_index::subfile::WASTE) {
            tracing::warn!(file = %file.id(), %error, "empty subfiles stay for now");
        }
    });
    if tokio::time::timeout(LOOK, done).await.is_err() {
        tracing::debug!("the store takes its time");
    }
}

fn outcome(file: &File, scope: Scope, ended: Result<Attempt, Halt>) -> Outcome {
    match ended {
        Ok(Attempt::Clean) => Outcome::Clean,
        Ok(Attempt::Dirty) => {
            if scope == Scope::Everything {
                file.clear_error();
            }
            Outcome::Dirty
        }
        Ok(Attempt::Passed) => {
            file.clear_error();
            Outcome::Passed
        }
        Ok(Attempt::Damaged(trouble)) => {
            trouble::stick(file, &trouble);
            Outcome::Damaged
        }
        Err(Halt::Trouble(trouble)) => {
            trouble::stick(file, &trouble);
            if trouble.damaged {
                Outcome::Damaged
            } else {
                Outcome::Failed
            }
        }
        Err(Halt::Stopping) => Outcome::Stopped,
    }
}
