use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn at(start: Instant, seconds: f64) -> Instant {
    start + Duration::from_secs_f64(seconds)
}

/// An OST believed to do `rate` bytes per second.
fn known(rate: f64, now: Instant) -> Traffic {
    let mut traffic = Traffic::new(now);
    traffic.probed(rate, Duration::from_millis(1));
    traffic
}

/// I/Os one after the other for `seconds`, each taking `io`, with `rest` between them, `depth` in
/// flight at once.
struct Stream {
    bytes: u64,
    io: f64,
    rest: f64,
    depth: u64,
}

impl Stream {
    fn run(&self, traffic: &mut Traffic, start: Instant, seconds: f64) -> Instant {
        let mut id = 1_000_000;
        let mut now = 0.0;
        let step = self.io / self.depth as f64;
        let mut flying = std::collections::VecDeque::new();
        while now < seconds {
            while (flying.len() as u64) < self.depth {
                id += 1;
                traffic.begin(id, self.bytes, at(start, now));
                flying.push_back(id);
            }
            now += if self.rest > 0.0 { self.io } else { step };
            let done = flying.pop_front().unwrap();
            if self.rest == 0.0 {
                // The next one is there before this one is done: no break.
                id += 1;
                traffic.begin(id, self.bytes, at(start, now));
                flying.push_back(id);
            }
            traffic.done(done, at(start, now));
            now += self.rest;
        }
        for id in flying {
            traffic.done(id, at(start, now));
        }
        at(start, now)
    }
}

fn near(got: Option<f64>, want: f64) -> bool {
    got.is_some_and(|got| (got - want).abs() < want * 0.15)
}

#[test]
fn nothing_is_believed_without_a_probe_or_traffic() {
    let traffic = Traffic::new(Instant::now());
    assert_eq!(traffic.bandwidth(), None);
    assert_eq!(traffic.latency(), None);
}

#[test]
fn a_probe_is_believed_and_nonsense_is_not() {
    let mut traffic = known(100e6, Instant::now());
    for nonsense in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        traffic.probed(nonsense, Duration::from_secs(9));
        assert_eq!(traffic.bandwidth(), Some(100e6));
        assert_eq!(traffic.latency(), Some(Duration::from_millis(1)));
    }
}

#[test]
fn one_that_is_always_busy_and_slow_is_found_out() {
    let start = Instant::now();
    let mut traffic = known(100e6, start);
    // 10 MiB/s.
    let stream = Stream {
        bytes: MIB,
        io: 0.1,
        rest: 0.0,
        depth: 1,
    };
    stream.run(&mut traffic, start, 60.0);
    assert!(near(traffic.bandwidth(), 10.0 * MIB as f64), "{traffic:?}");
}

#[test]
fn four_in_flight_are_counted_by_the_time_they_share() {
    let start = Instant::now();
    let mut traffic = known(100e6, start);
    // Each takes 0.4 s, four at once: 10 MiB/s, not 2.5.
    let stream = Stream {
        bytes: MIB,
        io: 0.4,
        rest: 0.0,
        depth: 4,
    };
    stream.run(&mut traffic, start, 60.0);
    let rate = traffic.bandwidth().unwrap() / MIB as f64;
    assert!((9.0..13.5).contains(&rate), "{rate} MiB/s");
}

#[test]
fn a_drain_that_is_throttled_elsewhere_makes_nobody_look_slow() {
    let start = Instant::now();
    let mut traffic = known(100e6, start);
    // 1 MiB in 50 ms (20 MiB/s), then a rest: something else sets the pace.
    let stream = Stream {
        bytes: MIB,
        io: 0.05,
        rest: 0.001,
        depth: 1,
    };
    stream.run(&mut traffic, start, 600.0);
    assert_eq!(traffic.bandwidth(), Some(100e6));
}

#[test]
fn one_that_moves_more_than_believed_is_believed_more() {
    let start = Instant::now();
    let mut traffic = known(10e6, start);
    // 100 MiB/s, with rests.
    let stream = Stream {
        bytes: MIB,
        io: 0.01,
        rest: 0.03,
        depth: 1,
    };
    stream.run(&mut traffic, start, 300.0);
    assert!(near(traffic.bandwidth(), 100.0 * MIB as f64), "{traffic:?}");
}

#[test]
fn small_ios_measure_latency_and_nothing_else() {
    let start = Instant::now();
    let mut traffic = known(100e6, start);
    let stream = Stream {
        bytes: 4096,
        io: 0.002,
        rest: 0.0,
        depth: 1,
    };
    stream.run(&mut traffic, start, 60.0);
    assert_eq!(traffic.bandwidth(), Some(100e6));
    let latency = traffic.latency().unwrap().as_secs_f64();
    assert!((0.001..0.005).contains(&latency), "{latency}");
}

/// 64 I/Os that share the OST end all at once, after 6.4 s: when the first is done, 63 that are
/// as good as done are still counted as in flight.
#[test]
fn many_that_end_together_are_not_taken_for_a_crawl() {
    let start = Instant::now();
    let mut traffic = known(10.0 * MIB as f64, start);
    for id in 0..64 {
        traffic.begin(id, MIB, start);
    }
    for id in 0..64 {
        traffic.done(id, at(start, 6.4 + id as f64 * 1e-6));
        assert!(near(traffic.bandwidth(), 10.0 * MIB as f64), "{traffic:?}");
    }
}

