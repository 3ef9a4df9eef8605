//! Parallel HDF5 (both MPIs) and PnetCDF: eight ranks on four nodes write the papers' arrays, the
//! ranks of a second job read them on other nodes, and after the drain the formats' own tools find
//! in the backing what a run in a plain directory left: S2.1, S2.8, S4.

use forebay_cluster::{Mpi, Spec};
use forebay_jobs::{Program, Rig, Tool, assert_same_tree, kernel_arguments};

fn written_and_read(rig: &Rig, mpi: Mpi, program: Program, mode: &str) {
    let name = format!("{}-{mode}", mpi.suffix());
    let further = kernel_arguments();
    let mut arguments = vec!["all", "{}", "--mode", mode];
    arguments.extend(further.iter().map(String::as_str));
    rig.run(&name, mpi, program, &arguments);
    // Opened read-only by another job, whose ranks are where others were.
    arguments.push("--check");
    rig.again(&name, mpi, program, &arguments, |job| {
        job.nodes(&[2, 3, 1, 0])
    });
}

fn agrees(rig: &Rig, mpi: Mpi, mode: &str, tool: Tool) {
    let name = format!("{}-{mode}", mpi.suffix());
    rig.cluster.drain().expect("drain all nodes");
    let canonical = rig.cluster.canonical(&name);
    for node in 0..4 {
        let there = rig.cluster.at(node, &name).expect("a path on a node");
        assert_same_tree(&canonical, &there, &format!("the mount of n{node}"));
    }
    for kernel in ["coll_perf", "flash_io", "s3d", "gcrm", "vorpal", "chombo"] {
        tool.assert_same(&rig.plain(&name).join(kernel), &canonical.join(kernel));
    }
}

#[test]
fn hdf5() {
    let rig = Rig::up(Spec::new(4));
    for mpi in Mpi::BOTH {
        for mode in ["collective", "independent"] {
            written_and_read(&rig, mpi, Program::KernelsHdf5, mode);
            agrees(&rig, mpi, mode, Tool::Hdf5);
        }
    }
    rig.finish();
}

#[test]
fn pnetcdf() {
    let rig = Rig::up(Spec::new(4));
    for mode in ["collective", "independent"] {
        written_and_read(&rig, Mpi::OpenMpi, Program::KernelsPnetcdf, mode);
        agrees(&rig, Mpi::OpenMpi, mode, Tool::Pnetcdf);
    }
    rig.finish();
}
