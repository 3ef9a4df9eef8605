//! Waits for a condition, never for a length of time.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Generous on purpose: this limits a hang, and does not measure speed.
pub const LONG: Duration = Duration::from_secs(60);

/// Polls `probe` until it returns something, and fails the test with `what` after `limit`.
pub fn wait_until<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(
            start.elapsed() < limit,
            "waited {limit:?} in vain for this: {what}"
        );
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Runs `run` on a thread that is not scoped: if it hangs, that must not keep the rest of the test from being
/// cleaned up.
pub fn in_background<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, result) = channel();
    std::thread::spawn(move || {
        if done.send(run()).is_err() {
            eprintln!("it ended after the test");
        }
    });
    result
}

pub fn in_time<T>(what: &str, result: Receiver<T>) -> T {
    within(what, LONG, result)
}

pub fn within<T>(what: &str, limit: Duration, result: Receiver<T>) -> T {
    let result = result.recv_timeout(limit);
    result.unwrap_or_else(|e| panic!("{what} hangs for longer than {limit:?}, or failed: {e}"))
}