/// 64 begin, and one after the other comes back, 10 MiB/s: the others are no credit, and no
/// debt.
#[test]
fn what_has_begun_is_not_taken_for_done() {
    let start = Instant::now();
    let mut traffic = known(12.0 * MIB as f64, start);
    for id in 0..64 {
        traffic.begin(id, MIB, start);
    }
    for id in 0..25 {
        traffic.done(id, at(start, 0.1 * (id + 1) as f64));
    }
    assert_eq!(traffic.window.number, 1, "a window has ended");
    assert_eq!(traffic.bandwidth(), Some(12.0 * MIB as f64));
}

/// Writes into a cache, then the sync that pays for them, again and again: what counts is both.
#[test]
fn a_sync_belongs_to_the_writes_before_it() {
    let start = Instant::now();
    let mut traffic = known(50.0 * MIB as f64, start);
    let mut now = 0.0;
    for round in 0..40_u64 {
        let first = round * 100;
        for id in first..first + 64 {
            traffic.begin(id, MIB, at(start, now));
            now += 0.0005;
            traffic.done(id, at(start, now));
        }
        traffic.begin(first + 64, 0, at(start, now));
        now += 1.25;
        traffic.done(first + 64, at(start, now));
        now += 0.01;
    }
    let rate = traffic.bandwidth().unwrap() / MIB as f64;
    assert!((40.0..60.0).contains(&rate), "{rate} MiB/s");
}

#[test]
fn one_that_is_forgotten_counts_as_nothing() {
    let start = Instant::now();
    let mut traffic = known(100e6, start);
    traffic.begin(0, MIB, start);
    traffic.begin(1, MIB, start);
    traffic.forget(0, at(start, 9.0));
    traffic.done(1, at(start, 9.5));
    assert_eq!(traffic.bandwidth(), Some(100e6));
    assert_eq!((traffic.written(), traffic.in_flight()), (MIB, 0));
    traffic.forget(0, at(start, 10.0));
    traffic.done(77, at(start, 10.0));
    assert_eq!(traffic.written(), MIB);
}

#[test]
fn what_is_stuck_is_set_aside_once_and_does_not_count_as_busy() {
    let start = Instant::now();
    let mut traffic = known(100e6, start);
    traffic.begin(0, MIB, start);
    traffic.begin(1, MIB, at(start, 5.0));
    let deadline = Duration::from_secs(10);
    assert_eq!(traffic.set_stuck_aside(deadline, at(start, 10.0)), None);
    let age = traffic.set_stuck_aside(deadline, at(start, 11.0));
    assert_eq!(age, Some(Duration::from_secs(11)));
    assert_eq!(traffic.set_stuck_aside(deadline, at(start, 12.0)), None);
    assert!(traffic.is_stuck());
    assert_eq!(traffic.in_flight(), 2 * MIB);
    traffic.done(1, at(start, 12.0));
    // A slow trickle with rests, while the first is still stuck.
    let stream = Stream {
        bytes: MIB,
        io: 0.2,
        rest: 0.1,
        depth: 1,
    };
    let end = stream.run(&mut traffic, at(start, 20.0), 60.0);
    assert_eq!(traffic.bandwidth(), Some(100e6));
    traffic.done(0, end);
    assert!(!traffic.is_stuck());
    assert_eq!(traffic.bandwidth(), Some(100e6));
}

#[test]
fn a_clock_that_two_threads_read_in_another_order() {
    let start = Instant::now();
    let mut traffic = known(100e6, start);
    traffic.begin(0, MIB, at(start, 1.0));
    traffic.begin(1, MIB, at(start, 0.5));
    traffic.done(0, at(start, 0.7));
    traffic.done(1, at(start, 0.6));
    assert_eq!(traffic.bandwidth(), Some(100e6));
}

proptest! {
    /// Whatever happens the belief is a number, and never above the fastest there was.
    #[test]
    fn the_belief_is_always_a_rate(
        steps in prop::collection::vec((0_u8..5, 0_u64..20, 0_u64..64 << 20, 0_u32..3_000), 1..300),
        probe in prop::option::of(1.0..1e12_f64),
    ) {
        let start = Instant::now();
        let mut traffic = Traffic::new(start);
        if let Some(rate) = probe {
            traffic.probed(rate, Duration::ZERO);
        }
        let (mut now, mut begun, mut moved) = (start, 0_u64, 0_u64);
        for (what, which, bytes, millis) in steps {
            now += Duration::from_millis(u64::from(millis));
            let one = begun.saturating_sub(which);
            match what {
                0 | 1 => {
                    traffic.begin(begun, bytes, now);
                    begun += 1;
                    moved += bytes;
                }
                2 | 3 => traffic.done(one, now),
                _ if which % 4 == 0 => {
                    traffic.set_stuck_aside(Duration::from_secs(2), now);
                }
                _ => traffic.forget(one, now),
            }
            prop_assert!(traffic.bandwidth().is_none_or(|rate| rate.is_finite() && rate > 0.0));
            let most = probe.unwrap_or(0.0).max(moved as f64 / WINDOW);
            prop_assert!(traffic.bandwidth().is_none_or(|rate| rate <= most * 1.001));
            prop_assert!(traffic.written() <= moved);
        }
    }
}
