//! Bandwidth estimate of one OST, from the I/O that goes to it. There is no clock here: time is
//! passed in.
//!
//! # How a bandwidth is learnt from I/O
//!
//! A probe says what an OST can do. The drain's I/O says what the OST did, which is less whenever
//! something else was slower: a rate limit, the log, another OST. So the two directions are not
//! alike:
//! - **Up**: an OST that moved more than its estimate can do that. This is always accepted.
//! - **Down**: only from a time in which something was in flight at the OST without a break. The
//!   OST that the drain waits for is the one that never rests. The drain did not wait for an OST
//!   that rests between two I/Os, so what that OST did must not make it look slow, or a throttled
//!   drain would leave out its fastest OSTs one by one. Also only from I/Os about as large as those
//!   of the probe: small ones measure latency.
//!
//! Several I/Os may be in flight at once, so rates are bytes by *busy time* (the union of the I/Os'
//! times), taken over windows. If an I/O crosses the edge of a window, it is unknown how much it
//! moved inside the window. So a window gives two rates: at least (`within`: I/Os that lie in it)
//! and at most (`touching`: all that overlap it). The estimate goes down by the latter and up by
//! the former; if it lies between them, it does not change.
//!
//! The estimate is a ratio of two sums, bytes and seconds, that decay with busy time. A burst into
//! a cache may have a high rate, but it takes little time and therefore has little weight, and the
//! sync after it, an I/O of no bytes, adds the missing time.
//!
//! An I/O that is stuck says nothing about bandwidth and would make its OST look busy for ever: it
//! is set aside when its OST is dropped because of it.

use crate::ost::probe::BLOCK;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After this many busy seconds, earlier I/O counts only a third.
const MEMORY: f64 = 10.0;
/// The busy seconds that a probe counts for.
const PROBE_WEIGHT: f64 = 2.5;
/// A window has at least this many busy seconds and these bytes, and several times what is in
/// flight (otherwise the two rates are far apart) ...
const WINDOW: f64 = 0.25;
const WINDOW_BYTES: u64 = 4 << 20;
const WINDOW_FLIGHTS: u64 = 8;
/// ... or it is at least this long: a slow OST is not waited for any longer.
const LONG_WINDOW: f64 = 2.0;
/// If the mean I/O of a window is smaller, the window measures latency.
const LARGE: f64 = (BLOCK / 2) as f64;
/// The weight of the newest I/O in the mean latency.
const LATENCY_SHARE: f64 = 0.125;

