//! Cases that `forebay drain --adopt` leaves alone because it cannot know enough: bytes that only a store knows of
//! (S6: nothing is freed before what replaces it is there), and nodes of which nothing certain is known (S8.12).

mod nodes_adopt_rig;
mod nodes_pair;

use forebay_tests::cli::{FAILED, OK, code};
use forebay_tests::sys;
use forebay_tests::test_mount::{assert_same, get, open_rw, put, text};
use forebay_tests::wait::LONG;
use nix::sys::signal::Signal;
use nodes_adopt_rig::*;
use nodes_pair::{MIB, Shared, json, texts, until};
use pfs_sim::{Change, Sim};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::channel;

/// A subfile of a dead node may have bytes that its store has moved there and not published: the store has no other
/// copy of them. A subfile is removed only if it is published to the last byte.
#[test]
fn a_subfile_that_has_more_than_was_published_stays() {
    let shared = Shared::plain();
    let mut a = publisher(&shared, "a");
    a.start();
    let want = data(51, 2 * MIB);
    put(a.path("f"), &want);
    a.kill();
    let subfiles = shared.subfiles();
    let [subfile] = &subfiles[..] else {
        panic!("one subfile, not {subfiles:?}");
    };
    let len = fs::metadata(subfile).expect("stat").len();
    let more = fs::File::options().write(true).open(subfile).expect("open");
    sys::write_all_at(&more, &[7; 4096], len.next_multiple_of(4096)).expect("append");
    drop(more);

    let login = login();
    let out = adopt(&login, &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("canonical", &get(shared.canonical("f")), &want);
    assert_eq!(shared.subfiles(), subfiles, "it stays");
    let report = json(&out);
    assert_eq!(report["removed_subfiles"], 0, "{report:#}");
    assert_eq!(report["kept_subfiles"], 1, "{report:#}");
    let said = text(&adopt(&login, &shared, &[]));
    assert!(said.contains("kept"), "people are told: {said}");
    a.start();
    assert_same("when it is back", &read_on(&a, "f"), &want);
    until("it removes what is its own", || {
        shared.subfiles().is_empty()
    });
    a.finish();
}

fn chmod(dir: &Path, mode: u32) {
    fs::set_permissions(dir, fs::Permissions::from_mode(mode)).expect("chmod");
}

/// Writes `first`, and `more` behind it while `first` is being published. Returns the file; `more` is then in the
/// log of a dirty period that has a subfile. Starts no process.
fn write_during_a_publication(shared: &Shared, path: &Path, first: &[u8], more: &[u8]) -> File {
    let file = open_rw(path);
    sys::write_all_at(&file, first, 0).expect("write");
    let slow = |time: &str| {
        let change = Change::default().latency(time);
        shared.sim().set_all(change).expect("change the OSTs");
    };
    slow("500ms");
    std::thread::scope(|scope| {
        // This is not fsync: the kernel lets no process write during that.
        let other = open_rw(path);
        let closed = scope.spawn(|| sys::close(other));
        // The content of the batch is settled once its layout has a name. Now the layout is being written.
        until("it is being published", || shared.names('l').len() == 1);
        sys::write_all_at(&file, more, first.len() as u64).expect("write");
        assert!(
            !closed.is_finished(),
            "the machine was too slow for this test"
        );
        slow("0");
        closed.join().expect("no panic").expect("close");
    });
    file
}

/// The same as it comes about in practice: one publication ended while a program went on writing, so that the dirty
/// period and its subfile stayed; the next publication had moved its bytes there and could not tell any other node;
/// then the node died.
#[test]
fn what_was_moved_and_not_published_is_not_lost() {
    let builder = Sim::builder().osts(4).bandwidth("500M").stripe("1M", 4);
    let shared = Shared::simulated(builder);
    let mut a = publisher(&shared, "a");
    a.allow_log("is not the daemon's alone");
    a.set("ost-deadline", "10m").start();
    put(a.path("f"), "");
    let mut want = data(81, 2 * MIB);
    let more = data(82, MIB);
    let path = a.path("f");
    let (tell, told) = channel();
    let (go_on, going) = channel::<()>();
    let (shared, first, second) = (&shared, &want, &more);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            sys::own_descriptors().expect("unshare");
            let file = write_during_a_publication(shared, &path, first, second);
            let other = open_rw(&path);
            // A node does not publish in a directory that other users may change.
            chmod(&shared.file_dir(), 0o777);
            tell.send(sys::close(other)).expect("tell");
            // The file stays open until its node is dead.
            going.recv().unwrap_or_default();
            drop(file);
        });
        // `go_on` is moved here, so that it is dropped also if something fails below.
        let go_on = go_on;
        let closed = told.recv_timeout(LONG).expect("it came to its close");
        closed.expect_err("no other node could be told of the rest");
        let status = a.status();
        assert_eq!(status.in_log(), 0, "it was moved all the same");
        let all = first.len() + second.len();
        assert_eq!(status.undrained(), all as u64, "and is not drained");
        assert_eq!(shared.subfiles().len(), 1, "to the same subfile");
        a.kill();
        go_on.send(()).expect("it waits");
    });
    chmod(&shared.file_dir(), 0o700);

    let out = adopt(&login(), shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("what was published", &get(shared.canonical("f")), &want);
    assert_eq!(json(&out)["kept_subfiles"], 1, "{}", text(&out));
    a.start();
    want.extend(more);
    assert_same("when it is back", &read_on(&a, "f"), &want);
    a.drain();
    assert_same("drained", &get(shared.canonical("f")), &want);
    until("its subfile is gone", || shared.subfiles().is_empty());
    a.finish();
}

