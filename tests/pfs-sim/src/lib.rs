//! A simulated striped parallel file system, and the handle with which tests and benchmarks use it.
//!
//! The simulator is a FUSE file system in a process of its own (`pfs-sim`); [`Sim`] starts it, talks
//! to it and takes it down. The model, its counters and its limits are in `README.md`.
//!
//! Structure: [`layout`] maps files to objects, `object` holds bytes, `locks` grants extent locks,
//! `pipe` computes how long requests take, `ost` and `cluster` queue and answer them, `tree` and
//! `node` are the namespace, `ops` puts these together, and `fuse` serves the kernel.

mod batch;
mod behind;
mod block;
pub mod cli;
mod cluster;
mod control;
mod data;
mod fuse;
pub mod layout;
mod locks;
pub mod lov;
mod mount;
mod node;
mod object;
mod ops;
mod ost;
mod pipe;
mod settings;
mod sim;
mod space;
mod tally;
mod timer;
mod tree;
mod units;
mod virtual_files;
mod xattr;

pub use nix::errno::Errno;
pub use settings::{Change, Failure, OstSettings, Target};
pub use sim::{Builder, Sim};
pub use tally::{Config, Counters, FileCounters, OstConfig, OstCounters, Tally};
