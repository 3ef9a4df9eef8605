//! S3: locks exclude each other across owners and nodes, are given up when they should be, and leave nothing
//! behind. Two overlays over one backing act as two nodes.

use super::*;
use crate::backing::ofd::LAST;
use crate::requests::executor::Origin;
use parking_lot::Mutex;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

const SOON: Duration = Duration::from_secs(30);

/// Records the calls of the hooks, and makes them fail when asked to.
#[derive(Default)]
pub struct Told {
    events: Mutex<Vec<(&'static str, bool)>>,
    /// Called while a hook runs, to check the state at that time.
    look: Mutex<Option<Box<dyn Fn() -> bool + Send>>>,
    refuse: Mutex<Option<&'static str>>,
}

impl Told {
    pub fn taken(&self, _: &Handle) -> Result<()> {
        self.tell("taken")
    }

    pub fn going(&self, _: &Handle) -> Result<()> {
        self.tell("going")
    }

    fn tell(&self, what: &'static str) -> Result<()> {
        let saw = self.look.lock().as_ref().is_some_and(|look| look());
        self.events.lock().push((what, saw));
        match *self.refuse.lock() {
            Some(refused) if refused == what => {
                Err(io::Error::from_raw_os_error(libc::ENODEV).into())
            }
            _ => Ok(()),
        }
    }

    fn events(&self) -> Vec<(&'static str, bool)> {
        std::mem::take(&mut self.events.lock())
    }
}

const SHARED: Option<LockKind> = Some(LockKind::Shared);
const EXCLUSIVE: Option<LockKind> = Some(LockKind::Exclusive);

/// An open file on one node.
struct Open<'a> {
    w: &'a World,
    node: u64,
    fh: u64,
}

fn open_f(w: &World) -> Open<'_> {
    open_for(w, RDWR)
}

fn open_for(w: &World, flags: i32) -> Open<'_> {
    if !w.path("f").exists() {
        std::fs::write(w.path("f"), "").unwrap();
    }
    let node = w.lookup("f").unwrap().attr.ino;
    let fh = w.open(node, flags);
    Open { w, node, fh }
}

impl Open<'_> {
    fn ask(&self, owner: u64, kind: Option<LockKind>, (first, last): (u64, u64)) -> LockRequest {
        LockRequest {
            fh: self.fh,
            owner,
            first,
            last,
            kind,
            pid: 1000 + owner as u32,
            caller: Caller { pid: 0, ..me() },
        }
    }

    fn set(&self, owner: u64, kind: Option<LockKind>, range: (u64, u64)) -> Result<()> {
        self.w.fs.set_lock(&self.ask(owner, kind, range))
    }

    fn lock(&self, owner: u64, kind: Option<LockKind>, range: (u64, u64)) {
        self.set(owner, kind, range).unwrap();
    }

    fn refused(&self, owner: u64, kind: Option<LockKind>, range: (u64, u64)) {
        let refused = self.set(owner, kind, range).unwrap_err();
        assert_eq!(refused.errno(), libc::EAGAIN, "{range:?}: {refused}");
    }

    fn get(&self, owner: u64, kind: Option<LockKind>, range: (u64, u64)) -> Option<Conflict> {
        self.w.fs.get_lock(&self.ask(owner, kind, range)).unwrap()
    }

    fn wait(&self, owner: u64, kind: Option<LockKind>, range: (u64, u64)) -> Receiver<Result<()>> {
        self.wait_as(self.ask(owner, kind, range))
    }

    fn until_it_waits(&self) {
        let deadline = Instant::now() + SOON;
        while self.w.fs.lock_users() == 0 {
            assert!(Instant::now() < deadline, "no thread waits");
        }
    }

    fn wait_as(&self, ask: LockRequest) -> Receiver<Result<()>> {
        let (tell, told) = channel();
        let fs = self.w.fs.clone();
        let origin = Origin {
            uid: ask.caller.uid,
            tid: ask.caller.pid,
        };
        let executor = &self.w.executor;
        executor.run_apart(
            origin,
            move |_| fs.wait_for(&ask),
            move |waited| tell.send(waited).unwrap(),
        );
        told
    }
}

