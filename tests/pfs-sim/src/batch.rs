//! An operation of the file system that waits for requests on several OSTs.

use crate::Errno;
use parking_lot::Mutex;
use std::sync::Arc;

type Finish = Box<dyn FnOnce(Result<(), Errno>) + Send>;

struct State {
    left: usize,
    error: Option<Errno>,
    finish: Option<Finish>,
}

/// Calls `finish` once all parts have reported, with the first error if there was one.
#[derive(Clone)]
pub struct Batch(Arc<Mutex<State>>);

impl Batch {
    /// Makes a batch of `parts` requests, of which there must be at least one.
    pub fn new(parts: usize, finish: impl FnOnce(Result<(), Errno>) + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(State {
            left: parts,
            error: None,
            finish: Some(Box::new(finish)),
        })))
    }

    /// Reports the result of one part. Must not be called with a lock of the simulator held,
    /// because `finish` answers the kernel.
    pub fn report(&self, result: Result<(), Errno>) {
        let mut state = self.0.lock();
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let outcome = state.error.map_or(Ok(()), Err);
        let finish = state.finish.take();
        drop(state);
        if let Some(finish) = finish {
            finish(outcome);
        }
    }
}
