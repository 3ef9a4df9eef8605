//! Power failures: what a node loses with them, and what must come back.
//!
//! A node loses what it had written and not synced: of its log, and of the canonical file, of which any part may have got
//! there all the same. What is in the shared directory stays: its files are synced before anybody counts on them, and names
//! are the server's matter. Only configurations with power failures have this; elsewhere nothing here is touched.

use crate::config::{CELLS, Config};
use crate::state::{EVENT_RANGE, State, bad, bit};

impl State {
    /// What the node has now is what a power failure leaves of its log.
    pub fn sync_log(&mut self, n: usize, config: &Config) {
        if config.power == 0 {
            return;
        }
        let node = &mut self.nodes[n];
        (node.synced, node.synced_store) = (node.sending, node.store);
        node.synced_at = node.sent_at;
    }

    /// The node is about to change a cell of the canonical file, or (at `CELLS`) its size. What another had written there was
    /// flushed when the file system gave the range to this one.
    pub fn changes(&mut self, n: usize, i: usize, config: &Config) {
        if config.power > 0 && self.unsynced[i].0 != n as u8 + 1 {
            self.unsynced[i] = (n as u8 + 1, *self.canonical(i));
        }
    }

    /// The node syncs the canonical file: what it wrote itself is safe.
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

    /// Which parts of the canonical file a power failure of the node can take: all combinations, but that a file cannot be
    /// shorter than what is left of it.
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

    /// The node dies, and with it all that it had not synced: of its log, and of the canonical file what `lost` says.
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
            // Ghost: what was drained alone and lost with the log will not be drained again.
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

    /// Ghost: events of a node that no store and no batch has and that were never anywhere else for certain.
    fn nowhere(&self, n: usize) -> u16 {
        let batches = self.layouts[n][..self.lens[n] as usize].iter();
        let published = batches.fold(0, |mask, batch| mask | batch.bytes.events());
        let node = &self.nodes[n];
        let kept = node.sending.events() | node.store.events();
        node.own & !(kept | published | self.settled)
    }

    /// Ghost: a later event of the same node that is still there has its cells.
    fn replaced(&self, n: usize, event: u8) -> bool {
        let there = self.nodes[n].own & !self.nowhere(n);
        let cells = self.events[event as usize].cells;
        let mut later = EVENT_RANGE.filter(|&e| e > event);
        later.any(|e| there & bit(e) != 0 && self.events[e as usize].cells & cells == cells)
    }

    /// Ghost: a power failure took them before anybody else could see them.
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
