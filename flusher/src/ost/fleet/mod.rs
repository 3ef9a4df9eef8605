//! What is known of the OSTs at this moment, and dealing units of data over them.
//!
//! ```text
//! probing (threads) ─┐            ┌─▶ chosen, deal
//! begin/done/failed ─┼─▶ book ────┼─▶ is_usable
//! tick ──────────────┘ (no clock) └─▶ status
//! ```
//!
//! # Model
//!
//! One [`Fleet`] for each mount. A probe at the start, and one whenever the last is `probe_age`
//! old, says what every OST can do; in between the drain's own I/Os, announced with
//! [`Fleet::begin`], keep that alive (`traffic`). Algorithm 1 (`select`) takes those that are worth
//! using, and units are dealt over them in proportion to their bandwidth (`dealer`). An OST that
//! stalls, fails or fills is dropped at once and tried again later by a small probe of it alone
//! (`book`).
//!
//! # What the drain's traffic may say
//!
//! It may always raise a bandwidth, and lower it only when there was something in flight at that
//! OST all the time. Whatever rests between its I/Os was not what the drain waited for: a rate
//! limit, the log or a slower OST was. If its low rate were believed, a throttled drain would
//! find its fast OSTs slow, leave them out, and never learn better until the next probe, because
//! nothing goes to an OST that is left out. `traffic` has the details: busy time as a union,
//! windows, small I/Os, syncs.
//!
//! # Who may call
//!
//! Anybody, from any thread. Nothing here waits for an OST: all I/O is done by threads of its own
//! that nobody joins, and they do not keep the fleet alive ([`Fleet::wait_ready`] waits as long as
//! it is told). An I/O that hangs keeps its [`InFlight`], which is how it is seen to hang.

mod book;
mod dealer;
mod probing;
mod rounds;
mod status;
mod target;
mod traffic;

pub use status::{FleetStatus, OstState, OstStatus};

use super::{Ost, OstError, OstSettings, Provider};
use book::Book;
use parking_lot::{Condvar, Mutex};
use rounds::Rounds;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use target::Trouble;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// How long [`Fleet::start`] waits for the list: with it, data can be dealt from the first moment
/// on. A file system that does not even answer this is waited for in the background.
const LIST_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Fleet {
    provider: Arc<dyn Provider>,
    settings: OstSettings,
    state: Mutex<State>,
    changed: Condvar,
    settled: Notify,
}

#[derive(Debug)]
struct State {
    book: Book,
    rounds: Rounds,
    listed: bool,
}

impl Fleet {
    /// Lists the OSTs and starts the first probe in the background.
    pub fn start(provider: Arc<dyn Provider>, settings: OstSettings) -> Arc<Fleet> {
        let now = Instant::now();
        let mut rounds = Rounds::default();
        let first = rounds.due(&settings, now);
        let fleet = Arc::new(Fleet {
            state: Mutex::new(State {
                book: Book::new(settings.clone()),
                rounds,
                listed: false,
            }),
            changed: Condvar::new(),
            settled: Notify::new(),
            provider,
            settings,
        });
        if first {
            probing::launch_round(&fleet);
        }
        fleet.wait_for(now + LIST_PATIENCE, |state| {
            state.listed || state.rounds.any_over()
        });
        fleet
    }

    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    pub fn settings(&self) -> &OstSettings {
        &self.settings
    }

    /// Waits until the first probe is over, at most until `deadline`. False: not yet. Where the
    /// OSTs cannot even be listed it is over when that is known.
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

    /// The OSTs that data should go to now, the fastest first; at most `settings.width`. All that
    /// are healthy, in the order of the list, while nothing is known of their bandwidth.
    pub fn chosen(&self) -> Vec<Ost> {
        self.state.lock().book.chosen()
    }

    /// The OST for the next unit of `bytes`, never one of `except`. Dealt over [`Fleet::chosen`]
    /// in proportion to bandwidth, but not to one that is still busy with what it was dealt while
    /// another could have done this unit; over all healthy ones in turn until the first probe is over;
    /// to the fastest of those that were left out if all that are chosen are excepted. `None`: no
    /// OST can be used now.
    pub fn deal(self: &Arc<Self>, bytes: u64, except: &[u32]) -> Option<Dealt> {
        let mut state = self.state.lock();
        state.book.drop_stalled(Instant::now());
        let ost = state.book.deal(bytes, except)?;
        Some(self.dealt(ost, bytes))
    }

    fn dealt(self: &Arc<Self>, ost: Ost, bytes: u64) -> Dealt {
        Dealt {
            ost,
            bytes,
            fleet: Arc::downgrade(self),
        }
    }

    /// The same, but none that has enough to do already: a unit that waits can still go to whoever
    /// is ready first.
    pub fn offer(self: &Arc<Self>, bytes: u64) -> Offer {
        let mut state = self.state.lock();
        state.book.drop_stalled(Instant::now());
        let Some(busy) = state.book.busy(bytes) else {
            return Offer::Busy;
        };
        match state.book.deal(bytes, &busy) {
            Some(ost) => Offer::Dealt(self.dealt(ost, bytes)),
            None => Offer::Nobody,
        }
    }

