//! Decides when all OSTs are listed and probed: at the start, and when the last time is `probe_age`
//! ago. If the list could not be read, it is read again sooner, after the same pauses as for a
//! dropped OST. There is no clock here: time is passed in.

use super::target::pause;
use crate::ost::OstSettings;
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Rounds {
    running: bool,
    over: Option<Instant>,
    probed: Option<Instant>,
    seconds: f64,
    failures: u32,
    error: Option<String>,
}

impl Rounds {
    /// True if a round is to be started now. Its end is reported with [`Rounds::ended`] or
    /// [`Rounds::failed`].
    pub fn due(&mut self, settings: &OstSettings, now: Instant) -> bool {
        let wait = match self.failures {
            0 => settings.probe_age,
            failures => pause(settings.retry_after, failures),
        };
        let due = self
            .over
            .is_none_or(|over| now.saturating_duration_since(over) >= wait);
        let start = due && !self.running;
        self.running |= start;
        start
    }

    /// Starts a round whether it is due or not. False if one is under way already.
    pub fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.running, true)
    }

    pub fn ended(&mut self, probed: bool, now: Instant) {
        self.over_at(now);
        self.failures = 0;
        self.error = None;
        if probed {
            self.probed = Some(now);
        }
    }

    pub fn failed(&mut self, sentence: String, now: Instant) {
        self.over_at(now);
        self.failures = self.failures.saturating_add(1);
        if self.error.as_ref() != Some(&sentence) {
            tracing::warn!("the OSTs are not known: {sentence}");
        }
        self.error = Some(sentence);
    }

    fn over_at(&mut self, now: Instant) {
        self.running = false;
        self.over = Some(now);
    }

    /// True if at least one round is over, however it went.
    pub fn any_over(&self) -> bool {
        self.over.is_some()
    }

    pub fn is_running(&self) -> bool {
        self.running
    }

    pub fn spent(&mut self, seconds: f64) {
        self.seconds += seconds;
    }

    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    pub fn probed_seconds_ago(&self, now: Instant) -> Option<f64> {
        let probed = self.probed?;
        Some(now.saturating_duration_since(probed).as_secs_f64())
    }
}

#[cfg(test)]
mod tests;
