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

/// The value of `cut` in a batch or store without a cut.
pub const NO_CUT: u8 = u8::MAX;

/// Faults of a state, one bit each.
pub mod bad {
    /// A node reads something older than what it must see.
    pub const STALE: u16 = 1;
    /// A fresh reader does not find a published byte.
    pub const LOST: u16 = 2;
    /// An older event hides an event whose node had seen the older one.
    pub const ORDER: u16 = 4;
    /// Two live writers write one domain.
    pub const TWO_WRITERS: u16 = 8;
    /// The canonical file was written by a node past its lease.
    pub const LATE: u16 = 16;
    /// Everything is drained and the canonical file is not the newest.
    pub const CANON: u16 = 32;
    /// A step that publishes nothing changed what a fresh reader sees.
    pub const FLIP: u16 = 64;
    /// An unlinked file came back.
    pub const GHOST: u16 = 128;
    /// A node shows a size that is older than what it must see.
    pub const SIZE: u16 = 256;
    /// A power failure took bytes that had been fsynced.
    pub const FSYNCED: u16 = 512;
}

/// A write or truncate, and what came before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Event {
    /// Cells that it covers.
    pub cells: u8,
    /// Whether it is a truncate that cuts.
    pub cut: bool,
    /// The size that it leaves: at least this, or for a cut at most this.
    pub size: u8,
    /// Events that happened before it, by program order and sync points.
    pub before: u16,
    /// Events that its node had seen in batches when it was made.
    pub saw: u16,
}

/// Bytes of a file that a node has in its store, or that form a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bytes {
    pub cells: [u8; CELLS],
    pub cut: u8,
    /// The truncate that made the cut; a configuration has at most one for each node.
    pub cut_event: u8,
    pub growth: u8,
    /// The truncate that let the file grow without bytes, if there was one.
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

    /// Makes the file this long; what it had beyond is gone.
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

    /// Returns the size of a file of `size` with these bytes on top.
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

/// The length up to which a base or plan covers each layout, and the term in which it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cover {
    pub term: u8,
    pub lens: [u8; NODES],
    /// Nodes whose late batch ([`Late`]) is covered.
    pub late: u8,
}

/// An append that did not return and may take effect at any time. Its node's batches from `at` on are in a second
/// layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Late {
    pub batch: Batch,
    /// Number of batches before it in its layout.
    pub at: u8,
    pub landed: bool,
    pub sealed: bool,
}

/// A node's knowledge of the shared directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    pub lens: [u8; NODES],
    /// Nodes whose late batch was read before its seal could be seen.
    pub late: u8,
    pub base: Cover,
    pub plan: Cover,
}

impl View {
    /// Takes what another refresh found. Both values only grow, except that late batches past a seal are removed.
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
    /// The change token is still the one that was seen first.
    pub same: bool,
    /// A layout that was listed was gone when it was read.
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
    /// An append did not return: its layout must be ended before that batch.
    Seal(Batch),
    /// The same batch is appended to another layout.
    Repeat(Batch),
    Forget,
    Touch,
    Announcements,
}

/// The event that the program of a node waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wait {
    #[default]
    Nothing,
    Refresh,
    Publish,
    TouchAnnouncement,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Drain {
    #[default]
    Idle,
    /// A term was found that may be taken.
    Take,
    /// The link is made; the terms are listed again.
    Again,
    Refresh,
    /// Draining alone: the next stripe may begin.
    Alone,
    /// Draining alone: a stripe with this event is being written.
    Stripe {
        cell: u8,
        event: u8,
    },
    /// Draining alone: the stripe is written and synced, and the store does not know it yet.
    Record {
        cell: u8,
        event: u8,
    },
    /// Draining alone: a stripe is written and not synced.
    SyncStripe {
        cell: u8,
        event: u8,
    },
    Cut,
    /// The file is cut, and the cut is not synced.
    SyncCut,
    Plan,
    Domains,
    /// The size is set, and not synced.
    SyncSize,
    Base,
    Touch,
    End,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WorkPhase {
    #[default]
    Idle,
    Take,
    Again,
    Write,
    /// The domain is written, and not synced.
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
    /// The event that the merge of the plan has for the domain.
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
    /// More than half of the lease has passed since its last heartbeat; other nodes may treat it as dead.
    pub lapsed: bool,
    pub run: u8,
    pub program: u8,
    pub ip: u8,
    pub wait: Wait,
    /// Bytes that are written and not published.
    pub store: Bytes,
    /// Bytes that were chosen for a publish; forgotten at its end.
    pub sending: Bytes,
    /// Place (from 1) of `sending` in the layout; 0 if it is not there.
    pub sent_at: u8,
    /// The part of `sending` and `store` that survives a power failure: the state of the log when it was last synced.
    pub synced: Bytes,
    pub synced_store: Bytes,
    /// Place of `synced` in the layout.
    pub synced_at: u8,
    pub publish: Publish,
    pub publish_scan: Scan,
    /// Announcements that existed when the publish began.
    pub publish_announcements: u8,
    pub refresh_scan: Scan,
    /// The change token has not been set since the last listing of the last refresh.
    pub token_known: bool,
    pub view: View,
    /// The node has read a batch of another node since it last set the change token after such a read, and the token
    /// may not have been set for that batch yet.
    pub needs_touch: bool,
    pub drain: Drain,
    pub term: u8,
    pub drain_scan: Scan,
    pub work: Work,
    /// Ghost: events that the refresh under way must show.
    pub target: u16,
    /// Ghost: events that no read of this node may be older than.
    pub before: u16,
    /// Ghost: events of batches that it has seen.
    pub saw: u16,
    /// Ghost: its own events.
    pub own: u16,
}

/// Encodes the holder of a link from node and run; 0 means that there is no holder.
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
    pub announcements: [u8; NODES],
    pub terms: [u8; TERMS],
    pub ended: u8,
    pub plan: Cover,
    pub claims: [[u8; TRIES]; CELLS],
    pub done: u8,
    pub base: Cover,
    pub canon: [u8; CELLS],
    pub size: u8,
    /// Cells and size of the canonical file that a node has written and not synced: the node (from 1), and the value
    /// from before. The last entry is the size.
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
    /// Ghost: events that were lost in a power failure, and that no node has to see.
    pub lost: u16,
    /// Ghost: events for which an fsync has returned.
    pub fsynced: u16,
    /// Ghost: events in batches for which the change token was set, or that were drained alone.
    pub settled: u16,
    /// Ghost: what the canonical file must be when everything is drained.
    pub expect: [u8; CELLS],
    pub expect_size: u8,
    /// The faults found, as bits of [`bad`].
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
            announcements: [0; NODES],
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
