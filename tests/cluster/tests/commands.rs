//! The command line with real daemons: the effect of each command, and what is left afterwards.

mod common;

use common::Ground;
use forebay_tests::cli::{FAILED, STILL_DIRTY, USAGE, assert_refused, code};
use forebay_tests::wait::{LONG, wait_until};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

const NOT_THERE: i32 = 5;
const NOT_RUN: i32 = 125;

/// Two nodes mount at one path, each with its own name, and see each other's closed files (S2.1).
/// The machine itself sees no mount. After `drain --wait` the canonical file has the file's content
/// (S4).
#[test]
fn from_up_to_down() {
    let ground = Ground::new();
    let said = ground.ok(ground.up("2", &[]));
    assert!(said.contains("2 nodes are up (n0 to n1)"), "{said}");

    assert_eq!(ground.ok(["exec", "0", "--", "hostname"]), "n0\n");
    assert_eq!(ground.ok(["exec", "n1", "--", "hostname"]), "n1\n");
    let file = ground.mount().join("file");
    let file = file.to_str().expect("a plain name");
    let write = format!("echo from-n0 > {file}");
    ground.ok(["exec", "0", "--", "sh", "-c", &write]);
    assert_eq!(ground.ok(["exec", "1", "--", "cat", file]), "from-n0\n");
    assert!(
        !Path::new(file).exists(),
        "the mount is seen on the machine"
    );

    let status = ground.status();
    assert_eq!(status["complete"], true);
    for (index, name) in ["n0", "n1"].iter().enumerate() {
        let node = &status["nodes"][index];
        assert_eq!(node["name"], **name);
        assert_eq!(node["state"], "up");
        assert_eq!(node["report"]["node"], **name);
    }
    let table = ground.ok(["status"]);
    assert!(table.contains("10.88.0.2"), "{table}");

    ground.ok(["drain", "--wait", "--timeout", "2m"]);
    let below = std::fs::read(ground.canonical("file")).expect("the canonical file");
    assert_eq!(below, b"from-n0\n");
    let logs = ground.ok(["logs"]);
    assert!(
        logs.lines()
            .all(|l| l.starts_with("n0: ") || l.starts_with("n1: "))
    );

    let said = ground.ok(["down", "--keep-logs"]);
    assert!(said.contains("everything is drained"), "{said}");
    let left: Vec<_> = std::fs::read_dir(ground.state()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the logs stay: {left:?}");
    assert!(ground.state().join("logs/n1.log").exists());
    // Makes a new cluster beside the logs of the previous one. Its stores are empty, so the content
    // comes from the canonical file.
    ground.ok(ground.up("1", &["--network", "host"]));
    assert_eq!(ground.ok(["exec", "0", "--", "cat", file]), "from-n0\n");
    ground.ok(["down"]);
    std::fs::remove_dir_all(ground.state()).expect("the logs were kept once");
    ground.assert_gone();
    let said = ground.ok(["down"]);
    assert!(said.contains("nothing is up"), "{said}");
}

/// The exit code and both outputs of a command are passed on; missing nodes and programs are
/// reported.
#[test]
fn exec_passes_on_what_the_command_says() {
    let ground = Ground::new();
    ground.ok(ground.up("1", &["--network", "host"]));
    let out = ground.run([
        "exec",
        "0",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 42",
    ]);
    assert_eq!(code(&out), 42);
    assert_eq!(out.stdout, b"out\n");
    assert_eq!(out.stderr, b"err\n");
    // This program is replaced by the command, so the command's death by a signal is visible.
    let out = ground.run(["exec", "0", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&out.status),
        Some(15)
    );
    // The working directory is the caller's.
    let mut command = ground.command(["exec", "0", "--", "pwd"]);
    let out = command.current_dir("/usr").output().expect("start");
    assert_eq!(out.stdout, b"/usr\n");

    let out = ground.run(["exec", "0", "--", "no-such-program"]);
    assert_refused(&out, Some(NOT_RUN), &["cannot start no-such-program"]);
    let out = ground.run(["exec", "1", "--", "true"]);
    assert_refused(&out, Some(NOT_RUN), &["no node 1", "only node 0"]);
    let out = ground.run(["kill", "3"]);
    assert_refused(&out, Some(NOT_THERE), &["no node 3"]);
    let out = ground.run(["run", "--nodes", "0,0", "--", "true"]);
    assert_refused(&out, Some(NOT_RUN), &["twice"]);
    let out = ground.run(["run", "--", "mpirun.openmpi", "true"]);
    assert_refused(&out, Some(NOT_RUN), &["Open MPI", "--network own"]);
    ground.ok(["down"]);
    ground.assert_gone();
}

/// Acknowledged data survives `kill -9` of a daemon (S5.1), and `down` does not throw it away: it
/// stops while the only copy is in the store of a node that does not run.
#[test]
fn a_killed_node_comes_back() {
    let ground = Ground::new();
    ground.ok(ground.up("2", &["--network", "host", "--", "--drain", "never"]));
    let file = ground.mount().join("file");
    let file = file.to_str().expect("a plain name");
    let write = format!("head -c 300000 /dev/zero | tr '\\0' x > {file}");
    ground.ok(["exec", "1", "--", "sh", "-c", &write]);
    ground.ok(["kill", "1"]);
    assert_eq!(ground.status()["nodes"][1]["state"], "dead");
    assert_eq!(ground.status()["nodes"][0]["state"], "up");
    let out = ground.run(["exec", "1", "--", "cat", file]);
    assert!(!out.status.success(), "a dead mount gave an answer");
    let out = ground.run(["kill", "1"]);
    assert_refused(&out, Some(NOT_THERE), &["n1", "restart"]);
    let out = ground.run(["drain"]);
    assert_refused(&out, Some(NOT_THERE), &["n1", "restart"]);
    let out = ground.run(["down"]);
    assert_refused(
        &out,
        Some(STILL_DIRTY),
        &["n1", "300000", "restart n1", "--discard"],
    );

    ground.ok(["restart", "1"]);
    assert_eq!(ground.status()["nodes"][1]["state"], "up");
    let sum = ground.ok([
        "exec",
        "1",
        "--",
        "sh",
        "-c",
        &format!("tr -d x < {file} | wc -c"),
    ]);
    assert_eq!(sum.trim(), "0");
    // A running daemon is restarted too, and keeps what it has not drained.
    ground.ok(["restart", "n1"]);
    let undrained = ground.status()["nodes"][1]["undrained"].as_u64();
    assert_eq!(undrained, Some(300_000));
    ground.ok(["down"]);
    let below = std::fs::read(ground.canonical("file")).expect("the canonical file");
    assert!(below.len() == 300_000 && below.iter().all(|b| *b == b'x'));
    ground.assert_gone();
}

/// If a daemon does not start, its own message is shown and nothing is left.
#[test]
fn a_cluster_that_fails_leaves_nothing() {
    let ground = Ground::new();
    let out = ground.run(ground.up("2", &["--", "--drain", "sometimes"]));
    assert_eq!(code(&out), USAGE);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("node n0: forebay mount"), "{said}");
    assert!(said.contains("sometimes"), "{said}");
    ground.assert_gone();
    // The second node fails: the first one is removed too.
    let program = fake_forebay(&ground, "n1", "echo 'forebay: no luck today' >&2; exit 1");
    let out = ground.run(ground.up("2", &["--forebay", &program]));
    assert_refused(
        &out,
        Some(FAILED),
        &["node n1: forebay mount: no luck today"],
    );
    ground.assert_gone();
}

