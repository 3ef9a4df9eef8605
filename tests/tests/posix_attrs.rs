//! Tests of attributes: modes, owners, times, extended attributes, locks, space.

use forebay_tests::rng::Rng;
use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{Drain, TestMount, get, open_rw, put};
use forebay_tests::users::{ALICE, as_user};
use forebay_tests::wait::{LONG, wait_until};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Runs a test on a mount of its own. Files that the test still holds open are closed before unmounting.
fn with(test: impl FnOnce(&mut TestMount)) {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    test(&mut mount);
    mount.finish();
}

const SECOND: i64 = 1_000_000_000;

/// S1.11: chmod and chown are in the backing at once.
#[test]
fn mode_and_owner() {
    with(|mount| {
        put(mount.path("f"), b"x");
        for mode in [0o600, 0o755, 0o444, 0o000] {
            fs::set_permissions(mount.path("f"), fs::Permissions::from_mode(mode)).expect("chmod");
            for path in [mount.path("f"), mount.canonical("f")] {
                assert_eq!(fs::metadata(path).expect("stat").mode() & 0o7777, mode);
            }
        }
        std::os::unix::fs::chown(mount.path("f"), Some(12), Some(34)).expect("chown");
        for path in [mount.path("f"), mount.canonical("f")] {
            let meta = fs::metadata(path).expect("stat");
            assert_eq!((meta.uid(), meta.gid()), (12, 34));
        }
    });
}

/// S1.3: a write moves mtime and ctime, a read does not.
#[test]
fn times_move_with_changes() {
    with(|mount| {
        let file = open_rw(mount.path("f"));
        let old = 1_000_000_000 * SECOND;
        let stamp = || {
            let meta = file.metadata().expect("stat");
            (sys::mtime(&meta), meta.ctime() * SECOND + meta.ctime_nsec())
        };
        let reset = || {
            sys::set_times(&mount.path("f"), old, old).expect("utimensat");
            let (mtime, ctime) = stamp();
            assert_eq!(mtime, old);
            ctime
        };
        let expect_moved = |what: &str, before: i64| {
            let (mtime, ctime) = stamp();
            assert!(mtime > old, "{what}: mtime did not move");
            assert!(ctime >= before, "{what}: ctime went back");
        };
        let before = reset();
        sys::write_all_at(&file, &[1; 9000], 0).expect("write");
        expect_moved("write", before);
        let before = reset();
        file.set_len(5000).expect("truncate");
        expect_moved("truncate", before);
        let before = reset();
        sys::fallocate(&file, sys::PUNCH, 0, 100).expect("punch");
        expect_moved("punch", before);
        reset();
        assert_eq!(get(mount.path("f")).len(), 5000);
        assert_eq!(stamp().0, old, "a read is no change");
    });
}

/// S1.3, S4.3: the time set by hand outlives the drain, to the nanosecond.
#[test]
fn explicit_times_survive_the_drain() {
    for drain in Drain::ALL {
        let mut mount = TestMount::new(drain);
        mount.start();
        let file = open_rw(mount.path("f"));
        sys::write_all_at(&file, &Rng::new(1).bytes(300_000), 0).expect("write");
        let time = 1_234_567_890 * SECOND + 123_456_789;
        sys::set_times(&mount.path("f"), time, time).expect("utimensat");
        drop(file);
        let shown = || sys::mtime(&fs::metadata(mount.path("f")).expect("stat"));
        assert_eq!(shown(), time, "{drain:?}: before the drain");
        mount.drain();
        assert_eq!(shown(), time, "{drain:?}: after the drain");
        mount.umount();
        let meta = fs::metadata(mount.canonical("f")).expect("stat");
        assert_eq!(sys::mtime(&meta), time, "{drain:?}: in the backing");
        mount.finish();
    }
}

/// S4.3: mtime of the canonical file is the time of the write, not of the drain.
#[test]
fn the_drain_keeps_the_time_of_the_write() {
    with(|mount| {
        put(mount.path("f"), vec![1; 100_000]);
        let seen = sys::mtime(&fs::metadata(mount.path("f")).expect("stat"));
        mount.drain();
        let after = sys::mtime(&fs::metadata(mount.path("f")).expect("stat"));
        assert_eq!(after, seen, "through the mount");
        mount.umount();
        let meta = fs::metadata(mount.canonical("f")).expect("stat");
        assert_eq!(sys::mtime(&meta), seen, "in the backing");
    });
}

