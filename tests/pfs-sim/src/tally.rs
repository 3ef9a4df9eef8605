//! Counters per OST, per file and in total. The JSON field names are these names.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// All requests that were answered: reads, writes and others, including failed ones.
    pub requests: u64,
    pub reads: u64,
    pub writes: u64,
    /// Syncs, truncations, allocations, punched holes.
    pub others: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Locks that a client had to give up, wholly or in part, to another client.
    pub lock_moves: u64,
    /// Writes that begin or end inside a stripe; an end at the end of the file does not count.
    pub unaligned_writes: u64,
    /// Blocks that had to be read because a write changed a part of them.
    pub read_modify_writes: u64,
    pub errors: u64,
    /// Time in which the pipe was in use.
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

    /// Returns the part of the counters that still applies when the request has failed.
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

/// Counters of one OST, in `.pfs-sim/counters`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OstCounters {
    pub ost: usize,
    pub name: String,
    /// Requests that are waiting or being worked on now.
    pub pending: usize,
    /// Bytes that its objects occupy.
    pub used: u64,
    #[serde(flatten)]
    pub tally: Tally,
}

/// Counters of one file, in `.pfs-sim/counters`.
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
    /// Returns the counters of the file with this path from the root of the mount.
    pub fn file(&self, path: &str) -> Option<&FileCounters> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// Configuration of one OST, in `.pfs-sim/config`.
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
    /// 65535 means all OSTs.
    pub stripe_count: u16,
    pub lock_cost_ns: u64,
    pub lock_unit: u64,
    pub rmw_unit: u64,
    pub write_behind: u64,
    pub no_direct: bool,
    pub clients: String,
    pub osts: Vec<OstConfig>,
}
