//! The state: the shared directory, the canonical file, the nodes, and ghost state that no node can see.

use super::{CELLS, Config, NODES, Op, WRITES};

/// Faults of a state, one bit each.
pub mod bad {
    pub const READ: u8 = 1;
    pub const CLOSED: u8 = 2;
    pub const BACK: u8 = 4;
    pub const CANON: u8 = 8;
}

/// What a cell holds: which write, and when that was. Ordered by time, then by node. The default is the file as it
/// was at the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    pub time: u8,
    pub node: u8,
    /// Number of the write, from 1. Ghost: nodes do not know it.
    pub write: u8,
}

pub type Cells = [Entry; CELLS];

/// Lays the newer of each cell on top.
pub fn merge(into: &mut Cells, other: &Cells) {
    for (into, other) in into.iter_mut().zip(other) {
        *into = (*into).max(*other);
    }
}

pub fn newest(cells: &Cells) -> u8 {
    cells.iter().map(|e| e.time).max().unwrap_or(0)
}

/// A round: what it writes is fixed when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plan {
    pub cut: u8,
    pub cells: Cells,
    /// What each node had published when the plan was made.
    pub taken: [Cells; NODES],
    pub done: u8,
    /// Writers that had not published up to the cut.
    pub absent: u8,
}

/// What all nodes see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shared {
    /// Links of registered writers.
    pub writers: u8,
    /// Cells of which a node has closed something that it has not published yet.
    pub announced: [u8; NODES],
    /// The newest that each node has published and no base covers.
    pub published: [Cells; NODES],
    /// When each node last published; only the rule that is broken by it looks at this.
    pub published_at: [u8; NODES],
    /// A node has published all that it wrote up to this time, and writes nothing older any more.
    pub marks: [u8; NODES],
    /// The cut that a holder is about to plan.
    pub intent: u8,
    pub plan: Option<Plan>,
    /// Times of what was drained, for as long as a writer was absent: older bytes are void.
    pub drained: Cells,
    /// The cut of the last base.
    pub base: u8,
    /// Up to which time the canonical file has what each node wrote.
    pub covered: [u8; NODES],
    /// Which node may drain.
    pub holder: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
    Idle,
    /// Registered; these writers have yet to acknowledge that.
    Hello(u8),
    /// Only without `link_before_list`: listed, not linked yet.
    Listed(u8),
    /// A read: these nodes have yet to answer.
    Ask { left: u8, got: Cells },
    /// A read: all have answered.
    Refresh { got: Cells },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Drain {
    #[default]
    Idle,
    /// Holder, and the only registered writer when it looked.
    Alone,
    /// Holder: the writers that were listed before the intent of a cut was there. Only without
    /// `intent_before_list`.
    Listed(u8),
    /// Holder, with the intent of a cut.
    Cut,
    /// Holder, with a plan.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub ip: u8,
    pub up: bool,
    /// Other nodes take it for dead.
    pub lapsed: bool,
    /// The newest time that it knows of.
    pub clock: u8,
    /// Unpublished writes in its store.
    pub own: Cells,
    /// Registered writers that it knows of.
    pub known: u8,
    pub open: bool,
    pub phase: Phase,
    pub drain: Drain,
    /// Ghost: its own writes.
    pub mine: u8,
    /// Ghost: writes that it has seen, and those that come before them.
    pub past: u8,
    /// Ghost: what its last read found.
    pub seen: Cells,
    /// Ghost: writes that had returned (or been closed) when its read began.
    pub due: u8,
}

impl Default for Node {
    fn default() -> Self {
        Node {
            ip: 0,
            up: true,
            lapsed: false,
            clock: 0,
            own: Cells::default(),
            known: 0,
            open: false,
            phase: Phase::Idle,
            drain: Drain::Idle,
            mine: 0,
            past: 0,
            seen: Cells::default(),
            due: 0,
        }
    }
}

impl Node {
    pub fn is_dead(&self) -> bool {
        !self.up || self.lapsed
    }

    pub fn has_own(&self) -> bool {
        newest(&self.own) > 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub dir: Shared,
    pub canonical: Cells,
    pub nodes: [Node; NODES],
    pub writes: u8,
    pub publications: u8,
    pub plans: u8,
    pub crashes: u8,
    pub lapses: u8,
    /// Ghost: which writes cover which cells, and which come before each.
    pub covers: [u8; WRITES],
    pub before: [u8; WRITES],
    /// Ghost: writes that a close has covered.
    pub closed: u8,
    pub bad: u8,
}

pub fn bit(write: u8) -> u8 {
    match write {
        0 => 0,
        write => 1 << (write - 1),
    }
}

impl State {
    /// Whether `found` in a cell is older than one of `due`.
    pub fn is_stale(&self, cell: usize, found: Entry, due: u8) -> bool {
        (1..=self.writes).any(|w| {
            let covers = self.covers[w as usize - 1] & (1 << cell) != 0;
            covers && due & bit(w) != 0 && found.write != w && self.comes_before(found.write, w)
        })
    }

    /// The file as it was at the beginning comes before every write.
    fn comes_before(&self, older: u8, newer: u8) -> bool {
        older == 0 || self.before[newer as usize - 1] & bit(older) != 0
    }

    pub fn is_drained(&self, config: &Config) -> bool {
        let nodes = &self.nodes[..config.nodes()];
        let ended = (0..config.nodes()).all(|n| config.op(self, n).is_none());
        let published = self.dir.published.iter().any(|cells| newest(cells) > 0);
        ended && !published && self.dir.plan.is_none() && !nodes.iter().any(Node::has_own)
    }

    pub fn judge(&mut self, config: &Config) {
        let all = u8::MAX;
        let is_wrong = |cell: usize| self.is_stale(cell, self.canonical[cell], all);
        if self.is_drained(config) && (0..CELLS).any(is_wrong) {
            self.bad |= bad::CANON;
        }
    }
}

/// Programs that end without a close leave a writer registered for ever.
pub fn closes(program: &[Op]) -> bool {
    !program.contains(&Op::Open) || program.last() == Some(&Op::Close)
}