const ALL: (u64, u64) = (0, LAST);

#[test]
fn owners_and_nodes_exclude_each_other() {
    let [a, b] = nodes();
    let (a, b) = (open_f(&a), open_f(&b));
    a.lock(1, EXCLUSIVE, ALL);
    a.refused(2, SHARED, ALL);
    b.refused(1, SHARED, ALL);
    a.lock(1, None, ALL);
    b.lock(1, SHARED, ALL);
    a.lock(1, SHARED, ALL);
    a.lock(2, SHARED, ALL);
    a.refused(1, EXCLUSIVE, ALL);
    b.refused(1, EXCLUSIVE, ALL);
}

#[test]
fn programs_without_the_overlay_are_excluded_too() {
    let w = world();
    let f = open_f(&w);
    let other = std::fs::File::options().write(true).open(w.path("f"));
    let other = other.unwrap();
    let try_lock = |kind: i32| {
        let lock = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open and `lock` is the structure this command reads.
        unsafe { libc::fcntl(other.as_raw_fd(), libc::F_OFD_SETLK, &lock) == 0 }
    };
    f.lock(1, EXCLUSIVE, (10, 19));
    assert!(!try_lock(libc::F_WRLCK));
    f.lock(1, None, ALL);
    assert!(try_lock(libc::F_WRLCK));
    f.refused(1, SHARED, (5, 5));
}

#[test]
fn ranges_split_and_join() {
    let [a, b] = nodes();
    let (a, b) = (open_f(&a), open_f(&b));
    a.lock(1, EXCLUSIVE, (0, 99));
    b.lock(1, EXCLUSIVE, (100, 199));
    a.lock(1, None, (40, 59));
    b.lock(1, SHARED, (45, 54));
    b.refused(1, SHARED, (39, 39));
    b.refused(1, SHARED, (60, 60));
    a.refused(1, SHARED, (0, LAST));
    a.lock(1, SHARED, (40, 59));
    b.lock(1, None, ALL);
    a.lock(1, EXCLUSIVE, ALL);
    b.refused(1, SHARED, (1 << 40, 1 << 40));
    let nonsense = a.set(1, SHARED, (9, 3)).unwrap_err();
    assert_eq!(nonsense.errno(), libc::EINVAL);
    let nonsense = a.set(1, SHARED, (0, u64::MAX)).unwrap_err();
    assert_eq!(nonsense.errno(), libc::EINVAL);
}

#[test]
fn upgrades_and_downgrades() {
    let [a, b] = nodes();
    let (a, b) = (open_f(&a), open_f(&b));
    a.lock(1, SHARED, ALL);
    b.lock(1, SHARED, ALL);
    a.refused(1, EXCLUSIVE, ALL);
    // The owner still has its shared lock.
    b.refused(1, EXCLUSIVE, ALL);
    b.lock(1, None, ALL);
    a.lock(1, EXCLUSIVE, ALL);
    b.refused(1, SHARED, ALL);
    a.lock(1, SHARED, ALL);
    b.lock(1, SHARED, ALL);
}

#[test]
fn a_reader_can_lock_exclusively_as_flock_allows() {
    let [a, b] = nodes();
    let (a, b) = (open_for(&a, libc::O_RDONLY), open_f(&b));
    a.lock(1, EXCLUSIVE, ALL);
    b.refused(1, SHARED, ALL);
}

