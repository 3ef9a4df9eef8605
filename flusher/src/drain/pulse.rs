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
    /// It hung for too long, and is left to itself.
    aside: bool,
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

    pub fn keep(&self, permit: Option<OwnedSemaphorePermit>) -> u64 {
        let mut state = self.0.lock();
        state.next += 1;
        let id = state.next;
        if let Some(permit) = permit.filter(|_| !state.aside) {
            state.permits.insert(id, permit);
        }
        id
    }

    pub fn let_go(&self, id: u64) {
        let permit = self.0.lock().permits.remove(&id);
        drop(permit);
    }

    /// What hangs must not keep others from working: its permits go back.
    pub fn set_aside(&self) {
        let mut state = self.0.lock();
        state.aside = true;
        let permits = std::mem::take(&mut state.permits);
        drop(state);
        drop(permits);
    }

    pub fn is_aside(&self) -> bool {
        self.0.lock().aside
    }
}
