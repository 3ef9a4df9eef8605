//! Four nodes in one file at once: neighbouring bytes of one page and one stripe, and a counter under locks.
//!
//! Checks S2.1 (bytes that a node wrote before a close, fsync or unlock are read by every open, fsync or lock that
//! comes after it, on every node), S2.4 (two nodes may write neighbouring bytes at the same time) and S3.6 (locks
//! are sync points).

use forebay_tests::cluster::Cluster;
use forebay_tests::locks::{How, fcntl, unlock, wait_for_lock};
use forebay_tests::rng::{self, Rng};
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, assert_same, get, open_rw, put};
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const NODES: usize = 4;
const LIMIT: Duration = Duration::from_secs(600);

/// Size of a range, and how many ranges of that size each node writes.
const RANGES: [(usize, usize); 4] = [(1, 700), (7, 700), (47008, 24), (4097, 120)];

/// Checks S2.1, S2.4 and S4 with the default settings.
#[test]
fn interleaved_by_default() {
    interleaved("defaults", Drain::Immediate, &[]);
}

/// Checks S2.1, S2.4 and S4 with `close = publish`.
#[test]
fn interleaved_with_publishing_closes() {
    interleaved("publish", Drain::Immediate, &[("close", "publish")]);
}

/// Checks S2.1, S2.4 and S4 with `drain = never`: everything that is seen comes from other nodes' subfiles.
#[test]
fn interleaved_without_drain() {
    interleaved("never", Drain::Never, &[]);
}

/// One range of the file.
struct Range {
    start: usize,
    len: usize,
    /// Its number among the ranges of its size: neighbours have different numbers.
    number: usize,
}

/// Returns ranges of each size side by side, one size after the other.
fn ranges() -> Vec<Range> {
    let mut start = 0;
    let mut all = Vec::new();
    for (len, each) in RANGES {
        for number in 0..each * NODES {
            all.push(Range { start, len, number });
            start += len;
        }
    }
    all
}

/// Writes the ranges three times. Each time every range has another writer, which shows whether something older ever
/// lies over something newer.
fn interleaved(name: &str, drain: Drain, settings: &[(&str, &str)]) {
    let seed = rng::seed(&format!("interleaved ranges, {name}"));
    let mut cluster = Cluster::new(NODES, drain, LIMIT);
    for (key, value) in settings {
        cluster.set(key, value);
    }
    cluster.start();
    let ranges = ranges();
    let end = ranges.last().map_or(0, |r| r.start + r.len);
    put(cluster.mount(0).path("f"), b"");
    for round in 0..3 {
        let data = Rng::derive(seed, round).bytes(end);
        let started = Instant::now();
        let barrier = Barrier::new(NODES);
        std::thread::scope(|scope| {
            for (node, path) in cluster.paths("f").into_iter().enumerate() {
                let own = ranges
                    .iter()
                    .filter(move |r| (r.number + round as usize) % NODES == node);
                let mut own: Vec<&Range> = own.collect();
                shuffle(&mut own, &mut Rng::derive(seed, 100 + node as u64));
                let (data, barrier) = (&data, &barrier);
                scope.spawn(move || {
                    let file = open_rw(path);
                    barrier.wait();
                    for r in own {
                        let bytes = &data[r.start..r.start + r.len];
                        sys::write_all_at(&file, bytes, r.start as u64).expect("write");
                    }
                    sys::close(file).expect("close");
                });
            }
        });
        let wrote = started.elapsed();
        for (node, path) in cluster.paths("f").iter().enumerate() {
            assert_same(&format!("round {round}, node {node}"), &get(path), &data);
        }
        let all = started.elapsed();
        println!(
            "{name}, round {round}: written and closed in {wrote:?}, read on all after {all:?}"
        );
        if round == 2 {
            cluster.drain();
            assert_same("the canonical file", &get(cluster.canonical("f")), &data);
            for (node, path) in cluster.paths("f").iter().enumerate() {
                assert_same(&format!("drained, node {node}"), &get(path), &data);
            }
        }
    }
    cluster.finish();
}

