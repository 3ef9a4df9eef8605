//! Order by the time of writing (`docs/decisions/0017-order-by-time.md`) as a model: what 0008 is to become.
//!
//! The model of 0008 beside it explores how batches get into layouts and out of them, step by step. Here those steps
//! are taken as one each, and the subject is what is new: times of writes, registered writers, plans as cuts in time,
//! late bytes of slow and dead nodes, reads that ask other nodes, and announcements.

mod configs;
mod drain;
mod rules;
mod state;
mod steps;

pub use configs::{all, named};
pub use rules::Rules;
pub use state::State;
pub use steps::{Action, Step};

use crate::run::Explored;
use state::bad;
use stateright::{Model, Property};

/// Cells (bytes) of the file.
pub const CELLS: usize = 2;
/// Maximum number of nodes.
pub const NODES: usize = 3;
/// Maximum number of writes of a run; a set of them is a bit mask.
pub const WRITES: usize = 8;

/// One step of a node's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Open for reading and writing: the node registers as a writer.
    Open,
    /// One write of the cells in this mask.
    Write(u8),
    /// A read of all cells through the handle that also writes.
    Read,
    /// A deferred close: it announces what is to be published. The handle is gone.
    Close,
    /// Open for reading only, and read all cells.
    ReadOnly,
}

/// A configuration: what is run, and the bounds for it.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    pub about: &'static str,
    pub programs: Vec<Vec<Op>>,
    /// Nodes whose clocks stand still: they know only times that they have been told of. The clocks of the others
    /// are perfect.
    pub stopped_clocks: u8,
    /// Maximum number of crashes, and of lapses of a lease, of all nodes in sum.
    pub crashes: u8,
    pub lapses: u8,
    /// Nodes that may crash or sleep.
    pub frail: u8,
    /// Nodes that may drain.
    pub drainers: u8,
    /// Nodes answer at once. Without the channel they publish what they have.
    pub channel: bool,
    /// Maximum number of plans.
    pub plans: u8,
    pub rules: Rules,
}

impl Config {
    pub fn nodes(&self) -> usize {
        self.programs.len()
    }

    fn op(&self, s: &State, n: usize) -> Option<Op> {
        self.programs[n].get(s.nodes[n].ip as usize).copied()
    }
}

/// Names of the properties.
pub mod property {
    pub const READ: &str = "a read sees every write that had returned";
    pub const CLOSED: &str = "a read-only open sees every close that had returned";
    pub const BACK: &str = "what a node has seen does not go back";
    pub const CANON: &str = "drained, the canonical file has the last writes";
    pub const DRAINED: &str = "all have written and all is drained";
}

impl Model for Config {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.bad == 0 {
            self.steps(s, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = *last;
        if !self.apply(&mut next, action) {
            return None;
        }
        next.judge(self);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(property::READ, |_, s: &State| s.bad & bad::READ == 0),
            Property::always(property::CLOSED, |_, s: &State| s.bad & bad::CLOSED == 0),
            Property::always(property::BACK, |_, s: &State| s.bad & bad::BACK == 0),
            Property::always(property::CANON, |_, s: &State| s.bad & bad::CANON == 0),
        ];
        if self.drainers != 0 {
            properties.push(Property::sometimes(property::DRAINED, |m: &Config, s| {
                s.is_drained(m)
            }));
        }
        properties
    }
}

impl Explored for Config {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self, s: &State, action: &Action) -> String {
        let n = action.node as usize;
        let what = match action.step {
            Step::Program => format!("{:?} ({:?})", self.op(s, n), s.nodes[n].phase),
            Step::Drain => format!("drain: {:?}", s.nodes[n].drain),
            step => format!("{step:?}"),
        };
        format!("node {n}: {}", what.to_lowercase())
    }
}
