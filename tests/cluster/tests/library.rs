//! The library as other tests use it, and the end of a node when the process that made it ends.

mod common;

use common::Ground;
use forebay_cluster::{Cluster, Code, Network, Spec};
use forebay_tests::daemon_log;
use forebay_tests::wait::{LONG, wait_until};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn up(nodes: usize) -> Cluster {
    forebay_tests::prereq::mounting();
    Cluster::up(Spec::new(nodes).network(Network::Host)).expect("a cluster")
}

/// Files written through one node's mount are visible through the other's (S2.1), also from outside
/// through `at`, and survive a crash of the daemon (S5.1).
#[test]
fn a_test_uses_the_nodes() {
    let cluster = up(2);
    let data = vec![7u8; 100_000];
    std::fs::write(cluster.at(0, "file").unwrap(), &data).unwrap();
    assert_eq!(std::fs::read(cluster.at(1, "file").unwrap()).unwrap(), data);
    assert!(!cluster.path().join("file").exists());
    let done = cluster.exec(1, "stat", ["-c", "%s", "file"]).unwrap();
    assert_eq!(done.expect("stat on n1"), "100000\n");
    let done = cluster
        .exec(1, "sh", ["-c", "echo no >&2; exit 3"])
        .unwrap();
    assert_eq!((done.code(), done.stderr.as_str()), (3, "no\n"));

    cluster.kill(0).unwrap();
    assert_eq!(cluster.kill(0).unwrap_err().code, Code::NotThere);
    cluster.restart(0).unwrap();
    assert_eq!(std::fs::read(cluster.at(0, "file").unwrap()).unwrap(), data);
    assert_eq!(cluster.status(0).unwrap()["node"], "n0");
    cluster.drain().unwrap();
    assert_eq!(std::fs::read(cluster.canonical("file")).unwrap(), data);
    for node in 0..2 {
        let bad = daemon_log::unexpected(&cluster.log(node).unwrap(), &[]);
        assert!(bad.is_empty(), "n{node}: {bad:?}");
    }
    let dir = cluster.state_dir().to_owned();
    cluster.down().unwrap();
    assert!(!dir.exists());
    assert_eq!(common::processes_naming(&dir), Vec::<String>::new());
}

/// Each node has its own directory below its daemon, as clients of one file system have their own
/// mounts. The directory is still there after a crash (S5.1) and is not visible outside. Daemons
/// get their variables.
#[test]
fn what_is_below_can_differ() {
    forebay_tests::prereq::mounting();
    let own = tempfile::tempdir().unwrap();
    let dir = |name: &str| {
        let dir = own.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    };
    let (backing, mount, below) = (dir("backing"), dir("mnt"), [dir("a"), dir("b")]);
    let mut spec = Spec::new(2)
        .backing(&backing)
        .mount(&mount)
        .network(Network::Host)
        .env("FOREBAY_TEST_VARIABLE", "there");
    for (node, source) in below.iter().enumerate() {
        spec = spec.bind(node, source, &backing);
    }
    let cluster = Cluster::up(spec).expect("a cluster");
    for node in 0..2 {
        std::fs::write(cluster.at(node, "file").unwrap(), format!("n{node}")).unwrap();
        let daemon = cluster.state().unwrap().nodes[node].daemon.unwrap();
        let environment = std::fs::read(format!("/proc/{}/environ", daemon.pid)).unwrap();
        let environment = String::from_utf8_lossy(&environment);
        assert!(environment.contains("FOREBAY_TEST_VARIABLE=there"));
    }
    cluster.kill(1).unwrap();
    cluster.restart(1).unwrap();
    cluster.drain().unwrap();
    for (node, source) in below.iter().enumerate() {
        let text = std::fs::read_to_string(source.join("file")).unwrap();
        assert_eq!(text, format!("n{node}"));
        let seen = cluster.exec(node, "cat", [backing.join("file")]).unwrap();
        assert_eq!(seen.expect("cat on the node"), text);
    }
    assert_eq!(std::fs::read_dir(&backing).unwrap().count(), 0);
    // Ends the cluster by its directory alone, as after an interruption. The drop afterwards finds
    // nothing to do.
    let state = cluster.state_dir().to_owned();
    forebay_cluster::end(&state).unwrap();
    assert!(!state.exists());
    assert_eq!(common::processes_naming(&state), Vec::<String>::new());
    drop(cluster);
}

/// A command that does not end is ended with everything that it started; the nodes keep running.
#[test]
fn a_hang_ends() {
    let mut cluster = up(1);
    cluster.set_limit(Duration::from_millis(300));
    let line = "echo before; sleep 600 & setsid sleep 600 & wait";
    let failure = cluster.exec(0, "sh", ["-c", line]).unwrap_err();
    assert!(failure.message.contains("took longer"), "{failure}");
    assert!(failure.message.contains("before"), "{failure}");
    let dir = cluster.state_dir().to_owned();
    let left = common::processes_naming(&dir);
    assert!(!left.iter().any(|line| line.contains("sleep")), "{left:?}");
    cluster.set_limit(LONG);
    assert!(cluster.exec(0, "ls", ["-l"]).unwrap().success());
    // The cluster is dropped without `down`: it is removed all the same, with its undrained data.
    drop(cluster);
    assert!(!dir.exists());
    assert_eq!(common::processes_naming(&dir), Vec::<String>::new());
}

/// Kills the process however the test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        if self.0.kill().and_then(|()| self.0.wait()).is_err() {
            eprintln!("process {} may be left", self.0.id());
        }
    }
}

/// A keeper whose maker is gone before it sent `stay` ends its node: nothing outlives a killed
/// test, or an `up` that had not recorded the node yet.
#[test]
fn a_node_ends_with_its_maker() {
    let ground = Ground::new();
    for dir in ["state", "state/run", "state/n0", "state/n0/run"] {
        std::fs::create_dir(ground.path(dir)).unwrap();
    }
    std::fs::write(ground.path("state/hosts"), "127.0.0.1 n0\n").unwrap();
    let keeper = ground
        .command(["keep", "n0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keeper = Ended(keeper);
    let mut line = String::new();
    let out = keeper.0.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let job = Command::new("nsenter")
        .args(["--mount", "--uts", "--target", &keeper.0.id().to_string()])
        .args(["sh", "-c", "hostname; exec sleep 600"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut job = Ended(job);
    let mut line = String::new();
    let out = job.0.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    assert_eq!(line, "n0\n");
    assert!(keeper.0.try_wait().unwrap().is_none());

    drop(keeper.0.stdin.take());
    wait_until("the job ends", LONG, || job.0.try_wait().unwrap());
    let status = wait_until("the keeper ends", LONG, || keeper.0.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
