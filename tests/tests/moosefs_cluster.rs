//! Tests of the MooseFS harness, on which the tests of placement and of failing targets rest.

use forebay_tests::moosefs::{Copy, MooseFs, traces};
use forebay_tests::{sys, wait_until};
use std::fs::File;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Clients come back to a repaired target after pauses of up to some ten seconds.
const HEALING: Duration = Duration::from_secs(60);

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + seed * 31) as u8).collect()
}

fn write_synced(path: &Path, data: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(data)?;
    file.sync_all()
}

fn timed_write(path: &Path, data: &[u8]) -> Duration {
    let start = Instant::now();
    write_synced(path, data).expect("write to a target");
    start.elapsed()
}

/// Writes on a thread that is not scoped: a write that hangs must not keep the cluster from being taken down.
fn write_in_background(path: PathBuf, data: Vec<u8>) -> Receiver<io::Result<()>> {
    let (done, result) = channel();
    std::thread::spawn(move || {
        if done.send(write_synced(&path, &data)).is_err() {
            eprintln!("{}: the test ended before the write", path.display());
        }
    });
    result
}

fn still_waits(write: &Receiver<io::Result<()>>) -> bool {
    matches!(write.try_recv(), Err(TryRecvError::Empty))
}

fn ends_well(write: &Receiver<io::Result<()>>) {
    let result = write.recv_timeout(HEALING);
    result.expect("the write ends").expect("the write succeeds");
}

#[test]
fn a_pinned_file_is_on_its_target_only() {
    let cluster = MooseFs::start(4);
    assert_eq!(cluster.connected(), [0, 1, 2, 3]);
    let mount = cluster.mount("client");
    for target in 0..4 {
        let dir = cluster.pinned_dir(&mount, &format!("ost{target}"), target);
        let file = dir.join("data");
        // The file has more than one chunk: none of them may be on another target.
        let data = pattern(65 * MIB, target);
        write_synced(&file, &data).expect("write a pinned file");
        let on = |chunk| Copy { chunk, target };
        assert_eq!(cluster.chunks_of(&file), [on(0), on(1)]);
        std::fs::remove_file(&file).expect("remove it");
    }
    let empty = mount.join("empty");
    File::create(&empty).expect("create a file");
    assert_eq!(cluster.chunks_of(&empty), []);
}

#[test]
fn two_mounts_show_the_same_files_and_two_clusters_do_not_meet() {
    let cluster = MooseFs::start(1);
    let other = MooseFs::start(1);
    let (here, there) = (cluster.mount("one"), cluster.mount("two"));
    let elsewhere = other.mount("one");
    write_synced(&here.join("file"), b"hello").expect("write");
    assert_eq!(std::fs::read(there.join("file")).expect("read"), b"hello");
    assert!(!elsewhere.join("file").exists());
}

#[test]
fn a_slowed_target_is_slower_than_its_neighbour() {
    let cluster = MooseFs::start(2);
    let mount = cluster.mount("client");
    let dirs = [0, 1].map(|target| cluster.pinned_dir(&mount, &format!("ost{target}"), target));
    let data = pattern(16 * MIB, 1);
    let timed = |target: usize, name: &str| timed_write(&dirs[target].join(name), &data);
    // The first write to a target finds all caches cold.
    timed(0, "warm");
    timed(1, "warm");
    cluster.slow(0, 20);
    let slow = timed(0, "slow");
    let neighbour = timed(1, "free");
    cluster.unslow(0);
    let after = timed(0, "after");
    println!("slowed {slow:?}, its neighbour {neighbour:?}, no longer slowed {after:?}");
    let at_that_rate = Duration::from_secs_f64(data.len() as f64 * 8.0 / 20e6);
    assert!(slow > at_that_rate * 3 / 4, "slowed {slow:?}");
    assert!(
        slow > neighbour * 4,
        "slowed {slow:?}, neighbour {neighbour:?}"
    );
    assert!(slow > after * 4, "slowed {slow:?}, afterwards {after:?}");
}

