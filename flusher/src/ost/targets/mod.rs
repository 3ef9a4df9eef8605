//! The targets in use: keeps what is known of the OSTs at this moment, and decides which OST gets
//! the next unit of data.
//!
//! ```text
//! probing (threads) ─┐            ┌─▶ chosen, pick
//! begin/done/failed ─┼─▶ stats ────┼─▶ is_usable
//! tick ──────────────┘ (no clock) └─▶ status
//! ```
//!
//! # Model
//!
//! There is one [`Targets`] for each mount. A probe at the start, and another one whenever the last
//! is `probe_age` old, says what every OST can do. In between, the drain's own I/Os, reported with
//! [`Targets::begin`], keep the bandwidth estimates current (`estimate`). Algorithm 1 (`select`) takes
//! the OSTs that are worth using, and units are assigned to them in proportion to their bandwidth
//! (target picker, `picker`). An OST that stalls, fails or is full is dropped at once and tried
//! again later by a small probe of it alone (target statistics, `stats`).
//!
//! # What the drain's I/O may change
//!
//! It may always raise a bandwidth estimate, and lower it only if something was in flight at that
//! OST all the time. If an OST rests between its I/Os, the drain did not wait for that OST but for
//! a rate limit, the log or a slower OST. If its low rate were believed, a throttled drain would
//! take its fast OSTs for slow, leave them out, and not learn better before the next probe, because
//! nothing goes to an OST that is left out. `estimate` has the details: busy time as a union,
//! windows, small I/Os, syncs.
//!
//! # Which threads may call this
//!
//! Any thread may. Nothing here waits for an OST: all I/O is done by threads of its own that are
//! never joined, and they do not keep the [`Targets`] alive ([`Targets::wait_ready`] waits as long
//! as its caller says). An I/O that hangs keeps its [`InFlight`], which shows that it hangs.

mod estimate;
mod picker;
mod placement;
mod probing;
mod rounds;
mod stats;
mod status;
mod target;

pub use status::{OstState, OstStatus, TargetsStatus};

use super::{Directories, Ost, OstError, OstSettings, Provider};
use parking_lot::{Condvar, Mutex};
use rounds::Rounds;
use stats::Stats;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use target::Failure;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// How long [`Targets::start`] waits for the list, so that data can be assigned from the first moment
/// on. If a file system does not even answer this in time, the list is made in the background.
const LIST_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Targets {
    /// This object, for what outlives a call.
    me: Weak<Targets>,
    provider: Arc<dyn Provider>,
    settings: OstSettings,
    state: Mutex<State>,
    changed: Condvar,
    settled: Notify,
    /// Number of files that were placed on one target; see `placement`.
    placed: AtomicUsize,
}

#[derive(Debug)]
struct State {
    stats: Stats,
    rounds: Rounds,
    listed: bool,
}

impl Targets {
    /// Lists the OSTs and starts the first probe in the background.
    pub fn start(provider: Arc<dyn Provider>, settings: OstSettings) -> Arc<Targets> {
        let now = Instant::now();
        let mut rounds = Rounds::default();
        let first = rounds.due(&settings, now);
        let targets = Arc::new_cyclic(|me| Targets {
            me: me.clone(),
            state: Mutex::new(State {
                stats: Stats::new(settings.clone()),
                rounds,
                listed: false,
            }),
            changed: Condvar::new(),
            settled: Notify::new(),
            placed: AtomicUsize::new(settings.first),
            provider,
            settings,
        });
        if first {
            probing::launch_round(&targets);
        }
        targets.wait_for(now + LIST_PATIENCE, |state| {
            state.listed || state.rounds.any_over()
        });
        targets
    }

    /// The backing as the only target: there is nothing to choose, so it is not probed.
    pub fn backing_alone(backing: &Path, settings: &OstSettings) -> Arc<Targets> {
        let settings = OstSettings {
            probing: false,
            ..settings.clone()
        };
        let provider = Directories::backing(backing.to_path_buf());
        Targets::start(Arc::new(provider), settings)
    }

    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    pub fn settings(&self) -> &OstSettings {
        &self.settings
    }

    /// Waits until the first probe is over, at most until `deadline`. False if it is not over yet.
    /// If the OSTs cannot even be listed, the probe counts as over when that is known.
    pub fn wait_ready(&self, deadline: Instant) -> bool {
        self.wait_for(deadline, |state| state.rounds.any_over())
    }

