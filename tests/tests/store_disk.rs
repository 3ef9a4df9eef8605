//! The disk of the store is shared with other programs, which fill it, or the kernel gives the disk up (S7).

use forebay_tests::cli::{OK, code, str};
use forebay_tests::loopfs::LoopFs;
use forebay_tests::rng::{Rng, count, seed};
use forebay_tests::status::Status;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use forebay_tests::wait::{LONG, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Size of each writer's file.
const SIZE: u64 = 12 * MIB;
/// The least number of steps that a writer makes while the disk is full, and while it is not.
const STEPS: u64 = 300;

/// Makes a store on a disk of its own. The store is small, so that it merges and reclaims all the time.
fn mount_on(drain: Drain, size: u64, limit: Duration) -> (TestMount, LoopFs) {
    let mut mount = TestMount::with_limit(drain, limit);
    let disk = LoopFs::new(&mount.root().join("img"), &mount.root().join("loop"), size);
    mount.set_store(&disk.dir().join("store"));
    mount.set("store-size", "64MiB").set("segment-size", "2MiB");
    mount.set("index-memory", "8MiB");
    (mount, disk)
}

/// The work of one process: scattered writes, sizes, holes, reads, syncs and reopens of a file whose content is
/// known. Every error fails the test, because the backing is healthy.
struct Writer {
    stop: Arc<AtomicBool>,
    steps: Arc<AtomicU64>,
    thread: Option<JoinHandle<Vec<u8>>>,
}

impl Writer {
    fn start(path: PathBuf, seed: u64) -> Self {
        let (stop, steps) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, counted) = (stop.clone(), steps.clone());
        let thread = std::thread::spawn(move || {
            let mut rng = Rng::new(seed);
            let mut want = Vec::new();
            let mut file = open_rw(&path);
            while !stopped.load(Ordering::Relaxed) {
                step(&mut rng, &mut file, &path, &mut want);
                counted.fetch_add(1, Ordering::Relaxed);
            }
            file.sync_all().expect("the last fsync");
            want
        });
        Self {
            stop,
            steps,
            thread: Some(thread),
        }
    }

    fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Fails with the writer's own message if the writer has failed.
    fn check(&mut self) {
        let ended = self.thread.as_ref().is_some_and(|t| t.is_finished());
        assert!(
            !ended || self.stop.load(Ordering::Relaxed),
            "{:?}",
            self.end()
        );
    }

    fn end(&mut self) -> Vec<u8> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().expect("ends once").join() {
            Ok(want) => want,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn step(rng: &mut Rng, file: &mut File, path: &PathBuf, want: &mut Vec<u8>) {
    let at = rng.below(SIZE);
    match rng.below(60) {
        0 => file.sync_all().expect("fsync"),
        1 => {
            file.set_len(at).expect("ftruncate");
            want.resize(at as usize, 0);
        }
        2 => *file = open_rw(path),
        3 => {
            let len = (want.len() as u64).min(300_000);
            let from = rng.below(want.len() as u64 - len + 1);
            let got = sys::read_at(file, from, len as usize).expect("read");
            assert_same("a read", &got, &want[from as usize..][..len as usize]);
        }
        4 => {
            sys::fallocate(file, sys::PUNCH, at, 50_000).expect("punch");
            let end = want.len().min(at as usize + 50_000);
            want[(at as usize).min(end)..end].fill(0);
        }
        kind => {
            let most = if kind < 12 { 400_000 } else { 3000 };
            let data = {
                let len = rng.size(most).max(1);
                rng.bytes(len as usize)
            };
            sys::write_all_at(file, &data, at).expect("write");
            let end = at as usize + data.len();
            want.resize(want.len().max(end), 0);
            want[at as usize..end].copy_from_slice(&data);
        }
    }
}

/// S7, S7.1, S7.2, S7.7: other programs fill the disk of the store and free it, again and again, while jobs write.
/// No job sees an error, no byte is wrong, the daemon lives, and the store takes writes again by itself.
/// `FOREBAY_DISK_CYCLES` says how often the disk is filled.
#[test]
fn others_fill_the_disk_of_the_store() {
    let cycles = count("FOREBAY_DISK_CYCLES", 2);
    let limit = Duration::from_secs(240 + 30 * cycles);
    let (mut mount, disk) = mount_on(Drain::Immediate, 144 * MIB, limit);
    mount.allow_log("the disk of the store is full");
    mount.start();
    let seed = seed("others_fill_the_disk_of_the_store");
    let mut writers: Vec<Writer> = (0..3)
        .map(|n| Writer::start(mount.path(format!("f{n}")), seed + n))
        .collect();
    let mut through = 0;
    for cycle in 0..cycles {
        disk.fill();
        go_on(&mut writers, &format!("full, cycle {cycle}"));
        // The other programs also take what the drain gives back meanwhile.
        disk.free();
        disk.fill();
        go_on(&mut writers, &format!("full again, cycle {cycle}"));
        through = mount.status().number("/bytes/through");
        disk.free();
        go_on(&mut writers, &format!("free, cycle {cycle}"));
    }
    assert!(through > 0, "the disk was never full for the store");
    wait_until("the store is well again by itself", LONG, || {
        mount.status().at("/store/failure").is_null().then_some(())
    });
    let want: Vec<Vec<u8>> = writers.iter_mut().map(Writer::end).collect();
    let before = mount.status().number("/bytes/through");
    put(mount.path("new"), vec![7; 5 * MIB as usize]);
    let after = mount.status().number("/bytes/through");
    assert_eq!(after, before, "the store absorbs again");
    for (n, want) in want.iter().enumerate() {
        assert_same("through the mount", &get(mount.path(format!("f{n}"))), want);
    }
    mount.drain();
    for (n, want) in want.iter().enumerate() {
        assert_same("canonical", &get(mount.canonical(format!("f{n}"))), want);
    }
    mount.umount();
    drop(disk);
    mount.finish();
}

fn go_on(writers: &mut [Writer], when: &str) {
    let before: Vec<u64> = writers.iter().map(Writer::steps).collect();
    wait_until(
        &format!("jobs go on while the disk is {when}"),
        LONG,
        || {
            let mut all = true;
            for (writer, before) in writers.iter_mut().zip(&before) {
                writer.check();
                all &= writer.steps() >= before + STEPS;
            }
            all.then_some(())
        },
    );
}

/// S7.1, S5.1: the daemon is killed while the disk of the store is full. Acknowledged data is there after a start
/// that finds the disk with room again.
#[test]
fn killed_while_the_disk_of_the_store_is_full() {
    let (mut mount, disk) = mount_on(Drain::Never, 144 * MIB, Duration::from_secs(240));
    mount.allow_log("the disk of the store is full");
    mount.start();
    let mut rng = Rng::new(5);
    let mut want = rng.bytes(4 * MIB as usize);
    let file = open_rw(mount.path("f"));
    sys::write_all_at(&file, &want, 0).expect("write");
    disk.fill();
    // This is more than the store has room for: the rest is written through, over and beside what the store holds.
    for _ in 0..4000 {
        let len = rng.size(20_000).max(1) as usize;
        let at = rng.below(3 * MIB) as usize;
        rng.fill(&mut want[at..at + len]);
        sys::write_all_at(&file, &want[at..at + len], at as u64).expect("write");
    }
    assert_same(
        "before",
        &sys::read_at(&file, 0, want.len()).expect("read"),
        &want,
    );
    mount.kill();
    drop(file);
    disk.free();
    mount.start();
    assert_same("after a crash", &get(mount.path("f")), &want);
    mount.umount();
    assert_same("canonical", &get(mount.canonical("f")), &want);
    drop(disk);
    mount.finish();
}

/// S7.7: a disk stays full. The data in the store is drained, whatever the policy says, and then changes of those
/// files need no record, so that they do not run out of room.
#[test]
fn a_disk_that_stays_full_is_drained_from() {
    let (mut mount, disk) = mount_on(Drain::Never, 144 * MIB, Duration::from_secs(240));
    mount.allow_log("the disk of the store is full");
    mount.start();
    let mut rng = Rng::new(6);
    let mut want = rng.bytes(4 * MIB as usize);
    let file = open_rw(mount.path("f"));
    sys::write_all_at(&file, &want, 0).expect("write");
    disk.fill();
    let mut change = || {
        let at = rng.below(4 * MIB) as usize;
        rng.fill(&mut want[at..at + 1]);
        sys::write_all_at(&file, &want[at..at + 1], at as u64).expect("write");
    };
    wait_until("nothing is left in the store", LONG, || {
        (0..1000).for_each(|_| change());
        (mount.status().undrained() == 0).then_some(())
    });
    // There are more changes than records held in advance.
    (0..40_000).for_each(|_| change());
    assert_same(
        "changed",
        &sys::read_at(&file, 0, want.len()).expect("read"),
        &want,
    );
    drop(file);
    disk.free();
    mount.umount();
    assert_same("canonical", &get(mount.canonical("f")), &want);
    drop(disk);
    mount.finish();
}

/// A daemon that this test has not started as a child of its own. It must not stay if the test fails.
struct InBackground<'a>(Pid, &'a TestMount);

impl Drop for InBackground<'_> {
    fn drop(&mut self) {
        if kill(self.0, Signal::SIGKILL).is_ok() {
            eprintln!("the daemon was still there");
        }
        if sys::is_mounted(self.1.mnt())
            && let Err(e) = sys::detach(self.1.mnt())
        {
            eprintln!("umount -l: {e}");
        }
    }
}

