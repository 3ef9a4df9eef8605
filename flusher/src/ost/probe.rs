//! The bandwidth probe: random data, written with O_DIRECT to all OSTs at once.
//!
//! The data is random because some targets compress. It is written with O_DIRECT and synced at the
//! end, because otherwise the measurement would show the speed of a cache on this node. If a target
//! has no O_DIRECT, the same is done through the page cache, and the result says so.
//!
//! Every OST has a thread and a deadline. A slow OST is cut off between two blocks and measured by
//! what it took so far: at the deadline, or when it has taken twice as long as three quarters of
//! the OSTs took for everything, because then it is too slow to be chosen whatever it does next. An
//! OST that hangs is reported as such when the deadline is over; its thread ends whenever the
//! target lets it, and then removes its file. The files have names that no other node and no other
//! probe uses. The file of a killed probe is known by its name ([`is_probe`]), and removed when a
//! store is opened (`housekeeping`).

use super::{Ost, OstError, Provider};
use nix::errno::Errno;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Bytes written at a time: the stripe size that parallel file systems start from.
pub const BLOCK: usize = 1 << 20;
/// Alignment of addresses that O_DIRECT requires where 512 is not enough.
const ALIGN: usize = 4096;
/// Prefix of the names of probe files; 16 hex digits follow.
const PREFIX: &str = "probe-";

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes written to each OST, in whole blocks, at least one.
    pub size: u64,
    /// Deadline of each OST, and of all together: they are probed at the same time.
    pub deadline: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            size: 16 << 20,
            deadline: Duration::from_secs(10),
        }
    }
}

/// The measurement of one OST.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Bytes per second.
    pub bandwidth: f64,
    /// Time until the first block was written.
    pub latency: Duration,
    pub bytes: u64,
    /// False if the data went through the page cache.
    pub direct: bool,
}

#[derive(Debug)]
pub struct Probed {
    pub ost: Ost,
    pub result: Result<Measured, OstError>,
}

/// Probes all of `osts` at the same time and returns the results in the same order. Takes little
/// longer than the deadline, whatever the OSTs do.
pub fn probe(provider: &Arc<dyn Provider>, osts: &[Ost], options: Options) -> Vec<Probed> {
    probe_holding(provider, osts, options, |_| ())
}

/// The same. Each OST's thread keeps the value that `hold` makes for it until the thread ends,
/// which may be long after this has returned.
pub(super) fn probe_holding<H: Send + 'static>(
    provider: &Arc<dyn Provider>,
    osts: &[Ost],
    options: Options,
    hold: impl Fn(&Ost) -> H,
) -> Vec<Probed> {
    let began = Instant::now();
    let deadline = began + options.deadline;
    let block = Arc::new(Block::random());
    let end = Arc::new(End::new(deadline));
    let (done, results) = mpsc::channel();
    let mut found: Vec<Option<Result<Measured, OstError>>> = Vec::new();
    for (n, ost) in osts.iter().enumerate() {
        let (provider, block, done) = (provider.clone(), block.clone(), done.clone());
        let (this, run, held, end) = (ost.clone(), options, hold(ost), end.clone());
        let spawned = std::thread::Builder::new()
            .name(format!("forebay-probe-{n}"))
            .stack_size(128 << 10)
            .spawn(move || {
                let result = probe_one(&*provider, &this, &block, run.size, &end);
                drop(held);
                // The caller no longer waits for an OST that hung.
                if done.send((n, result)).is_err() {
                    tracing::debug!(ost = this.index, "a probe ended after its deadline");
                }
            });
        found.push(
            spawned
                .err()
                .map(|e| Err(OstError::new(ost, "starting a probe of", e))),
        );
    }
    drop(done);
    // A slow OST is cut off at the deadline itself; after that its file is synced and removed.
    let last = deadline + options.deadline / 10 + Duration::from_millis(50);
    while let Ok((n, result)) = results.recv_timeout(last.saturating_duration_since(Instant::now()))
    {
        found[n] = Some(result);
        let answered = found.iter().flatten().filter(|r| r.is_ok()).count();
        if answered * 4 >= osts.len() * 3 {
            end.not_after(began + began.elapsed() * 2);
        }
    }
    let hangs = |ost: &Ost| OstError::new(ost, "probing", Errno::ETIMEDOUT.into());
    let results = osts.iter().cloned().zip(found);
    results
        .map(|(ost, result)| Probed {
            result: result.unwrap_or_else(|| Err(hangs(&ost))),
            ost,
        })
        .collect()
}

/// True if a file of this name on an OST was made by a probe, on any node.
pub fn is_probe(name: &str) -> bool {
    let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    name.strip_prefix(PREFIX)
        .is_some_and(|number| number.len() == 16 && number.bytes().all(is_digit))
}

fn probe_one(
    provider: &dyn Provider,
    ost: &Ost,
    block: &Block,
    size: u64,
    end: &End,
) -> Result<Measured, OstError> {
    let name = format!("{PREFIX}{:016x}", rand::random::<u64>());
    let (file, direct) = match provider.create(ost, &name, true) {
        Err(e) if e.errno() == Some(libc::EINVAL) => {
            // open(2) may have made the file before it found that O_DIRECT does not work there.
            provider.remove(ost, &name)?;
            (provider.create(ost, &name, false)?, false)
        }
        other => (other?, true),
    };
    let written = write(&file, block, size, end);
    let closed = nix::unistd::close(file).map_err(io::Error::from);
    provider.remove(ost, &name)?;
    let (bytes, latency, took) =
        written.map_err(|e| OstError::new(ost, "writing to its probe file", e))?;
    closed.map_err(|e| OstError::new(ost, "closing its probe file", e))?;
    Ok(Measured {
        bandwidth: bytes as f64 / took.as_secs_f64().max(1e-9),
        latency,
        bytes,
        direct,
    })
}

fn write(
    file: &File,
    block: &Block,
    size: u64,
    end: &End,
) -> io::Result<(u64, Duration, Duration)> {
    let began = Instant::now();
    let mut latency = None;
    let mut at = 0;
    while at < size.max(BLOCK as u64) {
        file.write_all_at(block.bytes(), at)?;
        at += BLOCK as u64;
        latency.get_or_insert_with(|| began.elapsed());
        if end.is_over() {
            break;
        }
    }
    file.sync_data()?;
    Ok((at, latency.unwrap_or_default(), began.elapsed()))
}

/// The time at which OSTs that are not done are cut off.
struct End(Mutex<Instant>);

impl End {
    fn new(deadline: Instant) -> End {
        End(Mutex::new(deadline))
    }

    fn not_after(&self, time: Instant) {
        let mut end = self.0.lock();
        *end = time.min(*end);
    }

    fn is_over(&self) -> bool {
        Instant::now() >= *self.0.lock()
    }
}

/// Random bytes at an address that O_DIRECT accepts.
struct Block(Vec<u8>);

impl Block {
    fn random() -> Block {
        let mut bytes = vec![0; BLOCK + ALIGN];
        rand::RngCore::fill_bytes(&mut rand::rng(), &mut bytes);
        Block(bytes)
    }

    fn bytes(&self) -> &[u8] {
        let skip = self.0.as_ptr().align_offset(ALIGN);
        &self.0[skip..skip + BLOCK]
    }
}

#[cfg(test)]
mod tests;
