//! The threads of a fleet: one for each round of listing and probing, one for the tries of dropped
//! OSTs that became due together, and below them one for each OST (`probe`).
//!
//! All of them may hang for as long as a target hangs. So they keep the provider alive but not the
//! fleet, hold no lock while they do I/O, and nobody waits for them to end.

use super::target::Trouble;
use super::{Fleet, State};
use crate::ost::probe::{BLOCK, probe_holding};
use crate::ost::{Measured, Ost, OstError, OstSettings, ProbeOptions, Probed, Provider};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// For the try of a dropped OST: enough to see how fast it is.
const TRY: u64 = 4 * BLOCK as u64;

/// Starts a round that [`super::rounds::Rounds::due`] has called for.
pub(super) fn launch_round(fleet: &Arc<Fleet>) {
    launch(fleet, Worker::of(fleet));
}

/// The same, and measures also where that is switched off.
pub(super) fn launch_measuring_round(fleet: &Arc<Fleet>) {
    let mut worker = Worker::of(fleet);
    worker.settings.probing = true;
    launch(fleet, worker);
}

fn launch(fleet: &Arc<Fleet>, worker: Worker) {
    let started = spawn("forebay-osts", move || worker.round());
    if let Err(e) = started {
        let sentence = format!("the OSTs cannot be looked at: no thread for it: {e}");
        fleet.change(|state| state.rounds.failed(sentence, Instant::now()));
    }
}

/// Tries OSTs that [`super::book::Book::due`] has named.
pub(super) fn launch_tries(fleet: &Arc<Fleet>, osts: Vec<Ost>) {
    let worker = Worker::of(fleet);
    let tried = osts.clone();
    let started = spawn("forebay-ost-try", move || worker.tries(&tried));
    if let Err(e) = started {
        fleet.change(|state| {
            for ost in osts {
                let kind = io::Error::from(e.kind());
                let error = OstError::new(&ost, "starting a probe of", kind);
                let now = Instant::now();
                state.book.retried(ost.index, Err((&error).into()), now);
            }
        });
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new()
        .name(name.into())
        .stack_size(512 << 10)
        .spawn(run)
        .map(drop)
}

struct Worker {
    fleet: Weak<Fleet>,
    provider: Arc<dyn Provider>,
    settings: OstSettings,
}

impl Worker {
    fn of(fleet: &Arc<Fleet>) -> Worker {
        Worker {
            fleet: Arc::downgrade(fleet),
            provider: fleet.provider.clone(),
            settings: fleet.settings.clone(),
        }
    }

    /// Nothing if the fleet is gone.
    fn tell<T>(&self, what: impl FnOnce(&mut State) -> T) -> Option<T> {
        Some(self.fleet.upgrade()?.change(what))
    }

    fn round(self) {
        let listed = self.provider.osts();
        let probing = self.settings.probing;
        let to_probe = self.tell(|state| {
            let now = Instant::now();
            match listed {
                Ok(osts) => {
                    state.book.set_osts(osts, now);
                    state.listed = true;
                    if probing {
                        return Some(state.book.to_probe());
                    }
                    state.rounds.ended(false, now);
                }
                Err(error) => state.rounds.failed(error.to_string(), now),
            }
            None
        });
        let Some(osts) = to_probe.flatten() else {
            return;
        };
        let began = Instant::now();
        let probed = results(self.probe(&osts, self.settings.probe));
        self.tell(|state| {
            let now = Instant::now();
            state.book.probed(&probed, now);
            state.rounds.ended(true, now);
            state.rounds.spent((now - began).as_secs_f64());
        });
    }

    fn tries(self, osts: &[Ost]) {
        let began = Instant::now();
        let size = match self.settings.probing {
            true => self.settings.probe.size.min(TRY),
            false => BLOCK as u64,
        };
        let options = ProbeOptions {
            size,
            ..self.settings.probe
        };
        let probed = results(self.probe(osts, options));
        self.tell(|state| {
            let now = Instant::now();
            for (ost, result) in probed {
                state.book.retried(ost, result, now);
            }
            state.rounds.spent((now - began).as_secs_f64());
        });
    }

    fn probe(&self, osts: &[Ost], options: ProbeOptions) -> Vec<Probed> {
        probe_holding(&self.provider, osts, options, |ost| {
            let ost = ost.index;
            self.tell(|state| state.book.probe_began(ost, Instant::now()));
            UnderWay {
                fleet: self.fleet.clone(),
                ost,
            }
        })
    }
}

/// Lives as long as the thread that probes one OST.
struct UnderWay {
    fleet: Weak<Fleet>,
    ost: u32,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(fleet) = self.fleet.upgrade() {
            fleet.change(|state| state.book.probe_ended(self.ost, Instant::now()));
        }
    }
}

fn results(probed: Vec<Probed>) -> Vec<(u32, Result<Measured, Trouble>)> {
    let one = |p: Probed| (p.ost.index, p.result.map_err(|e| Trouble::from(&e)));
    probed.into_iter().map(one).collect()
}

impl From<&OstError> for Trouble {
    fn from(error: &OstError) -> Trouble {
        Trouble {
            errno: error.errno(),
            sentence: error.to_string(),
        }
    }
}

impl Fleet {
    /// Changes the state and wakes those who wait for it.
    pub(super) fn change<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let told = what(&mut state);
        drop(state);
        self.changed.notify_all();
        told
    }
}
