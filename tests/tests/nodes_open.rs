//! Files that several nodes have open at once, as MPI libraries have them: for reading and writing,
//! with syncs on the writer's side only, whole ranges written back to change a few bytes, and zeros
//! from other nodes than those that write the data. The programs themselves are in `tests/jobs`.

use forebay_tests::cluster::Cluster;
use forebay_tests::rng::{self, Rng};
use forebay_tests::test_mount::{Drain, assert_same, get, open_rw, put};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
const BOTH: [Drain; 2] = [Drain::Never, Drain::Immediate];

/// Starts two nodes that have `f` open, after `content` was put into it.
fn opened(drain: Drain, content: &[u8]) -> (Cluster, Vec<File>) {
    let mut cluster = Cluster::new(2, drain, LIMIT);
    // Some tests write the same bytes on both nodes, as MPI libraries do (S2.16).
    cluster.allow_log("has written the same bytes");
    cluster.start();
    put(cluster.mount(0).path("f"), content);
    let files = cluster.paths("f").iter().map(open_rw).collect();
    (cluster, files)
}

fn read(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    let mut got = 0;
    while got < len {
        match file.read_at(&mut bytes[got..], at + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) => panic!("read: {e}"),
        }
    }
    bytes.truncate(got);
    bytes
}

/// Checks the file on all nodes and, after the drain, the canonical file.
fn end(cluster: Cluster, files: Vec<File>, want: &[u8]) {
    drop(files);
    for path in cluster.paths("f") {
        assert_same(&path.display().to_string(), &get(&path), want);
    }
    cluster.drain();
    assert_same("canonical", &get(cluster.canonical("f")), want);
    cluster.finish();
}

/// S2.10: a read through a handle that also writes sees what was published before it, without an fsync. This also
/// holds where this node has unpublished bytes of its own beside it, and where the file has become longer.
#[test]
fn reads_see_what_others_have_synced() {
    for drain in BOTH {
        let (cluster, files) = opened(drain, b"");
        let mut want = Vec::new();
        for turn in 0..40u64 {
            let (writer, reader) = ((turn % 2) as usize, ((turn + 1) % 2) as usize);
            let bytes = [turn as u8 + 1; 100];
            files[writer].write_all_at(&bytes, turn * 100).unwrap();
            want.extend(bytes);
            if turn % 4 < 2 {
                files[writer].sync_all().unwrap();
                let seen = read(&files[reader], turn * 100, 200);
                assert_same(&format!("{}, turn {turn}", drain.key()), &seen, &bytes);
            }
        }
        end(cluster, files, &want);
    }
}

/// S2.11: writes that are left out do not show on this node. Bytes that were written after a read past the end, and
/// are then written over with zeros, are zeros; also where a second, shorter read followed the first.
#[test]
fn zeros_over_what_was_written_since_are_a_write() {
    for drain in BOTH {
        let (cluster, files) = opened(drain, &[1; 100_000]);
        assert_eq!(read(&files[0], 0, 1 << 20).len(), 100_000);
        assert_eq!(read(&files[0], 100_000, 4096).len(), 0);
        let mut want = vec![1; 100_000];
        want.resize(300_000, 0);
        files[0].write_all_at(&[2; 100_000], 200_000).unwrap();
        files[0].write_all_at(&[0; 100_000], 200_000).unwrap();
        assert_same("zeros", &read(&files[0], 0, 1 << 20), &want);
        end(cluster, files, &want);
    }
}

/// S2.11: bytes that a write leaves as they were read are not written. Each node changes its own bytes, by reading
/// ranges and writing them back with the other node's bytes as they were on this node at some time.
#[test]
fn what_is_written_back_as_it_was_read_is_no_write() {
    let seed = rng::seed("what_is_written_back_as_it_was_read_is_no_write");
    for drain in BOTH {
        let mut rng = Rng::derive(seed, drain as u64);
        let mut want = rng.bytes(100_000);
        let (cluster, files) = opened(drain, &want);
        // The node that each byte belongs to: the nodes alternate in runs of one byte to some thousands.
        let mut owner = Vec::new();
        while owner.len() < want.len() {
            let run = rng.size(3000) as usize;
            let node = rng.below(2) as usize;
            owner.extend(std::iter::repeat_n(node, run.max(1)));
        }
        for _ in 0..200 {
            let node = rng.below(2) as usize;
            let at = rng.below(want.len() as u64) as usize;
            let len = (rng.size(40_000) as usize).clamp(1, want.len() - at);
            let mut bytes = read(&files[node], at as u64, len);
            assert_eq!(bytes.len(), len, "seed {seed}");
            let mut stretches = 0;
            let mut changing = false;
            for i in 0..len {
                if i == 0 || owner[at + i] != owner[at + i - 1] {
                    // There are no more runs than are told apart byte for byte.
                    changing = owner[at + i] == node && stretches < 30 && rng.one_in(2);
                    stretches += usize::from(changing);
                }
                if owner[at + i] == node {
                    let own = format!("seed {seed}: node {node} sees its own bytes");
                    assert_eq!(bytes[i], want[at + i], "{own}");
                }
                if changing {
                    bytes[i] = bytes[i].wrapping_add(1 + rng.below(255) as u8);
                    want[at + i] = bytes[i];
                }
            }
            files[node].write_all_at(&bytes, at as u64).unwrap();
            if rng.one_in(20) {
                files[node].sync_all().unwrap();
            }
        }
        end(cluster, files, &want);
    }
}

