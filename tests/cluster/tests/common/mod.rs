//! A cluster that a test controls by the command line, below a temporary directory, and a check
//! that it is gone afterwards.

// Each test file is a crate of its own and uses only part of this module.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-cluster");

/// Directories for one cluster. Takes the cluster down however the test ends.
pub struct Ground {
    root: TempDir,
}

impl Ground {
    pub fn new() -> Ground {
        forebay_tests::prereq::mounting();
        forebay_tests::prereq::program("ip", "iproute2");
        let root = tempfile::Builder::new()
            .prefix("forebay-cluster-test-")
            .tempdir()
            .expect("make a temporary directory");
        for name in ["backing", "mnt"] {
            std::fs::create_dir(root.path().join(name)).expect("make the test's directories");
        }
        Ground { root }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    pub fn mount(&self) -> PathBuf {
        self.path("mnt")
    }

    pub fn canonical(&self, name: &str) -> PathBuf {
        self.path("backing").join(name)
    }

    /// Returns the command `forebay-cluster ARGUMENTS --dir STATE`, not started.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg("--dir")
            .arg(self.state())
            .args(arguments)
            .current_dir(self.root.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        let mut command = self.command(arguments);
        command.output().expect("start forebay-cluster")
    }

    /// Runs the program, fails the test if it fails, and returns what it printed.
    #[track_caller]
    pub fn ok<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let out = self.run(arguments);
        assert!(
            out.status.success(),
            "{}: {}",
            out.status,
            forebay_tests::test_mount::text(&out)
        );
        String::from_utf8(out.stdout).expect("it prints text")
    }

    /// Returns the arguments of `up N` with the test's directories.
    pub fn up(&self, nodes: &str, more: &[&str]) -> Vec<std::ffi::OsString> {
        let mut line = vec!["up".into(), nodes.into(), "--backing".into()];
        line.push(self.path("backing").into());
        line.extend(["--mount".into(), self.mount().into()]);
        line.extend(more.iter().map(Into::into));
        line
    }

    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.ok(["status", "--json"])).expect("status --json is JSON")
    }

    /// Asserts that nothing of the cluster is left: no process that names its directory, no mount,
    /// no file.
    #[track_caller]
    pub fn assert_gone(&self) {
        let left = processes_naming(&self.state());
        assert!(left.is_empty(), "these processes are left: {left:?}");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("read mountinfo");
        let root = self.root.path().to_string_lossy();
        assert!(!mounts.contains(&*root), "a mount is left:\n{mounts}");
        assert!(!self.state().exists(), "the state directory is left");
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let out = self.run(["down", "--discard"]);
        if !out.status.success() {
            eprintln!("down: {}", forebay_tests::test_mount::text(&out));
            // The state in this directory is needed to end what is left, so the directory is kept.
            self.root.disable_cleanup(true);
        }
    }
}

/// Returns the processes with this directory in their command line or environment: keepers,
/// daemons, jobs.
pub fn processes_naming(dir: &Path) -> Vec<String> {
    let me = std::process::id().to_string();
    let needle = dir.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("list /proc") {
        let entry = entry.expect("an entry of /proc");
        let pid = entry.file_name().to_string_lossy().into_owned();
        if pid == me || !pid.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\0', " ");
        let line = text(read("cmdline"));
        if line.contains(&needle) || text(read("environ")).contains(&needle) {
            found.push(format!("{pid} {line}"));
        }
    }
    found
}
