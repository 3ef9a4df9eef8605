//! Real parallel jobs on several nodes, as a scientist has them: nothing in their programs knows of Forebay.
//!
//! Every job runs twice over the same nodes, with the same ranks in the same places: once in a plain directory that
//! all nodes share, and once in the mount. The second run must leave what the first one left: through the mount of
//! every node, and after the drain in the backing. Both checks are needed. A program's own check shows that the
//! ranks see what they wrote; equal bytes show that every other reader does.

mod compare;
mod programs;
mod rig;

pub use compare::{Tool, assert_same_tree};
pub use programs::{Program, program};
pub use rig::{Rig, job, ranks};

/// Returns further arguments of the kernels, for longer runs: `FOREBAY_KERNEL_ARGS="--paper --steps 4"`.
pub fn kernel_arguments() -> Vec<String> {
    let text = std::env::var("FOREBAY_KERNEL_ARGS").unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}