/// A node only slept for longer than its lease: what it had published is drained without it, and it goes on with the
/// same file when it wakes. Nothing of either is lost.
#[test]
fn a_node_that_was_asleep_goes_on() {
    let shared = Shared::plain();
    let mut a = publisher(&shared, "a");
    a.start();
    let mut want = data(71, 3 * MIB);
    put(a.path("f"), &want);
    a.signal(Signal::SIGSTOP);
    let out = adopt(&login(), &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(texts(&json(&out)["dead"]), ["a"]);
    assert_same("canonical", &get(shared.canonical("f")), &want);
    assert_eq!(shared.subfiles(), no_paths());
    a.signal(Signal::SIGCONT);
    assert_same("when it wakes", &read_on(&a, "f"), &want);
    let newer = data(72, MIB);
    write_at(&a, "f", MIB / 2, &newer);
    overlay(&mut want, MIB / 2, &newer);
    assert_same("what it wrote", &read_on(&a, "f"), &want);
    // The node is killed, so that only what other nodes can find counts.
    a.kill();
    a.start();
    assert_same("started again", &read_on(&a, "f"), &want);
    a.drain();
    assert_same("drained", &get(shared.canonical("f")), &want);
    a.finish();
}

/// A dead node has no record (an administrator removed it, as the message about a damaged record asks for): what it
/// had published is drained all the same. Nothing is guessed about a node with a damaged record, and the report says
/// so.
#[test]
fn nodes_without_a_record_and_with_a_damaged_one() {
    let shared = Shared::plain();
    let (mut a, mut b) = (publisher(&shared, "a"), publisher(&shared, "b"));
    a.start();
    b.start();
    let (first, second) = (data(61, MIB), data(62, 2000));
    put(a.path("first"), &first);
    put(b.path("second"), &second);
    let record = |id: &str| shared.shared_dir().join("nodes").join(id);
    let (id_a, id_b) = (shared.id_of("a"), shared.id_of("b"));
    a.kill();
    b.kill();
    fs::remove_file(record(&id_a)).expect("remove a's record");
    let good = get(record(&id_b));
    put(record(&id_b), "nonsense");

    let login = login();
    let out = adopt(&login, &shared, &["--json"]);
    let report = json(&out);
    assert_same("first", &get(shared.canonical("first")), &first);
    assert_eq!(texts(&report["dead"]), [id_a], "{report:#}");
    assert_eq!(texts(&report["adopted"]), ["first"], "{report:#}");
    assert_eq!(texts(&report["left"]), ["second"], "{report:#}");
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    let problems = texts(&report["problems"]).join("; ");
    assert!(
        problems.contains(&id_b) && problems.contains("damaged"),
        "{problems}"
    );
    put(record(&id_b), good);
    let out = adopt(&login, &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("second", &get(shared.canonical("second")), &second);
}
