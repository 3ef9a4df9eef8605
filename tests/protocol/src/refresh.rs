//! Refresh: one stat, then a listing and one read for each layout, each a step of its own.
//!
//! The same steps serve open and lock, which wait for announcements, and a publish and the holder of a term, which do
//! not: two nodes that wait for each other's announcements before they publish would wait for ever.

use crate::config::Config;
use crate::state::{NODES_RANGE, Scan, ScanPhase, State, bit};

/// The user of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Program,
    Publish,
    Drain,
}

impl State {
    pub fn scan_mut(&mut self, n: usize, who: Who) -> &mut Scan {
        let node = &mut self.nodes[n];
        match who {
            Who::Program => &mut node.refresh_scan,
            Who::Publish => &mut node.publish_scan,
            Who::Drain => &mut node.drain_scan,
        }
    }

    /// Makes the first stat.
    pub fn begin_scan(&mut self, n: usize, who: Who) {
        *self.scan_mut(n, who) = Scan {
            phase: ScanPhase::List,
            same: true,
            ..Scan::default()
        };
    }

    /// Makes one step. Returns `None` if it cannot continue now, and `Some(true)` if the refresh is complete and the
    /// view is new.
    pub fn step_scan(&mut self, n: usize, who: Who, config: &Config) -> Option<bool> {
        let rules = &config.rules;
        let mut scan = *self.scan_mut(n, who);
        match scan.phase {
            ScanPhase::Idle => return None,
            ScanPhase::List => {
                let waits = match who {
                    Who::Program => rules.wait_for_announcement,
                    Who::Publish => !rules.publish_does_not_wait,
                    Who::Drain => false,
                };
                if waits && (0..config.nodes()).any(|m| m != n && self.announcements[m] != 0) {
                    return None;
                }
                scan.found.base = self.base;
                scan.found.plan = self.plan;
                scan.found.lens = self.base.lens;
                scan.found.late = self.base.late;
                scan.vanished = false;
                (scan.sealed, scan.second) = self.list_seals(config);
                scan.phase = self.next_read(n, 0, config);
            }
            ScanPhase::Read(m) => {
                self.read_layout(m as usize, &mut scan);
                let known = self.nodes[n].view.lens[m as usize];
                self.nodes[n].needs_touch |= scan.found.lens[m as usize] > known;
                scan.phase = self.next_read(n, m as usize + 1, config);
            }
            ScanPhase::Stat => {
                let changed = (!scan.same && rules.second_look)
                    || (scan.vanished && rules.vanished_layout_lists_again);
                scan.found.lens[n] = self.lens[n];
                if changed {
                    scan.phase = ScanPhase::List;
                    scan.same = true;
                } else {
                    self.complete_scan(n, who, &scan, config);
                    return Some(true);
                }
            }
        }
        *self.scan_mut(n, who) = scan;
        Some(false)
    }

    /// Returns the next layout that the listing shows, from `m` on.
    fn next_read(&self, n: usize, m: usize, config: &Config) -> ScanPhase {
        (m..config.nodes())
            .find(|&m| m != n && (self.lens[m] > self.gone[m] || self.late[m].is_some()))
            .map_or(ScanPhase::Stat, |m| ScanPhase::Read(m as u8))
    }

    fn complete_scan(&mut self, n: usize, who: Who, scan: &Scan, config: &Config) {
        let sealed = match config.rules.seal_is_remembered {
            true => scan.sealed,
            false => 0,
        };
        self.nodes[n].view.merge(&scan.found, sealed);
        if who == Who::Program {
            self.nodes[n].token_known = scan.same;
        }
        self.note_seen(n);
        if who != Who::Drain {
            *self.scan_mut(n, who) = Scan::default();
        } else {
            self.nodes[n].drain_scan.phase = ScanPhase::Idle;
            self.nodes[n].drain_scan.found = scan.found;
        }
    }

    /// Ghost: a node with a batch in its view has seen the batch's events and what they had seen, and must see no
    /// less than what came before them. This is not so for a late batch: it may be gone again, and its close has not
    /// returned.
    pub fn note_seen(&mut self, n: usize) {
        for m in NODES_RANGE {
            for k in 0..self.nodes[n].view.lens[m] {
                let bytes = self.layouts[m][k as usize].bytes;
                let grown = (bytes.grow_event != 0).then_some(bytes.grow_event);
                for e in bytes.cells.into_iter().chain(grown) {
                    let event = self.events[e as usize];
                    self.nodes[n].saw |= bit(e) | event.saw;
                    self.nodes[n].before |= bit(e) | event.before;
                }
            }
        }
    }

    /// Sets a new change token: a node that remembers an older one does not take it for this one.
    pub fn touch(&mut self) {
        for node in &mut self.nodes {
            node.token_known = false;
            for scan in [
                &mut node.refresh_scan,
                &mut node.publish_scan,
                &mut node.drain_scan,
            ] {
                scan.same = false;
            }
        }
    }

    /// The layout of `m` is removed. Nodes that have listed it and not read it yet find it gone.
    pub fn vanish(&mut self, m: usize) {
        for node in &mut self.nodes {
            for scan in [
                &mut node.refresh_scan,
                &mut node.publish_scan,
                &mut node.drain_scan,
            ] {
                if matches!(scan.phase, ScanPhase::Read(k) if k as usize <= m) {
                    scan.vanished = true;
                }
            }
        }
    }
}
