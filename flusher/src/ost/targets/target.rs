//! The state of one OST: its bandwidth estimate, whether it is dropped and why, and when it is
//! tried again. The rules are in [`super::stats`]. There is no clock here: time is passed in.

use super::estimate::{Estimate, sane};
use super::status::OstState;
use crate::ost::{Measured, Ost};
use crate::retry::backoff;
use std::time::{Duration, Instant};

/// The longest time between two tries, as a multiple of the first.
const LONGEST_PAUSE: u32 = 16;

/// An error of an OST, as it is shown to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub errno: Option<i32>,
    pub sentence: String,
}

#[derive(Debug)]
pub(super) struct Target {
    pub ost: Ost,
    pub estimate: Estimate,
    pub dropped: Option<Dropped>,
    /// Failed tries and drops without a good time between them.
    pub failures: u32,
    /// When the OST came back, and for how long it had been away.
    pub back: Option<(Instant, Duration)>,
    pub probe: Option<Mark>,
    /// The bandwidth that the last choice was based on.
    pub basis: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Dropped {
    pub state: OstState,
    pub sentence: String,
    pub since: Instant,
    /// The time from which `pause` counts, until the next try.
    pub asked: Instant,
    pub pause: Duration,
    /// A try is under way.
    pub trying: bool,
}

/// The bytes that the drain had written when a probe began and when it ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub began: (Instant, u64),
    pub ended: Option<(Instant, u64)>,
}

impl Target {
    pub fn new(ost: Ost, now: Instant) -> Target {
        Target {
            ost,
            estimate: Estimate::new(now),
            dropped: None,
            failures: 0,
            back: None,
            probe: None,
            basis: None,
        }
    }

    pub fn is_being_probed(&self) -> bool {
        self.probe.is_some_and(|mark| mark.ended.is_none())
    }

    /// Returns the drain's own rate during the probe. A probe gets only the bandwidth that the
    /// drain leaves over, so what the drain wrote meanwhile is added; otherwise the OSTs in use
    /// would look slower than idle ones.
    fn beside_the_probe(&self) -> f64 {
        let Some((began, ended)) = self.probe.and_then(|m| Some((m.began, m.ended?))) else {
            return 0.0;
        };
        let seconds = ended.0.saturating_duration_since(began.0).as_secs_f64();
        sane(ended.1.saturating_sub(began.1) as f64 / seconds).unwrap_or(0.0)
    }

    pub fn measured(&mut self, measured: &Measured) {
        let bandwidth = measured.bandwidth + self.beside_the_probe();
        self.estimate.probed(bandwidth, measured.latency);
    }

    /// Called when something that was stuck at the OST came back.
    pub fn came_loose(&mut self, retry_after: Duration, now: Instant) {
        if self.estimate.is_stuck() || self.is_being_probed() {
            return;
        }
        if let Some(dropped) = &mut self.dropped
            && dropped.state == OstState::Stalled
            && dropped.pause_left(now) > retry_after
        {
            (dropped.asked, dropped.pause) = (now, retry_after);
        }
    }
}

impl Dropped {
    pub fn pause_left(&self, now: Instant) -> Duration {
        let gone = now.saturating_duration_since(self.asked);
        self.pause.saturating_sub(gone)
    }
}

/// Returns the state that an error puts an OST into. `None` if it is not the OST's fault: a user's
/// quota, or this process has no memory or descriptors left.
pub(super) fn verdict(errno: Option<i32>) -> Option<OstState> {
    match errno {
        Some(libc::ENOSPC) => Some(OstState::Full),
        Some(libc::ETIMEDOUT) => Some(OstState::Stalled),
        Some(
            libc::EDQUOT | libc::EINTR | libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE,
        ) => None,
        _ => Some(OstState::Failed),
    }
}

/// Returns the time from one try to the next.
pub(super) fn pause(first: Duration, failures: u32) -> Duration {
    backoff(first, first.saturating_mul(LONGEST_PAUSE), failures)
}
