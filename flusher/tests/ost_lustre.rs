//! The Lustre provider end to end, on a simulated PFS that takes the same calls. There was no real
//! Lustre to test with.

mod ost_sim;

use flusher::ost::lustre_abi::{Layout, XATTR_LUSTRE_LOV};
use flusher::ost::{Lustre, Ost, ProbeOptions, Provider, probe};
use forebay_tests::sys;
use ost_sim::{Pfs, probe_all, quick};
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn layout(path: &Path) -> Layout {
    let bytes = sys::get_xattr(path, XATTR_LUSTRE_LOV).expect("the layout");
    Layout::decode(&bytes).expect("a layout")
}

fn written(pfs: &Pfs) -> Vec<u64> {
    let counters = pfs.sim.counters().expect("counters");
    let osts = counters.osts.iter();
    osts.map(|ost| ost.tally.bytes_written).collect()
}

/// S9.9
#[test]
fn every_byte_of_a_subfile_is_on_its_ost() {
    let pfs = Pfs::new(quick(4));
    let lustre = pfs.lustre();
    let osts = lustre.osts().expect("list");
    let names: Vec<&str> = osts.iter().map(|ost| ost.name.as_str()).collect();
    assert_eq!(
        names,
        ["sim-OST0000", "sim-OST0001", "sim-OST0002", "sim-OST0003"]
    );
    for ost in [&osts[2], &osts[0], &osts[3], &osts[1]] {
        pfs.sim.reset_counters().expect("reset");
        let file = lustre.create(ost, "1-2", false).expect("create");
        file.write_all_at(&vec![7; 5 * MIB], 0).expect("write");
        file.sync_all().expect("sync");
        let mut expected = [0; 4];
        expected[ost.index as usize] = 5 * MIB as u64;
        assert_eq!(written(&pfs), expected);
        let path = format!(".forebay/subfiles/{}/1-2", ost.index);
        assert_eq!(layout(&pfs.mount().join(path)).osts(), [ost.index]);

        let again = lustre.create(ost, "1-2", false).expect_err("it is there");
        assert_eq!(again.errno(), Some(libc::EEXIST));
        let mut start = [0];
        let opened = lustre.open(ost, "1-2").expect("open");
        opened.read_exact_at(&mut start, 0).expect("read");
        assert_eq!(start, [7]);
    }
    lustre.create(&osts[1], "second", false).expect("create");
    for (ost, expected) in osts.iter().zip([1, 2, 1, 1]) {
        assert_eq!(lustre.list(ost).expect("list").len(), expected);
        lustre.remove(ost, "1-2").expect("remove");
        lustre.remove(ost, "1-2").expect("gone is no error");
        let gone = lustre.open(ost, "1-2").expect_err("removed");
        assert_eq!(gone.errno(), Some(libc::ENOENT));
    }
    assert_eq!(lustre.list(&osts[1]).expect("list"), ["second"]);
}

/// S9.9: "A subfile is on the target it was asked for". A node has made a file and not chosen its
/// place yet. Another node, which cleans up after probes, looks at the file, and that does not
/// decide the place.
#[test]
fn looking_at_a_file_does_not_place_it() {
    let pfs = Pfs::new(quick(2));
    let lustre = pfs.lustre();
    let ost = &lustre.osts().expect("list")[1];
    lustre.create(ost, "first", false).expect("its directory");
    let name = ".forebay/subfiles/1/probe-0123456789abcdef";
    let made = canonical(&pfs, name, lustre.create_flags());
    let modified = lustre
        .modified(ost, "probe-0123456789abcdef")
        .expect("look");
    assert!(
        modified
            .elapsed()
            .is_ok_and(|age| age < Duration::from_secs(3600))
    );
    let placed = sys::get_xattr(&pfs.mount().join(name), XATTR_LUSTRE_LOV);
    assert!(placed.is_err(), "it has objects");
    drop(made);
    let gone = lustre.modified(ost, "none").expect_err("not there");
    assert_eq!(gone.errno(), Some(libc::ENOENT));
}

fn canonical(pfs: &Pfs, name: &str, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let file = options.custom_flags(flags).open(pfs.mount().join(name));
    file.expect("create a canonical file")
}

