//! The state: the shared directory, the canonical file, the nodes, and ghost state that no node can see.
//!
//! Everything is a small fixed array, so that a state is copied and hashed without allocation. A cell holds the number of the
//! event (write or truncate) that made it what it is; 0 is the file as it was at the beginning. Every event has its own
//! number, so a wrong byte is always seen to be wrong.

use crate::config::{BATCHES, CELLS, EVENTS, NODES, TERMS, TRIES};

/// All nodes that a state has room for.
pub const NODES_RANGE: std::ops::Range<usize> = 0..NODES;

/// All events, whether they have happened or not.
pub const EVENT_RANGE: std::ops::RangeInclusive<u8> = 1..=EVENTS as u8;

/// No cut in a batch or store.
pub const NO_CUT: u8 = u8::MAX;

/// What is wrong with a state, one bit each.
pub mod bad {
    /// A node reads something older than what it must see.
    pub const STALE: u16 = 1;
    /// A fresh reader does not find a published byte.
    pub const LOST: u16 = 2;
    /// Something older lies over something that was written by who had seen it.
    pub const ORDER: u16 = 4;
    /// Two live writers of one domain.
    pub const TWO_WRITERS: u16 = 8;
    /// The canonical file was written by a node past its lease.
    pub const LATE: u16 = 16;
    /// All is drained and the canonical file is not the newest.
    pub const CANON: u16 = 32;
    /// A step that publishes nothing changed what a fresh reader sees.
    pub const FLIP: u16 = 64;
    /// An unlinked file came back.
    pub const GHOST: u16 = 128;
    /// A node shows a size that is older than what it must see.
    pub const SIZE: u16 = 256;
    /// A power failure took what had been fsynced.
    pub const FSYNCED: u16 = 512;
}

/// A write or truncate, and what came before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Event {
    /// Cells that it covers.
    pub cells: u8,
    /// It is a truncate that cuts.
    pub cut: bool,
    /// What it makes of the size: at least this, or for a cut no more than this.
    pub size: u8,
    /// Events that happened before it, by program order and sync points.
    pub before: u16,
    /// Events that its node had seen in batches when it was made.
    pub saw: u16,
}

/// What a node has of a file: in its store, or as a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bytes {
    pub cells: [u8; CELLS],
    pub cut: u8,
    /// The truncate that made the cut; a configuration has at most one for each node.
    pub cut_event: u8,
    pub growth: u8,
    /// The truncate that let the file grow without bytes, if one did.
    pub grow_event: u8,
}

impl Default for Bytes {
    fn default() -> Self {
        Self {
            cells: [0; CELLS],
            cut: NO_CUT,
            cut_event: 0,
            growth: 0,
            grow_event: 0,
        }
    }
}

impl Bytes {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn write(&mut self, cells: u8, event: u8) {
        for i in 0..CELLS {
            if cells & (1 << i) != 0 {
                self.cells[i] = event;
                self.growth = self.growth.max(i as u8 + 1);
            }
        }
    }

    /// The file is as long as this afterwards, and what it had beyond is gone.
    pub fn cut_to(&mut self, size: u8, event: u8) {
        self.cut = self.cut.min(size);
        self.cut_event = event;
        self.growth = size;
        self.grow_event = 0;
        for i in size as usize..CELLS {
            self.cells[i] = event;
        }
    }

    pub fn grow_to(&mut self, size: u8, event: u8) {
        self.growth = size;
        self.grow_event = event;
    }

    /// The size of a file of `size` with these on top.
    pub fn size_over(&self, size: u8) -> u8 {
        size.min(self.cut).max(self.growth)
    }

    /// Lays newer bytes on top.
    pub fn apply(&mut self, newer: &Self) {
        if newer.cut != NO_CUT {
            self.cut = self.cut.min(newer.cut);
            self.cut_event = newer.cut_event;
            self.growth = self.growth.min(newer.cut);
            self.grow_event = 0;
        }
        if newer.grow_event != 0 {
            self.grow_event = newer.grow_event;
        }
        self.growth = self.growth.max(newer.growth);
        for i in 0..CELLS {
            if newer.cells[i] != 0 {
                self.cells[i] = newer.cells[i];
            }
        }
    }

