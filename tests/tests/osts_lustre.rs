//! Checks where files and their subfiles are on a file system with Lustre's calls, as that file system itself tells.
//!
//! Checks S4, S8.9, S9, S9.2, S9.3, S9.8 and S9.9 there.

mod lustre_sim;

use forebay_tests::rng::Rng;
use forebay_tests::test_mount::{Drain, put};
use forebay_tests::users::{ALICE, as_user};
use forebay_tests::wait::{LONG, wait_until};
use lustre_sim::{Lustre, MIB};
use pfs_sim::{Sim, Tally};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

forebay_tests::with_one_node_and_many!(
    files_and_subfiles_are_on_the_fast_osts,
    whole_stripes_reach_subfiles_in_whole_writes,
);

fn files_and_subfiles_are_on_the_fast_osts(nodes: &str) {
    let builder = Sim::builder().osts(5).bandwidth("10M").slow("1,3", "1M");
    let mut lustre = Lustre::new(builder.stripe("1M", 5), Drain::Never, nodes);
    // The drain takes long enough to look at it.
    lustre.test_mount.set("drain-rate", "3MiB");
    // Probe and deadline are long enough that on a busy machine fast OSTs do not look slow, or as if they hung.
    lustre.test_mount.set("probe-size", "8MiB");
    lustre.test_mount.set("ost-deadline", "10s");
    lustre.start();
    let status = lustre.test_mount.status();
    let fast = status.chosen();
    assert_eq!(fast, [0, 2, 4], "{:#}", status.0);
    assert_eq!(status.target(1)["state"], "left-out");

    let data = Rng::new(1).bytes(10 * MIB + 5);
    let path = lustre.test_mount.path("f");
    as_user(ALICE, &[], || put(&path, &data));
    let below = lustre.test_mount.canonical("f");
    assert_eq!(lustre.striped_over(&below), fast);

    let before = lustre.written();
    lustre.drain("f", &[]);
    let there = wait_until("a subfile on each fast OST", LONG, || {
        let there = lustre.subfiles();
        fast.iter().all(|n| !there[*n].is_empty()).then_some(there)
    });
    for (ost, files) in there.iter().enumerate() {
        assert_eq!(files.len(), usize::from(fast.contains(&ost)), "OST {ost}");
        for file in files {
            assert_eq!(lustre.striped_over(file), [ost], "{}", file.display());
            let meta = std::fs::metadata(file).expect("a subfile while it drains");
            assert_eq!((meta.uid(), meta.gid()), (ALICE, ALICE));
            assert_eq!(meta.mode() & 0o7777, 0o600);
        }
    }
    lustre.test_mount.drain();
    lustre.has_all("f", &data);
    let after = lustre.written();
    for (ost, (before, after)) in before.iter().zip(&after).enumerate() {
        assert_eq!(after > before, fast.contains(&ost), "data on OST {ost}");
    }
    wait_until("the subfiles are removed", LONG, || {
        let left: usize = lustre.subfiles().iter().map(Vec::len).sum();
        (left == 0).then_some(())
    });
    lustre.finish();
}

/// S9: the way that data takes changes how fast it gets to the canonical file, and subfiles are written as file
/// systems like it best: data that a job wrote in small pieces arrives a stripe at a time, aligned (decision 0007:
/// one aligned write).
fn whole_stripes_reach_subfiles_in_whole_writes(nodes: &str) {
    const SMALL: usize = 47_008;
    let builder = Sim::builder().osts(3).bandwidth("50M").stripe("1M", 3);
    let mut lustre = Lustre::new(builder, Drain::Never, nodes);
    lustre.test_mount.set("stripe", "1MiB").set("probe", "off");
    // The drain takes long enough to look at it: subfiles have counters while they are there.
    lustre.test_mount.set("drain-rate", "3MiB");
    lustre.test_mount.set("ost-deadline", "10s");
    lustre.start();
    let data = Rng::new(2).bytes(12 * MIB);
    let file = File::create(lustre.test_mount.path("f")).expect("create");
    for (n, part) in data.chunks(SMALL).enumerate() {
        file.write_all_at(part, (n * SMALL) as u64).expect("write");
    }
    drop(file);
    lustre.drain("f", &[]);
    let seen = wait_until("all of it is in subfiles", LONG, || {
        let seen = written_to_subfiles(&lustre.sim);
        (seen.bytes_written >= data.len() as u64).then_some(seen)
    });
    assert_eq!(seen.unaligned_writes, 0, "{seen:?}");
    assert_eq!(seen.read_modify_writes, 0, "{seen:?}");
    let mean = seen.bytes_written / seen.writes;
    assert!(mean >= MIB as u64, "{mean} bytes at a time: {seen:?}");
    lustre.test_mount.drain();
    lustre.has_all("f", &data);
    lustre.finish();
}

fn written_to_subfiles(sim: &Sim) -> Tally {
    let counters = sim.counters().expect("read the counters");
    let mut sum = Tally::default();
    for file in &counters.files {
        if file.path.starts_with(".forebay/subfiles/") {
            sum.add(&file.tally);
        }
    }
    sum
}
