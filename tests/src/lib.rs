//! The harness of the black-box tests: it knows Forebay by its command line only.
//!
//! A test gets a [`bay::Bay`]: a store, a backing and a mount point below one temporary
//! directory, with the daemon as a child process. Whatever happens to the test, the bay is
//! unmounted, the daemon is gone and the log has been searched for lines nobody expected.
//!
//! Nothing here sleeps to let something happen: [`wait::wait_until`] waits for what it names.

pub mod bay;
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
pub mod tree;
pub mod users;
pub mod wait;
pub mod watchdog;

pub use bay::{Bay, Drain};
pub use cluster::Cluster;
pub use wait::wait_until;

/// Tests that hold whether the backing is shared with other nodes or not: each is a function of the
/// setting `nodes`.
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
