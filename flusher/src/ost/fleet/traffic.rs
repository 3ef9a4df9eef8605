//! What passes to one OST, and how fast it is believed to be. No clock: time is passed in.
//!
//! # How a bandwidth is learnt from traffic
//!
//! A probe says what an OST can do. The drain's traffic says what it did, which is less whenever
//! somebody else was slower: a rate limit, the log, another OST. So the two directions are not
//! alike:
//! - **Up**: an OST that moved more than it is believed to can do that. Always taken.
//! - **Down**: only from a time through which something was in flight at it without a break. The
//!   one that everybody waits for is the one that never rests. One that rests between two I/Os was
//!   waited for by nobody, and what it did then must not make it look slow, or a throttled drain
//!   would leave its fastest OSTs out one by one. And only from I/Os about as large as those of
//!   the probe: small ones measure latency.
//!
//! Several I/Os may be in flight at once, so rates are bytes by *busy time* (the union of the
//! I/Os' times), taken over windows. What an I/O that reaches over the edge of a window moved
//! inside of it is unknown. So a window gives two rates: at least (`within`: I/Os that lie in it)
//! and at most (`touching`: all that overlap it). Down goes by the latter, up by the former, and
//! what lies between them changes nothing.
//!
//! The belief is a ratio of two sums, bytes and seconds, that decay with busy time. A burst into a
//! cache, large as its rate may be, takes little time and therefore has little weight, and the
//! sync after it, an I/O of no bytes, puts the time back.
//!
//! An I/O that is stuck says nothing about bandwidth and would make its OST look busy for ever: it
//! is set aside when its OST is dropped for it.

use crate::ost::probe::BLOCK;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Busy seconds after which what was seen before counts a third.
const MEMORY: f64 = 10.0;
/// Busy seconds that a probe counts for.
const PROBE_WEIGHT: f64 = 2.5;
/// A window has this many busy seconds and these bytes, and several times what is in flight (the
/// two rates are far apart otherwise) ...
const WINDOW: f64 = 0.25;
const WINDOW_BYTES: u64 = 4 << 20;
const WINDOW_FLIGHTS: u64 = 8;
/// ... or it is this long: a slow OST is not waited for any longer.
const LONG_WINDOW: f64 = 2.0;
/// A smaller mean I/O measures latency.
const LARGE: f64 = (BLOCK / 2) as f64;
/// The newest I/O's part in the mean latency.
const LATENCY_SHARE: f64 = 0.125;

/// A bandwidth or a weight that can be calculated with.
pub(super) fn sane(rate: f64) -> Option<f64> {
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

#[derive(Debug)]
pub(super) struct Traffic {
    flights: BTreeMap<u64, Flight>,
    /// Those that the OST was dropped for.
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
    /// Up to here busy time is counted.
    at: Instant,
    busy: f64,
    /// There was no break in it.
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

impl Traffic {
    pub fn new(now: Instant) -> Traffic {
        Traffic {
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

    /// A probe's word replaces what was believed. What cannot be a rate changes nothing.
    pub fn probed(&mut self, bandwidth: f64, latency: Duration) {
        if let Some(rate) = sane(bandwidth) {
            self.belief = Some(Belief {
                bytes: rate * PROBE_WEIGHT,
                seconds: PROBE_WEIGHT,
            });
            self.latency = Some(latency.as_secs_f64());
        }
    }

    /// `id` is new, and larger than all before.
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

    /// It moved nothing, or nobody knows how much: the window with it is no measure any more.
    pub fn forget(&mut self, id: u64, now: Instant) {
        if self.stuck.remove(&id).is_none() && self.flights.remove(&id).is_some() {
            self.next_window(now);
        }
    }

    /// Sets those aside that have been in flight for longer than `deadline`. How long the longest
    /// has been, if there are any.
    pub fn set_stuck_aside(&mut self, deadline: Duration, now: Instant) -> Option<Duration> {
        let age = |f: &Flight| now.saturating_duration_since(f.began);
        // Numbers rise with time, all but: two threads may come here in another order.
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
        // Nothing but a sync is the end of writes that were large or not, and were counted.
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
