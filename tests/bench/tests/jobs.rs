//! Runs `bench-jobs` as `make bench-jobs` starts it, but small: it must measure and check, write
//! the requested files, and leave nothing behind. The speed is not checked.

use forebay_tests::wait::{LONG, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

struct Ground {
    /// The benchmark's directory; must be empty before and after.
    work: TempDir,
    /// Holds the page and the program's output.
    out: TempDir,
}

impl Ground {
    fn new() -> Ground {
        forebay_tests::prereq::mounting();
        let dir = || tempfile::tempdir().expect("make a temporary directory");
        Ground {
            work: dir(),
            out: dir(),
        }
    }

    fn out(&self, name: &str) -> PathBuf {
        self.out.path().join(name)
    }

    /// Starts one small kernel on two nodes, with OSTs that are too fast to matter.
    fn start(&self, more: &[&str]) -> Child {
        let file = |name| File::create(self.out(name)).expect("make a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench-jobs"));
        forebay_tests::sys::die_with_parent(&mut command);
        command
            .args(["--kernels", "ior_hard", "--size", "200k", "--nodes", "2"])
            .args(["--ranks", "2", "--osts", "2", "--bandwidth", "200M"])
            .arg("--dir")
            .arg(self.work.path())
            .args(more)
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .expect("start bench-jobs")
    }

    fn said(&self) -> String {
        let read = |name| std::fs::read_to_string(self.out(name)).expect("read what it printed");
        format!("{}{}", read("stdout"), read("stderr"))
    }

    fn left(&self) -> Option<String> {
        let dir = self.work.path();
        let files = std::fs::read_dir(dir).expect("list the directory").count();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("read mountinfo");
        let mounted = mounts.contains(&*dir.to_string_lossy());
        let processes = naming(dir);
        match (files, mounted, processes.is_empty()) {
            (0, false, true) => None,
            _ => Some(format!(
                "{files} files, mounted: {mounted}, processes: {processes:?}"
            )),
        }
    }
}

/// Returns the command lines of processes that name the directory: keepers, daemons, ranks, the
/// simulator.
fn naming(dir: &Path) -> Vec<String> {
    let needle = dir.to_string_lossy();
    let lines = std::fs::read_dir("/proc").expect("list /proc").flatten();
    lines
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&*needle))
        .collect()
}

/// Both kinds of close are measured beside direct writes and checked against them (S2.1, S4); the
/// page, the figures and the samples are written.
#[test]
fn a_small_run_makes_everything() {
    let ground = Ground::new();
    let page = ground.out("BENCHMARKS.md");
    std::fs::write(
        &page,
        "<!-- bench-jobs:begin -->\n<!-- bench-jobs:end -->\n",
    )
    .unwrap();
    let (json, docs) = (ground.out("jobs.json"), ground.out(""));
    let paths = [json.to_str().unwrap(), docs.to_str().unwrap()];
    let mut bench = ground.start(&["--runs", "1", "--json", paths[0], "--update-docs", paths[1]]);
    let status = wait_until("the benchmark ends", 2 * LONG, || bench.try_wait().unwrap());
    assert!(status.success(), "{status}:\n{}", ground.said());
    assert_eq!(ground.left(), None);

    let all: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let samples = all["samples"].as_array().expect("samples");
    let ways: Vec<&str> = samples.iter().filter_map(|s| s["way"].as_str()).collect();
    assert_eq!(ways, ["direct", "publish", "defer"]);
    for sample in samples {
        // Each rank makes four transfers.
        assert_eq!(sample["bytes"], 2 * 4 * 47008, "{sample}");
        assert!(
            sample["seconds"].as_f64().is_some_and(|s| s > 0.0),
            "{sample}"
        );
        assert!(
            sample["written"].as_u64() >= sample["bytes"].as_u64(),
            "{sample}"
        );
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("| ior_hard | 0.4 |"), "{page}");
    assert!(page.contains("| none given |"), "{page}");
    for name in ["perceived", "factors", "lock-moves"] {
        let figure = format!("plots/jobs-{name}.svg");
        assert!(page.contains(&figure), "{page}");
        assert!(std::fs::metadata(docs.join(figure)).unwrap().len() > 1000);
    }
}

/// Ctrl-C in the middle of a job ends nodes, daemons, ranks and file system.
#[test]
fn an_interrupted_run_leaves_nothing() {
    let ground = Ground::new();
    let mut bench = ground.start(&["--runs", "100"]);
    wait_until("the first job is measured", 2 * LONG, || {
        if let Some(status) = bench.try_wait().unwrap() {
            panic!("{status}:\n{}", ground.said());
        }
        ground.said().contains("measured: ").then_some(())
    });
    kill(Pid::from_raw(bench.id() as i32), Signal::SIGINT).unwrap();
    let status = wait_until("the benchmark ends", LONG, || bench.try_wait().unwrap());
    assert!(!status.success());
    // The nodes must end before the benchmark does, or they would write into a directory that is
    // being removed. The simulator only notices the end of the benchmark, so it ends later.
    let mut nodes = naming(ground.work.path());
    nodes.retain(|line| !line.contains("pfs-sim"));
    assert!(nodes.is_empty(), "{nodes:?}");
    wait_until("all of it is gone", LONG, || match ground.left() {
        None => Some(()),
        Some(_) => None,
    });
}
