use super::*;
use crate::ops::tests::{World, me, world};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// A transport that keeps the answers.
struct Kept<T>(Sender<Result<T, i32>>);

impl<T: Send> Reply<T> for Kept<T> {
    fn send(self, _: &Overlay, answer: Result<T, i32>) {
        self.0.send(answer).unwrap();
    }
}

fn reply<T>() -> (Kept<T>, Receiver<Result<T, i32>>) {
    let (tell, told) = channel();
    (Kept(tell), told)
}

struct Entry {
    requests: Arc<Requests>,
    _world: World,
}

impl std::ops::Deref for Entry {
    type Target = Arc<Requests>;

    fn deref(&self) -> &Arc<Requests> {
        &self.requests
    }
}

/// Its threads hold the store a little longer than until they have sent their last answers.
impl Drop for Entry {
    fn drop(&mut self) {
        while Arc::strong_count(&self.requests) > 1 {
            std::thread::yield_now();
        }
    }
}

fn requests() -> Entry {
    let world = world();
    Entry {
        requests: Requests::new(world.fs.clone()),
        _world: world,
    }
}

fn begin(requests: &Arc<Requests>, op: Op) -> Call<'_> {
    requests.begin(op, 1, Some(me()))
}

fn stats_of(requests: &Requests, op: Op) -> Option<OpStats> {
    requests.stats().into_iter().find(|stats| stats.op == op)
}

/// Count, errors and bytes of the only operation that was called.
fn counted(requests: &Requests, op: Op) -> (u64, u64, u64) {
    assert_eq!(requests.stats().len(), 1);
    let stats = stats_of(requests, op).expect("it is counted");
    assert!(stats.p50 <= stats.p99 && !stats.p50.is_zero(), "{stats:?}");
    (stats.count, stats.errors, stats.bytes)
}

#[test]
fn what_cannot_wait_runs_here_and_what_may_wait_elsewhere() {
    let requests = requests();
    let here = std::thread::current().id();
    let (to, from) = reply();
    let left = begin(&requests, Op::Write).at_once(to, |_| {
        assert_eq!(std::thread::current().id(), here);
        Some(Ok(Written(4096)))
    });
    assert!(left.is_none());
    assert_eq!(from.try_recv().unwrap(), Ok(Written(4096)));

    let (to, from) = reply();
    begin(&requests, Op::Write).run(to, move |_, _| {
        assert_ne!(std::thread::current().id(), here);
        Ok(Written(5))
    });
    assert_eq!(from.recv_timeout(SOON).unwrap(), Ok(Written(5)));
    assert_eq!(counted(&requests, Op::Write), (2, 0, 4101));
}

#[test]
fn an_attempt_that_would_wait_is_counted_once_it_is_answered() {
    let requests = requests();
    let (to, from) = reply::<Vec<u8>>();
    let call = begin(&requests, Op::Read);
    let left = call.at_once(to, |_| None).expect("the reply comes back");
    assert_eq!(requests.stats(), []);
    call.run(left, |_, _| Ok(vec![0; 10]));
    assert_eq!(from.recv_timeout(SOON).unwrap(), Ok(vec![0; 10]));
    assert_eq!(counted(&requests, Op::Read), (1, 0, 10));
}

#[test]
fn errors_are_answered_with_their_number_and_counted() {
    let requests = requests();
    let (to, from) = reply();
    begin(&requests, Op::Lookup).run(to, |fs, _| fs.lookup(&me(), 1, "none".as_ref()).map(drop));
    assert_eq!(from.recv_timeout(SOON).unwrap(), Err(libc::ENOENT));
    let (to, from) = reply::<()>();
    begin(&requests, Op::Lookup).answer(to, Err(FsError::Reserved));
    assert_eq!(from.try_recv().unwrap(), Err(libc::EPERM));
    assert_eq!(counted(&requests, Op::Lookup), (2, 2, 0));
}

#[test]
fn a_handler_that_panics_answers_eio_and_counts() {
    let requests = requests();
    for _ in 0..3 {
        let (to, from) = reply::<()>();
        begin(&requests, Op::Fsync).run(to, |_, _| panic!("as the test wants it"));
        assert_eq!(from.recv_timeout(SOON).unwrap(), Err(libc::EIO));
    }
    let (to, from) = reply::<()>();
    let left = begin(&requests, Op::Fsync).at_once(to, |_| panic!("as the test wants it"));
    assert!(left.is_none());
    assert_eq!(from.try_recv().unwrap(), Err(libc::EIO));
    assert_eq!(counted(&requests, Op::Fsync), (4, 4, 0));
}

#[test]
fn a_wait_for_a_lock_has_a_thread_of_its_own() {
    let requests = requests();
    let (to, from) = reply();
    begin(&requests, Op::Setlk).run_in_steps(to, |_, _| {
        Attempt::Wait(Box::new(|_| {
            assert_eq!(std::thread::current().name(), Some("lock-wait"));
            Ok(())
        }))
    });
    assert_eq!(from.recv_timeout(SOON).unwrap(), Ok(()));
    assert_eq!(counted(&requests, Op::Setlk), (1, 0, 0));
}

/// What the entry itself costs a request that runs on the thread which received it. To be run by hand:
/// `cargo test --release -p forebay-fs -- --ignored --nocapture cost`.
#[test]
#[ignore = "prints a figure and asserts nothing; a bench cannot reach the entry without a mount"]
fn cost_of_a_request_that_cannot_wait() {
    struct Nothing;
    impl Reply<Written> for Nothing {
        fn send(self, _: &Overlay, answer: Result<Written, i32>) {
            std::hint::black_box(answer).unwrap();
        }
    }
    const TIMES: u32 = 5_000_000;
    let requests = requests();
    for _ in 0..3 {
        let began = Instant::now();
        for offset in 0..u64::from(TIMES) {
            let call = begin(&requests, Op::Write).over(offset, 4096);
            call.at_once(Nothing, |_| Some(Ok(Written(4096))));
        }
        let each = began.elapsed().as_nanos() / u128::from(TIMES);
        println!("{each} ns for a request");
    }
}
