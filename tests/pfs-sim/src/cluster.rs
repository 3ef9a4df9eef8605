//! All OSTs, and the thread that answers their requests when the time has come.

use crate::Errno;
use crate::behind::Behind;
use crate::layout::{ANY, Layout, Wish};
use crate::ost::{Done, Job, Ost};
use crate::pipe::Cost;
use crate::settings::{Change, OstSettings, nanos};
use crate::timer::Timer;
use crate::units;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Settings for all OSTs. They are fixed when the simulator starts, except for the cost of a lock.
pub struct Common {
    pub default_layout: Wish,
    pub lock_cost_ns: AtomicU64,
    /// Lock ranges are rounded to multiples of this.
    pub lock_unit: u64,
    /// Size of the blocks that are read before a part of them is written; 0: never.
    pub rmw_unit: u64,
    /// Bytes that a client may have acknowledged but not yet served, per OST; 0: none.
    pub write_behind: u64,
    /// Opening a file with O_DIRECT is refused.
    pub no_direct: bool,
    /// Answer ESTALE as NFS and GlusterFS do: see `Pfs::known_node`.
    pub forgets_removed: bool,
}

impl Common {
    pub fn stripe_count(&self) -> u16 {
        self.default_layout.stripe_count.unwrap_or(ANY)
    }

    pub fn lock_cost(&self) -> Duration {
        Duration::from_nanos(self.lock_cost_ns.load(Ordering::Relaxed))
    }
}

pub struct Cluster {
    pub osts: Vec<Ost>,
    pub common: Common,
    pub behind: Arc<Behind>,
    timer: Timer,
    /// Counts new files, whose first OSTs are chosen round robin.
    turn: AtomicUsize,
}

impl Cluster {
    /// `data` is a directory for the objects; without it they are in memory.
    pub fn new(
        settings: Vec<OstSettings>,
        common: Common,
        seed: u64,
        data: Option<&Path>,
    ) -> io::Result<Self> {
        let mut osts = Vec::with_capacity(settings.len());
        for (index, settings) in settings.into_iter().enumerate() {
            let dir = data.map(|data| data.join(format!("ost{index:04}")));
            if let Some(dir) = &dir {
                std::fs::create_dir_all(dir)?;
            }
            osts.push(Ost::new(index, settings, seed, dir));
        }
        Ok(Self {
            osts,
            behind: Arc::new(Behind::new(common.write_behind)),
            common,
            timer: Timer::default(),
            turn: AtomicUsize::new(0),
        })
    }

    /// Starts the thread that answers requests when their time has come. It ends with `close`.
    pub fn run(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let cluster = self.clone();
        std::thread::Builder::new()
            .name("osts".into())
            .spawn(move || {
                wake_up_in_time();
                while let Some(ost) = cluster.timer.next() {
                    cluster.advance(ost);
                }
            })
    }

    /// Returns a layout for a new file.
    pub fn place(&self, wish: &Wish) -> Result<Layout, Errno> {
        let wish = wish.or(&self.common.default_layout);
        wish.check(self.osts.len())?;
        let turn = if wish.start.is_none() && wish.osts.is_none() {
            self.turn.fetch_add(1, Ordering::Relaxed)
        } else {
            0
        };
        Ok(wish.settle(self.osts.len(), turn % self.osts.len()))
    }

    /// Queues a request on `ost`; its effect has already happened.
    pub fn submit(&self, ost: usize, job: Job) {
        self.osts[ost].lock().push(job);
        self.advance(ost);
    }

    /// Answers the requests on `ost` that are due.
    pub fn advance(&self, ost: usize) {
        let mut done: Vec<Done> = Vec::new();
        let next = self.osts[ost].lock().advance(Instant::now(), &mut done);
        if let Some(next) = next {
            self.timer.set(next, ost);
        }
        done.into_iter().for_each(Done::report);
    }

    /// Carries out a command completely or not at all. Resetting the files' counters is left to the
    /// caller.
    pub fn change(&self, change: &Change) -> Result<(), String> {
        change.check()?;
        let targets = match &change.ost {
            Some(target) => target.numbers(self.osts.len())?,
            None => vec![],
        };
        let cost = change.lock_cost.as_deref().map(units::time).transpose()?;
        if let Some(first) = targets.first() {
            // The texts are the same for all OSTs, so if one OST accepts them all do.
            change.apply(&self.osts[*first].lock().settings)?;
        }
        if let Some(cost) = cost {
            let cost = nanos(cost);
            self.common.lock_cost_ns.store(cost, Ordering::Relaxed);
        }
        for ost in targets {
            let mut state = self.osts[ost].lock();
            let settings = change.apply(&state.settings)?;
            state.change(settings, Instant::now());
            drop(state);
            self.advance(ost);
        }
        if change.reset.is_some() {
            for ost in &self.osts {
                ost.lock().tally = Default::default();
            }
        }
        Ok(())
    }

    /// Answers everything that is pending with EIO, and everything that comes later.
    pub fn close(&self) {
        for index in 0..self.osts.len() {
            self.osts[index].lock().close();
            self.advance(index);
        }
        self.timer.close();
    }
}

impl Cluster {
    /// Returns the cost of `bytes` and `moves` lock moves.
    pub fn cost(&self, bytes: u64, moves: u64) -> Cost {
        let moves = u32::try_from(moves).unwrap_or(u32::MAX);
        Cost {
            bytes,
            extra: self.common.lock_cost().saturating_mul(moves),
        }
    }
}

/// Sets the timer slack to its minimum: by default the kernel may wake a thread 50 us late to save
/// power.
fn wake_up_in_time() {
    // SAFETY: the call only sets a number of the calling thread.
    let rc = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64) };
    if rc != 0 {
        eprintln!("pfs-sim: times are exact to 50 us only: the timer slack cannot be set");
    }
}
