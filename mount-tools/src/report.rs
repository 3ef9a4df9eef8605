//! The reports of `status`, `layout` and `explain`: the shape of their JSON, and of what the daemon sends for
//! them.

use flusher::Policy;
use flusher::ost::TargetsStatus;
use forebay_fs::OpStats;
use layout_index::{LocalCopyTotals, RecoveryReport, Space, Totals};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
    /// False if another program has unmounted it and the daemon drains what is left; `None` without a daemon.
    #[serde(default)]
    pub mounted: Option<bool>,
    pub backing: PathBuf,
    /// The storage targets; `None` if none are used, and without a daemon.
    pub targets: Option<TargetsStatus>,
    pub store: StoreStatus,
    pub bytes: Bytes,
    /// Local copies of files on this node; `None` without a daemon.
    #[serde(default)]
    pub kept: Option<LocalCopyTotals>,
    /// Files with undrained data, most first; those of other users are only counted.
    pub files: Vec<FileStatus>,
    /// Why it is not known what this node has published and is not drained. `files` and `bytes` do not
    /// include that. Only without a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Number of files that are not listed, because they belong to other users or are too many.
    pub more_files: usize,
    pub more_undrained: u64,
    pub open_handles: Option<usize>,
    /// The file system's operations that were called since the mount. Empty without a daemon.
    #[serde(default)]
    pub operations: BTreeMap<String, OperationStatus>,
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
    /// Why the store takes no more writes, if it does not.
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

/// Bytes by the stage that they have reached. `undrained` and `in_log` are current values; the others count
/// since the daemon started. All but `undrained` are missing if no daemon runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    pub appended: Option<u64>,
    pub durable: Option<u64>,
    /// Published to other nodes. Bytes that go straight to the canonical file do not count.
    pub published: Option<u64>,
    pub canonical: Option<u64>,
    pub superseded: Option<u64>,
    pub through: Option<u64>,
    pub undrained: u64,
    /// Part of `undrained` that is only in the log: the rest is in subfiles.
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
            through: Some(t.written_through),
            undrained: t.undrained,
            in_log: Some(t.in_log),
            subfiled: Some(t.subfiled),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Path below the mount.
    pub path: String,
    pub id: String,
    pub size: u64,
    pub undrained: u64,
    pub uid: u32,
    pub writers: Option<usize>,
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationStatus {
    /// What it may wait for: `never-waits`, `disk`, `nodes` or `locks`.
    pub class: String,
    pub count: u64,
    /// How many of these were answered with an error, expected ones (ENOENT) included.
    pub errors: u64,
    /// Bytes of data that were read, written or copied.
    pub bytes: u64,
    /// Median and 99th percentile, in seconds, of the time from the arrival of a request to its answer.
    pub p50: f64,
    pub p99: f64,
}

impl From<OpStats> for OperationStatus {
    fn from(stats: OpStats) -> Self {
        OperationStatus {
            class: stats.op.class().name().into(),
            count: stats.count,
            errors: stats.errors,
            bytes: stats.bytes,
            p50: stats.p50.as_secs_f64(),
            p99: stats.p99.as_secs_f64(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainStatus {
    pub policy: Policy,
    /// Bytes per second, recently.
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
    /// Start of the first overlap that was found.
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
    /// True if there are more pieces than this report may hold; they follow after the last one.
    pub cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutPiece {
    pub start: u64,
    pub end: u64,
    pub tier: Tier,
    /// Number of the log's segment, or of the subfile.
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
    /// In the published layout itself.
    Layout,
    Canonical,
    Hole,
}
