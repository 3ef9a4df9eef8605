//! Watches whether a phase of a drain makes progress: the calls that it waits for, and the permits
//! that it holds.
//!
//! Calls and permits are both tracked by guards: a call that panics, or a task that is dropped in the
//! middle, has ended as much as one that returned. Otherwise the phase would look silent for ever,
//! and its permit would be lost.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

#[derive(Debug, Default)]
pub(crate) struct Watchdog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Calls into the file system that have not returned.
    waiting: usize,
    /// When such a call last began or returned.
    beat: Option<Instant>,
    /// The phase hung for too long and was set aside.
    aside: bool,
    permits: HashMap<u64, OwnedSemaphorePermit>,
    next: u64,
}

impl Watchdog {
    /// Notes that a call into the file system begins. The call ends when the returned guard is
    /// dropped.
    pub fn enter(self: &Arc<Self>) -> Waiting {
        self.beat(1);
        Waiting(self.clone())
    }

    fn beat(&self, more: isize) {
        let mut state = self.0.lock();
        state.waiting = state.waiting.saturating_add_signed(more);
        state.beat = Some(Instant::now());
    }

    /// Returns since when no call has begun or returned although one is waited for, if that is at
    /// least `patience` ago.
    pub fn silent_for(&self, patience: Duration) -> Option<Instant> {
        let state = self.0.lock();
        state
            .beat
            .filter(|beat| state.waiting > 0 && beat.elapsed() >= patience)
    }

    /// Holds the permit until the returned guard is dropped or the phase is set aside.
    pub fn hold_permit(self: &Arc<Self>, permit: Option<OwnedSemaphorePermit>) -> Permit {
        let mut state = self.0.lock();
        state.next += 1;
        let id = state.next;
        if let Some(permit) = permit.filter(|_| !state.aside) {
            state.permits.insert(id, permit);
        }
        drop(state);
        Permit(self.clone(), id)
    }

    /// Marks the phase as set aside and returns its permits: a phase that hangs must not keep
    /// others from working.
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

/// A call that has not returned.
#[must_use]
pub(crate) struct Waiting(Arc<Watchdog>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.beat(-1);
    }
}

/// A permit that the phase holds.
#[must_use]
pub(crate) struct Permit(Arc<Watchdog>, u64);

impl Drop for Permit {
    fn drop(&mut self) {
        let permit = self.0.0.lock().permits.remove(&self.1);
        drop(permit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    /// S9.5: a call that panics has ended. If the phase went on waiting for it, the phase would
    /// stay set aside for ever, and the drain would have one permit less.
    #[test]
    fn a_call_that_panics_has_ended() {
        let watchdog = Arc::new(Watchdog::default());
        let permits = Arc::new(Semaphore::new(1));
        let call = {
            let (watchdog, permits) = (watchdog.clone(), permits.clone());
            move || {
                let _waiting = watchdog.enter();
                let _permit = watchdog.hold_permit(permits.try_acquire_owned().ok());
                assert!(
                    watchdog.silent_for(Duration::ZERO).is_some(),
                    "it is waited for"
                );
                std::panic::resume_unwind(Box::new("a defect"));
            }
        };
        assert!(std::thread::spawn(call).join().is_err(), "it panicked");
        assert!(
            watchdog.silent_for(Duration::ZERO).is_none(),
            "nothing is waited for"
        );
        assert_eq!(permits.available_permits(), 1);
    }

    #[test]
    fn a_phase_that_is_set_aside_gives_its_permits_back() {
        let watchdog = Arc::new(Watchdog::default());
        let permits = Arc::new(Semaphore::new(2));
        let first = watchdog.hold_permit(permits.clone().try_acquire_owned().ok());
        watchdog.set_aside();
        let second = watchdog.hold_permit(permits.clone().try_acquire_owned().ok());
        assert_eq!(permits.available_permits(), 2);
        drop((first, second));
        assert_eq!(permits.available_permits(), 2);
    }
}
