//! The only thread that waits, so that a waiting request does not occupy an event loop.
//!
//! It stores only "advance OST n at time t"; the OST itself knows what is due then. Advancing an
//! OST once too often does no harm.

use parking_lot::{Condvar, Mutex};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

#[derive(Default)]
struct State {
    alarms: BinaryHeap<Reverse<(Instant, usize)>>,
    closed: bool,
}

#[derive(Default)]
pub struct Timer {
    state: Mutex<State>,
    changed: Condvar,
}

impl Timer {
    /// Asks for `ost` to be advanced at time `at`.
    pub fn set(&self, at: Instant, ost: usize) {
        let mut state = self.state.lock();
        let first = state
            .alarms
            .peek()
            .is_none_or(|Reverse((next, _))| at < *next);
        state.alarms.push(Reverse((at, ost)));
        drop(state);
        if first {
            self.changed.notify_one();
        }
    }

    /// Waits for the next alarm and returns its OST; `None` when the timer was closed.
    pub fn next(&self) -> Option<usize> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            match state.alarms.peek().copied() {
                None => self.changed.wait(&mut state),
                Some(Reverse((at, ost))) => {
                    if at <= Instant::now() {
                        state.alarms.pop();
                        return Some(ost);
                    }
                    // The wait may end early or late, so the loop checks again.
                    self.changed.wait_until(&mut state, at);
                }
            }
        }
    }

    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}
