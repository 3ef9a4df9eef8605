//! The threads of a [`Targets`]: one for each round of listing and probing, one for the tries of dropped
//! OSTs that became due together, and below these one for each OST (`probe`).
//!
//! All of them may hang for as long as a target hangs. So they keep the provider alive but not the
//! [`Targets`], hold no lock while they do I/O, and are never waited for.

use super::target::Failure;
use super::{State, Targets};
use crate::ost::probe::{BLOCK, probe_holding};
use crate::ost::{Measured, Ost, OstError, OstSettings, ProbeOptions, Probed, Provider};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Bytes written to try a dropped OST: enough to see how fast it is.
const TRY: u64 = 4 * BLOCK as u64;

/// Starts a round that is due by [`super::rounds::Rounds::due`].
pub(super) fn launch_round(targets: &Arc<Targets>) {
    launch_worker(targets, Worker::new(targets));
}

/// The same, and also measures if probing is switched off.
pub(super) fn launch_measuring_round(targets: &Arc<Targets>) {
    let mut worker = Worker::new(targets);
    worker.settings.probing = true;
    launch_worker(targets, worker);
}

fn launch_worker(targets: &Arc<Targets>, worker: Worker) {
    let started = spawn("forebay-osts", move || worker.round());
    if let Err(e) = started {
        let sentence = format!("the OSTs cannot be looked at: no thread for it: {e}");
        targets.change(|state| state.rounds.failed(sentence, Instant::now()));
    }
}

/// Tries the OSTs that [`super::stats::Stats::due`] has returned.
pub(super) fn launch_tries(targets: &Arc<Targets>, osts: Vec<Ost>) {
    let worker = Worker::new(targets);
    let tried = osts.clone();
    let started = spawn("forebay-ost-try", move || worker.tries(&tried));
    if let Err(e) = started {
        targets.change(|state| {
            for ost in osts {
                let kind = io::Error::from(e.kind());
                let error = OstError::new(&ost, "starting a probe of", kind);
                let now = Instant::now();
                state.stats.retried(ost.index, Err((&error).into()), now);
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
    targets: Weak<Targets>,
    provider: Arc<dyn Provider>,
    settings: OstSettings,
}

impl Worker {
    fn new(targets: &Arc<Targets>) -> Worker {
        Worker {
            targets: Arc::downgrade(targets),
            provider: targets.provider.clone(),
            settings: targets.settings.clone(),
        }
    }

    /// Changes the state of the targets. Does nothing if the [`Targets`] is gone.
    fn tell<T>(&self, what: impl FnOnce(&mut State) -> T) -> Option<T> {
        Some(self.targets.upgrade()?.change(what))
    }

    fn round(self) {
        let listed = self.provider.osts();
        let probing = self.settings.probing;
        let to_probe = self.tell(|state| {
            let now = Instant::now();
            match listed {
                Ok(osts) => {
                    state.stats.set_osts(osts, now);
                    state.listed = true;
                    if probing {
                        return Some(state.stats.to_probe());
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
            state.stats.probed(&probed, now);
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
                state.stats.retried(ost, result, now);
            }
            state.rounds.spent((now - began).as_secs_f64());
        });
    }

    fn probe(&self, osts: &[Ost], options: ProbeOptions) -> Vec<Probed> {
        probe_holding(&self.provider, osts, options, |ost| {
            let ost = ost.index;
            self.tell(|state| state.stats.probe_began(ost, Instant::now()));
            UnderWay {
                targets: self.targets.clone(),
                ost,
            }
        })
    }
}

/// Lives as long as the thread that probes one OST.
struct UnderWay {
    targets: Weak<Targets>,
    ost: u32,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(targets) = self.targets.upgrade() {
            targets.change(|state| state.stats.probe_ended(self.ost, Instant::now()));
        }
    }
}

fn results(probed: Vec<Probed>) -> Vec<(u32, Result<Measured, Failure>)> {
    let one = |p: Probed| (p.ost.index, p.result.map_err(|e| Failure::from(&e)));
    probed.into_iter().map(one).collect()
}

impl From<&OstError> for Failure {
    fn from(error: &OstError) -> Failure {
        Failure {
            errno: error.errno(),
            sentence: error.to_string(),
        }
    }
}

impl Targets {
    /// Changes the state and wakes the threads that wait for that.
    pub(super) fn change<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let told = what(&mut state);
        drop(state);
        self.changed.notify_all();
        told
    }
}
