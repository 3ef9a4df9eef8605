//! What is known of every OST, and what follows from it: which are dropped, when they are tried
//! again, which are chosen, who gets the next unit. No clock and no threads: time is passed in.
//!
//! # Dropped
//!
//! An OST that stalls, fails or fills is dropped at once, whatever it was worth before: no data
//! goes there, and its bandwidth counts for nothing. After `retry_after` a probe of it alone is
//! due; that time doubles, up to 16 times, while the probes fail, and also when an OST that came
//! back is dropped again before it has been good for as long as it was away. Where a probe is
//! still stuck in it no second one is sent after it. When what was stuck comes back, the next try
//! is at most `retry_after` away.
//!
//! # Chosen
//!
//! By [`select`], from the bandwidths as they are believed now. The choice is made anew when an
//! OST is dropped or comes back, after a probe, and when a bandwidth has moved by more than a
//! quarter since the last choice: often enough to follow, too seldom to flap. OSTs that could not
//! be measured count as the median of the others. Until the first probe is over, and where none is
//! wished, all count the same.
//!
//! # Busy
//!
//! A file system that writes behind takes whatever it is given at once and is slow only when it is
//! synced; what it was given then is on that OST, however slow it turns out to be. So an OST is
//! offered no more than it does in a moment, and two units at least, so that it has something to do
//! while the first is waited for. What comes after is dealt by how each of them answered.

use super::dealer::Dealer;
use super::status::{OstState, OstStatus};
use super::target::{Dropped, Mark, Target, Trouble, pause, verdict};
use crate::ost::{Measured, Ost, OstSettings, select};
use std::time::{Duration, Instant};

/// A bandwidth that moved by this part of itself asks for a new choice.
const MOVED: f64 = 0.25;

/// Seconds of work that an OST may have before it.
const AHEAD: f64 = 0.25;

#[derive(Debug)]
pub(super) struct Book {
    settings: OstSettings,
    targets: Vec<Target>,
    /// Positions in `targets`, the fastest first.
    chosen: Vec<usize>,
    dealer: Dealer,
    /// The first probe is over.
    measured: bool,
    /// The number of the next I/O.
    next: u64,
}

impl Book {
    pub fn new(settings: OstSettings) -> Book {
        Book {
            settings,
            targets: Vec::new(),
            chosen: Vec::new(),
            dealer: Dealer::default(),
            measured: false,
            next: 0,
        }
    }

    /// The list, as it is now. OSTs that are known already keep what is known of them.
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

    /// Those that a probe of all goes to. Dropped ones are tried by themselves.
    pub fn to_probe(&self) -> Vec<Ost> {
        let usable = self.targets.iter().filter(|t| t.dropped.is_none());
        let idle = usable.filter(|t| !t.is_being_probed());
        idle.map(|t| t.ost.clone()).collect()
    }

    pub fn probe_began(&mut self, ost: u32, now: Instant) {
        if let Some(target) = self.target(ost) {
            target.probe = Some(Mark {
                began: (now, target.traffic.written()),
                ended: None,
            });
        }
    }

    /// However it ended, and however late.
    pub fn probe_ended(&mut self, ost: u32, now: Instant) {
        let retry_after = self.settings.retry_after;
        if let Some(target) = self.target(ost) {
            let written = target.traffic.written();
            if let Some(mark) = &mut target.probe {
                mark.ended = Some((now, written));
            }
            target.came_loose(retry_after, now);
        }
    }

    /// A probe of all is over. What the drain dropped meanwhile stays dropped.
    pub fn probed(&mut self, results: &[(u32, Result<Measured, Trouble>)], now: Instant) {
        for (ost, result) in results {
            let Some(target) = self.target(*ost) else {
                continue;
            };
            match result {
                Ok(measured) => target.measured(measured),
                Err(trouble) => {
                    self.drop_for(*ost, trouble, now);
                }
            }
        }
        self.measured = self.settings.probing;
        self.choose();
    }

