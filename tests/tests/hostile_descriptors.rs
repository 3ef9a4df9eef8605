//! One user takes all the descriptors that can be had; other users must not notice.
//!
//! Every file that the kernel knows costs the daemon a descriptor, and so does every open file. These tests limit
//! the number of descriptors that the daemon may have.

use forebay_tests::bystander::Bystander;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount};
use forebay_tests::users::{ALICE, as_user};
use nix::mount::{MsFlags, mount};
use pfs_sim::Sim;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of files that the daemon may have open. One user's share of the files that the daemon knows is a quarter
/// of it.
const DESCRIPTORS: u64 = 1024;
/// More files than the daemon may have open.
const FILES: usize = 1500;

/// Starts a mount with few descriptors, and makes a directory of ALICE's in it.
fn test_mount(drain: Drain, descriptors: u64) -> (TestMount, PathBuf) {
    let mut test_mount = TestMount::new(drain);
    test_mount
        .set("nodes", "one")
        .limit_descriptors(descriptors);
    test_mount.start();
    let dir = alices(&test_mount);
    (test_mount, dir)
}

fn alices(test_mount: &TestMount) -> PathBuf {
    let dir = test_mount.path("alice");
    fs::create_dir(&dir).expect("mkdir");
    chown(&dir, Some(ALICE), Some(ALICE)).expect("chown");
    dir
}

/// An overlayfs whose files have handles. It is unmounted when this is dropped.
struct Overlaid(PathBuf);

impl Overlaid {
    fn new(at: &Path) -> Self {
        let dirs = ["lower", "upper", "work"].map(|name| at.with_extension(name));
        for dir in dirs.iter().map(PathBuf::as_path).chain([at]) {
            fs::create_dir(dir).expect("mkdir");
        }
        let [lower, upper, work] = dirs.map(|dir| dir.display().to_string());
        let options =
            format!("lowerdir={lower},upperdir={upper},workdir={work},index=on,nfs_export=on");
        let (kind, flags) = (Some("overlay"), MsFlags::empty());
        mount(kind, at, kind, flags, Some(options.as_str())).expect("mount an overlayfs");
        Self(at.to_owned())
    }
}

impl Drop for Overlaid {
    fn drop(&mut self) {
        if let Err(error) = sys::detach(&self.0) {
            eprintln!("{} stays mounted: {error}", self.0.display());
        }
    }
}

fn descriptors_of(test_mount: &TestMount) -> usize {
    let fds = format!("/proc/{}/fd", test_mount.pid());
    fs::read_dir(fds)
        .expect("list the daemon's descriptors")
        .count()
}

/// How the daemon finds a file again for which it keeps no descriptor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Backing {
    /// By handle. A stale handle of a local file system proves that the file is gone.
    Local,
    /// By handle. A file has one handle for life, as on most parallel file systems, but a stale handle proves
    /// nothing. Overlayfs stands for these file systems.
    Remote,
    /// By the path that the file had: a FUSE client has no handles.
    Fuse,
}

/// S8.14: files that no program has open need no descriptor, drained or not. All of them keep their content, also
/// those that were renamed since.
#[test]
fn undrained_files_need_no_descriptors() {
    undrained_files_over(Backing::Local);
}

/// S8.14 where a stale handle does not prove that a file is gone.
#[test]
fn undrained_files_need_no_descriptors_on_a_remote_file_system() {
    undrained_files_over(Backing::Remote);
}

/// S8.14 on a backing without handles.
#[test]
fn undrained_files_need_no_descriptors_on_a_fuse_client() {
    undrained_files_over(Backing::Fuse);
}