    /// Ends when something that was dealt is settled after this call.
    pub fn settled(&self) -> Notified<'_> {
        self.settled.notified()
    }

    /// An I/O of `bytes` to `ost` begins. It should be one that waits for the OST: a write with
    /// O_DIRECT, or writes through the page cache and, as an I/O of 0 bytes, the sync after them.
    pub fn begin(self: &Arc<Self>, ost: u32, bytes: u64) -> InFlight {
        let now = Instant::now();
        InFlight {
            id: self.state.lock().book.begin(ost, bytes, now),
            fleet: Arc::downgrade(self),
            ost,
        }
    }

    /// Drops those that are stalled by now, and starts the probes that are due. To be called about
    /// once a second.
    pub fn tick(self: &Arc<Self>, now: Instant) {
        let (round, tries) = {
            let mut state = self.state.lock();
            state.book.drop_stalled(now);
            let round = state.rounds.due(&self.settings, now);
            (round, state.book.due(now))
        };
        if round {
            probing::launch_round(self);
        }
        if !tries.is_empty() {
            probing::launch_tries(self, tries);
        }
    }

    /// Lists and measures all OSTs now, unless that is under way: see [`Fleet::wait_measured`].
    pub fn measure(self: &Arc<Self>) {
        if self.state.lock().rounds.begin() {
            probing::launch_measuring_round(self);
        }
    }

    /// Waits until no probe of all OSTs is under way, at most until `deadline`. False: not yet.
    pub fn wait_measured(&self, deadline: Instant) -> bool {
        self.wait_for(deadline, |state| !state.rounds.is_running())
    }

    /// It is in the list and not dropped.
    pub fn is_usable(&self, ost: u32) -> bool {
        self.state.lock().book.is_usable(ost)
    }

    /// What the file system said because of which no target takes data now, as far as it is known.
    pub fn refusal(&self) -> Option<i32> {
        let full = |ost: &OstStatus| ost.state == OstState::Full;
        let now = Instant::now();
        let osts = self.state.lock().book.status(now);
        osts.iter().any(full).then_some(libc::ENOSPC)
    }

    pub fn status(&self) -> FleetStatus {
        let now = Instant::now();
        let state = self.state.lock();
        FleetStatus {
            provider: self.provider.kind().into(),
            probing: state.rounds.is_running(),
            probed_seconds_ago: state.rounds.probed_seconds_ago(now),
            probe_seconds: state.rounds.seconds(),
            error: state.rounds.error().map(Into::into),
            osts: state.book.status(now),
        }
    }
}

/// A unit of data that was dealt to an OST. To be kept until the OST has it for good, or nobody
/// waits for that any more.
#[derive(Debug)]
#[must_use = "an OST whose units are forgotten at once is never busy"]
pub struct Dealt {
    pub ost: Ost,
    bytes: u64,
    fleet: Weak<Fleet>,
}

impl Drop for Dealt {
    fn drop(&mut self) {
        if let Some(fleet) = self.fleet.upgrade() {
            let mut state = fleet.state.lock();
            state.book.settle(self.ost.index, self.bytes);
            drop(state);
            fleet.settled.notify_waiters();
        }
    }
}

/// Where the next unit may go.
#[derive(Debug)]
pub enum Offer {
    Dealt(Dealt),
    /// Not yet anywhere: all have enough to do.
    Busy,
    /// No OST can be used.
    Nobody,
}

/// An I/O that is under way. Dropped without a word on how it ended it counts as nothing.
#[derive(Debug)]
#[must_use = "an I/O that is dropped at once is not seen"]
pub struct InFlight {
    fleet: Weak<Fleet>,
    ost: u32,
    id: Option<u64>,
}

impl InFlight {
    pub fn done(mut self) {
        self.end(|book, ost, id, now| book.done(ost, id, now));
    }

    /// Drops the OST, unless the error is no fault of it (a user's quota). Not for errors of one
    /// file: a subfile that is gone says nothing about its OST.
    pub fn failed(self, error: &OstError) {
        self.failed_with(error.errno(), error.to_string());
    }

    /// The same with the error's number and the sentence that `status` shows.
    pub fn failed_with(mut self, errno: Option<i32>, sentence: String) {
        let trouble = Trouble { errno, sentence };
        self.end(|book, ost, id, now| book.failed(ost, id, &trouble, now));
    }

    fn end(&mut self, how: impl FnOnce(&mut Book, u32, u64, Instant)) {
        let now = Instant::now();
        if let Some((id, fleet)) = self.id.take().zip(self.fleet.upgrade()) {
            how(&mut fleet.state.lock().book, self.ost, id, now);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.end(|book, ost, id, now| book.forget(ost, id, now));
    }
}

#[cfg(test)]
mod tests;