fn shuffle<T>(all: &mut [T], rng: &mut Rng) {
    for i in (1..all.len()).rev() {
        all.swap(i, rng.below(i as u64 + 1) as usize);
    }
}

/// Checks S3.6 with process locks.
#[test]
fn a_counter_under_fcntl() {
    counter(How::Posix, 1000);
}

/// Checks S3.6 with open-file-description locks.
#[test]
fn a_counter_under_ofd() {
    counter(How::Ofd, 250);
}

/// Checks S3.6 with flock.
#[test]
fn a_counter_under_flock() {
    counter(How::Flock, 1000);
}

fn value(file: &File) -> u64 {
    let bytes = sys::read_at(file, 0, 8).expect("read the counter");
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn add(path: &Path, how: How, times: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("open");
    for _ in 0..times {
        wait_for_lock(&file, how).expect("lock");
        let next = value(&file) + 1;
        sys::write_all_at(&file, &next.to_le_bytes(), 0).expect("write");
        unlock(&file, how).expect("unlock");
    }
    sys::close(file).expect("close");
}

/// A process has one lock owner at each node, so threads are as good as processes here.
fn counter(how: How, times: u64) {
    let mut cluster = Cluster::new(NODES, Drain::Immediate, LIMIT);
    cluster.start();
    put(cluster.mount(0).path("counter"), 0u64.to_le_bytes());
    let started = Instant::now();
    std::thread::scope(|scope| {
        for path in cluster.paths("counter") {
            scope.spawn(move || add(&path, how, times));
        }
    });
    let took = started.elapsed();
    let total = times * NODES as u64;
    println!(
        "{how:?}: {total} increments from {NODES} nodes in {took:?}, {:?} each",
        took / total as u32
    );
    for path in cluster.paths("counter") {
        assert_eq!(value(&open_rw(&path)), total, "{}", path.display());
    }
    cluster.drain();
    assert_eq!(get(cluster.canonical("counter")), total.to_le_bytes());
    cluster.finish();
}

/// Number of runs of one writer, and bytes of a run.
const RUNS: usize = 100;
const RUN: usize = 88;

/// S3.6 with ranges: there are two writers on each of two nodes. The two writers of a pair own alternate runs of one
/// range and change them under a lock on that range; the other pair does the same beside them. An unlock publishes
/// what was written under its lock, whatever another writer of the node writes meanwhile.
#[test]
fn changes_under_locks_on_ranges_that_do_not_touch() {
    let mut cluster = Cluster::new(2, Drain::Immediate, LIMIT);
    cluster.start();
    let range = 2 * RUNS * RUN;
    for round in 0..60 {
        let name = format!("f{round}");
        put(cluster.mount(0).path(&name), b"");
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = cluster.mount(writer % 2).path(&name);
                let barrier = &barrier;
                scope.spawn(move || {
                    let file = open_rw(&path);
                    barrier.wait();
                    for part in 0..4 {
                        change(&file, (2 * part + writer / 2) * range, writer);
                    }
                    sys::close(file).expect("close");
                });
            }
        });
        let run = |n: usize| vec![1 + (n % 2 + 2 * (n / (2 * RUNS) % 2)) as u8; RUN];
        let want: Vec<u8> = (0..16 * RUNS).flat_map(run).collect();
        for path in cluster.paths(&name) {
            assert_same(&format!("round {round}"), &get(&path), &want);
        }
    }
    cluster.finish();
}

/// Reads a range, changes every other run of it, and writes it back, as data sieving does.
fn change(file: &File, start: usize, writer: usize) {
    let own = start + writer % 2 * RUN;
    let len = (2 * RUNS - 1) * RUN;
    let at = (own as i64, len as i64);
    fcntl(file, libc::F_OFD_SETLKW, libc::F_WRLCK, at).expect("lock");
    let mut bytes = sys::read_at(file, own as u64, len).expect("read");
    bytes.resize(len, 0xff);
    for run in bytes.chunks_mut(RUN).step_by(2) {
        run.fill(1 + writer as u8);
    }
    sys::write_all_at(file, &bytes, own as u64).expect("write");
    fcntl(file, libc::F_OFD_SETLK, libc::F_UNLCK, at).expect("unlock");
}
