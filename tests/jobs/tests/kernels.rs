//! The I/O kernels of the papers (`tests/kernels/papers`). All of them run with both MPIs: with nonblocking calls on
//! one node, independently on two, and as in the papers on four. With MPICH only, NekCEM's ways and more of data
//! sieving run on two nodes, and files one after another on four.
//!
//! Each kernel checks every byte that it wrote, from ranks on other nodes; then every node and, after the drain, the
//! backing are compared with a run in a plain directory: S2.1, S2.4, S2.8, S4.

use forebay_cluster::{Mpi, Spec};
use forebay_jobs::{Program, Rig, kernel_arguments};

fn all_kernels(rig: &Rig, more: &[&str]) {
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
}

#[test]
fn nonblocking_on_one_node() {
    let rig = Rig::up(Spec::new(1));
    all_kernels(&rig, &["--mode", "nonblocking"]);
    rig.finish();
}

/// The ranks do not wait for each other: they write short runs of arrays one by one (Open MPI), or use data sieving
/// under locks (MPICH, S3.6). Then NekCEM's three ways: one file for each group (coIO), one writer in each group to
/// which the others hand their data (rbIO), and a file for each rank.
#[test]
fn independent_on_two_nodes() {
    let rig = Rig::up(Spec::new(2));
    all_kernels(&rig, &["--mode", "independent"]);
    rig.make("groups");
    for (to, more) in [
        ("{}/coio", &["--groups", "2"][..]),
        ("{}/rbio", &["--groups", "2", "--rbio"][..]),
        ("{}/own", &["--groups", "4"][..]),
    ] {
        let mut arguments = vec!["nekcem", to, "--verify"];
        arguments.extend(more);
        rig.again("groups", Mpi::Mpich, Program::Kernels, &arguments, |job| {
            job
        });
    }
    rig.assert_seen_everywhere("groups");
    rig.assert_canonical("groups");
    rig.finish();
}

/// Runs the kernels as in the papers, and four files one after another, as E10's workflow has it: a close that is
/// still being published takes nothing from the next file.
#[test]
fn as_in_the_papers_on_four_nodes() {
    let rig = Rig::up(Spec::new(4));
    all_kernels(&rig, &[]);
    let arguments = ["coll_perf", "{}/file", "--files", "4", "--verify"];
    rig.run("files", Mpi::Mpich, Program::Kernels, &arguments);
    rig.assert_seen_everywhere("files");
    rig.assert_canonical("files");
    rig.finish();
}

/// S3.6 as ROMIO uses it: data sieving under locks, with two ranks on each node whose ranges do not touch. The job
/// runs several times, because a change that was once lost here was lost one time in ten.
#[test]
fn sieving_on_two_nodes() {
    let rig = Rig::up(Spec::new(2));
    let names: Vec<String> = (0..6).map(|round| format!("round{round}")).collect();
    for name in &names {
        let arguments = ["s3d", "{}/s3d", "--verify", "--mode", "independent"];
        rig.run(name, Mpi::Mpich, Program::Kernels, &arguments);
        rig.assert_seen_everywhere(name);
    }
    for name in &names {
        rig.assert_canonical(name);
    }
    rig.finish();
}
