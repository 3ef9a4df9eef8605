//! Settings of an OST, and changes to them while it runs.

use crate::{Errno, units};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The way in which an OST fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Failure {
    #[default]
    None,
    /// Every request fails.
    Eio,
    /// Writes fail with "no space".
    Enospc,
    /// Writes fail with "over quota".
    Edquot,
    /// Writes fail with "read-only".
    Erofs,
    /// Requests wait until this setting is changed.
    Hang,
}

impl Failure {
    /// Returns the error that a request gets; `changes` is true for writes, truncation and
    /// allocation.
    pub fn error(self, changes: bool) -> Option<Errno> {
        match self {
            Failure::Eio => Some(Errno::EIO),
            Failure::Enospc if changes => Some(Errno::ENOSPC),
            Failure::Edquot if changes => Some(Errno::EDQUOT),
            Failure::Erofs if changes => Some(Errno::EROFS),
            _ => None,
        }
    }
}

/// Settings of one OST.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OstSettings {
    /// Bytes per second.
    pub bandwidth: u64,
    /// Latency of each request.
    pub latency_ns: u64,
    /// Service times vary evenly by this share in both directions.
    pub jitter: f64,
    /// Number of requests that are worked on at once.
    pub queue: usize,
    /// Capacity in bytes.
    pub capacity: u64,
    pub fail: Failure,
}

impl Default for OstSettings {
    fn default() -> Self {
        Self {
            bandwidth: 100 << 20,
            latency_ns: 200_000,
            jitter: 0.0,
            queue: 8,
            capacity: 10 << 30,
            fail: Failure::None,
        }
    }
}

/// The OSTs that a command applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Target {
    One(usize),
    Some(Vec<usize>),
    /// Only the word "all" is valid.
    Word(String),
}

impl From<usize> for Target {
    fn from(ost: usize) -> Self {
        Target::One(ost)
    }
}

impl Target {
    pub fn all() -> Self {
        Target::Word("all".into())
    }

    /// Returns the numbers of the OSTs, of which there are `count`.
    pub fn numbers(&self, count: usize) -> Result<Vec<usize>, String> {
        let list = match self {
            Target::One(ost) => vec![*ost],
            Target::Some(list) => list.clone(),
            Target::Word(word) if word == "all" => (0..count).collect(),
            Target::Word(word) => {
                return Err(format!("\"{word}\" is no OST; write a number or \"all\""));
            }
        };
        match list.iter().find(|ost| **ost >= count) {
            Some(ost) => Err(format!("there is no OST {ost}; the last is {}", count - 1)),
            None => Ok(list),
        }
    }
}

/// One control command; settings that it omits stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ost: Option<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fail: Option<Failure>,
    /// Applies to all OSTs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_cost: Option<String>,
    /// Only the word "counters" is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
}

impl Change {
    pub fn bandwidth(mut self, bytes_per_second: &str) -> Self {
        self.bandwidth = Some(bytes_per_second.into());
        self
    }

    pub fn latency(mut self, per_request: &str) -> Self {
        self.latency = Some(per_request.into());
        self
    }

    pub fn jitter(mut self, share: &str) -> Self {
        self.jitter = Some(share.into());
        self
    }

    pub fn queue(mut self, requests: usize) -> Self {
        self.queue = Some(requests);
        self
    }

    pub fn capacity(mut self, bytes: &str) -> Self {
        self.capacity = Some(bytes.into());
        self
    }

    pub fn fail(mut self, how: Failure) -> Self {
        self.fail = Some(how);
        self
    }

    fn changes_osts(&self) -> bool {
        let texts = [&self.bandwidth, &self.latency, &self.jitter, &self.capacity];
        texts.iter().any(|t| t.is_some()) || self.queue.is_some() || self.fail.is_some()
    }

    /// Refuses commands that name OSTs without changing them, or change OSTs without naming them.
    pub fn check(&self) -> Result<(), String> {
        if self.changes_osts() && self.ost.is_none() {
            return Err("the command names no OST; add \"ost\": a number or \"all\"".into());
        }
        if self.ost.is_some() && !self.changes_osts() {
            return Err(
                "the command says nothing about the OST; add bandwidth, latency, jitter, queue, \
                 capacity or fail"
                    .into(),
            );
        }
        match &self.reset {
            Some(word) if word != "counters" => {
                Err(format!("\"{word}\" cannot be reset; only \"counters\" can"))
            }
            _ => Ok(()),
        }
    }

    /// Returns `old` with the changes applied.
    pub fn apply(&self, old: &OstSettings) -> Result<OstSettings, String> {
        let mut new = old.clone();
        if let Some(text) = &self.bandwidth {
            new.bandwidth = units::rate(text)?;
        }
        if let Some(text) = &self.latency {
            new.latency_ns = nanos(units::time(text)?);
        }
        if let Some(text) = &self.jitter {
            new.jitter = units::share(text)?;
        }
        if let Some(queue) = self.queue {
            if queue == 0 {
                return Err("a queue of 0 would serve nothing; it must be at least 1".into());
            }
            new.queue = queue;
        }
        if let Some(text) = &self.capacity {
            new.capacity = units::size(text)?;
        }
        if let Some(fail) = self.fail {
            new.fail = fail;
        }
        Ok(new)
    }
}

/// Converts to nanoseconds. A time of more than 500 years does not fit and is treated as forever.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
