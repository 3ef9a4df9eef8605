//! The drain's rate limit: a token bucket that may go into debt.
//!
//! A caller that takes bytes is told how long to wait before it uses them. So a stripe larger than
//! the bucket still gets through, and later stripes pay for it. The limit can be changed while
//! stripes wait: those that were already told a time keep it.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Seconds of unused rate that may be saved up.
const BURST_SECONDS: f64 = 0.25;

#[derive(Debug)]
pub(crate) struct Throttle(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    rate: Option<f64>,
    /// Bytes that may be used at once; negative while the debt of earlier callers is being paid
    /// off.
    tokens: f64,
    filled: Instant,
}

impl Throttle {
    pub fn new(rate: Option<u64>, now: Instant) -> Self {
        let rate = rate.map(|r| r.max(1) as f64);
        Self(Mutex::new(Bucket {
            rate,
            tokens: rate.map_or(0.0, |r| r * BURST_SECONDS),
            filled: now,
        }))
    }

    pub fn set_rate(&self, rate: Option<u64>, now: Instant) {
        let mut bucket = self.0.lock();
        bucket.fill(now);
        bucket.rate = rate.map(|r| r.max(1) as f64);
        bucket.tokens = bucket.tokens.min(0.0);
    }

    /// Takes `bytes` and returns how long to wait before using them.
    pub fn take_tokens(&self, bytes: u64, now: Instant) -> Duration {
        let mut bucket = self.0.lock();
        let Some(rate) = bucket.rate else {
            return Duration::ZERO;
        };
        bucket.fill(now);
        bucket.tokens -= bytes as f64;
        if bucket.tokens >= 0.0 {
            Duration::ZERO
        } else {
            // A day is longer than any caller waits, and keeps the conversion in range.
            Duration::from_secs_f64((-bucket.tokens / rate).min(86_400.0))
        }
    }
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        let gone = now.saturating_duration_since(self.filled).as_secs_f64();
        self.filled = self.filled.max(now);
        if let Some(rate) = self.rate {
            self.tokens = (self.tokens + gone * rate).min(rate * BURST_SECONDS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn no_limit_never_waits() {
        let now = Instant::now();
        assert_eq!(
            Throttle::new(None, now).take_tokens(u64::MAX, now),
            Duration::ZERO
        );
    }

    #[test]
    fn the_average_over_many_stripes_is_the_rate() {
        let start = Instant::now();
        let throttle = Throttle::new(Some(10 * MIB), start);
        let mut now = start;
        for _ in 0..100 {
            now += throttle.take_tokens(MIB, now);
        }
        let seconds = (now - start).as_secs_f64();
        assert!((9.6..=10.0).contains(&seconds), "100 MiB took {seconds} s");
    }

    #[test]
    fn rest_saves_up_no_more_than_the_burst() {
        let start = Instant::now();
        let throttle = Throttle::new(Some(4 * MIB), start);
        let later = start + Duration::from_secs(3600);
        assert_eq!(throttle.take_tokens(MIB, later), Duration::ZERO);
        assert_eq!(throttle.take_tokens(MIB, later), Duration::from_millis(250));
    }

    #[test]
    fn a_new_rate_holds_from_then_on() {
        let now = Instant::now();
        let throttle = Throttle::new(Some(1), now);
        throttle.set_rate(None, now);
        assert_eq!(throttle.take_tokens(MIB, now), Duration::ZERO);
        throttle.set_rate(Some(MIB), now);
        assert_eq!(throttle.take_tokens(MIB, now), Duration::from_secs(1));
    }
}