fn undrained_files_over(backing: Backing) {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount
        .set("nodes", "one")
        .limit_descriptors(DESCRIPTORS);
    let pfs = test_mount.root().join("pfs");
    let _overlaid = (backing == Backing::Remote).then(|| Overlaid::new(&pfs));
    let _sim = (backing == Backing::Fuse).then(|| {
        fs::create_dir(&pfs).expect("mkdir");
        let program = forebay_tests::prereq::helper("pfs-sim");
        let builder = Sim::builder().program(&program).osts(1);
        builder.start(&[&pfs]).expect("start the simulator")
    });
    if backing != Backing::Local {
        test_mount.set_backing(&pfs);
    }
    test_mount.start();
    let dir = alices(&test_mount);
    // Without handles the daemon would have to search for each renamed file.
    let renames = backing != Backing::Fuse;
    let end = if renames { "e" } else { "d" };
    let bob = Bystander::beside(&test_mount);
    as_user(ALICE, &[], || {
        fs::create_dir(dir.join("d")).expect("mkdir");
        for n in 0..FILES {
            let path = dir.join("d").join(n.to_string());
            fs::write(path, [n as u8]).unwrap_or_else(|e| panic!("file {n} of {FILES}: {e}"));
        }
        if renames {
            fs::rename(dir.join("d"), dir.join(end)).expect("rename");
        }
    });
    bob.is_not_disturbed(2);
    assert!(
        test_mount.status().undrained() >= FILES as u64,
        "nothing was drained"
    );
    let open = descriptors_of(&test_mount);
    assert!(
        open < DESCRIPTORS as usize / 2,
        "the daemon has {open} files open"
    );
    as_user(ALICE, &[], || {
        for n in 0..FILES {
            let got = fs::read(dir.join(end).join(n.to_string())).expect("read");
            assert_eq!(got, [n as u8], "file {n}");
        }
    });
    bob.was_not_disturbed();
    test_mount.umount();
    for n in 0..FILES {
        let below = test_mount.canonical("alice").join(end).join(n.to_string());
        let got = fs::read(below).expect("read below");
        assert_eq!(got, [n as u8], "file {n} below");
    }
    test_mount.finish();
}

/// S8.14: one user opens as many files as the daemon allows, to use them or only to hold them (`O_PATH`). Other
/// users go on, and root has some descriptors left in any case.
#[test]
fn one_user_does_not_get_all_descriptors() {
    let (mut test_mount, dir) = test_mount(Drain::Immediate, DESCRIPTORS);
    test_mount.allow_log("descriptors");
    let below = test_mount.canonical("alice");
    for n in 0..FILES {
        fs::write(below.join(n.to_string()), "").expect("make a file below");
    }
    let bob = Bystander::beside(&test_mount);
    for flags in [0, libc::O_PATH] {
        let held = as_user(ALICE, &[], || hold(&dir, flags));
        println!("alice holds {} files, flags {flags:#x}", held.len());
        assert!(held.len() > 80, "a user has a fair share: {}", held.len());
        bob.is_not_disturbed(2);
        fs::write(test_mount.path("root"), "root's").expect("root writes");
        drop(held);
    }
    bob.was_not_disturbed();
    test_mount.finish();
}

/// Opens one file after the other until the daemon refuses one.
fn hold(dir: &Path, flags: i32) -> Vec<File> {
    let mut held = Vec::new();
    for n in 0..FILES {
        let path = dir.join(n.to_string());
        match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => held.push(file),
            Err(e) if e.raw_os_error() == Some(libc::ENFILE) => return held,
            Err(e) => panic!("ENFILE is what there is to say: {e}"),
        }
    }
    panic!("one user opened {FILES} files of a daemon that may open {DESCRIPTORS}");
}

/// S8.14: a walk visits many more files than there are descriptors.
#[test]
fn find_over_more_files_than_descriptors() {
    let (test_mount, dir) = test_mount(Drain::Immediate, 4 * DESCRIPTORS);
    let below = test_mount.canonical("alice");
    for n in 0..FILES * 8 {
        if n % 400 == 0 {
            fs::create_dir(below.join(format!("d{}", n / 400))).expect("mkdir below");
        }
        let path = below.join(format!("d{}/{n}", n / 400));
        File::create(path).expect("make a file below");
    }
    let bob = Bystander::beside(&test_mount);
    for user in [ALICE, 0] {
        let out = as_user(user, &[], || {
            let mut find = Command::new("find");
            find.arg(&dir)
                .args(["-type", "f", "-newermt", "2000-01-01"]);
            find.output().expect("start find")
        });
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "find of {user}: {said}");
        let found = out.stdout.iter().filter(|b| **b == b'\n').count();
        assert_eq!(found, FILES * 8, "find of {user}: {said}");
        bob.is_not_disturbed(1);
    }
    bob.was_not_disturbed();
    test_mount.finish();
}
