//! Steps of programs, publish and defer.

use crate::config::{BATCHES, CELLS, Config, NODE_EVENTS, Op};
use crate::refresh::Who;
use crate::state::{Batch, Bytes, EVENT_RANGE, Event, Mode, Publish, Scan, State, Wait, bit};

impl State {
    /// Makes the next step of the node's program. Returns `false` if it cannot continue now.
    pub fn step_program(&mut self, n: usize, op: Op, config: &Config) -> bool {
        if self.nodes[n].wait != Wait::Nothing {
            return self.step_wait(n, op, config);
        }
        match op {
            Op::Open => self.begin_refresh(n),
            Op::Lock => {
                if self.lock != 0 {
                    return false;
                }
                self.lock = n as u8 + 1;
                self.begin_refresh(n);
            }
            Op::Write(cells) => {
                let size = CELLS as u8 - (cells << (8 - CELLS)).leading_zeros() as u8;
                let event = self.new_event(n, cells, size, false);
                self.nodes[n].store.write(cells, event);
                self.nodes[n].ip += 1;
            }
            Op::Truncate(size) => {
                if size < self.size_on(n, config) {
                    let cells = (0xff << size) & ((1 << CELLS) - 1);
                    let event = self.new_event(n, cells, size, true);
                    self.nodes[n].store.cut_to(size, event);
                } else {
                    let event = self.new_event(n, 0, size, false);
                    self.nodes[n].store.grow_to(size, event);
                }
                self.nodes[n].ip += 1;
            }
            Op::Close | Op::Unlock => {
                if self.nodes[n].publish != Publish::Idle {
                    return false;
                }
                if self.nodes[n].store.is_empty() && self.nodes[n].sending.is_empty() {
                    self.synced(n, op);
                } else {
                    self.begin_publish(n, config);
                    self.nodes[n].wait = Wait::Publish;
                }
            }
            Op::Defer => {
                if self.nodes[n].store.is_empty() && self.nodes[n].publish == Publish::Idle {
                    self.synced(n, op);
                } else {
                    self.announcements[n] = (self.announcements[n] << 1) | 1;
                    self.nodes[n].wait = Wait::TouchAnnouncement;
                }
            }
            Op::Unlink => {
                self.exists = false;
                self.nodes[n].ip += 1;
            }
            Op::SyncLocal => {
                if config.rules.fsync_syncs_log {
                    self.sync_log(n, config);
                }
                self.fsynced |= self.nodes[n].own & !self.lost;
                self.nodes[n].ip += 1;
            }
        }
        true
    }

    fn step_wait(&mut self, n: usize, op: Op, config: &Config) -> bool {
        match self.nodes[n].wait {
            Wait::Nothing => false,
            Wait::Refresh => match self.step_scan(n, Who::Program, config) {
                None => false,
                Some(complete) => {
                    if complete {
                        self.refreshed(n);
                    }
                    true
                }
            },
            Wait::Publish => false,
            Wait::TouchAnnouncement => {
                if config.rules.announcement_touches {
                    self.touch();
                }
                self.synced(n, op);
                true
            }
        }
    }

    fn new_event(&mut self, n: usize, cells: u8, size: u8, cut: bool) -> u8 {
        let count = self.nodes[n].own.count_ones() as usize;
        assert!(count < NODE_EVENTS, "a configuration has too many events");
        let event = (1 + n * NODE_EVENTS + count) as u8;
        let node = &mut self.nodes[n];
        self.events[event as usize] = Event {
            cells,
            cut,
            size,
            before: node.before,
            saw: node.saw | (node.own & !self.lost),
        };
        node.before |= bit(event);
        node.own |= bit(event);
        event
    }

    fn begin_refresh(&mut self, n: usize) {
        self.nodes[n].target = self.returned_closure();
        if self.nodes[n].token_known {
            self.refreshed(n);
        } else {
            self.begin_scan(n, Who::Program);
            self.nodes[n].wait = Wait::Refresh;
        }
    }

    fn returned_closure(&self) -> u16 {
        EVENT_RANGE
            .filter(|&e| self.returned & bit(e) != 0)
            .fold(0, |mask, e| mask | bit(e) | self.events[e as usize].before)
    }

