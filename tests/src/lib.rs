//! The harness of the black-box tests: it knows Forebay by its command line only.
//!
//! A test gets a [`test_mount::TestMount`]: a store, a backing and a mount point below one temporary directory, with the
//! daemon as a child process. Whatever happens to the test, at its end the test mount is unmounted, the
//! daemon is gone and the log has been searched for lines that the test did not expect.
//!
//! The harness does not sleep to let something happen: [`wait::wait_until`] waits for the condition that it
//! names.

pub mod bystander;
pub mod cli;
pub mod cluster;
pub mod daemon_log;
pub mod files;
pub mod kill;
pub mod locks;
pub mod loopfs;
pub mod model;
pub mod moosefs;
pub mod nodes;
pub mod prereq;
pub mod rng;
pub mod status;
pub mod sys;
pub mod test_mount;
pub mod tree;
pub mod users;
pub mod wait;
pub mod watchdog;

pub use cluster::Cluster;
pub use test_mount::{Drain, TestMount};
pub use wait::wait_until;

/// Defines tests that must pass whether the backing is shared with other nodes or not: each is a function of
/// the setting `nodes`.
#[macro_export]
macro_rules! with_one_node_and_many {
    ($($test:ident),+ $(,)?) => {
        mod one_node {
            $(#[test] fn $test() { super::$test("one"); })+
        }
        mod many_nodes {
            $(#[test] fn $test() { super::$test("many"); })+
        }
    };
}
