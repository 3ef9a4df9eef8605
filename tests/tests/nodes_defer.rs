//! Which data a close waits for, on a parallel file system that is slowed to a crawl.
//!
//! The simulated file system counts every byte that reached it, so nothing here is decided by a clock: a close that
//! has returned while the bytes cannot be there did not wait for them.

mod nodes_pair;

use forebay_tests::rng::Rng;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, put};
use forebay_tests::wait::{in_background, in_time};
use nodes_pair::{MIB, Shared, until};
use pfs_sim::{Change, Sim};
use std::fs::File;
use std::io::{Read, Write};

const SIZE: usize = 24 * MIB;

/// At this bandwidth all OSTs together take far longer for `SIZE` than a store that absorbs it.
const CRAWL: &str = "256K";
const FAST: &str = "500M";

struct Pair {
    writer: TestMount,
    reader: TestMount,
    shared: Shared,
}

impl Pair {
    fn new(close: &str, drain: Drain) -> Pair {
        let builder = Sim::builder().osts(4).bandwidth(FAST).stripe("1M", 4);
        let shared = Shared::simulated(builder);
        let mut writer = shared.node("writer", drain);
        // A call may take long on such a file system.
        writer.set("close", close).set("ost-deadline", "10m");
        writer.start();
        let mut reader = shared.node("reader", Drain::Immediate);
        reader.set("ost-deadline", "10m");
        reader.start();
        // The writes with which the nodes joined do not count.
        shared.sim().reset_counters().expect("reset the counters");
        Pair {
            writer,
            reader,
            shared,
        }
    }

    fn speed(&self, bandwidth: &str) {
        let change = Change::default().bandwidth(bandwidth);
        self.shared.sim().set_all(change).expect("change the OSTs");
    }

    fn finish(mut self) {
        self.speed(FAST);
        self.reader.umount();
        self.writer.umount();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // At the slow speed everything that has to be taken down would wait.
        if let Err(e) = self.shared.sim().set_all(Change::default().bandwidth(FAST)) {
            eprintln!("make the OSTs fast again: {e}");
        }
    }
}

fn data(seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(SIZE)
}

/// `close = defer` makes an announcement and changes the change token (two metadata calls), and the rest follows:
/// the close returns while the bytes cannot be on the file system, and a program that opens the file elsewhere gets
/// them all the same, late but right.
#[test]
fn a_deferred_close_does_not_wait_for_the_file_system() {
    let pair = Pair::new("defer", Drain::Immediate);
    pair.speed(CRAWL);
    let want = data(1);
    put(pair.writer.path("ckpt"), &want);
    let there = pair.shared.written();
    assert!(
        there < SIZE as u64 / 2,
        "the close returned, and {there} of {SIZE} bytes had arrived"
    );
    assert!(
        !pair.shared.names('i').is_empty(),
        "a close that left something to do says so"
    );

    let path = pair.reader.path("ckpt");
    let read = in_background(move || get(path));
    until(
        "the reader asks the writer to hurry, or is answered",
        || {
            let asked = nodes_pair::list(&pair.shared.shared_dir().join("notes"));
            let asked: usize = asked.iter().map(|dir| nodes_pair::list(dir).len()).sum();
            asked > 0 || pair.shared.written() > there
        },
    );
    let there = pair.shared.written();
    assert!(
        there < SIZE as u64,
        "it crawls no more: {there} bytes arrived"
    );
    assert!(read.try_recv().is_err(), "the reader did not wait");
    pair.speed(FAST);
    assert_same("on the other node", &in_time("the reader", read), &want);
    pair.writer.drain();
    assert_same("canonical", &get(pair.shared.canonical("ckpt")), &want);
    until("no announcement is left", || {
        pair.shared.names('i').is_empty()
    });
    pair.finish();
}

/// A deferred close costs metadata calls only: between the open and the return of the close there is no request to
/// any OST.
#[test]
fn a_deferred_close_makes_no_data_call() {
    let pair = Pair::new("defer", Drain::Never);
    let mut file = File::create(pair.writer.path("ckpt")).expect("create");
    let before = pair.shared.requests();
    let want = data(2);
    file.write_all(&want).expect("write");
    drop(file);
    assert_eq!(pair.shared.requests(), before, "requests to OSTs");
    assert!(!pair.shared.names('i').is_empty(), "announced");
    assert_eq!(pair.shared.names('l'), Vec::<String>::new(), "no layout");
    pair.finish();
}

