//! Kills the daemon under load: workers write down what was acknowledged, and the judge compares that with
//! what a remount shows.
//!
//! A worker notes each operation in a plain file outside the mount before it starts it ([`Note`]), and again
//! when the call has returned. So when the daemon dies, there is at most one operation of each worker that
//! may be done or not; every other byte is known.

pub mod judge;
pub mod worker;

use crate::rng::Rng;
use serde::{Deserialize, Serialize};

/// The file that all workers write, each in its own blocks.
pub const SHARED: &str = "shared";
pub const BLOCK: u64 = 47008;
pub const BLOCKS_PER_WORKER: u64 = 16;
/// Largest file that one worker has to itself.
pub const MAX_SIZE: u64 = 512 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// Creates the file if needed.
    Write {
        at: u64,
        len: u64,
    },
    Truncate {
        size: u64,
    },
    Unlink,
    Sync,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Note {
    Begin {
        seq: u64,
        file: String,
        act: Act,
    },
    /// The call returned without an error.
    Done {
        seq: u64,
    },
}

/// Returns the bytes of a write. They follow from the seed, the worker and the number of the operation, so
/// that notes stay small.
pub fn content(seed: u64, worker: u64, seq: u64, len: u64) -> Vec<u8> {
    Rng::derive(seed ^ (worker << 48), seq).bytes(len as usize)
}
