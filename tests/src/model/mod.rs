//! The reference model: what a plain POSIX file system would hold, kept in memory and compared with the mount
//! operation by operation.
//!
//! Four worker processes run at once. Each has a directory to itself, whose [`tree::Tree`] it knows
//! completely, and its own blocks of two files that all workers share. The expected content of the shared
//! files is in plain files outside the mount ([`shared`]), and every worker can compare them as a whole once
//! all workers have stopped at a barrier. A run is a function of its seed, except for how the processes
//! interleave.

pub mod manifest;
pub mod private;
mod private_names;
pub mod shared;
pub mod tree;
pub mod worker;
