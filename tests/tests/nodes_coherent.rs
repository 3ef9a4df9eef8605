//! With `absorb = coherent`, nodes that never close and never lock see each other's writes.

use forebay_tests::cluster::Cluster;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, assert_same, get, open_rw, put};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

fn coherent(nodes: usize, drain: Drain) -> Cluster {
    let mut cluster = Cluster::new(nodes, drain, LIMIT);
    cluster.set("absorb", "coherent");
    cluster.start();
    cluster
}

/// S2.9: a read returns the last write that was answered on any node before the read began.
#[test]
fn writes_are_seen_at_once() {
    for drain in [Drain::Never, Drain::Immediate] {
        let cluster = coherent(2, drain);
        put(cluster.mount(0).path("f"), [0; 64]);
        let files: Vec<_> = cluster.paths("f").iter().map(open_rw).collect();
        for turn in 0..100u64 {
            let (writer, reader) = ((turn % 2) as usize, ((turn + 1) % 2) as usize);
            let at = (turn % 5) * 8;
            files[writer].write_all_at(&turn.to_le_bytes(), at).unwrap();
            let mut got = [0; 8];
            files[reader].read_exact_at(&mut got, at).unwrap();
            assert_eq!(u64::from_le_bytes(got), turn, "{}", drain.key());
        }
        drop(files);
        cluster.drain();
        let expected: Vec<u8> = (0..5u64).flat_map(|i| (95 + i).to_le_bytes()).collect();
        assert_same("canonical", &get(cluster.canonical("f"))[..40], &expected);
        cluster.finish();
    }
}

/// S2.9: reads and writes that overlap take turns. A reader never sees half of a write, nor an older write than one
/// that was answered before its read, or that it has seen.
#[test]
fn reads_never_go_back_and_are_never_torn() {
    let cluster = coherent(3, Drain::Immediate);
    put(cluster.mount(0).path("f"), [0; 4096]);
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = open_rw(cluster.mount(0).path("f"));
            for turn in 1..=60u64 {
                let bytes = turn.to_le_bytes().repeat(512);
                file.write_all_at(&bytes, 0).unwrap();
                answered.store(turn, Ordering::SeqCst);
            }
        });
        for node in [1, 2] {
            let (cluster, answered) = (&cluster, &answered);
            scope.spawn(move || {
                let file = open_rw(cluster.mount(node).path("f"));
                let mut last = 0;
                while last < 60 {
                    let least = answered.load(Ordering::SeqCst);
                    let mut got = vec![0; 4096];
                    file.read_exact_at(&mut got, 0).unwrap();
                    let words: Vec<u64> = got
                        .chunks_exact(8)
                        .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
                        .collect();
                    assert!(words.iter().all(|w| *w == words[0]), "node {node}: torn");
                    assert!(
                        words[0] >= least.max(last),
                        "node {node}: {} after {least}",
                        words[0]
                    );
                    last = words[0];
                }
            });
        }
    });
    cluster.finish();
}

/// S2.9: a truncation, an allocation and a hole take their turn as writes do, and are seen at once.
#[test]
fn sizes_and_holes_are_seen_at_once() {
    for drain in [Drain::Never, Drain::Immediate] {
        let cluster = coherent(2, drain);
        put(cluster.mount(0).path("f"), [1; 10_000]);
        let files: Vec<_> = cluster.paths("f").iter().map(open_rw).collect();
        let mut want = vec![1u8; 10_000];
        for turn in 0..30u64 {
            let (here, there) = (
                &files[(turn % 2) as usize],
                &files[((turn + 1) % 2) as usize],
            );
            here.write_all_at(&[turn as u8; 10], turn).unwrap();
            want[turn as usize..][..10].fill(turn as u8);
            match turn % 3 {
                0 => {
                    let size = 5000 + 777 * turn;
                    here.set_len(size).unwrap();
                    want.resize(size as usize, 0);
                }
                1 => {
                    sys::fallocate(here, sys::PUNCH, 1000, 2000).unwrap();
                    want[1000..3000].fill(0);
                }
                _ => {
                    let end = want.len() as u64 + 500;
                    sys::fallocate(here, 0, end - 10, 10).unwrap();
                    want.resize(end as usize, 0);
                }
            }
            let size = there.metadata().unwrap().len();
            assert_eq!(size, want.len() as u64, "{}, turn {turn}", drain.key());
            let mut seen = vec![0; want.len()];
            there.read_exact_at(&mut seen, 0).unwrap();
            assert_same(&format!("{}, turn {turn}", drain.key()), &seen, &want);
        }
        drop(files);
        cluster.drain();
        assert_same("canonical", &get(cluster.canonical("f")), &want);
        cluster.finish();
    }
}
