//! Local copies on nodes that write each other's files.
//!
//! Checks S11.1, and S2 and S3 behind it.

mod nodes_pair;

use forebay_tests::cli::str;
use forebay_tests::locks::{self, How};
use forebay_tests::rng::{Rng, seed};
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put};
use nodes_pair::{MIB, Shared};
use std::fs::File;

fn node(shared: &Shared, name: &str, drain: Drain) -> TestMount {
    let mut mount = shared.node(name, drain);
    mount.arg("--keep");
    mount.start();
    mount
}

fn prefetch(mount: &TestMount, name: &str) {
    let out = mount.run(["prefetch", str(&mount.path(name))]);
    assert!(out.status.code().is_some(), "it ends by itself");
}

/// S11.1, S2.1: the next open sees what another node wrote, whatever local copy there is, and whether that node has
/// published, drained or only announced its data.
#[test]
fn what_another_node_wrote_is_seen() {
    let shared = Shared::plain();
    let (a, b) = (
        node(&shared, "a", Drain::OnClose),
        node(&shared, "b", Drain::OnClose),
    );
    let mut want = Rng::new(1).bytes(2 * MIB);
    put(a.path("f"), &want);
    a.drain();
    prefetch(&a, "f");
    prefetch(&b, "f");
    for turn in 0..12u8 {
        let (writer, reader) = if turn % 2 == 0 { (&a, &b) } else { (&b, &a) };
        assert_same("before", &get(reader.path("f")), &want);
        let file = open_rw(writer.path("f"));
        let at = usize::from(turn) * 100_000;
        want[at..at + 5].fill(turn);
        sys::write_all_at(&file, &want[at..at + 5], at as u64).expect("write");
        match turn % 3 {
            0 => file.sync_all().expect("fsync"),
            1 => {}
            _ => {
                sys::close(file.try_clone().expect("dup")).expect("close");
                writer.drain();
            }
        }
        drop(file);
        assert_same("after", &get(reader.path("f")), &want);
        assert_same("on its own node", &get(writer.path("f")), &want);
        if turn % 4 == 3 {
            writer.drain();
            reader.drain();
            prefetch(reader, "f");
        }
    }
    for mount in [a, b] {
        mount.finish();
    }
    assert_same("canonical", &get(shared.canonical("f")), &want);
}

/// S11.1, S3.6: a reader that keeps the file open sees another node's bytes when it has the lock.
#[test]
fn a_lock_refreshes_a_copy() {
    let shared = Shared::plain();
    let (a, b) = (
        node(&shared, "a", Drain::OnClose),
        node(&shared, "b", Drain::OnClose),
    );
    put(shared.canonical("f"), vec![0; MIB]);
    prefetch(&a, "f");
    let reader = File::open(a.path("f")).expect("open");
    let writer = open_rw(b.path("f"));
    for value in 1..=10u8 {
        locks::wait_for_lock(&writer, How::Flock).expect("lock");
        sys::write_all_at(&writer, &[value; 100], 5000).expect("write");
        locks::unlock(&writer, How::Flock).expect("unlock");
        locks::wait_for_lock(&reader, How::Flock).expect("lock");
        let seen = sys::read_at(&reader, 5000, 100).expect("read");
        assert_eq!(seen, [value; 100]);
        locks::unlock(&reader, How::Flock).expect("unlock");
    }
    drop((reader, writer));
    for mount in [a, b] {
        mount.finish();
    }
}

/// S11.1, S2.1: bytes of another node that this node has once shown do not go back to those of the local copy when
/// they are drained, not even for a reader that has been open all the time.
#[test]
fn an_old_reader_does_not_go_back_to_the_copy() {
    let shared = Shared::plain();
    let a = node(&shared, "a", Drain::Never);
    let b = node(&shared, "b", Drain::Never);
    put(shared.canonical("f"), vec![1; 100_000]);
    prefetch(&a, "f");
    let reader = File::open(a.path("f")).expect("open");
    let first = |file: &File| sys::read_at(file, 0, 10).expect("read");
    assert_eq!(first(&reader), [1; 10]);
    let writer = open_rw(b.path("f"));
    sys::write_all_at(&writer, &[2; 10], 0).expect("write");
    writer.sync_all().expect("fsync");
    let other = File::open(a.path("f")).expect("open");
    assert_eq!(first(&other), [2; 10], "published");
    assert_eq!(first(&reader), [2; 10], "a refresh is for all handles");
    drop(writer);
    b.drain();
    assert_eq!(get(shared.canonical("f"))[..10], [2; 10]);
    // Reading the attributes makes this node refresh, and so learn that nothing is published any more.
    reader.metadata().expect("stat");
    assert_eq!(first(&reader), [2; 10], "drained");
    drop((reader, other));
    for mount in [a, b] {
        mount.finish();
    }
}

/// S11.1, S2.7: two nodes take turns at random, with kills, drains and prefetches in between; every
/// open sees every byte.
#[test]
fn turns_at_random() {
    let shared = Shared::plain();
    let mut rng = Rng::new(seed("turns_at_random"));
    let mut mounts = ["a", "b"].map(|name| node(&shared, name, Drain::Immediate));
    let mut want = rng.bytes(700_000);
    put(mounts[0].path("f"), &want);
    for _ in 0..50 {
        let who = rng.below(2) as usize;
        match rng.below(10) {
            0 => {
                mounts[who].kill();
                mounts[who].start();
            }
            1 => mounts[who].drain(),
            2 | 3 => prefetch(&mounts[who], "f"),
            4 => {
                let path = mounts[who].path("f");
                let size = rng.within(1..800_000);
                match rng.below(3) {
                    // A truncation by name is an open and a close in one call: it waits and announces as those do.
                    0 => sys::truncate(&path, size).expect("truncate"),
                    _ => open_rw(&path).set_len(size).expect("truncate"),
                }
                want.resize(size as usize, 0);
            }
            5 => {
                // Setting the times waits for no other node, and is announced: both nodes may have a pending
                // announcement then.
                let path = mounts[who].path("f");
                let time = rng.below(1 << 30) as i64;
                sys::set_times(&path, time, time).expect("utimens");
            }
            _ => {
                let file = open_rw(mounts[who].path("f"));
                for _ in 0..rng.within(1..4) {
                    let len = rng.size(200_000) as usize;
                    let at = rng.below(700_000) as usize;
                    let data = rng.bytes(len);
                    sys::write_all_at(&file, &data, at as u64).expect("write");
                    want.resize(want.len().max(at + len), 0);
                    want[at..at + len].copy_from_slice(&data);
                }
                if rng.one_in(3) {
                    file.sync_all().expect("fsync");
                }
            }
        }
        if rng.one_in(4) {
            continue;
        }
        let reader = &mounts[rng.below(2) as usize];
        assert_same("next open", &get(reader.path("f")), &want);
    }
    for mount in mounts {
        mount.drain();
        mount.finish();
    }
    assert_same("canonical", &get(shared.canonical("f")), &want);
}
