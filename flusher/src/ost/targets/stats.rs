//! Target statistics: keeps what is known of every OST, and decides which OSTs are dropped, when they
//! are tried again, which are chosen, and which gets the next unit. There is no clock and no thread
//! here: time is passed in.
//!
//! # Dropped
//!
//! An OST that stalls, fails or is full is dropped at once, whatever its bandwidth was: no data
//! goes there, and its bandwidth does not count. After `retry_after` a probe of it alone is due.
//! That time doubles, up to 16 times, while the probes fail, and also when an OST that came back is
//! dropped again before it has been good for as long as it was away. While a probe is still stuck
//! at the OST, no second one is started. When what was stuck comes back, the next try is at most
//! `retry_after` away.
//!
//! # Chosen
//!
//! OSTs are chosen by [`select`], from the current bandwidth estimates. The choice is made anew
//! when an OST is dropped or comes back, after a probe, and when an estimate has moved by more than
//! a quarter since the last choice: often enough to follow changes, too seldom to flap. OSTs that
//! could not be measured count as the median of the others. Until the first probe is over, and if
//! probing is switched off, all OSTs count the same.
//!
//! # Busy
//!
//! A file system with a write-back cache takes whatever it is given at once and is slow only when
//! it is synced; the bytes are then on that OST, however slow it turns out to be. So an OST is
//! offered no more than it can do in a moment, and at least two units, so that it has something to
//! do while the first is waited for. Later units are assigned by how fast each OST answered.

use super::picker::Picker;
use super::status::{OstState, OstStatus};
use super::target::{Dropped, Failure, Mark, Target, pause, verdict};
use crate::ost::{Measured, Ost, OstSettings, select};
use std::time::{Duration, Instant};

/// If a bandwidth estimate moves by this part of itself, the choice is made anew.
const MOVED: f64 = 0.25;

/// Seconds of work that may be assigned to an OST at once.
const AHEAD: f64 = 0.25;

#[derive(Debug)]
pub(super) struct Stats {
    settings: OstSettings,
    targets: Vec<Target>,
    /// Positions in `targets`, the fastest first.
    chosen: Vec<usize>,
    picker: Picker,
    /// The first probe is over.
    measured: bool,
    /// The number of the next I/O.
    next: u64,
}

impl Stats {
    pub fn new(settings: OstSettings) -> Stats {
        Stats {
            settings,
            targets: Vec::new(),
            chosen: Vec::new(),
            picker: Picker::default(),
            measured: false,
            next: 0,
        }
    }

    /// Takes the current list. OSTs that were in the list before keep what is known of them.
    pub fn set_osts(&mut self, osts: Vec<Ost>, now: Instant) {
        let mut old = std::mem::take(&mut self.targets);
        for ost in osts {
            let known = old.iter().position(|t| t.ost == ost);
            self.targets.push(match known {
                Some(n) => old.swap_remove(n),
                None => Target::new(ost, now),
            });
        }
        self.choose();
    }

    /// Returns the OSTs that a probe of all goes to. Dropped OSTs are tried by themselves.
    pub fn to_probe(&self) -> Vec<Ost> {
        let usable = self.targets.iter().filter(|t| t.dropped.is_none());
        let idle = usable.filter(|t| !t.is_being_probed());
        idle.map(|t| t.ost.clone()).collect()
    }

    pub fn probe_began(&mut self, ost: u32, now: Instant) {
        if let Some(target) = self.target(ost) {
            target.probe = Some(Mark {
                began: (now, target.estimate.written()),
                ended: None,
            });
        }
    }

    /// Called when a probe ended, however it ended, and however late.
    pub fn probe_ended(&mut self, ost: u32, now: Instant) {
        let retry_after = self.settings.retry_after;
        if let Some(target) = self.target(ost) {
            let written = target.estimate.written();
            if let Some(mark) = &mut target.probe {
                mark.ended = Some((now, written));
            }
            target.came_loose(retry_after, now);
        }
    }

    /// Called when a probe of all OSTs is over. What the drain dropped meanwhile stays dropped.
    pub fn probed(&mut self, results: &[(u32, Result<Measured, Failure>)], now: Instant) {
        for (ost, result) in results {
            let Some(target) = self.target(*ost) else {
                continue;
            };
            match result {
                Ok(measured) => target.measured(measured),
                Err(failure) => {
                    self.drop_for(*ost, failure, now);
                }
            }
        }
        self.measured = self.settings.probing;
        self.choose();
    }