/// Breaks target 0, shows that a write there waits while one to its neighbour ends, and repairs.
fn blocks_and_heals(breaks: impl Fn(&MooseFs), repairs: impl Fn(&MooseFs)) {
    let cluster = MooseFs::start(2);
    let mount = cluster.mount("client");
    let dirs = [0, 1].map(|target| cluster.pinned_dir(&mount, &format!("ost{target}"), target));
    let data = pattern(4 * MIB, 5);
    write_synced(&dirs[0].join("before"), &data).expect("write before");
    breaks(&cluster);
    let file = dirs[0].join("during");
    let write = write_in_background(file.clone(), data.clone());
    // These writes take many times as long as that write would take.
    for n in 0..8 {
        let neighbour = dirs[1].join(format!("neighbour{n}"));
        write_synced(&neighbour, &data).expect("write to the neighbour");
    }
    assert!(still_waits(&write), "a write to a broken target ended");
    let start = Instant::now();
    repairs(&cluster);
    ends_well(&write);
    println!("healed in {:?}", start.elapsed());
    assert_eq!(std::fs::read(&file).expect("read it back"), data);
    let before = std::fs::read(dirs[0].join("before"));
    assert_eq!(before.expect("read what was there before"), data);
    let on_it = Copy {
        chunk: 0,
        target: 0,
    };
    assert_eq!(cluster.chunks_of(&file), [on_it]);
}

#[test]
fn a_cut_link_blocks_and_heals() {
    blocks_and_heals(|c| c.cut_link(0), |c| c.restore_link(0));
}

#[test]
fn a_frozen_target_blocks_and_heals() {
    blocks_and_heals(|c| c.freeze(0), |c| c.thaw(0));
}

#[test]
fn a_stopped_target_blocks_and_heals() {
    blocks_and_heals(
        |c| {
            c.stop_target(0);
            c.wait_lost(0);
        },
        // The target is started on a thread that ends, because the target must outlive its thread.
        |c| std::thread::scope(|scope| scope.spawn(|| c.start_target(0)).join().expect("start")),
    );
}

#[test]
fn one_mount_per_target() {
    let cluster = MooseFs::start(2);
    let mounts = cluster.mount_many();
    assert_eq!(mounts, [cluster.mount_point("A"), cluster.mount_point("B")]);
    let dir = cluster.pinned_dir(&mounts[0], "ost0", 0);
    cluster.cut_link(0);
    let write = write_in_background(dir.join("file"), pattern(MIB, 3));
    write_synced(&mounts[1].join("other"), b"through the second mount").expect("write");
    cluster.unmount("A");
    let result = write.recv_timeout(HEALING).expect("the write ends");
    let error = result.expect_err("its mount was taken away");
    // The call was under way, or it came too late.
    let gone = [Some(libc::ECONNABORTED), Some(libc::ENOTCONN)];
    assert!(gone.contains(&error.raw_os_error()), "{error}");
    assert!(!sys::is_mounted(&mounts[0]) && sys::is_mounted(&mounts[1]));
}

#[test]
fn nothing_is_left_behind() {
    let mut of = (String::new(), PathBuf::new());
    // The cluster has everything at once that makes taking it down hard, and the test fails.
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let cluster = MooseFs::start_on(&[Some(1 << 30); 2]);
        of = (cluster.tag().to_owned(), cluster.root().to_owned());
        let mounts = cluster.mount_many();
        let dir = cluster.pinned_dir(&mounts[0], "ost0", 0);
        let held = File::create(mounts[1].join("held")).expect("hold a file open");
        cluster.freeze(0);
        let write = write_in_background(dir.join("file"), pattern(MIB, 3));
        let found = traces(cluster.tag(), cluster.root());
        assert!(still_waits(&write));
        // There are a master and its helper, two targets, two mounts, two disks, three namespaces and a directory.
        assert!(found.len() >= 12, "the search is blind: {found:?}");
        drop((held, cluster));
        let ended = write.recv_timeout(HEALING).expect("the blocked write ends");
        ended.expect_err("its mount is gone");
        let cluster = MooseFs::start(1);
        let root = cluster.root().to_owned();
        let first = std::mem::replace(&mut of, (cluster.tag().to_owned(), root));
        assert_eq!(traces(&first.0, &first.1), [""; 0]);
        cluster.mount("client");
        panic!("a test fails");
    }));
    let failure = failed.expect_err("the test above fails");
    assert_eq!(failure.downcast_ref(), Some(&"a test fails"));
    wait_until("the cluster is gone", Duration::from_secs(5), || {
        traces(&of.0, &of.1).is_empty().then_some(())
    });
}
