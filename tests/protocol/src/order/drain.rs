//! The drain: alone, or a plan that is a cut in time.

use super::state::{Cells, Drain, Entry, Plan, State, merge, newest};
use super::steps::mask;
use super::{CELLS, Config};

impl Config {
    pub(super) fn drain(&self, s: &mut State, n: usize) -> bool {
        if s.nodes[n].lapsed {
            return false;
        }
        match s.nodes[n].drain {
            Drain::Idle => self.take(s, n),
            Drain::Alone => self.drain_alone(s, n),
            Drain::Listed(_) => {
                let now = s.nodes[n].clock.max(s.writes_known(self, n));
                s.dir.intent = s.dir.intent.max(now);
                let Drain::Listed(writers) = s.nodes[n].drain else {
                    return false;
                };
                self.plan(s, n, writers)
            }
            Drain::Cut => {
                let writers = s.dir.writers;
                self.plan(s, n, writers)
            }
            Drain::Write => self.write_plan(s, n),
        }
    }

    /// Takes the term.
    fn take(&self, s: &mut State, n: usize) -> bool {
        let free = s
            .dir
            .holder
            .is_none_or(|m| m as usize == n || s.nodes[m as usize].is_dead());
        if !free {
            return false;
        }
        let others = s.dir.writers & !mask(n);
        let foreign = (0..self.nodes()).any(|m| newest(&s.dir.published[m]) > 0);
        if s.dir.plan.is_some() {
            s.dir.holder = Some(n as u8);
            s.nodes[n].drain = Drain::Write;
            return true;
        }
        let living = (0..self.nodes()).filter(|m| !s.nodes[*m].is_dead());
        let living = living.fold(0, |all, m| all | mask(m));
        let counted = match self.rules.alone_among_registered {
            true => others,
            false => others & living,
        };
        let registered = s.dir.writers & mask(n) != 0;
        if counted == 0 && registered && !foreign && s.nodes[n].has_own() {
            s.dir.holder = Some(n as u8);
            s.nodes[n].drain = Drain::Alone;
            return true;
        }
        if !foreign || s.plans >= self.plans {
            return false;
        }
        s.dir.holder = Some(n as u8);
        s.plans += 1;
        if self.rules.intent_before_list {
            let now = s.nodes[n].clock.max(s.writes_known(self, n));
            s.dir.intent = s.dir.intent.max(now);
            s.nodes[n].drain = Drain::Cut;
        } else {
            s.nodes[n].drain = Drain::Listed(s.dir.writers);
        }
        true
    }

    fn drain_alone(&self, s: &mut State, n: usize) -> bool {
        s.nodes[n].drain = Drain::Idle;
        s.dir.holder = None;
        let published = s.dir.published.iter().any(|cells| newest(cells) > 0);
        if published && self.rules.alone_stops_at_published {
            return true;
        }
        let own = std::mem::take(&mut s.nodes[n].own);
        for (cell, own) in own.iter().enumerate() {
            let is_void = self.rules.drain_heeds_drained && *own <= s.dir.drained[cell];
            if own.time > 0 && !is_void {
                s.canonical[cell] = *own;
            }
        }
        s.dir.base = s.dir.base.max(newest(&own));
        s.dir.covered[n] = s.dir.covered[n].max(newest(&own));
        true
    }

    fn plan(&self, s: &mut State, n: usize, writers: u8) -> bool {
        let cut = s.dir.intent;
        let behind = |m: &usize| writers & mask(*m) != 0 && s.dir.marks[*m] < cut;
        let absent = (0..self.nodes()).filter(behind).collect::<Vec<_>>();
        let waits = absent.iter().any(|m| !s.nodes[*m].is_dead());
        if waits && self.rules.plan_waits_for_marks {
            return false;
        }
        let mut cells = Cells::default();
        for published in &s.dir.published {
            for cell in 0..CELLS {
                let entry = published[cell];
                let is_covered = entry.time <= cut || !self.rules.plan_ends_at_cut;
                let is_void = self.rules.drain_heeds_drained && entry <= s.dir.drained[cell];
                if is_covered && !is_void {
                    cells[cell] = cells[cell].max(entry);
                }
            }
        }
        s.dir.plan = Some(Plan {
            cut,
            cells,
            taken: s.dir.published,
            done: 0,
            absent: absent.iter().fold(0, |all, m| all | mask(*m)),
        });
        s.nodes[n].drain = Drain::Write;
        true
    }

    fn write_plan(&self, s: &mut State, n: usize) -> bool {
        let Some(mut plan) = s.dir.plan else {
            s.nodes[n].drain = Drain::Idle;
            return true;
        };
        let next = (0..CELLS).find(|cell| plan.done & (1 << cell) == 0);
        if let Some(cell) = next {
            if plan.cells[cell].time > 0 {
                s.canonical[cell] = plan.cells[cell];
            }
            plan.done |= 1 << cell;
            s.dir.plan = Some(plan);
            return true;
        }
        match plan.absent {
            0 => s.dir.drained = Cells::default(),
            _ if self.rules.drained_times_kept => merge(&mut s.dir.drained, &plan.cells),
            _ => {}
        }
        let taken = plan.taken.iter().flatten();
        for (entry, taken) in s.dir.published.iter_mut().flatten().zip(taken) {
            let is_covered = entry == taken || !self.rules.base_covers_what_was_taken;
            let is_older = entry.time <= plan.cut || !self.rules.plan_ends_at_cut;
            if is_older && is_covered {
                *entry = Entry::default();
            }
        }
        s.dir.base = s.dir.base.max(plan.cut);
        for m in (0..self.nodes()).filter(|m| plan.absent & mask(*m) == 0) {
            s.dir.covered[m] = s.dir.covered[m].max(plan.cut);
        }
        s.dir.intent = 0;
        s.dir.plan = None;
        s.dir.holder = None;
        s.nodes[n].drain = Drain::Idle;
        true
    }
}
impl State {
    /// The time that a node's clock shows.
    fn writes_known(&self, config: &Config, n: usize) -> u8 {
        match config.stopped_clocks & mask(n) {
            0 => self.writes,
            _ => 0,
        }
    }
}
