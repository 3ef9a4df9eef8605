//! A store that is too small, a backing that is full, and disks that break.

use forebay_tests::loopfs::LoopFs;
use forebay_tests::rng::Rng;
use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use forebay_tests::wait::{LONG, wait_until};
use std::fs;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Sets a store of 64 MiB, and a drain too slow to matter.
fn small(mount: &mut TestMount) {
    mount.set("store-size", "64MiB");
    mount.set("segment-size", "4MiB");
    mount.set("drain-rate", "64KiB");
    mount.set_number("user-share", 1.0);
}

/// S7, S7.1, S7.4: three times the store's size is written; every byte is there, in order.
#[test]
fn a_full_store_writes_through() {
    let mut mount = TestMount::new(Drain::Never);
    small(&mut mount);
    mount.start();
    let mut rng = Rng::new(1);
    let mut want = rng.bytes(192 * MIB as usize);
    let file = open_rw(mount.path("f"));
    for (i, piece) in want.chunks(MIB as usize).enumerate() {
        sys::write_all_at(&file, piece, i as u64 * MIB).expect("a write");
    }
    let status = mount.status();
    assert!(status.number("/bytes/through") > 64 * MIB, "{:#}", status.0);
    assert!(status.undrained() <= 64 * MIB, "{:#}", status.0);
    assert!(
        status.number("/store/capacity") <= 64 * MIB,
        "{:#}",
        status.0
    );
    // Bytes in both tiers are overwritten, with small and unaligned writes: the newest must win in each.
    for _ in 0..500 {
        let len = rng.size(20_000) as usize;
        let at = rng.below(192 * MIB - len as u64) as usize;
        rng.fill(&mut want[at..at + len]);
        sys::write_all_at(&file, &want[at..at + len], at as u64).expect("an overwrite");
    }
    file.sync_all().expect("fsync");
    assert_same("through the mount", &get(mount.path("f")), &want);
    mount.kill();
    mount.set("drain-rate", "0");
    mount.start();
    assert_same("after a crash", &get(mount.path("f")), &want);
    mount.umount();
    assert_same("canonical", &get(mount.canonical("f")), &want);
    mount.finish();
}

/// S7.1: truncate, punch and remove work in a full store, and give room back.
#[test]
fn a_full_store_still_takes_everything_else() {
    let mut mount = TestMount::new(Drain::Never);
    small(&mut mount);
    mount.start();
    let file = open_rw(mount.path("f"));
    for i in 0..96 {
        sys::write_all_at(&file, &[1; MIB as usize], i * MIB).expect("write");
    }
    sys::fallocate(&file, sys::PUNCH, MIB / 2, MIB).expect("punch");
    file.set_len(90 * MIB + 5).expect("truncate");
    fs::create_dir(mount.path("d")).expect("mkdir");
    fs::rename(mount.path("f"), mount.path("d/f")).expect("rename");
    let mut want = vec![1; 90 * MIB as usize + 5];
    want[MIB as usize / 2..3 * MIB as usize / 2].fill(0);
    assert_same("f", &get(mount.path("d/f")), &want);
    drop(file);
    fs::remove_file(mount.path("d/f")).expect("unlink");
    wait_until("the room is given back", LONG, || {
        (mount.status().undrained() == 0).then_some(())
    });
    let before = mount.status().number("/bytes/through");
    put(mount.path("g"), vec![2; 8 * MIB as usize]);
    wait_until("writes are absorbed again", LONG, || {
        put(mount.path("g"), vec![2; 8 * MIB as usize]);
        let status = mount.status();
        (status.undrained() == 8 * MIB && status.number("/bytes/through") >= before).then_some(())
    });
    mount.kill();
}

