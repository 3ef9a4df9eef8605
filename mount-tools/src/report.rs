//! What `status`, `layout`, `explain` and `recover` report: the shape of their JSON, and what the daemon
//! sends for it.

use flusher::Policy;
use flusher::ost::FleetStatus;
use layout_index::{KeptTotals, RecoveryReport, Space, Totals};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub mod explain;
pub use explain::{Asked, DecidedBy, ExplainReport};

/// One mount, or one store without a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// `daemon`, or `store` when no daemon runs and only the store could be asked.
    pub source: Source,
    pub version: String,
    pub node: String,
    pub pid: Option<u32>,
    /// Seconds.
    pub uptime: Option<f64>,
    pub mount: Option<PathBuf>,
    /// False when another program has unmounted it and the daemon drains what is left; `None` without
    /// a daemon.
    #[serde(default)]
    pub mounted: Option<bool>,
    pub backing: PathBuf,
    /// The storage targets; `None` where none are used, and without a daemon.
    pub targets: Option<FleetStatus>,
    pub store: StoreStatus,
    pub bytes: Bytes,
    /// Copies of drained files on this node; `None` without a daemon.
    #[serde(default)]
    pub kept: Option<KeptTotals>,
    /// Files with undrained data, most first; those of other users are only counted.
    pub files: Vec<FileStatus>,
    /// Why it is not known what this node has published and is not drained: `files` and `bytes` miss that. Only without
    /// a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Files that are not listed: other users', or too many.
    pub more_files: usize,
    pub more_undrained: u64,
    pub open_handles: Option<usize>,
    pub drain: Option<DrainStatus>,
    pub errors: Vec<ErrorStatus>,
    /// Writes of other nodes that overlapped with this node's without a sync point in between, since
    /// the daemon started.
    #[serde(default)]
    pub overlaps: u64,
    #[serde(default)]
    pub overlapped: Vec<OverlapStatus>,
    pub recovery: Option<RecoveryReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    Daemon,
    Store,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    pub path: PathBuf,
    pub capacity: Option<u64>,
    pub used: u64,
    pub live: Option<u64>,
    pub high_watermark: Option<u64>,
    pub segment: Option<u64>,
    pub segments: usize,
    /// Why it takes no more writes, if so.
    pub failure: Option<String>,
}

impl StoreStatus {
    pub fn new(path: PathBuf, space: &Space, failure: Option<String>) -> Self {
        StoreStatus {
            path,
            capacity: Some(space.capacity),
            used: space.used,
            live: Some(space.live),
            high_watermark: Some(space.high_watermark),
            segment: Some(space.segment),
            segments: space.segments,
            failure,
        }
    }
}

/// Bytes by mark. `undrained` is now; the others count since the daemon started, and are missing
/// where no daemon runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    pub appended: Option<u64>,
    pub durable: Option<u64>,
    /// Told to other nodes; what goes straight to the canonical file does not count.
    pub published: Option<u64>,
    pub canonical: Option<u64>,
    pub superseded: Option<u64>,
    pub through: Option<u64>,
    pub undrained: u64,
    /// Of `undrained`, what is nowhere but in the log: the rest is in subfiles.
    pub in_log: Option<u64>,
    /// Written to subfiles.
    pub subfiled: Option<u64>,
}

impl From<Totals> for Bytes {
    fn from(t: Totals) -> Self {
        Bytes {
            appended: Some(t.appended),
            durable: Some(t.durable),
            published: Some(t.published),
            canonical: Some(t.canonical),
            superseded: Some(t.superseded),
            through: Some(t.through),
            undrained: t.undrained,
            in_log: Some(t.in_log),
            subfiled: Some(t.subfiled),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Below the mount.
    pub path: String,
    pub id: String,
    pub size: u64,
    pub undrained: u64,
    pub uid: u32,
    pub writers: Option<usize>,
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainStatus {
    pub policy: Policy,
    /// Bytes per second of late.
    pub rate: f64,
    pub rate_limit: Option<u64>,
    /// Seconds.
    pub eta: Option<f64>,
    pub concurrency: usize,
    pub active_files: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorStatus {
    pub path: String,
    pub message: String,
}

/// A file whose bytes two nodes have written without a sync point in between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlapStatus {
    pub path: String,
    /// The other nodes.
    pub nodes: Vec<String>,
    /// The first that was found.
    pub start: u64,
    pub end: u64,
    pub count: u64,
}

/// Where a file's bytes are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayoutReport {
    pub size: u64,
    pub undrained: u64,
    pub pieces: Vec<LayoutPiece>,
    /// There are more pieces than this report may hold; they follow after the last one.
    pub cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutPiece {
    pub start: u64,
    pub end: u64,
    pub tier: Tier,
    /// Of the log's segment, or of the subfile.
    pub segment: Option<u32>,
    pub offset: Option<u64>,
    /// The storage target that the subfile is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ost: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    Log,
    Subfile,
    /// Published with the layout itself.
    Layout,
    Canonical,
    Hole,
}
