//! Locks across nodes: two daemons, each with its own store, over one backing.

use forebay_tests::locks::{
    How, Worker, excluded, fcntl, get_lock, lock, pair, unlock, waiters, with_pair,
};
use forebay_tests::sys::errno;
use forebay_tests::test_mount::{Drain, TestMount, open_rw, put};
use forebay_tests::wait::{LONG, wait_until};
use nix::sys::signal::Signal;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The limit within which a signal must end a wait. Without the signal the wait ends with the lock, which a test may
/// hold for ever.
const AT_ONCE: Duration = Duration::from_secs(5);

/// S3.1: every kind of lock excludes every kind of lock of the other node, both ways.
#[test]
fn every_kind_excludes_every_kind() {
    with_pair(|a, b| {
        let (a, b) = (open_rw(a.path("f")), open_rw(b.path("f")));
        for holds in How::ALL {
            for asks in How::ALL {
                lock(&a, holds).expect("lock");
                assert!(excluded(lock(&b, asks)), "{asks:?} while {holds:?} is held");
                unlock(&a, holds).expect("unlock");
                lock(&b, asks).expect("it is free");
                assert!(
                    excluded(lock(&a, holds)),
                    "{holds:?} while {asks:?} is held"
                );
                unlock(&b, asks).expect("unlock");
            }
        }
    });
}

/// S3.1: locks exclude each other by range, shared and exclusive; a part that is unlocked is free.
#[test]
fn ranges() {
    with_pair(|a, b| {
        let (a, b) = (open_rw(a.path("f")), open_rw(b.path("f")));
        let set = |file: &fs::File, kind, range| fcntl(file, libc::F_OFD_SETLK, kind, range);
        set(&a, libc::F_WRLCK, (0, 100)).expect("lock");
        set(&b, libc::F_WRLCK, (100, 100)).expect("lock beside it");
        assert!(excluded(set(&b, libc::F_RDLCK, (50, 10))));
        set(&a, libc::F_UNLCK, (40, 30)).expect("unlock a piece");
        set(&b, libc::F_RDLCK, (50, 10)).expect("that piece is free");
        assert!(excluded(set(&b, libc::F_RDLCK, (30, 15))));
        set(&a, libc::F_RDLCK, (0, 40)).expect("downgrade");
        set(&b, libc::F_RDLCK, (0, 40)).expect("share");
        assert!(excluded(set(&a, libc::F_WRLCK, (0, 40))), "upgrade");
        drop(b);
        wait_until("closing gives up all", LONG, || {
            set(&a, libc::F_WRLCK, (0, 0)).ok()
        });
    });
}

/// S3.1: programs that use the backing itself are excluded like another node.
#[test]
fn programs_without_the_overlay() {
    with_pair(|a, _| {
        let (mounted, below) = (open_rw(a.path("f")), open_rw(a.canonical("f")));
        lock(&mounted, How::Flock).expect("lock");
        assert!(excluded(lock(&below, How::Ofd)));
        unlock(&mounted, How::Flock).expect("unlock");
        lock(&below, How::Posix).expect("lock");
        assert!(excluded(lock(&mounted, How::Ofd)));
    });
}

/// S3.2: F_GETLK names the process on this node, and no process of another node.
#[test]
fn the_holder_is_named() {
    with_pair(|a, b| {
        let holder = Worker::start(&a.path("f"), How::Posix, (10, 5));
        holder.expect_line("got");
        let (here, there) = (open_rw(a.path("f")), open_rw(b.path("f")));
        let found = get_lock(&here, libc::F_WRLCK).expect("another lock is in the way");
        assert_eq!((found.l_start, found.l_len), (10, 5));
        assert_eq!(i32::from(found.l_type), libc::F_WRLCK);
        assert_eq!(found.l_pid, holder.pid());
        let found = get_lock(&there, libc::F_RDLCK).expect("another lock is in the way");
        assert_eq!((found.l_start, found.l_len, found.l_pid), (10, 5, 0));
        holder.end();
        assert!(get_lock(&there, libc::F_WRLCK).is_none());
    });
}

/// S3.2: a waiter gets the lock when it is unlocked, closed, or its holder dies; on this node and
/// on the other.
#[test]
fn waiters_get_it() {
    with_pair(|a, b| {
        for (n, how) in How::ALL.into_iter().enumerate() {
            for (m, mount) in [&*a, &*b].into_iter().enumerate() {
                let name = format!("f{n}{m}");
                let holder = open_rw(a.path(&name));
                lock(&holder, How::Flock).expect("lock");
                let waiter = Worker::start(&mount.path(&name), how, (0, 0));
                wait_until("it waits", LONG, || (waiters(mount) == 1).then_some(()));
                unlock(&holder, How::Flock).expect("unlock");
                waiter.expect_line("got");
                assert!(excluded(lock(&holder, How::Ofd)));
                let next = Worker::start(&mount.path(&name), How::Flock, (0, 0));
                wait_until("it waits", LONG, || (waiters(mount) == 1).then_some(()));
                waiter.kill(Signal::SIGKILL);
                next.expect_line("got");
                next.end();
                wait_until("its exit gives it up", LONG, || {
                    lock(&holder, How::Flock).ok()
                });
            }
        }
    });
}