/// S7.3, S7.4: above the high watermark a write takes longer, and more so the fuller it is.
#[test]
fn the_high_watermark_slows_writers() {
    let mut mount = TestMount::new(Drain::Never);
    small(&mut mount);
    mount.set("store-size", "256MiB");
    mount.set_number("high-watermark", 0.5);
    mount.start();
    let file = open_rw(mount.path("f"));
    let data = vec![1; MIB as usize];
    let mut took = Vec::new();
    for i in 0..240 {
        let start = Instant::now();
        sys::write_all_at(&file, &data, i * MIB).expect("write");
        took.push(start.elapsed());
    }
    // Other load of the machine makes single writes slower, and none faster.
    let least = |part: &[Duration]| *part.iter().min().expect("some");
    let (calm, slowed) = (least(&took[20..100]), least(&took[160..220]));
    assert!(
        slowed > calm * 2,
        "calm {calm:?}, above the watermark {slowed:?}"
    );
    assert!(
        slowed < Duration::from_secs(2),
        "slowed, not stopped: {slowed:?}"
    );
    let status = mount.status();
    assert_eq!(status.number("/store/high_watermark"), 128 * MIB);
    assert!(status.undrained() > 128 * MIB);
    mount.kill();
}

/// S7.2: the backing is full and the store has room: the job sees nothing, and the drain fails. S6.2: the drain
/// error sticks, shows in `status`, comes out of fsync, and goes when there is room again.
#[test]
fn a_full_backing_shows_as_a_sticky_error() {
    let mut mount = TestMount::new(Drain::Immediate);
    let fs = LoopFs::new(
        &mount.root().join("img"),
        &mount.root().join("loop"),
        72 * MIB,
    );
    mount.set_backing(fs.dir());
    mount.allow_log("No space left");
    mount.allow_log("ENOSPC");
    mount.start();
    put(fs.dir().join("ballast"), vec![0; 44 * MIB as usize]);
    let want = Rng::new(2).bytes(40 * MIB as usize);
    let file = open_rw(mount.path("f"));
    for (i, piece) in want.chunks(MIB as usize).enumerate() {
        sys::write_all_at(&file, piece, i as u64 * MIB).expect("the store has room");
    }
    wait_until("status shows the error", LONG, || {
        (!mount.status().errors().is_empty()).then_some(())
    });
    // Starting a program closes its copy of the descriptor, as happens in jobs all the time: that close must not use
    // up the error of this handle.
    let e = errno(file.sync_all(), "fsync");
    assert_eq!(e, libc::ENOSPC);
    let path = mount.path("f");
    let drain = ["drain", path.to_str().expect("plain"), "--timeout", "20s"];
    let out = mount.run(drain);
    assert_eq!(out.status.code(), Some(1), "drain failed: {}", text(&out));
    assert_same("nothing is lost", &get(mount.path("f")), &want);
    fs::remove_file(fs.dir().join("ballast")).expect("make room");
    wait_until(
        "the drain tries again by itself",
        Duration::from_secs(90),
        || {
            let status = mount.status();
            (status.undrained() == 0 && status.errors().is_empty()).then_some(())
        },
    );
    file.sync_all().expect("fsync is fine again");
    drop(file);
    mount.umount();
    assert_same("canonical", &get(fs.dir().join("f")), &want);
    drop(fs);
    mount.finish();
}

/// S7.2: store and backing full: the job sees the backing's ENOSPC and nothing else.
#[test]
fn when_both_are_full_the_job_sees_the_backings_error() {
    let mut mount = TestMount::new(Drain::Never);
    small(&mut mount);
    let fs = LoopFs::new(
        &mount.root().join("img"),
        &mount.root().join("loop"),
        64 * MIB,
    );
    mount.set_backing(fs.dir());
    mount.allow_log("No space left");
    mount.allow_log("ENOSPC");
    mount.start();
    let file = open_rw(mount.path("f"));
    let mut written = 0;
    let error = loop {
        match sys::write_all_at(&file, &[1; MIB as usize], written) {
            Ok(()) => written += MIB,
            Err(e) => break e,
        }
        assert!(written < 300 * MIB, "more was taken than there is room");
    };
    // The backing may have cut the last write short, as POSIX allows.
    let short = error.to_string().contains("short write");
    assert!(
        short || error.raw_os_error() == Some(libc::ENOSPC),
        "{error}"
    );
    assert!(written >= 64 * MIB, "only {} MiB were taken", written / MIB);
    let seen = sys::read_at(&file, 0, written as usize).expect("read");
    assert_same("what was acknowledged", &seen, &vec![1; written as usize]);
    fs::remove_file(mount.path("f")).expect("remove");
    drop(file);
    wait_until("there is room again", LONG, || {
        std::fs::write(mount.path("g"), vec![2; MIB as usize]).ok()
    });
    mount.kill();
    drop(fs);
}

