//! Compares two to four daemons over one backing with a model: at least 20,000 random operations (those that only
//! compare are counted apart), with every byte checked on every node after each sync point, daemons killed and
//! started all the time, and the drain at work on at least one of them.
//!
//! Checks S2.1 (bytes that a node wrote before a close, fsync or unlock are read by every open, fsync or lock that
//! comes after it, on every node), S2.4 (neighbouring bytes), S2.5 (cuts), S2.6 (names), S2.7 (`kill -9`), S3.6
//! (locks are sync points) and S4 (the canonical file after the drain). `FOREBAY_SEED` replays a run, `FOREBAY_OPS`
//! sets the number of operations.

use forebay_tests::cluster::Cluster;
use forebay_tests::nodes::{Counts, World};
use forebay_tests::rng::{self, Rng};
use forebay_tests::test_mount::Drain;
use std::time::Duration;

/// Checks S2, S2.1, S2.4, S2.5, S2.6, S2.7, S2.8, S3.6, S4 and S5.1.
#[test]
fn nodes_agree() {
    let seed = rng::seed("nodes against the model");
    let operations = rng::count("FOREBAY_OPS", 20_000);
    let parts = 4;
    let mut all = Counts::default();
    for part in 0..parts {
        all += run(seed, part, operations.div_ceil(parts));
    }
    println!("all parts: {all}");
    assert!(all.kills > 0, "no daemon was killed: {all}");
    assert!(all.drained > 0, "no drain went on meanwhile: {all}");
}

/// Runs a part of the test on a cluster of its own, with other settings.
fn run(seed: u64, part: u64, operations: u64) -> Counts {
    let mut rng = Rng::derive(seed, part);
    let nodes = 2 + (seed + part) as usize % 3;
    let limit = Duration::from_secs(600 + operations / 10);
    let mut cluster = Cluster::new(nodes, Drain::Immediate, limit);
    // Names of other nodes are seen at once.
    cluster.set("attr-timeout", "0s").set("stripe", "64KiB");
    let mut settings = Vec::new();
    // At least one node drains at once, so that a drain goes on all the time.
    let always = rng.below(nodes as u64) as usize;
    for node in 0..nodes {
        let drain = match node == always {
            true => Drain::Immediate,
            false => *rng.pick(&Drain::ALL),
        };
        let drain = drain.key();
        let close = *rng.pick(&["defer", "defer", "defer-next", "publish"]);
        settings.push(format!("node {node}: drain {drain}, close {close}"));
        cluster
            .mount_mut(node)
            .set("drain", drain)
            .set("close", close);
    }
    println!("part {part}: {}", settings.join("; "));
    cluster.start();
    let mut world = World::new(cluster, rng);
    while world.counts().operations < operations {
        world.turn();
    }
    println!("part {part}: {}", world.summary());
    // Drains and checks of the end itself do not count.
    let counts = world.counts();
    world.end().finish();
    counts
}
