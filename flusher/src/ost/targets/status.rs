//! The state of the OSTs as it is shown to users and scripts.

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct TargetsStatus {
    /// Kind of the provider: `directories`, `lustre`, `moosefs`.
    pub provider: String,
    /// A probe of all OSTs, or the listing before it, is under way.
    pub probing: bool,
    /// Seconds since the last probe of all OSTs ended.
    pub probed_seconds_ago: Option<f64>,
    /// Seconds spent in probes so far, including those of single OSTs.
    pub probe_seconds: f64,
    /// Why the list of OSTs could not be read, if so.
    pub error: Option<String>,
    pub osts: Vec<OstStatus>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct OstStatus {
    pub index: u32,
    pub name: String,
    pub state: OstState,
    /// Current estimate in bytes per second; `None` if nothing was measured.
    pub bandwidth: Option<f64>,
    /// Mean latency of one I/O.
    pub latency_ms: Option<f64>,
    /// Bytes written since the start.
    pub written: u64,
    /// Bytes under way.
    pub in_flight: u64,
    /// Why it is not used, if it was dropped.
    pub error: Option<String>,
    /// Seconds until it is tried again, if it was dropped.
    pub retry_in: Option<f64>,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OstState {
    /// Data goes there.
    Chosen,
    /// Healthy, but too slow (or one too many) to be worth using.
    LeftOut,
    /// Dropped: something has been under way there for too long.
    Stalled,
    /// Dropped: it gave an error.
    Failed,
    /// Dropped: it has no space left.
    Full,
}

impl OstState {
    pub fn as_str(self) -> &'static str {
        match self {
            OstState::Chosen => "chosen",
            OstState::LeftOut => "left out",
            OstState::Stalled => "stalled",
            OstState::Failed => "failed",
            OstState::Full => "full",
        }
    }

    /// True if the OST is not used because something is wrong with it.
    pub fn is_dropped(self) -> bool {
        matches!(self, OstState::Stalled | OstState::Failed | OstState::Full)
    }
}