/// S1.1 and S2.1 hold for writes that put back what was read: a change of this node, or one of another node that
/// came before a sync point, is written over.
#[test]
fn older_bytes_can_be_written_back_on_purpose() {
    for drain in BOTH {
        let (cluster, files) = opened(drain, b"aaaaaaaaaa");
        let same_node = open_rw(cluster.mount(0).path("f"));
        let old = read(&files[0], 0, 10);
        same_node.write_all_at(b"bbb", 3).unwrap();
        files[0].write_all_at(&old, 0).unwrap();
        assert_same("a change of this node", &read(&same_node, 0, 10), &old);

        files[0].sync_all().unwrap();
        let old = read(&files[0], 0, 10);
        files[1].write_all_at(b"ccc", 5).unwrap();
        files[1].sync_all().unwrap();
        files[0].sync_all().unwrap();
        files[0].write_all_at(&old, 0).unwrap();
        files[0].sync_all().unwrap();
        assert_same("a change before a sync", &read(&files[1], 0, 10), &old);
        drop(same_node);
        end(cluster, files, &old);
    }
}

/// S2.11: zeros where nothing is are no data. One node fills with zeros what another writes, and closes last.
#[test]
fn zeros_where_nothing_is_are_no_data() {
    const FILLED: usize = 3 << 20;
    for drain in BOTH {
        let (cluster, mut files) = opened(drain, b"head");
        let mut want = vec![0; FILLED + 4];
        want[..4].copy_from_slice(b"head");
        files[1].write_all_at(&vec![0; FILLED], 4).unwrap();
        assert_eq!(files[1].metadata().unwrap().len(), want.len() as u64);
        assert_same("filled", &read(&files[1], 0, want.len()), &want);
        assert_eq!(cluster.mount(1).status().in_log(), 0, "zeros were recorded");
        files[0].write_all_at(&[7; 70_000], 1 << 20).unwrap();
        want[1 << 20..][..70_000].fill(7);
        files[0].sync_all().unwrap();
        files[1].sync_all().unwrap();
        assert_same("data", &read(&files[1], 0, want.len()), &want);

        // Where there is data, zeros are data.
        files[1].write_all_at(&[0; 1000], 1 << 20).unwrap();
        want[1 << 20..][..1000].fill(0);
        files.swap(0, 1);
        end(cluster, files, &want);
    }
}

/// S2.11: bytes that another node has synced are data, also for a node that has not refreshed since, and zeros
/// replace them. A library that synced only the writer's side does that.
#[test]
fn zeros_over_what_another_has_synced_are_data() {
    for drain in BOTH {
        let (cluster, files) = opened(drain, b"");
        let mut want = vec![5; 300_000];
        files[1].write_all_at(&want, 0).unwrap();
        files[1].sync_all().unwrap();
        for (at, len) in [(1000, 1), (5000, 4096), (250_000, 50_000)] {
            files[0].write_all_at(&vec![0; len], at as u64).unwrap();
            want[at..at + len].fill(0);
        }
        end(cluster, files, &want);
    }
}

/// S2.12: the size that `ftruncate` sets is seen at once, without fsync; S2.5: what was cut off does not come back.
#[test]
fn a_size_that_was_set_is_seen() {
    for drain in BOTH {
        let (cluster, files) = opened(drain, &[1; 50_000]);
        files[0].write_all_at(&[2; 50_000], 50_000).unwrap();
        files[1].write_all_at(&[3; 100], 70_000).unwrap();
        files.iter().for_each(|file| file.sync_all().unwrap());
        for (turn, size) in [60_000u64, 40_000, 80_000, 90_000, 30_000]
            .into_iter()
            .enumerate()
        {
            let (here, there) = (&files[turn % 2], &files[(turn + 1) % 2]);
            // Unpublished bytes, so that the size is not only the canonical file's.
            here.write_all_at(&[1; 10], 10).unwrap();
            here.set_len(size).unwrap();
            let seen = there.metadata().unwrap().len();
            assert_eq!(seen, size, "{}, turn {turn}", drain.key());
        }
        files[0].set_len(45_000).unwrap();
        let mut want = vec![1; 45_000];
        want[30_000..].fill(0);
        end(cluster, files, &want);
    }
}

/// S2.13: a handle reads past the end and then writes there: other nodes know the end from then on.
#[test]
fn an_end_that_was_read_past_is_published() {
    for drain in BOTH {
        let (cluster, files) = opened(drain, b"");
        let mut want = vec![0; 0];
        for turn in 0..10usize {
            // The range overlaps the end of the other node's range and goes on past it. It has that node's bytes in
            // its holes.
            let file = &files[turn % 2];
            let at = turn * 1000;
            let mut buffer = vec![0xAA; 2000];
            let got = read(file, at as u64, 2000);
            assert_eq!(got.len(), want.len().saturating_sub(at), "turn {turn}");
            buffer[..got.len()].copy_from_slice(&got);
            want.resize(at + 2000, 0xAA);
            for i in (0..2000).step_by(10) {
                buffer[i] = turn as u8;
                want[at + i] = turn as u8;
            }
            file.write_all_at(&buffer, at as u64).unwrap();
        }
        end(cluster, files, &want);
    }
}
