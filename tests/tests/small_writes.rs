//! Small writes, as a library for scientific data makes them: headers and indices of a few bytes, unaligned,
//! rewritten all the time, with the size set anew after each of them.
//!
//! The simulated file system counts what reaches it, so nothing here is decided by a clock (except how often a file
//! that stays open has been swept).

mod nodes_pair;

use forebay_tests::rng::Rng;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw};
use nodes_pair::{MIB, Shared};
use pfs_sim::{Sim, Tally};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const STRIPES: usize = 6;

/// The headers are below this offset, within the first stripe.
const HEADERS: usize = 600 << 10;
const ROUNDS: u64 = 400;

/// How long partial stripes of a file that stays open wait for more data (`linger` of the flusher's settings).
const LINGER: Duration = Duration::from_millis(500);

fn shared() -> Shared {
    let builder = Sim::builder().osts(2).bandwidth("500M").stripe("1M", 2);
    Shared::simulated(builder)
}

/// Writes the file, and returns its expected content: data in whole stripes, and between them headers, which are a
/// superblock that changes every time, and parts of an index anywhere in the first stripe.
fn write(file: &File, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut want = vec![0; STRIPES * MIB];
    let mut put = |at: usize, bytes: &[u8]| {
        want[at..at + bytes.len()].copy_from_slice(bytes);
        file.write_all_at(bytes, at as u64).expect("write");
    };
    for stripe in 1..STRIPES {
        put(stripe * MIB, &rng.bytes(MIB));
        for _ in 0..ROUNDS / STRIPES as u64 {
            put(0, &rng.bytes(96));
            let len = 8 + rng.below(536) as usize;
            let at = 96 + rng.below((HEADERS - 96 - len) as u64) as usize;
            put(at, &rng.bytes(len));
            let end = (stripe + 1) * MIB;
            file.set_len(end as u64).expect("set the size");
        }
    }
    want
}

fn tally(shared: &Shared) -> Tally {
    let counters = shared.sim().counters().expect("read the counters");
    counters.total
}

/// Returns the counters of the canonical file alone: reads, writes, truncations.
fn tally_of(shared: &Shared, name: &str) -> Tally {
    let counters = shared.sim().counters().expect("read the counters");
    let of_it = counters.file(name).map(|file| file.tally);
    of_it.unwrap_or_default()
}

fn start(shared: &Shared, nodes: &str, drain: Drain) -> TestMount {
    let mut mount = shared.node("writer", drain);
    mount.set("nodes", nodes).set("stripe", "1MiB");
    mount.start();
    shared.sim().reset_counters().expect("reset the counters");
    mount
}

/// S6.5: small writes are merged: no request reaches the file system while the job writes and sets sizes, and then
/// each stripe is written once, whole.
#[test]
fn headers_are_drained_once_and_aligned() {
    let shared = shared();
    let mut mount = start(&shared, "one", Drain::OnClose);
    let file = File::create(mount.path("f.h5")).expect("create");
    let want = write(&file, 1);
    assert_eq!(tally(&shared).requests, 0, "while the job writes");
    drop(file);
    mount.drain();
    let seen = tally(&shared);
    assert_same("canonical", &get(shared.canonical("f.h5")), &want);
    assert_eq!(seen.bytes_written, (STRIPES * MIB) as u64, "{seen:?}");
    assert_eq!(seen.unaligned_writes, 0, "{seen:?}");
    assert_eq!(seen.read_modify_writes, 0, "{seen:?}");
    mount.umount();
}

/// The same where other nodes may write through to the file: the drain does not read the bytes around a header, so
/// headers are written as they are, each byte once.
#[test]
fn with_many_nodes_each_byte_is_drained_once() {
    let shared = shared();
    let mut mount = start(&shared, "many", Drain::OnClose);
    let file = File::create(mount.path("f.h5")).expect("create");
    let want = write(&file, 2);
    assert_eq!(tally(&shared).requests, 0, "while the job writes");
    drop(file);
    mount.drain();
    let seen = tally(&shared);
    assert_same("canonical", &get(shared.canonical("f.h5")), &want);
    // The limit has room for what nodes tell each other.
    let most = (STRIPES * MIB + (256 << 10)) as u64;
    assert!(seen.bytes_written <= most, "{seen:?}");
    mount.umount();
}

