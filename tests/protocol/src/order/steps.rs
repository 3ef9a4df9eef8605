//! Which steps are possible, and what they do.

use super::state::{Cells, Drain, Entry, Node, Phase, State, bad, bit, merge, newest};
use super::{CELLS, Config, Op};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Program,
    /// This node answers what the program of the node asks or tells it.
    Answer(u8),
    Publish,
    /// Takes its announcement back, or its registration.
    Leave,
    Drain,
    Crash,
    Restart,
    /// The lease lapses.
    Sleep,
    /// The node finds that its lease has lapsed.
    Wake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    pub node: u8,
    pub step: Step,
}

pub(super) fn mask(n: usize) -> u8 {
    1 << n
}

impl Config {
    pub(super) fn steps(&self, s: &State, actions: &mut Vec<Action>) {
        for n in 0..self.nodes() {
            let mut push = |step| {
                let node = n as u8;
                actions.push(Action { node, step });
            };
            let node = &s.nodes[n];
            if !node.up {
                push(Step::Restart);
                continue;
            }
            push(Step::Program);
            if let Phase::Hello(left) | Phase::Ask { left, .. } = node.phase {
                let waits = |m: &usize| left & mask(*m) != 0;
                let answers = (0..self.nodes()).filter(waits);
                answers.for_each(|m| push(Step::Answer(m as u8)));
            }
            push(Step::Publish);
            push(Step::Leave);
            if self.drainers & mask(n) != 0 {
                push(Step::Drain);
            }
            let frail = self.frail & mask(n) != 0;
            if frail && s.crashes < self.crashes {
                push(Step::Crash);
            }
            if frail && s.lapses < self.lapses && !node.lapsed {
                push(Step::Sleep);
            }
            if node.lapsed {
                push(Step::Wake);
            }
        }
    }

    /// Applies a step; returns `false` if it is not possible now.
    pub(super) fn apply(&self, s: &mut State, action: Action) -> bool {
        let n = action.node as usize;
        match action.step {
            Step::Program => self.program(s, n),
            Step::Answer(m) => self.answer(s, n, m as usize),
            Step::Publish => self.publish(s, n),
            Step::Leave => self.leave(s, n),
            Step::Drain => self.drain(s, n),
            Step::Crash => {
                s.crashes += 1;
                let node = s.nodes[n];
                s.nodes[n] = Node {
                    up: false,
                    ip: node.ip,
                    own: node.own,
                    open: node.open,
                    clock: newest(&node.own),
                    past: node.past,
                    mine: node.mine,
                    ..Node::default()
                };
                true
            }
            Step::Restart => {
                s.nodes[n].up = true;
                let known = self.rules.restart_says_hello;
                self.register_again(s, n, known);
                true
            }
            Step::Sleep => {
                s.lapses += 1;
                s.nodes[n].lapsed = true;
                true
            }
            Step::Wake => {
                let node = &mut s.nodes[n];
                node.lapsed = false;
                node.drain = Drain::Idle;
                let known = self.rules.wake_says_hello;
                self.register_again(s, n, known);
                true
            }
        }
    }

    /// A program's step that was under way begins anew.
    fn register_again(&self, s: &mut State, n: usize, says_hello: bool) {
        let is_registered = s.dir.writers & mask(n) != 0;
        let others = s.dir.writers & !mask(n);
        let node = &mut s.nodes[n];
        node.phase = Phase::Idle;
        if is_registered && says_hello {
            node.phase = Phase::Hello(others);
            node.known |= others;
            if self.rules.clock_follows_intent {
                node.clock = node.clock.max(s.dir.intent).max(s.dir.base);
            }
        }
    }

    fn program(&self, s: &mut State, n: usize) -> bool {
        let op = self.op(s, n);
        match s.nodes[n].phase {
            Phase::Hello(left) => {
                let waits = left != 0 && self.rules.hello_acknowledged;
                let node = &mut s.nodes[n];
                if waits {
                    return false;
                }
                node.phase = Phase::Idle;
                if op == Some(Op::Open) {
                    node.open = true;
                    node.ip += 1;
                }
                true
            }
            Phase::Listed(others) => {
                s.dir.writers |= mask(n);
                s.nodes[n].phase = Phase::Hello(others);
                s.nodes[n].known |= others;
                true
            }
            Phase::Ask { left: 0, got } => {
                self.end_of_asking(s, n, got);
                true
            }
            Phase::Ask { .. } => false,
            Phase::Refresh { got } => self.end_read(s, n, got),
            Phase::Idle => match op {
                None => false,
                Some(Op::Open) => self.register(s, n),
                Some(Op::Write(cells)) => self.write(s, n, cells),
                Some(Op::Read) => {
                    let others = s.nodes[n].known & !mask(n);
                    s.nodes[n].due = bit(s.writes + 1).wrapping_sub(1);
                    self.begin_read(s, n, if self.rules.reads_ask { others } else { 0 })
                }
                Some(Op::ReadOnly) => {
                    let announcers = (0..self.nodes()).filter(|m| s.dir.announced[*m] != 0);
                    let announcers = announcers.fold(0, |all, m| all | mask(m)) & !mask(n);
                    s.nodes[n].due = s.closed;
                    let asks = self.rules.read_only_asks_announcers;
                    self.begin_read(s, n, if asks { announcers } else { 0 })
                }
                Some(Op::Close) => {
                    let node = &mut s.nodes[n];
                    let own = (0..CELLS).filter(|c| node.own[*c].time > 0);
                    s.dir.announced[n] |= own.fold(0, |all, c| all | (1 << c));
                    node.open = false;
                    node.ip += 1;
                    s.closed |= node.mine;
                    true
                }
            },
        }
    }

