//! Power failures: what a node loses, and what must come back.
//!
//! A node loses what it has written and not synced: of its log, and of the canonical file, of which any part may have
//! reached the disk all the same. The shared directory is not affected: its files are synced before a node relies on
//! them, and names are kept by the server. Only configurations with power failures have this; in other configurations
//! nothing here is touched.

use crate::config::{CELLS, Config};
use crate::state::{EVENT_RANGE, State, bad, bit};

impl State {
    /// Syncs the log: what the node has now is what a power failure leaves.
    pub fn sync_log(&mut self, n: usize, config: &Config) {
        if config.power == 0 {
            return;
        }
        let node = &mut self.nodes[n];
        (node.synced, node.synced_store) = (node.sending, node.store);
        node.synced_at = node.sent_at;
    }

    /// The node is about to change a cell of the canonical file, or (at `CELLS`) its size. What another node had
    /// written there was flushed when the file system gave the range to this node.
    pub fn changes(&mut self, n: usize, i: usize, config: &Config) {
        if config.power > 0 && self.unsynced[i].0 != n as u8 + 1 {
            self.unsynced[i] = (n as u8 + 1, *self.canonical(i));
        }
    }

    /// Syncs the canonical file: what this node wrote is safe.
    pub fn sync_canonical(&mut self, n: usize) {
        for unsynced in self.unsynced.iter_mut().filter(|u| u.0 == n as u8 + 1) {
            *unsynced = (0, 0);
        }
    }

    fn canonical(&mut self, i: usize) -> &mut u8 {
        if i < CELLS {
            &mut self.canon[i]
        } else {
            &mut self.size
        }
    }

    /// Returns which parts of the canonical file a power failure of the node can take: all combinations, except that
    /// the file cannot be shorter than the cells that are left of it.
    pub fn losses(&self, n: usize) -> impl Iterator<Item = u8> {
        let mine = |i: usize| self.unsynced[i].0 == n as u8 + 1;
        let all = (0..=CELLS)
            .filter(|&i| mine(i))
            .fold(0u8, |m, i| m | 1 << i);
        let size = 1 << CELLS;
        let before = self.unsynced[CELLS].1 as usize;
        let beyond = (before..CELLS).fold(0u8, |m, i| m | 1 << i) & all;
        (0..=all).filter(move |m| m & !all == 0 && (m & size == 0 || m & beyond == beyond))
    }

    /// The node dies and loses all that it had not synced: of its log all of it, of the canonical file the parts in
    /// `lost`.
    pub fn power_failure(&mut self, n: usize, lost: u8) {
        self.crash(n);
        let node = &mut self.nodes[n];
        (node.sending, node.store) = (node.synced, node.synced_store);
        node.sent_at = node.synced_at;
        let gone = self.nowhere(n);
        if EVENT_RANGE
            .into_iter()
            .any(|e| gone & self.fsynced & bit(e) != 0 && !self.replaced(n, e))
        {
            self.bad |= bad::FSYNCED;
        }
        for i in 0..=CELLS {
            let (by, before) = self.unsynced[i];
            if by != n as u8 + 1 {
                continue;
            }
            self.unsynced[i] = (0, 0);
            if lost & (1 << i) == 0 {
                continue;
            }
            *self.canonical(i) = before;
            // Ghost: bytes that were drained alone and are lost with the log will not be drained again.
            if i == CELLS {
                self.expect_size = if self.plan.term > self.base.term {
                    self.expect_size
                } else {
                    before
                };
            } else if self.expect[i] != 0 && gone & bit(self.expect[i]) != 0 {
                self.expect[i] = before;
            }
        }
        self.nobody_needs(gone);
    }

    /// Ghost: returns the events of a node that are in neither its store nor a batch, and that were never settled
    /// elsewhere.
    fn nowhere(&self, n: usize) -> u16 {
        let batches = self.layouts[n][..self.lens[n] as usize].iter();
        let published = batches.fold(0, |mask, batch| mask | batch.bytes.events());
        let node = &self.nodes[n];
        let kept = node.sending.events() | node.store.events();
        node.own & !(kept | published | self.settled)
    }

    /// Ghost: returns whether a later event of the same node that still exists covers the event's cells.
    fn replaced(&self, n: usize, event: u8) -> bool {
        let there = self.nodes[n].own & !self.nowhere(n);
        let cells = self.events[event as usize].cells;
        let mut later = EVENT_RANGE.filter(|&e| e > event);
        later.any(|e| there & bit(e) != 0 && self.events[e as usize].cells & cells == cells)
    }

    /// Ghost: forgets events that a power failure took before another node could see them.
    fn nobody_needs(&mut self, gone: u16) {
        self.lost |= gone;
        self.returned &= !gone;
        for event in &mut self.events {
            event.before &= !gone;
            event.saw &= !gone;
        }
        for node in &mut self.nodes {
            node.before &= !gone;
            node.target &= !gone;
            node.saw &= !gone;
        }
    }
}
