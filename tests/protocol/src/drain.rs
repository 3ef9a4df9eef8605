//! Terms, draining alone, rounds, domains, reclaim.
//!
//! The check of the lease and the write that follows it are one step. A node that is stopped between the two is the
//! cost that the decision names, not a state of the model.

use crate::config::{CELLS, Config, NODES, TERMS, TRIES};
use crate::refresh::Who;
use crate::state::{
    Cover, Drain, Mode, Publish, Scan, State, Work, WorkPhase, bad, bit, owner, owner_node,
};

impl State {
    fn highest_term(&self) -> u8 {
        (0..TERMS).rev().find(|&t| self.terms[t] != 0).unwrap_or(0) as u8
    }

    /// Returns whether `me` may treat the holder of a link as dead: its heartbeat has stopped, or its node has
    /// another run by now, or it is `me` itself, which no longer holds the link.
    fn dead(&self, holder: u8, me: usize) -> bool {
        let (m, run) = owner_node(holder);
        let node = &self.nodes[m];
        m == me || node.run != run || node.mode != Mode::Up || node.lapsed
    }

    /// Checks the lease before a write to the canonical file.
    fn may_write(&mut self, n: usize, config: &Config) -> bool {
        if self.nodes[n].lapsed {
            if config.rules.lease_checked {
                return false;
            }
            self.bad |= bad::LATE;
        }
        if !self.exists && !config.rules.drain_never_creates {
            self.bad |= bad::GHOST;
        }
        true
    }

    fn anything_to_drain(&self, n: usize, config: &Config) -> bool {
        self.plan.term > self.base.term
            || self.lens != self.base.lens
            || self.late_in_sight() & !self.base.late != 0
            || (config.alone && !self.nodes[n].store.is_empty())
    }

    pub fn step_drain(&mut self, n: usize, config: &Config) -> bool {
        let rules = &config.rules;
        let term = self.nodes[n].term;
        match self.nodes[n].drain {
            Drain::Idle => return self.list_terms(n, config),
            Drain::Take => {
                if self.terms[term as usize] == 0 {
                    self.terms[term as usize] = owner(n, self.nodes[n].run);
                    self.nodes[n].drain = Drain::Again;
                } else {
                    self.leave_term(n);
                }
            }
            Drain::Again => {
                if self.highest_term() > term && rules.term_listed_again {
                    self.leave_term(n);
                } else {
                    self.clean_terms(term);
                    self.begin_scan(n, Who::Drain);
                    self.nodes[n].drain = Drain::Refresh;
                }
            }
            Drain::Refresh => match self.step_scan(n, Who::Drain, config) {
                None => return false,
                Some(true) => self.decide(n, config),
                Some(false) => {}
            },
            Drain::Alone => self.nodes[n].drain = self.next_stripe(n, config),
            Drain::Stripe { cell, event } => {
                if !self.may_write(n, config) {
                    return false;
                }
                self.put(n, cell as usize, event, config);
                self.expect[cell as usize] = event;
                self.expect_size = self.expect_size.max(cell + 1);
                self.nodes[n].drain = if config.power > 0 && rules.alone_synced_before_record {
                    Drain::SyncStripe { cell, event }
                } else {
                    Drain::Record { cell, event }
                };
            }
            Drain::SyncStripe { cell, event } => {
                self.sync_canonical(n);
                self.nodes[n].drain = Drain::Record { cell, event };
            }
            Drain::Record { cell, event } => {
                self.record_stripe(n, cell as usize, event);
                if self.nodes[n].store.is_empty() && rules.alone_end_synced {
                    self.sync_log(n, config);
                }
                self.nodes[n].drain = Drain::Alone;
            }
            _ => return self.step_round(n, config),
        }
        true
    }

    fn list_terms(&mut self, n: usize, config: &Config) -> bool {
        let highest = self.highest_term();
        let free = highest == 0
            || self.ended & (1 << highest) != 0
            || self.dead(self.terms[highest as usize], n)
            || !config.rules.term_only_after_end;
        if !free || highest >= config.terms || !self.exists || !self.anything_to_drain(n, config) {
            return false;
        }
        self.nodes[n].term = highest + 1;
        self.nodes[n].drain = Drain::Take;
        true
    }

    /// Removes the links of older terms. A node that still acts on an old listing may now make one of them again.
    fn clean_terms(&mut self, term: u8) {
        for t in 0..term as usize {
            self.terms[t] = 0;
        }
        self.ended &= !((1 << term) - 1);
    }

    fn leave_term(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.drain = Drain::Idle;
        node.term = 0;
        node.drain_scan = Scan::default();
    }

