//! Target picker: assigns units of data to OSTs in proportion to their weights. No clock, no
//! randomness.
//!
//! After any number of equal units every OST has had its exact share to within one unit, so that a
//! burst is spread from its first unit on. This is the schedule known as P-fair, for one resource:
//! a unit may go to an OST as soon as the share of that OST reaches into the unit, and among those
//! OSTs it goes to the one whose share would be overrun first. (Giving it to the OST that is
//! furthest behind, as weighted round robin is often done, can lag by more than a unit if there are
//! many OSTs.)
//!
//! How far an OST is behind is kept in bytes. The sum over all OSTs is zero, so units of different
//! sizes even out. If a unit must not go to an OST, the OST neither gains nor loses by that.
//!
//! Weights are estimates, and a probe of one megabyte is a weak basis for them. So an OST is passed
//! over if it has more before it than it can do in the time in which another one does what it has
//! and this unit as well. This is computed from the bytes that were assigned and are not settled
//! yet: an OST that is slower than its estimate gets less, an OST that answers gets more, and a
//! burst ends everywhere at about the same time.

use super::estimate::sane;
use std::collections::HashMap;

#[derive(Debug, Default)]
pub(super) struct Picker {
    hands: Vec<Hand>,
    /// Bytes assigned and not settled, by OST.
    open: HashMap<u32, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Hand {
    ost: u32,
    weight: f64,
    /// How many bytes fewer it has had than its share; negative if it has had more.
    behind: f64,
}

impl Picker {
    /// Assigns units to these OSTs (with their weights) from now on. OSTs that stay keep how far
    /// they are behind.
    pub fn set(&mut self, osts: &[(u32, f64)]) {
        let old = std::mem::take(&mut self.hands);
        let before = |ost| old.iter().find(|h| h.ost == ost).map_or(0.0, |h| h.behind);
        self.hands = osts
            .iter()
            .filter_map(|&(ost, weight)| {
                Some(Hand {
                    ost,
                    weight: sane(weight)?,
                    behind: before(ost),
                })
            })
            .collect();
        let total: f64 = self.hands.iter().map(|h| h.weight).sum();
        let left: f64 = self.hands.iter().map(|h| h.behind).sum();
        for hand in &mut self.hands {
            hand.weight /= total;
            hand.behind -= left * hand.weight;
        }
    }

    /// Called when bytes that were assigned to `ost` are there, or will never be.
    pub fn unit_ended(&mut self, ost: u32, bytes: u64) {
        if let Some(open) = self.open.get_mut(&ost) {
            *open = open.saturating_sub(bytes);
        }
    }

    /// Returns how many bytes were assigned to `ost` and are not settled.
    pub fn open(&self, ost: u32) -> u64 {
        self.open.get(&ost).copied().unwrap_or(0)
    }

    /// Returns the OSTs that units are assigned to.
    pub fn osts(&self) -> impl Iterator<Item = u32> {
        self.hands.iter().map(|h| h.ost)
    }

    /// Assigns a unit, which must be settled later.
    pub fn pick(&mut self, bytes: u64, except: &[u32]) -> Option<u32> {
        let ost = self.choose(bytes, except)?;
        self.assign(ost, bytes);
        Some(ost)
    }

    /// Notes that a unit of `bytes` goes to `ost`, which may have been chosen elsewhere. It must be
    /// settled later.
    pub fn assign(&mut self, ost: u32, bytes: u64) {
        let open = self.open.entry(ost).or_default();
        *open = open.saturating_add(bytes);
    }

    fn choose(&mut self, bytes: u64, except: &[u32]) -> Option<u32> {
        let bytes = bytes.max(1) as f64;
        let open = |h: &Hand| self.open(h.ost) as f64;
        let first_done = self
            .hands
            .iter()
            .filter(|h| !except.contains(&h.ost))
            .map(|h| (open(h) + bytes) / h.weight)
            .fold(f64::INFINITY, f64::min);
        let busy: Vec<u32> = self
            .hands
            .iter()
            .filter(|h| open(h) / h.weight > first_done * (1.0 + 1e-9))
            .map(|h| h.ost)
            .collect();
        let may = |h: &Hand| !except.contains(&h.ost) && !busy.contains(&h.ost);
        let total = sane(self.hands.iter().filter(|h| may(h)).map(|h| h.weight).sum())?;
        // These are sums of many parts: no OST may be left out because of a rounding error.
        let slack = bytes * 1e-9;
        let mut best: Option<(usize, f64)> = None;
        let mut furthest: Option<(usize, f64)> = None;
        for (n, hand) in self.hands.iter().enumerate().filter(|(_, h)| may(h)) {
            let share = hand.weight / total;
            if hand.behind + share * bytes > slack {
                let overrun = (bytes - hand.behind) / share;
                if best.is_none_or(|(_, least)| overrun < least * (1.0 - 1e-12)) {
                    best = Some((n, overrun));
                }
            }
            if furthest.is_none_or(|(_, most)| hand.behind > most) {
                furthest = Some((n, hand.behind));
            }
        }
        // If units were assigned with exceptions, all OSTs that are left may be ahead.
        let (n, _) = best.or(furthest)?;
        for hand in self.hands.iter_mut().filter(|h| may(h)) {
            hand.behind += hand.weight / total * bytes;
        }
        self.hands[n].behind -= bytes;
        Some(self.hands[n].ost)
    }
}

#[cfg(test)]
mod tests;
