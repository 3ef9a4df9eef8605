//! What is known of one OST: its traffic, whether it is dropped and why, when it is tried again.
//! The rules are in [`super::book`]. No clock: time is passed in.

use super::status::OstState;
use super::traffic::{Traffic, sane};
use crate::ost::{Measured, Ost};
use crate::retry::backoff;
use std::time::{Duration, Instant};

/// The longest time between two tries, in times of the first.
const LONGEST_PAUSE: u32 = 16;

/// What went wrong, as it is told to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub errno: Option<i32>,
    pub sentence: String,
}

#[derive(Debug)]
pub(super) struct Target {
    pub ost: Ost,
    pub traffic: Traffic,
    pub dropped: Option<Dropped>,
    /// Tries and drops without a good time between them.
    pub failures: u32,
    /// When it came back, and how long it had been away for.
    pub back: Option<(Instant, Duration)>,
    pub probe: Option<Mark>,
    /// The bandwidth that the last choice went by.
    pub basis: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Dropped {
    pub state: OstState,
    pub sentence: String,
    pub since: Instant,
    /// From `asked` to the next try.
    pub asked: Instant,
    pub pause: Duration,
    /// A try is under way.
    pub trying: bool,
}

/// What the drain had written when a probe began and when it ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub began: (Instant, u64),
    pub ended: Option<(Instant, u64)>,
}

impl Target {
    pub fn new(ost: Ost, now: Instant) -> Target {
        Target {
            ost,
            traffic: Traffic::new(now),
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

    /// A probe gets what the drain leaves over. So what the drain wrote meanwhile belongs to it,
    /// or the OSTs in use would look slower than those at rest.
    fn beside_the_probe(&self) -> f64 {
        let Some((began, ended)) = self.probe.and_then(|m| Some((m.began, m.ended?))) else {
            return 0.0;
        };
        let seconds = ended.0.saturating_duration_since(began.0).as_secs_f64();
        sane(ended.1.saturating_sub(began.1) as f64 / seconds).unwrap_or(0.0)
    }

    pub fn measured(&mut self, measured: &Measured) {
        let bandwidth = measured.bandwidth + self.beside_the_probe();
        self.traffic.probed(bandwidth, measured.latency);
    }

    /// Something that was stuck in it came back.
    pub fn came_loose(&mut self, retry_after: Duration, now: Instant) {
        if self.traffic.is_stuck() || self.is_being_probed() {
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

/// What an error makes of an OST; `None` where it is no fault of the OST: a user's quota, or this
/// process that has no memory or descriptors left.
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

/// From one try to the next.
pub(super) fn pause(first: Duration, failures: u32) -> Duration {
    backoff(first, first.saturating_mul(LONGEST_PAUSE), failures)
}