    fn wait_for(&self, deadline: Instant, is_so: impl Fn(&State) -> bool) -> bool {
        let mut state = self.state.lock();
        while !is_so(&state) {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return is_so(&state);
            }
        }
        true
    }

    /// Returns the OSTs that data should go to now, the fastest first, at most `settings.width`. As
    /// long as nothing is known of their bandwidth, these are all healthy OSTs in the order of the
    /// list.
    pub fn chosen(&self) -> Vec<Ost> {
        self.state.lock().stats.chosen()
    }

    /// Assigns the next unit of `bytes` to an OST, never to one of `except`. Units go to
    /// [`Targets::chosen`] in proportion to bandwidth, but not to an OST that is still busy with
    /// earlier units while another one could have done this unit. Until the first probe is over
    /// they go to all healthy OSTs in turn. If all chosen OSTs are excepted, the fastest of those
    /// that were left out is used. `None` if no OST can be used now.
    pub fn pick(&self, bytes: u64, except: &[u32]) -> Option<Picked> {
        let mut state = self.state.lock();
        state.stats.drop_stalled(Instant::now());
        let ost = state.stats.pick(bytes, except)?;
        Some(self.picked(ost, bytes))
    }

    fn picked(&self, ost: Ost, bytes: u64) -> Picked {
        Picked {
            ost,
            bytes,
            targets: self.me.clone(),
        }
    }

    /// The same, but leaves out OSTs that have enough to do already: a unit that waits can still go
    /// to the OST that is ready first.
    pub fn offer(&self, bytes: u64) -> Offer {
        let mut state = self.state.lock();
        state.stats.drop_stalled(Instant::now());
        let Some(busy) = state.stats.busy(bytes) else {
            return Offer::Busy;
        };
        match state.stats.pick(bytes, &busy) {
            Some(ost) => Offer::Picked(self.picked(ost, bytes)),
            None => Offer::NoTarget,
        }
    }

    /// Ends when a unit is settled after this call.
    pub fn settled(&self) -> Notified<'_> {
        self.settled.notified()
    }

    /// Reports that an I/O of `bytes` to `ost` begins. It should be an I/O that waits for the OST:
    /// a write with O_DIRECT, or writes through the page cache and, as an I/O of 0 bytes, the sync
    /// after them.
    pub fn begin(&self, ost: u32, bytes: u64) -> InFlight {
        let now = Instant::now();
        InFlight {
            id: self.state.lock().stats.begin(ost, bytes, now),
            targets: self.me.clone(),
            ost,
        }
    }

    /// Drops OSTs that are stalled by now, and starts the probes that are due. Should be called
    /// about once a second.
    pub fn tick(self: &Arc<Self>, now: Instant) {
        let (round, tries) = {
            let mut state = self.state.lock();
            state.stats.drop_stalled(now);
            let round = state.rounds.due(&self.settings, now);
            (round, state.stats.due(now))
        };
        if round {
            probing::launch_round(self);
        }
        if !tries.is_empty() {
            probing::launch_tries(self, tries);
        }
    }

    /// Lists and measures all OSTs now, unless that is under way already: see
    /// [`Targets::wait_measured`].
    pub fn measure(self: &Arc<Self>) {
        if self.state.lock().rounds.begin() {
            probing::launch_measuring_round(self);
        }
    }

    /// Waits until no probe of all OSTs is under way, at most until `deadline`. False if one still
    /// is.
    pub fn wait_measured(&self, deadline: Instant) -> bool {
        self.wait_for(deadline, |state| !state.rounds.is_running())
    }

    /// True if the OST is in the list and not dropped.
    pub fn is_usable(&self, ost: u32) -> bool {
        self.state.lock().stats.is_usable(ost)
    }

    /// Returns the error number of the file system because of which no target takes data now, as
    /// far as it is known.
    pub fn refusal(&self) -> Option<i32> {
        let full = |ost: &OstStatus| ost.state == OstState::Full;
        let now = Instant::now();
        let osts = self.state.lock().stats.status(now);
        osts.iter().any(full).then_some(libc::ENOSPC)
    }

    pub fn status(&self) -> TargetsStatus {
        let now = Instant::now();
        let state = self.state.lock();
        TargetsStatus {
            provider: self.provider.kind().into(),
            probing: state.rounds.is_running(),
            probed_seconds_ago: state.rounds.probed_seconds_ago(now),
            probe_seconds: state.rounds.seconds(),
            error: state.rounds.error().map(Into::into),
            osts: state.stats.status(now),
        }
    }
}

/// A unit of data that was assigned to an OST. It must be kept until the OST has the data for good,
/// or until no task waits for that any more.
#[derive(Debug)]
#[must_use = "an OST whose units are forgotten at once is never busy"]
pub struct Picked {
    pub ost: Ost,
    bytes: u64,
    targets: Weak<Targets>,
}

impl Drop for Picked {
    fn drop(&mut self) {
        if let Some(targets) = self.targets.upgrade() {
            let mut state = targets.state.lock();
            state.stats.unit_ended(self.ost.index, self.bytes);
            drop(state);
            targets.settled.notify_waiters();
        }
    }
}

/// Where the next unit may go.
#[derive(Debug)]
pub enum Offer {
    Picked(Picked),
    /// All OSTs have enough to do: the unit can go nowhere yet.
    Busy,
    /// No OST can be used.
    NoTarget,
}

/// An I/O that is under way. If it is dropped without `done` or `failed`, it counts as nothing.
#[derive(Debug)]
#[must_use = "an I/O that is dropped at once is not seen"]
pub struct InFlight {
    targets: Weak<Targets>,
    ost: u32,
    id: Option<u64>,
}

impl InFlight {
    pub fn done(mut self) {
        self.end(|stats, ost, id, now| stats.done(ost, id, now));
    }

    /// Drops the OST, unless the error is not the fault of the OST (a user's quota). Must not be
    /// called for errors of one file: a subfile that is gone says nothing about its OST.
    pub fn failed(self, error: &OstError) {
        self.failed_with(error.errno(), error.to_string());
    }

    /// The same, with the error's number and the sentence that `status` shows.
    pub fn failed_with(mut self, errno: Option<i32>, sentence: String) {
        let failure = Failure { errno, sentence };
        self.end(|stats, ost, id, now| stats.failed(ost, id, &failure, now));
    }

    fn end(&mut self, how: impl FnOnce(&mut Stats, u32, u64, Instant)) {
        let now = Instant::now();
        if let Some((id, targets)) = self.id.take().zip(self.targets.upgrade()) {
            how(&mut targets.state.lock().stats, self.ost, id, now);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.end(|stats, ost, id, now| stats.forget(ost, id, now));
    }
}

#[cfg(test)]
mod tests;