    pub fn events(&self) -> u16 {
        self.cells
            .iter()
            .chain([&self.grow_event])
            .filter(|&&e| e != 0)
            .fold(0, |mask, &e| mask | bit(e))
    }
}

pub fn bit(event: u8) -> u16 {
    1 << event
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Batch {
    pub epoch: u8,
    pub bytes: Bytes,
}

/// Lengths of all layouts up to which something goes, and the term it was said in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cover {
    pub term: u8,
    pub lens: [u8; NODES],
    /// Nodes whose late batch ([`Late`]) is in it.
    pub late: u8,
}

/// An append that did not come back and may come true at any time. Its node's batches from `at` on are in a second layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Late {
    pub batch: Batch,
    /// Batches before it in its layout.
    pub at: u8,
    pub landed: bool,
    pub sealed: bool,
}

/// What a node knows of the shared directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    pub lens: [u8; NODES],
    /// Nodes whose late batch was read before anybody could know that it does not count.
    pub late: u8,
    pub base: Cover,
    pub plan: Cover,
}

impl View {
    /// Takes what another look found; both only grow, but for late batches that are behind a seal.
    pub fn merge(&mut self, other: &Self, sealed: u8) {
        self.late = (self.late | other.late) & !sealed;
        for m in 0..NODES {
            self.lens[m] = self.lens[m].max(other.lens[m]);
        }
        if other.base.term > self.base.term {
            self.base = other.base;
        }
        if other.plan.term > self.plan.term {
            self.plan = other.plan;
        }
    }