    /// Returns the dropped OSTs that are to be tried now. The result of each try is reported with
    /// [`Stats::retried`].
    pub fn due(&mut self, now: Instant) -> Vec<Ost> {
        let mut due = Vec::new();
        let mut hang = Vec::new();
        for target in &mut self.targets {
            let hangs = target.is_being_probed();
            let Some(dropped) = &mut target.dropped else {
                continue;
            };
            if dropped.trying || !dropped.pause_left(now).is_zero() {
                continue;
            }
            if hangs {
                hang.push((target.ost.index, dropped.sentence.clone()));
            } else {
                dropped.trying = true;
                due.push(target.ost.clone());
            }
        }
        for (ost, sentence) in hang {
            let failure = Failure {
                errno: Some(libc::ETIMEDOUT),
                sentence,
            };
            self.retried(ost, Err(failure), now);
        }
        due
    }

    /// Reports how the try of a dropped OST went.
    pub fn retried(&mut self, ost: u32, result: Result<Measured, Failure>, now: Instant) {
        let probing = self.settings.probing;
        let retry_after = self.settings.retry_after;
        let Some(target) = self.target(ost) else {
            return;
        };
        let Some(dropped) = &mut target.dropped else {
            return;
        };
        match result {
            // The OST answered: the quota is that of a user, and no fault of the OST.
            Err(Failure { errno, .. }) if errno == Some(libc::EDQUOT) => {}
            Err(failure) => {
                target.failures = target.failures.saturating_add(1);
                dropped.trying = false;
                dropped.asked = now;
                dropped.pause = pause(retry_after, target.failures);
                dropped.state = verdict(failure.errno).unwrap_or(dropped.state);
                dropped.sentence = failure.sentence;
                return;
            }
            Ok(measured) => {
                if probing {
                    target.measured(&measured);
                }
            }
        }
        let away = target
            .dropped
            .take()
            .map_or(Duration::ZERO, |d| now.saturating_duration_since(d.since));
        target.back = Some((now, away));
        tracing::info!(ost, name = target.ost.name, "the OST is used again");
        self.choose();
    }

    /// `None` if the OST is not in the list.
    pub fn begin(&mut self, ost: u32, bytes: u64, now: Instant) -> Option<u64> {
        let id = self.next;
        self.target(ost)?.estimate.begin(id, bytes, now);
        self.next += 1;
        Some(id)
    }

