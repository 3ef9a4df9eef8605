//! What a mount asks of the drain for the sake of other nodes. Everything here waits, and may not be
//! called from the drain's own threads.

use crate::schedule::Scope;
use crate::settings::Policy;
use crate::{Flusher, Selection, Verdict, drain};
use layout_index::{File, FileId, StickyError, StoreError};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Flusher {
    /// Puts everything that was written to the file until now where other nodes see it, and waits
    /// for that. Not from the drain's own threads.
    pub fn publish(&self, file: &Arc<File>) -> Result<(), StickyError> {
        let Some(runtime) = self.runtime.lock().as_ref().map(|r| r.handle().clone()) else {
            return Err(stopped());
        };
        let (shared, file) = (self.shared.clone(), file.clone());
        let (done, ended) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let published =
                drain::shared::publish(&shared, &file, Scope::Everything, drain::Pace::Full).await;
            match &published {
                Ok(()) => shared.published(file.id()),
                // Its drain may be what makes room for it.
                Err(_) => shared.wake(file.id()),
            }
            let said = match published {
                Ok(()) => Ok(()),
                Err(drain::Halt::Trouble(trouble)) => Err(StickyError {
                    errno: trouble.errno,
                    message: trouble.message,
                }),
                Err(drain::Halt::Stopping) => Err(stopped()),
            };
            if done.send(said).is_err() {
                tracing::trace!("nobody waits for a publication any more");
            }
        });
        ended.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// Waits until what was announced of the file has come, whichever way it takes; no longer than `goes_on`
    /// says yes.
    pub fn deliver(
        &self,
        file: &Arc<File>,
        deadline: Instant,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), StickyError> {
        let Some(together) = &self.shared.together else {
            return Ok(());
        };
        if self.shared.policy_of(file) == Policy::Never || self.shared.is_restless(file.id()) {
            return self.publish(file);
        }
        self.shared.wake(file.id());
        let mut schedule = self.shared.schedule.lock();
        while together.peers.owes(file) && Instant::now() < deadline {
            if !MutexGuard::unlocked(&mut schedule, goes_on) {
                return Err(given_up());
            }
            let next = Instant::now() + Duration::from_millis(10);
            self.shared.job_ended.wait_until(&mut schedule, next);
        }
        drop(schedule);
        match together.peers.owes(file) {
            false => Ok(()),
            true => self.publish(file),
        }
    }

    /// The file was closed and the rest is to follow: others wait for it, and may ask to hurry.
    pub fn owes(&self, file: &Arc<File>) {
        if let Some(together) = &self.shared.together {
            together.add(file, false);
            self.shared.wake(file.id());
        }
    }

    /// Files that the drain has something to do with.
    pub fn files(&self) -> Vec<Arc<File>> {
        self.shared.dirty_files()
    }

    /// Somebody wants this file complete: what other nodes have published of it is drained as well.
    pub fn concern(&self, id: FileId) -> Result<(), StoreError> {
        let Some(together) = &self.shared.together else {
            return Ok(());
        };
        let file = self.shared.store.file(id);
        let ask = || self.shared.canonicals.look(&file);
        together.peers.look_at(&file, &ask)?;
        if !file.is_settled() {
            together.add(&file, true);
        }
        Ok(())
    }

    /// Drains all that any node has published of the file, and what this one has not, and waits
    /// until the canonical file is the whole truth, or `goes_on` says no.
    pub fn settle(&self, file: &Arc<File>, deadline: Instant, goes_on: &dyn Fn() -> bool) -> bool {
        if let Some(together) = &self.shared.together {
            together.add(file, true);
        }
        let handle = self.drain(Selection::Files(vec![file.id()]));
        let drained = handle.wait_with(Some(deadline), |_| goes_on());
        drained == Verdict::Drained && file.is_settled()
    }
}

fn given_up() -> StickyError {
    StickyError {
        errno: libc::EINTR,
        message: "the caller is gone".to_owned(),
    }
}

fn stopped() -> StickyError {
    StickyError {
        errno: libc::EIO,
        message: "the daemon is stopping; the data stays in the store".to_owned(),
    }
}
