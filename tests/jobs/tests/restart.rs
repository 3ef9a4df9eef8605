//! Checkpoint and restart: a job on four nodes computes, writes a checkpoint, computes, with deferred closes. In the
//! middle of the third checkpoint one daemon is killed, and then the job. The second checkpoint was closed by all
//! ranks, so a restart reads it whole (S2.2, S2.7) and comes to the same end as a job that was never killed.

use forebay_cluster::{Mpi, Spec};
use forebay_jobs::{Program, Rig, assert_same_tree, program, ranks};
use forebay_tests::wait::{LONG, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;

const NODES: usize = 4;
/// The node whose daemon is killed. It is not the first, on which `mpirun` runs.
const VICTIM: usize = 2;

/// Returns the last line of what the job printed: how far it came, and the state's fingerprint.
fn end_of(text: &str) -> Value {
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|e| panic!("no JSON at the end ({e}): {text}"))
}

/// Runs the same job in a plain directory, undisturbed.
fn undisturbed(rig: &Rig, mpi: Mpi) -> Value {
    let dir = rig.plain("job");
    std::fs::create_dir(&dir).expect("make the plain directory");
    let job = rig.job(mpi, ranks(NODES));
    let done = job.run(program(Program::Checkpoint, mpi), [&dir]);
    end_of(
        &done
            .expect("run the job")
            .expect("the job in a plain directory"),
    )
}

/// Returns whether a process runs this program, on whatever node.
fn is_running(program: &Path) -> bool {
    let entries = std::fs::read_dir("/proc").expect("list processes");
    entries.flatten().any(|entry| {
        // A process may end while it is looked at.
        std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program)
    })
}

/// Starts the job in the mount, waits until half of the third checkpoint is written, does `then`, kills
/// the victim's daemon and the job.
fn killed_in_the_third(rig: &Rig, mpi: Mpi, then: impl FnOnce()) {
    let dir = rig.cluster.at(0, "job").expect("a path on a node");
    std::fs::create_dir(dir).expect("make the directory in the mount");
    let pace = rig.plain("pace");
    std::fs::create_dir(&pace).expect("make a directory");
    let program = program(Program::Checkpoint, mpi);
    let inside = rig.mounted("job");
    let [inside, pace_arg] = [&inside, &pace].map(|p| p.to_str().expect("plain text"));
    let arguments = [inside, "--pause-in", "3", "--pace", pace_arg];
    let said = File::create(pace.join("said")).expect("make a file");
    let mut job = rig
        .job(mpi, ranks(NODES))
        .command(&program, arguments)
        .expect("the job's command")
        .stdin(Stdio::null())
        .stdout(said.try_clone().expect("a second handle"))
        .stderr(said)
        .spawn()
        .expect("start the job");
    wait_until("half of the third checkpoint is written", LONG, || {
        if let Some(status) = job.try_wait().expect("ask for the job") {
            let said = std::fs::read_to_string(pace.join("said")).unwrap_or_default();
            panic!("the job ended before its third checkpoint ({status}):\n{said}");
        }
        pace.join("paused").exists().then_some(())
    });
    then();
    rig.cluster.kill(VICTIM).expect("kill the daemon");
    let pid = Pid::from_raw(i32::try_from(job.id()).expect("a process id"));
    kill(pid, Signal::SIGTERM).expect("end the job");
    wait_until("mpirun ends", LONG, || {
        job.try_wait().expect("wait for mpirun")
    });
    wait_until("the ranks are gone", LONG, || {
        (!is_running(&program)).then_some(())
    });
}

/// Goes on from the newest checkpoint, on these nodes. Returns what the job printed.
fn restarted(rig: &Rig, mpi: Mpi, nodes: &[usize]) -> String {
    let dir = rig.mounted("job");
    let job = rig.job(mpi, 2 * nodes.len()).nodes(nodes);
    let arguments = [dir.to_str().expect("plain text"), "--restart"];
    let done = job.run(program(Program::Checkpoint, mpi), arguments);
    done.expect("run the job").expect("the restart")
}

fn assert_went_on(said: &str, expected: &Value) {
    let from: Value = serde_json::from_str(said.lines().next().unwrap_or_default())
        .unwrap_or_else(|e| panic!("no JSON at the beginning ({e}): {said}"));
    assert_eq!(from["restored"], 2, "it went on from another checkpoint");
    assert_eq!(&end_of(said), expected, "it came to another end");
}

