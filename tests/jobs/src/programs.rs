//! The programs of `tests/kernels`. Their Makefile builds them beside this build's own files, once and before the
//! first job; of two tests that find nothing built, one waits for the other.

use forebay_cluster::Mpi;
use forebay_tests::prereq;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Conformance cases of MPI-IO.
    MpiIo,
    /// The papers' kernels through MPI-IO.
    Kernels,
    KernelsHdf5,
    /// Debian has this library for Open MPI only.
    KernelsPnetcdf,
    Checkpoint,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::MpiIo => "mpiio",
            Program::Kernels => "kernels",
            Program::KernelsHdf5 => "kernels-hdf5",
            Program::KernelsPnetcdf => "kernels-pnetcdf",
            Program::Checkpoint => "checkpoint",
        }
    }
}

/// Returns the path of the program, for one MPI.
pub fn program(program: Program, mpi: Mpi) -> PathBuf {
    built(mpi, program.name())
}

/// Returns the library that is loaded before MPICH, so that ranks that share processors give way to each other while
/// they wait. Open MPI's ranks do so by themselves.
pub fn yielding() -> PathBuf {
    built(Mpi::Mpich, "yield.so")
}

fn built(mpi: Mpi, name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let path = BUILT.get_or_init(build).join(mpi.suffix()).join(name);
    assert!(path.is_file(), "{} was not built", path.display());
    path
}

fn build() -> PathBuf {
    for (name, package) in [
        ("make", "make"),
        ("pkg-config", "pkg-config"),
        ("mpicc.mpich", "libmpich-dev"),
        ("mpicc.openmpi", "libopenmpi-dev"),
    ] {
        prereq::program(name, package);
    }
    for (module, package) in [
        ("hdf5-mpich", "libhdf5-mpich-dev"),
        ("hdf5-openmpi", "libhdf5-openmpi-dev"),
        ("pnetcdf", "libpnetcdf-dev"),
    ] {
        let there = Command::new("pkg-config")
            .args(["--exists", module])
            .status();
        assert!(
            there.expect("start pkg-config").success(),
            "{module} is missing; install it: apt-get install {package}"
        );
    }
    let out = target().join("kernels");
    std::fs::create_dir_all(&out).expect("make the directory of the programs");
    let lock = File::create(out.join(".lock")).expect("make the lock of the programs");
    let _lock = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, e)| e)
        .expect("lock the directory of the programs");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels");
    let done = Command::new("make")
        .args(["--silent", "-j2", "-C"])
        .arg(source)
        .arg(format!("OUT={}", out.display()))
        .output()
        .expect("start make");
    assert!(
        done.status.success(),
        "the programs of tests/kernels do not build:\n{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    out
}

/// Returns the directory of this build: `target/<profile>`.
fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("a process knows its program");
    let dir = exe.parent().expect("a program is in a directory");
    match dir.file_name() {
        Some(name) if name == "deps" => dir.parent().expect("deps has a parent").to_owned(),
        _ => dir.to_owned(),
    }
}