    /// Dropped OSTs that are to be tried now; each of them is heard of by [`Book::retried`].
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
            let trouble = Trouble {
                errno: Some(libc::ETIMEDOUT),
                sentence,
            };
            self.retried(ost, Err(trouble), now);
        }
        due
    }

    /// How the try of a dropped OST went.
    pub fn retried(&mut self, ost: u32, result: Result<Measured, Trouble>, now: Instant) {
        let probing = self.settings.probing;
        let retry_after = self.settings.retry_after;
        let Some(target) = self.target(ost) else {
            return;
        };
        let Some(dropped) = &mut target.dropped else {
            return;
        };
        match result {
            // It answered: the quota is somebody's, not its own.
            Err(Trouble { errno, .. }) if errno == Some(libc::EDQUOT) => {}
            Err(trouble) => {
                target.failures = target.failures.saturating_add(1);
                dropped.trying = false;
                dropped.asked = now;
                dropped.pause = pause(retry_after, target.failures);
                dropped.state = verdict(trouble.errno).unwrap_or(dropped.state);
                dropped.sentence = trouble.sentence;
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

    /// `None` for an OST that is not in the list.
    pub fn begin(&mut self, ost: u32, bytes: u64, now: Instant) -> Option<u64> {
        let id = self.next;
        self.target(ost)?.traffic.begin(id, bytes, now);
        self.next += 1;
        Some(id)
    }

    pub fn done(&mut self, ost: u32, id: u64, now: Instant) {
        let retry_after = self.settings.retry_after;
        let by_bandwidth = self.measured;
        let Some(target) = self.target(ost) else {
            return;
        };
        target.traffic.done(id, now);
        target.came_loose(retry_after, now);
        let moved = match (target.basis, target.traffic.bandwidth()) {
            (Some(basis), Some(now)) => (now - basis).abs() > basis * MOVED,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if by_bandwidth && moved && target.dropped.is_none() {
            self.choose();
        }
    }

    /// The I/O ended, nobody knows how.
    pub fn forget(&mut self, ost: u32, id: u64, now: Instant) {
        let retry_after = self.settings.retry_after;
        if let Some(target) = self.target(ost) {
            target.traffic.forget(id, now);
            target.came_loose(retry_after, now);
        }
    }

    pub fn failed(&mut self, ost: u32, id: u64, trouble: &Trouble, now: Instant) {
        self.forget(ost, id, now);
        if self.drop_for(ost, trouble, now) {
            self.choose();
        }
    }

    /// Drops those in which something has been in flight for longer than the deadline.
    pub fn drop_stalled(&mut self, now: Instant) {
        let deadline = self.settings.deadline;
        let mut stalled = Vec::new();
        for target in &mut self.targets {
            if let Some(age) = target.traffic.set_stuck_aside(deadline, now) {
                stalled.push((target.ost.clone(), age));
            }
        }
        let mut any = false;
        for (ost, age) in stalled {
            let trouble = Trouble {
                errno: Some(libc::ETIMEDOUT),
                sentence: format!(
                    "OST {} ({}): an I/O has not come back for {:.1} s; new data goes elsewhere until it answers again",
                    ost.index,
                    ost.name,
                    age.as_secs_f64()
                ),
            };
            any |= self.drop_for(ost.index, &trouble, now);
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

    /// What was dealt is there, or will never be.
    pub fn settle(&mut self, ost: u32, bytes: u64) {
        self.dealer.settle(ost, bytes);
    }

    /// Those that are dealt to and have enough to do, or `None` if those are all.
    pub fn busy(&self, bytes: u64) -> Option<Vec<u32>> {
        let is_busy = |ost: &u32| {
            let target = self.targets.iter().find(|t| t.ost.index == *ost);
            let rate = target.and_then(|t| t.traffic.bandwidth());
            self.dealer.open(*ost) as f64 > (rate.unwrap_or(0.0) * AHEAD).max(bytes as f64)
        };
        let busy: Vec<u32> = self.dealer.osts().filter(is_busy).collect();
        let all = !busy.is_empty() && busy.len() == self.dealer.osts().count();
        (!all).then_some(busy)
    }

    /// Where all that are chosen are excepted, a slow one is better than none. To be settled.
    pub fn deal(&mut self, bytes: u64, except: &[u32]) -> Option<Ost> {
        let ost = self.dealer.deal(bytes, except).or_else(|| {
            let known = self.bandwidths();
            let usable = self.targets.iter().zip(&known);
            let others = usable.filter(|(t, _)| !except.contains(&t.ost.index));
            let rates = others.filter_map(|(t, rate)| Some((t.ost.index, (*rate)?)));
            let (ost, _) =
                rates.reduce(|best, other| if other.1 > best.1 { other } else { best })?;
            self.dealer.note(ost, bytes);
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
            bandwidth: t.traffic.bandwidth(),
            latency_ms: t.traffic.latency().map(|l| l.as_secs_f64() * 1e3),
            written: t.traffic.written(),
            in_flight: t.traffic.in_flight(),
            error: t.dropped.as_ref().map(|d| d.sentence.clone()),
            retry_in: t.dropped.as_ref().map(|d| d.pause_left(now).as_secs_f64()),
        };
        self.targets.iter().enumerate().map(one).collect()
    }

    fn target(&mut self, ost: u32) -> Option<&mut Target> {
        self.targets.iter_mut().find(|t| t.ost.index == ost)
    }

    /// True if it was in use until now, and is not any more.
    fn drop_for(&mut self, ost: u32, trouble: &Trouble, now: Instant) -> bool {
        let retry_after = self.settings.retry_after;
        let Some(state) = verdict(trouble.errno) else {
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
            sentence: trouble.sentence.clone(),
            since: now,
            asked: now,
            pause: pause(retry_after, target.failures),
            trying: false,
        });
        tracing::warn!(ost, name = target.ost.name, "dropped: {}", trouble.sentence);
        true
    }

    /// By position: what a choice goes by. `None` for those that cannot be used.
    fn bandwidths(&self) -> Vec<Option<f64>> {
        let usable = |t: &&Target| t.dropped.is_none();
        let mut known: Vec<f64> = Vec::new();
        if self.measured {
            let rates = self.targets.iter().filter(usable);
            known.extend(rates.filter_map(|t| t.traffic.bandwidth()));
        }
        known.sort_by(f64::total_cmp);
        let median = known.get(known.len() / 2).copied().unwrap_or(1.0);
        let measured = self.measured;
        let rate = |t: &Target| match t.traffic.bandwidth() {
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
        let dealt = if unknown { &choice.order } else { &self.chosen };
        let weight = |n: &usize| Some((self.targets[*n].ost.index, rates[*n]?));
        let weights: Vec<(u32, f64)> = dealt.iter().filter_map(weight).collect();
        self.dealer.set(&weights);
        for target in &mut self.targets {
            target.basis = target.traffic.bandwidth();
        }
    }
}

#[cfg(test)]
mod tests;