    fn register(&self, s: &mut State, n: usize) -> bool {
        let others = s.dir.writers & !mask(n);
        if !self.rules.link_before_list {
            s.nodes[n].phase = Phase::Listed(others);
            return true;
        }
        if s.dir.writers & mask(n) == 0 {
            s.dir.writers |= mask(n);
            return true;
        }
        if self.rules.clock_follows_intent {
            let times = s.dir.intent.max(s.dir.base);
            s.nodes[n].clock = s.nodes[n].clock.max(times);
        }
        s.nodes[n].known |= others;
        s.nodes[n].phase = Phase::Hello(others);
        true
    }

    fn write(&self, s: &mut State, n: usize, cells: u8) -> bool {
        s.writes += 1;
        let write = s.writes;
        let has_clock = self.stopped_clocks & mask(n) == 0;
        let now = if has_clock { write } else { 0 };
        let node = &mut s.nodes[n];
        node.clock = now.max(node.clock + 1);
        let entry = Entry {
            time: node.clock,
            node: n as u8,
            write,
        };
        for cell in (0..CELLS).filter(|cell| cells & (1 << cell) != 0) {
            node.own[cell] = entry;
        }
        let at = write as usize - 1;
        s.covers[at] = cells;
        // With perfect clocks, what has returned comes before what begins afterwards.
        s.before[at] = match self.stopped_clocks {
            0 => bit(write) - 1,
            _ => node.past,
        };
        node.past |= bit(write) | s.before[at];
        node.mine |= bit(write);
        node.ip += 1;
        true
    }

    fn begin_read(&self, s: &mut State, n: usize, left: u8) -> bool {
        let got = Cells::default();
        s.nodes[n].phase = match self.rules.ask_before_refresh {
            true => Phase::Ask { left, got },
            false => Phase::Ask {
                left,
                got: self.view(s, n),
            },
        };
        true
    }

    fn end_of_asking(&self, s: &mut State, n: usize, got: Cells) {
        s.nodes[n].phase = Phase::Refresh { got };
    }

    /// What a node finds in its store, in what is published, and below.
    fn view(&self, s: &State, n: usize) -> Cells {
        let mut top = s.nodes[n].own;
        if self.rules.order_by_time {
            s.dir
                .published
                .iter()
                .for_each(|cells| merge(&mut top, cells));
        } else {
            let mut by_publication: Vec<usize> = (0..self.nodes()).collect();
            by_publication.sort_by_key(|m| s.dir.published_at[*m]);
            for m in by_publication.into_iter().rev() {
                for cell in (0..CELLS).filter(|c| s.dir.published[m][*c].time > 0) {
                    if top[cell].time == 0 {
                        top[cell] = s.dir.published[m][cell];
                    }
                }
            }
        }
        self.over_canonical(s, top)
    }

    fn over_canonical(&self, s: &State, mut top: Cells) -> Cells {
        for (cell, top) in top.iter_mut().enumerate() {
            let is_void = self.rules.view_heeds_drained && *top <= s.dir.drained[cell];
            if top.time == 0 || is_void {
                *top = s.canonical[cell];
            }
        }
        top
    }

