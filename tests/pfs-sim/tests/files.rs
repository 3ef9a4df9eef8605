//! The namespace, and the other properties of a file system that programs rely on.

mod common;

use common::{Bench, KIB, errno, get_xattr, open, pattern, quick, read, same, set_xattr, write};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .expect("list")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    names
}

/// A change by one client is visible to another at once.
#[test]
fn clients_agree() {
    let bench = Bench::new(2, quick().osts(4).stripe("64K", 4));
    std::fs::create_dir(bench.at(0, "d")).expect("mkdir");
    let (a, b) = (open(&bench.at(0, "d/f")), open(&bench.at(1, "d/f")));
    let data = pattern(1, 300_000);
    write(&a, &data, 0);
    same("through the other", &read(&b, 300_000, 0), &data);
    assert_eq!(b.metadata().expect("stat").len(), 300_000);
    b.set_len(100).expect("cut");
    assert_eq!(a.metadata().expect("stat").len(), 100);
    b.set_len(1000).expect("grow");
    assert_eq!(read(&a, 2, 99), [data[99], 0]);
    std::fs::rename(bench.at(1, "d/f"), bench.at(1, "g")).expect("rename");
    assert_eq!(names(&bench.at(0, "d")), Vec::<String>::new());
    assert_eq!(names(&bench.at(0, "")), ["d", "g"]);
    std::fs::hard_link(bench.at(0, "g"), bench.at(0, "h")).expect("link");
    assert_eq!(
        std::fs::metadata(bench.at(1, "g")).expect("stat").nlink(),
        2
    );
}

/// If two clients create the same name at the same time, both get the file; with O_EXCL only one of
/// them does.
#[test]
fn creating_is_a_race_without_losers() {
    let bench = Bench::new(2, quick().osts(1));
    for round in 0..200 {
        for exclusive in [false, true] {
            let start = std::sync::Barrier::new(2);
            let opened: Vec<bool> = std::thread::scope(|scope| {
                let try_it = |mount: usize| {
                    let path = bench.at(mount, &format!("{round} {exclusive}"));
                    let start = &start;
                    move || {
                        let mut options = OpenOptions::new();
                        options.write(true).create(true).create_new(exclusive);
                        start.wait();
                        options.truncate(false).open(path).is_ok()
                    }
                };
                let threads = [scope.spawn(try_it(0)), scope.spawn(try_it(1))];
                threads.map(|t| t.join().expect("thread")).to_vec()
            });
            let winners = opened.iter().filter(|opened| **opened).count();
            assert_eq!(winners, if exclusive { 1 } else { 2 }, "round {round}");
        }
    }
}

/// Appends from two clients never overwrite each other.
#[test]
fn appends_do_not_meet() {
    let bench = Bench::new(2, quick().osts(2).stripe("64K", 2));
    std::thread::scope(|scope| {
        for mount in 0..2 {
            let path = bench.at(mount, "log");
            scope.spawn(move || {
                let mut log = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .expect("open");
                for i in 0..200 {
                    log.write_all(format!("{mount} {i:5}\n").as_bytes())
                        .expect("append");
                }
            });
        }
    });
    let text = std::fs::read_to_string(bench.path("log")).expect("read");
    for mount in 0..2 {
        let lines: Vec<&str> = text
            .lines()
            .filter(|l| l.starts_with(&format!("{mount} ")))
            .collect();
        let want: Vec<String> = (0..200).map(|i| format!("{mount} {i:5}")).collect();
        assert_eq!(lines, want);
    }
}

#[test]
fn attributes() {
    let bench = Bench::new(1, quick().osts(2));
    let path = bench.path("f");
    drop(open(&path));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("chmod");
    std::os::unix::fs::chown(&path, Some(12), Some(34)).expect("chown");
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    let times = std::fs::FileTimes::new()
        .set_accessed(time)
        .set_modified(time);
    open(&path).set_times(times).expect("utimes");
    let meta = std::fs::metadata(&path).expect("stat");
    assert_eq!(
        (meta.mode() & 0o7777, meta.uid(), meta.gid()),
        (0o640, 12, 34)
    );
    assert_eq!(
        (meta.mtime(), meta.mtime_nsec()),
        (1_000_000_000, 123_456_789)
    );
    set_xattr(&path, "user.colour", b"blue").expect("set");
    set_xattr(&path, "trusted.secret", b"x").expect("set");
    assert_eq!(get_xattr(&path, "user.colour").expect("get"), b"blue");
    assert_eq!(errno(get_xattr(&path, "user.other")), libc::ENODATA);
    // An ACL of version 2: the owner may read and write, the others may read.
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, rights) in [(1u16, 6u16), (4, 4), (32, 4)] {
        acl.extend(tag.to_le_bytes());
        acl.extend(rights.to_le_bytes());
        acl.extend(u32::MAX.to_le_bytes());
    }
    let refused = set_xattr(&path, "system.posix_acl_access", &acl);
    assert_eq!(errno(refused), libc::EOPNOTSUPP);
    symlink("f", bench.path("link")).expect("symlink");
    assert_eq!(
        std::fs::read_link(bench.path("link")).expect("readlink"),
        Path::new("f")
    );
    assert_eq!(
        std::fs::metadata(bench.path("link")).expect("stat").ino(),
        meta.ino()
    );
}

