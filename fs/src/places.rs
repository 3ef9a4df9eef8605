//! Where requests run that may wait: on threads, of which each user has a share.
//!
//! # Shares
//! A user gets one more place while more places are free than the user has: alone half of them, two
//! users a third each, and so on. So a user who has none finds one, whatever others do. A request for which
//! there is no place waits in its user's queue, and only behind requests of the same user.
//!
//! # Working and waiting
//! A request begins at a *working* place: it computes, and calls the backing. Before it waits for another node, a
//! lock or the process that drops pages it moves to a *waiting* place ([`may_wait`], [`pause`]),
//! and its working place is free. Waiting places are shared out by the same rule. If the user has no more of
//! them the wait ends at once, with an error ([`WaitEnd::Crowded`]): requests that stayed where they are would take
//! the working places of all users, if there are users enough. Only publications do stay
//! ([`leave_work`]): a close, an fsync or an unlock must not fail for that.
//!
//! # Ending a wait
//! The transport does not tell when a caller is interrupted (docs/decisions/0009-locks-across-nodes.md), so
//! [`pause`] looks whether the caller has been killed, and says so. The kernel keeps a killed process until its
//! request is answered. Handled signals end no wait here: programs do not expect EINTR from an open or a read.
//!
//! # Threads
//! Threads are started as they are needed and end after a while without work. What the request of a thread is,
//! is noted with the thread, as its identity is ([`crate::backing::Creds`]). On threads without one (the
//! drain's, event loops) waits are what they are called: no place changes hands and no caller is looked for.

use crate::asker::Asker;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Places of each kind, for all users.
const WORKING: usize = 512;
const WAITING: usize = 4096;

/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(10);

/// Between two looks at a caller, and when very many wait.
const LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_millis(500);

type Task = Box<dyn FnOnce() + Send>;

/// On whose behalf something is done.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub uid: u32,
    /// The thread that waits for the answer, 0 if none does.
    pub tid: u32,
}

/// What no user asked for: the number is the one that stands for no user.
pub const NO_CALLER: Origin = Origin {
    uid: u32::MAX,
    tid: 0,
};

#[derive(Default)]
pub struct Places {
    state: Mutex<State>,
    work: Condvar,
    ended: AtomicBool,
    /// Requests that look at their callers.
    looking: AtomicUsize,
}

#[derive(Default)]
struct State {
    users: HashMap<u32, User>,
    /// Users with something in their queue; the next one is the first that has a share left.
    turns: VecDeque<u32>,
    working: usize,
    waiting: usize,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct User {
    queue: VecDeque<(Origin, Task)>,
    working: usize,
    waiting: usize,
}

impl User {
    fn is_gone(&self) -> bool {
        self.queue.is_empty() && self.working == 0 && self.waiting == 0
    }
}

impl State {
    fn may_work(&self, uid: u32) -> bool {
        let has = self.users.get(&uid).map_or(0, |user| user.working);
        has < WORKING.saturating_sub(self.working)
    }

    fn next_turn(&self) -> Option<usize> {
        self.turns.iter().position(|uid| self.may_work(*uid))
    }

    /// The next request that may begin, which is counted as working.
    fn take(&mut self) -> Option<(Origin, Task)> {
        let turn = self.next_turn()?;
        let uid = self.turns.remove(turn)?;
        let user = self.users.get_mut(&uid)?;
        let next = user.queue.pop_front()?;
        user.working += 1;
        self.working += 1;
        if !user.queue.is_empty() {
            self.turns.push_back(uid);
        }
        Some(next)
    }

    fn put(&mut self, origin: Origin, task: Task) {
        let user = self.users.entry(origin.uid).or_default();
        if user.queue.is_empty() {
            self.turns.push_back(origin.uid);
        }
        user.queue.push_back((origin, task));
    }

    fn ended(&mut self, uid: u32, waits: bool) {
        let Some(user) = self.users.get_mut(&uid) else {
            return;
        };
        if waits {
            user.waiting -= 1;
            self.waiting -= 1;
        } else {
            user.working -= 1;
            self.working -= 1;
        }
        if user.is_gone() {
            self.users.remove(&uid);
        }
    }

