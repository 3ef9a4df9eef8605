//! The messages. A client sends one [`Request`] per connection; the daemon answers with any
//! number of [`Reply::Progress`] and then one other reply.
//!
//! Files are named by the inode number that `stat` shows through the mount, directories by their
//! path below it: the daemon never walks a path that a client gave it.

use crate::holders::Holder;
use crate::report::{ExplainReport, LayoutReport, StatusReport};
use flusher::Progress;
use flusher::ost::TargetsStatus;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    Ping,
    Status,
    Drain {
        target: Target,
        wait: bool,
        timeout_ms: Option<u64>,
    },
    Layout {
        ino: u64,
    },
    Explain {
        ino: u64,
    },
    /// Reads a file into the store. The client has it open for reading through the mount.
    Prefetch {
        ino: u64,
        /// How long ago the client began. Local copies that were made before may be dropped to make room.
        since_ms: u64,
    },
    /// Asks for what is known of the storage targets; with `fresh` they are measured now.
    Probe {
        fresh: bool,
    },
    Umount {
        keep: bool,
        timeout_ms: Option<u64>,
    },
    /// Sent by the next daemon of the store, which wants to take it over. Refused while this daemon has its
    /// mount.
    HandOver,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The whole mount.
    Mount,
    File(u64),
    Directory(WirePath),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    Pong { pid: u32 },
    Status(Box<StatusReport>),
    Progress(Progress),
    Drain(DrainResult),
    Layout(LayoutReport),
    Explained(ExplainReport),
    Prefetch(PrefetchResult),
    Probed(ProbeResult),
    Unmounted { undrained: u64, files: usize },
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainResult {
    pub state: DrainState,
    pub files: usize,
    pub undrained: u64,
    pub drained: u64,
    /// Files with undrained data that are left to their owners.
    pub others: usize,
    pub errors: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeResult {
    pub targets: TargetsStatus,
    /// Bytes that a probe writes to each target.
    pub size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchResult {
    pub state: PrefetchState,
    /// Bytes read from the file below.
    pub read: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefetchState {
    Kept,
    Already,
    /// The file has undrained data, or is open for writing.
    Dirty,
    Changed,
    NoRoom,
    /// The store takes no copies.
    Unusable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainState {
    Drained,
    StillDirty,
    Failed,
}

/// Why the daemon did not carry out a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub reason: Reason,
    pub message: String,
    /// Processes that keep the mount busy.
    #[serde(default)]
    pub holders: Vec<Holder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    Denied,
    Busy,
    StillDirty,
    Failed,
}

impl Refusal {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Refusal {
            reason,
            message: message.into(),
            holders: Vec::new(),
        }
    }
}

/// A path that need not be UTF-8: a string where it is, a list of bytes where it is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WirePath(pub Vec<u8>);

impl WirePath {
    pub fn to_path(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(self.0.clone()))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WireForm<'a> {
    Text(std::borrow::Cow<'a, str>),
    Bytes(Vec<u8>),
}

impl Serialize for WirePath {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => WireForm::Text(text.into()),
            Err(_) => WireForm::Bytes(self.0.clone()),
        }
        .serialize(s)
    }
}

impl<'de> Deserialize<'de> for WirePath {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(WirePath(match WireForm::deserialize(d)? {
            WireForm::Text(text) => text.into_owned().into_bytes(),
            WireForm::Bytes(bytes) => bytes,
        }))
    }
}