/// S1.14: extended attributes can be created, replaced, removed and listed, and the errors are the right ones.
#[test]
fn extended_attributes() {
    with(|mount| {
        let path = mount.path("f");
        put(&path, b"x");
        let none = errno(sys::get_xattr(&path, "user.a"), "get");
        assert_eq!(none, libc::ENODATA);
        sys::set_xattr(&path, "user.a", b"1", libc::XATTR_CREATE).expect("create");
        let again = sys::set_xattr(&path, "user.a", b"2", libc::XATTR_CREATE);
        assert_eq!(errno(again, "create twice"), libc::EEXIST);
        let other = sys::set_xattr(&path, "user.b", b"2", libc::XATTR_REPLACE);
        assert_eq!(errno(other, "replace none"), libc::ENODATA);
        sys::set_xattr(&path, "user.a", b"two", libc::XATTR_REPLACE).expect("replace");
        sys::set_xattr(&path, "user.empty", b"", 0).expect("empty value");
        let mut names = sys::list_xattr(&path).expect("list");
        names.sort();
        assert_eq!(names, ["user.a", "user.empty"]);
        assert_eq!(
            sys::get_xattr(&mount.canonical("f"), "user.a").expect("get"),
            b"two"
        );
        sys::remove_xattr(&path, "user.a").expect("remove");
        let gone = errno(sys::remove_xattr(&path, "user.a"), "remove twice");
        assert_eq!(gone, libc::ENODATA);
    });
}

/// S1.18: `statfs` shows the backing's space, not the store's.
#[test]
fn statfs_is_the_backings() {
    with(|mount| {
        let seen = nix::sys::statvfs::statvfs(mount.mnt()).expect("statfs");
        let real = nix::sys::statvfs::statvfs(mount.backing()).expect("statfs");
        assert_eq!(
            seen.blocks() * seen.fragment_size(),
            real.blocks() * real.fragment_size()
        );
        assert_eq!(seen.name_max(), 255);
    });
}

/// S1.18: access(2) goes by the caller's rights.
#[test]
fn access_follows_rights() {
    use nix::unistd::{AccessFlags, access};
    with(|mount| {
        put(mount.path("f"), b"x");
        fs::set_permissions(mount.path("f"), fs::Permissions::from_mode(0o640)).expect("chmod");
        access(&mount.path("f"), AccessFlags::R_OK | AccessFlags::W_OK).expect("root may");
        let denied = access(&mount.path("f"), AccessFlags::X_OK);
        assert_eq!(denied, Err(nix::Error::EACCES), "no user may execute it");
        let alice = as_user(ALICE, &[], || access(&mount.path("f"), AccessFlags::R_OK));
        assert_eq!(alice, Err(nix::Error::EACCES));
    });
}

fn fcntl_lock(file: &File, command: i32, kind: i32, range: (i64, i64)) -> std::io::Result<()> {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: range.0,
        l_len: range.1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open and `lock` is the structure these commands read.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// S1.7: open-file-description locks exclude by range.
#[test]
fn fcntl_locks_by_range() {
    with(|mount| {
        let (one, two) = (open_rw(mount.path("f")), open_rw(mount.path("f")));
        let lock = |file: &File, kind, range| fcntl_lock(file, libc::F_OFD_SETLK, kind, range);
        lock(&one, libc::F_WRLCK, (0, 100)).expect("lock");
        lock(&two, libc::F_WRLCK, (100, 100)).expect("lock beside it");
        let e = errno(lock(&two, libc::F_RDLCK, (50, 10)), "lock inside it");
        assert!(e == libc::EAGAIN || e == libc::EACCES, "errno {e}");
        lock(&one, libc::F_UNLCK, (40, 30)).expect("unlock a piece");
        lock(&two, libc::F_RDLCK, (50, 10)).expect("lock what is free now");
        let e = errno(lock(&two, libc::F_RDLCK, (30, 15)), "lock what is not");
        assert!(e == libc::EAGAIN || e == libc::EACCES, "errno {e}");
        drop(one);
        // A close does not wait for locks to be released.
        wait_until("closing released the rest", LONG, || {
            lock(&two, libc::F_WRLCK, (0, 0)).ok()
        });
    });
}

/// S1.7: a process lock excludes another process.
#[test]
fn fcntl_process_locks() {
    with(|mount| {
        let file = open_rw(mount.path("f"));
        fcntl_lock(&file, libc::F_SETLK, libc::F_WRLCK, (0, 0)).expect("lock");
        let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\n\
                  try: fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB)\n\
                  except OSError: sys.exit(7)\n";
        let other = || {
            let mut python = std::process::Command::new("python3");
            let status = python.args(["-c", script]).arg(mount.path("f")).status();
            status.expect("python3 is missing; install it: apt-get install python3")
        };
        assert_eq!(other().code(), Some(7), "the other process must not get it");
        fcntl_lock(&file, libc::F_SETLK, libc::F_UNLCK, (0, 0)).expect("unlock");
        assert_eq!(other().code(), Some(0), "now it must");
    });
}

