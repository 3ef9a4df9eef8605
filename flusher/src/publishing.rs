//! What a mount asks of the drain for the sake of other nodes. All functions here that wait must
//! not be called from the drain's own threads.

use crate::drain_error::DrainError;
use crate::schedule::Scope;
use crate::settings::Policy;
use crate::{Flusher, Selection, Verdict, drain};
use layout_index::{File, FileId, Publisher, StickyError, StoreError};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Publisher for Flusher {
    fn publish(&self, file: &Arc<File>) -> Result<(), StickyError> {
        let Some(runtime) = self.runtime.lock().as_ref().map(|r| r.handle().clone()) else {
            return Err(stopped());
        };
        let (engine, file) = (self.engine.clone(), file.clone());
        let (done, ended) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let published =
                drain::publish(&engine, &file, Scope::Everything, drain::Pace::Full).await;
            match &published {
                Ok(()) => engine.published(file.id()),
                // The drain of the file may be what makes room for the publication.
                Err(_) => engine.wake(file.id()),
            }
            let said = published.map_err(|error| error.sticky());
            if done.send(said).is_err() {
                tracing::trace!("the caller of a publication is gone");
            }
        });
        ended.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// Publishes the file itself if the drain would not do so soon, or has not done so in time.
    fn wait_fulfilled(
        &self,
        file: &Arc<File>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), StickyError> {
        let Some(shared_files) = &self.engine.shared_files else {
            return Ok(());
        };
        let deadline = Instant::now() + shared_files.peers.patience(file);
        if file.settings().drain == Policy::Never || self.engine.is_published_often(file.id()) {
            return self.publish(file);
        }
        self.engine.wake(file.id());
        let mut schedule = self.engine.schedule.lock();
        while shared_files.peers.has_pending(file) && Instant::now() < deadline {
            if !MutexGuard::unlocked(&mut schedule, goes_on) {
                return Err(given_up());
            }
            let next = Instant::now() + Duration::from_millis(10);
            self.engine.job_ended.wait_until(&mut schedule, next);
        }
        drop(schedule);
        match shared_files.peers.has_pending(file) {
            false => Ok(()),
            true => self.publish(file),
        }
    }

    fn request_publish(&self, file: &Arc<File>) {
        if let Some(shared_files) = &self.engine.shared_files {
            shared_files.add(file, false);
            self.engine.wake(file.id());
        }
    }

    fn drop_published(&self, file: &Arc<File>) {
        let Some(shared_files) = &self.engine.shared_files else {
            return;
        };
        if shared_files.peers.has_part(file) {
            shared_files.add(file, false);
            self.engine.request([file.id()]);
        } else {
            shared_files.remove_idle(file);
        }
    }

    fn drain_published(&self, file: &Arc<File>, goes_on: &dyn Fn() -> bool) -> bool {
        let shared_files = self.engine.shared_files.as_ref();
        let patience = shared_files.map(|it| it.peers.patience(file));
        self.drain_published_until(file, patience.map(|it| Instant::now() + it), goes_on)
    }
}

impl Flusher {
    /// Returns the files for which the drain has something to do.
    pub fn files(&self) -> Vec<Arc<File>> {
        self.engine.dirty_files()
    }

    /// Called when a user wants this file complete: what other nodes have published of it is then
    /// drained as well.
    pub fn concern(&self, id: FileId) -> Result<(), StoreError> {
        let Some(shared_files) = &self.engine.shared_files else {
            return Ok(());
        };
        let file = self.engine.store.file(id);
        let ask = || self.engine.canonicals.stat_canonical(&file);
        shared_files.peers.refresh_now(&file, &ask)?;
        if !file.is_settled() {
            shared_files.add(&file, true);
        }
        Ok(())
    }

    /// [`Publisher::drain_published`] with a deadline of the caller's.
    pub fn drain_published_until(
        &self,
        file: &Arc<File>,
        deadline: Option<Instant>,
        goes_on: &dyn Fn() -> bool,
    ) -> bool {
        if let Some(shared_files) = &self.engine.shared_files {
            shared_files.add(file, true);
        }
        let handle = self.drain(Selection::Files(vec![file.id()]));
        let drained = handle.wait_with(deadline, |_| goes_on());
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
    DrainError::Stopping.sticky()
}
