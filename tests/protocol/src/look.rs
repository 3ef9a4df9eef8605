//! Evaluates a state: the bytes and sizes that readers see, the result that a plan merges, and the faults.
//!
//! Every state is checked as if each node read every cell in it. A read is no step of the model, so "no stale read"
//! is checked at every moment after a sync point, and not only in the last state.

use crate::config::{CELLS, Config, NODES};
use crate::state::{
    Batch, Bytes, Cover, Drain, EVENT_RANGE, Mode, NO_CUT, State, View, WorkPhase, bad, bit,
};

/// The place where a reader with a given view finds a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In a batch, or in the canonical file.
    Event(u8),
    /// In a batch whose subfile is gone: the reader must refresh and try again.
    Gone,
}

impl State {
    /// Returns the view of a reader that reads the whole shared directory at this moment.
    pub fn fresh_view(&self) -> View {
        View {
            lens: self.lens,
            late: self.base.late | self.late_in_sight(),
            base: self.base,
            plan: self.plan,
        }
    }

    /// Finds the newest event of a cell in a view, by the order of all batches.
    pub fn find(&self, view: &View, cell: usize) -> Found {
        let mut newest = None;
        let mut add = |order, batch: &Batch| {
            let event = batch.bytes.cells[cell];
            if event != 0 && newest.is_none_or(|(found, _)| found < order) {
                newest = Some((order, event));
            }
        };
        for m in 0..NODES {
            for k in view.base.lens[m]..view.lens[m] {
                let batch = &self.layouts[m][k as usize];
                add((k >= view.plan.lens[m], batch.epoch, m, k), batch);
            }
            if let Some(batch) = self.late_of(m, view.late & !view.base.late) {
                let above = view.plan.late & (1 << m) == 0;
                add((above, batch.epoch, m, u8::MAX), &batch);
            }
        }
        match newest {
            None => Found::Event(self.canon[cell]),
            Some(((_, _, m, k), _)) if k < self.emptied[m] => Found::Gone,
            Some((_, event)) => Found::Event(event),
        }
    }

    /// Returns what a reader without a store finds. If the subfile is gone, that counts as the file before the first
    /// event.
    pub fn fresh(&self, cell: usize) -> u8 {
        match self.find(&self.fresh_view(), cell) {
            Found::Event(event) => event,
            Found::Gone => 0,
        }
    }

    /// Returns what a program on the node reads.
    pub fn read(&self, n: usize, cell: usize, config: &Config) -> u8 {
        let node = &self.nodes[n];
        if node.store.cells[cell] != 0 {
            return node.store.cells[cell];
        }
        let on_top = node.sent_at == 0 || !config.rules.own_batch_in_order;
        if on_top && node.sending.cells[cell] != 0 {
            return node.sending.cells[cell];
        }
        match self.find(&node.view, cell) {
            Found::Event(event) => event,
            Found::Gone => self.fresh(cell),
        }
    }

    /// Returns the size of the file for a program on the node.
    pub fn size_on(&self, n: usize, config: &Config) -> u8 {
        let node = &self.nodes[n];
        let view = &node.view;
        let base = Cover {
            lens: std::array::from_fn(|m| {
                view.base.lens[m].max(view.plan.lens[m].min(view.lens[m]))
            }),
            late: view.base.late | (view.plan.late & view.late),
            ..view.plan
        };
        let seen = Cover {
            lens: view.lens,
            late: view.late,
            ..view.base
        };
        let older = self.merge(&view.base, &base);
        let newer = self.merge(&base, &seen);
        let mut size = newer.size_over(older.size_over(self.size));
        if node.sent_at == 0 || !config.rules.own_batch_in_order {
            size = node.sending.size_over(size);
        }
        node.store.size_over(size)
    }

    /// Returns whether the node shows a size that is older than the one it must see.
    fn size_outdated(&self, n: usize, config: &Config) -> bool {
        let size = self.size_on(n, config);
        let after = |e: u8, older: u8| self.events[e as usize].before & bit(older) != 0;
        let must = self.nodes[n].before;
        EVENT_RANGE.filter(|&e| must & bit(e) != 0).any(|e| {
            let event = &self.events[e as usize];
            // Any event that did not happen before `e` may have changed the size since.
            let other = |changes: &dyn Fn(u8) -> bool| {
                EVENT_RANGE
                    .into_iter()
                    .any(|o| o != e && changes(o) && !after(e, o))
            };
            let of = |o: u8| &self.events[o as usize];
            let shorter = size < event.size && !other(&|o| of(o).cut && of(o).size < event.size);
            let longer = event.cut && size > event.size && !other(&|o| of(o).size > event.size);
            shorter || longer
        })
    }

