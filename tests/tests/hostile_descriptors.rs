//! One user takes what descriptors there are; others do not notice.
//!
//! Every file that the kernel knows costs the daemon a descriptor, and so does every open one. These tests
//! run a daemon that may have few.

use forebay_tests::bay::{Bay, Drain};
use forebay_tests::bystander::Bystander;
use forebay_tests::users::{ALICE, as_user};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the daemon may have open. A quarter of it is one user's share of the files it knows.
const DESCRIPTORS: u64 = 1024;
/// More than that.
const FILES: usize = 1500;

/// A mount with few descriptors, and a directory of ALICE's in it.
fn bay(drain: Drain, descriptors: u64) -> (Bay, PathBuf) {
    let mut bay = Bay::new(drain);
    bay.set("nodes", "one").limit_descriptors(descriptors);
    bay.start();
    let dir = bay.path("alice");
    fs::create_dir(&dir).expect("mkdir");
    chown(&dir, Some(ALICE), Some(ALICE)).expect("chown");
    (bay, dir)
}

fn descriptors_of(bay: &Bay) -> usize {
    let fds = format!("/proc/{}/fd", bay.pid());
    fs::read_dir(fds)
        .expect("list the daemon's descriptors")
        .count()
}

/// S8.14: files that no program has open need no descriptor, drained or not. All are what they were, also where
/// they were renamed since.
#[test]
fn undrained_files_need_no_descriptors() {
    let (mut bay, dir) = bay(Drain::Never, DESCRIPTORS);
    let bob = Bystander::beside(&bay);
    as_user(ALICE, &[], || {
        fs::create_dir(dir.join("d")).expect("mkdir");
        for n in 0..FILES {
            let path = dir.join("d").join(n.to_string());
            fs::write(path, [n as u8]).unwrap_or_else(|e| panic!("file {n} of {FILES}: {e}"));
        }
        fs::rename(dir.join("d"), dir.join("e")).expect("rename");
    });
    bob.is_not_disturbed(2);
    assert!(
        bay.status().undrained() >= FILES as u64,
        "nothing was drained"
    );
    let open = descriptors_of(&bay);
    assert!(
        open < DESCRIPTORS as usize / 2,
        "the daemon has {open} files open"
    );
    as_user(ALICE, &[], || {
        for n in 0..FILES {
            let got = fs::read(dir.join("e").join(n.to_string())).expect("read");
            assert_eq!(got, [n as u8], "file {n}");
        }
    });
    bob.was_not_disturbed();
    bay.umount();
    for n in 0..FILES {
        let got = fs::read(bay.canonical("alice/e").join(n.to_string())).expect("read below");
        assert_eq!(got, [n as u8], "file {n} below");
    }
    bay.finish();
}

/// S8.14: one user opens all that can be had, to use it or only to hold it. Others go on, and root has some
/// left in any case.
#[test]
fn one_user_does_not_get_all_descriptors() {
    let (mut bay, dir) = bay(Drain::Immediate, DESCRIPTORS);
    bay.allow_log("descriptors");
    let below = bay.canonical("alice");
    for n in 0..FILES {
        fs::write(below.join(n.to_string()), "").expect("make a file below");
    }
    let bob = Bystander::beside(&bay);
    for flags in [0, libc::O_PATH] {
        let held = as_user(ALICE, &[], || hold(&dir, flags));
        println!("alice holds {} files, flags {flags:#x}", held.len());
        assert!(held.len() > 80, "a user has a fair share: {}", held.len());
        bob.is_not_disturbed(2);
        fs::write(bay.path("root"), "root's").expect("root writes");
        drop(held);
    }
    bob.was_not_disturbed();
    bay.finish();
}

/// Opens one file after the other until there are no more to be had.
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

/// S8.14: a walk over many more files than there are descriptors.
#[test]
fn find_over_more_files_than_descriptors() {
    let (bay, dir) = bay(Drain::Immediate, 4 * DESCRIPTORS);
    let below = bay.canonical("alice");
    for n in 0..FILES * 8 {
        if n % 400 == 0 {
            fs::create_dir(below.join(format!("d{}", n / 400))).expect("mkdir below");
        }
        let path = below.join(format!("d{}/{n}", n / 400));
        File::create(path).expect("make a file below");
    }
    let bob = Bystander::beside(&bay);
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
    bay.finish();
}
