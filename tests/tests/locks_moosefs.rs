//! Locks across nodes over a real MooseFS: each node has a client mount of its own, so only the master can know the
//! locks of both.

use forebay_tests::locks::{How, Worker, excluded, lock, pair, unlock, wait_for_lock, waiters};
use forebay_tests::moosefs::{GIVEN_UP, MooseFs};
use forebay_tests::test_mount::{TestMount, open_rw};
use forebay_tests::wait::{LONG, wait_until};
use nix::sys::signal::Signal;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Starts two nodes, each over a client mount that is named after it.
fn nodes(cluster: &MooseFs) -> (TestMount, TestMount) {
    let (mut a, mut b) = pair();
    for (mount, name) in [(&mut a, "one"), (&mut b, "two")] {
        let backing = cluster.mount(name).join("scratch");
        if !backing.exists() {
            std::fs::create_dir(&backing).expect("create the backing");
        }
        mount.set_backing(&backing).set("ost-provider", "none");
        mount.start();
    }
    (a, b)
}

/// Checks S3.1 to S3.4 over MooseFS.
#[test]
fn moosefs_locks_hold_across_client_mounts() {
    let cluster = MooseFs::start(1);
    let (mut a, b) = nodes(&cluster);
    every_kind_excludes_every_kind(&a, &b);
    waiters_are_served_or_killed(&a, &b);
    a_killed_daemon_holds_nothing(&mut a, &b);
    b.finish();
}

fn every_kind_excludes_every_kind(a: &TestMount, b: &TestMount) {
    let (a, b) = (open_rw(a.path("f")), open_rw(b.path("f")));
    for holds in How::ALL {
        for asks in How::ALL {
            lock(&a, holds).expect("lock");
            assert!(excluded(lock(&b, asks)), "{asks:?} while {holds:?} is held");
            unlock(&a, holds).expect("unlock");
            lock(&b, asks).expect("it is free");
            unlock(&b, asks).expect("unlock");
        }
    }
    lock(&a, How::Ofd).expect("lock");
    drop(a);
    wait_until("a close gives it up", LONG, || lock(&b, How::Flock).ok());
}

fn waiters_are_served_or_killed(a: &TestMount, b: &TestMount) {
    let holder = open_rw(a.path("w"));
    lock(&holder, How::Flock).expect("lock");
    let [killed, served] =
        [How::Posix, How::Ofd].map(|how| Worker::start(&b.path("w"), how, (0, 0)));
    wait_until("both wait", LONG, || (waiters(b) == 2).then_some(()));
    killed.kill_at_once(Signal::SIGTERM, Duration::from_secs(5));
    unlock(&holder, How::Flock).expect("unlock");
    served.expect_line("got");
    assert!(excluded(lock(&holder, How::Ofd)));
    served.end();
    wait_until("its exit gives it up", LONG, || {
        lock(&holder, How::Ofd).ok()
    });
}

/// S3.4: the locks of a node that dies go when the backing gives its client up. The daemon and its client mount
/// disappear at once and tell the master nothing, so the master keeps the client's locks for a while.
#[test]
fn a_dead_node_holds_nothing_for_ever() {
    let cluster = MooseFs::start(1);
    let (mut a, b) = nodes(&cluster);
    let kinds = [How::Ofd, How::Flock];
    let held = kinds.map(|how| {
        let file = open_rw(a.path(format!("{how:?}")));
        lock(&file, how).expect("lock");
        file
    });
    // The threads are not scoped: one that hangs in a mount ends when the mount is taken away.
    let (tell, got) = channel();
    for how in kinds {
        let (tell, path) = (tell.clone(), b.path(format!("{how:?}")));
        std::thread::spawn(move || {
            let file = open_rw(path);
            let locked = wait_for_lock(&file, how);
            if tell.send((how, locked, file)).is_err() {
                eprintln!("{how:?} came after the test");
            }
        });
    }
    wait_until("both wait", LONG, || (waiters(&b) == 2).then_some(()));
    // The daemon is stopped, so that it gives nothing up when its client mount goes.
    a.signal(Signal::SIGSTOP);
    cluster.unmount("one");
    a.kill();
    drop(held);
    for _ in kinds {
        let (how, locked, file) = got.recv_timeout(GIVEN_UP).expect("a waiter gets it");
        locked.unwrap_or_else(|e| panic!("{how:?}: {e}"));
        unlock(&file, how).expect("unlock");
    }
    b.finish();
}

fn a_killed_daemon_holds_nothing(a: &mut TestMount, b: &TestMount) {
    let holder = open_rw(a.path("k"));
    lock(&holder, How::Flock).expect("lock");
    let waiter = Worker::start(&b.path("k"), How::Posix, (0, 0));
    wait_until("it waits", LONG, || (waiters(b) == 1).then_some(()));
    a.kill();
    waiter.expect_line("got");
    waiter.end();
}
