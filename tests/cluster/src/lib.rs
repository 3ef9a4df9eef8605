//! Several nodes on one machine, for people and for tests. Each node is a mount namespace with its
//! own host name and an address on a network that only the nodes see. Each has a Forebay daemon and
//! a store, and all mount at the same path over one backing.
//!
//! ```no_run
//! use forebay_cluster::{Cluster, Mpi, Spec};
//!
//! let cluster = Cluster::up(Spec::new(4).args(["--close", "publish"])).unwrap();
//! let file = cluster.path().join("out.dat");
//! let done = cluster.run(Mpi::Mpich, 8, "/path/to/program", [&file]).unwrap();
//! assert!(done.success(), "{}", done.text());
//! cluster.kill(1).unwrap();
//! cluster.restart(1).unwrap();
//! cluster.drain().unwrap();
//! let bytes = std::fs::read(cluster.canonical("out.dat")).unwrap();
//! # drop(bytes);
//! cluster.down().unwrap();
//! ```
//!
//! The program `forebay-cluster` offers the same on the command line. The library starts it to keep
//! the nodes, so it must have been built.

pub mod cli;
mod cluster;
mod failure;
mod job;
mod keeper;
mod launcher;
mod mpi;
mod namespace;
mod network;
mod node;
mod process;
mod programs;
mod spec;
mod state;
mod teardown;
mod up;
mod wait;

pub use cluster::{Cluster, Job, end};
pub use failure::{Code, Failure, Result};
pub use job::Done;
pub use mpi::Mpi;
pub use process::Process;
pub use spec::{Bind, Spec};
pub use state::{Keeper, Network, Node, State};
