//! MPI-IO as both MPIs do it by default, on one, two and four nodes: collective and independent
//! writes, shared file pointers, atomic mode, data sieving, non-contiguous types, nonblocking
//! calls, sizes. The cases are in `tests/kernels/mpiio`; each checks what the MPI standard promises.
//!
//! They check S2.1 (close, fsync and lock are sync points), S2.4 (neighbouring bytes), S3.1 and S3.6
//! (data sieving, shared pointers and atomic mode are reads and writes under locks) and, with the
//! comparison after the drain, S2.8 and S4.

use forebay_cluster::{Mpi, Spec};
use forebay_jobs::{Program, Rig};

/// MPICH has one MPI-IO, ROMIO. Open MPI has two: its own, which is the default, and an older ROMIO.
/// Its own accepts atomic mode and does not carry it out (two ranks on one local disk show it), and its
/// ROMIO ends with a segmentation fault in nonblocking collective calls: each is given what it can.
fn conforms(nodes: usize) {
    let rig = Rig::up(Spec::new(nodes));
    rig.run("mpich", Mpi::Mpich, Program::MpiIo, &["{}"]);
    let all_but_atomic = ["{}", "--except", "atomic"];
    rig.run("openmpi", Mpi::OpenMpi, Program::MpiIo, &all_but_atomic);
    rig.make("romio");
    let locked = ["{}", "atomic", "shared", "noncontiguous"];
    rig.again("romio", Mpi::OpenMpi, Program::MpiIo, &locked, |job| {
        job.option("--mca").option("io").option("romio321")
    });
    for name in ["mpich", "openmpi", "romio"] {
        rig.assert_seen_everywhere(name);
        rig.assert_canonical(name);
    }
    rig.finish();
}

#[test]
fn on_one_node() {
    conforms(1);
}

#[test]
fn on_two_nodes() {
    conforms(2);
}

#[test]
fn on_four_nodes() {
    conforms(4);
}
