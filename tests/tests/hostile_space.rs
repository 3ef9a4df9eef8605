//! One user fills the store with data that cannot be drained; another user must not notice.

use forebay_tests::bystander::Bystander;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, open_rw};
use forebay_tests::users::{ALICE, BOB, as_user};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn directory(mount: &TestMount, name: &str, uid: u32) -> PathBuf {
    let dir = mount.path(name);
    fs::create_dir_all(&dir).expect("mkdir");
    chown(&dir, Some(uid), Some(uid)).expect("chown");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    dir
}

/// Finds the largest size of a file in the backing, by asking the backing itself.
fn largest(mount: &TestMount) -> u64 {
    let path = mount.canonical("probe");
    let file = File::create(&path).expect("create");
    let (mut good, mut bad) = (0u64, i64::MAX as u64);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match file.set_len(middle) {
            Ok(()) => good = middle,
            Err(_) => bad = middle,
        }
    }
    fs::remove_file(path).expect("unlink");
    good
}

/// S7.2: a write fails only with an error of the backing itself, and fails at once: data beyond the largest file
/// size of the backing is refused with EFBIG by write, append, truncate and fallocate, whether the file is clean or
/// dirty. Data that just fits is taken and drained.
#[test]
fn what_is_too_large_for_the_backing_is_refused() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    let limit = largest(&mount);
    assert!(limit < i64::MAX as u64, "the disk of the tests has a limit");
    let bystander = Bystander::beside(&mount);
    let dir = directory(&mount, "alice", ALICE);
    as_user(ALICE, &[], || {
        let too_big = |done: std::io::Result<()>, what: &str| {
            assert_eq!(sys::errno(done, what), libc::EFBIG, "{what}");
        };
        for dirty in [false, true] {
            let file = open_rw(dir.join(format!("dirty-{dirty}")));
            if dirty {
                file.write_all_at(b"x", 0).expect("write");
            }
            too_big(file.write_at(b"y", limit).map(drop), "write");
            too_big(file.write_at(&[1; 4096], limit - 1).map(drop), "write over");
            too_big(file.set_len(limit + 1), "ftruncate");
            let far = limit - 4096;
            too_big(sys::fallocate(&file, 0, far, 8192), "fallocate");
            let zero = libc::FALLOC_FL_ZERO_RANGE;
            too_big(sys::fallocate(&file, zero, far, 8192), "zero range");
            let size = file.metadata().expect("stat").len();
            assert_eq!(size, u64::from(dirty), "nothing of that happened");
        }
        let path = dir.join("fits");
        let file = open_rw(&path);
        file.write_all_at(b"last", limit - 4).expect("what fits");
        too_big(sys::truncate(&path, limit + 1), "truncate");
        let append = fs::OpenOptions::new().append(true).open(&path);
        let append = append.expect("open");
        too_big(sys::append_once(&append, b"z"), "append");
    });
    bystander.was_not_disturbed();
    mount.drain();
    let mut last = [0; 4];
    let below = File::open(mount.canonical("alice/fits")).expect("open");
    below.read_exact_at(&mut last, limit - 4).expect("read");
    assert_eq!(&last, b"last");
    let status = mount.status();
    assert_eq!(status.0["bytes"]["undrained"], 0, "{}", status.0);
    mount.finish();
}

/// A file below that no process can change until this is dropped.
struct Immutable(PathBuf);

impl Immutable {
    fn new(path: &Path) -> Self {
        change_attributes("+i", path);
        Self(path.into())
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        change_attributes("-i", &self.0);
    }
}

fn change_attributes(how: &str, path: &Path) {
    forebay_tests::prereq::program("chattr", "e2fsprogs");
    let done = Command::new("chattr").arg(how).arg(path).status();
    assert!(done.is_ok_and(|status| status.success()), "chattr {how}");
}

/// S7.8: a user whose share is full of data that cannot be drained is slowed. Other users are not slowed, and their
/// data is not drained to make room.
#[test]
fn undrainable_data_slows_no_other_user() {
    let mut mount = TestMount::new(Drain::Never);
    mount
        .set("store-size", "128MiB")
        .set("segment-size", "2MiB");
    for line in ["drain", "Operation not permitted"] {
        mount.allow_log(line);
    }
    mount.start();
    let dir = directory(&mount, "alice", ALICE);
    let path = dir.join("stuck");
    let stuck = as_user(ALICE, &[], || open_rw(&path));
    let below = Immutable::new(&mount.canonical("alice/stuck"));
    as_user(ALICE, &[], || {
        for n in 0..128 {
            // Beyond the user's share writes go through to the backing, which refuses them.
            if stuck.write_all_at(&[7; MIB as usize], n * MIB).is_err() {
                return;
            }
        }
        panic!("a user took all of the store");
    });
    let space = |key: &str| mount.status().0["store"][key].as_u64().expect(key);
    assert!(
        space("used") > space("high_watermark"),
        "the store is above its watermark: {}",
        mount.status().0["store"]
    );

    let bystander = Bystander::beside(&mount);
    bystander.is_not_disturbed(3);
    let dir = directory(&mount, "bob-too", BOB);
    let took = as_user(BOB, &[], || {
        let file = open_rw(dir.join("f"));
        let began = Instant::now();
        for n in 0..1000 {
            file.write_all_at(&[1; 4096], n * 4096).expect("write");
        }
        began.elapsed()
    });
    assert!(took < Duration::from_secs(2), "1000 writes took {took:?}");
    // The drain looks for work several times meanwhile.
    bystander.is_not_disturbed(5);
    let drained = std::fs::metadata(mount.canonical("bob-too/f")).expect("stat below");
    assert_eq!(drained.len(), 0, "drain = never holds for others");
    bystander.was_not_disturbed();

    drop(below);
    drop(stuck);
    mount.drain();
    mount.finish();
}
