//! What is counted, per OST, per file and in total. The JSON field names are these names.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// All that were answered: reads, writes and others, failed ones included.
    pub requests: u64,
    pub reads: u64,
    pub writes: u64,
    /// Syncs, truncations, allocations, punched holes.
    pub others: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Locks that a client had to give up, wholly or in part, for another.
    pub lock_moves: u64,
    /// Writes that begin or end inside a stripe (an end of file at their end excepted).
    pub unaligned_writes: u64,
    /// Blocks that had to be read because a write changed a part of them.
    pub read_modify_writes: u64,
    pub errors: u64,
    /// How long the pipe was in use.
    pub busy_ns: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.lock_moves += other.lock_moves;
        self.unaligned_writes += other.unaligned_writes;
        self.read_modify_writes += other.read_modify_writes;
        self.errors += other.errors;
        self.busy_ns += other.busy_ns;
    }

    /// What is left of it when the request failed.
    pub fn failed(&self) -> Tally {
        Tally {
            requests: self.requests,
            lock_moves: self.lock_moves,
            errors: 1,
            busy_ns: self.busy_ns,
            ..Tally::default()
        }
    }
}

/// One OST, in `.pfs-sim/counters`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OstCounters {
    pub ost: usize,
    pub name: String,
    /// Requests that wait or are being worked on now.
    pub pending: usize,
    /// Bytes that its objects take.
    pub used: u64,
    #[serde(flatten)]
    pub tally: Tally,
}

/// One file, in `.pfs-sim/counters`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCounters {
    pub ino: u64,
    /// One of its names, from the root of the mount.
    pub path: String,
    #[serde(flatten)]
    pub tally: Tally,
}

/// The content of `.pfs-sim/counters`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub total: Tally,
    pub osts: Vec<OstCounters>,
    /// Files that still exist and had requests since the last reset.
    pub files: Vec<FileCounters>,
}

impl Counters {
    /// By its path from the root of the mount.
    pub fn file(&self, path: &str) -> Option<&FileCounters> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// One OST, in `.pfs-sim/config`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OstConfig {
    pub ost: usize,
    pub name: String,
    #[serde(flatten)]
    pub settings: crate::settings::OstSettings,
}

/// The content of `.pfs-sim/config`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    pub stripe_size: u64,
    /// 65535 stands for all.
    pub stripe_count: u16,
    pub lock_cost_ns: u64,
    pub lock_unit: u64,
    pub rmw_unit: u64,
    pub write_behind: u64,
    pub no_direct: bool,
    pub clients: String,
    pub osts: Vec<OstConfig>,
}
