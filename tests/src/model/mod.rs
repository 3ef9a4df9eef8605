//! The reference model: what a plain POSIX file system would hold, kept in memory and compared
//! with the mount operation by operation.
//!
//! Four worker processes run at once. Each has a directory to itself, whose [`tree::Tree`] it
//! knows completely, and its own blocks of two files that all of them share; what those should
//! hold is kept in plain files outside the mount ([`shared`]), which every worker can compare
//! as a whole once all have stopped at a barrier. A run is a function of its seed, up to how the
//! processes interleave.

pub mod manifest;
pub mod private;
mod private_names;
pub mod shared;
pub mod tree;
pub mod worker;