    pub fn done(&mut self, ost: u32, id: u64, now: Instant) {
        let retry_after = self.settings.retry_after;
        let by_bandwidth = self.measured;
        let Some(target) = self.target(ost) else {
            return;
        };
        target.estimate.done(id, now);
        target.came_loose(retry_after, now);
        let moved = match (target.basis, target.estimate.bandwidth()) {
            (Some(basis), Some(now)) => (now - basis).abs() > basis * MOVED,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if by_bandwidth && moved && target.dropped.is_none() {
            self.choose();
        }
    }

    /// The I/O ended, and it is unknown how.
    pub fn forget(&mut self, ost: u32, id: u64, now: Instant) {
        let retry_after = self.settings.retry_after;
        if let Some(target) = self.target(ost) {
            target.estimate.forget(id, now);
            target.came_loose(retry_after, now);
        }
    }

    pub fn failed(&mut self, ost: u32, id: u64, failure: &Failure, now: Instant) {
        self.forget(ost, id, now);
        if self.drop_for(ost, failure, now) {
            self.choose();
        }
    }

    /// Drops OSTs at which something has been in flight for longer than the deadline.
    pub fn drop_stalled(&mut self, now: Instant) {
        let deadline = self.settings.deadline;
        let mut stalled = Vec::new();
        for target in &mut self.targets {
            if let Some(age) = target.estimate.set_stuck_aside(deadline, now) {
                stalled.push((target.ost.clone(), age));
            }
        }
        let mut any = false;
        for (ost, age) in stalled {
            let failure = Failure {
                errno: Some(libc::ETIMEDOUT),
                sentence: format!(
                    "OST {} ({}): an I/O has not come back for {:.1} s; new data goes elsewhere until it answers again",
                    ost.index,
                    ost.name,
                    age.as_secs_f64()
                ),
            };
            any |= self.drop_for(ost.index, &failure, now);
        }
        if any {
            self.choose();
        }
    }

    pub fn is_usable(&self, ost: u32) -> bool {
        let target = self.targets.iter().find(|t| t.ost.index == ost);
        target.is_some_and(|t| t.dropped.is_none())
    }

    pub fn chosen(&self) -> Vec<Ost> {
        let chosen = self.chosen.iter();
        chosen.map(|n| self.targets[*n].ost.clone()).collect()
    }

    /// Called when the bytes of a unit are on the OST, or will never be.
    pub fn unit_ended(&mut self, ost: u32, bytes: u64) {
        self.picker.unit_ended(ost, bytes);
    }

    /// Returns the OSTs in use that have enough to do, or `None` if all of them have.
    pub fn busy(&self, bytes: u64) -> Option<Vec<u32>> {
        let is_busy = |ost: &u32| {
            let target = self.targets.iter().find(|t| t.ost.index == *ost);
            let rate = target.and_then(|t| t.estimate.bandwidth());
            self.picker.open(*ost) as f64 > (rate.unwrap_or(0.0) * AHEAD).max(bytes as f64)
        };
        let busy: Vec<u32> = self.picker.osts().filter(is_busy).collect();
        let all = !busy.is_empty() && busy.len() == self.picker.osts().count();
        (!all).then_some(busy)
    }

    /// Assigns a unit. If all chosen OSTs are excepted, a slow one is better than none. The unit
    /// must be settled later.
    pub fn pick(&mut self, bytes: u64, except: &[u32]) -> Option<Ost> {
        let ost = self.picker.pick(bytes, except).or_else(|| {
            let known = self.bandwidths();
            let usable = self.targets.iter().zip(&known);
            let others = usable.filter(|(t, _)| !except.contains(&t.ost.index));
            let rates = others.filter_map(|(t, rate)| Some((t.ost.index, (*rate)?)));
            let (ost, _) =
                rates.reduce(|best, other| if other.1 > best.1 { other } else { best })?;
            self.picker.assign(ost, bytes);
            Some(ost)
        })?;
        self.target(ost).map(|t| t.ost.clone())
    }

    pub fn status(&self, now: Instant) -> Vec<OstStatus> {
        let one = |(n, t): (usize, &Target)| OstStatus {
            index: t.ost.index,
            name: t.ost.name.clone(),
            state: match &t.dropped {
                Some(dropped) => dropped.state,
                None if self.chosen.contains(&n) => OstState::Chosen,
                None => OstState::LeftOut,
            },
            bandwidth: t.estimate.bandwidth(),
            latency_ms: t.estimate.latency().map(|l| l.as_secs_f64() * 1e3),
            written: t.estimate.written(),
            in_flight: t.estimate.in_flight(),
            error: t.dropped.as_ref().map(|d| d.sentence.clone()),
            retry_in: t.dropped.as_ref().map(|d| d.pause_left(now).as_secs_f64()),
        };
        self.targets.iter().enumerate().map(one).collect()
    }

    fn target(&mut self, ost: u32) -> Option<&mut Target> {
        self.targets.iter_mut().find(|t| t.ost.index == ost)
    }

    /// True if the OST was in use until now and is not any more.
    fn drop_for(&mut self, ost: u32, failure: &Failure, now: Instant) -> bool {
        let retry_after = self.settings.retry_after;
        let Some(state) = verdict(failure.errno) else {
            return false;
        };
        let Some(target) = self.target(ost).filter(|t| t.dropped.is_none()) else {
            return false;
        };
        let good = target.back.is_none_or(|(since, away)| {
            now.saturating_duration_since(since) >= away.max(retry_after)
        });
        target.failures = match good {
            true => 1,
            false => target.failures.saturating_add(1),
        };
        target.dropped = Some(Dropped {
            state,
            sentence: failure.sentence.clone(),
            since: now,
            asked: now,
            pause: pause(retry_after, target.failures),
            trying: false,
        });
        tracing::warn!(ost, name = target.ost.name, "dropped: {}", failure.sentence);
        true
    }

    /// Returns the bandwidths that a choice is based on, by position. `None` for OSTs that cannot
    /// be used.
    fn bandwidths(&self) -> Vec<Option<f64>> {
        let usable = |t: &&Target| t.dropped.is_none();
        let mut known: Vec<f64> = Vec::new();
        if self.measured {
            let rates = self.targets.iter().filter(usable);
            known.extend(rates.filter_map(|t| t.estimate.bandwidth()));
        }
        known.sort_by(f64::total_cmp);
        let median = known.get(known.len() / 2).copied().unwrap_or(1.0);
        let measured = self.measured;
        let rate = |t: &Target| match t.estimate.bandwidth() {
            Some(rate) if measured => rate,
            _ => median,
        };
        let targets = self.targets.iter();
        targets
            .map(|t| t.dropped.is_none().then(|| rate(t)))
            .collect()
    }

    fn choose(&mut self) {
        let rates = self.bandwidths();
        let choice = select(&rates, self.settings.delta);
        let width = self.settings.width.unwrap_or(usize::MAX);
        self.chosen = choice.chosen().iter().copied().take(width).collect();
        // Nothing is known before the first probe, so nothing is left out either.
        let unknown = self.settings.probing && !self.measured;
        let picked = if unknown { &choice.order } else { &self.chosen };
        let weight = |n: &usize| Some((self.targets[*n].ost.index, rates[*n]?));
        let weights: Vec<(u32, f64)> = picked.iter().filter_map(weight).collect();
        self.picker.set(&weights);
        for target in &mut self.targets {
            target.basis = target.estimate.bandwidth();
        }
    }
}

#[cfg(test)]
mod tests;