    /// From a working place to a waiting one.
    fn leave_work(&mut self, uid: u32) -> bool {
        let free = WAITING.saturating_sub(self.waiting);
        let Some(user) = self.users.get_mut(&uid).filter(|u| u.waiting < free) else {
            return false;
        };
        user.working -= 1;
        user.waiting += 1;
        self.working -= 1;
        self.waiting += 1;
        true
    }
}

/// What a thread is at.
struct Current {
    places: Arc<Places>,
    uid: u32,
    asker: Asker,
    looked: Instant,
    looks: bool,
    /// `None` on a thread that has no place: one of its own.
    waits: Option<bool>,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// Notes what the thread is at, until it is dropped.
struct Noted;

impl Noted {
    fn new(places: &Arc<Places>, origin: Origin, waits: Option<bool>) -> Self {
        CURRENT.set(Some(Current {
            places: places.clone(),
            uid: origin.uid,
            asker: Asker::new(origin.tid),
            looked: Instant::now(),
            looks: false,
            waits,
        }));
        Self
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let Some(current) = CURRENT.take() else {
            return;
        };
        let places = &current.places;
        if current.looks {
            places.looking.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(waits) = current.waits {
            places.state.lock().ended(current.uid, waits);
        }
    }
}

/// The thread that waits for the answer of the request that this thread is at; 0 if it is not known.
pub fn caller_thread() -> u32 {
    CURRENT.with_borrow(|current| current.as_ref().map_or(0, |at| at.asker.tid()))
}

impl Places {
    /// Runs `task` where it may wait, as soon as its user has a place.
    pub fn run(self: &Arc<Self>, origin: Origin, task: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.put(origin, Box::new(task));
        if self.see_to_it(state) {
            return;
        }
        let last_resort = {
            let mut state = self.state.lock();
            if state.threads == 0 {
                state.take()
            } else {
                None
            }
        };
        if let Some((origin, task)) = last_resort {
            self.carry_out(origin, task);
        }
    }

    /// Runs `task` on this thread, which is one of its own: it takes no place.
    pub fn run_here<T>(self: &Arc<Self>, origin: Origin, task: impl FnOnce() -> T) -> T {
        let _noted = Noted::new(self, origin, None);
        task()
    }

    /// No answer will be heard any more: what waits gives up.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// A request may be able to begin: some thread must see it. False if no thread could be started for it.
    fn see_to_it(self: &Arc<Self>, mut state: MutexGuard<'_, State>) -> bool {
        if state.next_turn().is_none() {
            return true;
        }
        if state.idle > 0 {
            self.work.notify_one();
            return true;
        }
        state.threads += 1;
        drop(state);
        let places = self.clone();
        let named = std::thread::Builder::new().name("request".into());
        match named.spawn(move || places.serve()) {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "no thread for a request; it waits for one of the others");
                self.state.lock().threads -= 1;
                false
            }
        }
    }

    fn serve(self: &Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            if let Some((origin, task)) = state.take() {
                // Others may be able to begin as well, and their wake-up may have come to this thread.
                self.see_to_it(state);
                self.carry_out(origin, task);
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.work.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.next_turn().is_none() {
                state.threads -= 1;
                return;
            }
        }
    }

    fn carry_out(self: &Arc<Self>, origin: Origin, task: Task) {
        let _noted = Noted::new(self, origin, Some(false));
        // A request that panics is answered with EIO by its reply's end; the thread goes on.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(task)).is_err() {
            tracing::error!("a request broke off");
        }
    }

    fn look_every(&self) -> Duration {
        let looking = self.looking.load(Ordering::Relaxed);
        let times = u32::try_from(looking / 64).unwrap_or(u32::MAX).max(1);
        LOOK.saturating_mul(times).min(LONGEST_LOOK)
    }
}

/// Why a wait of a request is over before what it waited for has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The caller was killed, or no answer is heard any more.
    Gone,
    /// The caller's user has no place left where a request may wait.
    Crowded,
}

/// This thread's request is about to wait, and must not fail. True if it takes none of the working places while it
/// does.
pub fn leave_work() -> bool {
    let left = CURRENT.with_borrow_mut(|current| {
        let current = current.as_mut()?;
        let waits = current.waits.as_mut().filter(|waits| !**waits)?;
        *waits = current.places.state.lock().leave_work(current.uid);
        Some((*waits, current.places.clone()))
    });
    match left {
        None => true,
        Some((false, _)) => false,
        Some((true, places)) => {
            places.see_to_it(places.state.lock());
            true
        }
    }
}

/// This thread's request is about to wait for what others may keep from it for long. An error if its user has no
/// place for that.
pub fn may_wait() -> Result<(), WaitEnd> {
    match leave_work() {
        true => Ok(()),
        false => Err(WaitEnd::Crowded),
    }
}

/// Waits, and no longer than `limit`.
pub fn pause(limit: Duration) -> Result<(), WaitEnd> {
    may_wait()?;
    std::thread::sleep(limit);
    match goes_on() {
        true => Ok(()),
        false => Err(WaitEnd::Gone),
    }
}

/// Whether a wait of this thread's request goes on; see [`pause`]. Cheap enough to be asked often.
pub fn goes_on() -> bool {
    CURRENT.with_borrow_mut(|current| {
        let Some(current) = current else { return true };
        let places = &current.places;
        if places.ended.load(Ordering::Acquire) {
            return false;
        }
        if !current.looks {
            current.looks = true;
            places.looking.fetch_add(1, Ordering::Relaxed);
        }
        if current.looked.elapsed() < places.look_every() {
            return true;
        }
        current.looked = Instant::now();
        !current.asker.is_killed()
    })
}

#[cfg(test)]
mod tests;
