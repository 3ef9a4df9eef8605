//! Mappings that stay mapped while other nodes write the file, and the process that drops their pages.

use forebay_tests::cluster::Cluster;
use forebay_tests::locks::{How, fcntl, lock, unlock};
use forebay_tests::sys::{self, Mapping, errno};
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put};
use forebay_tests::wait::{LONG, in_background, in_time, wait_until};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
const BOTH: [Drain; 2] = [Drain::Never, Drain::Immediate];
const LEN: usize = 64 << 10;

/// The call that makes a reader's mapping show new data.
#[derive(Clone, Copy, Debug)]
enum Sync {
    Fsync,
    Msync,
    Lock(How),
}

const ALL: [Sync; 5] = [
    Sync::Fsync,
    Sync::Msync,
    Sync::Lock(How::Posix),
    Sync::Lock(How::Ofd),
    Sync::Lock(How::Flock),
];

impl Sync {
    fn done(self, file: &File, mapping: &Mapping) {
        match self {
            Sync::Fsync => file.sync_all().expect("fsync"),
            Sync::Msync => mapping.sync().expect("msync"),
            Sync::Lock(how) => {
                lock(file, how).expect("lock");
                unlock(file, how).expect("unlock");
            }
        }
    }
}

/// Maps a file. A program that maps a file asks for its size before: that is when the kernel learns the size.
fn map(file: &File) -> Mapping {
    let size = file.metadata().expect("fstat").len();
    Mapping::new(file, 0, size as usize).expect("mmap")
}

/// S2.14: a mapping that stays mapped shows, after a lock or an fsync, what others had published before it. This
/// also holds when the other node's bytes were drained meanwhile and nothing in the shared directory tells of them
/// any more.
#[test]
fn a_lock_and_an_fsync_make_mappings_new() {
    for drain in BOTH {
        let mut cluster = Cluster::new(2, drain, LIMIT);
        cluster.start();
        let mut want = vec![1u8; LEN];
        put(cluster.mount(0).path("f"), &want);
        let writer = open_rw(cluster.mount(0).path("f"));
        let reader = open_rw(cluster.mount(1).path("f"));
        let mapping = map(&reader);
        assert_same("mapped", mapping.bytes(), &want);
        for (turn, sync) in ALL.iter().cycle().take(20).enumerate() {
            let at = turn * 3001;
            let bytes = vec![turn as u8 + 2; 2000];
            want[at..at + bytes.len()].copy_from_slice(&bytes);
            writer.write_all_at(&bytes, at as u64).expect("write");
            writer.sync_all().expect("fsync");
            if turn % 4 == 3 {
                cluster.drain();
            }
            sync.done(&reader, &mapping);
            let what = format!("{}, turn {turn}, {sync:?}", drain.key());
            assert_same(&what, mapping.bytes(), &want);
        }
        drop((mapping, writer, reader));
        cluster.drain();
        assert_same("canonical", &get(cluster.canonical("f")), &want);
        cluster.finish();
    }
}

/// S2.14: the same where nothing in the shared directory tells of the bytes any more: they were written, announced
/// and drained between two refreshes.
#[test]
fn what_was_drained_between_two_looks_is_seen() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.start();
    let mut want = vec![1u8; LEN];
    put(cluster.mount(0).path("f"), &want);
    cluster.mount(0).drain();
    let reader = open_rw(cluster.mount(1).path("f"));
    let mapping = map(&reader);
    for turn in 0..10usize {
        let sync = ALL[turn % ALL.len()];
        sync.done(&reader, &mapping);
        assert_same(&format!("before turn {turn}"), mapping.bytes(), &want);
        let writer = open_rw(cluster.mount(0).path("f"));
        let at = turn * 5000;
        want[at..at + 100].fill(turn as u8 + 2);
        let bytes = &want[at..at + 100];
        writer.write_all_at(bytes, at as u64).expect("write");
        sys::close(writer).expect("close");
        cluster.mount(0).drain();
        // The drain ends a moment before the holder of the term has tidied up.
        wait_until("nothing to be left to tell", LONG, || {
            (told_of(&cluster) == 0).then_some(())
        });
        sync.done(&reader, &mapping);
        let what = format!("turn {turn}, {sync:?}");
        assert_same(&what, mapping.bytes(), &want);
    }
    drop((mapping, reader));
    cluster.finish();
}

