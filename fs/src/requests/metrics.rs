//! What each operation has done since the mount: count, errors, bytes and latency.
//!
//! A request adds to the counters of its thread's shard, with relaxed atomic additions to cache lines that the
//! thread shares with few others. Event loops, where absorbed writes are counted, have shards of their own.
//! Nothing is locked, and nothing is allocated after a shard's first request.

use super::table::Op;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Number of shards for each kind of thread.
const SHARDS: usize = 8;

/// Two buckets for each power of two, from 2^8 ns (the first also has all that is faster) to 2^40 ns, which is 18
/// minutes (the last also has all that is slower).
const BUCKETS: usize = 64;
const FIRST_POWER: u32 = 8;

/// The kind of thread that counts. Each thread is of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// It receives requests.
    EventLoop,
    /// It runs requests that may wait.
    Worker,
}

#[derive(Default)]
pub struct Metrics {
    shards: [[OnceLock<Box<[Counters]>>; SHARDS]; 2],
}

/// The counters of one operation in one shard. The alignment keeps other shards off these cache lines, and also
/// the neighbouring lines that processors prefetch.
#[repr(align(128))]
struct Counters {
    errors: AtomicU64,
    bytes: AtomicU64,
    latency: [AtomicU64; BUCKETS],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            errors: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            latency: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

/// What one operation has done since the mount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpStats {
    pub op: Op,
    pub count: u64,
    pub errors: u64,
    /// Bytes of data that were read, written or copied.
    pub bytes: u64,
    /// Median and 99th percentile of the time from the arrival of a request until its answer is known, including
    /// the time for which it waited for a thread. Exact to a third.
    pub p50: Duration,
    pub p99: Duration,
}

thread_local! {
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns this thread's shard among those of its kind.
fn shard(thread: Thread) -> usize {
    static THREADS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    SHARD.get().unwrap_or_else(|| {
        let shard = THREADS[thread as usize].fetch_add(1, Ordering::Relaxed) % SHARDS;
        SHARD.set(Some(shard));
        shard
    })
}

impl Metrics {
    /// Counts a request that took `latency`. `bytes` is `None` if it failed.
    pub fn count(&self, thread: Thread, op: Op, latency: Duration, bytes: Option<u64>) {
        let shard = self.shards[thread as usize][shard(thread)]
            .get_or_init(|| Op::ALL.iter().map(|_| Counters::default()).collect());
        let counters = &shard[op as usize];
        counters.latency[bucket(latency)].fetch_add(1, Ordering::Relaxed);
        match bytes {
            None => counters.errors.fetch_add(1, Ordering::Relaxed),
            Some(0) => 0,
            Some(bytes) => counters.bytes.fetch_add(bytes, Ordering::Relaxed),
        };
    }

    /// Returns the operations that were called.
    pub fn stats(&self) -> Vec<OpStats> {
        let sum = |op: &Op| {
            let (mut errors, mut bytes, mut latency) = (0, 0, [0; BUCKETS]);
            for shard in self.shards.iter().flatten().filter_map(OnceLock::get) {
                let counters = &shard[*op as usize];
                errors += counters.errors.load(Ordering::Relaxed);
                bytes += counters.bytes.load(Ordering::Relaxed);
                for (sum, bucket) in latency.iter_mut().zip(&counters.latency) {
                    *sum += bucket.load(Ordering::Relaxed);
                }
            }
            let count = latency.iter().sum();
            (count > 0).then(|| OpStats {
                op: *op,
                count,
                errors,
                bytes,
                p50: percentile(&latency, 50),
                p99: percentile(&latency, 99),
            })
        };
        Op::ALL.iter().filter_map(sum).collect()
    }
}

fn bucket(latency: Duration) -> usize {
    let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    let nanos = nanos.max(1 << FIRST_POWER);
    let power = nanos.ilog2();
    let half = (nanos >> (power - 1)) & 1;
    let bucket = (power - FIRST_POWER) as usize * 2 + half as usize;
    bucket.min(BUCKETS - 1)
}

/// The shortest latency in the bucket, in nanoseconds.
fn start(bucket: usize) -> u64 {
    (2 + bucket as u64 % 2) << (FIRST_POWER as usize - 1 + bucket / 2)
}

/// The latency that `percent` of the requests did not exceed. Those of one bucket count as evenly distributed.
fn percentile(latency: &[u64; BUCKETS], percent: u64) -> Duration {
    let count: u64 = latency.iter().sum();
    let mut rank = (count * percent).div_ceil(100).max(1);
    for (bucket, &n) in latency.iter().enumerate() {
        if rank <= n {
            let (from, to) = (start(bucket) as f64, start(bucket + 1) as f64);
            return Duration::from_nanos((from + (to - from) * rank as f64 / n as f64) as u64);
        }
        rank -= n;
    }
    Duration::ZERO
}

#[cfg(test)]
mod tests;
