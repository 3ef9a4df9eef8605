//! The model: which steps are possible in a state, and what they do.

use crate::config::{CELLS, Config, Op};
use crate::state::{Drain, Mode, Publish, State, Wait, WorkPhase, bad};
use stateright::{Model, Property};

/// One step of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Program,
    Background,
    Publish,
    Drain,
    BeginWork(u8),
    Work,
    /// Removes its own layout, or the subfiles of this dead node.
    Reclaim(u8),
    Crash,
    /// A power failure that also takes these parts of the canonical file, which the node had not synced.
    PowerFailure(u8),
    Restart,
    /// The lease passes without a heartbeat. How long the node does nothing else is up to the interleaving.
    Sleep,
    /// The node checks its lease and finds it lapsed.
    NoticeLapse,
    /// An append does not return.
    Hang,
    /// An append that did not return takes effect.
    Land,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    pub node: u8,
    pub step: Step,
}

/// Names of the properties, in the order of the README.
pub mod property {
    pub const STALE: &str = "no stale read after a sync point";
    pub const LOST: &str = "no published byte is lost";
    pub const ORDER: &str = "what was seen stays older";
    pub const CANON: &str = "drained, the canonical file is the newest";
    pub const WRITERS: &str = "one live writer per domain";
    pub const LATE: &str = "nothing is written past the lease";
    pub const FLIP: &str = "only publishing changes what a reader sees";
    pub const GHOST: &str = "an unlinked file stays away";
    pub const SIZE: &str = "no stale size after a sync point";
    pub const FSYNCED: &str = "what was fsynced comes back";
    pub const STUCK: &str = "no program waits for ever";
    pub const DRAINED: &str = "all have written and all is drained";
}

impl Config {
    pub fn op(&self, state: &State, n: usize) -> Option<Op> {
        let node = &state.nodes[n];
        self.programs[n][node.program as usize]
            .get(node.ip as usize)
            .copied()
    }

    /// Applies a step; returns `false` if it is not possible now.
    fn apply(&self, s: &mut State, action: Action) -> bool {
        let n = action.node as usize;
        let op = self.op(s, n);
        match action.step {
            Step::Program => op.is_some_and(|op| s.step_program(n, op, self)),
            Step::Background => s.begin_background(n, op.is_none(), self),
            Step::Publish => s.step_publish(n, op, self),
            Step::Drain => s.step_drain(n, self),
            Step::BeginWork(domain) => s.begin_work(n, domain),
            Step::Work => s.step_work(n, self),
            Step::Reclaim(m) => s.reclaim(m as usize, n, self),
            Step::Crash => {
                s.crashes += 1;
                s.crash(n);
                true
            }
            Step::PowerFailure(lost) => {
                s.power += 1;
                s.power_failure(n, lost);
                true
            }
            Step::Restart => {
                s.restart(n, self);
                true
            }
            Step::Sleep => {
                s.pauses += 1;
                s.nodes[n].lapsed = true;
                true
            }
            Step::NoticeLapse => {
                s.notice_lapse(n, self);
                true
            }
            Step::Hang => {
                s.hangs += 1;
                s.hang(n, self);
                true
            }
            Step::Land => s.land(n),
        }
    }

    /// Returns whether the step may change what a fresh reader finds.
    fn publishes(&self, s: &State, action: Action) -> bool {
        let node = &s.nodes[action.node as usize];
        match action.step {
            Step::Publish => matches!(node.publish, Publish::Append | Publish::Repeat(_)),
            Step::Land => true,
            Step::Drain => matches!(node.drain, Drain::Stripe { .. }),
            Step::Program => self.op(s, action.node as usize) == Some(Op::Unlink),
            _ => false,
        }
    }

