//! Compares the mount with the reference model: four processes make at least 20,000 random operations per policy,
//! with the drain at full speed.
//!
//! Checks S1 (all of S1.1 to S1.6, S1.8 to S1.10, S1.12, S1.14, S1.17), S4, S4.3 and S6.3. `FOREBAY_SEED` replays a
//! run, `FOREBAY_OPS` sets the number of operations.

use forebay_tests::model::manifest::Manifest;
use forebay_tests::test_mount::{Drain, TestMount};
use forebay_tests::{prereq, rng, sys};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const WORKERS: u64 = 4;
const ROUNDS: u64 = 6;

/// Checks S1 and S4 with `drain = immediate`.
#[test]
fn agrees_while_draining_at_once() {
    run(Drain::Immediate, 0);
}

/// Checks S1 and S4 on the way through subfiles.
#[test]
fn agrees_while_subfiling() {
    run(Drain::Immediate, 3);
}

/// Checks S1 and S4 with `drain = on-close`.
#[test]
fn agrees_while_draining_on_close() {
    run(Drain::OnClose, 0);
}

/// Checks S1 and S4 with `drain = never`: everything stays in the log until the end.
#[test]
fn agrees_without_drain() {
    run(Drain::Never, 0);
}

fn run(drain: Drain, osts: usize) {
    let seed = rng::seed(&format!("model, drain {}, {osts} OSTs", drain.key()));
    let operations = rng::count("FOREBAY_OPS", 20_000);
    let mut test_mount = TestMount::with_limit(drain, Duration::from_secs(900 + operations / 50));
    test_mount.set("store-size", "6GiB");
    if osts > 0 {
        test_mount.with_osts(osts);
    }
    test_mount.start();
    let side = test_mount.root().join("side");
    std::fs::create_dir(&side).expect("make the side directory");

    let manifests = drive(test_mount.mnt(), &side, seed, operations);
    let done: u64 = manifests.iter().map(|m| m.operations).sum();
    assert!(done >= operations, "{done} operations were done");
    let seen: Vec<BTreeMap<String, i64>> = manifests
        .iter()
        .map(|manifest| manifest.verify("mount", test_mount.mnt()))
        .collect();
    let shared = ["shared0", "shared1"];
    let times = shared.map(|name| {
        let meta = std::fs::metadata(test_mount.path(name)).expect("stat a shared file");
        sys::mtime(&meta)
    });

    test_mount.drain();
    assert_eq!(
        test_mount.status().undrained(),
        0,
        "undrained bytes after the drain"
    );
    test_mount.umount();
    for (manifest, seen) in manifests.iter().zip(&seen) {
        let canonical = manifest.verify("backing", test_mount.backing());
        assert_eq!(
            &canonical, seen,
            "mtimes in the backing against the mount's"
        );
    }
    for (name, time) in shared.iter().zip(times) {
        let want = forebay_tests::test_mount::get(side.join(name));
        let got = forebay_tests::test_mount::get(test_mount.canonical(name));
        forebay_tests::test_mount::assert_same(&format!("{name} in the backing"), &got, &want);
        let meta = std::fs::metadata(test_mount.canonical(name)).expect("stat a canonical file");
        assert_eq!(sys::mtime(&meta), time, "mtime of {name} in the backing");
    }
    assert_eq!(
        test_mount.subfiles(),
        Vec::<PathBuf>::new(),
        "subfiles are left"
    );
    println!(
        "model, drain {}, {osts} OSTs: {done} operations agree",
        drain.key()
    );
    test_mount.finish();
}

/// Runs the workers below `mount`, and returns what each of them says should be there now.
fn drive(mount: &Path, side: &Path, seed: u64, operations: u64) -> Vec<Manifest> {
    let each = operations.div_ceil(WORKERS);
    let mut workers: Vec<Process> = (0..WORKERS)
        .map(|worker| Process::start(mount, side, worker, seed, each))
        .collect();
    // Three barriers a round; then each worker ends by itself.
    for step in 0..ROUNDS * 3 {
        for worker in &mut workers {
            worker.arrived(step);
        }
        for worker in &mut workers {
            worker.go();
        }
    }
    for worker in workers {
        worker.ended();
    }
    (0..WORKERS)
        .map(|worker| Manifest::load(&side.join(format!("w{worker}.json"))))
        .collect()
}

/// Checks that the model itself is right: it agrees with the disk, with which everything else is compared.
#[test]
fn agrees_with_a_plain_directory() {
    let seed = rng::seed("model, plain directory");
    let root = tempfile::tempdir().expect("make a directory");
    let [plain, side] = ["plain", "side"].map(|name| root.path().join(name));
    for dir in [&plain, &side] {
        std::fs::create_dir(dir).expect("make a directory");
    }
    for manifest in drive(&plain, &side, seed, 4000) {
        manifest.verify("plain directory", &plain);
    }
}

struct Process {
    worker: u64,
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Process {
    fn start(mount: &Path, side: &Path, worker: u64, seed: u64, operations: u64) -> Self {
        let mut child = Command::new(prereq::helper("model-worker"))
            .arg(mount)
            .arg(side)
            .args([worker, WORKERS, seed, operations, ROUNDS].map(|n| n.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a worker");
        Self {
            worker,
            says: BufReader::new(child.stdout.take().expect("a pipe was asked for")),
            hears: child.stdin.take().expect("a pipe was asked for"),
            child,
        }
    }

    fn arrived(&mut self, step: u64) {
        let mut line = String::new();
        self.says.read_line(&mut line).expect("read from a worker");
        assert_eq!(
            line.trim(),
            "barrier",
            "worker {} failed before barrier {step}; see what it said above",
            self.worker
        );
    }

    fn go(&mut self) {
        self.hears.write_all(b"go\n").expect("write to a worker");
    }

    fn ended(mut self) {
        let status = self.child.wait().expect("wait for a worker");
        assert!(status.success(), "worker {} failed: {status}", self.worker);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait()
            && let Err(e) = self.child.kill().and_then(|()| self.child.wait().map(drop))
        {
            eprintln!("end worker {}: {e}", self.worker);
        }
    }
}