    /// Decides what a new holder does after its refresh: finish a plan, make one, drain alone, or end the term.
    fn decide(&mut self, n: usize, config: &Config) {
        let found = self.nodes[n].drain_scan.found;
        let news = (0..NODES).any(|m| found.beyond_base(m));
        self.nodes[n].drain =
            if found.plan.term > found.base.term && config.rules.plan_is_finished_first {
                if !config.rules.no_new_cut && self.may_write(n, config) {
                    self.cut_canonical(n, &found.base, &found.plan, config);
                }
                Drain::Domains
            } else if news && config.rules.cut_before_plan {
                Drain::Cut
            } else if news {
                Drain::Plan
            } else if config.alone && !self.nodes[n].store.is_empty() {
                Drain::Alone
            } else {
                Drain::End
            };
    }

    fn next_stripe(&self, n: usize, config: &Config) -> Drain {
        let node = &self.nodes[n];
        let foreign = (0..NODES).any(|m| m != n && node.view.beyond_base(m));
        let own = node.view.beyond_base(n)
            || self.lens[n] > node.view.lens[n]
            || node.publish != Publish::Idle;
        let cell = (0..CELLS).find(|&i| node.store.cells[i] != 0);
        match cell {
            Some(cell)
                if node.store.cut == crate::state::NO_CUT
                    && !(foreign && config.rules.alone_stops_at_foreign)
                    && !(own && config.rules.alone_stops_at_own) =>
            {
                Drain::Stripe {
                    cell: cell as u8,
                    event: node.store.cells[cell],
                }
            }
            _ => Drain::End,
        }
    }

    fn record_stripe(&mut self, n: usize, cell: usize, event: u8) {
        let node = &mut self.nodes[n];
        if node.store.cells[cell] == event {
            node.store.cells[cell] = 0;
            if node.store.cells == [0; CELLS] {
                node.store = Default::default();
            }
        }
        if (node.store.events() | node.sending.events()) & bit(event) == 0 {
            self.settled |= bit(event);
        }
    }

    fn put(&mut self, n: usize, cell: usize, event: u8, config: &Config) {
        self.changes(n, cell, config);
        self.canon[cell] = event;
        self.grow(n, cell as u8 + 1, config);
    }

    fn grow(&mut self, n: usize, size: u8, config: &Config) {
        if size > self.size {
            self.changes(n, CELLS, config);
            self.size = size;
        }
    }

    fn step_round(&mut self, n: usize, config: &Config) -> bool {
        let rules = &config.rules;
        let term = self.nodes[n].term;
        let found = self.nodes[n].drain_scan.found;
        let cover = Cover {
            term,
            lens: found.lens,
            late: found.late,
        };
        match self.nodes[n].drain {
            Drain::Cut => {
                if !self.may_write(n, config) {
                    return false;
                }
                self.cut_canonical(n, &found.base, &cover, config);
                self.nodes[n].drain = if config.power > 0 && rules.cut_synced_before_plan {
                    Drain::SyncCut
                } else if rules.cut_before_plan {
                    Drain::Plan
                } else {
                    Drain::Domains
                };
            }
            Drain::SyncCut => {
                self.sync_canonical(n);
                self.nodes[n].drain = Drain::Plan;
            }
            Drain::Plan => {
                if self.nodes[n].lapsed && rules.lease_checked {
                    return false;
                }
                self.make_plan(n, &found.base, cover);
                self.nodes[n].drain = if rules.cut_before_plan {
                    Drain::Domains
                } else {
                    Drain::Cut
                };
            }
            Drain::Domains => {
                if self.base.term >= found.plan.term {
                    self.nodes[n].drain = Drain::End;
                } else if self.done == (1 << CELLS) - 1 || !rules.base_after_done {
                    if !self.may_write(n, config) {
                        return false;
                    }
                    let merged = self.merge(&found.base, &found.plan);
                    if rules.round_sets_size {
                        self.grow(n, merged.growth, config);
                    }
                    self.nodes[n].drain = if config.power > 0 && rules.size_synced_before_base {
                        Drain::SyncSize
                    } else {
                        Drain::Base
                    };
                } else {
                    return false;
                }
            }
            Drain::SyncSize => {
                self.sync_canonical(n);
                self.nodes[n].drain = Drain::Base;
            }
            Drain::Base => {
                if found.plan.term > self.base.term {
                    self.base = found.plan;
                }
                self.nodes[n].drain = Drain::Touch;
            }
            Drain::Touch => {
                self.touch();
                self.nodes[n].drain = Drain::End;
            }
            Drain::End => {
                self.ended |= 1 << term;
                self.leave_term(n);
            }
            _ => return false,
        }
        true
    }

    fn make_plan(&mut self, n: usize, base: &Cover, cover: Cover) {
        let merged = self.merge(base, &cover);
        self.plan = cover;
        self.claims = Default::default();
        // A domain that the merge does not touch is done: there is nothing to write for it.
        self.done = (0..CELLS)
            .filter(|&i| self.unit(merged.cells[i]).is_none())
            .fold(0, |mask, i| mask | 1 << i);
        self.nodes[n].drain_scan.found.plan = cover;
        self.expect_size = self.expect_size.min(merged.cut).max(merged.growth);
        for i in 0..CELLS {
            if merged.cells[i] != 0 {
                self.expect[i] = merged.cells[i];
            }
        }
    }

