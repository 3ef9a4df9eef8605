//! Announced data is published, whatever else the node that announced it is busy with.
//!
//! Checks S2.2: an open waits for announced bytes and asks for them, and they are published then. They do not wait
//! for the end of a slow drain.

mod nodes_pair;

use forebay_tests::loopfs::LoopFs;
use forebay_tests::rng::Rng;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put};
use forebay_tests::wait::{in_background, in_time};
use nodes_pair::{MIB, Shared, until};

const SIZE: usize = 16 * MIB;

/// The drain of `SIZE` takes two minutes at this rate, which is longer than an open waits.
const SLOW: &str = "128KiB";
const PATIENCE: &str = "30s";

fn node(shared: &Shared, name: &str, drain: Drain) -> TestMount {
    let mut mount = shared.node(name, drain);
    mount.set("visibility-timeout", PATIENCE);
    mount
}

fn read_on(mount: &TestMount) -> Vec<u8> {
    let path = mount.path("f");
    in_time("the reader", in_background(move || get(path)))
}

/// Data that another node waits for is not held to `drain-rate`, also if a drain at that rate has begun.
#[test]
fn a_drain_at_a_rate_hurries_when_asked() {
    let shared = Shared::plain();
    let mut writer = node(&shared, "writer", Drain::Immediate);
    writer.set("drain-rate", SLOW).start();
    let mut reader = node(&shared, "reader", Drain::Immediate);
    reader.start();
    let want = Rng::new(1).bytes(SIZE);
    put(writer.path("f"), &want);
    assert_same("on the other node", &read_on(&reader), &want);
    // If the data was published, its round is slow again.
    for mut mount in [reader, writer] {
        mount.umount_with(&["--keep"]);
    }
}

/// Bytes that are announced while this node drains older bytes of the file do not wait for that drain.
#[test]
fn what_is_announced_during_a_round_does_not_wait_for_its_end() {
    let shared = Shared::plain();
    let mut writer = node(&shared, "writer", Drain::Immediate);
    writer.set("drain-rate", SLOW).set("subfiles", "always");
    writer.start();
    let mut reader = node(&shared, "reader", Drain::Immediate);
    reader.start();
    let mut want = Rng::new(2).bytes(SIZE);
    put(writer.path("f"), "");
    let file = open_rw(writer.path("f"));
    sys::write_all_at(&file, &want, 0).expect("write");
    file.sync_all().expect("fsync");
    until("a round is under way", || !shared.names('d').is_empty());
    want[7..12].copy_from_slice(b"newer");
    sys::write_all_at(&file, b"newer", 7).expect("write");
    sys::close(file).expect("close");
    assert_same("on the other node", &read_on(&reader), &want);
    assert!(
        !shared.names('l').is_empty(),
        "the round is over already: nothing was shown"
    );
    // The rest of the drain would take its two minutes.
    for mut mount in [reader, writer] {
        mount.umount_with(&["--keep"]);
    }
}

/// The only target is full of what this node has published of the file, so the rest cannot be published before that
/// is drained. It is drained, and the announcement is fulfilled (S9.4).
#[test]
fn a_target_full_of_published_data_is_no_dead_end() {
    let shared = Shared::plain();
    let root = tempfile::tempdir().expect("make a directory");
    let target = LoopFs::new(
        &root.path().join("img"),
        &root.path().join("ost"),
        16 * MIB as u64,
    );
    let with_target = |name: &str| {
        let mut mount = node(&shared, name, Drain::OnClose);
        mount.set("probe", "off");
        mount
            .arg("--ost")
            .arg(target.dir().to_str().expect("a name"));
        mount.start();
        mount
    };
    let (mut writer, reader) = (with_target("writer"), with_target("reader"));
    writer.allow_log("No space left on device");
    let mut want = Rng::new(3).bytes(8 * MIB);
    put(writer.path("f"), "");
    writer.drain();
    let file = open_rw(writer.path("f"));
    sys::write_all_at(&file, &want, 0).expect("write");
    file.sync_all().expect("fsync");
    assert_eq!(shared.names('l').len(), 1, "published");
    let more = Rng::new(4).bytes(SIZE);
    sys::write_all_at(&file, &more, want.len() as u64).expect("write");
    want.extend(more);
    sys::close(file).expect("close");
    assert_same("on the other node", &read_on(&reader), &want);
    until("no announcement is left", || shared.names('i').is_empty());
    reader.finish();
    writer.finish();
    assert_same("canonical", &get(shared.canonical("f")), &want);
}
