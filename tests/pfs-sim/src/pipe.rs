//! The time model of one OST, without threads or clocks: computes when a request is done.
//!
//! Up to `queue` requests are worked on at once. Their latencies overlap; their bytes go through
//! one pipe, in the order of arrival, at the OST's bandwidth:
//!
//! ```text
//! start  = when it arrived, or when a place in the queue became free
//! finish = max(start + latency · j, finish of the one before) + (bytes / bandwidth) · j + extra
//! ```
//!
//! `j` is drawn evenly from 1 - jitter to 1 + jitter for each request; `extra` is the cost of lock
//! moves. Each finish time is computed from the previous one and not from when a thread woke up, so
//! lateness does not add up.
//!
//! An OST that was idle for less than a quarter of the coming request's time (at most 10 ms) counts
//! as not idle. That gap is the cost of the simulation itself (copies through FUSE, wake-ups);
//! without this rule a client that writes one request after the other would get less than the
//! configured bandwidth. Over any busy period the bandwidth is never exceeded.

use crate::settings::OstSettings;
use std::time::{Duration, Instant};

/// The longest gap that is attributed to the simulation itself.
const GRACE: Duration = Duration::from_millis(10);

/// Resources that one request takes on an OST.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub bytes: u64,
    /// Time in the pipe in addition to that of the bytes.
    pub extra: Duration,
}

#[derive(Debug)]
pub struct Pipe {
    /// Time when the last request admitted so far will be done.
    free: Instant,
}

impl Pipe {
    pub fn new(now: Instant) -> Self {
        Self { free: now }
    }

    /// Starts a request at `start`; returns when it will be done and how long it occupies the pipe.
    /// `factor` is `j`; `idle` means that no other request is being worked on.
    pub fn admit(
        &mut self,
        settings: &OstSettings,
        cost: Cost,
        factor: f64,
        start: Instant,
        idle: bool,
    ) -> (Instant, Duration) {
        let latency = Duration::from_nanos((settings.latency_ns as f64 * factor) as u64);
        let seconds = cost.bytes as f64 / settings.bandwidth as f64 * factor;
        let busy = Duration::from_secs_f64(seconds) + cost.extra;
        let grace = GRACE.min((latency + busy) / 4);
        let gap = start.saturating_duration_since(self.free);
        let start = if idle && gap <= grace {
            start.min(self.free)
        } else {
            start
        };
        self.free = (start + latency).max(self.free) + busy;
        (self.free, busy)
    }
}

#[cfg(test)]
mod tests;