/// S1.7: flock locks exclude each other, shared and exclusive.
#[test]
fn flock_excludes() {
    with(|mount| {
        let (one, two) = (open_rw(mount.path("f")), open_rw(mount.path("f")));
        one.lock_shared().expect("share");
        two.try_lock_shared().expect("share");
        one.try_lock().expect_err("the other still shares");
        two.unlock().expect("unlock");
        one.try_lock().expect("alone now");
        two.try_lock_shared().expect_err("the other has it");
        drop(one);
        wait_until("closing released it", LONG, || two.try_lock().ok());
    });
}

/// S1.7: many threads wait for one lock, and the mount still answers all other requests.
#[test]
fn waiting_for_locks_stops_nobody() {
    with(|mount| {
        let holder = open_rw(mount.path("f"));
        holder.lock().expect("lock");
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            for i in 0..40 {
                let (tell, path) = (tell.clone(), mount.path("f"));
                scope.spawn(move || {
                    let file = open_rw(path);
                    if i % 2 == 0 {
                        file.lock().expect("wait for flock");
                    } else {
                        let wait = fcntl_lock(&file, libc::F_OFD_SETLKW, libc::F_WRLCK, (0, 10));
                        wait.expect("wait for fcntl");
                    }
                    tell.send(i).expect("tell");
                });
            }
            for i in 0..50 {
                put(mount.path(format!("other-{i}")), vec![1; 100_000]);
                assert_eq!(get(mount.path(format!("other-{i}"))).len(), 100_000);
            }
            // With `locks = shared` the fcntl waiters are stuck behind `holder`, too; on a local file system they
            // take turns.
            let early: Vec<i32> = told.try_iter().collect();
            assert!(early.iter().all(|i| i % 2 == 1), "a flock was given twice");
            holder.unlock().expect("unlock");
            for _ in early.len()..40 {
                told.recv_timeout(Duration::from_secs(60))
                    .expect("a waiter");
            }
        });
    });
}

/// S1.7: a signal ends the wait for a lock.
#[test]
fn waiting_for_a_lock_can_be_interrupted() {
    with(|mount| {
        let holder = open_rw(mount.path("f"));
        holder.lock().expect("lock");
        let mut waiter = std::process::Command::new("flock")
            .arg(mount.path("f"))
            .arg("true")
            .spawn()
            .expect("flock is missing; install it: apt-get install util-linux");
        let stack = format!("/proc/{}/wchan", waiter.id());
        forebay_tests::wait_until("the waiter waits", Duration::from_secs(30), || {
            let at = fs::read_to_string(&stack).unwrap_or_default();
            (at.contains("fuse") || at.contains("request") || at.contains("lock")).then_some(())
        });
        waiter.kill().expect("kill");
        waiter.wait().expect("a killed waiter ends");
        holder.unlock().expect("unlock");
        open_rw(mount.path("f"))
            .try_lock()
            .expect("the dead waiter holds nothing");
    });
}

/// S1.2, S1.11: the mount shows attributes of a file that another client changed in the backing.
#[test]
fn changes_in_the_backing_show() {
    with(|mount| {
        put(mount.canonical("f"), vec![1; 1000]);
        assert_eq!(fs::metadata(mount.path("f")).expect("stat").len(), 1000);
        put(mount.canonical("f"), vec![2; 2000]);
        forebay_tests::wait_until("the new size shows", Duration::from_secs(30), || {
            (fs::metadata(mount.path("f")).expect("stat").len() == 2000).then_some(())
        });
        assert_eq!(get(mount.path("f")), vec![2; 2000]);
    });
}
