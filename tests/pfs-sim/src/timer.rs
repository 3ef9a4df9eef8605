//! The one thread that waits, so that a request that must wait occupies no event loop.
//!
//! It holds no more than "look at OST n at time t"; what is due then, the OST knows. Looking once
//! too often does no harm.

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
    /// `ost` is to be looked at when it is `at`.
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

    /// Waits for the next alarm; `None` when the timer was closed.
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
                    // Early or late: the loop looks again.
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
