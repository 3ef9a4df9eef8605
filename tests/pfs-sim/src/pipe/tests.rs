use super::*;

const MS: Duration = Duration::from_millis(1);

fn settings(bandwidth: u64, latency: Duration) -> OstSettings {
    OstSettings {
        bandwidth,
        latency_ns: latency.as_nanos() as u64,
        ..OstSettings::default()
    }
}

fn bytes(bytes: u64) -> Cost {
    Cost {
        bytes,
        extra: Duration::ZERO,
    }
}

#[test]
fn one_request_takes_latency_and_transfer() {
    let now = Instant::now();
    let mut pipe = Pipe::new(now);
    let set = settings(100 << 20, 2 * MS);
    let (done, busy) = pipe.admit(&set, bytes(1 << 20), 1.0, now + 50 * MS, true);
    assert_eq!(done, now + 62 * MS);
    assert_eq!(busy, 10 * MS);
}

/// Requests that arrive together share the bandwidth, and their latencies overlap.
#[test]
fn latencies_overlap_and_bytes_do_not() {
    let now = Instant::now();
    let mut pipe = Pipe::new(now);
    let set = settings(100 << 20, 2 * MS);
    let ends: Vec<_> = (0..4)
        .map(|i| pipe.admit(&set, bytes(1 << 20), 1.0, now, i == 0).0 - now)
        .collect();
    assert_eq!(ends, [12 * MS, 22 * MS, 32 * MS, 42 * MS]);
}

/// A client that needs 2 ms between requests of 10 ms still gets the whole bandwidth. A client that
/// needs longer does not, and a client with small requests gains nothing.
#[test]
fn small_gaps_are_forgiven() {
    let set = settings(100 << 20, Duration::ZERO);
    let run = |gap: Duration, size: u64, count: u32| {
        let begin = Instant::now();
        let (mut pipe, mut now) = (Pipe::new(begin), begin);
        for _ in 0..count {
            let (done, _) = pipe.admit(&set, bytes(size), 1.0, now, true);
            now = done.max(now) + gap;
        }
        now - begin
    };
    assert_eq!(run(2 * MS, 1 << 20, 64), 642 * MS);
    assert_eq!(run(3 * MS, 1 << 20, 64), 64 * 13 * MS);
    let small = run(MS / 2, 4096, 100);
    assert!(small > 50 * MS, "{small:?}");
}

#[test]
fn extra_time_and_jitter() {
    let now = Instant::now();
    let mut pipe = Pipe::new(now);
    let set = settings(100 << 20, 2 * MS);
    let cost = Cost {
        bytes: 1 << 20,
        extra: 5 * MS,
    };
    let (done, _) = pipe.admit(&set, cost, 1.5, now + 10 * MS, true);
    assert_eq!(done, now + 10 * MS + 3 * MS + 15 * MS + 5 * MS);
}
