//! Deals units of data over OSTs in proportion to their weights. No clock, no randomness.
//!
//! After any number of equal units every OST has had its exact share to within one unit, so that
//! a burst is spread from its first unit on. This is the schedule known as P-fair, for one
//! resource: a unit may go to an OST as soon as its share reaches into that unit, and among those
//! it goes to the one whose share would be overrun first. (Giving it to the one that is furthest
//! behind, as weighted round robin is often done, can lag by more than a unit when there are many.)
//!
//! What an OST is behind is kept in bytes and sums up to nothing, so units of different sizes
//! even out. An OST that may not be dealt to for one unit neither gains nor loses by it.
//!
//! Weights are what is believed, and one probe of a megabyte believes much. So an OST with more
//! before it than it can do while another one does this unit as well is passed over, by the bytes
//! that were dealt to it and not settled yet: whoever was taken for faster than he is gets less,
//! whoever answers gets more, and a burst ends everywhere at about the same time.

use super::traffic::sane;
use std::collections::HashMap;

#[derive(Debug, Default)]
pub(super) struct Dealer {
    hands: Vec<Hand>,
    /// By OST: bytes dealt and not settled.
    open: HashMap<u32, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Hand {
    ost: u32,
    weight: f64,
    /// Bytes it should have had more than it has; negative if it is ahead.
    behind: f64,
}

impl Dealer {
    /// From now on over these (OST, weight). Those that stay keep what they are owed.
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

    /// Bytes that were dealt to `ost` are there, or will never be.
    pub fn settle(&mut self, ost: u32, bytes: u64) {
        if let Some(open) = self.open.get_mut(&ost) {
            *open = open.saturating_sub(bytes);
        }
    }

    /// Bytes that were dealt to `ost` and are not settled.
    pub fn open(&self, ost: u32) -> u64 {
        self.open.get(&ost).copied().unwrap_or(0)
    }

    /// Those that it deals to.
    pub fn osts(&self) -> impl Iterator<Item = u32> {
        self.hands.iter().map(|h| h.ost)
    }

    /// To be settled.
    pub fn deal(&mut self, bytes: u64, except: &[u32]) -> Option<u32> {
        let ost = self.choose(bytes, except)?;
        self.note(ost, bytes);
        Some(ost)
    }

    /// So many bytes go to `ost`, whoever chose it. To be settled.
    pub fn note(&mut self, ost: u32, bytes: u64) {
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
        // Sums of many parts: none may be left out for a rounding error.
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
        // Where units were dealt with exceptions, all that are left may be ahead.
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
