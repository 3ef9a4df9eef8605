//! Two nodes over one backing, and what a test sees of them in the shared directory.
//!
//! Tests look at the shared directory by its names only, as `docs/decisions/0008-many-nodes.md` has them: a test
//! that waits until a node has taken the term waits for the link.

// Each test file is a crate of its own and uses only a part of this module.
#![allow(dead_code)]

use forebay_tests::loopfs::LoopFs;
use forebay_tests::test_mount::{self, Drain, TestMount, open_rw};
use forebay_tests::users::{BOB, as_user};
use forebay_tests::wait::{LONG, wait_until};
use forebay_tests::{daemon_log, prereq, sys};
use pfs_sim::{Builder, Sim};
use serde_json::Value;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use tempfile::TempDir;

pub const MIB: usize = 1 << 20;

/// Time that a test of this kind may take before its mounts are taken away.
pub const LIMIT: Duration = Duration::from_secs(240);

/// Time that a busy machine may add to a timeout that was set.
pub const GRACE: Duration = Duration::from_secs(10);

/// A directory that all nodes have as their backing. It outlives them.
pub struct Shared {
    sim: Option<Sim>,
    disk: Option<LoopFs>,
    dir: TempDir,
}

impl Shared {
    /// Makes a backing on the disk of the temporary directory.
    pub fn plain() -> Shared {
        let dir = tempfile::Builder::new()
            .prefix("forebay-backing-")
            .tempdir();
        let dir = dir.expect("make a backing");
        fs::create_dir(dir.path().join("pfs")).expect("make a backing");
        let shared = Shared {
            sim: None,
            disk: None,
            dir,
        };
        shared.open_to_all();
        shared
    }

    /// Makes a simulated parallel file system, of which both nodes are one client.
    pub fn simulated(builder: Builder) -> Shared {
        prereq::mounting();
        let mut shared = Shared::plain();
        let sim = builder
            .latency("0")
            .lock_cost("0")
            .program(prereq::helper("pfs-sim"))
            .start(&[shared.backing()]);
        shared.sim = Some(sim.expect("start pfs-sim"));
        shared.open_to_all();
        shared
    }

    /// Makes a backing on a small file system of its own, of which a part is reserved for root.
    pub fn with_reserve(bytes: u64, percent: u32) -> Shared {
        let dir = tempfile::Builder::new()
            .prefix("forebay-backing-")
            .tempdir();
        let dir = dir.expect("make a backing");
        let (image, at) = (dir.path().join("image"), dir.path().join("pfs"));
        let disk = LoopFs::with_reserve(&image, &at, bytes, percent);
        let shared = Shared {
            sim: None,
            disk: Some(disk),
            dir,
        };
        shared.open_to_all();
        shared
    }

    /// Fills, as Bob, all space that is not reserved for root, and checks that more than `least` bytes are reserved.
    /// Returns the file that takes the space.
    pub fn fill(&self, least: u64) -> PathBuf {
        let filler = self.canonical("filler");
        as_user(BOB, &[], || {
            let file = open_rw(&filler);
            let full = (0..).find_map(|n| {
                let done = sys::write_all_at(&file, &[1; 1 << 16], n << 16);
                done.err()
            });
            let kind = full.expect("it fills up").kind();
            assert!(
                matches!(kind, ErrorKind::StorageFull | ErrorKind::Other),
                "{kind}"
            );
        });
        let free = nix::sys::statvfs::statvfs(&self.backing()).expect("statfs");
        let for_root = free.blocks_free() * free.fragment_size();
        assert!(for_root > least, "root has room: {for_root}");
        filler
    }

    fn open_to_all(&self) {
        for dir in [self.dir.path(), &self.backing()] {
            let all = fs::Permissions::from_mode(0o777);
            fs::set_permissions(dir, all).expect("open the backing to all");
        }
    }

    pub fn backing(&self) -> PathBuf {
        self.dir.path().join("pfs")
    }

    pub fn sim(&self) -> &Sim {
        self.sim.as_ref().expect("the backing is simulated")
    }

    /// Returns the number of bytes that the simulated file system has taken.
    pub fn written(&self) -> u64 {
        let counters = self.sim().counters().expect("read the counters");
        counters.total.bytes_written
    }

    /// Returns the number of requests to any OST of the simulated file system.
    pub fn requests(&self) -> u64 {
        let counters = self.sim().counters().expect("read the counters");
        counters.total.requests
    }

    /// Makes a node that is not started yet. It trusts no cached attribute. Its lease outlives every test, because a
    /// busy machine must not let it lapse, and the calls with which a node keeps its lease count as requests. A test
    /// that waits for a dead node sets a shorter lease.
    pub fn node(&self, name: &str, drain: Drain) -> TestMount {
        let mut mount = TestMount::with_limit(drain, LIMIT);
        mount
            .set_backing(&self.backing())
            .set("node", name)
            .set("lease", "5m")
            .set("visibility-timeout", "60s")
            .set("attr-timeout", "0s");
        mount
    }

