//! The executor: the threads on which requests run that may wait. Each class of operations has slots of its own,
//! and each user a share of them.
//!
//! # Shares
//! A user gets one more slot while more slots are free than the user has: one user alone gets half of them,
//! two users a third each, and so on. So a user who has none finds one, whatever other users do. A request for
//! which there is no slot waits in its user's queue, and only behind requests of the same user and class.
//!
//! # Classes
//! A request begins in a *working* slot of its class, where it computes and calls the backing. Requests of one class
//! take no slots from another: closes that cannot give up their working slots (below) delay none of the same user's
//! listings and locks.
//!
//! # Waiting
//! Before a request waits for another node, for a lock or for the process that drops pages, it moves to a *waiting*
//! slot ([`begin_wait`], [`sleep`]), which frees its working slot: waiting opens never stop a read. Waiting slots are
//! shared out by the same rule. If the user gets no more of them, the wait ends at once with an error
//! ([`WaitEnd::Crowded`]): if such requests kept their working slots, enough users together could take all of them.
//! Only publications keep their working slot in that case ([`leave_working_slot`]), because a close, an fsync or an
//! unlock must not fail for that reason. A request that waits for another owner's lock does so on a thread of its
//! own ([`Executor::run_apart`]), in a slot of a third kind: the owner may keep the lock for ever.
//!
//! # Ending a wait
//! The FUSE library does not report that a caller was interrupted
//! (docs/decisions/0009-locks-across-nodes.md), so [`sleep`] checks whether the caller has been killed, and
//! returns an error if so. The kernel keeps a killed process until its request is answered. A signal with a
//! handler ends only waits for locks: programs do not expect EINTR from an open or a read.
//!
//! # Threads
//! Threads are started as they are needed and end after a while without work. A thread-local note says which
//! request a thread serves, as another one says whose identity it has ([`crate::backing::Creds`]). On threads
//! without such a note (those of the drain, and event loops) these functions only wait: no slot changes
//! hands and no caller is checked.

use super::caller_thread::CallerThread;
use super::table::Class;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Number of working slots of each class, for all users together.
const WORKING: usize = 512;
/// Number of waiting slots, and of those for waits for locks.
const WAITING: usize = 4096;
const LOCK_WAITS: usize = 4096;
const LOCK_WAIT_STACK: usize = 256 << 10;

/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(10);

/// Time between two checks of a caller, and its upper limit when very many requests wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_CHECK_INTERVAL: Duration = Duration::from_millis(500);

type Task = Box<dyn FnOnce() + Send>;

/// The caller on whose behalf something is done.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub uid: u32,
    /// The thread that waits for the answer; 0 if no thread does.
    pub tid: u32,
}

/// For work that no user has asked for. The uid is the one that stands for no user.
pub const NO_CALLER: Origin = Origin {
    uid: u32::MAX,
    tid: 0,
};

#[derive(Default)]
pub struct Executor {
    state: Mutex<State>,
    work: Condvar,
    ended: AtomicBool,
    /// Number of requests that check their callers.
    checking: AtomicUsize,
}

/// Slots of one kind. A user gets one more while more are free than the user has.
struct Shares {
    capacity: usize,
    taken: usize,
    by_user: HashMap<u32, usize>,
}

impl Shares {
    fn with_capacity(capacity: usize) -> Self {
        Self {
            capacity,
            taken: 0,
            by_user: HashMap::new(),
        }
    }

    fn has_one_for(&self, uid: u32) -> bool {
        let free = self.capacity.saturating_sub(self.taken);
        self.by_user.get(&uid).copied().unwrap_or_default() < free
    }

    /// False if the user gets no more.
    fn try_take(&mut self, uid: u32) -> bool {
        if !self.has_one_for(uid) {
            return false;
        }
        *self.by_user.entry(uid).or_default() += 1;
        self.taken += 1;
        true
    }

    fn give_back(&mut self, uid: u32) {
        if let Entry::Occupied(mut user) = self.by_user.entry(uid) {
            self.taken -= 1;
            *user.get_mut() -= 1;
            if *user.get() == 0 {
                user.remove();
            }
        }
    }
}

/// The slot that a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Working(Class),
    Waiting,
    LockWait,
}

struct State {
    /// Requests without a slot, by class and user.
    queues: HashMap<(Class, u32), VecDeque<(Origin, Task)>>,
    /// The keys of `queues`. The first of them for which there is a slot comes next.
    ready: VecDeque<(Class, u32)>,
    working: [Shares; Class::COUNT],
    waiting: Shares,
    lock_waits: Shares,
    threads: usize,
    idle: usize,
}

impl Default for State {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            ready: VecDeque::new(),
            working: std::array::from_fn(|_| Shares::with_capacity(WORKING)),
            waiting: Shares::with_capacity(WAITING),
            lock_waits: Shares::with_capacity(LOCK_WAITS),
            threads: 0,
            idle: 0,
        }
    }
}

