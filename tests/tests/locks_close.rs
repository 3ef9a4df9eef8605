//! Locks and the close that gives them up: `flock` and open-file-description locks are free for every process when
//! the last close of the descriptor has returned, and not before.

use forebay_tests::locks::{How, excluded, get_lock, lock, unlock, with_pair};
use forebay_tests::sys;
use forebay_tests::test_mount::{TestMount, open_rw};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use std::io::{PipeWriter, Read};
use std::time::{Duration, Instant};

const ROUNDS: usize = 200;

/// Locks that belong to the open file and not to the process.
const OF_FILES: [How; 2] = [How::Flock, How::Ofd];

/// The longest time that an attempt may wait after a close that was not the last one.
const A_WHILE: Duration = Duration::from_secs(5);

/// Runs the test on a thread with descriptors of its own: a process that another test starts would have copies of
/// them otherwise.
fn each_way(test: impl Fn(How, &TestMount, &TestMount) + Sync) {
    with_pair(|a, b| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sys::own_descriptors().expect("unshare");
                for how in OF_FILES {
                    test(how, a, a);
                    test(how, a, b);
                }
            });
        });
    });
}

/// S3.2: the last close has returned, so the lock is free: on this node and on the other, with data to
/// publish and without.
#[test]
fn free_after_the_last_close() {
    each_way(|how, here, there| {
        let other = open_rw(there.path("f"));
        let mut refused = 0;
        for round in 0..ROUNDS {
            let holder = open_rw(here.path("f"));
            lock(&holder, how).expect("lock");
            if round % 4 == 0 {
                sys::write_all_at(&holder, &[round as u8; 50_000], 0).expect("write");
            }
            sys::close(holder).expect("close");
            match lock(&other, how) {
                Ok(()) => unlock(&other, how).expect("unlock"),
                Err(e) => {
                    assert!(excluded(Err(e)));
                    refused += 1;
                    // A request that is still on its way must not spoil the next round.
                    while lock(&other, how).is_err() {}
                    unlock(&other, how).expect("unlock");
                }
            }
        }
        assert_eq!(refused, 0, "{how:?}: attempts after the last close refused");
    });
}

/// S3.2: F_GETLK does not show the lock of a file that was closed.
#[test]
fn nobody_is_named_after_the_last_close() {
    each_way(|how, here, there| {
        let other = open_rw(there.path("f"));
        for round in 0..ROUNDS {
            let holder = open_rw(here.path("f"));
            lock(&holder, how).expect("lock");
            assert!(get_lock(&other, libc::F_WRLCK).is_some(), "it is held");
            sys::close(holder).expect("close");
            let found = get_lock(&other, libc::F_WRLCK);
            assert!(found.is_none(), "{how:?}, round {round}");
        }
    });
}

/// S3.2: a copy of the descriptor keeps the lock, however often another copy is closed; with the last
/// one it goes.
#[test]
fn a_copy_keeps_the_lock() {
    each_way(|how, here, there| {
        let other = open_rw(there.path("f"));
        for _ in 0..2 {
            let holder = open_rw(here.path("f"));
            lock(&holder, how).expect("lock");
            for _ in 0..2 {
                let copy = holder.try_clone().expect("dup");
                sys::close(copy).expect("close a copy");
            }
            let start = Instant::now();
            assert!(excluded(lock(&other, how)), "{how:?}: a copy has it");
            assert!(start.elapsed() < A_WHILE, "{:?}", start.elapsed());
            sys::close(holder).expect("close the last");
            lock(&other, how).expect("it is free");
            unlock(&other, how).expect("unlock");
        }
        let holder = open_rw(here.path("f"));
        lock(&holder, how).expect("lock");
        drop(holder.try_clone().expect("dup"));
        assert!(excluded(lock(&other, how)));
        // The daemon knows by now that this close was not the last one.
        let start = Instant::now();
        for _ in 0..20 {
            assert!(excluded(lock(&other, how)));
        }
        assert!(start.elapsed() < A_WHILE, "{:?}", start.elapsed());
    });
}

/// S3.2: the copy of a child process keeps the lock as well, until the child ends.
#[test]
fn a_child_keeps_the_lock() {
    each_way(|how, here, there| {
        let other = open_rw(there.path("f"));
        for _ in 0..2 {
            let holder = open_rw(here.path("f"));
            lock(&holder, how).expect("lock");
            let (child, told) = child_that_waits();
            sys::close(holder).expect("close here");
            assert!(excluded(lock(&other, how)), "{how:?}: the child has it");
            drop(told);
            waitpid(child, None).expect("the child ends");
            lock(&other, how).expect("it is free");
            unlock(&other, how).expect("unlock");
        }
    });
}

/// Starts a child that has copies of all descriptors and ends when the pipe is closed.
fn child_that_waits() -> (Pid, PipeWriter) {
    let (read, write) = std::io::pipe().expect("pipe");
    // SAFETY: the child makes only system calls.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Child => {
            drop(write);
            let ended = (&read).read(&mut [0]).is_ok();
            // SAFETY: ends the process without running any code of its parent.
            unsafe { libc::_exit(i32::from(!ended)) }
        }
        ForkResult::Parent { child } => (child, write),
    }
}
