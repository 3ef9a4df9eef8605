use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn at(start: Instant, seconds: f64) -> Instant {
    start + Duration::from_secs_f64(seconds)
}

/// An OST whose estimate is `rate` bytes per second.
fn known(rate: f64, now: Instant) -> Estimate {
    let mut estimate = Estimate::new(now);
    estimate.probed(rate, Duration::from_millis(1));
    estimate
}

/// I/Os one after the other for `seconds`. Each takes `io`, with `rest` between them, and `depth`
/// are in flight at once.
struct Stream {
    bytes: u64,
    io: f64,
    rest: f64,
    depth: u64,
}

impl Stream {
    fn run(&self, estimate: &mut Estimate, start: Instant, seconds: f64) -> Instant {
        let mut id = 1_000_000;
        let mut now = 0.0;
        let step = self.io / self.depth as f64;
        let mut flying = std::collections::VecDeque::new();
        while now < seconds {
            while (flying.len() as u64) < self.depth {
                id += 1;
                estimate.begin(id, self.bytes, at(start, now));
                flying.push_back(id);
            }
            now += if self.rest > 0.0 { self.io } else { step };
            let done = flying.pop_front().unwrap();
            if self.rest == 0.0 {
                // The next I/O begins before this one is done: there is no break.
                id += 1;
                estimate.begin(id, self.bytes, at(start, now));
                flying.push_back(id);
            }
            estimate.done(done, at(start, now));
            now += self.rest;
        }
        for id in flying {
            estimate.done(id, at(start, now));
        }
        at(start, now)
    }
}

fn near(got: Option<f64>, want: f64) -> bool {
    got.is_some_and(|got| (got - want).abs() < want * 0.15)
}

#[test]
fn nothing_is_believed_without_a_probe_or_an_estimate() {
    let estimate = Estimate::new(Instant::now());
    assert_eq!(estimate.bandwidth(), None);
    assert_eq!(estimate.latency(), None);
}

#[test]
fn a_probe_is_believed_and_nonsense_is_not() {
    let mut estimate = known(100e6, Instant::now());
    for nonsense in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        estimate.probed(nonsense, Duration::from_secs(9));
        assert_eq!(estimate.bandwidth(), Some(100e6));
        assert_eq!(estimate.latency(), Some(Duration::from_millis(1)));
    }
}

#[test]
fn one_that_is_always_busy_and_slow_is_found_out() {
    let start = Instant::now();
    let mut estimate = known(100e6, start);
    // 10 MiB/s.
    let stream = Stream {
        bytes: MIB,
        io: 0.1,
        rest: 0.0,
        depth: 1,
    };
    stream.run(&mut estimate, start, 60.0);
    assert!(
        near(estimate.bandwidth(), 10.0 * MIB as f64),
        "{estimate:?}"
    );
}

#[test]
fn four_in_flight_are_counted_by_the_time_they_share() {
    let start = Instant::now();
    let mut estimate = known(100e6, start);
    // Each takes 0.4 s, with four at once: that is 10 MiB/s, not 2.5.
    let stream = Stream {
        bytes: MIB,
        io: 0.4,
        rest: 0.0,
        depth: 4,
    };
    stream.run(&mut estimate, start, 60.0);
    let rate = estimate.bandwidth().unwrap() / MIB as f64;
    assert!((9.0..13.5).contains(&rate), "{rate} MiB/s");
}

#[test]
fn a_drain_that_is_throttled_elsewhere_makes_no_ost_look_slow() {
    let start = Instant::now();
    let mut estimate = known(100e6, start);
    // 1 MiB in 50 ms (20 MiB/s), then a rest: something else limits the rate.
    let stream = Stream {
        bytes: MIB,
        io: 0.05,
        rest: 0.001,
        depth: 1,
    };
    stream.run(&mut estimate, start, 600.0);
    assert_eq!(estimate.bandwidth(), Some(100e6));
}

#[test]
fn one_that_moves_more_than_believed_is_believed_more() {
    let start = Instant::now();
    let mut estimate = known(10e6, start);
    // 100 MiB/s, with rests.
    let stream = Stream {
        bytes: MIB,
        io: 0.01,
        rest: 0.03,
        depth: 1,
    };
    stream.run(&mut estimate, start, 300.0);
    assert!(
        near(estimate.bandwidth(), 100.0 * MIB as f64),
        "{estimate:?}"
    );
}

#[test]
fn small_ios_measure_latency_and_nothing_else() {
    let start = Instant::now();
    let mut estimate = known(100e6, start);
    let stream = Stream {
        bytes: 4096,
        io: 0.002,
        rest: 0.0,
        depth: 1,
    };
    stream.run(&mut estimate, start, 60.0);
    assert_eq!(estimate.bandwidth(), Some(100e6));
    let latency = estimate.latency().unwrap().as_secs_f64();
    assert!((0.001..0.005).contains(&latency), "{latency}");
}

/// 64 I/Os that share the OST end at the same time, after 6.4 s: when the first is done, 63 that
/// are almost done are still counted as in flight.
#[test]
fn many_that_end_together_are_not_taken_for_a_crawl() {
    let start = Instant::now();
    let mut estimate = known(10.0 * MIB as f64, start);
    for id in 0..64 {
        estimate.begin(id, MIB, start);
    }
    for id in 0..64 {
        estimate.done(id, at(start, 6.4 + id as f64 * 1e-6));
        assert!(
            near(estimate.bandwidth(), 10.0 * MIB as f64),
            "{estimate:?}"
        );
    }
}

