//! Parallel HDF5 (both MPIs) and PnetCDF: eight ranks on four nodes write the papers' arrays, and the ranks of a
//! second job read them on other nodes. After the drain the formats' own tools find in the backing what a run in a
//! plain directory left: S2.1, S2.8, S4.
//!
//! A chunked dataset of HDF5 (`gcrm`) is filled with zeros by some ranks when it is made, and then written by others
//! after a barrier, with no sync between: S2.11. The tests run with collective transfers and with independent ones.

use forebay_cluster::{Mpi, Spec};
use forebay_jobs::{Program, Rig, Tool, assert_same_tree, kernel_arguments};

/// `what` has the kernels and sizes: every dataset costs several rounds of all ranks.
fn written_and_read(rig: &Rig, mpi: Mpi, program: Program, mode: &str, what: &[&str]) {
    let name = format!("{}-{mode}", mpi.suffix());
    let further = kernel_arguments();
    let mut arguments = vec![what[0], "{}", "--mode", mode];
    arguments.extend(&what[1..]);
    arguments.extend(further.iter().map(String::as_str));
    rig.run(&name, mpi, program, &arguments);
    // The files are opened read-only by another job. Rank r, which wrote on node r % 4, is on (r + 2) % 4 now and
    // checks the part of rank (r + 5) % 8 (`other` of papers/main.c), written on (r + 1) % 4.
    arguments.push("--check");
    rig.in_mount(&name, mpi, program, &arguments, |job| {
        job.nodes(&[2, 3, 0, 1])
    });

    rig.cluster.drain().expect("drain all nodes");
    let canonical = rig.cluster.canonical(&name);
    for node in 0..4 {
        let there = rig.cluster.at(node, &name).expect("a path on a node");
        assert_same_tree(&canonical, &there, &format!("the mount of n{node}"));
    }
    let tool = match program {
        Program::KernelsPnetcdf => Tool::Pnetcdf,
        _ => Tool::Hdf5,
    };
    for entry in std::fs::read_dir(rig.plain(&name)).expect("list the plain directory") {
        let plain = entry.expect("list the plain directory").path();
        let name = plain.file_name().expect("an entry has a name");
        tool.assert_same(&plain, &canonical.join(name));
    }
}

#[test]
fn hdf5_collective() {
    let rig = Rig::up(Spec::new(4)).with_all_ranks();
    let all = ["all", "--variables", "2", "--steps", "1"];
    for mpi in Mpi::BOTH {
        written_and_read(&rig, mpi, Program::KernelsHdf5, "collective", &all);
    }
    rig.finish();
}

#[test]
fn hdf5_independent_and_chunked() {
    let rig = Rig::up(Spec::new(4)).with_all_ranks();
    let chunked = ["gcrm,vorpal", "--steps", "1"];
    for mpi in Mpi::BOTH {
        written_and_read(&rig, mpi, Program::KernelsHdf5, "independent", &chunked);
    }
    rig.finish();
}

#[test]
fn pnetcdf() {
    let rig = Rig::up(Spec::new(4)).with_all_ranks();
    for mode in ["collective", "independent"] {
        let all = ["all", "--variables", "2"];
        written_and_read(&rig, Mpi::OpenMpi, Program::KernelsPnetcdf, mode, &all);
    }
    rig.finish();
}