#[test]
fn getlk_names_a_local_holder_and_not_a_remote_one() {
    let [a, b] = nodes();
    let (a, b) = (open_f(&a), open_f(&b));
    assert_eq!(a.get(2, EXCLUSIVE, ALL), None);
    a.lock(1, EXCLUSIVE, (10, 19));
    let found = Conflict {
        first: 10,
        last: 19,
        kind: LockKind::Exclusive,
        pid: 1001,
    };
    assert_eq!(a.get(2, SHARED, ALL), Some(found));
    // The result is the same if the asking owner has a description of its own.
    a.lock(2, SHARED, (0, 0));
    assert_eq!(a.get(2, SHARED, ALL), Some(found));
    let remote = Conflict { pid: 0, ..found };
    assert_eq!(b.get(1, SHARED, (10, LAST)), Some(remote));
    assert_eq!(b.get(1, SHARED, (20, LAST)), None);
    assert_eq!(a.get(1, EXCLUSIVE, (10, 19)), None);
    assert_eq!(a.get(1, None, ALL), Some(found));
    a.lock(2, None, ALL);
    assert_eq!(a.w.fs.lock_owners(), 1);
}

/// Number of descriptors of this node's `f`. Tests that run at the same time have files of their own.
fn descriptors(w: &World) -> usize {
    let path = w.path("f").canonicalize().unwrap();
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter(|fd| std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|to| to == path))
        .count()
}

/// When locks are given up nothing that they needed is left: no description, no count.
#[test]
fn flush_and_release_drop_locks_and_descriptors() {
    let [a, b] = nodes();
    let (one, two, other) = (open_f(&a), open_f(&a), open_f(&b));
    // POSIX: a close of any handle gives up all locks of the process.
    one.lock(1, EXCLUSIVE, (0, 9));
    two.lock(1, SHARED, (20, 29));
    two.lock(2, EXCLUSIVE, (40, 49));
    assert!(a.fs.has_locks(two.fh));
    a.fs.flush(two.fh, 3).unwrap();
    other.refused(9, EXCLUSIVE, (20, 20));
    a.fs.flush(two.fh, 1).unwrap();
    assert!(a.fs.has_locks(two.fh), "of the other owner");
    other.lock(9, EXCLUSIVE, (0, 29));
    other.refused(9, EXCLUSIVE, (40, 40));
    // flock and open-file-description locks are given up by the last close of their open file.
    a.fs.release(two.fh).unwrap();
    other.lock(9, EXCLUSIVE, (40, 49));
    assert_eq!(a.fs.lock_owners(), 0);
    a.fs.release(one.fh).unwrap();
    b.fs.release(other.fh).unwrap();
    assert_eq!(b.fs.lock_owners(), 0);
    for w in [&a, &b] {
        // Undo each lookup.
        for _ in 0..2 {
            w.fs.undo_lookup(one.node);
        }
        assert_eq!(w.fs.known_inodes(), 1, "only the root");
    }
}

/// The kernel may give an owner's number to a new open file before the release of the old one.
#[test]
fn a_late_release_leaves_the_locks_of_another_file_alone() {
    let [a, b] = nodes();
    let (old, new, other) = (open_f(&a), open_f(&a), open_f(&b));
    old.lock(1, EXCLUSIVE, (0, 99));
    new.lock(1, EXCLUSIVE, (50, 59));
    a.fs.release(old.fh).unwrap();
    other.refused(1, SHARED, (50, 59));
    other.lock(1, SHARED, (0, 49));
    other.lock(1, SHARED, (60, 99));
}

#[test]
fn a_removed_file_can_be_locked_while_it_is_open() {
    let w = world();
    let f = open_f(&w);
    w.fs.unlink(&me(), ROOT, os("f")).unwrap();
    f.lock(1, EXCLUSIVE, ALL);
    f.refused(2, SHARED, ALL);
    w.fs.release(f.fh).unwrap();
    w.fs.undo_lookup(f.node);
    assert_eq!(w.fs.known_inodes(), 1);
}

/// Descriptors of locks count as those of handles do: they cannot use up the last descriptors.
#[test]
fn without_descriptors_locks_are_refused() {
    let w = world();
    let f = open_f(&w);
    w.fs.limit_descriptors(w.fs.known_inodes() + 2);
    let refused = (1..10).find_map(|owner| f.set(owner, SHARED, ALL).err());
    assert_eq!(refused.unwrap().errno(), libc::ENOLCK);
    w.fs.limit_descriptors(1 << 16);
    f.lock(10, SHARED, ALL);
}