/// S7.6: the store's disk dies. New data is written through; data that only the store had is EIO.
#[test]
fn a_broken_store_lets_the_mount_go_on() {
    let mut mount = TestMount::new(Drain::Never);
    let disk = LoopFs::new(
        &mount.root().join("img"),
        &mount.root().join("loop"),
        256 * MIB,
    );
    let store = disk.dir().join("store");
    mount.set_store(&store);
    mount.set("store-size", "128MiB");
    mount.allow_log("");
    put(mount.canonical("old"), vec![1; 100_000]);
    mount.start();
    put(mount.path("lost"), vec![2; 100_000]);
    disk.break_down().expect("break the store's disk");
    assert_same("canonical data", &get(mount.path("old")), &[1; 100_000]);
    // The first write may be the one that finds the failure; after it the file goes on through the backing.
    let file = open_rw(mount.path("new"));
    for i in 0..8 {
        sys::write_all_at(&file, &[3; 50_000], i * 50_000).expect("written through");
    }
    assert_same("new data", &get(mount.path("new")), &[3; 400_000]);
    assert_same(
        "is in the backing",
        &get(mount.canonical("new")),
        &[3; 400_000],
    );
    let e = errno(
        std::fs::read(mount.path("lost")),
        "read what the store alone had",
    );
    assert_eq!(e, libc::EIO);
    let status = mount.status();
    let failure = status.at("/store/failure");
    assert!(failure.is_string(), "status says so: {:#}", status.0);
    drop(file);
    mount.kill();
    drop(disk);
}

/// S5.3: a byte of the log is flipped; the record is not served, not drained, and is reported.
#[test]
fn a_damaged_record_is_never_served() {
    let mut mount = TestMount::new(Drain::Never);
    mount.allow_log("checksum");
    mount.allow_log("damaged");
    mount.start();
    let marker = Rng::new(3).bytes(65_536);
    put(mount.path("good"), vec![1; 10_000]);
    put(mount.path("bad"), &marker);
    mount.umount_with(&["--keep"]);
    assert!(
        flip(mount.store(), &marker[..64]),
        "the bytes are in some segment"
    );
    mount.start();
    let e = errno(std::fs::read(mount.path("bad")), "read the damaged bytes");
    assert_eq!(e, libc::EIO);
    assert_eq!(get(mount.path("good")), vec![1; 10_000]);
    let out = mount.run([
        "drain".as_ref(),
        mount.mnt().as_os_str(),
        "--timeout=20s".as_ref(),
    ]);
    assert!(!out.status.success(), "{}", text(&out));
    assert!(!mount.status().errors().is_empty(), "status reports it");
    let canonical = get(mount.canonical("bad"));
    let zeros = canonical.iter().all(|b| *b == 0);
    assert!(zeros, "damaged bytes were drained");
    mount.umount_with(&["--keep"]);
    let out = mount.run([
        "recover".as_ref(),
        "--store".as_ref(),
        mount.store().as_os_str(),
        "--backing".as_ref(),
        mount.backing().as_os_str(),
    ]);
    assert_eq!(out.status.code(), Some(6), "{}", text(&out));
    assert!(text(&out).contains("bad"), "{}", text(&out));
    mount.finish();
}

/// Inverts one byte where `needle` is found below `dir`.
fn flip(dir: &std::path::Path, needle: &[u8]) -> bool {
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("list the store");
            todo.extend(entries.map(|entry| entry.expect("entry").path()));
            continue;
        }
        let mut data = get(&path);
        if let Some(at) = data
            .windows(needle.len())
            .position(|window| window == needle)
        {
            data[at + 7] ^= 0xff;
            sys::write_all_at(&open_rw(&path), &data[at..at + 8], at as u64).expect("damage it");
            return true;
        }
    }
    false
}