/// S7.7: a daemon in the background has its log on the disk that other programs fill. Lines of the log are lost, and
/// nothing else: the daemon hears signals, drains and ends.
#[test]
fn a_log_on_the_full_disk_ends_no_thread() {
    let (mount, disk) = mount_on(Drain::Never, 144 * MIB, Duration::from_secs(240));
    let out = mount.mount_command().output().expect("start forebay");
    assert_eq!(code(&out), OK, "{}", text(&out));
    let status = mount.run(["status", str(mount.mnt()), "--json"]);
    let daemon = Pid::from_raw(Status::parse(&status).pid() as i32);
    let _ends = InBackground(daemon, &mount);
    put(mount.path("f"), vec![7; 100_000]);
    disk.fill();
    // Each signal is a line in the log, whose last block is full before long.
    for _ in 0..200 {
        kill(daemon, Signal::SIGHUP).expect("signal the daemon");
        std::thread::sleep(Duration::from_millis(5));
    }
    put(mount.path("g"), vec![8; 100_000]);
    kill(daemon, Signal::SIGTERM).expect("signal the daemon");
    wait_until("it ends", LONG, || kill(daemon, None).err().map(drop));
    assert!(!sys::is_mounted(mount.mnt()), "it has unmounted");
    assert_same("f", &get(mount.canonical("f")), &[7; 100_000]);
    assert_same("g", &get(mount.canonical("g")), &[8; 100_000]);
    disk.free();
    drop(disk);
}

