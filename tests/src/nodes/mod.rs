//! The reference model of several nodes: what each of them must show at its sync points.
//!
//! # Why the expected bytes are always known
//!
//! Either one node at a time changes a file, from a sync point that refreshes (open, fsync, lock) to one that
//! publishes (close, fsync, unlock), or several nodes do, in ranges that do not touch. So between two such
//! turns, and after each sync point of a turn that one node has for itself, every file has exactly one
//! content that every node must show, and all nodes are checked. Daemons are killed and started again in
//! between, within turns and while other nodes read.

mod appends;
mod below;
mod content;
mod names;
mod shares;
mod turn;
mod world;

pub use content::Content;
pub use world::{Counts, World};
