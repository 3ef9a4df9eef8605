//! The I/O kernels of the papers (`tests/kernels/papers`) on one, two and four nodes with both MPIs.
//! Each checks every byte that it wrote, from ranks on other nodes; then every node and, after the
//! drain, the backing are compared with a run in a plain directory: S2.1, S2.4, S2.8, S4.

use forebay_cluster::{Mpi, Spec};
use forebay_jobs::{Program, Rig, kernel_arguments};

fn all_kernels(nodes: usize, more: &[&str]) {
    let rig = Rig::up(Spec::new(nodes));
    let further = kernel_arguments();
    let mut arguments = vec!["all", "{}", "--verify"];
    arguments.extend(more);
    arguments.extend(further.iter().map(String::as_str));
    for mpi in Mpi::BOTH {
        rig.run(mpi.suffix(), mpi, Program::Kernels, &arguments);
        rig.assert_seen_everywhere(mpi.suffix());
    }
    for mpi in Mpi::BOTH {
        rig.assert_canonical(mpi.suffix());
    }
    rig.finish();
}

#[test]
fn as_in_the_papers_on_one_node() {
    all_kernels(1, &[]);
}

#[test]
fn as_in_the_papers_on_two_nodes() {
    all_kernels(2, &[]);
}

#[test]
fn as_in_the_papers_on_four_nodes() {
    all_kernels(4, &[]);
}

/// Blocks of arrays that ranks write without waiting for each other: short runs, or data sieving.
#[test]
fn independent_on_four_nodes() {
    all_kernels(4, &["--mode", "independent"]);
}

#[test]
fn nonblocking_on_two_nodes() {
    all_kernels(2, &["--mode", "nonblocking"]);
}

/// NekCEM's three ways: one file, a file for each group, and one writer for each group that the
/// others hand their data to.
#[test]
fn checkpoints_of_groups() {
    let rig = Rig::up(Spec::new(2));
    for mpi in Mpi::BOTH {
        let name = mpi.suffix();
        rig.make(name);
        let file = |file: &str| format!("{{}}/{file}");
        for (to, more) in [
            (file("coio"), &["--groups", "2"][..]),
            (file("rbio"), &["--groups", "2", "--rbio"][..]),
            (file("own"), &["--groups", "4"][..]),
        ] {
            let mut arguments = vec!["nekcem", &to, "--verify"];
            arguments.extend(more);
            rig.again(name, mpi, Program::Kernels, &arguments, |job| job);
        }
        rig.assert_seen_everywhere(name);
        rig.assert_canonical(name);
    }
    rig.finish();
}

/// Four files one after another, as E10's workflow has it: the content of each is its own, and a
/// close that is still being published takes nothing from the next file.
#[test]
fn files_one_after_another() {
    let rig = Rig::up(Spec::new(4));
    let arguments = ["coll_perf", "{}/file", "--files", "4", "--verify"];
    rig.run("files", Mpi::Mpich, Program::Kernels, &arguments);
    rig.assert_seen_everywhere("files");
    rig.assert_canonical("files");
    rig.finish();
}
