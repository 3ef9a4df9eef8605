//! The writes of a round to canonical files, counted by the simulated file system: whole stripes, each byte once,
//! and nothing that no longer belongs to the file.

mod nodes_pair;

use forebay_tests::rng::Rng;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use nix::sys::signal::Signal;
use nodes_pair::{MIB, Shared, until};
use pfs_sim::{Change, Failure, Sim, Tally};
use std::os::unix::fs::FileExt;

/// Two nodes that publish with each close and drain when they are asked to.
struct Pair {
    a: TestMount,
    b: TestMount,
    shared: Shared,
}

impl Pair {
    fn new() -> Pair {
        let builder = Sim::builder().osts(2).bandwidth("500M").stripe("1M", 2);
        let shared = Shared::simulated(builder);
        let [a, b] = ["a", "b"].map(|name| {
            let mut node = shared.node(name, Drain::Never);
            node.set("close", "publish").set("stripe", "1MiB");
            node.start();
            node
        });
        Pair { a, b, shared }
    }

    /// Checks that everything that was written until now is published. From here on requests count.
    fn published(&self, layouts: usize) {
        assert_eq!(self.shared.names('l').len(), layouts, "published");
        let counters = self.shared.sim().counters().expect("read the counters");
        let mut files = counters.files.iter();
        let drained =
            files.find(|file| !file.path.starts_with(".forebay/") && file.tally.bytes_written > 0);
        assert_eq!(drained, None, "published is not drained");
        self.shared.sim().reset_counters().expect("reset");
    }

    /// Drains on both nodes at once, so that each may take its part.
    fn drain(&self) {
        std::thread::scope(|scope| {
            for node in [&self.a, &self.b] {
                scope.spawn(move || node.drain());
            }
        });
    }

    /// Returns what has reached a canonical file since then.
    fn tally(&self, name: &str) -> Tally {
        let counters = self.shared.sim().counters().expect("read the counters");
        counters.file(name).map(|f| f.tally).unwrap_or_default()
    }

    fn finish(self) {
        self.b.finish();
        self.a.finish();
    }
}

fn data(seed: u64, size: usize) -> Vec<u8> {
    Rng::new(seed).bytes(size)
}

/// S4.4: data that was overwritten, truncated away or removed is dropped and not drained; S2.5: a cut counts for the
/// data of all nodes that had been published before. One node has published 8 MiB; the other cuts that to 1 MiB, and
/// overwrites what is left.
#[test]
fn what_another_node_has_replaced_is_not_drained() {
    let pair = Pair::new();
    put(pair.a.path("f"), data(1, 8 * MIB));
    let path = pair.b.path("f");
    sys::truncate(&path, MIB as u64).expect("truncate");
    let want = data(2, MIB);
    let file = open_rw(&path);
    sys::write_all_at(&file, &want, 0).expect("write");
    sys::close(file).expect("close");
    pair.published(2);
    pair.drain();
    let seen = pair.tally("f");
    assert_same("canonical", &get(pair.shared.canonical("f")), &want);
    let most = (MIB + MIB / 4) as u64;
    assert!(seen.bytes_written <= most, "{seen:?}");
    pair.finish();
}

/// S4.4 and S2.6: published data of a file without a name is dropped and never drained. Here another node than the
/// one that has published it removes the name.
#[test]
fn what_another_node_has_removed_is_not_drained() {
    let pair = Pair::new();
    put(pair.a.path("gone"), data(3, 8 * MIB));
    pair.published(1);
    std::fs::remove_file(pair.b.path("gone")).expect("unlink");
    pair.drain();
    // The file has no name to be counted under: all that the nodes wrote is what they told each other.
    let written = pair.shared.written();
    assert!(written <= 256 << 10, "{written} bytes");
    until("its subfiles are gone", || {
        pair.shared.subfiles().is_empty()
    });
    pair.finish();
}

/// S2.6 and S2.8: a drain that was asked for ends when another node has removed the file meanwhile, although that node
/// keeps what it has published of it. The drain fails half way, so that it looks at the file again after the removal.
#[test]
fn a_drain_ends_when_another_node_removes_the_file() {
    let mut pair = Pair::new();
    put(pair.b.path("gone"), data(5, 8 * MIB));
    pair.published(1);
    pair.a.umount();
    pair.a
        .set("drain-rate", "1MiB")
        .allow_log("Input/output error");
    pair.a.start();
    let path = pair.a.path("gone");
    let out = pair.a.run(["drain".as_ref(), path.as_os_str()]);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out));
    until("its drain has begun", || {
        pair.tally("gone").bytes_written > 0
    });
    let fail = |how| pair.shared.sim().set_all(Change::default().fail(how));
    fail(Failure::Eio).expect("fail");
    until("its drain has failed", || {
        pair.a
            .status()
            .at("/errors")
            .to_string()
            .contains("Input/output error")
    });
    pair.a.signal(Signal::SIGSTOP);
    fail(Failure::None).expect("heal");
    std::fs::remove_file(pair.b.path("gone")).expect("unlink");
    pair.a.signal(Signal::SIGCONT);
    pair.a.drain();
    until("its subfiles are gone", || {
        pair.shared.subfiles().is_empty()
    });
    pair.finish();
}

/// S1.5 and S2.6: what a node has published of a file that it removes stays readable through its open handles, and is
/// dropped with the last of them, although the node drains nothing by itself.
#[test]
fn what_was_published_and_removed_is_dropped_with_the_last_handle() {
    let pair = Pair::new();
    let want = data(6, 8 * MIB);
    put(pair.b.path("gone"), &want);
    pair.published(1);
    let open = open_rw(pair.b.path("gone"));
    std::fs::remove_file(pair.b.path("gone")).expect("unlink");
    pair.b.drain();
    assert_ne!(pair.shared.subfiles(), Vec::<std::path::PathBuf>::new());
    let mut got = vec![0; want.len()];
    open.read_exact_at(&mut got, 0).expect("read");
    assert_same("through the handle", &got, &want);
    drop(open);
    until("its subfiles are gone", || {
        pair.shared.subfiles().is_empty()
    });
    pair.finish();
}

/// S2.8: nodes share the work, in units of the file's stripes. Both have written every other block, and blocks end
/// nowhere near a stripe: the canonical file gets whole stripes all the same, each once.
#[test]
fn interleaved_blocks_are_drained_as_whole_stripes() {
    const BLOCK: usize = 47008;
    const STRIPES: usize = 16;
    let pair = Pair::new();
    let want = data(4, STRIPES * MIB);
    put(pair.a.path("f"), b"");
    for (n, node) in [&pair.a, &pair.b].into_iter().enumerate() {
        let file = open_rw(node.path("f"));
        for (i, block) in want.chunks(BLOCK).enumerate().filter(|(i, _)| i % 2 == n) {
            sys::write_all_at(&file, block, (i * BLOCK) as u64).expect("write");
        }
        sys::close(file).expect("close");
    }
    pair.published(2);
    pair.drain();
    let seen = pair.tally("f");
    assert_same("canonical", &get(pair.shared.canonical("f")), &want);
    assert_eq!(seen.bytes_written, want.len() as u64, "{seen:?}");
    assert_eq!(seen.unaligned_writes, 0, "{seen:?}");
    assert_eq!(seen.read_modify_writes, 0, "{seen:?}");
    assert_eq!(seen.writes, STRIPES as u64, "{seen:?}");
    pair.finish();
}
