use super::*;
use std::sync::mpsc::{Receiver, Sender, channel};

const ALICE: u32 = 1001;
const BOB: u32 = 1002;
const LONG: Duration = Duration::from_secs(60);

fn of(uid: u32) -> Origin {
    Origin { uid, tid: 0 }
}

/// Requests of ALICE's that hold their places until they are let go.
struct Held {
    begun: Receiver<bool>,
    /// Lets them go when it is dropped.
    _go: Vec<Sender<()>>,
}

impl Held {
    fn new(places: &Arc<Places>, count: usize, waits: bool) -> Self {
        let (tell, begun) = channel();
        let hold = |_| {
            let (go, gone) = channel::<()>();
            let tell = tell.clone();
            places.run(of(ALICE), move || {
                let left = waits && leave_work();
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

fn answered(places: &Arc<Places>, uid: u32) {
    let (tell, told) = channel();
    places.run(of(uid), move || tell.send(()).unwrap());
    told.recv_timeout(LONG).expect("it is answered");
}

/// S8.17: a user who works alone has half of the places, and another user finds one.
#[test]
fn one_user_leaves_places_to_others() {
    let places = Arc::new(Places::default());
    let held = Held::new(&places, WORKING, false);
    for _ in 0..WORKING / 2 {
        held.begins();
    }
    answered(&places, BOB);
    held.none_begins();
    let (tell, told) = channel();
    places.run(of(ALICE), move || tell.send(()).unwrap());
    answered(&places, BOB);
    assert!(told.try_recv().is_err(), "it is behind the user's own");
    drop(held);
    told.recv_timeout(LONG).expect("its turn comes");
}

/// S8.17: what waits takes no working places, unless it must not fail and the user's waiting ones are used up.
#[test]
fn waiting_requests_give_their_places_up() {
    let places = Arc::new(Places::default());
    let held = Held::new(&places, WAITING / 2 + WORKING / 2, true);
    let left = (0..WAITING / 2 + WORKING / 2)
        .filter(|_| held.begins())
        .count();
    assert_eq!(left, WAITING / 2);
    answered(&places, BOB);
    let more = Held::new(&places, 1, true);
    answered(&places, BOB);
    more.none_begins();
    drop(held);
    // Its turn comes; which kind of place is free first is open.
    more.begins();
}

/// S8.17: waits that find no place end with an error, so that many users' take no working place for long.
#[test]
fn waits_without_a_place_end() {
    const USERS: u32 = 64;
    const EACH: usize = 32;
    let places = Arc::new(Places::default());
    {
        let mut state = places.state.lock();
        for uid in 0..USERS {
            state.users.entry(uid).or_default().waiting = WAITING / USERS as usize;
        }
        state.waiting = WAITING;
    }
    let (tell, told) = channel();
    for uid in 0..USERS {
        for _ in 0..EACH {
            let tell = tell.clone();
            places.run(of(uid), move || {
                tell.send(pause(Duration::ZERO).err()).unwrap();
            });
        }
    }
    for _ in 0..EACH * USERS as usize {
        let end = told.recv_timeout(LONG).expect("each is answered");
        assert_eq!(end, Some(WaitEnd::Crowded));
    }
    answered(&places, BOB);
}

#[test]
fn a_request_that_panics_gives_its_place_back() {
    let places = Arc::new(Places::default());
    for _ in 0..3 {
        places.run(of(ALICE), || panic!("as the test wants it"));
        answered(&places, ALICE);
    }
    let deadline = Instant::now() + LONG;
    while places.state.lock().working > 0 {
        assert!(Instant::now() < deadline, "a place is lost");
        std::thread::yield_now();
    }
    assert!(places.state.lock().users.is_empty());
}

#[test]
fn waits_end_with_the_mount() {
    let places = Arc::new(Places::default());
    let (tell, told) = channel();
    places.run(of(ALICE), move || {
        while pause(Duration::from_millis(1)).is_ok() {}
        tell.send(()).unwrap();
    });
    places.end();
    told.recv_timeout(LONG).expect("it ends");
}
