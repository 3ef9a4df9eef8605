//! The disk of the store is shared with others, who fill it, or the kernel gives it up (S7).

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put, text};
use forebay_tests::cli::{OK, code, str};
use forebay_tests::loopfs::LoopFs;
use forebay_tests::rng::{Rng, count, seed};
use forebay_tests::status::Status;
use forebay_tests::sys;
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
/// Of each writer's file.
const SIZE: u64 = 12 * MIB;
/// What a writer does while the disk is full, and while it is not, at least.
const STEPS: u64 = 300;

/// A store on a disk of its own; small, so that it merges and reclaims all the time.
fn bay_on(drain: Drain, size: u64, limit: Duration) -> (Bay, LoopFs) {
    let mut bay = Bay::with_limit(drain, limit);
    let disk = LoopFs::new(&bay.root().join("img"), &bay.root().join("loop"), size);
    bay.set_store(&disk.dir().join("store"));
    bay.set("store-size", "64MiB").set("segment-size", "2MiB");
    bay.set("index-memory", "8MiB");
    (bay, disk)
}

/// One process's work: scattered writes, sizes, holes, reads, syncs and reopens of a file, with all of it
/// known. Every error is one too many: the backing is healthy.
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

    /// Fails with the writer's own words if it has failed.
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

/// S7, S7.1, S7.2, S7.7: others fill the disk of the store and free it, again and again, while jobs write. No job
/// sees an error, no byte is wrong, the daemon lives, and the store takes writes again by itself.
/// `FOREBAY_DISK_CYCLES` says how often.
#[test]
fn others_fill_the_disk_of_the_store() {
    let cycles = count("FOREBAY_DISK_CYCLES", 2);
    let limit = Duration::from_secs(240 + 30 * cycles);
    let (mut bay, disk) = bay_on(Drain::Immediate, 144 * MIB, limit);
    bay.allow_log("the disk of the store is full");
    bay.start();
    let seed = seed("others_fill_the_disk_of_the_store");
    let mut writers: Vec<Writer> = (0..3)
        .map(|n| Writer::start(bay.path(format!("f{n}")), seed + n))
        .collect();
    let mut through = 0;
    for cycle in 0..cycles {
        disk.fill();
        go_on(&mut writers, &format!("full, cycle {cycle}"));
        // What the drain gives back meanwhile is taken by the others, too.
        disk.free();
        disk.fill();
        go_on(&mut writers, &format!("full again, cycle {cycle}"));
        through = bay.status().number("/bytes/through");
        disk.free();
        go_on(&mut writers, &format!("free, cycle {cycle}"));
    }
    assert!(through > 0, "the disk was never full for the store");
    wait_until("the store is well again by itself", LONG, || {
        bay.status().at("/store/failure").is_null().then_some(())
    });
    let want: Vec<Vec<u8>> = writers.iter_mut().map(Writer::end).collect();
    let before = bay.status().number("/bytes/through");
    put(bay.path("new"), vec![7; 5 * MIB as usize]);
    let after = bay.status().number("/bytes/through");
    assert_eq!(after, before, "the store absorbs again");
    for (n, want) in want.iter().enumerate() {
        assert_same("through the mount", &get(bay.path(format!("f{n}"))), want);
    }
    bay.drain();
    for (n, want) in want.iter().enumerate() {
        assert_same("canonical", &get(bay.canonical(format!("f{n}"))), want);
    }
    bay.umount();
    drop(disk);
    bay.finish();
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

/// S7.1, S5.1: killed while the disk of the store is full. What was acknowledged is there after a start
/// that finds the disk with room again.
#[test]
fn killed_while_the_disk_of_the_store_is_full() {
    let (mut bay, disk) = bay_on(Drain::Never, 144 * MIB, Duration::from_secs(240));
    bay.allow_log("the disk of the store is full");
    bay.start();
    let mut rng = Rng::new(5);
    let mut want = rng.bytes(4 * MIB as usize);
    let file = open_rw(bay.path("f"));
    sys::write_all_at(&file, &want, 0).expect("write");
    disk.fill();
    // More than what the store has room for: the rest is written through, over and beside what it holds.
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
    bay.kill();
    drop(file);
    disk.free();
    bay.start();
    assert_same("after a crash", &get(bay.path("f")), &want);
    bay.umount();
    assert_same("canonical", &get(bay.canonical("f")), &want);
    drop(disk);
    bay.finish();
}

/// S7.7: a disk that stays full. What the store holds is drained, whatever the policy says, and then changes of those
/// files need no record: they do not run out of room.
#[test]
fn a_disk_that_stays_full_is_drained_from() {
    let (mut bay, disk) = bay_on(Drain::Never, 144 * MIB, Duration::from_secs(240));
    bay.allow_log("the disk of the store is full");
    bay.start();
    let mut rng = Rng::new(6);
    let mut want = rng.bytes(4 * MIB as usize);
    let file = open_rw(bay.path("f"));
    sys::write_all_at(&file, &want, 0).expect("write");
    disk.fill();
    let mut change = || {
        let at = rng.below(4 * MIB) as usize;
        rng.fill(&mut want[at..at + 1]);
        sys::write_all_at(&file, &want[at..at + 1], at as u64).expect("write");
    };
    wait_until("nothing is left in the store", LONG, || {
        (0..1000).for_each(|_| change());
        (bay.status().undrained() == 0).then_some(())
    });
    // More than there are records held in advance.
    (0..40_000).for_each(|_| change());
    assert_same(
        "changed",
        &sys::read_at(&file, 0, want.len()).expect("read"),
        &want,
    );
    drop(file);
    disk.free();
    bay.umount();
    assert_same("canonical", &get(bay.canonical("f")), &want);
    drop(disk);
    bay.finish();
}

/// A daemon that this test has not started itself. It must not stay if the test fails.
struct InBackground<'a>(Pid, &'a Bay);

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

