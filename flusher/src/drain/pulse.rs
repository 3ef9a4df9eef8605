//! Whether a phase of a drain still lives: calls that it waits for, and the permits it holds.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

#[derive(Debug, Default)]
pub(crate) struct Pulse(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Calls into the file system that have not returned.
    waiting: usize,
    /// When one last began or returned.
    beat: Option<Instant>,
    permits: HashMap<u64, OwnedSemaphorePermit>,
    next: u64,
}

impl Pulse {
    pub fn enter(&self) {
        let mut state = self.0.lock();
        state.waiting += 1;
        state.beat = Some(Instant::now());
    }

    pub fn leave(&self) {
        let mut state = self.0.lock();
        state.waiting -= 1;
        state.beat = Some(Instant::now());
    }

    /// Since when nothing has moved although something is waited for, if that is longer than
    /// `patience`.
    pub fn silent_for(&self, patience: Duration) -> Option<Instant> {
        let state = self.0.lock();
        state
            .beat
            .filter(|beat| state.waiting > 0 && beat.elapsed() >= patience)
    }

    pub fn keep(&self, permit: OwnedSemaphorePermit) -> u64 {
        let mut state = self.0.lock();
        state.next += 1;
        let id = state.next;
        state.permits.insert(id, permit);
        id
    }

    pub fn let_go(&self, id: u64) {
        let permit = self.0.lock().permits.remove(&id);
        drop(permit);
    }

    /// What hangs must not keep others from working.
    pub fn give_permits_back(&self) {
        let permits = std::mem::take(&mut self.0.lock().permits);
        drop(permits);
    }
}
