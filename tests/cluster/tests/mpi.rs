//! Both MPIs on two nodes: they see two hosts and write one file together through the mounts of
//! both, and the canonical file is right after the drain.

mod common;

use common::Ground;
use forebay_cluster::{Cluster, Mpi, Spec};
use forebay_tests::daemon_log;
use forebay_tests::test_mount::assert_same;
use std::path::{Path, PathBuf};
use std::process::Command;

const BLOCK: usize = 47008;
const COUNT: usize = 9;

/// Compiles `shared.c` into that directory.
fn program(mpi: Mpi, dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shared.c");
    let program = dir.join(format!("shared.{}", mpi.suffix()));
    let out = Command::new(mpi.compiler().expect("the MPI's compiler"))
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .args([&program, &source])
        .output()
        .expect("start the compiler");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    program
}

fn expected(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at * 7 + at / 251) as u8)
        .collect()
}

/// Returns rank and host, sorted by rank.
fn placement(stdout: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = stdout
        .lines()
        .filter_map(|line| {
            let (rank, rest) = line.strip_prefix("rank ")?.split_once(" of ")?;
            let (_, host) = rest.split_once(" on ")?;
            Some((rank.parse().ok()?, host.to_owned()))
        })
        .collect();
    found.sort();
    found
}

/// Ranks read what ranks of the other node wrote and closed (S2.1), and the canonical file has the
/// same content after the drain (S4). Ranks go round robin.
fn two_hosts(mpi: Mpi) {
    forebay_tests::prereq::mounting();
    let cluster = Cluster::up(Spec::new(2)).expect("a cluster");
    let tools = tempfile::tempdir().unwrap();
    let program = program(mpi, tools.path());
    let file = cluster.path().join("shared.dat");
    let (block, count) = (BLOCK.to_string(), COUNT.to_string());
    let arguments = [file.to_str().unwrap(), &block, &count];
    let done = cluster.run(mpi, 4, &program, arguments).unwrap();
    let said = done.expect("the job");
    let hosts = placement(&said);
    let want: Vec<(usize, String)> = (0..4).map(|r| (r, format!("n{}", r % 2))).collect();
    assert_eq!(hosts, want, "{said}");

    cluster.drain().unwrap();
    let below = std::fs::read(cluster.canonical("shared.dat")).unwrap();
    assert_same("the file below", &below, &expected(4 * COUNT * BLOCK));
    for node in 0..2 {
        let log = cluster.log(node).unwrap();
        let bad = daemon_log::unexpected(&log, &[]);
        assert!(bad.is_empty(), "n{node}: {bad:?}");
        let absorbed = cluster.status(node).unwrap();
        let bytes = absorbed["bytes"]["appended"].as_u64().unwrap();
        assert!(bytes > 0, "nothing went through n{node}");
    }
    let job = cluster.job(mpi, 2).nodes(&[1]).env("GREETING", "hello");
    let said = job
        .run("sh", ["-c", "echo $GREETING from $(hostname)"])
        .unwrap();
    assert_eq!(
        said.expect("a job on one node"),
        "hello from n1\nhello from n1\n"
    );
    cluster.down().unwrap();
}

#[test]
fn mpich_sees_two_hosts() {
    two_hosts(Mpi::Mpich);
}

#[test]
fn open_mpi_sees_two_hosts() {
    two_hosts(Mpi::OpenMpi);
}

/// On the command line: either MPI by name, the failure of a rank as an exit code, and both MPIs
/// from one script.
#[test]
fn run_starts_either() {
    let ground = Ground::new();
    ground.ok(ground.up("2", &[]));
    for mpi in Mpi::BOTH {
        mpi.launcher().expect("the MPI's launcher");
        let name = mpi.suffix();
        let line = ["run", "--mpi", name, "--", "mpirun", "-n", "2", "hostname"];
        let said = ground.ok(line);
        let mut hosts: Vec<&str> = said.lines().collect();
        hosts.sort_unstable();
        assert_eq!(hosts, ["n0", "n1"], "{name}");
        let line = [
            "run", "--mpi", name, "--nodes", "1", "--", "mpiexec", "-n", "1",
        ];
        let out = ground.run([&line[..], &["sh", "-c", "exit 7"]].concat());
        assert_eq!(out.status.code(), Some(7), "{name}");
    }
    let script = "mpirun.mpich -n 1 hostname && mpirun.openmpi -n 1 hostname";
    let said = ground.ok(["run", "--nodes", "1", "--", "sh", "-c", script]);
    assert_eq!(said, "n1\nn1\n");
    ground.ok(["down"]);
    ground.assert_gone();
}
