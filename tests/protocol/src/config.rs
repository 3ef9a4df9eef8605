//! Configurations to explore: the programs of the nodes, and the bounds.

use crate::rules::Rules;

/// Cells (bytes) of the file. Cell `i` is the only unit of domain `i`.
pub const CELLS: usize = 2;
/// Maximum number of nodes of a configuration.
pub const NODES: usize = 3;
/// Maximum number of batches of one node.
pub const BATCHES: usize = 3;
/// Maximum number of events (writes and truncates) of one node. Its k-th event has the same number in every
/// interleaving.
pub const NODE_EVENTS: usize = 3;
/// Maximum number of events of one run.
pub const EVENTS: usize = NODES * NODE_EVENTS;
/// Size of the table of terms: one more than the highest term of a run, because terms begin at 1.
pub const TERMS: usize = 5;
/// Maximum number of tries for a domain.
pub const TRIES: usize = 4;

/// One step of a node's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Refresh, as open does.
    Open,
    /// One write of the cells in this mask.
    Write(u8),
    /// Truncate to this many cells. It cuts, or lets the file grow without bytes.
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
    /// fsync with *local*: the store's log is synced, and other nodes are not told.
    SyncLocal,
}

/// A configuration: what is run, and the bounds for it.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// Its purpose, in a few words.
    pub about: &'static str,
    /// The programs that each node may run. Every combination is explored.
    pub programs: Vec<Vec<Vec<Op>>>,
    /// Programs that nodes have run before anything else begins, one after the other.
    pub setup: Vec<(usize, Vec<Op>)>,
    /// Highest term.
    pub terms: u8,
    /// Maximum number of crashes of all nodes in sum.
    pub crashes: u8,
    /// Maximum number of power failures of all nodes in sum. If there can be any, syncs are steps of their own.
    pub power: u8,
    /// Maximum number of pauses past the lease of all nodes in sum.
    pub pauses: u8,
    /// Maximum number of appends that do not return, of all nodes in sum. Each node has at most one.
    pub hangs: u8,
    /// Nodes that may crash, lose their power or pause.
    pub frail: u8,
    /// Nodes that may take terms and domains.
    pub drainers: u8,
    /// Nodes that remove layouts and subfiles that the base covers.
    pub reclaimers: u8,
    /// A holder may drain alone.
    pub alone: bool,
    /// A live node may remove the subfiles of a dead node that the base covers.
    pub adoption: bool,
    /// A node that crashed may come back.
    pub restarts: bool,
    /// Also require that concurrent batches never change their order for a fresh reader.
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
