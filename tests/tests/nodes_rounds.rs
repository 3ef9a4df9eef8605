//! What a round writes to canonical files, counted by the simulated file system: whole stripes, each byte
//! once, and nothing that is not the file's any more.

mod nodes_pair;

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put};
use forebay_tests::rng::Rng;
use forebay_tests::sys;
use nodes_pair::{MIB, Shared, until};
use pfs_sim::{Sim, Tally};

/// Two nodes that publish with each close and drain when they are asked to.
struct Pair {
    a: Bay,
    b: Bay,
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

    /// All that was written until now is published; from here on requests count.
    fn published(&self, layouts: usize) {
        assert_eq!(self.shared.names('l').len(), layouts, "published");
        let counters = self.shared.sim().counters().expect("read the counters");
        let mut files = counters.files.iter();
        let drained =
            files.find(|file| !file.path.starts_with(".forebay/") && file.tally.bytes_written > 0);
        assert_eq!(drained, None, "published is not drained");
        self.shared.sim().reset_counters().expect("reset");
    }

    /// Both at once, so that each may take its part.
    fn drain(&self) {
        std::thread::scope(|scope| {
            for node in [&self.a, &self.b] {
                scope.spawn(move || node.drain());
            }
        });
    }

    /// What reached a canonical file since then.
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

/// S4.4: "Data that was overwritten, truncated away or removed is dropped and not drained"; S2.5: a cut counts
/// "for the data of all nodes that had been published before". One node has published 8 MiB; the other cuts
/// that to 1 MiB, and writes over what is left.
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

/// S4.4, and S2.6: what is published "of a file without a name is dropped and never drained". The name is taken
/// away by another node than the one that has published.
#[test]
fn what_another_node_has_removed_is_not_drained() {
    let pair = Pair::new();
    put(pair.a.path("gone"), data(3, 8 * MIB));
    pair.published(1);
    std::fs::remove_file(pair.b.path("gone")).expect("unlink");
    pair.drain();
    // It has no name to be counted under: all that nodes wrote is what they told each other.
    let written = pair.shared.written();
    assert!(written <= 256 << 10, "{written} bytes");
    until("its subfiles are gone", || {
        pair.shared.subfiles().is_empty()
    });
    pair.finish();
}

/// S2.8: "Nodes share the work", in units of the file's stripes. Both have written every other block, and blocks
/// end nowhere near a stripe: what reaches the canonical file is whole stripes all the same, each once.
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