impl State {
    fn next_ready(&self) -> Option<usize> {
        let may_begin =
            |&(class, uid): &(Class, u32)| self.working[class as usize].has_one_for(uid);
        self.ready.iter().position(may_begin)
    }

    /// Takes the next request that may begin, and a working slot for it.
    fn next_task(&mut self) -> Option<(Class, Origin, Task)> {
        let next = self.next_ready()?;
        let key = self.ready.remove(next)?;
        let Entry::Occupied(mut queue) = self.queues.entry(key) else {
            return None;
        };
        let first = queue.get_mut().pop_front();
        if queue.get().is_empty() {
            queue.remove();
        } else {
            self.ready.push_back(key);
        }
        let ((class, uid), (origin, task)) = (key, first?);
        self.working[class as usize].try_take(uid);
        Some((class, origin, task))
    }

    fn enqueue(&mut self, class: Class, origin: Origin, task: Task) {
        let key = (class, origin.uid);
        let queue = self.queues.entry(key).or_insert_with(|| {
            self.ready.push_back(key);
            VecDeque::new()
        });
        queue.push_back((origin, task));
    }

    fn slots(&mut self, slot: Slot) -> &mut Shares {
        match slot {
            Slot::Working(class) => &mut self.working[class as usize],
            Slot::Waiting => &mut self.waiting,
            Slot::LockWait => &mut self.lock_waits,
        }
    }
}

/// The request that a thread serves.
struct Current {
    executor: Arc<Executor>,
    uid: u32,
    caller: CallerThread,
    checked: Instant,
    checks: bool,
    slot: Slot,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// Notes which request the thread serves, until this is dropped.
struct CurrentGuard;

impl CurrentGuard {
    fn new(executor: &Arc<Executor>, origin: Origin, slot: Slot) -> Self {
        CURRENT.set(Some(Current {
            executor: executor.clone(),
            uid: origin.uid,
            caller: CallerThread::new(origin.tid),
            checked: Instant::now(),
            checks: false,
            slot,
        }));
        Self
    }
}

impl Drop for CurrentGuard {
    fn drop(&mut self) {
        let Some(current) = CURRENT.take() else {
            return;
        };
        let executor = &current.executor;
        if current.checks {
            executor.checking.fetch_sub(1, Ordering::Relaxed);
        }
        let mut state = executor.state.lock();
        state.slots(current.slot).give_back(current.uid);
    }
}

/// Returns the thread that waits for the answer of the request that this thread serves; 0 if it is not known.
pub fn caller_thread() -> u32 {
    CURRENT.with_borrow(|current| current.as_ref().map_or(0, |at| at.caller.tid()))
}

impl Executor {
    /// Runs `task` in a slot of its class, where it may wait, as soon as its user gets one.
    pub fn run(
        self: &Arc<Self>,
        class: Class,
        origin: Origin,
        task: impl FnOnce() + Send + 'static,
    ) {
        let mut state = self.state.lock();
        state.enqueue(class, origin, Box::new(task));
        if self.wake_or_start_thread(state) {
            return;
        }
        let last_resort = {
            let mut state = self.state.lock();
            if state.threads == 0 {
                state.next_task()
            } else {
                None
            }
        };
        if let Some((class, origin, task)) = last_resort {
            self.run_task(origin, Slot::Working(class), task);
        }
    }

    /// Runs `wait(true)` on a thread of its own, where it waits for a lock, and passes the result to `answer`, once
    /// the wait does not count for the user any more. If the user gets no more waits, runs `wait(false)` on this thread.
    pub fn run_apart<T, W, A>(self: &Arc<Self>, origin: Origin, wait: W, answer: A)
    where
        W: FnOnce(bool) -> T + Send + 'static,
        A: FnOnce(T) + Send + 'static,
    {
        if !self.state.lock().lock_waits.try_take(origin.uid) {
            return answer(wait(false));
        }
        // A thread that cannot be started would drop the task, so the task is sent to it after the start.
        let (give, given) = mpsc::channel::<(W, A)>();
        let executor = self.clone();
        let started = std::thread::Builder::new()
            .name("lock-wait".into())
            .stack_size(LOCK_WAIT_STACK)
            .spawn(move || {
                if let Ok((wait, answer)) = given.recv()
                    && let Some(waited) =
                        executor.run_task(origin, Slot::LockWait, move || wait(true))
                {
                    answer(waited);
                }
            });
        if let Err(error) = started {
            tracing::warn!(%error, "no thread to wait for a lock with");
            self.state.lock().lock_waits.give_back(origin.uid);
            return answer(wait(false));
        }
        if let Err(mpsc::SendError((wait, answer))) = give.send((wait, answer)) {
            answer(wait(false));
        }
    }