    /// Returns what is written for a cell of a merge: nothing if the cell is untouched or cut.
    pub fn unit(&self, event: u8) -> Option<u8> {
        (event != 0 && !self.events[event as usize].cut).then_some(event)
    }

    /// Lists the claims of a domain of the unfinished plan and finds the try that may be made.
    pub fn begin_work(&mut self, n: usize, domain: u8) -> bool {
        let unfinished = self.plan.term > self.base.term && self.done & (1 << domain) == 0;
        if self.nodes[n].work.phase != WorkPhase::Idle || !unfinished {
            return false;
        }
        let claims = &self.claims[domain as usize];
        let attempt = claims.iter().position(|&c| c == 0).unwrap_or(TRIES);
        if attempt == TRIES || (attempt > 0 && !self.dead(claims[attempt - 1], n)) {
            return false;
        }
        // The worker refreshes first, and discards batches that are sealed by then.
        let plan = Cover {
            late: self.plan.late & (self.base.late | self.late_in_sight()),
            ..self.plan
        };
        let event = self.merge(&self.base, &plan).cells[domain as usize];
        self.nodes[n].work = Work {
            phase: WorkPhase::Take,
            domain,
            attempt: attempt as u8,
            plan: self.plan,
            event,
        };
        true
    }

    pub fn step_work(&mut self, n: usize, config: &Config) -> bool {
        let rules = &config.rules;
        let work = self.nodes[n].work;
        let current = self.plan.term == work.plan.term;
        let claim = &mut self.claims[work.domain as usize][work.attempt as usize];
        let next = match work.phase {
            WorkPhase::Idle => return false,
            WorkPhase::Take if !current => WorkPhase::Again,
            WorkPhase::Take if *claim != 0 => WorkPhase::Idle,
            WorkPhase::Take => {
                *claim = owner(n, self.nodes[n].run);
                WorkPhase::Again
            }
            WorkPhase::Again => {
                let open = current
                    && self.base.term < work.plan.term
                    && self.done & (1 << work.domain) == 0;
                if open || !rules.domain_listed_again {
                    WorkPhase::Write
                } else {
                    WorkPhase::Idle
                }
            }
            WorkPhase::Write => {
                if !self.may_write(n, config) {
                    return false;
                }
                if let Some(event) = self.unit(work.event) {
                    self.put(n, work.domain as usize, event, config);
                }
                if config.power > 0 && rules.domain_synced_before_done {
                    WorkPhase::Sync
                } else {
                    WorkPhase::Done
                }
            }
            WorkPhase::Sync => {
                self.sync_canonical(n);
                WorkPhase::Done
            }
            WorkPhase::Done => {
                if self.nodes[n].lapsed && rules.done_under_lease {
                    return false;
                }
                if current {
                    self.done |= 1 << work.domain;
                }
                WorkPhase::Idle
            }
        };
        self.nodes[n].work = match next {
            WorkPhase::Idle => Work::default(),
            phase => Work { phase, ..work },
        };
        true
    }

    /// Removes the layout of `n` and its subfiles, if `by` is the node itself. If `n` is dead, another node removes
    /// only its subfiles.
    pub fn reclaim(&mut self, n: usize, by: usize, config: &Config) -> bool {
        let rules = &config.rules;
        let covered = if rules.reclaim_after_base {
            self.base.lens[n]
        } else {
            self.plan.lens[n]
        };
        let adopts = by != n && rules.adoption_leaves_layouts;
        let removed = if adopts {
            self.emptied[n]
        } else {
            self.gone[n]
        };
        let needed = by == n && self.nodes[n].sent_at != 0 && rules.reclaim_after_forget
            || self.late[n].is_some_and(|late| !late.sealed);
        if removed == self.lens[n] || covered < self.lens[n] || needed {
            return false;
        }
        if by == n && rules.forget_synced_before_reclaim {
            self.sync_log(n, config);
        }
        self.emptied[n] = self.lens[n];
        if !adopts {
            self.gone[n] = self.lens[n];
            self.drop_late(n);
            self.vanish(n);
        }
        true
    }

    /// A node finds that its lease has lapsed: it gives up what it held, then the heartbeat resumes.
    pub fn notice_lapse(&mut self, n: usize, config: &Config) {
        self.nodes[n].lapsed = false;
        if !config.rules.lapsed_gives_up {
            return;
        }
        let held = !matches!(self.nodes[n].drain, Drain::Idle | Drain::Take);
        if held {
            self.ended |= 1 << self.nodes[n].term;
        }
        self.leave_term(n);
        self.nodes[n].work = Work::default();
    }
}