/// Checks that all nodes show the checkpoints of the undisturbed job, and so does the backing.
fn assert_all_checkpoints(rig: &Rig) {
    rig.assert_seen_everywhere("job");
    rig.assert_canonical("job");
}

fn with_deferred_closes() -> Spec {
    Spec::new(NODES).args(["--close", "defer"])
}

/// Checks that the victim's part of the second checkpoint is in its store and nowhere else.
fn assert_only_in_the_store(rig: &Rig) {
    let status = rig.cluster.status(VICTIM).expect("the victim's status");
    let files = status["files"]
        .as_array()
        .expect("files with undrained data");
    let is_second = |file: &&Value| {
        let path = file["path"].as_str().unwrap_or_default();
        path.ends_with("checkpoint.2")
    };
    let undrained = files.iter().find(is_second).map(|f| &f["undrained"]);
    let undrained = undrained.and_then(Value::as_u64).unwrap_or(0);
    assert!(undrained > 0, "the victim has drained it: {status:#}");
    assert_eq!(
        status["bytes"]["published"], 0,
        "others have it: {status:#}"
    );
    let below = std::fs::metadata(rig.cluster.canonical("job/checkpoint.2"));
    assert_eq!(below.expect("its name is there").len(), 0, "drained");
}

/// The node comes back with its store, which alone has its part of the second checkpoint: closed and so announced,
/// but neither published nor drained (S2.2, S2.7). All nodes take part again, with ranks on other nodes than before.
#[test]
fn the_node_comes_back() {
    let rig = Rig::up(with_deferred_closes().args(["--drain", "never"]));
    let mpi = Mpi::Mpich;
    let expected = undisturbed(&rig, mpi);
    killed_in_the_third(&rig, mpi, || assert_only_in_the_store(&rig));
    rig.cluster.restart(VICTIM).expect("start the daemon again");
    let said = restarted(&rig, mpi, &[3, 2, 1, 0]);
    assert_went_on(&said, &expected);
    assert_all_checkpoints(&rig);
    rig.finish();
}

/// The second checkpoint has reached the backing by itself while the job went on. So the other nodes need nothing of
/// the dead one; and when that comes back with its half of a third checkpoint that others have written meanwhile, it
/// harms nothing.
#[test]
fn the_others_go_on_without_it() {
    let rig = Rig::up(with_deferred_closes());
    let mpi = Mpi::OpenMpi;
    let expected = undisturbed(&rig, mpi);
    killed_in_the_third(&rig, mpi, || {
        let second = |dir: &Path| std::fs::read(dir.join("checkpoint.2")).unwrap_or_default();
        wait_until("the second checkpoint is drained", LONG, || {
            let drained = second(&rig.cluster.canonical("job"));
            (drained == second(&rig.plain("job"))).then_some(())
        });
    });
    let said = restarted(&rig, mpi, &[3, 1, 0]);
    assert_went_on(&said, &expected);
    rig.cluster.restart(VICTIM).expect("start the daemon again");
    assert_all_checkpoints(&rig);
    rig.finish();
}

/// Checks what these tests count on: the checkpoints of a job in a plain directory that was stopped and restarted
/// are those of one that was not.
#[test]
fn agrees_with_itself_in_a_plain_directory() {
    let rig = Rig::up(Spec::new(2));
    let mpi = Mpi::Mpich;
    let program = program(Program::Checkpoint, mpi);
    let run = |dir: &Path, more: &[&str]| {
        let mut arguments = vec![dir.to_str().expect("plain text")];
        arguments.extend(more);
        let done = rig.job(mpi, 4).run(&program, arguments);
        end_of(&done.expect("run the job").expect("the job"))
    };
    let [whole, parts] = ["whole", "parts"].map(|name| rig.plain(name));
    for dir in [&whole, &parts] {
        std::fs::create_dir(dir).expect("make a directory");
    }
    let expected = run(&whole, &[]);
    run(&parts, &["--steps", "2"]);
    File::create(parts.join("writing.3")).expect("a checkpoint that was not finished");
    assert_eq!(run(&parts, &["--restart"]), expected);
    assert_same_tree(&whole, &parts, "the restarted job");
    rig.finish();
}