    fn refreshed(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.before |= node.target;
        node.target = 0;
        node.wait = Wait::Nothing;
        node.ip += 1;
    }

    /// A close, fsync or unlock returns.
    fn synced(&mut self, n: usize, op: Op) {
        if op == Op::Unlock {
            self.lock = 0;
        }
        self.returned |= self.nodes[n].own & !self.lost;
        self.nodes[n].wait = Wait::Nothing;
        self.nodes[n].ip += 1;
    }

    /// Steps 1 and 2 of a publish: bytes and log are safe, and the bytes to publish are chosen.
    pub fn begin_publish(&mut self, n: usize, config: &Config) {
        let announcements = self.announcements[n];
        let node = &mut self.nodes[n];
        let newer = std::mem::take(&mut node.store);
        node.sending.apply(&newer);
        node.publish_announcements = announcements;
        self.sync_log(n, config);
        let node = &mut self.nodes[n];
        if config.rules.refresh_before_append {
            node.publish = Publish::Refresh;
            self.begin_scan(n, Who::Publish);
        } else {
            node.publish = Publish::Append;
        }
    }

    /// Begins a publish that no program waits for: of deferred bytes, of bytes left by a crash, or at the end of the
    /// program.
    pub fn begin_background(&mut self, n: usize, finished: bool, config: &Config) -> bool {
        let node = &self.nodes[n];
        let pending = self.announcements[n] != 0 || node.run > 0 || finished;
        if node.publish != Publish::Idle || !pending || node.wait == Wait::TouchAnnouncement {
            return false;
        }
        if node.store.is_empty() && node.sending.is_empty() {
            if self.announcements[n] == 0 || !config.rules.clean_store_ends_announcements {
                return false;
            }
            // Nothing is left to publish for these announcements.
            self.announcements[n] = 0;
            return true;
        }
        self.begin_publish(n, config);
        true
    }

    pub fn step_publish(&mut self, n: usize, op: Option<Op>, config: &Config) -> bool {
        let rules = &config.rules;
        match self.nodes[n].publish {
            Publish::Idle => return false,
            Publish::Refresh => match self.step_scan(n, Who::Publish, config) {
                None => return false,
                Some(true) => {
                    let announces = rules.touch_before_append && self.must_touch_first(n, config);
                    self.nodes[n].publish = if announces {
                        Publish::Announce
                    } else {
                        Publish::Append
                    };
                    if !rules.announcement_removed_last {
                        self.announcements[n] &= !self.nodes[n].publish_announcements;
                    }
                }
                Some(false) => {}
            },
            Publish::Announce => {
                self.touch();
                self.nodes[n].needs_touch = false;
                self.nodes[n].publish = Publish::Append;
            }
            Publish::Append => {
                let batch = self.next_batch(n, config);
                self.append(n, batch, config);
            }
            Publish::Seal(batch) => self.seal(n, batch),
            Publish::Repeat(batch) => self.append(n, batch, config),
            Publish::Forget => {
                self.forget(n);
                if rules.touch_after_append {
                    self.nodes[n].publish = Publish::Touch;
                } else {
                    self.touched(n, op, config);
                }
            }
            Publish::Touch => {
                self.touch();
                let batches = self.layouts[n][..self.lens[n] as usize].iter();
                self.settled |= batches.fold(0, |mask, batch| mask | batch.bytes.events());
                self.touched(n, op, config);
            }
            Publish::Announcements => {
                self.announcements[n] &= !self.nodes[n].publish_announcements;
                self.published(n, op);
            }
        }
        true
    }

    /// Returns `sending` as a batch.
    pub fn next_batch(&self, n: usize, config: &Config) -> Batch {
        let rules = &config.rules;
        let seen = self.largest_epoch(n);
        let epoch = if rules.epoch_above_seen { seen + 1 } else { 1 };
        let mut bytes = self.nodes[n].sending;
        if !rules.growth_is_published {
            let last = bytes
                .cells
                .iter()
                .rposition(|&event| self.unit(event).is_some());
            bytes.growth = last.map_or(0, |last| last as u8 + 1);
            bytes.grow_event = 0;
        }
        Batch { epoch, bytes }
    }

