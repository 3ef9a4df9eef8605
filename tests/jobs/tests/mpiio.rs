//! MPI-IO as both MPIs do it by default, on one, two and four nodes: collective and independent
//! writes, shared file pointers, atomic mode, data sieving, non-contiguous types, nonblocking
//! calls, sizes. The cases are in `tests/kernels/mpiio`; each checks what the MPI standard promises.
//!
//! They check S2.1 (close, fsync and lock are sync points), S2.4 (neighbouring bytes), S2.6 (a name
//! that another node gave to another file), S3.1 and S3.6 (data sieving, shared pointers and atomic
//! mode are reads and writes under locks), S2.9, and, with the comparison after the drain, S2.8 and S4.
//!
//! # What ROMIO asks of a file system
//!
//! More than the standard asks of ROMIO. It counts on every write being seen by all ranks at once:
//! - `MPI_File_sync` calls fsync only in ranks that wrote something, so the second sync of
//!   "sync, barrier, sync" tells the file system of a reader nothing (MPICH 4);
//! - a collective write with holes reads the range, changes it and writes it back without a lock, and
//!   which rank does that for which range changes from call to call. So it may write back what was in the
//!   file before another rank's last write.
//!
//! Between nodes that is what `absorb = coherent` is for, with attributes that are not kept: all cases
//! run so. With the default settings those run that need no more than closes, fsyncs and locks.

use forebay_cluster::{Mpi, Spec};
use forebay_jobs::{Program, Rig};

/// Those that need no more than closes, fsyncs and locks when ROMIO carries them out.
const ROMIO_BY_DEFAULT: [&str; 12] = [
    "{}",
    "collective_blocks",
    "independent_regions",
    "independent_neighbours",
    "independent_turns",
    "noncontiguous_independent",
    "shared_read",
    "atomic",
    "nonblocking_pointer",
    "size_modes",
    "size_removal",
    "turns_closed",
];

/// Open MPI's own MPI-IO accepts atomic mode and does not carry it out: two ranks on one local disk
/// show it.
const OMPIO: [&str; 3] = ["{}", "--except", "atomic"];

fn agrees(rig: Rig, names: &[&str]) {
    for name in names {
        rig.assert_seen_everywhere(name);
        rig.assert_canonical(name);
    }
    rig.finish();
}

fn conforms(nodes: usize) {
    let rig = Rig::up(Spec::new(nodes));
    rig.run("mpich", Mpi::Mpich, Program::MpiIo, &ROMIO_BY_DEFAULT);
    rig.run("openmpi", Mpi::OpenMpi, Program::MpiIo, &OMPIO);
    agrees(rig, &["mpich", "openmpi"]);
}

fn conforms_coherently(nodes: usize) {
    let coherent = ["--absorb", "coherent", "--attr-timeout", "0s"];
    let rig = Rig::up(Spec::new(nodes).args(coherent));
    // The first has thousands of small writes, each of which is answered when all nodes may see it:
    // minutes. In the second ROMIO truncates and calls no fsync, and a truncation of an open file is
    // published with the next write, fsync or close.
    let all_but = ["{}", "--except", "noncontiguous_independent_no", "size_set"];
    rig.run("mpich", Mpi::Mpich, Program::MpiIo, &all_but);
    agrees(rig, &["mpich"]);
}

/// Within a node there is nothing to tell anybody: all cases, and Open MPI's ROMIO too (it ends with a
/// segmentation fault in nonblocking collective calls, on any file system).
#[test]
fn on_one_node() {
    let rig = Rig::up(Spec::new(1));
    rig.run("mpich", Mpi::Mpich, Program::MpiIo, &["{}"]);
    rig.run("openmpi", Mpi::OpenMpi, Program::MpiIo, &OMPIO);
    rig.make("romio");
    let locked = ["{}", "atomic", "shared", "noncontiguous"];
    rig.again("romio", Mpi::OpenMpi, Program::MpiIo, &locked, |job| {
        job.option("--mca").option("io").option("romio321")
    });
    agrees(rig, &["mpich", "openmpi", "romio"]);
}

#[test]
fn on_two_nodes() {
    conforms(2);
}

#[test]
fn on_four_nodes() {
    conforms(4);
}

#[test]
fn coherent_on_two_nodes() {
    conforms_coherently(2);
}

#[test]
fn coherent_on_four_nodes() {
    conforms_coherently(4);
}