/// S5.1, S7.7: the daemon is killed on a full disk, and started again before there is room. The start first gives
/// back the room that was held for the index.
#[test]
fn a_store_begins_again_on_a_full_disk() {
    let (mut mount, disk) = mount_on(Drain::Never, 144 * MIB, Duration::from_secs(240));
    mount.allow_log("the disk of the store is full");
    mount.start();
    let gone = open_rw(mount.path("gone"));
    sys::write_all_at(&gone, &[1; 100_000], 0).expect("write");
    std::fs::remove_file(mount.path("gone")).expect("unlink");
    put(mount.path("f"), vec![7; MIB as usize]);
    wait_until("room is held for the index", LONG, || {
        mount.store().join("log/reserve").exists().then_some(())
    });
    disk.fill();
    mount.kill();
    drop(gone);
    mount.start();
    assert_same(
        "after a crash",
        &get(mount.path("f")),
        &vec![7; MIB as usize],
    );
    put(mount.path("g"), vec![8; MIB as usize]);
    mount.umount();
    assert_same("f", &get(mount.canonical("f")), &vec![7; MIB as usize]);
    assert_same("g", &get(mount.canonical("g")), &vec![8; MIB as usize]);
    disk.free();
    drop(disk);
    mount.finish();
}

/// S7.6: the kernel gives the disk of the store up (`remount,abort`). Data that the file system below has is read
/// and written as before, new data goes there, and data that only the store holds is right or EIO.
#[test]
fn the_kernel_gives_up_the_disk_of_the_store() {
    let (mut mount, disk) = mount_on(Drain::Never, 144 * MIB, Duration::from_secs(240));
    mount.allow_log("");
    put(mount.canonical("old"), vec![1; 100_000]);
    mount.start();
    put(mount.path("held"), vec![2; 100_000]);
    disk.abort();
    assert_same("canonical data", &get(mount.path("old")), &[1; 100_000]);
    let old = open_rw(mount.path("old"));
    sys::write_all_at(&old, &[4; 10_000], 0).expect("write over canonical data");
    old.sync_all().expect("fsync of what the backing has");
    let new = open_rw(mount.path("new"));
    for i in 0..100 {
        sys::write_all_at(&new, &[3; 50_000], i * 50_000).expect("written through");
    }
    new.sync_all().expect("fsync of what was written through");
    assert_same("new data", &get(mount.path("new")), &vec![3; 5_000_000]);
    assert_same(
        "is below",
        &get(mount.canonical("new")),
        &vec![3; 5_000_000],
    );
    match std::fs::read(mount.path("held")) {
        Ok(held) => assert_same("what the store holds", &held, &[2; 100_000]),
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EIO), "{e}"),
    }
    wait_until("status says so", LONG, || {
        mount
            .status()
            .at("/store/failure")
            .is_string()
            .then_some(())
    });
    assert_eq!(
        std::fs::metadata(mount.path("held")).expect("stat").len(),
        100_000
    );
    drop((old, new));
    mount.kill();
    drop(disk);
}
