//! What is explored: programs of the nodes and bounds.

use crate::rules::Rules;

/// Cells (bytes) of the file. Cell `i` is the only unit of domain `i`.
pub const CELLS: usize = 2;
/// Most nodes of a configuration.
pub const NODES: usize = 3;
/// Most batches of one node.
pub const BATCHES: usize = 3;
/// Most events (writes and truncates) of one node. Its k-th has the same number in every interleaving.
pub const NODE_EVENTS: usize = 3;
/// Most events of one run.
pub const EVENTS: usize = NODES * NODE_EVENTS;
/// Most terms of one run, and one more: terms begin at 1.
pub const TERMS: usize = 5;
/// Most tries for a domain.
pub const TRIES: usize = 4;

/// One step of a node's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Refresh, as open does.
    Open,
    /// One write of the cells in this mask.
    Write(u8),
    /// Truncate to this many cells: cuts, or lets the file grow without bytes.
    Truncate(u8),
    /// Close or fsync with *publish*.
    Close,
    /// Close with *defer*.
    Defer,
    /// Take the lock of the file, then refresh.
    Lock,
    /// Publish, then release the lock.
    Unlock,
    /// Remove the file.
    Unlink,
    /// fsync with *local*: the store's log is synced, and nobody else is told.
    SyncLocal,
}

/// A configuration: what is run, and how much of everything there may be.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// What it is there for, in a few words.
    pub about: &'static str,
    /// For each node the programs it may run: every combination is explored.
    pub programs: Vec<Vec<Vec<Op>>>,
    /// What nodes have done before anything else begins, one after the other.
    pub setup: Vec<(usize, Vec<Op>)>,
    /// Highest term.
    pub terms: u8,
    /// Crashes of all nodes together.
    pub crashes: u8,
    /// Power failures of all nodes together. Where there can be some, syncs are steps of their own.
    pub power: u8,
    /// Pauses past the lease of all nodes together.
    pub pauses: u8,
    /// Appends that do not come back, of all nodes together: one for a node at the most.
    pub hangs: u8,
    /// Nodes that may crash, lose their power or pause.
    pub frail: u8,
    /// Nodes that may take terms and domains.
    pub drainers: u8,
    /// Nodes that remove what the base covers.
    pub reclaimers: u8,
    /// A holder may drain alone.
    pub alone: bool,
    /// A live node may remove what a dead one left and the base covers.
    pub adoption: bool,
    /// A node that crashed may come back.
    pub restarts: bool,
    /// Also demand that concurrent batches never change their order for a fresh reader.
    pub stable: bool,
    pub rules: Rules,
}

impl Config {
    /// A configuration without drain, crashes and pauses.
    pub fn new(name: &'static str, about: &'static str, programs: Vec<Vec<Vec<Op>>>) -> Self {
        assert!(programs.len() <= NODES, "{name}: at most {NODES} nodes");
        Self {
            name,
            about,
            programs,
            setup: Vec::new(),
            terms: 0,
            crashes: 0,
            power: 0,
            pauses: 0,
            hangs: 0,
            frail: 0xff,
            drainers: 0xff,
            reclaimers: 0xff,
            alone: false,
            adoption: false,
            restarts: true,
            stable: false,
            rules: Rules::default(),
        }
    }

    pub fn nodes(&self) -> usize {
        self.programs.len()
    }
}