/// S2.14: a file that was closed and opened again starts anew, whatever this node had learned of it before.
#[test]
fn a_file_that_was_closed_meanwhile_is_made_new() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.start();
    let mut want = vec![1u8; LEN];
    put(cluster.mount(0).path("f"), &want);
    let writer = open_rw(cluster.mount(0).path("f"));
    let publish = |at: usize, want: &mut Vec<u8>| {
        let next = want[at] + 1;
        want[at..at + 100].fill(next);
        let bytes = &want[at..at + 100];
        writer.write_all_at(bytes, at as u64).expect("write");
        writer.sync_all().expect("fsync");
    };
    publish(0, &mut want);
    for turn in 1..8 {
        let reader = open_rw(cluster.mount(1).path("f"));
        let mapping = map(&reader);
        assert_same(&format!("opened, turn {turn}"), mapping.bytes(), &want);
        publish(turn * 8000, &mut want);
        // The version of the canonical file, into which nothing is drained, is old enough to count.
        Sync::Fsync.done(&reader, &mapping);
        assert_same(&format!("turn {turn}"), mapping.bytes(), &want);
    }
    drop(writer);
    cluster.finish();
}

/// Counts the files that have a directory in the shared directory.
fn told_of(cluster: &Cluster) -> usize {
    let groups = std::fs::read_dir(cluster.canonical(".forebay/files")).expect("list");
    let count =
        |group: std::fs::DirEntry| std::fs::read_dir(group.path()).map_or(0, Iterator::count);
    groups.map(|group| count(group.expect("list"))).sum()
}

/// S2.14 and S1.8: bytes that were stored into a mapping and not yet written survive when the pages of the mapping
/// are dropped, and are published.
#[test]
fn stores_into_a_mapping_survive_others_bytes() {
    for drain in BOTH {
        let mut cluster = Cluster::new(2, drain, LIMIT);
        cluster.start();
        let mut want = vec![1u8; LEN];
        put(cluster.mount(0).path("f"), &want);
        let files: Vec<File> = cluster.paths("f").iter().map(open_rw).collect();
        let mut mappings: Vec<Mapping> = files.iter().map(map).collect();
        for turn in 0..16usize {
            let (one, other) = (turn % 2, (turn + 1) % 2);
            // Pages of one node are not pages of the other (S1.8).
            let at = turn * 4096;
            mappings[one].bytes_mut()[at..at + 100].fill(turn as u8 + 2);
            want[at..at + 100].fill(turn as u8 + 2);
            if turn % 3 == 0 {
                mappings[one].sync().expect("msync");
                let how = [How::Posix, How::Flock][turn % 2];
                Sync::Lock(how).done(&files[other], &mappings[other]);
                let seen = &mappings[other].bytes()[at..at + 100];
                assert_same(&format!("turn {turn}"), seen, &want[at..at + 100]);
            }
        }
        for (file, mapping) in files.iter().zip(&mappings) {
            Sync::Fsync.done(file, mapping);
        }
        for (n, mapping) in mappings.iter().enumerate() {
            Sync::Fsync.done(&files[n], mapping);
            assert_same(&format!("node {n}"), mapping.bytes(), &want);
        }
        drop((mappings, files));
        cluster.drain();
        assert_same("canonical", &get(cluster.canonical("f")), &want);
        cluster.finish();
    }
}

/// S2.14: nothing is read again as long as nothing has changed: the pages of a file that no other node writes stay,
/// whatever this node does to the file.
#[test]
fn pages_stay_as_long_as_nothing_changes() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.start();
    put(cluster.mount(1).path("f"), vec![1u8; LEN]);
    let file = open_rw(cluster.mount(1).path("f"));
    let mut mapping = map(&file);
    let faults = |mapping: &Mapping| {
        let before = major_faults();
        let sum: u64 = mapping.bytes().iter().map(|b| u64::from(*b)).sum();
        assert!(sum > 0);
        major_faults() - before
    };
    assert!(faults(&mapping) > 0, "it is mapped anew");
    // This waits until the version of the canonical file, which was made just now, can be told from later ones.
    wait_until("pages that stay", LONG, || {
        Sync::Fsync.done(&file, &mapping);
        (faults(&mapping) == 0).then_some(())
    });
    for turn in 0..10u8 {
        mapping.bytes_mut()[usize::from(turn) * 5000] = turn;
        for sync in ALL {
            sync.done(&file, &mapping);
            assert_eq!(faults(&mapping), 0, "turn {turn}, {sync:?}");
        }
    }
    drop((mapping, file));
    cluster.finish();
}