    fn steps_up(&self, s: &State, n: usize, push: &mut impl FnMut(Step)) {
        let node = &s.nodes[n];
        let drains = self.drainers & (1 << n) != 0;
        push(Step::Program);
        push(Step::Background);
        if node.publish != Publish::Idle {
            push(Step::Publish);
        }
        if node.publish == Publish::Append && s.hangs < self.hangs {
            push(Step::Hang);
        }
        if drains && (node.drain != Drain::Idle || !node.lapsed) {
            push(Step::Drain);
        }
        if node.work.phase != WorkPhase::Idle {
            push(Step::Work);
        } else if drains && !node.lapsed {
            (0..CELLS as u8).for_each(|d| push(Step::BeginWork(d)));
        }
        let reclaims = self.reclaimers & (1 << n) != 0;
        if reclaims {
            push(Step::Reclaim(n as u8));
        }
        if self.adoption && reclaims {
            (0..self.nodes())
                .filter(|&m| s.nodes[m].mode == Mode::Down)
                .for_each(|m| push(Step::Reclaim(m as u8)));
        }
        if node.lapsed {
            push(Step::NoticeLapse);
        }
        let frail = self.frail & (1 << n) != 0;
        if frail && s.crashes < self.crashes {
            push(Step::Crash);
        }
        if frail && s.power < self.power {
            s.losses(n).for_each(|lost| push(Step::PowerFailure(lost)));
        }
        // A node that holds nothing loses nothing with its lease.
        let holds = node.drain != Drain::Idle || node.work.phase != WorkPhase::Idle;
        if frail && s.pauses < self.pauses && !node.lapsed && holds {
            push(Step::Sleep);
        }
    }

    fn after_setup(&self) -> State {
        let mut state = State::default();
        for (n, ops) in &self.setup {
            let mut setup = Config {
                alone: false,
                ..self.clone()
            };
            setup.programs[*n] = vec![ops.clone()];
            while setup.op(&state, *n).is_some() {
                let moved = [Step::Program, Step::Publish].into_iter().any(|step| {
                    setup.apply(
                        &mut state,
                        Action {
                            node: *n as u8,
                            step,
                        },
                    )
                });
                assert!(
                    moved,
                    "{}: the setup of node {n} waits for another node",
                    self.name
                );
            }
            state.nodes[*n].ip = 0;
        }
        state
    }

    /// Resets state that no later step and no property can read any more.
    fn normalise(&self, s: &mut State) {
        for n in 0..self.nodes() {
            let node = &mut s.nodes[n];
            let program = &self.programs[n][node.program as usize];
            if !program[node.ip as usize..]
                .iter()
                .any(|op| matches!(op, Op::Open | Op::Lock))
            {
                node.token_known = false;
            }
            let publishes = node.run > 0
                || node.publish != Publish::Idle
                || !node.store.is_empty()
                || !node.sending.is_empty();
            if !publishes
                && !program[node.ip as usize..]
                    .iter()
                    .any(|op| matches!(op, Op::Write(_) | Op::Truncate(_)))
            {
                node.needs_touch = false;
            }
        }
        if s.base.term >= s.plan.term {
            s.claims = Default::default();
            s.done = 0;
        }
    }

    /// Returns a step that other nodes cannot see, and that no other step can change or prevent for good. It is taken
    /// at once, because every order of it and the steps of other nodes leads to the same states. A write goes into
    /// the node's own store, which only draining alone and a crash can see; the same is true of what the store
    /// forgets.
    fn unseen(&self, s: &State) -> Option<Action> {
        if self.alone {
            return None;
        }
        for n in 0..self.nodes() {
            let node = &s.nodes[n];
            let faults = s.crashes < self.crashes || s.power < self.power;
            let may_crash = self.frail & (1 << n) != 0 && faults;
            if node.mode != Mode::Up || may_crash {
                continue;
            }
            let write = matches!(self.op(s, n), Some(Op::Write(_) | Op::Truncate(_)));
            let pending = s.announcements[n] != 0 || node.run > 0 || node.publish != Publish::Idle;
            if write && node.wait == Wait::Nothing && !pending {
                return Some(Action {
                    node: n as u8,
                    step: Step::Program,
                });
            }
            if node.publish == Publish::Forget && self.rules.reclaim_after_forget {
                return Some(Action {
                    node: n as u8,
                    step: Step::Publish,
                });
            }
        }
        None
    }