    /// Number of threads that wait for locks now.
    #[cfg(test)]
    pub fn lock_waits(&self) -> usize {
        self.state.lock().lock_waits.taken
    }

    /// The session has ended and no answer is read any more: requests that wait give up.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Wakes or starts a thread if a request can begin. False if no thread could be started for it.
    fn wake_or_start_thread(self: &Arc<Self>, mut state: MutexGuard<'_, State>) -> bool {
        if state.next_ready().is_none() {
            return true;
        }
        if state.idle > 0 {
            self.work.notify_one();
            return true;
        }
        state.threads += 1;
        drop(state);
        let executor = self.clone();
        let named = std::thread::Builder::new().name("request".into());
        match named.spawn(move || executor.serve()) {
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
            if let Some((class, origin, task)) = state.next_task() {
                // Other requests may be able to begin as well, and their wake-up may have gone to this thread.
                self.wake_or_start_thread(state);
                self.run_task(origin, Slot::Working(class), task);
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.work.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.next_ready().is_none() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// `None` if the task panicked, which the thread survives.
    fn run_task<T>(
        self: &Arc<Self>,
        origin: Origin,
        slot: Slot,
        task: impl FnOnce() -> T,
    ) -> Option<T> {
        let _current = CurrentGuard::new(self, origin, slot);
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
        if done.is_err() {
            tracing::error!("work outside of a request's handler panicked");
        }
        done.ok()
    }

    fn check_interval(&self) -> Duration {
        let checking = self.checking.load(Ordering::Relaxed);
        let times = u32::try_from(checking / 64).unwrap_or(u32::MAX).max(1);
        CHECK_INTERVAL
            .saturating_mul(times)
            .min(LONGEST_CHECK_INTERVAL)
    }
}

/// Why a request stopped waiting before the event that it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The caller was killed, or the session has ended and no answer is read any more.
    Gone,
    /// The caller's user gets no more slots where a request may wait.
    Crowded,
}

/// Must be called when this thread's request is about to wait and must not fail. True if the request occupies
/// no working slot while it waits.
pub fn leave_working_slot() -> bool {
    let left = CURRENT.with_borrow_mut(|current| {
        let current = current.as_mut()?;
        let Slot::Working(class) = current.slot else {
            return None;
        };
        debug_assert!(
            class >= Class::Nodes,
            "an operation of class {} waits",
            class.name()
        );
        let mut state = current.executor.state.lock();
        if !state.waiting.try_take(current.uid) {
            return Some(None);
        }
        state.slots(current.slot).give_back(current.uid);
        drop(state);
        current.slot = Slot::Waiting;
        Some(Some(current.executor.clone()))
    });
    match left {
        None => true,
        Some(None) => false,
        Some(Some(executor)) => {
            executor.wake_or_start_thread(executor.state.lock());
            true
        }
    }
}

/// Must be called when this thread's request is about to wait for something that other users, nodes or
/// processes may delay for long. An error if its user gets no waiting slot.
pub fn begin_wait() -> Result<(), WaitEnd> {
    match leave_working_slot() {
        true => Ok(()),
        false => Err(WaitEnd::Crowded),
    }
}

/// Waits for `limit`. An error if the request must not wait, or not any longer.
pub fn sleep(limit: Duration) -> Result<(), WaitEnd> {
    begin_wait()?;
    std::thread::sleep(limit);
    match may_keep_waiting() {
        true => Ok(()),
        false => Err(WaitEnd::Gone),
    }
}

/// True while this thread's request may continue to wait; see [`sleep`]. Cheap enough to be called often.
pub fn may_keep_waiting() -> bool {
    keep_waiting(|caller| caller.is_killed())
}

/// The same for a wait that every signal may end, as waits for locks do.
pub fn may_keep_waiting_for_lock() -> bool {
    keep_waiting(CallerThread::is_interrupted)
}

fn keep_waiting(has_left: impl FnOnce(&mut CallerThread) -> bool) -> bool {
    CURRENT.with_borrow_mut(|current| {
        let Some(current) = current else { return true };
        let executor = &current.executor;
        if executor.ended.load(Ordering::Acquire) {
            return false;
        }
        if !current.checks {
            current.checks = true;
            executor.checking.fetch_add(1, Ordering::Relaxed);
        }
        if current.checked.elapsed() < executor.check_interval() {
            return true;
        }
        current.checked = Instant::now();
        !has_left(&mut current.caller)
    })
}

/// Time between two checks of this thread's caller: at least this often a wait must ask whether it may continue.
pub fn check_interval() -> Duration {
    CURRENT.with_borrow(|current| {
        let executor = current.as_ref().map(|current| &current.executor);
        executor.map_or(CHECK_INTERVAL, |executor| executor.check_interval())
    })
}

#[cfg(test)]
mod tests;