    /// Makes a node that is missed when it is gone: other nodes wait for its lease, and take over.
    pub fn mortal(&self, name: &str, drain: Drain) -> TestMount {
        let mut mount = self.node(name, drain);
        mount.set("lease", "6s");
        mount
    }

    /// Returns the path of the canonical file.
    pub fn canonical(&self, name: &str) -> PathBuf {
        self.backing().join(name)
    }

    pub fn shared_dir(&self) -> PathBuf {
        self.backing().join(".forebay")
    }

    /// Returns the directories that files have in the shared directory.
    pub fn file_dirs(&self) -> Vec<PathBuf> {
        let groups = list(&self.shared_dir().join("files"));
        groups.iter().flat_map(|group| list(group)).collect()
    }

    /// Returns the directory of the only file that has one.
    pub fn file_dir(&self) -> PathBuf {
        let dirs = self.file_dirs();
        assert_eq!(dirs.len(), 1, "one file with a directory: {dirs:?}");
        dirs.into_iter().next().expect("one")
    }

    /// Returns all names in files' directories that begin with this letter.
    pub fn names(&self, kind: char) -> Vec<String> {
        let dirs = self.file_dirs();
        let all = dirs.iter().flat_map(|dir| list(dir));
        all.map(|path| name_of(&path))
            .filter(|name| name.starts_with(kind) && name[1..].starts_with('.'))
            .collect()
    }

    /// Returns the ids of the nodes that made the links of this kind.
    pub fn made_by(&self, kind: char) -> Vec<String> {
        let dirs = self.file_dirs();
        let all = dirs.iter().flat_map(|dir| list(dir));
        all.filter(|path| name_of(path).starts_with(&format!("{kind}.")))
            .filter_map(|path| fs::read_link(path).ok())
            .filter_map(|text| Some(text.to_str()?.split('.').next()?.to_owned()))
            .collect()
    }

    /// Returns the layouts of one node, by its id.
    pub fn layouts_of(&self, id: &str) -> Vec<String> {
        let mut own = self.names('l');
        own.retain(|name| name.split('.').nth(1) == Some(id));
        own
    }

    /// Returns the names of the nodes that have a record.
    pub fn nodes(&self) -> Vec<String> {
        let records = list(&self.shared_dir().join("nodes"));
        let texts = records
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok());
        let name = |text: String| {
            let line = text.lines().find_map(|l| l.strip_prefix("name = "));
            line.map(|name| name.trim_matches('"').to_owned())
        };
        let mut names: Vec<String> = texts.filter_map(name).collect();
        names.sort();
        names
    }

    /// Returns the id of a node that has joined.
    pub fn id_of(&self, name: &str) -> String {
        let named = format!("name = {name:?}");
        let records = list(&self.shared_dir().join("nodes"));
        let is = |path: &&PathBuf| {
            fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line == named))
        };
        let record = records.iter().find(is);
        name_of(record.unwrap_or_else(|| panic!("no node {name} has joined: {records:?}")))
    }

    /// Returns the subfiles that are there, of all nodes.
    pub fn subfiles(&self) -> Vec<PathBuf> {
        let all = list(&self.shared_dir().join("subfiles"));
        all.into_iter().filter(|path| path.is_file()).collect()
    }
}

/// Parses what a command printed with `--json`.
pub fn json(out: &Output) -> Value {
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("no JSON ({e}): {}", test_mount::text(out)))
}

/// Returns a list of texts in the JSON, sorted.
pub fn texts(value: &Value) -> Vec<String> {
    let list = value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {value}"));
    let text = |v: &Value| {
        v.as_str()
            .unwrap_or_else(|| panic!("no text: {v}"))
            .to_owned()
    };
    let mut texts: Vec<String> = list.iter().map(text).collect();
    texts.sort();
    texts
}

/// Returns the entries of a directory, or nothing if the directory is not there.
pub fn list(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    // Names come and go while they are listed.
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

pub fn name_of(path: &Path) -> String {
    let name = path.file_name().expect("it has a name");
    name.to_string_lossy().into_owned()
}

/// Waits until `is_so` returns true, and fails the test with `what` if that takes too long.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_until(what, LONG, || is_so().then_some(()));
}

/// Waits until the daemon's log has a line with all of these words.
pub fn until_logged(mount: &TestMount, words: &[&str]) -> String {
    wait_until(&format!("the log says {words:?}"), LONG, || {
        logged(mount, words)
    })
}

pub fn logged(mount: &TestMount, words: &[&str]) -> Option<String> {
    logged_behind(mount, 0, words)
}

/// The same for the lines behind the first `lines` ones.
pub fn logged_behind(mount: &TestMount, lines: usize, words: &[&str]) -> Option<String> {
    let log = daemon_log::read(&mount.log_file());
    let mut lines = log.lines().skip(lines);
    let line = lines.find(|line| words.iter().all(|word| line.contains(word)));
    line.map(str::to_owned)
}