/// Returns a `forebay` whose `mount` on that node runs `instead`.
fn fake_forebay(ground: &Ground, node: &str, instead: &str) -> String {
    let path = ground.path("forebay-with-a-flaw");
    let real = forebay_tests::prereq::forebay();
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in mount*\"--node {node}\"*) {instead} ;; esac\nexec {} \"$@\"\n",
        real.display()
    );
    let plain = ground.path("forebay-with-a-flaw.text");
    std::fs::write(&plain, text).expect("write a script");
    forebay_tests::sys::copy_program(&plain, &path).expect("make it a program");
    path.to_str().expect("a plain name").to_owned()
}

/// Starts an `up` that hangs at the daemon of that node.
fn half_way(ground: &Ground, node: &str) -> Child {
    let program = fake_forebay(ground, node, "exec sleep 600");
    let mut command = ground.command(ground.up("2", &["--forebay", &program]));
    command
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn().expect("start forebay-cluster");
    wait_until("the daemon hangs", LONG, || {
        let there = common::processes_naming(&ground.state());
        let hangs = there.iter().any(|line| line.contains("sleep 600"));
        hangs.then_some(())
    });
    child
}

/// `up` is killed with -9 half way, once with only the namespaces made and once with one daemon up.
/// `down` finds everything.
#[test]
fn down_clears_what_a_killed_up_has_left() {
    for node in ["n0", "n1"] {
        let ground = Ground::new();
        let mut child = half_way(&ground, node);
        child.kill().expect("kill up");
        child.wait().expect("wait for up");
        let status = ground.status();
        assert_eq!(status["complete"], false);
        assert!(status["nodes"][1]["keeper"].is_number(), "{status}");
        let out = ground.run(ground.up("1", &[]));
        assert_refused(&out, Some(FAILED), &["never finished", "down"]);
        ground.ok(["down"]);
        ground.assert_gone();
        ground.ok(["down"]);
    }
}