#[test]
fn a_thousand_locks_leave_no_descriptor() {
    let w = world();
    let f = open_f(&w);
    let before = descriptors(&w);
    for owner in 0..1000 {
        f.lock(owner, SHARED, (owner, owner));
    }
    assert_eq!(descriptors(&w), before + 1000);
    for owner in 0..1000 {
        f.lock(owner, None, ALL);
    }
    assert_eq!(descriptors(&w), before);
    assert_eq!(w.fs.lock_owners(), 0);
}

/// The refresh runs after a lock is held and before the request is answered; the publication runs while the
/// lock is still held. `true` means that another node could not take the lock meanwhile.
#[test]
fn the_hooks_run_while_the_lock_is_held() {
    let [a, b] = nodes();
    let (f, other) = (open_f(&a), open_f(&b));
    let (fs, ask) = (b.fs.clone(), other.ask(1, EXCLUSIVE, (0, 9)));
    let kept_out = move || match fs.set_lock(&ask) {
        Err(FsError::Locked) => true,
        got => {
            got.unwrap();
            let unlock = LockRequest { kind: None, ..ask };
            fs.set_lock(&unlock).unwrap();
            false
        }
    };
    let told = &a.fs.locks.told;
    *told.look.lock() = Some(Box::new(kept_out));
    f.lock(1, EXCLUSIVE, ALL);
    assert_eq!(told.events(), [("taken", true)]);
    f.lock(1, SHARED, (5, 5));
    assert_eq!(told.events(), [("going", true), ("taken", true)]);
    // There is no lock to give up, so no hook is called.
    f.lock(2, None, ALL);
    f.lock(1, None, (0, 9));
    assert_eq!(told.events(), [("going", true)]);
    f.lock(1, None, (0, 9));
    assert_eq!(told.events(), []);
    f.lock(1, EXCLUSIVE, ALL);
    assert_eq!(told.events(), [("taken", true)]);
    a.fs.flush(f.fh, 1).unwrap();
    assert_eq!(told.events(), [("going", true)]);
    f.lock(3, EXCLUSIVE, ALL);
    a.fs.release(f.fh).unwrap();
    assert_eq!(told.events(), [("taken", true), ("going", true)]);
    other.lock(1, EXCLUSIVE, ALL);
}

#[test]
fn a_lock_that_cannot_be_refreshed_is_given_back() {
    let [a, b] = nodes();
    let (f, other) = (open_f(&a), open_f(&b));
    f.lock(1, SHARED, (10, 19));
    *a.fs.locks.told.refuse.lock() = Some("taken");
    let error = f.set(1, EXCLUSIVE, (0, 29)).unwrap_err();
    assert_eq!(error.errno(), libc::ENODEV);
    // The locks that were held before are still held.
    other.lock(1, EXCLUSIVE, (0, 9));
    other.lock(1, EXCLUSIVE, (20, 29));
    other.lock(1, SHARED, (10, 19));
    other.refused(1, EXCLUSIVE, (10, 19));
}

#[test]
fn a_lock_that_cannot_be_published_goes_all_the_same() {
    let [a, b] = nodes();
    let (f, other) = (open_f(&a), open_f(&b));
    let refuse = |what| *a.fs.locks.told.refuse.lock() = what;
    f.lock(1, EXCLUSIVE, ALL);
    refuse(Some("going"));
    let error = f.set(1, SHARED, ALL).unwrap_err();
    assert_eq!(error.errno(), libc::ENODEV);
    other.lock(1, SHARED, ALL);
    assert_eq!(f.set(1, None, ALL).unwrap_err().errno(), libc::ENODEV);
    other.lock(1, EXCLUSIVE, ALL);
    other.lock(1, None, ALL);
    refuse(None);
    f.lock(1, EXCLUSIVE, ALL);
    refuse(Some("going"));
    let error = a.fs.flush(f.fh, 1).unwrap_err();
    assert_eq!(error.errno(), libc::ENODEV);
    other.lock(1, EXCLUSIVE, ALL);
    assert_eq!(a.fs.lock_owners(), 0);
}