/// An open waits for an announcement of another node and leaves a note for that node. That node then publishes, also
/// if its own policy is to drain nothing. And what it publishes is not drained because of that.
#[test]
fn a_note_makes_a_node_publish_that_never_drains() {
    let pair = Pair::new("defer", Drain::Never);
    let want = data(3);
    put(pair.writer.path("ckpt"), &want);
    assert_eq!(pair.shared.written(), 0, "nothing moves by itself");
    assert!(!pair.shared.names('i').is_empty(), "announced");
    let path = pair.reader.path("ckpt");
    let got = in_time("the reader", in_background(move || get(path)));
    assert_same("on the other node", &got, &want);
    assert_eq!(pair.shared.names('i'), Vec::<String>::new());
    assert_eq!(pair.shared.names('l').len(), 1, "published");
    let canonical = std::fs::metadata(pair.shared.canonical("ckpt")).expect("stat");
    assert_eq!(canonical.len(), 0, "published is not drained");

    // A reader that opened the file before gets the bytes at its next sync point: a second round of the same.
    let mut file = File::open(pair.reader.path("ckpt")).expect("open");
    let mut more = want.clone();
    more.extend_from_slice(b"appended");
    put(pair.writer.path("ckpt"), &more);
    file.sync_all().expect("sync");
    let mut got = Vec::new();
    file.read_to_end(&mut got).expect("read");
    assert_same("after a sync", &got, &more);
    drop(file);
    pair.finish();
}

/// `close = publish` publishes before the close returns: then the file system has taken every byte, and no other
/// node has to wait or ask.
#[test]
fn a_publishing_close_waits() {
    let pair = Pair::new("publish", Drain::Never);
    let want = data(4);
    put(pair.writer.path("ckpt"), &want);
    let there = pair.shared.written();
    assert!(
        there >= SIZE as u64,
        "the close returned, and {there} of {SIZE} bytes had arrived"
    );
    assert_eq!(
        pair.shared.names('i'),
        Vec::<String>::new(),
        "no announcement"
    );
    assert_eq!(pair.shared.names('l').len(), 1, "published");
    // The writer is not asked for anything: it is stopped and could not answer.
    pair.writer.signal(nix::sys::signal::Signal::SIGSTOP);
    let path = pair.reader.path("ckpt");
    let got = in_background(move || get(path)).recv_timeout(forebay_tests::wait::LONG);
    pair.writer.signal(nix::sys::signal::Signal::SIGCONT);
    assert_same("on the other node", &got.expect("the reader"), &want);
    pair.finish();
}

/// The same for fsync, whatever a close does: `--fsync publish`, the default.
#[test]
fn an_fsync_publishes_and_local_does_not() {
    for (fsync, least) in [("publish", SIZE as u64), ("local", 0)] {
        let shared = Shared::simulated(Sim::builder().osts(2).bandwidth(FAST).stripe("1M", 2));
        let mut writer = shared.node("writer", Drain::Never);
        writer.set("fsync", fsync).start();
        shared.sim().reset_counters().expect("reset the counters");
        let mut file = File::create(writer.path("f")).expect("create");
        file.write_all(&data(5)).expect("write");
        file.sync_all().expect("sync");
        let there = shared.written();
        assert!(there >= least, "{fsync}: {there} bytes arrived");
        assert_eq!(
            there == 0,
            fsync == "local",
            "{fsync}: {there} bytes arrived"
        );
        drop(file);
        writer.finish();
    }
}

/// `close = defer-next` is the same as `defer`, and the next open of a file of the same base name waits too
/// (MPIWRAP's rule): the open of ckpt_0002 returns when ckpt_0001 is published. Opens of other names do not wait.
#[test]
fn the_next_checkpoint_waits_for_the_last() {
    let pair = Pair::new("defer-next", Drain::Never);
    let first = data(6);
    put(pair.writer.path("ckpt_0001.dat"), &first);
    let other = File::create(pair.writer.path("log_0002.dat")).expect("create");
    assert_eq!(pair.shared.written(), 0, "nothing moves by itself");
    assert!(!pair.shared.names('i').is_empty(), "announced");

    pair.speed("50M");
    let path = pair.writer.path("ckpt_0002.dat");
    let opened = in_background(move || File::create(path));
    let second = in_time("the next open", opened).expect("create");
    let there = pair.shared.written();
    assert!(
        there >= SIZE as u64,
        "ckpt_0002 is open, and {there} of {SIZE} bytes of ckpt_0001 had arrived"
    );
    assert_eq!(pair.shared.names('i'), Vec::<String>::new(), "kept");
    drop((second, other));
    let path = pair.reader.path("ckpt_0001.dat");
    let got = in_time("the reader", in_background(move || get(path)));
    assert_same("on the other node", &got, &first);
    pair.finish();
}