    fn end_read(&self, s: &mut State, n: usize, got: Cells) -> bool {
        if s.nodes[n].lapsed && self.rules.reads_under_lease {
            return false;
        }
        let mut found = match self.rules.ask_before_refresh {
            true => self.view(s, n),
            false => got,
        };
        if self.rules.ask_before_refresh {
            for cell in 0..CELLS {
                let is_older = self.rules.view_heeds_drained && got[cell] <= s.dir.drained[cell];
                let is_drained = self.rules.drained_answers_void
                    && got[cell].time <= s.dir.covered[got[cell].node as usize];
                let is_void = is_older || is_drained;
                // What is only in the canonical file has no time that a node knows: it is older than what is not
                // drained.
                let lies_above = self.is_undrained(s, n, cell, found[cell]);
                if got[cell].time > 0 && !is_void && (!lies_above || got[cell] > found[cell]) {
                    found[cell] = got[cell];
                }
            }
        }
        let is_rw = self.op(s, n) == Some(Op::Read);
        let due = s.nodes[n].due;
        let stale = (0..CELLS).any(|cell| s.is_stale(cell, found[cell], due));
        let back = (0..CELLS).any(|cell| {
            let before = s.nodes[n].seen[cell].write;
            s.is_stale(cell, found[cell], bit(before))
        });
        if stale {
            s.bad |= if is_rw { bad::READ } else { bad::CLOSED };
        }
        if back {
            s.bad |= bad::BACK;
        }
        let before = s.before;
        let base = s.dir.base;
        let node = &mut s.nodes[n];
        for entry in found.iter().filter(|e| e.write > 0) {
            node.past |= bit(entry.write) | before[entry.write as usize - 1];
        }
        if self.rules.clock_follows_reads {
            // What is in the canonical file is not newer than the base.
            node.clock = node.clock.max(newest(&found)).max(base);
        }
        node.seen = found;
        node.phase = Phase::Idle;
        node.due = 0;
        node.ip += 1;
        true
    }

    fn is_undrained(&self, s: &State, n: usize, cell: usize, entry: Entry) -> bool {
        let mut all = s.nodes[n].own;
        s.dir
            .published
            .iter()
            .for_each(|cells| merge(&mut all, cells));
        entry.time > 0 && all[cell] == entry
    }

    /// Node `m` answers node `n`.
    fn answer(&self, s: &mut State, n: usize, m: usize) -> bool {
        let dead = s.nodes[m].is_dead();
        let registered = s.dir.writers & mask(m) != 0;
        match s.nodes[n].phase {
            Phase::Hello(left) => {
                s.nodes[n].phase = Phase::Hello(left & !mask(m));
                if !dead {
                    s.nodes[m].known |= mask(n);
                    if self.rules.hello_stops_alone && s.nodes[m].drain == Drain::Alone {
                        s.nodes[m].drain = Drain::Idle;
                        s.dir.holder = None;
                    }
                    // What the other had written comes before what this node will write.
                    s.nodes[n].past |= s.nodes[m].past;
                    if self.rules.hello_carries_time {
                        s.nodes[n].clock = s.nodes[n].clock.max(s.nodes[m].clock);
                    }
                }
                true
            }
            Phase::Ask { left, mut got } => {
                // A writer that does not answer may hold bytes: the read waits for it, unless it has left.
                if dead && (registered || s.dir.announced[m] != 0) {
                    return false;
                }
                if !dead && self.channel {
                    merge(&mut got, &s.nodes[m].own);
                } else if !dead && s.nodes[m].has_own() {
                    // Without the channel it publishes what it has, and the refresh finds that.
                    return false;
                }
                let left = left & !mask(m);
                s.nodes[n].phase = Phase::Ask { left, got };
                true
            }
            _ => false,
        }
    }

    /// Publishes everything, because of a cut or by and by.
    fn publish(&self, s: &mut State, n: usize) -> bool {
        let is_asked = s.dir.intent > s.dir.marks[n] && s.dir.writers & mask(n) != 0;
        if !s.nodes[n].has_own() && !is_asked {
            return false;
        }
        // The call that registers, or registers anew, comes first.
        if matches!(s.nodes[n].phase, Phase::Hello(_)) && s.nodes[n].lapsed {
            return false;
        }
        let own = std::mem::take(&mut s.nodes[n].own);
        merge(&mut s.dir.published[n], &own);
        s.publications += 1;
        s.dir.published_at[n] = s.publications;
        let mark = s.nodes[n].clock.max(s.dir.intent);
        s.dir.marks[n] = s.dir.marks[n].max(mark);
        if self.rules.clock_follows_intent {
            s.nodes[n].clock = mark;
        }
        true
    }

    fn leave(&self, s: &mut State, n: usize) -> bool {
        let node = &s.nodes[n];
        let published = !node.has_own();
        // Between link and list of its registration the node is about to open the file.
        let closed = !node.open && node.phase == Phase::Idle && self.op(s, n) != Some(Op::Open);
        let owes_nothing = published && s.dir.announced[n] == 0;
        if s.dir.writers & mask(n) != 0
            && closed
            && (owes_nothing || !self.rules.leaves_when_published)
        {
            s.dir.writers &= !mask(n);
            return true;
        }
        if s.dir.announced[n] != 0 && (published || !self.rules.announcement_until_published) {
            s.dir.announced[n] = 0;
            return true;
        }
        false
    }
}
