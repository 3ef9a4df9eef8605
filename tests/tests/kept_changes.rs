//! Local copies and everything that changes a file, on one node.
//!
//! Checks S11.1.

mod kept_rig;

use forebay_tests::rng::{Rng, seed};
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put};
use kept_rig::nodes_pair::MIB;
use kept_rig::{kept, node, prefetch, sim};
use std::fs::{self, File};

/// S11.1: parts of a file are overwritten, cut off and punched while the file drains in several jobs.
#[test]
fn a_copy_follows_every_change_of_a_dirty_period() {
    let shared = sim();
    let mut mount = node(&shared, Drain::Immediate);
    mount.arg("--keep").set("drain-rate", "32MiB");
    mount.start();
    let mut rng = Rng::new(seed("a_copy_follows_every_change_of_a_dirty_period"));
    for round in 0..4 {
        let mut want: Vec<u8> = Vec::new();
        let file = open_rw(mount.path("f"));
        file.set_len(0).expect("empty");
        for _ in 0..40 {
            let at = rng.below(3 * MIB as u64) as usize;
            let len = rng.size(600_000) as usize;
            match rng.below(8) {
                0 => {
                    file.set_len(at as u64).expect("truncate");
                    want.resize(at, 0);
                }
                1 => {
                    sys::fallocate(&file, sys::PUNCH, at as u64, len as u64).expect("punch");
                    let end = want.len().min(at + len);
                    if at < end {
                        want[at..end].fill(0);
                    }
                }
                _ => {
                    let data = rng.bytes(len);
                    sys::write_all_at(&file, &data, at as u64).expect("write");
                    want.resize(want.len().max(at + len), 0);
                    want[at..at + len].copy_from_slice(&data);
                }
            }
        }
        drop(file);
        mount.drain();
        assert_same("canonical", &get(shared.canonical("f")), &want);
        assert_same("mounted", &get(mount.path("f")), &want);
        assert_same("again", &get(mount.path("f")), &want);
        println!(
            "round {round}: {} bytes, {:?} kept",
            want.len(),
            kept(&mount)
        );
    }
    mount.finish();
}

/// S11.1: the next open sees a change of the file, whichever program made it and whichever way.
#[test]
fn changes_are_seen() {
    let shared = sim();
    let mut want = Rng::new(5).bytes(2 * MIB);
    put(shared.canonical("f"), &want);
    let mut mount = node(&shared, Drain::Immediate);
    mount.start();
    let fetch = |mount: &TestMount| {
        let report = prefetch(mount, &mount.path("f"));
        assert_eq!(report["files"], 1, "{report:#}");
    };
    fetch(&mount);
    // A program without the overlay writes: same size, another byte.
    let below = open_rw(shared.canonical("f"));
    want[77] ^= 1;
    sys::write_all_at(&below, &want[77..78], 77).expect("write");
    assert_same("written below", &get(mount.path("f")), &want);
    fetch(&mount);
    // A program writes through the mount.
    let file = open_rw(mount.path("f"));
    want[MIB] ^= 1;
    sys::write_all_at(&file, &want[MIB..MIB + 1], MIB as u64).expect("write");
    assert_same("written", &get(mount.path("f")), &want);
    drop(file);
    mount.drain();
    assert_same("drained", &get(mount.path("f")), &want);
    fetch(&mount);
    sys::truncate(&mount.path("f"), 1_000_000).expect("cut");
    want.truncate(1_000_000);
    assert_same("cut", &get(mount.path("f")), &want);
    mount.drain();
    fetch(&mount);
    let file = open_rw(mount.path("f"));
    sys::fallocate(&file, sys::PUNCH, 5_000, 100_000).expect("punch");
    want[5_000..105_000].fill(0);
    drop(file);
    assert_same("punched", &get(mount.path("f")), &want);
    mount.drain();
    fetch(&mount);
    put(mount.path("new"), b"another file");
    mount.drain();
    fs::rename(mount.path("new"), mount.path("f")).expect("replace");
    assert_eq!(get(mount.path("f")), b"another file");
    mount.finish();
}