/// 64 I/Os begin and come back one after the other, at 10 MiB/s: those still in flight must neither
/// raise nor lower the estimate.
#[test]
fn what_has_begun_is_not_taken_for_done() {
    let start = Instant::now();
    let mut estimate = known(12.0 * MIB as f64, start);
    for id in 0..64 {
        estimate.begin(id, MIB, start);
    }
    for id in 0..25 {
        estimate.done(id, at(start, 0.1 * (id + 1) as f64));
    }
    assert_eq!(estimate.window.number, 1, "a window has ended");
    assert_eq!(estimate.bandwidth(), Some(12.0 * MIB as f64));
}

/// Writes go into a cache, followed by the sync that takes their time, again and again: both count
/// together.
#[test]
fn a_sync_belongs_to_the_writes_before_it() {
    let start = Instant::now();
    let mut estimate = known(50.0 * MIB as f64, start);
    let mut now = 0.0;
    for round in 0..40_u64 {
        let first = round * 100;
        for id in first..first + 64 {
            estimate.begin(id, MIB, at(start, now));
            now += 0.0005;
            estimate.done(id, at(start, now));
        }
        estimate.begin(first + 64, 0, at(start, now));
        now += 1.25;
        estimate.done(first + 64, at(start, now));
        now += 0.01;
    }
    let rate = estimate.bandwidth().unwrap() / MIB as f64;
    assert!((40.0..60.0).contains(&rate), "{rate} MiB/s");
}

#[test]
fn one_that_is_forgotten_counts_as_nothing() {
    let start = Instant::now();
    let mut estimate = known(100e6, start);
    estimate.begin(0, MIB, start);
    estimate.begin(1, MIB, start);
    estimate.forget(0, at(start, 9.0));
    estimate.done(1, at(start, 9.5));
    assert_eq!(estimate.bandwidth(), Some(100e6));
    assert_eq!((estimate.written(), estimate.in_flight()), (MIB, 0));
    estimate.forget(0, at(start, 10.0));
    estimate.done(77, at(start, 10.0));
    assert_eq!(estimate.written(), MIB);
}

#[test]
fn what_is_stuck_is_set_aside_once_and_does_not_count_as_busy() {
    let start = Instant::now();
    let mut estimate = known(100e6, start);
    estimate.begin(0, MIB, start);
    estimate.begin(1, MIB, at(start, 5.0));
    let deadline = Duration::from_secs(10);
    assert_eq!(estimate.set_stuck_aside(deadline, at(start, 10.0)), None);
    let age = estimate.set_stuck_aside(deadline, at(start, 11.0));
    assert_eq!(age, Some(Duration::from_secs(11)));
    assert_eq!(estimate.set_stuck_aside(deadline, at(start, 12.0)), None);
    assert!(estimate.is_stuck());
    assert_eq!(estimate.in_flight(), 2 * MIB);
    estimate.done(1, at(start, 12.0));
    // Slow I/Os with rests between them, while the first is still stuck.
    let stream = Stream {
        bytes: MIB,
        io: 0.2,
        rest: 0.1,
        depth: 1,
    };
    let end = stream.run(&mut estimate, at(start, 20.0), 60.0);
    assert_eq!(estimate.bandwidth(), Some(100e6));
    estimate.done(0, end);
    assert!(!estimate.is_stuck());
    assert_eq!(estimate.bandwidth(), Some(100e6));
}

#[test]
fn a_clock_that_two_threads_read_in_another_order() {
    let start = Instant::now();
    let mut estimate = known(100e6, start);
    estimate.begin(0, MIB, at(start, 1.0));
    estimate.begin(1, MIB, at(start, 0.5));
    estimate.done(0, at(start, 0.7));
    estimate.done(1, at(start, 0.6));
    assert_eq!(estimate.bandwidth(), Some(100e6));
}

proptest! {
    /// Whatever happens, the estimate is a number, and never above the fastest rate that was seen.
    #[test]
    fn the_belief_is_always_a_rate(
        steps in prop::collection::vec((0_u8..5, 0_u64..20, 0_u64..64 << 20, 0_u32..3_000), 1..300),
        probe in prop::option::of(1.0..1e12_f64),
    ) {
        let start = Instant::now();
        let mut estimate = Estimate::new(start);
        if let Some(rate) = probe {
            estimate.probed(rate, Duration::ZERO);
        }
        let (mut now, mut begun, mut moved) = (start, 0_u64, 0_u64);
        for (what, which, bytes, millis) in steps {
            now += Duration::from_millis(u64::from(millis));
            let one = begun.saturating_sub(which);
            match what {
                0 | 1 => {
                    estimate.begin(begun, bytes, now);
                    begun += 1;
                    moved += bytes;
                }
                2 | 3 => estimate.done(one, now),
                _ if which % 4 == 0 => {
                    estimate.set_stuck_aside(Duration::from_secs(2), now);
                }
                _ => estimate.forget(one, now),
            }
            prop_assert!(estimate.bandwidth().is_none_or(|rate| rate.is_finite() && rate > 0.0));
            let most = probe.unwrap_or(0.0).max(moved as f64 / WINDOW);
            prop_assert!(estimate.bandwidth().is_none_or(|rate| rate <= most * 1.001));
            prop_assert!(estimate.written() <= moved);
        }
    }
}
