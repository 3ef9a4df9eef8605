//! Appends that do not return: seals, and the same batch in another layout.
//!
//! Such an append cannot be cancelled. It may still take effect ("land") at any moment, even long after its node has
//! published the same bytes elsewhere and other nodes have overwritten them. Therefore a seal, a link that is made
//! before the batch is repeated, ends the layout before that batch, and readers discard batches past the seal. A node
//! has at most one such append; its batches from there on are in a second layout. Both layouts are one row of
//! `layouts`, and a listing says which of the two there were.
//!
//! A process whose append hangs cannot end before the append returns, so nothing of it can land after a restart.

use crate::config::{Config, NODES};
use crate::state::{Batch, Late, Publish, Scan, State};

impl State {
    pub fn hang(&mut self, n: usize, config: &Config) {
        let batch = self.next_batch(n, config);
        self.late[n] = Some(Late {
            batch,
            at: self.lens[n],
            landed: false,
            sealed: false,
        });
        self.nodes[n].publish = match config.rules.sealed_before_repeated {
            true => Publish::Seal(batch),
            false => Publish::Repeat(batch),
        };
    }

    /// The append takes effect. If everything else of its layout is gone, it removes itself and the seal.
    pub fn land(&mut self, n: usize) -> bool {
        let Some(late) = self.late[n].as_mut() else {
            return false;
        };
        late.landed = true;
        if late.sealed && self.gone[n] > late.at {
            self.late[n] = None;
        }
        true
    }

    pub fn seal(&mut self, n: usize, batch: Batch) {
        if let Some(late) = self.late[n].as_mut() {
            late.sealed = true;
        }
        self.nodes[n].publish = Publish::Repeat(batch);
    }

    /// Returns the nodes whose late batch has landed and is not sealed: a reader that lists and reads everything now
    /// takes it for a valid batch.
    pub fn late_in_sight(&self) -> u8 {
        let seen = |m: &usize| self.late[*m].is_some_and(|late| late.landed && !late.sealed);
        (0..NODES).filter(seen).fold(0, |bits, m| bits | 1 << m)
    }

    pub fn late_of(&self, m: usize, bits: u8) -> Option<Batch> {
        let late = self.late[m].filter(|_| bits & (1 << m) != 0)?;
        Some(late.batch)
    }

    /// Returns what a listing shows: the layouts that are sealed (or have no late append), and the second layouts.
    pub fn list_seals(&self, config: &Config) -> (u8, u8) {
        let mut found = (0, 0);
        for m in 0..config.nodes() {
            let sealed = self.late[m].is_none_or(|late| late.sealed);
            if sealed && config.rules.nothing_behind_a_seal {
                found.0 |= 1 << m;
            }
            if self.late[m].is_some_and(|late| self.lens[m] > late.at) {
                found.1 |= 1 << m;
            }
        }
        found
    }

    /// Reads the layouts of `m` that were listed.
    pub fn read_layout(&self, m: usize, scan: &mut Scan) {
        let bit = 1 << m;
        let Some(late) = self.late[m] else {
            scan.found.lens[m] = self.lens[m];
            return;
        };
        scan.found.lens[m] = match scan.second & bit != 0 {
            true => self.lens[m],
            false => self.lens[m].min(late.at).max(scan.found.lens[m]),
        };
        if scan.sealed & bit == 0 && late.landed {
            scan.found.late |= bit;
        }
    }

    /// A node removes its layout. A layout that an append still hangs on stays until the append has landed.
    pub fn drop_late(&mut self, n: usize) {
        if self.late[n].is_some_and(|late| late.landed) {
            self.late[n] = None;
        }
    }

    /// A restart reads its own layouts: an append that has landed is a batch like any other, unless it is past a
    /// seal.
    pub fn find_late(&mut self, n: usize, config: &Config) {
        let Some(late) = self.late[n] else {
            return;
        };
        if late.sealed {
            if late.landed && self.nodes[n].sent_at == 0 && !config.rules.restart_heeds_seal {
                self.nodes[n].sending = Default::default();
            }
            return;
        }
        self.late[n] = None;
        let repeated = self.lens[n] > late.at;
        if !late.landed || repeated {
            return;
        }
        self.layouts[n][late.at as usize] = late.batch;
        self.lens[n] = late.at + 1;
        self.nodes[n].sent_at = self.lens[n];
        let (bit, len) = (1 << n, self.lens[n]);
        let move_in = |bits: &mut u8, lens: &mut [u8; NODES]| {
            if *bits & bit != 0 {
                *bits &= !bit;
                lens[n] = len;
            }
        };
        let mut views = vec![];
        for node in &mut self.nodes {
            let Scan { found: a, .. } = &mut node.refresh_scan;
            let Scan { found: b, .. } = &mut node.publish_scan;
            let Scan { found: c, .. } = &mut node.drain_scan;
            views.extend([&mut node.view, a, b, c]);
            move_in(&mut node.work.plan.late, &mut node.work.plan.lens);
        }
        for view in views {
            move_in(&mut view.late, &mut view.lens);
            move_in(&mut view.base.late, &mut view.base.lens);
            move_in(&mut view.plan.late, &mut view.plan.lens);
        }
        move_in(&mut self.plan.late, &mut self.plan.lens);
        move_in(&mut self.base.late, &mut self.base.lens);
    }
}