/// S3.3: a waiting process can be killed at once, and leaves nothing locked.
#[test]
fn a_waiting_process_can_be_killed() {
    with_pair(|a, b| {
        let holder = open_rw(a.path("f"));
        for how in How::ALL {
            for signal in [
                Signal::SIGTERM,
                Signal::SIGKILL,
                Signal::SIGQUIT,
                Signal::SIGXCPU,
            ] {
                for mount in [&*a, &*b] {
                    lock(&holder, How::Ofd).expect("lock");
                    let waiter = Worker::start(&mount.path("f"), how, (0, 0));
                    wait_until("it waits", LONG, || (waiters(mount) == 1).then_some(()));
                    waiter.kill_at_once(signal, AT_ONCE);
                    // The daemon's thread for the request ends after it has answered.
                    wait_until("no program waits", LONG, || {
                        (waiters(mount) == 0).then_some(())
                    });
                    unlock(&holder, How::Ofd).expect("unlock");
                    let other = open_rw(b.path("f"));
                    lock(&other, How::Ofd).expect("the dead waiter holds nothing");
                    unlock(&other, How::Ofd).expect("unlock");
                }
            }
        }
    });
}

/// S3.3, where the kernel leaves open which thread takes the signal, and for a process with any name: the kernel
/// cuts names within a character.
#[test]
fn a_process_of_several_waiting_threads_can_be_killed() {
    with_pair(|a, b| {
        let holder = open_rw(a.path("f"));
        for signal in [Signal::SIGXCPU, Signal::SIGTERM, Signal::SIGKILL] {
            lock(&holder, How::Ofd).expect("lock");
            let waiter = Worker::two_threads(&b.path("f"));
            waiter.expect_line("blocked");
            wait_until("both wait", LONG, || (waiters(b) == 2).then_some(()));
            waiter.kill_at_once(signal, AT_ONCE);
            wait_until("no program waits", LONG, || (waiters(b) == 0).then_some(()));
            unlock(&holder, How::Ofd).expect("unlock");
        }
    });
}

/// S3.3: a handled signal ends the wait as it does elsewhere, in the first thread or with others beside it, and the
/// call never fails with an error number that is internal to the kernel.
#[test]
fn a_handled_signal_interrupts() {
    with_pair(|a, b| {
        let holder = open_rw(a.path("f"));
        lock(&holder, How::Ofd).expect("lock");
        for beside in ["alone", "sleeper", "spinner"] {
            let waiter = Worker::handling(&b.path("f"), beside);
            wait_until("it waits", LONG, || (waiters(b) == 1).then_some(()));
            let start = Instant::now();
            waiter.signal(Signal::SIGUSR1);
            waiter.expect_line("handled");
            let took = start.elapsed();
            assert!(took < AT_ONCE, "{beside}: {took:?}");
            assert_eq!(waiter.wait().code(), Some(9), "{beside}");
            wait_until("no program waits", LONG, || (waiters(b) == 0).then_some(()));
        }
    });
}

/// S3.3: two processes that wait for each other wait until one of them is killed.
#[test]
fn a_deadlock_can_be_broken() {
    with_pair(|a, b| {
        let one = Worker::crossing(&a.path("f"), 0, 1);
        let two = Worker::crossing(&b.path("f"), 1, 0);
        one.expect_line("first");
        two.expect_line("first");
        one.go_on();
        two.go_on();
        wait_until("both wait", LONG, || {
            (waiters(a) + waiters(b) == 2).then_some(())
        });
        one.kill_at_once(Signal::SIGTERM, AT_ONCE);
        two.expect_line("got");
        two.end();
    });
}

/// S3.4: the locks of a daemon that was killed go with it.
#[test]
fn a_killed_daemon_holds_nothing() {
    let (mut a, mut b) = pair();
    a.start();
    b.start();
    let holder = open_rw(a.path("f"));
    lock(&holder, How::Flock).expect("lock");
    let waiter = Worker::start(&b.path("f"), How::Posix, (0, 0));
    wait_until("it waits", LONG, || (waiters(&b) == 1).then_some(()));
    a.kill();
    waiter.expect_line("got");
    waiter.end();
    drop(holder);
    a.start();
    let again = open_rw(a.path("f"));
    lock(&again, How::Flock).expect("lock");
    drop(again);
    a.finish();
    b.finish();
}