/// Returns how many pages had to be read for this thread.
fn major_faults() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("getrusage");
    usage.major_page_faults()
}

/// Finds the process that drops pages for `mount`.
fn helper(mount: &TestMount) -> Pid {
    let children = format!("/proc/{0}/task/{0}/children", mount.pid());
    let children = std::fs::read_to_string(children).expect("the daemon's children");
    let named = |pid: &&str| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "forebay-pages")
    };
    let found = children.split_whitespace().find(named);
    let pid = found.unwrap_or_else(|| panic!("no forebay-pages among {children:?}"));
    Pid::from_raw(pid.parse().expect("a number"))
}

/// Returns whether the thread waits for something and cannot be killed.
fn is_stuck(task: &Path) -> bool {
    state(task) == Some('D')
}

/// Returns whether the process is gone. A dead process that its parent has not reaped counts as gone.
fn is_gone(pid: Pid) -> bool {
    let state = state(&PathBuf::from(format!("/proc/{pid}")));
    state.is_none_or(|state| "ZX".contains(state))
}

fn state(task: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

fn tasks(pid: Pid) -> Vec<PathBuf> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    tasks.flatten().flatten().map(|task| task.path()).collect()
}

/// S5.1, and the daemon's own end: pages are being dropped, which waits for a page that is being read, which waits
/// within the daemon. Killed at that moment, the daemon ends at once, and so does every process that waits. (With
/// `absorb = coherent` the read waits for a lock of the daemon's, which the test holds.)
#[test]
fn a_daemon_that_is_killed_while_pages_are_dropped_ends() {
    let mut mount = TestMount::with_limit(Drain::Never, LIMIT);
    mount.set("absorb", "coherent");
    mount.start();
    let data = vec![7u8; LEN];
    put(mount.path("f"), &data);
    let file = open_rw(mount.path("f"));
    let dropper = helper(&mount);

    let dir = std::fs::read_dir(mount.canonical(".forebay/locks")).expect("locks");
    let turns: Vec<File> = dir
        .map(|entry| open_rw(entry.expect("list").path()))
        .collect();
    assert!(!turns.is_empty(), "no node has taken a turn");
    for turn in &turns {
        let first_page = (0, 4096);
        fcntl(turn, libc::F_OFD_SETLK, libc::F_WRLCK, first_page).expect("lock");
    }
    let mapped = file.try_clone().expect("dup");
    let (me, toucher) = channel();
    let touching = in_background(move || {
        me.send(nix::unistd::gettid()).expect("a test");
        map(&mapped).populate()
    });
    let toucher = toucher.recv().expect("a thread");
    let toucher = PathBuf::from(format!("/proc/self/task/{toucher}"));
    wait_until("a page is being read", LONG, || {
        is_stuck(&toucher).then_some(())
    });
    let locked = file.try_clone().expect("dup");
    let locking = in_background(move || lock(&locked, How::Posix));
    wait_until("pages are being dropped", LONG, || {
        tasks(dropper).iter().any(|t| is_stuck(t)).then_some(())
    });

    mount.kill();
    assert!(in_time("reading the page", touching).is_err());
    assert!(in_time("locking", locking).is_err());
    wait_until("the helper is gone", LONG, || {
        is_gone(dropper).then_some(())
    });
    drop((file, turns));
    mount.start();
    assert_same("after the next start", &get(mount.path("f")), &data);
    mount.finish();
}

/// S2.14: without the process that drops pages, locking a mapped file is an error, because the mapping would show
/// old pages; files that are not mapped do not need the process.
#[test]
fn without_its_helper_a_mapped_file_is_not_locked() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.allow_log("the process that drops");
    cluster.allow_log("the kernel's pages of a mapped file could not be dropped");
    cluster.start();
    for name in ["mapped", "plain"] {
        put(cluster.mount(0).path(name), vec![1u8; LEN]);
    }
    let file = open_rw(cluster.mount(0).path("mapped"));
    let mapping = map(&file);
    assert_eq!(mapping.bytes()[0], 1);
    kill(helper(cluster.mount(0)), Signal::SIGKILL).expect("kill");
    wait_until("the daemon has noticed", LONG, || {
        cluster.mount(0).log().contains("is gone").then_some(())
    });
    assert_eq!(errno(lock(&file, How::Posix), "lock"), libc::EIO);
    let plain = open_rw(cluster.mount(0).path("plain"));
    lock(&plain, How::Posix).expect("lock");
    drop((mapping, file, plain));
    cluster.finish();
}
