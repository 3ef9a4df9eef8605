use super::*;

fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn only(metrics: &Metrics) -> OpStats {
    let stats = metrics.stats();
    assert_eq!(stats.len(), 1, "{stats:?}");
    stats[0]
}

#[test]
fn buckets_cover_all_latencies_without_gaps() {
    for n in 0..BUCKETS {
        assert_eq!(bucket(Duration::from_nanos(start(n))), n);
        if n > 0 {
            assert_eq!(bucket(Duration::from_nanos(start(n) - 1)), n - 1);
        }
        assert!(start(n + 1) <= start(n) * 3 / 2, "bucket {n} is too wide");
    }
    assert_eq!(bucket(Duration::ZERO), 0);
    assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
}

#[test]
fn percentiles_are_exact_to_a_third() {
    let metrics = Metrics::default();
    for n in 1..=1000 {
        metrics.count(Thread::Worker, Op::Fsync, micros(n), Some(0));
    }
    let stats = only(&metrics);
    assert_eq!((stats.op, stats.count), (Op::Fsync, 1000));
    let near = |found: Duration, right: u64| {
        found >= micros(right * 2 / 3) && found <= micros(right * 4 / 3)
    };
    assert!(near(stats.p50, 500), "{stats:?}");
    assert!(near(stats.p99, 990), "{stats:?}");
    assert!(stats.p50 <= stats.p99);
}

#[test]
fn one_slow_request_shows_in_the_99th_percentile_of_a_hundred_only_if_it_is_the_second() {
    let metrics = Metrics::default();
    for _ in 0..98 {
        metrics.count(Thread::Worker, Op::Read, micros(10), Some(1));
    }
    metrics.count(Thread::Worker, Op::Read, micros(100_000), Some(1));
    metrics.count(Thread::Worker, Op::Read, micros(10), Some(1));
    assert!(only(&metrics).p99 < micros(20));
    metrics.count(Thread::Worker, Op::Read, micros(100_000), Some(1));
    assert!(only(&metrics).p99 > micros(60_000));
}

#[test]
fn errors_and_bytes_of_all_threads_are_summed() {
    let metrics = Metrics::default();
    assert_eq!(metrics.stats(), []);
    std::thread::scope(|scope| {
        for n in 0..2 * SHARDS {
            let (metrics, thread) = (&metrics, [Thread::EventLoop, Thread::Worker][n % 2]);
            scope.spawn(move || {
                metrics.count(thread, Op::Write, micros(5), Some(4096));
                metrics.count(thread, Op::Write, micros(5), None);
            });
        }
    });
    let stats = only(&metrics);
    let threads = 2 * SHARDS as u64;
    assert_eq!((stats.count, stats.errors), (2 * threads, threads));
    assert_eq!(stats.bytes, 4096 * threads);
}