    /// Merges all batches beyond `base` and up to `cover`, in their order, into one.
    pub fn merge(&self, base: &Cover, cover: &Cover) -> Bytes {
        let mut merged = Bytes::default();
        for (_, batch) in self.in_order(base, cover) {
            merged.apply(&batch.bytes);
        }
        merged
    }

    fn in_order(&self, base: &Cover, cover: &Cover) -> Vec<((u8, usize, u8), Batch)> {
        let mut batches = Vec::new();
        for m in 0..NODES {
            for k in base.lens[m]..cover.lens[m] {
                let batch = self.layouts[m][k as usize];
                batches.push(((batch.epoch, m, k), batch));
            }
            if let Some(batch) = self.late_of(m, cover.late & !base.late) {
                batches.push(((batch.epoch, m, u8::MAX), batch));
            }
        }
        batches.sort_unstable_by_key(|(order, _)| *order);
        batches
    }

    /// Cuts the canonical file, as step 2 of a round does. Each cell beyond the cut is then as the newest truncate
    /// left it.
    pub fn cut_canonical(&mut self, n: usize, base: &Cover, cover: &Cover, config: &Config) {
        let merged = self.merge(base, cover);
        if merged.cut == NO_CUT {
            return;
        }
        self.changes(n, CELLS, config);
        self.size = self.size.min(merged.cut);
        for cell in merged.cut as usize..CELLS {
            self.changes(n, cell, config);
            self.canon[cell] = self.newest_cut(base, cover, cell);
        }
    }

    fn newest_cut(&self, base: &Cover, cover: &Cover, cell: usize) -> u8 {
        let batches = self.in_order(base, cover);
        let mut cuts = batches.iter().rev();
        cuts.find(|(_, batch)| batch.bytes.cut as usize <= cell)
            .map_or(self.canon[cell], |(_, batch)| batch.bytes.cut_event)
    }

    /// Returns whether an event of `set` covers the cell and came after `event`. With `saw`, an event comes after
    /// those that its node had seen; otherwise after those that happened before it.
    fn outdated(&self, event: u8, cell: usize, set: u16, saw: bool) -> bool {
        EVENT_RANGE.into_iter().any(|e| {
            let other = &self.events[e as usize];
            let older = if saw { other.saw } else { other.before };
            set & bit(e) != 0
                && e != event
                && other.cells & (1 << cell) != 0
                && (event == 0 || older & bit(event) != 0)
        })
    }

    /// Returns whether the node holds a live lease and may write the domain in its next step.
    fn writes(&self, n: usize, domain: usize, config: &Config) -> bool {
        let node = &self.nodes[n];
        if node.mode != Mode::Up || (node.lapsed && config.rules.lapsed_gives_up) {
            return false;
        }
        let work = node.work.phase == WorkPhase::Write && node.work.domain as usize == domain;
        let holder = match node.drain {
            Drain::Stripe { cell, .. } => cell as usize == domain,
            Drain::Cut | Drain::SyncCut | Drain::Plan => true,
            _ => false,
        };
        work || holder
    }

    /// Returns whether nothing is left to drain.
    pub fn drained(&self, config: &Config) -> bool {
        self.base.term == self.plan.term
            && (0..config.nodes()).all(|n| {
                let node = &self.nodes[n];
                self.base.lens[n] == self.lens[n]
                    && node.store.is_empty()
                    && node.sending.is_empty()
                    && !matches!(
                        node.drain,
                        Drain::Stripe { .. } | Drain::SyncStripe { .. } | Drain::Record { .. }
                    )
            })
    }

    /// Records what is wrong with this state.
    pub fn judge(&mut self, config: &Config) {
        if !self.exists {
            return;
        }
        for cell in 0..CELLS {
            let fresh = self.fresh(cell);
            if self.outdated(fresh, cell, self.settled, false) {
                self.bad |= bad::LOST;
            }
            if self.outdated(fresh, cell, self.settled, true) {
                self.bad |= bad::ORDER;
            }
            for n in 0..config.nodes() {
                if self.nodes[n].mode != Mode::Up {
                    continue;
                }
                if self.outdated(
                    self.read(n, cell, config),
                    cell,
                    self.nodes[n].before,
                    false,
                ) {
                    self.bad |= bad::STALE;
                }
            }
            if (0..config.nodes())
                .filter(|&n| self.writes(n, cell, config))
                .count()
                > 1
            {
                self.bad |= bad::TWO_WRITERS;
            }
        }
        for n in 0..config.nodes() {
            if self.nodes[n].mode == Mode::Up && self.size_outdated(n, config) {
                self.bad |= bad::SIZE;
            }
        }
        if self.drained(config) && (self.canon != self.expect || self.size != self.expect_size) {
            self.bad |= bad::CANON;
        }
    }
}
