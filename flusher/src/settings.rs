//! Settings of the drain that an operator may choose for all files. Those that files may differ in are in
//! [`layout_index::FileSettings`]. These are plain values, without any run-time state.

pub use layout_index::policy::{Drain as Policy, Subfiles};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Settings {
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
    /// The same limit in time: a slow drain makes visible progress before it has written so many
    /// bytes.
    pub sync_after: Duration,
    /// Read every stripe back after writing it and compare the bytes.
    pub verify: bool,
    /// How long a first write waits for more data before the immediate policy acts on it.
    pub batch: Duration,
    /// A call to the file system below that takes longer than this counts as hanging.
    pub patience: Duration,
    /// How long a half-written stripe of a file that is still open may wait to be filled.
    pub linger: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
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
        }
    }
}