/// S9.8
#[test]
fn a_canonical_file_is_striped_over_the_chosen_osts() {
    let pfs = Pfs::new(quick(4));
    let lustre = pfs.lustre();
    let osts = lustre.osts().expect("list");
    let chosen: Vec<Ost> = [3, 1].map(|n| osts[n].clone()).to_vec();
    let unit = 1 << 18;
    let file = canonical(&pfs, "file", lustre.create_flags());
    assert!(lustre.stripe(file.as_fd(), &chosen, unit).expect("stripe"));
    let got = layout(&pfs.mount().join("file"));
    assert_eq!((got.osts(), got.stripe_size), (vec![3, 1], unit as u32));
    file.write_all_at(&vec![1; 4 * MIB], 0).expect("write");
    file.sync_all().expect("sync");
    let half = 2 * MIB as u64;
    assert_eq!(written(&pfs), [0, half, 0, half]);
    // The file has its place already.
    let all = lustre.stripe(file.as_fd(), &osts, unit);
    assert!(!all.expect("no error"));
    assert_eq!(layout(&pfs.mount().join("file")).osts(), [3, 1]);
}

/// S9.9: without the flags of `create_flags` a file has objects at once, and striping that is set
/// afterwards is silently ignored. That must not be taken for success.
#[test]
fn a_file_that_has_objects_already_is_not_said_to_be_striped() {
    let pfs = Pfs::new(quick(4));
    let lustre = pfs.lustre();
    let osts = lustre.osts().expect("list");
    let file = canonical(&pfs, "file", 0);
    let before = layout(&pfs.mount().join("file"));
    let striped = lustre.stripe(file.as_fd(), &osts[..2], 1 << 20);
    assert!(!striped.expect("no error"));
    assert_eq!(layout(&pfs.mount().join("file")), before);
}

#[test]
fn an_ost_that_the_file_system_does_not_have_is_refused() {
    let pfs = Pfs::new(quick(2));
    let list = pfs
        .root()
        .join("proc/fs/lustre/lov/sim-clilov-0000000000000001/target_obd");
    let more =
        "0: sim-OST0000_UUID ACTIVE\n1: sim-OST0001_UUID ACTIVE\n9: sim-OST0009_UUID ACTIVE\n";
    std::fs::write(list, more).expect("write the list");
    let lustre = pfs.lustre();
    let osts = lustre.osts().expect("list");
    let said = lustre.create(&osts[2], "a", true).expect_err("no such OST");
    let text = said.to_string();
    assert!(
        text.contains("OST 9 (sim-OST0009)") && text.contains("is the OST gone"),
        "{text}"
    );
    // Nothing is left behind, and the file is not made again without O_DIRECT.
    assert_eq!(
        (said.errno(), lustre.list(&osts[2]).expect("list").len()),
        (None, 0)
    );
}

#[test]
fn probes_go_to_the_ost_they_are_for() {
    let pfs = Pfs::new(quick(3).slow("1", "500K"));
    let lustre: Arc<Lustre> = Arc::new(pfs.lustre());
    let probed = probe_all(lustre.clone(), Duration::from_secs(20));
    assert_eq!(written(&pfs), [2 * MIB as u64; 3]);
    let rate = |n: usize| probed[n].result.as_ref().expect("measured").bandwidth;
    assert!(rate(1) < 6e5, "the slow one: {}", rate(1));
    assert!(rate(0) > 4.0 * rate(1) && rate(2) > 4.0 * rate(1));
    for one in &probed {
        assert_eq!(lustre.list(&one.ost).expect("list"), [""; 0]);
    }
}

/// A few slow OSTs do not make the probe of all of them slow.
#[test]
fn a_slow_ost_is_cut_off_when_most_are_done() {
    let pfs = Pfs::new(quick(8).slow("5", "500K"));
    let lustre: Arc<dyn Provider> = Arc::new(pfs.lustre());
    let osts = lustre.osts().expect("list the OSTs");
    let options = ProbeOptions {
        size: 32 << 20,
        deadline: Duration::from_secs(60),
    };
    for one in probe(&lustre, &osts, options) {
        let measured = one.result.expect("measured");
        let whole = measured.bytes == 32 << 20;
        assert_eq!(whole, one.ost.index != 5, "{measured:?}");
        if !whole {
            assert!(measured.bandwidth < 1e6, "{measured:?}");
        }
    }
}

/// If no OSTs are chosen, the file gets the striping of its directory, and takes bytes.
#[test]
fn a_canonical_file_without_chosen_osts_is_placed_by_default() {
    let pfs = Pfs::new(quick(4).stripe("1M", 3));
    let lustre = pfs.lustre();
    let file = canonical(&pfs, "f", lustre.create_flags());
    assert!(lustre.stripe(file.as_fd(), &[], 1 << 20).expect("place"));
    assert_eq!(layout(&pfs.mount().join("f")).osts().len(), 3);
    file.write_all_at(&[1; 100], 0).expect("write");
}
