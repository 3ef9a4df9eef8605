//! What an operator may choose about the drain. Plain values: nothing here is run-time state.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// When undrained data moves to the canonical file by itself.
///
/// A request, and a store above its high watermark, drain whatever the policy says: keeping data
/// back for ever would turn a full store into slow writers for every user of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Shortly after it was written.
    #[default]
    Immediate,
    /// When the last writer has closed the file.
    OnClose,
    /// When asked to, or when the store is above its high watermark.
    Never,
}

impl Policy {
    pub fn as_str(self) -> &'static str {
        match self {
            Policy::Immediate => "immediate",
            Policy::OnClose => "on-close",
            Policy::Never => "never",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "immediate" => Ok(Policy::Immediate),
            "on-close" => Ok(Policy::OnClose),
            "never" => Ok(Policy::Never),
            other => Err(format!(
                "drain = \"{other}\" is not a policy; use immediate, on-close or never"
            )),
        }
    }
}

/// Whether data goes to subfiles before it goes to the canonical file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subfiles {
    /// Where another node writes the same file.
    #[default]
    Auto,
    Always,
    /// Always straight to the canonical file.
    Never,
}

impl Subfiles {
    pub fn as_str(self) -> &'static str {
        match self {
            Subfiles::Auto => "auto",
            Subfiles::Always => "always",
            Subfiles::Never => "never",
        }
    }
}

impl fmt::Display for Subfiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Subfiles {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "auto" => Ok(Subfiles::Auto),
            "always" => Ok(Subfiles::Always),
            "never" => Ok(Subfiles::Never),
            other => Err(format!(
                "subfiles = \"{other}\" is not known; use auto, always or never"
            )),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub policy: Policy,
    pub subfiles: Subfiles,
    /// Unit of drain writes: aligned to the stripes of the canonical file.
    pub stripe: u64,
    /// Stripes written at once, over all files.
    pub concurrency: usize,
    /// Bytes per second, over all files; `None` for no limit.
    pub rate_limit: Option<u64>,
    /// First and longest pause before a failed file is tried again.
    pub retry_min: Duration,
    pub retry_max: Duration,
    /// Bytes written to one file before it is synced and its log space given back.
    pub sync_every: u64,
    /// The same, in time: a slow drain gets on, and is seen to, before it has so many bytes.
    pub sync_after: Duration,
    /// Read every stripe back after writing it and compare checksums.
    pub verify: bool,
    /// How long a first write waits for company before the immediate policy acts on it.
    pub batch: Duration,
    /// A call to the file system below that takes longer than this counts as hanging.
    pub patience: Duration,
    /// How long a half-written stripe of a file that is still open may wait to be filled.
    pub linger: Duration,
    /// What is drained stays on this node as a copy, to be read there.
    pub keep: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            subfiles: Subfiles::default(),
            stripe: 1 << 20,
            concurrency: 4,
            rate_limit: None,
            retry_min: Duration::from_millis(200),
            retry_max: Duration::from_secs(30),
            sync_every: 64 << 20,
            sync_after: Duration::from_secs(1),
            verify: false,
            batch: Duration::from_millis(50),
            patience: Duration::from_secs(10),
            linger: Duration::from_millis(500),
            keep: false,
        }
    }
}