/// S3.3: many threads wait for a lock, and the mount answers all other requests at once. In the end all of them get
/// the lock, one at a time, and the daemon keeps no descriptor for them.
#[test]
fn waiting_stops_nobody() {
    const MANY: usize = 64;
    with_pair(|a, b| {
        put(a.path("other"), b"x");
        let holder = open_rw(a.path("f"));
        lock(&holder, How::Ofd).expect("lock");
        fs::metadata(b.path("other")).expect("stat");
        let files: Vec<_> = (0..MANY).map(|_| open_rw(b.path("f"))).collect();
        let descriptors = || {
            let dir = format!("/proc/{}/fd", b.pid());
            fs::read_dir(dir).expect("the daemon's descriptors").count()
        };
        let before = descriptors();
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for file in &files {
                let inside = &inside;
                scope.spawn(move || {
                    fcntl(file, libc::F_OFD_SETLKW, libc::F_WRLCK, (0, 0)).expect("wait");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    unlock(file, How::Ofd).expect("unlock");
                });
            }
            wait_until("all wait", LONG, || (waiters(b) == MANY).then_some(()));
            wait_until("40 stats take less than a second", LONG, || {
                let start = Instant::now();
                for n in 0..20 {
                    fs::metadata(b.path(format!("none{n}"))).expect_err("not there");
                    fs::metadata(b.path("other")).expect("stat");
                }
                (start.elapsed() < Duration::from_secs(1)).then_some(())
            });
            unlock(&holder, How::Ofd).expect("unlock");
        });
        // The store may have opened a segment or a table of its own meanwhile.
        wait_until("the descriptors are back", LONG, || {
            (descriptors() < before + MANY / 4).then_some(())
        });
    });
}

/// S3.1: only one thread is inside at a time, whichever node it locks on.
#[test]
fn a_counter_is_exact() {
    const EACH: u64 = 100;
    with_pair(|a, b| {
        let counter = AtomicU64::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for n in 0..4 {
                let mount = if n % 2 == 0 { &*a } else { &*b };
                let (path, counter) = (mount.path("f"), &counter);
                scope.spawn(move || {
                    let file = open_rw(path);
                    for _ in 0..EACH {
                        if n < 2 {
                            file.lock().expect("flock");
                        } else {
                            fcntl(&file, libc::F_OFD_SETLKW, libc::F_WRLCK, (0, 8)).expect("fcntl");
                        }
                        let seen = counter.load(Ordering::SeqCst);
                        std::thread::yield_now();
                        counter.store(seen + 1, Ordering::SeqCst);
                        let how = if n < 2 { How::Flock } else { How::Ofd };
                        unlock(&file, how).expect("unlock");
                    }
                });
            }
        });
        assert_eq!(counter.into_inner(), 4 * EACH);
        println!("{} turns in {:?}", 4 * EACH, start.elapsed());
    });
}

/// S3.5: `locks = local` leaves locks to the kernel: they hold on one node only, and flock and fcntl do not see each
/// other.
#[test]
fn local_locks() {
    let (mut a, mut b) = pair();
    for mount in [&mut a, &mut b] {
        mount.set("locks", "local");
        mount.start();
    }
    {
        let (one, two) = (open_rw(a.path("f")), open_rw(a.path("f")));
        let there = open_rw(b.path("f"));
        lock(&one, How::Ofd).expect("lock");
        assert!(excluded(lock(&two, How::Ofd)));
        lock(&two, How::Flock).expect("another space");
        lock(&there, How::Ofd).expect("another node");
    }
    a.finish();
    b.finish();
}

/// S8.12: any other value of `locks` is refused with a sentence.
#[test]
fn another_word_is_refused() {
    let mut mount = TestMount::new(Drain::Never);
    mount.set("locks", "tight");
    let out = mount.mount_command().output().expect("start forebay");
    let text = forebay_tests::test_mount::text(&out);
    assert!(!out.status.success() && text.contains("tight"), "{text}");
}

/// S3.1: a lock for writing needs a file that is open for writing, as on any file system.
#[test]
fn fcntl_checks_the_mode() {
    with_pair(|a, _| {
        put(a.path("f"), b"");
        let reader = fs::File::open(a.path("f")).expect("open");
        let refused = fcntl(&reader, libc::F_SETLK, libc::F_WRLCK, (0, 0));
        assert_eq!(errno(refused, "write lock"), libc::EBADF);
        lock(&reader, How::Flock).expect("flock does not mind");
    });
}
