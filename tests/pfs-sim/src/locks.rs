//! Extent locks of one object, as the server of a parallel file system grants them.
//!
//! A client needs a lock for every byte that it reads (shared) or writes (exclusive). It keeps what
//! it was granted, and is granted more than it requested: the largest range around its request that
//! contains no conflicting lock of another client. So a client that is alone requests a lock once.
//!
//! A request that conflicts with other clients' locks makes each of them give way; each of these is
//! one *move*. The holder keeps what it has used so far: it gives up everything behind the last
//! byte that it used if the request lies behind that, everything before the first one if the
//! request lies before that, and the whole lock if the request falls within what it used. This is
//! how Nisar et al. describe Lustre and GPFS.

use std::collections::{BTreeMap, HashMap};

/// The holder of a lock: a mount, a process or an open file, depending on the simulator's settings.
pub type Client = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Shared,
    Exclusive,
}

/// A granted range; its start is the key in the map that holds it.
#[derive(Clone, Copy, Debug)]
struct Held {
    client: Client,
    end: u64,
    /// Hull of the ranges that were requested under this lock.
    used: (u64, u64),
}

impl Held {
    fn covers(&self, client: Client, end: u64) -> bool {
        self.client == client && self.end >= end
    }

    fn use_also(&mut self, start: u64, end: u64) {
        self.used = (self.used.0.min(start), self.used.1.max(end));
    }
}

/// Non-overlapping locks, by start.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, Held>);

impl Ranges {
    /// Returns the starts of the locks that overlap `start..end`.
    fn overlapping(&self, start: u64, end: u64) -> Vec<u64> {
        self.0
            .range(..end)
            .rev()
            .take_while(|(_, held)| held.end > start)
            .map(|(at, _)| *at)
            .collect()
    }

    fn holder(&mut self, start: u64) -> Option<&mut Held> {
        let (_, held) = self.0.range_mut(..=start).next_back()?;
        Some(held)
    }

    /// Makes the lock at `key` give way to `start..end`.
    fn revoke(&mut self, key: u64, start: u64, end: u64) {
        let Some(mut held) = self.0.remove(&key) else {
            return;
        };
        if start >= held.used.1 {
            held.end = held.used.1;
            self.0.insert(key, held);
        } else if end <= held.used.0 {
            self.0.insert(held.used.0, held);
        }
    }

    /// Narrows `room` around `start..end` to the range in which only `client` holds locks. No other
    /// client may hold a lock on `start..end` itself.
    fn confine(&self, client: Client, start: u64, end: u64, room: &mut (u64, u64)) {
        let before = self.0.range(..start).rev();
        if let Some((_, held)) = before.into_iter().find(|(_, held)| held.client != client) {
            room.0 = room.0.max(held.end);
        }
        let mut after = self.0.range(end..);
        if let Some((at, _)) = after.find(|(_, held)| held.client != client) {
            room.1 = room.1.min(*at);
        }
    }

    /// Removes the locks of `client` that lie inside `room`, and extends `used` to the hull of what
    /// they were used for.
    fn absorb(&mut self, client: Client, room: (u64, u64), used: &mut (u64, u64)) {
        for key in self.overlapping(room.0, room.1) {
            let Some(held) = self.0.get(&key).copied() else {
                continue;
            };
            if held.client == client && key >= room.0 && held.end <= room.1 {
                self.0.remove(&key);
                *used = (used.0.min(held.used.0), used.1.max(held.used.1));
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct LockTable {
    /// Exclusive locks: at most one client holds any byte.
    exclusive: Ranges,
    /// Shared locks. Those of different clients may overlap.
    shared: HashMap<Client, Ranges>,
}

impl LockTable {
    /// Makes sure that `client` holds `start..end`; returns how many locks had to move for it.
    pub fn acquire(&mut self, client: Client, mode: Mode, start: u64, end: u64) -> u64 {
        if start >= end || self.use_held(client, mode, start, end) {
            return 0;
        }
        let moves = self.clear(client, mode, start, end);
        self.grant(client, mode, start, end);
        moves
    }

    fn use_held(&mut self, client: Client, mode: Mode, start: u64, end: u64) -> bool {
        let shared = match mode {
            Mode::Shared => self.shared.get_mut(&client).and_then(|r| r.holder(start)),
            Mode::Exclusive => None,
        };
        [self.exclusive.holder(start), shared]
            .into_iter()
            .flatten()
            .find(|held| held.covers(client, end))
            .map(|held| held.use_also(start, end))
            .is_some()
    }

    /// Makes every conflicting lock of another client give way.
    fn clear(&mut self, client: Client, mode: Mode, start: u64, end: u64) -> u64 {
        let mut moves = 0;
        let mut clear = |ranges: &mut Ranges| {
            for key in ranges.overlapping(start, end) {
                if ranges.0.get(&key).is_some_and(|held| held.client != client) {
                    ranges.revoke(key, start, end);
                    moves += 1;
                }
            }
        };
        clear(&mut self.exclusive);
        if mode == Mode::Exclusive {
            self.shared.values_mut().for_each(clear);
        }
        moves
    }

    fn grant(&mut self, client: Client, mode: Mode, start: u64, end: u64) {
        let mut room = (0, u64::MAX);
        self.exclusive.confine(client, start, end, &mut room);
        if mode == Mode::Exclusive {
            for ranges in self.shared.values() {
                ranges.confine(client, start, end, &mut room);
            }
        }
        let mut used = (start, end);
        let own = self.shared.entry(client).or_default();
        own.absorb(client, room, &mut used);
        let ranges = match mode {
            Mode::Shared => own,
            Mode::Exclusive => {
                self.exclusive.absorb(client, room, &mut used);
                &mut self.exclusive
            }
        };
        let end = room.1;
        ranges.0.insert(room.0, Held { client, end, used });
    }

    /// Forgets the locks of `client`. They do not count as moves, because the client went away by
    /// itself.
    pub fn drop_client(&mut self, client: Client) {
        self.exclusive.0.retain(|_, held| held.client != client);
        self.shared.remove(&client);
    }

    #[cfg(test)]
    fn held(&self) -> Vec<(Client, Mode, u64, u64)> {
        let all = |ranges: &Ranges, mode: Mode| -> Vec<_> {
            let list = ranges.0.iter();
            list.map(|(at, held)| (held.client, mode, *at, held.end))
                .collect()
        };
        let mut list = all(&self.exclusive, Mode::Exclusive);
        for ranges in self.shared.values() {
            list.extend(all(ranges, Mode::Shared));
        }
        list
    }
}

#[cfg(test)]
mod tests;
