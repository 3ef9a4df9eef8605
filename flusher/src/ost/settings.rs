//! Settings of OSTs that an operator may choose.

use super::{DELTA, ProbeOptions};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Which file system places the subfiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Directories if some were given, otherwise the provider for the backing's file system.
    #[default]
    Auto,
    Directories,
    Lustre,
    Moosefs,
    /// No placement, no subfiles.
    None,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Auto => "auto",
            Kind::Directories => "directories",
            Kind::Lustre => "lustre",
            Kind::Moosefs => "moosefs",
            Kind::None => "none",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let all = [
            Kind::Auto,
            Kind::Directories,
            Kind::Lustre,
            Kind::Moosefs,
            Kind::None,
        ];
        all.into_iter().find(|k| k.as_str() == s).ok_or_else(|| {
            format!(
                "ost-provider = \"{s}\" is not known; use auto, directories, lustre, moosefs or none"
            )
        })
    }
}

#[derive(Clone, Debug)]
pub struct OstSettings {
    /// If false, all OSTs are taken to be equally fast, and none is probed.
    pub probing: bool,
    pub probe: ProbeOptions,
    /// How old a probe may become before the next one.
    pub probe_age: Duration,
    pub delta: f64,
    /// How many of the chosen OSTs one file is spread over; all of them if `None`.
    pub width: Option<usize>,
    /// An OST that has not answered for this long is dropped.
    pub deadline: Duration,
    /// A dropped OST is tried again after this long.
    pub retry_after: Duration,
    /// Stripe size of new canonical files.
    pub stripe: u64,
    /// Where the rotation of files that go to one target begins: at a different target on each node.
    pub first: usize,
}

impl Default for OstSettings {
    fn default() -> Self {
        Self {
            probing: true,
            probe: ProbeOptions::default(),
            probe_age: Duration::from_secs(3600),
            delta: DELTA,
            width: None,
            deadline: Duration::from_secs(10),
            retry_after: Duration::from_secs(60),
            stripe: crate::Settings::default().stripe,
            first: 0,
        }
    }
}
