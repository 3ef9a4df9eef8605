//! MPI-IO as both MPIs do it by default, on one, two and four nodes: collective and independent
//! writes, shared file pointers, atomic mode, data sieving, non-contiguous types, nonblocking
//! calls, sizes. The cases are in `tests/kernels/mpiio`; each checks what the MPI standard promises.
//!
//! They check S2.1 (close, fsync and lock are sync points), S2.4 (neighbouring bytes), S2.6 (a name
//! that another node gave to another file), S2.10 to S2.13 (what MPI libraries count on while a file
//! is open), S3.1 and S3.6 (data sieving, shared pointers and atomic mode are reads and writes under locks), S2.9, and,
//! with the comparison after the drain, S2.8 and S4.
//!
//! # What ROMIO asks of a file system
//!
//! ROMIO asks more of a file system than the standard asks of ROMIO. It counts on every write being seen by all
//! ranks at once:
//! - `MPI_File_sync` calls fsync only in ranks that wrote something, so the second sync of
//!   "sync, barrier, sync" tells the file system of a reader nothing (S2.10);
//! - a collective write with holes reads the range, changes it and writes it back without a lock, and
//!   which rank does that for which range changes from call to call. So it may write back what was in the
//!   file before another rank's last write (S2.11), and, past the end, what its buffer had in it (S2.13);
//! - `MPI_File_set_size` is one ftruncate, and no fsync follows (S2.12).
//!
//! # What is left out
//!
//! One case of MPICH between nodes, `nonblocking_synced`: after `MPI_File_iwrite_at` its `MPI_File_sync`
//! calls no fsync in any rank (`strace` shows none; only blocking writes make it remember that there is
//! something to sync), so nothing tells the writer's node that the bytes are wanted elsewhere before the
//! close. POSIX gives a file system no other sign, and the standard's promise is broken above it. With
//! `absorb = coherent` it holds, and is run. From the close to the next open it holds everywhere
//! (`nonblocking_at_once`).
//!
//! The case for atomic mode is left out with Open MPI's own MPI-IO, which does not have it. Open MPI also brings an
//! older ROMIO (`--mca io romio321`), which does: with it the cases that rest on locks are run on all numbers of
//! nodes, with the default settings. Its nonblocking collective calls end with a segmentation fault, on any file
//! system.

use forebay_cluster::{Mpi, Spec};
use forebay_jobs::{Program, Rig};
use std::path::Path;

/// All cases but the one that is explained above: no fsync follows what nonblocking calls wrote.
const ROMIO: [&str; 3] = ["{}", "--except", "nonblocking_synced"];

/// Open MPI's own MPI-IO accepts atomic mode and does not carry it out: two ranks on one local disk
/// show it.
const OMPIO: [&str; 3] = ["{}", "--except", "atomic"];

/// Files whose content depends on which rank came first. The standard does not say which.
const BY_CHANCE: [&str; 3] = ["shared_write", "atomic_contiguous", "atomic_strided"];

/// Bytes of a record of `shared_write` (`tests/kernels/mpiio/shared.c`).
const RECORD: usize = 311;

/// Where chance has a part in the content, the content that the first node shows is expected of all nodes from here
/// on. The program has checked in every rank that it is something that the standard allows; and the records are
/// those of the plain run, in whatever order.
fn settle_chance(rig: &Rig, name: &str) {
    let shown = rig.cluster.at(0, name).expect("a path on a node");
    for file in BY_CHANCE {
        let plain = rig.plain(name).join(file);
        // Not every job runs every case.
        if !plain.exists() {
            continue;
        }
        let (want, have) = (read(&plain), read(&shown.join(file)));
        assert_eq!(want.len(), have.len(), "{name}: the size of {file}");
        if file == "shared_write" {
            assert!(sorted(&want) == sorted(&have), "{name}: other records");
        }
        std::fs::write(&plain, have).expect("write what is expected");
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn sorted(bytes: &[u8]) -> Vec<&[u8]> {
    let mut records: Vec<&[u8]> = bytes.chunks(RECORD).collect();
    records.sort_unstable();
    records
}

/// Checks that every mount shows all of it before the drain is asked for, and that the backing has it afterwards.
fn agrees(rig: Rig, names: &[&str]) {
    for name in names {
        settle_chance(&rig, name);
        rig.assert_seen_everywhere(name);
    }
    for name in names {
        rig.assert_canonical(name);
    }
    rig.finish();
}

fn conforms(nodes: usize) {
    let rig = Rig::up(Spec::new(nodes));
    rig.run("mpich", Mpi::Mpich, Program::MpiIo, &ROMIO);
    rig.run("openmpi", Mpi::OpenMpi, Program::MpiIo, &OMPIO);
    agrees(rig, &["mpich", "openmpi"]);
}

/// Runs Open MPI with its ROMIO: the cases in which ranks lock each other out. Checks S3.1, S3.6.
fn under_locks(rig: &Rig) {
    rig.make("romio");
    let locked = ["{}", "atomic", "shared", "noncontiguous"];
    rig.again("romio", Mpi::OpenMpi, Program::MpiIo, &locked, |job| {
        job.option("--mca").option("io").option("romio321")
    });
}

fn conforms_under_locks(nodes: usize) {
    let rig = Rig::up(Spec::new(nodes));
    under_locks(&rig);
    agrees(rig, &["romio"]);
}

fn conforms_coherently(nodes: usize) {
    let coherent = ["--absorb", "coherent", "--attr-timeout", "0s"];
    let rig = Rig::up(Spec::new(nodes).args(coherent));
    // The case that is left out has thousands of small writes, each of which is answered when all nodes may see it:
    // minutes.
    let all_but = ["{}", "--except", "noncontiguous_independent_no"];
    rig.run("mpich", Mpi::Mpich, Program::MpiIo, &all_but);
    agrees(rig, &["mpich"]);
}

/// Runs all cases, because within a node there is no other node to tell anything.
#[test]
fn on_one_node() {
    let rig = Rig::up(Spec::new(1));
    rig.run("mpich", Mpi::Mpich, Program::MpiIo, &["{}"]);
    rig.run("openmpi", Mpi::OpenMpi, Program::MpiIo, &OMPIO);
    under_locks(&rig);
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
fn under_locks_on_two_nodes() {
    conforms_under_locks(2);
}

#[test]
fn under_locks_on_four_nodes() {
    conforms_under_locks(4);
}

#[test]
fn coherent_on_two_nodes() {
    conforms_coherently(2);
}

#[test]
fn coherent_on_four_nodes() {
    conforms_coherently(4);
}
