//! A mount over the simulated parallel file system, on which the Lustre provider places files.
//!
//! A process that waits for a hanging OST cannot be killed. So all OSTs are repaired before anything is taken down,
//! also when the test fails.

// Each test file is a crate of its own and uses only a part of this module.
#![allow(dead_code)]

use forebay_tests::cli::str;
use forebay_tests::status::Status;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get};
use forebay_tests::wait::{LONG, in_background, in_time, wait_until};
use forebay_tests::{prereq, sys};
use pfs_sim::{Builder, Change, Failure, Sim, lov};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

pub const MIB: usize = 1 << 20;

/// The fields are dropped in this order, after the OSTs were repaired.
pub struct Lustre {
    pub test_mount: TestMount,
    pub sim: Sim,
    _dir: tempfile::TempDir,
}

impl Lustre {
    /// Starts a parallel file system, and makes a test mount over it that is not started. Everything goes through
    /// subfiles, and the timeouts are so short that a test sees several of them pass.
    pub fn new(builder: Builder, drain: Drain, nodes: &str) -> Lustre {
        prereq::mounting();
        let dir = tempfile::tempdir().expect("a directory");
        let mount = dir.path().join("pfs");
        std::fs::create_dir(&mount).expect("mkdir");
        let sim = builder
            .latency("0")
            .lock_cost("0")
            .program(prereq::helper("pfs-sim"))
            .start(&[&mount])
            .expect("start pfs-sim");
        sim.lustre_root(dir.path()).expect("write the list of OSTs");
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&mount, all).expect("open the PFS to all");
        let mut test_mount = TestMount::with_limit(drain, Duration::from_secs(240));
        test_mount.set("nodes", nodes);
        test_mount
            .set_backing(&mount)
            .env("FOREBAY_LUSTRE_ROOT", dir.path())
            .set("ost-provider", "lustre")
            .set("subfiles", "always")
            .set("ost-deadline", "3s")
            .set("ost-retry", "1s");
        let _dir = dir;
        Lustre {
            test_mount,
            sim,
            _dir,
        }
    }

    /// Starts the daemon, and waits until it knows its OSTs.
    pub fn start(&mut self) {
        self.test_mount.start();
        self.until("the OSTs are known", |status| {
            status.at("/targets/probing") == false && !status.chosen().is_empty()
        });
    }

    pub fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        let mut last = None;
        let seen = wait_until_or(what, || {
            let status = self.test_mount.status();
            let found = is_so(&status).then(|| status.clone());
            last = Some(status);
            found
        });
        seen.unwrap_or_else(|| panic!("in vain: {what}: {:#}", last.expect("a status").0))
    }

    pub fn set(&self, ost: usize, change: Change) {
        self.sim.set(ost, change).expect("change an OST");
    }

    pub fn fail(&self, ost: usize, how: Failure) {
        self.set(ost, Change::default().fail(how));
    }

    /// Returns the number of bytes that each OST has taken.
    pub fn written(&self) -> Vec<u64> {
        let counters = self.sim.counters().expect("read the counters");
        let osts = counters.osts.iter();
        osts.map(|ost| ost.tally.bytes_written).collect()
    }

    /// Returns the OSTs that a file in the backing is striped over, in the order of their numbers.
    pub fn striped_over(&self, file: &Path) -> Vec<usize> {
        let bytes = sys::get_xattr(file, lov::NAME).expect("read the layout");
        let mut osts = lov::parse_file(&bytes).expect("a layout").osts;
        osts.sort_unstable();
        osts
    }

    /// Returns the subfiles on each OST.
    pub fn subfiles(&self) -> Vec<Vec<PathBuf>> {
        let place = self.test_mount.backing().join(".forebay/subfiles");
        let osts = self.sim.config().expect("read the settings").osts.len();
        let of = |ost: usize| match std::fs::read_dir(place.join(ost.to_string())) {
            Ok(entries) => entries.map(|e| e.expect("list").path()).collect(),
            Err(_) => Vec::new(),
        };
        (0..osts).map(of).collect()
    }

    /// Returns how many layouts of files lie on an OST.
    pub fn layouts_on(&self, ost: usize) -> usize {
        let below = |dir: PathBuf| -> Vec<PathBuf> {
            // Layouts come and go while they are listed.
            let entries = std::fs::read_dir(dir).into_iter().flatten();
            entries.flatten().map(|entry| entry.path()).collect()
        };
        let groups = below(self.test_mount.backing().join(".forebay/files"));
        let dirs = groups.into_iter().flat_map(below);
        let is_layout = |path: &PathBuf| str(path).contains("/l.");
        let layouts = dirs.flat_map(below).filter(is_layout);
        layouts
            .filter(|path| path.exists() && self.striped_over(path) == [ost])
            .count()
    }

    /// Runs `forebay drain` on one file.
    pub fn drain(&self, name: &str, options: &[&str]) -> Output {
        let path = self.test_mount.path(name);
        let mut args = vec!["drain", str(&path)];
        args.extend(options);
        self.test_mount.run(args)
    }

    /// Reads a file through the mount, and fails if that takes too long.
    pub fn read(&self, name: &str) -> Vec<u8> {
        let path = self.test_mount.path(name);
        in_time(
            "reading through the mount",
            in_background(move || get(path)),
        )
    }

    /// Checks S4: the file has these bytes, through the mount and without it.
    pub fn has_all(&self, name: &str, want: &[u8]) {
        assert_same(&format!("{name}, mounted"), &self.read(name), want);
        let below = get(self.test_mount.canonical(name));
        assert_same(&format!("{name}, canonical"), &below, want);
    }

    /// Unmounts, and checks that nothing is left on the OSTs but canonical files. A test that succeeds ends with
    /// this.
    pub fn finish(mut self) {
        self.test_mount.umount();
        let left: Vec<PathBuf> = self.subfiles().into_iter().flatten().collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "subfiles are left");
    }
}

impl Drop for Lustre {
    fn drop(&mut self) {
        if let Err(e) = self.sim.set_all(Change::default().fail(Failure::None)) {
            eprintln!("mend the OSTs: {e}");
        }
    }
}

fn wait_until_or<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let patience = std::time::Instant::now() + LONG;
    wait_until(what, 2 * LONG, || match look() {
        Some(found) => Some(Some(found)),
        None => (std::time::Instant::now() > patience).then_some(None),
    })
}