/// The same through a handle that also reads, as parallel HDF5 has it. S6.5: with many nodes a size that is set
/// through a handle that also reads is told to the other nodes at once (S2.12), in the shared directory. The
/// canonical file has no request while the job writes, and then each byte once.
#[test]
fn a_handle_that_also_reads_tells_sizes_beside_the_file() {
    let shared = shared();
    let mut other = shared.node("other", Drain::OnClose);
    other.set("stripe", "1MiB").start();
    let mut mount = start(&shared, "many", Drain::OnClose);
    let file = open_rw(mount.path("f.h5"));
    let set_len = |size: usize| {
        file.set_len(size as u64).expect("set the size");
        let there = std::fs::metadata(other.path("f.h5")).expect("stat");
        assert_eq!(there.len(), size as u64, "on the other node");
        let below = tally_of(&shared, "f.h5");
        assert_eq!(below, Tally::default(), "while the job writes");
    };
    set_len(STRIPES * MIB);
    let want = write(&file, 5);
    set_len((STRIPES + 1) * MIB);
    set_len(STRIPES * MIB);
    assert!(!shared.names('l').is_empty(), "sizes are told by a layout");
    drop(file);
    mount.drain();
    let below = tally_of(&shared, "f.h5");
    assert_same("canonical", &get(shared.canonical("f.h5")), &want);
    assert!(below.bytes_written <= (STRIPES * MIB) as u64, "{below:?}");
    mount.umount();
    other.umount();
}

/// S6.5: sizes that a job sets reach the canonical file with the drain: also through a handle that reads and writes,
/// as MPI libraries have it, before the first byte is written, and for a file that is there already. (Other nodes
/// hear of them at once, S2.12.)
#[test]
fn sizes_are_set_below_by_the_drain() {
    for nodes in ["one", "many"] {
        let shared = shared();
        let mut mount = start(&shared, nodes, Drain::OnClose);
        let old = Rng::new(4).bytes(2 * MIB);
        std::fs::write(shared.canonical("f.h5"), &old).expect("write below");
        let file = open_rw(mount.path("f.h5"));
        let below = || {
            let meta = std::fs::metadata(shared.canonical("f.h5"));
            meta.expect("stat").len()
        };
        for size in [MIB, 5 * MIB, 3 * MIB] {
            file.set_len(size as u64).expect("set the size");
            assert_eq!(below(), old.len() as u64, "{nodes}: {size}");
            assert_eq!(file.metadata().expect("stat").len(), size as u64);
        }
        let mut want = old[..MIB].to_vec();
        want.resize(3 * MIB, 0);
        drop(file);
        mount.drain();
        assert_same("canonical", &get(shared.canonical("f.h5")), &want);
        mount.umount();
    }
}

/// While the file stays open, whole stripes leave the store and headers do not: data that is rewritten again and
/// again is not drained again and again.
#[test]
fn headers_wait_for_the_close() {
    let shared = shared();
    let mut mount = start(&shared, "one", Drain::Immediate);
    let opened = Instant::now();
    let file = File::create(mount.path("f.h5")).expect("create");
    let want = write(&file, 3);
    nodes_pair::until("the whole stripes are drained", || {
        tally(&shared).bytes_written >= ((STRIPES - 1) * MIB) as u64
    });
    write(&file, 3);
    drop(file);
    mount.drain();
    let sweeps = opened.elapsed().as_millis() / LINGER.as_millis();
    let seen = tally(&shared);
    assert_same("canonical", &get(shared.canonical("f.h5")), &want);
    // The data is drained twice, for it was written twice, and the headers once. Each time that the file has been
    // open for so long that partial stripes are drained all the same, the headers and the stripe that was just being
    // written are drained, too.
    let most = (2 * (STRIPES - 1) * MIB + MIB) as u64 + sweeps as u64 * 2 * MIB as u64;
    assert!(seen.bytes_written <= most, "{sweeps} sweeps, {seen:?}");
    mount.umount();
}
