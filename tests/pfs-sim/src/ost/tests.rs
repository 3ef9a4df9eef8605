use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const MIB: u64 = 1 << 20;

/// An OST of 100 MiB/s without latency, and a clock that only the test moves.
struct Bench {
    ost: Ost,
    begin: Instant,
    served: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
}

impl Bench {
    fn new(queue: usize) -> Self {
        let settings = OstSettings {
            latency_ns: 0,
            queue,
            ..OstSettings::default()
        };
        let ost = Ost::new(0, settings, 1, None);
        let begin = Instant::now() + 100 * MS;
        Self {
            ost,
            begin,
            served: Arc::default(),
            failed: Arc::default(),
        }
    }

    fn push(&self, bytes: u64) {
        let (served, failed) = (self.served.clone(), self.failed.clone());
        let batch = Batch::new(1, move |result| {
            let count = if result.is_ok() { &served } else { &failed };
            count.fetch_add(1, Ordering::Relaxed);
        });
        let extra = Duration::ZERO;
        self.ost.lock().push(Job {
            cost: Cost { bytes, extra },
            changes: true,
            refused: None,
            tally: Tally {
                requests: 1,
                bytes_written: bytes,
                ..Tally::default()
            },
            file: Arc::default(),
            batch,
        });
    }

    /// Returns how many requests were served and failed by `at`, and when to look again.
    fn at(&self, at: Duration) -> (usize, usize, Option<Duration>) {
        let mut done = Vec::new();
        let next = self.ost.lock().advance(self.begin + at, &mut done);
        done.into_iter().for_each(Done::report);
        let next = next.map(|next| next - self.begin);
        let count = |n: &AtomicUsize| n.load(Ordering::Relaxed);
        (count(&self.served), count(&self.failed), next)
    }

    fn set(&self, fail: Failure, at: Duration) {
        let mut state = self.ost.lock();
        let settings = OstSettings {
            fail,
            ..state.settings.clone()
        };
        state.change(settings, self.begin + at);
    }
}

#[test]
fn requests_are_served_one_after_the_other() {
    let bench = Bench::new(2);
    for _ in 0..4 {
        bench.push(MIB);
    }
    assert_eq!(bench.at(Duration::ZERO), (0, 0, Some(10 * MS)));
    assert_eq!(bench.at(10 * MS), (1, 0, Some(20 * MS)));
    // A late call of `advance` costs nothing: the other requests were served meanwhile.
    assert_eq!(bench.at(35 * MS), (3, 0, Some(40 * MS)));
    assert_eq!(bench.at(40 * MS), (4, 0, None));
    assert_eq!(bench.ost.lock().tally.bytes_written, 4 * MIB);
}

#[test]
fn a_hang_holds_everything_and_lets_it_go() {
    let bench = Bench::new(1);
    bench.push(MIB);
    bench.push(MIB);
    assert_eq!(bench.at(Duration::ZERO), (0, 0, Some(10 * MS)));
    bench.set(Failure::Hang, 5 * MS);
    assert_eq!(bench.at(100 * MS), (0, 0, None));
    assert_eq!(bench.ost.lock().pending(), 2);
    bench.set(Failure::None, 200 * MS);
    // The first request was being served when the hang began; the second one starts only now.
    assert_eq!(bench.at(200 * MS), (1, 0, Some(210 * MS)));
    assert_eq!(bench.at(210 * MS), (2, 0, None));
}

#[test]
fn a_failure_takes_what_waits() {
    let bench = Bench::new(1);
    bench.push(MIB);
    bench.push(MIB);
    bench.at(Duration::ZERO);
    bench.set(Failure::Enospc, 5 * MS);
    // The second request fails and takes no transfer time.
    assert_eq!(bench.at(10 * MS), (0, 2, None));
    let tally = bench.ost.lock().tally;
    assert_eq!(
        (tally.errors, tally.requests, tally.bytes_written),
        (2, 2, 0)
    );
}

#[test]
fn closing_ends_even_a_hang() {
    let bench = Bench::new(4);
    bench.set(Failure::Hang, Duration::ZERO);
    bench.push(MIB);
    bench.at(Duration::ZERO);
    bench.ost.lock().close();
    assert_eq!(bench.at(MS), (0, 1, None));
    assert_eq!(bench.ost.lock().refusal(false), Some(Errno::EIO));
}

#[test]
fn space_is_counted_in_pages() {
    let ost = Ost::new(0, OstSettings::default(), 1, None);
    let mut state = ost.lock();
    state.settings.capacity = 10 * PAGE;
    let new = state.object_mut(5).write(100, &[1; 5000]).expect("write");
    state.took(new);
    assert_eq!(state.used(), 2 * PAGE);
    assert_eq!(state.room(8), Ok(()));
    assert_eq!(state.room(9), Err(Errno::ENOSPC));
    state.settings.capacity = 0;
    assert_eq!(state.room(0), Ok(()), "overwriting needs no room");
    state.remove_object(5).expect("remove");
    assert_eq!(state.used(), 0);
}