#[test]
fn waiters_get_it_from_both_sides_one_at_a_time() {
    let [a, b] = nodes();
    let (f, other) = (open_f(&a), open_f(&b));
    f.lock(1, EXCLUSIVE, ALL);
    let (here, there) = (f.wait(2, EXCLUSIVE, ALL), other.wait(2, EXCLUSIVE, ALL));
    let deadline = Instant::now() + SOON;
    while a.executor.lock_waits() + b.executor.lock_waits() < 2 {
        assert!(Instant::now() < deadline, "they wait");
    }
    here.try_recv().unwrap_err();
    there.try_recv().unwrap_err();
    f.lock(1, None, ALL);
    let mut got = vec![];
    while got.len() < 2 {
        for (name, side, waiter) in [("here", &f, &here), ("there", &other, &there)] {
            if let Ok(result) = waiter.recv_timeout(Duration::from_millis(10)) {
                result.unwrap();
                f.refused(3, SHARED, ALL);
                other.refused(3, SHARED, ALL);
                side.lock(2, None, ALL);
                got.push(name);
            }
        }
        assert!(Instant::now() < deadline, "only {got:?} got it");
    }
    assert_eq!(a.executor.lock_waits() + b.executor.lock_waits(), 0);
    assert_eq!(a.fs.lock_owners() + b.fs.lock_owners(), 0);
}

/// One owner with two threads: what one thread does while the other waits must not give the owner a second
/// description, with which it would lock itself out.
#[test]
fn a_flush_beside_a_waiter_of_the_same_owner() {
    let [a, b] = nodes();
    let (f, other) = (open_f(&a), open_f(&b));
    f.lock(1, EXCLUSIVE, (0, 9));
    other.lock(1, EXCLUSIVE, (20, 29));
    let waiter = f.wait(1, EXCLUSIVE, (0, 29));
    f.until_it_waits();
    a.fs.flush(f.fh, 1).unwrap();
    other.lock(1, EXCLUSIVE, (0, 9));
    other.lock(1, None, ALL);
    waiter.recv_timeout(SOON).unwrap().unwrap();
    other.refused(1, SHARED, (0, 9));
    f.lock(1, EXCLUSIVE, (5, 40));
    other.refused(1, SHARED, (40, 40));
    a.fs.flush(f.fh, 1).unwrap();
    other.lock(1, EXCLUSIVE, ALL);
    assert_eq!(a.fs.lock_owners(), 0);
}

#[test]
fn a_lock_that_comes_after_its_handle_is_gone_is_given_back() {
    let [a, b] = nodes();
    let (f, other) = (open_f(&a), open_f(&b));
    other.lock(1, EXCLUSIVE, ALL);
    let waiter = f.wait(1, EXCLUSIVE, ALL);
    f.until_it_waits();
    a.fs.release(f.fh).unwrap();
    other.lock(1, None, ALL);
    let refused = waiter.recv_timeout(SOON).unwrap().unwrap_err();
    assert_eq!(refused.errno(), libc::EBADF);
    other.lock(1, EXCLUSIVE, ALL);
    assert_eq!(a.fs.lock_owners(), 0);
}

#[test]
fn a_waiter_whose_caller_is_gone_gives_up_and_so_do_all_at_the_end() {
    let [a, b] = nodes();
    let (f, other) = (open_f(&a), open_f(&b));
    other.lock(1, EXCLUSIVE, ALL);
    let mut ask = f.ask(1, SHARED, ALL);
    ask.caller.pid = u32::MAX - 1;
    let gone = f.wait_as(ask).recv_timeout(SOON).unwrap().unwrap_err();
    assert_eq!(gone.errno(), libc::EINTR);
    let waiter = f.wait(1, SHARED, ALL);
    a.executor.end();
    let ended = waiter.recv_timeout(SOON).unwrap().unwrap_err();
    assert_eq!(ended.errno(), libc::EINTR);
    assert_eq!(a.fs.lock_owners(), 0);
}