/// Ctrl-C removes everything that was made until then.
#[test]
fn an_interrupted_up_leaves_nothing() {
    let ground = Ground::new();
    let mut child = half_way(&ground, "n1");
    // Signals the whole process group, as a terminal does.
    let group = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGINT).expect("signal");
    let status = child.wait().expect("wait for up");
    assert_eq!(status.code(), Some(1));
    ground.assert_gone();
}

/// `down --discard` ends jobs that hold a mount; plain `down` names them and changes nothing.
#[test]
fn down_does_not_take_a_mount_from_under_a_job() {
    let ground = Ground::new();
    ground.ok(ground.up("1", &["--network", "host"]));
    let mount = ground.mount();
    let line = format!("cd {} && echo there && exec sleep 600", mount.display());
    let mut job = ground.command(["exec", "0", "--", "sh", "-c", &line]);
    let mut job = job
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("start a job");
    let mut word = String::new();
    let out = job.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut word).expect("read");
    assert_eq!(word, "there\n");

    let out = ground.run(["down"]);
    assert_eq!(code(&out), 4, "{}", forebay_tests::test_mount::text(&out));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains(&job.id().to_string()), "{said}");
    assert_eq!(ground.status()["nodes"][0]["state"], "up");
    ground.ok(["down", "--discard"]);
    let ended = wait_until("the job is ended", LONG, || job.try_wait().expect("ask"));
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&ended),
        Some(9)
    );
    ground.assert_gone();
}

/// Two clusters beside each other have the same names and addresses, and share nothing.
#[test]
fn clusters_do_not_meet() {
    let (one, two) = (Ground::new(), Ground::new());
    one.ok(one.up("1", &[]));
    two.ok(two.up("1", &[]));
    let file = one.mount().join("mine");
    let out = two.run(["exec", "0", "--", "ls", one.mount().to_str().expect("text")]);
    assert_eq!(out.stdout, b"", "one's mount is seen on the nodes of two");
    let touch = ["exec", "0", "--", "touch", file.to_str().expect("text")];
    one.ok(touch);
    one.ok(["down"]);
    one.assert_gone();
    assert_eq!(two.ok(["exec", "0", "--", "hostname"]), "n0\n");
    assert_eq!(two.status()["nodes"][0]["state"], "up");
    two.ok(["down"]);
    two.assert_gone();
}

/// Each impossible request is refused with one sentence, and nothing is made on the way.
#[test]
fn bad_input_is_refused_in_a_sentence() {
    let ground = Ground::new();
    for (words, code, said) in [
        (vec!["status"], NOT_THERE, "there is no cluster in"),
        (vec!["kill", "0"], NOT_THERE, "there is no cluster in"),
        (
            vec!["exec", "0", "--", "true"],
            NOT_RUN,
            "there is no cluster in",
        ),
        (
            vec!["up", "2", "--backing", "/no/such"],
            USAGE,
            "make it first",
        ),
        (vec!["up", "0", "--backing", "/tmp"], USAGE, "0 nodes"),
    ] {
        assert_refused(&ground.run(words), Some(code), &[said]);
    }
    let mut inside = ground.command(["up", "1", "--backing"]);
    inside.arg(ground.path(""));
    let out = inside.output().expect("start");
    assert_refused(&out, Some(USAGE), &["is inside the backing"]);
    assert!(!ground.state().exists());

    std::fs::create_dir(ground.state()).expect("a directory");
    std::fs::write(ground.state().join("thesis.tex"), "").expect("somebody's file");
    let out = ground.run(ground.up("1", &[]));
    assert_refused(&out, Some(USAGE), &["has other things in it"]);
    let left: Vec<_> = std::fs::read_dir(ground.state()).unwrap().collect();
    assert_eq!(left.len(), 1, "something was made beside somebody's file");
    std::fs::remove_dir_all(ground.state()).expect("clear");

    ground.ok(ground.up("1", &["--network", "host"]));
    let out = ground.run(ground.up("1", &[]));
    assert_refused(&out, Some(FAILED), &["has a cluster of 1 nodes already"]);
    ground.ok(["down"]);
}
