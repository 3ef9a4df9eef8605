//! Real parallel jobs on several nodes, as a scientist has them: nothing in them knows of Forebay.
//!
//! Every job runs twice over the same nodes, with the same ranks in the same places: once in a plain
//! directory that all nodes share, and once in the mount. What the first one left is what the
//! second one must leave: through the mount of every node, and after the drain in the backing.
//! Both are needed. That a program's own check passes says that the ranks see what they wrote; that
//! the bytes agree says it for everybody else.

mod compare;
mod programs;
mod rig;

pub use compare::{Tool, assert_same_tree};
pub use programs::{Program, program};
pub use rig::{Rig, job, ranks};

/// Further arguments of the kernels, for longer runs: `FOREBAY_KERNEL_ARGS="--paper --steps 4"`.
pub fn kernel_arguments() -> Vec<String> {
    let text = std::env::var("FOREBAY_KERNEL_ARGS").unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}