    pub fn beyond_base(&self, m: usize) -> bool {
        self.lens[m] > self.base.lens[m] || self.late & !self.base.late & (1 << m) != 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScanPhase {
    #[default]
    Idle,
    List,
    Read(u8),
    Stat,
}

/// A refresh under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scan {
    pub phase: ScanPhase,
    pub found: View,
    /// The stamp is the one that was seen first.
    pub same: bool,
    /// A layout that was listed was gone.
    pub vanished: bool,
    /// Nodes whose first layout was sealed, or had nothing late, when it was listed.
    pub sealed: u8,
    /// Nodes whose second layout was listed.
    pub second: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Publish {
    #[default]
    Idle,
    Refresh,
    Announce,
    Append,
    /// An append did not come back: its layout is to end before it.
    Seal(Batch),
    /// The same batch goes to another layout.
    Repeat(Batch),
    Forget,
    Stamp,
    Intents,
}

/// What the program of a node waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wait {
    #[default]
    Nothing,
    Refresh,
    Publish,
    StampIntent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Drain {
    #[default]
    Idle,
    /// A term was found that may be taken.
    Take,
    /// The link is made; look again.
    Again,
    Refresh,
    /// Alone: the next stripe may begin.
    Alone,
    /// Alone: a stripe is on its way, with this event.
    Stripe {
        cell: u8,
        event: u8,
    },
    /// Alone: written and synced, the store does not know yet.
    Record {
        cell: u8,
        event: u8,
    },
    /// Alone: a stripe is written and not synced.
    SyncStripe {
        cell: u8,
        event: u8,
    },
    Cut,
    /// Cut, and not synced.
    SyncCut,
    Plan,
    Domains,
    /// The size is set, and not synced.
    SyncSize,
    Base,
    Stamp,
    End,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WorkPhase {
    #[default]
    Idle,
    Take,
    Again,
    Write,
    /// Written, and not synced.
    Sync,
    Done,
}

/// Work on a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Work {
    pub phase: WorkPhase,
    pub domain: u8,
    pub attempt: u8,
    pub plan: Cover,
    /// What the merge of the plan has for the domain.
    pub event: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    #[default]
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    pub mode: Mode,
    /// More than half of the lease has passed since its last heartbeat; others may take it for dead.
    pub lapsed: bool,
    pub run: u8,
    pub program: u8,
    pub ip: u8,
    pub wait: Wait,
    /// Written and not published.
    pub store: Bytes,
    /// Taken for a publish; forgotten at its end.
    pub sending: Bytes,
    /// `sending` is in the layout, at this place (from 1).
    pub sent_at: u8,
    /// What of `sending` and `store` a power failure leaves: what the log said when it was last synced.
    pub synced: Bytes,
    pub synced_store: Bytes,
    /// `synced` is in the layout, at this place.
    pub synced_at: u8,
    pub publish: Publish,
    pub publish_scan: Scan,
    /// Intents that were there when the publish began.
    pub publish_intents: u8,
    pub refresh_scan: Scan,
    /// The stamp is the one of the last refresh, and nobody was waited for.
    pub stamp_known: bool,
    pub view: View,
    /// It has read a batch of another node since it last stamped for such: that may not be stamped yet.
    pub unstamped: bool,
    pub drain: Drain,
    pub term: u8,
    pub drain_scan: Scan,
    pub work: Work,
    /// Ghost: what the refresh under way must show.
    pub target: u16,
    /// Ghost: what every read of this node must not be older than.
    pub before: u16,
    /// Ghost: events of batches that it has seen.
    pub saw: u16,
    /// Ghost: its own events.
    pub own: u16,
}

/// Who holds a link: node and run; 0 is nobody.
pub fn owner(node: usize, run: u8) -> u8 {
    1 + node as u8 + NODES as u8 * run
}

pub fn owner_node(owner: u8) -> (usize, u8) {
    ((owner as usize - 1) % NODES, (owner - 1) / NODES as u8)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub nodes: [Node; NODES],
    pub layouts: [[Batch; BATCHES]; NODES],
    pub lens: [u8; NODES],
    pub late: [Option<Late>; NODES],
    /// Batches of each node whose layout was removed.
    pub gone: [u8; NODES],
    /// Batches of each node whose subfiles were removed.
    pub emptied: [u8; NODES],
    pub intents: [u8; NODES],
    pub terms: [u8; TERMS],
    pub ended: u8,
    pub plan: Cover,
    pub claims: [[u8; TRIES]; CELLS],
    pub done: u8,
    pub base: Cover,
    pub canon: [u8; CELLS],
    pub size: u8,
    /// Cells and size of the canonical file that a node has written and not synced: which node (from 1), and what was there
    /// before. The last one is the size.
    pub unsynced: [(u8, u8); CELLS + 1],
    pub exists: bool,
    pub lock: u8,
    pub crashes: u8,
    pub power: u8,
    pub pauses: u8,
    pub hangs: u8,
    /// Ghost: all events; index 0 is unused.
    pub events: [Event; EVENTS + 1],
    /// Ghost: events whose close, fsync or unlock has returned.
    pub returned: u16,
    /// Ghost: events that went with a power failure, and nobody has to see.
    pub lost: u16,
    /// Ghost: events that an fsync has returned for.
    pub fsynced: u16,
    /// Ghost: events in stamped batches or drained alone.
    pub settled: u16,
    /// Ghost: what the canonical file must be when all is drained.
    pub expect: [u8; CELLS],
    pub expect_size: u8,
    /// What was found wrong.
    pub bad: u16,
}

impl Default for State {
    fn default() -> Self {
        Self {
            nodes: Default::default(),
            layouts: Default::default(),
            lens: [0; NODES],
            late: [None; NODES],
            gone: [0; NODES],
            emptied: [0; NODES],
            intents: [0; NODES],
            terms: [0; TERMS],
            ended: 0,
            plan: Cover::default(),
            claims: Default::default(),
            done: 0,
            base: Cover::default(),
            canon: [0; CELLS],
            size: 0,
            unsynced: [(0, 0); CELLS + 1],
            exists: true,
            lock: 0,
            crashes: 0,
            power: 0,
            pauses: 0,
            hangs: 0,
            events: Default::default(),
            returned: 0,
            lost: 0,
            fsynced: 0,
            settled: 0,
            expect: [0; CELLS],
            expect_size: 0,
            bad: 0,
        }
    }
}