    /// Returns whether only faults are possible as next steps although a program waits or an announcement is pending.
    fn stuck(&self, s: &State) -> bool {
        let all_up = (0..self.nodes()).all(|n| s.nodes[n].mode == Mode::Up);
        if !all_up || s.bad != 0 {
            return false;
        }
        let waits =
            (0..self.nodes()).any(|n| s.nodes[n].wait != Wait::Nothing || s.announcements[n] != 0);
        if !waits {
            return false;
        }
        let mut actions = Vec::new();
        self.actions(s, &mut actions);
        !actions.into_iter().any(|a| {
            let fault = matches!(
                a.step,
                Step::Crash | Step::PowerFailure(_) | Step::Sleep | Step::Hang | Step::Land
            );
            !fault && self.next_state(s, a).is_some()
        })
    }
}

impl Model for Config {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut states = vec![self.after_setup()];
        for (n, programs) in self.programs.iter().enumerate() {
            states = states
                .into_iter()
                .flat_map(|state| {
                    (0..programs.len()).map(move |program| {
                        let mut state = state;
                        state.nodes[n].program = program as u8;
                        state
                    })
                })
                .collect();
        }
        states
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.bad != 0 {
            return;
        }
        if let Some(action) = self.unseen(s) {
            actions.push(action);
            return;
        }
        for n in 0..self.nodes() {
            let mut push = |step| {
                actions.push(Action {
                    node: n as u8,
                    step,
                })
            };
            if s.late[n].is_some_and(|late| !late.landed) {
                push(Step::Land);
            }
            match s.nodes[n].mode {
                Mode::Up => self.steps_up(s, n, &mut push),
                Mode::Down if self.restarts => push(Step::Restart),
                Mode::Down => {}
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = *last;
        if !self.apply(&mut next, action) {
            return None;
        }
        if self.stable && !self.publishes(last, action) {
            let fresh = |s: &State| -> [u8; CELLS] { std::array::from_fn(|i| s.fresh(i)) };
            if fresh(last) != fresh(&next) {
                next.bad |= bad::FLIP;
            }
        }
        next.judge(self);
        self.normalise(&mut next);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(property::STALE, |_, s: &State| s.bad & bad::STALE == 0),
            Property::always(property::LOST, |_, s: &State| s.bad & bad::LOST == 0),
            Property::always(property::ORDER, |_, s: &State| s.bad & bad::ORDER == 0),
            Property::always(property::CANON, |_, s: &State| s.bad & bad::CANON == 0),
            Property::always(property::WRITERS, |_, s: &State| {
                s.bad & bad::TWO_WRITERS == 0
            }),
            Property::always(property::LATE, |_, s: &State| s.bad & bad::LATE == 0),
            Property::always(property::GHOST, |_, s: &State| s.bad & bad::GHOST == 0),
            Property::always(property::SIZE, |_, s: &State| s.bad & bad::SIZE == 0),
            Property::always(property::FSYNCED, |_, s: &State| s.bad & bad::FSYNCED == 0),
            Property::always(property::FLIP, |_, s: &State| s.bad & bad::FLIP == 0),
            Property::always(property::STUCK, |m: &Config, s: &State| !m.stuck(s)),
        ];
        if self.terms > 0 {
            properties.push(Property::sometimes(
                property::DRAINED,
                |m: &Config, s: &State| {
                    s.drained(m)
                        && (0..m.nodes()).all(|n| m.op(s, n).is_none() && s.nodes[n].own != 0)
                        && s.canon.iter().any(|&e| e != 0)
                },
            ));
        }
        properties
    }
}
