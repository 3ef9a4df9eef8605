//! Writes of two nodes to the same bytes, without a sync point in between.
//!
//! S2.16: overlapping writes of nodes of which neither had seen the other's are counted and named, in `status` and
//! in one log line for each file.

use forebay_tests::cluster::Cluster;
use forebay_tests::status::Status;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, get, open_rw, put};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const WORDS: &str = "has written the same bytes without a sync point in between";

fn overlaps(status: &Status) -> u64 {
    status.number("/overlaps")
}

/// S2.16: the node that publishes later finds the overlap. It names the other node and the range, in the log once
/// for each file.
#[test]
fn overlapping_writes_are_counted_and_named() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.allow_log(WORDS).start();
    let paths = cluster.paths("f");
    put(&paths[0], vec![0; 300_000]);
    let files: Vec<_> = paths.iter().map(open_rw).collect();
    for round in 1..=2u64 {
        files
            .iter()
            .for_each(|f| f.sync_all().expect("a sync point"));
        sys::write_all_at(&files[0], &[1; 200_000], 0).expect("write");
        sys::write_all_at(&files[1], &[2; 100_000], 150_000).expect("write");
        files[0].sync_all().expect("fsync");
        files[1].sync_all().expect("fsync");
        let status = cluster.mount(1).status();
        assert_eq!(overlaps(&status), round, "the later one has found it");
        assert_eq!(status.at("/overlapped/0/path"), "f");
        assert_eq!(status.at("/overlapped/0/nodes/0"), "n0");
        assert_eq!(status.number("/overlapped/0/start"), 150_000);
        assert_eq!(status.number("/overlapped/0/end"), 200_000);
    }
    assert_eq!(overlaps(&cluster.mount(0).status()), 0);
    let log = cluster.mount(1).log();
    assert_eq!(log.matches(WORDS).count(), 1, "one line for a file: {log}");
    drop(files);
    cluster.finish();
}

/// S2.16: writes with a sync point between them, and neighbours that do not touch, are no overlaps.
#[test]
fn writes_that_are_in_order_or_beside_each_other_are_not() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.start();
    let paths = cluster.paths("f");
    put(&paths[0], vec![0; 300_000]);
    let files: Vec<_> = paths.iter().map(open_rw).collect();
    for node in [0, 1, 0, 1] {
        files[node].sync_all().expect("a sync point");
        sys::write_all_at(&files[node], &[3 + node as u8; 100_000], 0).expect("write");
        files[node].sync_all().expect("fsync");
    }
    // The nodes write by turns in pieces of an odd length, at the same time.
    files[0].sync_all().expect("a sync point");
    for (node, file) in files.iter().enumerate() {
        for i in 0..50u64 {
            let at = (2 * i + node as u64) * 1009;
            sys::write_all_at(file, &[7; 1009], at).expect("write");
        }
    }
    for file in files {
        sys::close(file).expect("close");
    }
    assert_eq!(get(&paths[0])[..100_900], [7; 100_900]);
    assert_eq!(get(&paths[1])[..100_900], [7; 100_900]);
    for mount in cluster.mounts() {
        assert_eq!(overlaps(&mount.status()), 0);
    }
    cluster.finish();
}
