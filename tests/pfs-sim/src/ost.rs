//! One OST: its objects, its queue of requests, its counters.
//!
//! # Consistency A request takes effect when it arrives and is answered when it has been served:
//! the bytes are moved at once, under the lock of the OST, and then only time passes. Both happen
//! between call and return, so the order of arrival is a legal order for every client. A request
//! that arrives at a failing OST has no effect. A request that is waiting when the OST begins to
//! fail is answered with the error although its bytes are there, as on a server that dies before it
//! can answer.

use crate::Errno;
use crate::batch::Batch;
use crate::node::FileBody;
use crate::object::{Object, PAGE};
use crate::pipe::{Cost, Pipe};
use crate::settings::{Failure, OstSettings, nanos};
use crate::tally::Tally;
use parking_lot::{Mutex, MutexGuard};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// A request in the queue.
pub struct Job {
    pub cost: Cost,
    /// Whether it is a write, truncation or allocation, as `Failure::error` needs to know.
    pub changes: bool,
    /// Error that was decided when the request arrived.
    pub refused: Option<Errno>,
    pub tally: Tally,
    pub file: Arc<FileBody>,
    pub batch: Batch,
}

/// A request that was answered. It must be reported once no lock is held.
pub struct Done {
    batch: Batch,
    result: Result<(), Errno>,
}

impl Done {
    pub fn report(self) {
        self.batch.report(self.result);
    }
}

struct Serving {
    job: Job,
    finish: Instant,
}

pub struct OstState {
    pub settings: OstSettings,
    pub tally: Tally,
    objects: HashMap<u64, Object>,
    used_pages: u64,
    /// The directory of its object files; `None` if objects are in memory.
    dir: Option<PathBuf>,
    pipe: Pipe,
    rng: StdRng,
    waiting: VecDeque<Job>,
    /// Sorted by finish time.
    serving: VecDeque<Serving>,
    /// Time when the last hang ended; no request starts before it.
    floor: Instant,
    closed: bool,
}

pub struct Ost {
    pub name: String,
    state: Mutex<OstState>,
}

impl Ost {
    pub fn new(index: usize, settings: OstSettings, seed: u64, dir: Option<PathBuf>) -> Self {
        let now = Instant::now();
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64;
        Self {
            name: format!("sim-OST{index:04x}_UUID"),
            state: Mutex::new(OstState {
                settings,
                tally: Tally::default(),
                objects: HashMap::new(),
                used_pages: 0,
                dir,
                pipe: Pipe::new(now),
                rng: StdRng::seed_from_u64(seed),
                waiting: VecDeque::new(),
                serving: VecDeque::new(),
                floor: now,
                closed: false,
            }),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, OstState> {
        self.state.lock()
    }
}

impl OstState {
    pub fn object(&self, id: u64) -> Option<&Object> {
        self.objects.get(&id)
    }

    /// Returns the object of the file `id`; creates it if it is missing.
    pub fn object_mut(&mut self, id: u64) -> &mut Object {
        let path = || self.dir.as_ref().map(|dir| dir.join(id.to_string()));
        self.objects
            .entry(id)
            .or_insert_with(|| Object::new(path()))
    }

    pub fn remove_object(&mut self, id: u64) -> std::io::Result<()> {
        let Some(object) = self.objects.remove(&id) else {
            return Ok(());
        };
        self.used_pages -= object.pages();
        object.remove()
    }

    pub fn drop_client(&mut self, id: u64, client: u64) {
        if let Some(object) = self.objects.get_mut(&id) {
            object.locks.drop_client(client);
        }
    }

    pub fn used(&self) -> u64 {
        self.used_pages * PAGE
    }

    pub fn free(&self) -> u64 {
        self.settings.capacity.saturating_sub(self.used())
    }

    /// Fails if there is no room for `pages` more pages.
    pub fn room(&self, pages: u64) -> Result<(), Errno> {
        if pages == 0 || pages.saturating_mul(PAGE) <= self.free() {
            Ok(())
        } else {
            Err(Errno::ENOSPC)
        }
    }

    pub fn took(&mut self, pages: u64) {
        self.used_pages += pages;
    }

    pub fn gave_back(&mut self, pages: u64) {
        self.used_pages -= pages;
    }

    /// Returns the error for a request that arrives now.
    pub fn refusal(&self, changes: bool) -> Option<Errno> {
        if self.closed {
            return Some(Errno::EIO);
        }
        self.settings.fail.error(changes)
    }

    pub fn pending(&self) -> usize {
        self.waiting.len() + self.serving.len()
    }

    /// Queues a request. `advance` must be called afterwards.
    pub fn push(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    /// Handles everything that is due at `now`: adds the answered requests to `done` and returns
    /// when to call this again.
    pub fn advance(&mut self, now: Instant, done: &mut Vec<Done>) -> Option<Instant> {
        if self.closed {
            self.fail_all(done);
            return None;
        }
        if self.settings.fail == Failure::Hang {
            return None;
        }
        self.fill(now);
        while let Some(front) = self.serving.front()
            && front.finish <= now
        {
            let Some(Serving { job, finish }) = self.serving.pop_front() else {
                break;
            };
            let error = job.refused.or(self.settings.fail.error(job.changes));
            self.answer(job, error, done);
            self.fill(finish);
        }
        self.serving.front().map(|serving| serving.finish)
    }

    /// Starts waiting requests, as of time `at`, while the queue has places.
    fn fill(&mut self, at: Instant) {
        while self.serving.len() < self.settings.queue {
            let Some(mut job) = self.waiting.pop_front() else {
                return;
            };
            let refused = job.refused.or(self.settings.fail.error(job.changes));
            let cost = if refused.is_some() {
                Cost::default()
            } else {
                job.cost
            };
            let jitter = self.settings.jitter;
            let factor = 1.0 + jitter * self.rng.random_range(-1.0..=1.0);
            let (start, idle) = (at.max(self.floor), self.serving.is_empty());
            let (finish, busy) = self.pipe.admit(&self.settings, cost, factor, start, idle);
            job.tally.busy_ns = nanos(busy);
            self.serving.push_back(Serving { job, finish });
        }
    }

    fn answer(&mut self, job: Job, error: Option<Errno>, done: &mut Vec<Done>) {
        let tally = match error {
            None => job.tally,
            Some(_) => job.tally.failed(),
        };
        self.tally.add(&tally);
        job.file.tally.lock().add(&tally);
        done.push(Done {
            batch: job.batch,
            result: error.map_or(Ok(()), Err),
        });
    }

    /// Changes the settings of the OST. `advance` must be called afterwards.
    pub fn change(&mut self, settings: OstSettings, now: Instant) {
        if self.settings.fail == Failure::Hang && settings.fail != Failure::Hang {
            self.floor = now;
        }
        self.settings = settings;
    }

    /// Makes all requests fail from now on; pending ones fail at the next `advance`.
    pub fn close(&mut self) {
        self.closed = true;
    }

    fn fail_all(&mut self, done: &mut Vec<Done>) {
        let serving = std::mem::take(&mut self.serving);
        let waiting = std::mem::take(&mut self.waiting);
        let jobs = serving.into_iter().map(|serving| serving.job);
        for job in jobs.chain(waiting) {
            self.answer(job, Some(Errno::EIO), done);
        }
    }
}

#[cfg(test)]
mod tests;
