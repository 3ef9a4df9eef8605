//! The file that a job drains, with what every step of the job needs.

use super::watchdog::Watchdog;
use super::{blocking, joined};
use crate::drain_error::{DrainError, name_of};
use crate::engine::EngineState;
use layout_index::{File, StoreError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

#[derive(Clone)]
pub(crate) struct FileJob {
    pub engine: Arc<EngineState>,
    pub file: Arc<File>,
    /// For error messages.
    pub name: Arc<str>,
    /// Counts the calls of this job that may hang with the file system.
    pub watchdog: Arc<Watchdog>,
}

impl FileJob {
    pub fn new(engine: &Arc<EngineState>, file: &Arc<File>) -> FileJob {
        FileJob {
            engine: engine.clone(),
            name: name_of(file),
            file: file.clone(),
            watchdog: Arc::default(),
        }
    }

    /// The same file, for a phase that is set aside by itself if it hangs.
    pub fn with_own_watchdog(&self) -> FileJob {
        FileJob {
            watchdog: Arc::default(),
            ..self.clone()
        }
    }

    /// Runs a call that may hang with the file system. The watchdog counts it until it returns.
    pub async fn watched<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, DrainError> {
        let _waiting = self.watchdog.enter();
        blocking(call).await
    }

    /// Waits for one of the drain's permits. A phase that was set aside gets none: it does one
    /// thing at a time, and starts nothing before every call that hung has come back.
    pub async fn permit<T: 'static>(
        &self,
        running: &mut JoinSet<Result<T, DrainError>>,
        collect: &mut impl FnMut(Result<T, DrainError>) -> Result<(), DrainError>,
    ) -> Result<Option<OwnedSemaphorePermit>, DrainError> {
        let permit = self.engine.permits.clone().acquire_owned();
        let permit = permit.await.map_err(|_| DrainError::Stopping)?;
        if !self.watchdog.is_aside() {
            return Ok(Some(permit));
        }
        drop(permit);
        while let Some(done) = running.join_next().await {
            collect(joined(done)?)?;
        }
        Ok(None)
    }

    pub fn check_stopping(&self) -> Result<(), DrainError> {
        match self.engine.stopping.load(Ordering::Acquire) {
            true => Err(DrainError::Stopping),
            false => Ok(()),
        }
    }

    pub fn store_error(&self, op: &'static str) -> impl Fn(StoreError) -> DrainError + use<> {
        let name = self.name.clone();
        move |source| DrainError::Store {
            name: name.clone(),
            op,
            source: Box::new(source),
        }
    }

    pub fn canonical_error(&self, op: &'static str) -> impl Fn(io::Error) -> DrainError + use<> {
        let name = self.name.clone();
        move |source| DrainError::Canonical {
            name: name.clone(),
            op,
            source,
        }
    }

    pub fn lease_expired(&self) -> DrainError {
        DrainError::LeaseExpired {
            name: self.name.clone(),
        }
    }
}
