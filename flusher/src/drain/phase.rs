//! A phase of a job that may hang with the file system, and files of which such a phase was set
//! aside.

use super::job::FileJob;
use super::joined;
use super::watchdog::Watchdog;
use crate::drain_error::DrainError;
use crate::schedule::Outcome;
use layout_index::FileId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a phase is checked for progress.
pub(super) const PROGRESS_TICK: Duration = Duration::from_millis(200);

type Ended = Result<Outcome, DrainError>;

/// Files whose drain into the canonical file was set aside because it hung. A file has at most one
/// such phase, and gets no other until that phase ends, even if it makes progress again.
#[derive(Debug, Default)]
pub(crate) struct Stuck(Mutex<HashMap<FileId, Arc<Watchdog>>>);

impl Stuck {
    pub fn add(&self, id: FileId, watchdog: Arc<Watchdog>) {
        self.0.lock().insert(id, watchdog);
    }

    /// Removes the phase, which has ended. The entry stays if it is of another phase that this one
    /// started and that may still hang.
    pub fn remove(&self, id: FileId, watchdog: &Arc<Watchdog>) {
        let mut all = self.0.lock();
        if all
            .get(&id)
            .is_some_and(|stuck| Arc::ptr_eq(stuck, watchdog))
        {
            all.remove(&id);
        }
    }

    pub fn contains(&self, id: FileId) -> bool {
        self.0.lock().contains_key(&id)
    }

    /// True if the file has a phase that was set aside, other than `own`.
    pub fn has_other(&self, id: FileId, own: &Arc<Watchdog>) -> bool {
        let all = self.0.lock();
        all.get(&id).is_some_and(|stuck| !Arc::ptr_eq(stuck, own))
    }

    /// Returns since when the file's phase has not answered; `None` if it has none or the phase
    /// makes progress.
    pub fn silent_for(&self, id: FileId, patience: Duration) -> Option<Instant> {
        self.0.lock().get(&id)?.silent_for(patience)
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// A phase that was set aside. When it has ended, or its task panicked, the file is no longer
/// counted as one that hangs.
struct Aside(FileJob);

impl Drop for Aside {
    fn drop(&mut self) {
        let FileJob {
            engine,
            file,
            watchdog,
            ..
        } = &self.0;
        // This comes first, so that no waiter finds that the file has failed and that nothing of it
        // hangs.
        engine.schedule.lock().relieve(file.id());
        engine.stuck.remove(file.id(), watchdog);
        engine.wake(file.id());
    }
}

impl FileJob {
    /// Runs a phase and waits for it as long as it makes progress. A phase that hangs is set aside,
    /// so that it does not keep other files from being drained: this returns `None`, and `rest` is
    /// called when the phase has ended. Calls `tick` from time to time.
    pub async fn run_phase<F: Future<Output = ()> + Send + 'static>(
        &self,
        phase: impl Future<Output = Ended> + Send + 'static,
        mut tick: impl FnMut(),
        rest: impl FnOnce(Ended) -> F + Send + 'static,
    ) -> Option<Ended> {
        let mut running = tokio::spawn(phase);
        let patience = self.engine.patience();
        loop {
            tokio::select! {
                ended = &mut running => return Some(joined(ended).and_then(|ended| ended)),
                () = tokio::time::sleep(PROGRESS_TICK) => {}
            }
            if self.watchdog.silent_for(patience).is_some() {
                break;
            }
            tick();
        }
        let id = self.file.id();
        self.watchdog.set_aside();
        self.engine.stuck.add(id, self.watchdog.clone());
        tracing::warn!(file = %id, name = %self.name, "the canonical file, or a target that has data of it, has not answered for {patience:?}; the drain of it goes on when it does");
        let aside = Aside(self.clone());
        tokio::spawn(async move {
            let _aside = aside;
            let ended = running.await.unwrap_or_else(|error| {
                tracing::error!(file = %id, %error, "a step of its drain broke off");
                Err(DrainError::Stopping)
            });
            rest(ended).await;
        });
        None
    }

    /// Waits for a phase that was set aside, as long as it makes progress.
    pub async fn wait_for_phase_aside(&self) -> Outcome {
        let (engine, id) = (&self.engine, self.file.id());
        while engine.stuck.contains(id) {
            if engine.stuck.silent_for(id, engine.patience()).is_some() {
                return Outcome::Failed;
            }
            if self.check_stopping().is_err() {
                return Outcome::Stopped;
            }
            engine.sleep(PROGRESS_TICK).await;
        }
        Outcome::Dirty
    }
}
