//! Waits for a condition, never for a fixed time.

use std::time::{Duration, Instant};

/// Bounds a hang; says nothing about how fast something should be.
pub const LONG: Duration = Duration::from_secs(60);

/// Polls until `probe` returns a value; returns `None` after `limit`.
pub fn poll<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(found) = probe() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
