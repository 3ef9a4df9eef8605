//! A store that is too small, a backing that is full, and disks that break.

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put, text};
use forebay_tests::loopfs::LoopFs;
use forebay_tests::rng::Rng;
use forebay_tests::sys::{self, errno};
use forebay_tests::wait::{LONG, wait_until};
use std::fs;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// 64 MiB, and a drain too slow to matter.
fn small(bay: &mut Bay) {
    bay.set("store-size", "64MiB");
    bay.set("segment-size", "4MiB");
    bay.set("drain-rate", "64KiB");
    bay.set_number("user-share", 1.0);
}

/// S7, S7.1, S7.4: three times the store's size is written; every byte is there, in order.
#[test]
fn a_full_store_writes_through() {
    let mut bay = Bay::new(Drain::Never);
    small(&mut bay);
    bay.start();
    let mut rng = Rng::new(1);
    let mut want = rng.bytes(192 * MIB as usize);
    let file = open_rw(bay.path("f"));
    for (i, piece) in want.chunks(MIB as usize).enumerate() {
        sys::write_all_at(&file, piece, i as u64 * MIB).expect("a write");
    }
    let status = bay.status();
    assert!(status.number("/bytes/through") > 64 * MIB, "{:#}", status.0);
    assert!(status.undrained() <= 64 * MIB, "{:#}", status.0);
    assert!(
        status.number("/store/capacity") <= 64 * MIB,
        "{:#}",
        status.0
    );
    // Overwrites of bytes in both tiers, small and unaligned: the newest must win in each.
    for _ in 0..500 {
        let len = rng.size(20_000) as usize;
        let at = rng.below(192 * MIB - len as u64) as usize;
        rng.fill(&mut want[at..at + len]);
        sys::write_all_at(&file, &want[at..at + len], at as u64).expect("an overwrite");
    }
    file.sync_all().expect("fsync");
    assert_same("through the mount", &get(bay.path("f")), &want);
    bay.kill();
    bay.set("drain-rate", "0");
    bay.start();
    assert_same("after a crash", &get(bay.path("f")), &want);
    bay.umount();
    assert_same("canonical", &get(bay.canonical("f")), &want);
    bay.finish();
}

/// S7.1: truncate, punch and remove work in a full store, and give room back.
#[test]
fn a_full_store_still_takes_everything_else() {
    let mut bay = Bay::new(Drain::Never);
    small(&mut bay);
    bay.start();
    let file = open_rw(bay.path("f"));
    for i in 0..96 {
        sys::write_all_at(&file, &[1; MIB as usize], i * MIB).expect("write");
    }
    sys::fallocate(&file, sys::PUNCH, MIB / 2, MIB).expect("punch");
    file.set_len(90 * MIB + 5).expect("truncate");
    fs::create_dir(bay.path("d")).expect("mkdir");
    fs::rename(bay.path("f"), bay.path("d/f")).expect("rename");
    let mut want = vec![1; 90 * MIB as usize + 5];
    want[MIB as usize / 2..3 * MIB as usize / 2].fill(0);
    assert_same("f", &get(bay.path("d/f")), &want);
    drop(file);
    fs::remove_file(bay.path("d/f")).expect("unlink");
    wait_until("the room is given back", LONG, || {
        (bay.status().undrained() == 0).then_some(())
    });
    let before = bay.status().number("/bytes/through");
    put(bay.path("g"), vec![2; 8 * MIB as usize]);
    wait_until("writes are absorbed again", LONG, || {
        put(bay.path("g"), vec![2; 8 * MIB as usize]);
        let status = bay.status();
        (status.undrained() == 8 * MIB && status.number("/bytes/through") >= before).then_some(())
    });
    bay.kill();
}

/// S7.3, S7.4: above the high watermark a write takes longer, and more so the fuller it is.
#[test]
fn the_high_watermark_slows_writers() {
    let mut bay = Bay::new(Drain::Never);
    small(&mut bay);
    bay.set("store-size", "256MiB");
    bay.set_number("high-watermark", 0.5);
    bay.start();
    let file = open_rw(bay.path("f"));
    let data = vec![1; MIB as usize];
    let mut took = Vec::new();
    for i in 0..240 {
        let start = Instant::now();
        sys::write_all_at(&file, &data, i * MIB).expect("write");
        took.push(start.elapsed());
    }
    // Whatever else the machine does makes single ones slower, and none faster.
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
    let status = bay.status();
    assert_eq!(status.number("/store/high_watermark"), 128 * MIB);
    assert!(status.undrained() > 128 * MIB);
    bay.kill();
}

/// S7.2: the backing is full and the store has room: the job sees nothing, the drain does.
/// S6.2: its error sticks, shows, comes out of fsync, and goes when there is room again.
#[test]
fn a_full_backing_shows_as_a_sticky_error() {
    let mut bay = Bay::new(Drain::Immediate);
    let fs = LoopFs::new(&bay.root().join("img"), &bay.root().join("loop"), 72 * MIB);
    bay.set_backing(fs.dir());
    bay.allow_log("No space left");
    bay.allow_log("ENOSPC");
    bay.start();
    put(fs.dir().join("ballast"), vec![0; 44 * MIB as usize]);
    let want = Rng::new(2).bytes(40 * MIB as usize);
    let file = open_rw(bay.path("f"));
    for (i, piece) in want.chunks(MIB as usize).enumerate() {
        sys::write_all_at(&file, piece, i as u64 * MIB).expect("the store has room");
    }
    wait_until("status shows the error", LONG, || {
        (!bay.status().errors().is_empty()).then_some(())
    });
    // Starting a program closes its copy of the descriptor, as jobs do all the time: that close
    // must not use up the error of this handle.
    let e = errno(file.sync_all(), "fsync");
    assert_eq!(e, libc::ENOSPC);
    let path = bay.path("f");
    let drain = ["drain", path.to_str().expect("plain"), "--timeout", "20s"];
    let out = bay.run(drain);
    assert_eq!(out.status.code(), Some(1), "drain failed: {}", text(&out));
    assert_same("nothing is lost", &get(bay.path("f")), &want);
    fs::remove_file(fs.dir().join("ballast")).expect("make room");
    wait_until(
        "the drain tries again by itself",
        Duration::from_secs(90),
        || {
            let status = bay.status();
            (status.undrained() == 0 && status.errors().is_empty()).then_some(())
        },
    );
    file.sync_all().expect("fsync is fine again");
    drop(file);
    bay.umount();
    assert_same("canonical", &get(fs.dir().join("f")), &want);
    drop(fs);
    bay.finish();
}

