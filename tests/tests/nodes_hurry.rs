//! What was announced comes, whatever else the node that announced it is busy with.
//!
//! Checks S2.2: an open waits for announced bytes and asks for them, and they are published then: not
//! after a drain that has all the time in the world, and not never.

mod nodes_pair;

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put};
use forebay_tests::loopfs::LoopFs;
use forebay_tests::rng::Rng;
use forebay_tests::sys;
use forebay_tests::wait::{in_background, in_time};
use nodes_pair::{MIB, Shared, until};

const SIZE: usize = 16 * MIB;

/// The drain of `SIZE` takes two minutes at that rate: longer than an open waits.
const SLOW: &str = "128KiB";
const PATIENCE: &str = "30s";

fn node(shared: &Shared, name: &str, drain: Drain) -> Bay {
    let mut bay = shared.node(name, drain);
    bay.set("visibility-timeout", PATIENCE);
    bay
}

fn read_on(bay: &Bay) -> Vec<u8> {
    let path = bay.path("f");
    in_time("the reader", in_background(move || get(path)))
}

/// What another node waits for is not held to `drain-rate`, also if a drain that is has begun.
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
    // If it was published, its round has all the time in the world again.
    for mut bay in [reader, writer] {
        bay.umount_with(&["--keep"]);
    }
}

/// Bytes that are announced while this node drains older ones of the file do not wait for that.
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
    // The rest would take its two minutes.
    for mut bay in [reader, writer] {
        bay.umount_with(&["--keep"]);
    }
}

/// The only target is full of what this node has published of the file, so that the rest cannot be
/// published before that is drained: it is drained, and the announcement comes true (S9.4).
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
        let mut bay = node(&shared, name, Drain::OnClose);
        bay.set("probe", "off");
        bay.arg("--ost").arg(target.dir().to_str().expect("a name"));
        bay.start();
        bay
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
    until("no promise is left", || shared.names('i').is_empty());
    reader.finish();
    writer.finish();
    assert_same("canonical", &get(shared.canonical("f")), &want);
}