/// S11.1: a reader that stays open sees new bytes after fsync, and at the end of the file.
#[test]
fn an_open_reader_sees_changes_at_its_sync_points() {
    let shared = sim();
    put(shared.canonical("f"), vec![1; MIB]);
    let mut mount = node(&shared, Drain::Immediate);
    mount.start();
    prefetch(&mount, &mount.path("f"));
    let reader = File::open(mount.path("f")).expect("open");
    assert_eq!(sys::read_at(&reader, 0, 10).expect("read"), [1; 10]);
    let below = open_rw(shared.canonical("f"));
    sys::write_all_at(&below, &[2; 100], 0).expect("write");
    reader.sync_all().expect("fsync");
    assert_eq!(sys::read_at(&reader, 0, 10).expect("read"), [2; 10]);
    drop(reader);
    prefetch(&mount, &mount.path("f"));
    let reader = File::open(mount.path("f")).expect("open");
    let end = MIB as u64;
    assert_eq!(sys::read_at(&reader, end, 10).expect("read"), [0; 0]);
    sys::write_all_at(&below, b"more", end).expect("append");
    assert_eq!(sys::read_at(&reader, end, 10).expect("read"), b"more");
    drop(reader);
    mount.finish();
}

/// S11.1, S1.1: a reader that stays open sees everything that is done through the mount, at once.
#[test]
fn an_open_reader_sees_what_is_done_through_the_mount() {
    for absorb in ["on", "off"] {
        let shared = sim();
        let mut want = vec![1; MIB];
        put(shared.canonical("f"), &want);
        let mut mount = node(&shared, Drain::Never);
        mount.set("absorb", absorb);
        mount.start();
        let opened = || {
            mount.drain();
            let report = prefetch(&mount, &mount.path("f"));
            assert_eq!(report["files"], 1, "{report:#}");
            File::open(mount.path("f")).expect("open")
        };
        let all = |reader: &File| sys::read_at(reader, 0, 2 * MIB).expect("read");
        let reader = opened();
        assert_same("kept", &all(&reader), &want);
        let writer = open_rw(mount.path("f"));
        want[5000..5100].fill(2);
        sys::write_all_at(&writer, &[2; 100], 5000).expect("write");
        assert_same("written", &all(&reader), &want);
        drop(writer);
        mount.drain();
        assert_same("drained", &all(&reader), &want);
        drop(reader);
        let reader = opened();
        sys::truncate(&mount.path("f"), 500_000).expect("cut");
        want.truncate(500_000);
        assert_same("cut", &all(&reader), &want);
        drop(reader);
        let reader = opened();
        let writer = open_rw(mount.path("f"));
        sys::fallocate(&writer, sys::PUNCH, 4096, 40_960).expect("punch");
        want[4096..45_056].fill(0);
        assert_same("punched", &all(&reader), &want);
        drop((reader, writer));
        mount.finish();
    }
}

/// S11.1, S1.1: readers come and go while the file is written and fetched over and over; no reader sees it go back.
#[test]
fn readers_never_see_it_go_back() {
    let shared = sim();
    let size = 300_000;
    put(shared.canonical("f"), vec![0; size]);
    let mut mount = node(&shared, Drain::Immediate);
    mount.arg("--keep");
    mount.start();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let path = mount.path("f");
            scope.spawn(move || {
                let mut last = 0;
                while last < 40 {
                    let seen = get(&path);
                    assert_eq!(seen.len(), size);
                    let least = *seen.iter().min().expect("bytes");
                    assert!(least >= last, "went back from {last} to {least}");
                    last = least;
                }
            });
        }
        let mut rng = Rng::new(9);
        for value in 1..=40u8 {
            let place = match value % 3 {
                0 => shared.canonical("f"),
                _ => mount.path("f"),
            };
            if value % 3 == 0 {
                // A program may write past the overlay only when nothing is undrained.
                mount.drain();
            }
            let file = open_rw(place);
            sys::write_all_at(&file, &vec![value; size], 0).expect("write");
            drop(file);
            match rng.below(3) {
                0 => mount.drain(),
                1 => drop(prefetch(&mount, &mount.path("f"))),
                _ => {}
            }
        }
    });
    mount.finish();
}
