//! Waiting for a condition, never for a length of time.

use std::time::{Duration, Instant};

/// Generous on purpose: it bounds a hang, it does not measure speed.
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
