//! Appends that do not come back: seals, and the same batch in another layout.
//!
//! Such an append may come true at any moment, also when its node has long published the same bytes elsewhere and others have
//! written over them, and nobody can make it stop. Its layout therefore ends before it for everybody, by a link that is
//! made before the batch is repeated. A node has one such append at the most, and batches from there on are in a second
//! layout: both are one row of `layouts`, and a listing says which of the two there were.
//!
//! A process whose append hangs cannot end before that comes back: after a restart nothing of it can land any more.

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

    /// It comes true. If all else of its layout is gone it removes itself, and the seal.
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

    /// Nodes whose late batch whoever lists and reads everything now would take for one.
    pub fn late_in_sight(&self) -> u8 {
        let seen = |m: &usize| self.late[*m].is_some_and(|late| late.landed && !late.sealed);
        (0..NODES).filter(seen).fold(0, |bits, m| bits | 1 << m)
    }

    pub fn late_of(&self, m: usize, bits: u8) -> Option<Batch> {
        let late = self.late[m].filter(|_| bits & (1 << m) != 0)?;
        Some(late.batch)
    }

    /// What a listing says: layouts that are sealed (or have nothing late), and second layouts.
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

    /// Its node removes the layout. One that is being written to stays until that comes back.
    pub fn drop_late(&mut self, n: usize) {
        if self.late[n].is_some_and(|late| late.landed) {
            self.late[n] = None;
        }
    }

    /// A restart reads its own layouts: an append that came true is a batch like any other, unless it is behind a seal.
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