/// S7.2: store and backing full: the job sees the backing's ENOSPC and nothing else.
#[test]
fn when_both_are_full_the_job_sees_the_backings_error() {
    let mut bay = Bay::new(Drain::Never);
    small(&mut bay);
    let fs = LoopFs::new(&bay.root().join("img"), &bay.root().join("loop"), 64 * MIB);
    bay.set_backing(fs.dir());
    bay.allow_log("No space left");
    bay.allow_log("ENOSPC");
    bay.start();
    let file = open_rw(bay.path("f"));
    let mut written = 0;
    let error = loop {
        match sys::write_all_at(&file, &[1; MIB as usize], written) {
            Ok(()) => written += MIB,
            Err(e) => break e,
        }
        assert!(written < 300 * MIB, "more was taken than there is room");
    };
    // The last write may have been cut short by the backing, which is as POSIX has it.
    let short = error.to_string().contains("short write");
    assert!(
        short || error.raw_os_error() == Some(libc::ENOSPC),
        "{error}"
    );
    assert!(written >= 64 * MIB, "only {} MiB were taken", written / MIB);
    let seen = sys::read_at(&file, 0, written as usize).expect("read");
    assert_same("what was acknowledged", &seen, &vec![1; written as usize]);
    fs::remove_file(bay.path("f")).expect("remove");
    drop(file);
    wait_until("there is room again", LONG, || {
        std::fs::write(bay.path("g"), vec![2; MIB as usize]).ok()
    });
    bay.kill();
    drop(fs);
}

/// S7.6: the store's disk dies. New data goes through; what only the store had is EIO.
#[test]
fn a_broken_store_lets_the_mount_go_on() {
    let mut bay = Bay::new(Drain::Never);
    let disk = LoopFs::new(&bay.root().join("img"), &bay.root().join("loop"), 256 * MIB);
    let store = disk.dir().join("store");
    bay.set_store(&store);
    bay.set("store-size", "128MiB");
    bay.allow_log("");
    put(bay.canonical("old"), vec![1; 100_000]);
    bay.start();
    put(bay.path("lost"), vec![2; 100_000]);
    disk.break_down().expect("break the store's disk");
    assert_same("canonical data", &get(bay.path("old")), &[1; 100_000]);
    // The first write may be the one that finds out; the file goes on through the backing.
    let file = open_rw(bay.path("new"));
    for i in 0..8 {
        sys::write_all_at(&file, &[3; 50_000], i * 50_000).expect("written through");
    }
    assert_same("new data", &get(bay.path("new")), &[3; 400_000]);
    assert_same(
        "is in the backing",
        &get(bay.canonical("new")),
        &[3; 400_000],
    );
    let e = errno(
        std::fs::read(bay.path("lost")),
        "read what the store alone had",
    );
    assert_eq!(e, libc::EIO);
    let status = bay.status();
    let failure = status.at("/store/failure");
    assert!(failure.is_string(), "status says so: {:#}", status.0);
    drop(file);
    bay.kill();
    drop(disk);
}

/// S5.3: a byte of the log is flipped; it is not served, not drained, and reported.
#[test]
fn a_damaged_record_is_never_served() {
    let mut bay = Bay::new(Drain::Never);
    bay.allow_log("checksum");
    bay.allow_log("damaged");
    bay.start();
    let marker = Rng::new(3).bytes(65_536);
    put(bay.path("good"), vec![1; 10_000]);
    put(bay.path("bad"), &marker);
    bay.umount_with(&["--keep"]);
    assert!(
        flip(bay.store(), &marker[..64]),
        "the bytes are in some segment"
    );
    bay.start();
    let e = errno(std::fs::read(bay.path("bad")), "read the damaged bytes");
    assert_eq!(e, libc::EIO);
    assert_eq!(get(bay.path("good")), vec![1; 10_000]);
    let out = bay.run([
        "drain".as_ref(),
        bay.mnt().as_os_str(),
        "--timeout=20s".as_ref(),
    ]);
    assert!(!out.status.success(), "{}", text(&out));
    assert!(!bay.status().errors().is_empty(), "status reports it");
    let canonical = get(bay.canonical("bad"));
    let zeros = canonical.iter().all(|b| *b == 0);
    assert!(zeros, "damaged bytes were drained");
    bay.umount_with(&["--keep"]);
    let out = bay.run([
        "recover".as_ref(),
        "--store".as_ref(),
        bay.store().as_os_str(),
        "--backing".as_ref(),
        bay.backing().as_os_str(),
    ]);
    assert_eq!(out.status.code(), Some(6), "{}", text(&out));
    assert!(text(&out).contains("bad"), "{}", text(&out));
    bay.finish();
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
