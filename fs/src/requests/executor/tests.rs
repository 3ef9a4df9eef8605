use super::*;
use std::sync::mpsc::{Receiver, Sender, channel};

const ALICE: u32 = 1001;
const BOB: u32 = 1002;
const LONG: Duration = Duration::from_secs(60);

fn of(uid: u32) -> Origin {
    Origin { uid, tid: 0 }
}

/// Requests of ALICE that keep their slots until this is dropped.
struct Held {
    begun: Receiver<bool>,
    /// Dropping these senders lets the requests end.
    _go: Vec<Sender<()>>,
}

impl Held {
    fn new(executor: &Arc<Executor>, count: usize, waits: bool) -> Self {
        let (tell, begun) = channel();
        let hold = |_| {
            let (go, gone) = channel::<()>();
            let tell = tell.clone();
            executor.run(Class::Nodes, of(ALICE), move || {
                let left = waits && leave_working_slot();
                tell.send(left).unwrap();
                assert!(gone.recv().is_err());
            });
            go
        };
        let _go = (0..count).map(hold).collect();
        Self { begun, _go }
    }

    fn begins(&self) -> bool {
        self.begun.recv_timeout(LONG).expect("it begins")
    }

    fn none_begins(&self) {
        assert!(self.begun.try_recv().is_err(), "too many begin");
    }
}

fn answered(executor: &Arc<Executor>, uid: u32) {
    let (tell, told) = channel();
    executor.run(Class::Nodes, of(uid), move || tell.send(()).unwrap());
    told.recv_timeout(LONG).expect("it is answered");
}

/// S8.17: requests of one class take no slots from those of another, not even of the same user.
#[test]
fn classes_have_slots_of_their_own() {
    let executor = Arc::new(Executor::default());
    let held = Held::new(&executor, WORKING, false);
    for _ in 0..WORKING / 2 {
        held.begins();
    }
    for class in [Class::Disk, Class::Locks] {
        let (tell, told) = channel();
        executor.run(class, of(ALICE), move || tell.send(()).unwrap());
        told.recv_timeout(LONG).expect("it is answered");
    }
    held.none_begins();
}

/// S8.17: a user who works alone has half of the slots, and another user finds a free one.
#[test]
fn one_user_leaves_slots_to_others() {
    let executor = Arc::new(Executor::default());
    let held = Held::new(&executor, WORKING, false);
    for _ in 0..WORKING / 2 {
        held.begins();
    }
    answered(&executor, BOB);
    held.none_begins();
    let (tell, told) = channel();
    executor.run(Class::Nodes, of(ALICE), move || tell.send(()).unwrap());
    answered(&executor, BOB);
    assert!(told.try_recv().is_err(), "it is behind the user's own");
    drop(held);
    told.recv_timeout(LONG).expect("its turn comes");
}

/// S8.17: a waiting request takes no working slot, unless it must not fail and the user's
/// waiting slots are used up.
#[test]
fn waiting_requests_give_their_slots_up() {
    let executor = Arc::new(Executor::default());
    let held = Held::new(&executor, WAITING / 2 + WORKING / 2, true);
    let left = (0..WAITING / 2 + WORKING / 2)
        .filter(|_| held.begins())
        .count();
    assert_eq!(left, WAITING / 2);
    answered(&executor, BOB);
    let more = Held::new(&executor, 1, true);
    answered(&executor, BOB);
    more.none_begins();
    drop(held);
    // The turn of `more` comes now; it does not matter which kind of slot becomes free first.
    more.begins();
}

/// S8.17: waits that find no slot end with an error, so that the waits of many users do not occupy
/// working slots for long.
#[test]
fn waits_without_a_slot_end() {
    const USERS: u32 = 64;
    const EACH: usize = 32;
    let executor = Arc::new(Executor::default());
    {
        let mut state = executor.state.lock();
        for uid in 0..USERS {
            let each = WAITING / USERS as usize;
            state.waiting.by_user.insert(uid, each);
        }
        state.waiting.taken = WAITING;
    }
    let (tell, told) = channel();
    for uid in 0..USERS {
        for _ in 0..EACH {
            let tell = tell.clone();
            executor.run(Class::Nodes, of(uid), move || {
                tell.send(sleep(Duration::ZERO).err()).unwrap();
            });
        }
    }
    for _ in 0..EACH * USERS as usize {
        let end = told.recv_timeout(LONG).expect("each is answered");
        assert_eq!(end, Some(WaitEnd::Crowded));
    }
    answered(&executor, BOB);
}

#[test]
fn a_request_that_panics_gives_its_slot_back() {
    let executor = Arc::new(Executor::default());
    for _ in 0..3 {
        executor.run(Class::Nodes, of(ALICE), || panic!("as the test wants it"));
        answered(&executor, ALICE);
    }
    let deadline = Instant::now() + LONG;
    let working = || {
        executor
            .state
            .lock()
            .working
            .iter()
            .any(|slots| slots.taken > 0)
    };
    while working() {
        assert!(Instant::now() < deadline, "a slot is lost");
        std::thread::yield_now();
    }
    let state = executor.state.lock();
    assert!(state.queues.is_empty() && state.working.iter().all(|slots| slots.by_user.is_empty()));
}

#[test]
fn waits_end_with_the_mount() {
    let executor = Arc::new(Executor::default());
    let (tell, told) = channel();
    executor.run(Class::Nodes, of(ALICE), move || {
        while sleep(Duration::from_millis(1)).is_ok() {}
        tell.send(()).unwrap();
    });
    executor.end();
    told.recv_timeout(LONG).expect("it ends");
}

/// A user who has as many threads that wait for locks as there may be is refused another one, and no other user is.
#[test]
fn waits_for_locks_have_slots_of_their_own() {
    let executor = Arc::new(Executor::default());
    {
        let mut state = executor.state.lock();
        state.lock_waits.by_user.insert(ALICE, LOCK_WAITS / 2);
        state.lock_waits.taken = LOCK_WAITS / 2;
    }
    for (uid, admitted) in [(ALICE, false), (BOB, true)] {
        let (tell, told) = channel();
        executor.run_apart(
            of(uid),
            |admitted| admitted,
            move |admitted| tell.send(admitted).unwrap(),
        );
        assert_eq!(told.recv_timeout(LONG).unwrap(), admitted, "{uid}");
    }
    answered(&executor, ALICE);
}
