//! Progress of a drain: what is left, how fast it goes, and what stands in its way.

use layout_index::{FileId, StickyError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The state of a drain at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes that were or became undrained since the drain was asked for.
    pub total: u64,
    pub done: u64,
    /// Files that still have undrained data.
    pub files: usize,
    /// Recent bytes per second; older data counts less and less.
    pub rate: f64,
    /// Seconds until everything is drained at that rate; `None` while nothing moves.
    pub eta: Option<f64>,
    /// Files being drained at this moment.
    pub active: Vec<FileId>,
    pub errors: Vec<FileError>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileError {
    pub id: FileId,
    pub error: StickyError,
}

pub(crate) fn eta(remaining: u64, rate: f64) -> Option<f64> {
    match remaining {
        0 => Some(0.0),
        _ if rate < 1.0 => None,
        _ => Some(remaining as f64 / rate),
    }
}

/// Keeps `done` from running backwards when new data arrives: the total grows instead.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    total: u64,
    done: u64,
}

impl Tally {
    pub fn update(&mut self, remaining: u64) -> (u64, u64) {
        self.done = self.done.max(self.total.saturating_sub(remaining));
        self.total = self.total.max(self.done + remaining);
        (self.total, self.done)
    }
}

/// Bytes per second, exponentially decaying, so that a stalled drain is seen to stall.
#[derive(Debug)]
pub(crate) struct Meter(Mutex<MeterState>);

#[derive(Debug)]
struct MeterState {
    /// Bytes, each weighted by its age.
    weight: f64,
    since: Instant,
    at: Instant,
}

const RATE_MEMORY: Duration = Duration::from_secs(3);

impl Meter {
    pub fn new(now: Instant) -> Self {
        Self(Mutex::new(MeterState {
            weight: 0.0,
            since: now,
            at: now,
        }))
    }

    pub fn record(&self, bytes: u64, now: Instant) {
        let mut state = self.0.lock();
        if state.weight < 1.0 {
            // The first bytes after a pause. An average that includes the pause would show a rate
            // that is far too low.
            state.since = now;
        }
        state.decay(now);
        state.weight += bytes as f64;
    }

    pub fn rate(&self, now: Instant) -> f64 {
        let mut state = self.0.lock();
        state.decay(now);
        let memory = RATE_MEMORY.as_secs_f64();
        let age = now.saturating_duration_since(state.since).as_secs_f64();
        // The weight that a constant stream of this age would have, per byte per second.
        let seconds = memory * (1.0 - (-age / memory).exp());
        state.weight / seconds.max(0.1)
    }
}

impl MeterState {
    fn decay(&mut self, now: Instant) {
        let gone = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.weight *= (-gone / RATE_MEMORY.as_secs_f64()).exp();
        if self.weight < 1.0 {
            self.weight = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_stream_shows_its_rate_from_the_start_and_later() {
        let start = Instant::now();
        let meter = Meter::new(start);
        for tick in 1..=200_u32 {
            let now = start + Duration::from_secs(60) + Duration::from_millis(100) * tick;
            meter.record(1_000_000, now);
            if tick == 10 || tick == 200 {
                let rate = meter.rate(now);
                assert!((9e6..12e6).contains(&rate), "tick {tick}: {rate}");
            }
        }
    }

    #[test]
    fn a_stalled_drain_is_seen_to_stall() {
        let start = Instant::now();
        let meter = Meter::new(start);
        meter.record(1 << 30, start);
        let later = start + Duration::from_secs(120);
        assert_eq!(meter.rate(later), 0.0);
        assert_eq!(eta(1, meter.rate(later)), None);
    }

    #[test]
    fn progress_never_runs_backwards() {
        let mut tally = Tally::default();
        assert_eq!(tally.update(100), (100, 0));
        assert_eq!(tally.update(40), (100, 60));
        assert_eq!(tally.update(90), (150, 60));
        assert_eq!(tally.update(0), (150, 150));
    }

    #[test]
    fn nothing_left_needs_no_time() {
        assert_eq!(eta(0, 0.0), Some(0.0));
        assert_eq!(eta(200, 100.0), Some(2.0));
    }
}