#[test]
fn holes_and_blocks() {
    let bench = Bench::new(1, quick().osts(3).stripe("64K", 3));
    let file = open(&bench.path("f"));
    write(&file, &[1; 4096], 0);
    write(&file, &[1; 100], 500 * KIB);
    let meta = file.metadata().expect("stat");
    assert_eq!((meta.len(), meta.blocks()), (500 * KIB + 100, 16));
    let seek = |offset: u64, whence: i32| {
        // SAFETY: takes a descriptor that lives as long as `file`, and numbers.
        unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) }
    };
    assert_eq!(seek(0, libc::SEEK_DATA), 0);
    assert_eq!(seek(0, libc::SEEK_HOLE), 4096);
    assert_eq!(seek(4096, libc::SEEK_DATA), 500 * KIB as i64);
    assert_eq!(seek(500 * KIB, libc::SEEK_HOLE), 500 * KIB as i64 + 100);
    assert_eq!(seek(501 * KIB, libc::SEEK_DATA), -1);
    assert_eq!(read(&file, 8, 400 * KIB), [0; 8]);
}

/// O_DIRECT is accepted for aligned and for unaligned requests.
#[test]
fn direct_writes() {
    let bench = Bench::new(1, quick().osts(2).stripe("64K", 2));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(bench.path("f"))
        .expect("open");
    write(&file, &pattern(1, 100_000), 0);
    write(&file, b"odd", 33_333);
    let mut want = pattern(1, 100_000);
    want[33_333..33_336].copy_from_slice(b"odd");
    same("direct", &read(&file, 100_000, 0), &want);
    file.sync_all().expect("fsync");
    let others = bench.sim.counters().expect("counters").total.others;
    assert_eq!(others, 2, "a sync asks every OST of the file");
}

/// With `--no-direct` opening with O_DIRECT is refused; a file that the open was to create exists
/// afterwards and is empty.
#[test]
fn no_direct_writes() {
    let bench = Bench::new(1, quick().osts(1).no_direct());
    assert!(bench.sim.config().expect("config").no_direct);
    let direct = |create: bool, name: &str| {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(create);
        options.custom_flags(libc::O_DIRECT).open(bench.path(name))
    };
    assert_eq!(errno(direct(true, "f")), libc::EINVAL);
    assert_eq!(names(&bench.path("")), ["f"]);
    assert_eq!(errno(direct(false, "f")), libc::EINVAL);
    let file = open(&bench.path("f"));
    assert_eq!(file.metadata().expect("stat").len(), 0);
    write(&file, b"through the cache", 0);
    drop(file);
    std::fs::remove_file(bench.path("f")).expect("unlink");
    common::wait_until("the space is free", || {
        bench.sim.counters().expect("counters").osts[0].used == 0
    });
}

/// Objects in files instead of memory behave the same.
#[test]
fn data_in_a_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let builder = quick().osts(2).stripe("64K", 2);
    let bench = Bench::new(1, builder.option("data", dir.path()));
    let file = open(&bench.path("f"));
    let data = pattern(5, 300_000);
    write(&file, &data, 1000);
    same("read back", &read(&file, 300_000, 1000), &data);
    assert_eq!(names(dir.path()), ["ost0000", "ost0001"]);
    assert_eq!(names(&dir.path().join("ost0000")).len(), 1);
    file.set_len(70_000).expect("cut");
    file.set_len(300_000).expect("grow");
    assert_eq!(read(&file, 4, 69_999), [data[68_999], 0, 0, 0]);
    drop(file);
    std::fs::remove_file(bench.path("f")).expect("unlink");
    common::wait_until("the objects are gone", || {
        names(&dir.path().join("ost0000")).is_empty()
    });
}

/// Many requests run on many OSTs at once, and none waits for an event loop. Each takes 100 ms; one
/// after the other they would take 15 s.
#[test]
fn many_osts_are_busy_at_once() {
    let bench = Bench::new(1, quick().osts(150).stripe("64K", 1).latency("100ms"));
    let files: Vec<_> = (0..150)
        .map(|i| open(&bench.path(&i.to_string())))
        .collect();
    let took = common::timed(|| {
        std::thread::scope(|scope| {
            for file in &files {
                scope.spawn(move || file.write_at(b"x", 0).expect("write"));
            }
        });
    });
    assert!(took.as_secs_f64() < 3.0, "{took:?}");
}

/// Makes many names and removes them while their directories are being listed; all space becomes
/// free.
#[test]
fn a_tree_comes_and_goes() {
    let bench = Bench::new(1, quick().osts(2));
    let dir = bench.path("d");
    for i in 0..30 {
        let sub = dir.join(format!("{i}/x"));
        std::fs::create_dir_all(&sub).expect("mkdir");
        for j in 0..20 {
            std::fs::write(sub.join(j.to_string()), pattern(j, 100)).expect("write");
        }
    }
    std::fs::remove_dir_all(&dir).expect("remove all");
    assert_eq!(names(&bench.path("")), Vec::<String>::new());
    common::wait_until("all space is free", || {
        bench
            .sim
            .counters()
            .expect("counters")
            .osts
            .iter()
            .all(|o| o.used == 0)
    });
}