/// S7.7: a daemon in the background has its log on the disk that others fill. Lines are lost, and nothing else: it hears
/// signals, drains and ends.
#[test]
fn a_log_on_the_full_disk_ends_no_thread() {
    let (bay, disk) = bay_on(Drain::Never, 144 * MIB, Duration::from_secs(240));
    let out = bay.mount_command().output().expect("start forebay");
    assert_eq!(code(&out), OK, "{}", text(&out));
    let status = bay.run(["status", str(bay.mnt()), "--json"]);
    let daemon = Pid::from_raw(Status::parse(&status).pid() as i32);
    let _ends = InBackground(daemon, &bay);
    put(bay.path("f"), vec![7; 100_000]);
    disk.fill();
    // Each is a line in the log, whose last block is full before long.
    for _ in 0..200 {
        kill(daemon, Signal::SIGHUP).expect("signal the daemon");
        std::thread::sleep(Duration::from_millis(5));
    }
    put(bay.path("g"), vec![8; 100_000]);
    kill(daemon, Signal::SIGTERM).expect("signal the daemon");
    wait_until("it ends", LONG, || kill(daemon, None).err().map(drop));
    assert!(!sys::is_mounted(bay.mnt()), "it has unmounted");
    assert_same("f", &get(bay.canonical("f")), &[7; 100_000]);
    assert_same("g", &get(bay.canonical("g")), &[8; 100_000]);
    disk.free();
    drop(disk);
}

/// S5.1, S7.7: killed on a full disk, and started again before there is room. What was held for the index is given back first.
#[test]
fn a_store_begins_again_on_a_full_disk() {
    let (mut bay, disk) = bay_on(Drain::Never, 144 * MIB, Duration::from_secs(240));
    bay.allow_log("the disk of the store is full");
    bay.start();
    let gone = open_rw(bay.path("gone"));
    sys::write_all_at(&gone, &[1; 100_000], 0).expect("write");
    std::fs::remove_file(bay.path("gone")).expect("unlink");
    put(bay.path("f"), vec![7; MIB as usize]);
    wait_until("room is held for the index", LONG, || {
        bay.store().join("log/reserve").exists().then_some(())
    });
    disk.fill();
    bay.kill();
    drop(gone);
    bay.start();
    assert_same("after a crash", &get(bay.path("f")), &vec![7; MIB as usize]);
    put(bay.path("g"), vec![8; MIB as usize]);
    bay.umount();
    assert_same("f", &get(bay.canonical("f")), &vec![7; MIB as usize]);
    assert_same("g", &get(bay.canonical("g")), &vec![8; MIB as usize]);
    disk.free();
    drop(disk);
    bay.finish();
}

/// S7.6: the kernel gives the disk of the store up (`remount,abort`). What the file system below has is
/// read and written as before, new data goes there, and what the store alone holds is right or EIO.
#[test]
fn the_kernel_gives_up_the_disk_of_the_store() {
    let (mut bay, disk) = bay_on(Drain::Never, 144 * MIB, Duration::from_secs(240));
    bay.allow_log("");
    put(bay.canonical("old"), vec![1; 100_000]);
    bay.start();
    put(bay.path("held"), vec![2; 100_000]);
    disk.abort();
    assert_same("canonical data", &get(bay.path("old")), &[1; 100_000]);
    let old = open_rw(bay.path("old"));
    sys::write_all_at(&old, &[4; 10_000], 0).expect("write over canonical data");
    old.sync_all().expect("fsync of what the backing has");
    let new = open_rw(bay.path("new"));
    for i in 0..100 {
        sys::write_all_at(&new, &[3; 50_000], i * 50_000).expect("written through");
    }
    new.sync_all().expect("fsync of what was written through");
    assert_same("new data", &get(bay.path("new")), &vec![3; 5_000_000]);
    assert_same("is below", &get(bay.canonical("new")), &vec![3; 5_000_000]);
    match std::fs::read(bay.path("held")) {
        Ok(held) => assert_same("what the store holds", &held, &[2; 100_000]),
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EIO), "{e}"),
    }
    wait_until("status says so", LONG, || {
        bay.status().at("/store/failure").is_string().then_some(())
    });
    assert_eq!(
        std::fs::metadata(bay.path("held")).expect("stat").len(),
        100_000
    );
    drop((old, new));
    bay.kill();
    drop(disk);
}