    fn append(&mut self, n: usize, batch: Batch, config: &Config) {
        let len = self.lens[n] as usize;
        assert!(len < BATCHES, "a configuration has too many batches");
        self.layouts[n][len] = batch;
        self.lens[n] += 1;
        self.nodes[n].sent_at = self.lens[n];
        if config.power > 0 {
            self.nodes[n].synced_at = self.lens[n];
        }
        self.nodes[n].view.lens[n] = self.lens[n];
        self.note_seen(n);
        self.nodes[n].publish = Publish::Forget;
    }

    /// Returns whether the node is about to publish on top of batches of other nodes for which the change token may
    /// not have been set yet.
    fn must_touch_first(&self, n: usize, config: &Config) -> bool {
        if config.rules.touch_whatever_epoch {
            return self.nodes[n].needs_touch;
        }
        let own = self.layouts[n][..self.lens[n] as usize].last();
        self.largest_epoch(n) > own.map_or(0, |batch| batch.epoch)
    }

    fn touched(&mut self, n: usize, op: Option<Op>, config: &Config) {
        if self.nodes[n].publish_announcements != 0 && config.rules.announcement_removed_last {
            self.nodes[n].publish = Publish::Announcements;
        } else {
            self.published(n, op);
        }
    }

    fn forget(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.sending = Bytes::default();
        node.sent_at = 0;
    }

    fn published(&mut self, n: usize, op: Option<Op>) {
        self.nodes[n].publish = Publish::Idle;
        self.nodes[n].publish_announcements = 0;
        if let (Wait::Publish, Some(op)) = (self.nodes[n].wait, op) {
            self.synced(n, op);
        }
    }

    /// Returns the largest epoch in the node's view. Layouts that are gone are covered by the base, which knows their
    /// largest epoch.
    fn largest_epoch(&self, n: usize) -> u8 {
        let view = &self.nodes[n].view;
        (0..view.lens.len())
            .flat_map(|m| self.layouts[m][..view.lens[m] as usize].iter())
            .map(|batch| batch.epoch)
            .chain(
                self.layouts[n][..self.lens[n] as usize]
                    .iter()
                    .map(|batch| batch.epoch),
            )
            .max()
            .unwrap_or(0)
    }

    pub fn crash(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.mode = Mode::Down;
        node.lapsed = false;
        node.publish = Publish::Idle;
        node.publish_announcements = 0;
        node.publish_scan = Scan::default();
        node.refresh_scan = Scan::default();
        node.drain_scan = Scan::default();
        node.token_known = false;
        node.view = Default::default();
        node.needs_touch = false;
        node.drain = Default::default();
        node.work = Default::default();
        node.term = 0;
        node.target = 0;
        // The programs died with the daemon. Later programs see only the node's own bytes until they open the file.
        node.before = node.own & !self.lost;
        node.saw = node.before;
        if node.wait != Wait::Nothing {
            node.wait = Wait::Nothing;
            node.ip += 1;
        }
        if self.lock == n as u8 + 1 {
            self.lock = 0;
        }
    }

    /// Opens the store again. The node's own layout says whether the bytes that it was sending are published; the
    /// change token may not have been set for them.
    pub fn restart(&mut self, n: usize, config: &Config) {
        self.find_late(n, config);
        let known = self.nodes[n].sent_at > self.gone[n];
        let touches = config.rules.restart_touches && self.lens[n] > self.gone[n];
        let node = &mut self.nodes[n];
        node.mode = Mode::Up;
        node.run += 1;
        node.view.lens[n] = self.lens[n];
        node.view.base = self.base;
        if node.sent_at != 0 && known && config.rules.restart_reads_own_layout {
            // Bytes that were written after the choice of bytes are pending under the same announcements, which then
            // must stay.
            if node.store.is_empty() {
                node.publish_announcements = self.announcements[n];
            }
            if touches {
                node.publish = Publish::Forget;
            } else {
                self.forget(n);
                self.touched(n, None, config);
            }
        } else {
            node.sent_at = 0;
            let newer = node.store;
            node.store = std::mem::take(&mut node.sending);
            node.store.apply(&newer);
            if touches {
                node.publish = Publish::Touch;
            }
        }
    }
}