/// Returns a bandwidth or a weight if it can be used in calculations.
pub(super) fn sane(rate: f64) -> Option<f64> {
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

#[derive(Debug)]
pub(super) struct Estimate {
    flights: BTreeMap<u64, Flight>,
    /// I/Os because of which the OST was dropped.
    stuck: BTreeMap<u64, Flight>,
    window: Window,
    belief: Option<Belief>,
    latency: Option<f64>,
    written: u64,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    began: Instant,
    bytes: u64,
    /// The window in which it began.
    window: u64,
}

#[derive(Debug)]
struct Window {
    number: u64,
    /// Busy time is counted up to here.
    at: Instant,
    busy: f64,
    /// There was no break in the busy time.
    whole: bool,
    within: u64,
    touching: u64,
    /// I/Os in `touching` that move bytes.
    ios: u64,
}

#[derive(Clone, Copy, Debug)]
struct Belief {
    bytes: f64,
    seconds: f64,
}

impl Estimate {
    pub fn new(now: Instant) -> Estimate {
        Estimate {
            flights: BTreeMap::new(),
            stuck: BTreeMap::new(),
            window: Window::new(0, now),
            belief: None,
            latency: None,
            written: 0,
        }
    }

    pub fn bandwidth(&self) -> Option<f64> {
        let belief = self.belief?;
        sane(belief.bytes / belief.seconds)
    }

    pub fn latency(&self) -> Option<Duration> {
        self.latency
            .and_then(|s| Duration::try_from_secs_f64(s).ok())
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn in_flight(&self) -> u64 {
        let all = self.flights.values().chain(self.stuck.values());
        all.map(|f| f.bytes).sum()
    }

    pub fn is_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// A probe's result replaces the estimate. A value that cannot be a rate changes nothing.
    pub fn probed(&mut self, bandwidth: f64, latency: Duration) {
        if let Some(rate) = sane(bandwidth) {
            self.belief = Some(Belief {
                bytes: rate * PROBE_WEIGHT,
                seconds: PROBE_WEIGHT,
            });
            self.latency = Some(latency.as_secs_f64());
        }
    }

    /// Reports the begin of an I/O. `id` is new, and larger than all before.
    pub fn begin(&mut self, id: u64, bytes: u64, now: Instant) {
        if self.flights.is_empty() {
            self.window.rested(now);
        } else {
            self.window.worked(now);
        }
        self.window.touching = self.window.touching.saturating_add(bytes);
        self.window.ios += u64::from(bytes > 0);
        let window = self.window.number;
        self.flights.insert(
            id,
            Flight {
                began: now,
                bytes,
                window,
            },
        );
    }

    pub fn done(&mut self, id: u64, now: Instant) {
        if let Some(flight) = self.stuck.remove(&id) {
            self.written = self.written.saturating_add(flight.bytes);
            return;
        }
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        self.window.worked(now);
        self.written = self.written.saturating_add(flight.bytes);
        if flight.window == self.window.number {
            self.window.within = self.window.within.saturating_add(flight.bytes);
        }
        if flight.bytes > 0 {
            let took = now.saturating_duration_since(flight.began).as_secs_f64();
            self.latency = Some(match self.latency {
                Some(mean) => mean + LATENCY_SHARE * (took - mean),
                None => took,
            });
        }
        self.learn(now);
    }

    /// The I/O moved nothing, or an unknown number of bytes: its window cannot be used any more.
    pub fn forget(&mut self, id: u64, now: Instant) {
        if self.stuck.remove(&id).is_none() && self.flights.remove(&id).is_some() {
            self.next_window(now);
        }
    }

    /// Sets I/Os aside that have been in flight for longer than `deadline`. Returns the age of the
    /// oldest, if there are any.
    pub fn set_stuck_aside(&mut self, deadline: Duration, now: Instant) -> Option<Duration> {
        let age = |f: &Flight| now.saturating_duration_since(f.began);
        // Ids almost always rise with time; two threads may come here in another order.
        let oldest = self.flights.values().next().map(age)?;
        if oldest <= deadline {
            return None;
        }
        let all = std::mem::take(&mut self.flights);
        let (late, rest) = all.into_iter().partition(|(_, f)| age(f) > deadline);
        self.stuck.extend::<BTreeMap<u64, Flight>>(late);
        self.flights = rest;
        self.next_window(now);
        Some(oldest)
    }

    fn next_window(&mut self, now: Instant) {
        let mut next = Window::new(self.window.number + 1, now);
        for flight in self.flights.values() {
            next.touching = next.touching.saturating_add(flight.bytes);
            next.ios += u64::from(flight.bytes > 0);
        }
        self.window = next;
    }

    fn learn(&mut self, now: Instant) {
        let window = &self.window;
        let waiting: u64 = self.flights.values().map(|f| f.bytes).sum();
        let enough = WINDOW_BYTES.max(waiting.saturating_mul(WINDOW_FLIGHTS));
        let full = window.busy >= WINDOW && window.within >= enough;
        if !full && window.busy < LONG_WINDOW {
            return;
        }
        let (least, most) = (
            window.within as f64 / window.busy,
            window.touching as f64 / window.busy,
        );
        // A window with nothing but a sync counts as large: the sync ends writes whose sizes were
        // counted before.
        let large = window.touching as f64 >= LARGE * window.ios as f64;
        let busy = window.busy;
        match self.bandwidth() {
            None => self.believe(least, busy),
            Some(known) if least > known => self.believe(least, busy),
            Some(known) if most < known && window.whole && large => self.believe(most, busy),
            Some(_) => {}
        }
        self.next_window(now);
    }

    fn believe(&mut self, rate: f64, seconds: f64) {
        let fade = (-seconds / MEMORY).exp();
        let old = self.belief.unwrap_or(Belief {
            bytes: 0.0,
            seconds: 0.0,
        });
        let new = Belief {
            bytes: old.bytes * fade + rate * seconds,
            seconds: old.seconds * fade + seconds,
        };
        if sane(new.bytes / new.seconds).is_some() {
            self.belief = Some(new);
        }
    }
}

impl Window {
    fn new(number: u64, now: Instant) -> Window {
        Window {
            number,
            at: now,
            busy: 0.0,
            whole: true,
            within: 0,
            touching: 0,
            ios: 0,
        }
    }

    fn worked(&mut self, now: Instant) {
        self.busy += now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
    }

    fn rested(&mut self, now: Instant) {
        self.whole &= self.busy == 0.0;
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests;
