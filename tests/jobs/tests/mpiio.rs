//! MPI-IO as both MPIs do it by default, on one, two and four nodes: collective and independent
//! writes, shared file pointers, atomic mode, data sieving, non-contiguous types, nonblocking
//! calls, sizes. The cases are in `tests/kernels/mpiio`; each checks what the MPI standard promises.
//!
//! They check S2.1 (close, fsync and lock are sync points), S2.4 (neighbouring bytes), S3.1 and S3.6
//! (data sieving, shared pointers and atomic mode are reads and writes under locks) and, with the
//! comparison after the drain, S2.8 and S4.

use forebay_cluster::{Mpi, Spec};
use forebay_jobs::{Program, Rig};

fn conforms(nodes: usize) {
    let rig = Rig::up(Spec::new(nodes));
    for mpi in Mpi::BOTH {
        rig.run(mpi.suffix(), mpi, Program::MpiIo, &["{}"]);
        rig.assert_seen_everywhere(mpi.suffix());
    }
    for mpi in Mpi::BOTH {
        rig.assert_canonical(mpi.suffix());
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
