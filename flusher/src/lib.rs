//! The drain: moves undrained bytes from the node's log into the canonical files, in the
//! background, with its own threads.
//!
//! ```text
//! store events ─┐
//! requests ─────┼─▶ schedule ─▶ one job per file ─▶ stripes ─▶ canonical, synced ─▶ log forgets
//! pressure ─────┘    (when)       (drain/)         (stripe.rs)
//! ```
//!
//! The drain must never write older bytes over newer ones, let the log forget bytes before the
//! canonical file is synced, or lose an error. `drain/writer.rs` says how each of these is
//! ensured.
//!
//! # Policies
//!
//! `immediate` and `on-close` say when data moves by itself. With `never` it moves when a user asks
//! for it, or when the store is above its high watermark, which makes the drain run under every
//! policy. A file may have a policy of its own ([`File::policy`]). If the file has not been opened
//! since the start, the drain asks for its policy before it acts on the file.
//!
//! # Stopping
//!
//! Stripes in flight finish and are synced and recorded; no new stripe is started. If that takes
//! too long (a hung PFS), the stripes are abandoned: their bytes stay in the log as undrained, and
//! the next mount drains them again.

pub mod domain;
mod drain;
mod drain_error;
mod engine;
mod housekeeping;
pub mod ost;
mod peer_watch;
mod progress;
mod publishing;
mod retry;
mod schedule;
mod settings;
mod shared_files;
mod stripe;
mod throttle;

// The tests of this crate's modules share it with those in tests/.
#[cfg(test)]
extern crate self as flusher;
#[cfg(test)]
#[path = "../tests/scripted_osts/mod.rs"]
mod scripted_osts;

pub use housekeeping::Opener;
pub use progress::{FileError, Progress};
pub use settings::{Policy, Settings, Subfiles};

use engine::EngineState;
use housekeeping::SubfileKeeper;
use layout_index::{CanonicalFiles, File, FileId, FileSettings, Peers, StickyError, Store};
use ost::{OstSettings, Targets};
use parking_lot::{Condvar, Mutex, RwLock};
use progress::{Meter, Tally};
use shared_files::SharedFiles;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use throttle::Throttle;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

/// A caller that waits for a drain waits for a file system that does not answer for this many times
/// [`Settings::patience`].
const DEAD_AFTER_PATIENCES: u32 = 12;

/// How long a stopped runtime's threads may take to end.
const THREADS_END_TIMEOUT: Duration = Duration::from_secs(5);

/// The OSTs that subfiles may go to.
pub struct Osts {
    pub targets: Arc<Targets>,
    /// Access to the other nodes, if there can be any.
    pub peers: Option<Arc<Peers>>,
}

impl Osts {
    /// What a drain needs to know of storage targets and other nodes; `None` if there are neither.
    /// If nodes share the backing and there are no targets, their subfiles are in the backing
    /// itself.
    pub fn new(
        targets: Option<&Arc<Targets>>,
        peers: Option<Arc<Peers>>,
        backing: &Path,
        settings: &OstSettings,
    ) -> Option<Osts> {
        let targets = match (targets, &peers) {
            (Some(targets), _) => targets.clone(),
            (None, Some(_)) => Targets::backing_alone(backing, settings),
            (None, None) => return None,
        };
        Some(Osts { targets, peers })
    }
}

/// Which data to drain.
#[derive(Clone, Debug)]
pub enum Selection {
    /// Every file that has undrained data, including files that get some while the handle is
    /// polled.
    All,
    /// The data that is undrained when the handle is made, and nothing that is written later. Such
    /// a drain ends however busy the files are.
    Now,
    Files(Vec<FileId>),
}

/// How a drain ended that a caller waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Drained,
    /// The time ran out, the caller gave up, or the flusher was stopped.
    StillDirty,
    /// The rest keeps failing. It is tried again, but waiting for it is pointless for now.
    Failed,
}

/// The running drain. It runs until it is shut down; dropping it stops it without draining.
pub struct Flusher {
    engine: Arc<EngineState>,
    runtime: Mutex<Option<Runtime>>,
    tally: Mutex<Tally>,
}

/// How long stripes in flight may take to finish when the flusher stops.
const STRIPES_END_TIMEOUT: Duration = Duration::from_secs(10);

impl Flusher {
    /// Starts the drain of a store.
    pub fn start<C: CanonicalFiles + 'static>(
        store: Arc<Store>,
        canonicals: Arc<C>,
        settings: Settings,
        osts: Option<Osts>,
    ) -> io::Result<Arc<Flusher>> {
        Flusher::start_with(store, |_| canonicals, settings, osts).map(|(flusher, _)| flusher)
    }

    /// The same for a file system that asks the drain to publish: `make` gets the flusher that is
    /// about to be started, and returns that file system.
    pub fn start_with<C: CanonicalFiles + 'static>(
        store: Arc<Store>,
        make: impl FnOnce(&Weak<Flusher>) -> Arc<C>,
        settings: Settings,
        osts: Option<Osts>,
    ) -> io::Result<(Arc<Flusher>, Arc<C>)> {
        let now = Instant::now();
        let concurrency = settings.concurrency.max(1);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            // Semaphore permits bound how much work runs at once. This limit is high so that
            // threads that hang with their OST do not keep others from running.
            .max_blocking_threads(1024)
            .thread_name("forebay-drain")
            .enable_time()
            .build()?;
        let (targets, peers) = osts.map_or((None, None), |osts| (Some(osts.targets), osts.peers));
        let keeper = targets.map(|targets| {
            let keeper = Arc::new(SubfileKeeper::new(targets));
            store.set_subfiles(keeper.opener.clone());
            keeper
        });
        let mut made = None;
        let flusher = Arc::new_cyclic(|flusher| {
            let canonicals = made.insert(make(flusher)).clone();
            let engine = Arc::new(EngineState {
                keeper,
                shared_files: peers.map(|peers| Arc::new(SharedFiles::new(peers))),
                stuck: Default::default(),
                hurried: Default::default(),
                throttle: Throttle::new(settings.rate_limit, now),
                permits: Arc::new(Semaphore::new(concurrency)),
                buffers: Default::default(),
                meter: Meter::new(now),
                schedule: Default::default(),
                job_ended: Condvar::new(),
                kick: Notify::new(),
                stop: watch::Sender::new(false),
                stopping: AtomicBool::new(false),
                abandoned: AtomicBool::new(false),
                settings: RwLock::new(settings),
                store: store.clone(),
                canonicals,
            });
            let (sender, events) = mpsc::unbounded_channel();
            store.set_listener(Box::new(move |event| {
                if sender.send(event).is_err() {
                    tracing::trace!(?event, "the drain has stopped: the store keeps the data");
                }
            }));
            runtime.spawn(engine::run(engine.clone(), events));
            Flusher {
                engine,
                runtime: Mutex::new(Some(runtime)),
                tally: Mutex::default(),
            }
        });
        let canonicals = made.expect("the flusher was made with it");
        Ok((flusher, canonicals))
    }

    pub fn settings(&self) -> Settings {
        self.engine.settings.read().clone()
    }

    pub fn set_policy(&self, policy: Policy) {
        let store = &self.engine.store;
        store.set_file_settings(FileSettings {
            drain: policy,
            ..store.file_settings()
        });
        self.engine.wake_all();
    }

    pub fn set_rate_limit(&self, bytes_per_second: Option<u64>) {
        self.engine.settings.write().rate_limit = bytes_per_second;
        self.engine
            .throttle
            .set_rate(bytes_per_second, Instant::now());
    }

    /// Asks for a drain now, whatever the policy says. The request stands until the files are
    /// clean, even if the handle is dropped.
    pub fn drain(&self, selection: Selection) -> DrainHandle {
        let ids = match &selection {
            Selection::All | Selection::Now => {
                self.engine.dirty_files().iter().map(|f| f.id()).collect()
            }
            Selection::Files(ids) => ids.clone(),
        };
        self.engine.request(ids.clone());
        let handle = DrainHandle {
            engine: self.engine.clone(),
            selection,
            began: Instant::now(),
            ids: ids.into_iter().collect(),
            tally: Mutex::default(),
        };
        handle.progress();
        handle
    }

    /// Returns the progress of the whole store.
    pub fn progress(&self) -> Progress {
        let mut tally = self.tally.lock();
        let progress = progress_of(&self.engine, &self.engine.dirty_files(), &mut tally);
        if progress.files == 0 {
            *tally = Tally::default();
        }
        progress
    }

    /// The other nodes, if there can be any.
    pub fn peers(&self) -> Option<&Arc<Peers>> {
        self.engine.shared_files.as_ref().map(|t| &t.peers)
    }

    /// Returns what keeps this file from being drained: its sticky error, or that its drain hangs.
    pub fn drain_error_of(&self, file: &File) -> Option<StickyError> {
        drain_error_of(&self.engine, file)
    }

    /// Drains everything first if `drain` is true, then stops. The verdict says whether everything
    /// is drained.
    pub fn shutdown(&self, drain: bool) -> Verdict {
        let verdict = if drain {
            self.drain(Selection::All).wait(None)
        } else if self.engine.dirty_files().is_empty() {
            Verdict::Drained
        } else {
            Verdict::StillDirty
        };
        self.stop();
        verdict
    }

    /// Removes the last retired subfiles before the flusher stops, unless their OST takes too long.
    fn remove_retired(&self) {
        let Some(keeper) = self.engine.keeper.clone() else {
            return;
        };
        let store = self.engine.store.clone();
        let (done, ended) = std::sync::mpsc::channel();
        let removing = std::thread::Builder::new()
            .name("forebay-subfiles".into())
            .spawn(move || {
                housekeeping::collect_retired(&store, &keeper);
                drop(store);
                housekeeping::clear_all(&keeper);
                if done.send(()).is_err() {
                    tracing::debug!("subfiles were removed late");
                }
            });
        match removing {
            Ok(_) if ended.recv_timeout(THREADS_END_TIMEOUT).is_ok() => {}
            Ok(_) => self.engine.abandoned.store(true, Ordering::Release),
            Err(error) => tracing::warn!(%error, "the next start removes old subfiles"),
        }
    }

    fn stop(&self) {
        let Some(runtime) = self.runtime.lock().take() else {
            return;
        };
        self.engine.stopping.store(true, Ordering::Release);
        self.engine.stop.send_replace(true);
        self.engine.kick.notify_one();
        let deadline = Instant::now() + STRIPES_END_TIMEOUT;
        let mut schedule = self.engine.schedule.lock();
        while schedule.running() > 0 {
            let timeout = self.engine.job_ended.wait_until(&mut schedule, deadline);
            if timeout.timed_out() {
                self.engine.abandoned.store(true, Ordering::Release);
                tracing::warn!(
                    files = schedule.running(),
                    "the drain did not stop in time: what it was writing stays in the store"
                );
                break;
            }
        }
        drop(schedule);
        self.remove_retired();
        if !self.engine.stuck.is_empty() {
            self.engine.abandoned.store(true, Ordering::Release);
        }
        self.engine.permits.close();
        if let Some(keeper) = &self.engine.keeper {
            keeper.permits.close();
        }
        // The runtime's threads hold the store. They let go of it before this returns, unless one
        // of them hangs in the file system below.
        let hangs = self.engine.abandoned.load(Ordering::Acquire);
        runtime.shutdown_timeout(if hangs {
            Duration::ZERO
        } else {
            THREADS_END_TIMEOUT
        });
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A drain that a caller asked for and can wait for.
pub struct DrainHandle {
    engine: Arc<EngineState>,
    selection: Selection,
    began: Instant,
    /// The files that were requested at `began`.
    ids: HashSet<FileId>,
    tally: Mutex<Tally>,
}

impl DrainHandle {
    fn remaining(&self) -> Vec<Arc<File>> {
        match &self.selection {
            Selection::All => self.engine.dirty_files(),
            Selection::Now => {
                let mut files = self.engine.dirty_files();
                let schedule = self.engine.schedule.lock();
                files.retain(|f| {
                    self.ids.contains(&f.id()) && !schedule.is_drained_since(f.id(), self.began)
                });
                files
            }
            Selection::Files(ids) => ids
                .iter()
                .filter_map(|id| self.engine.store.lookup(*id))
                .filter(|f| self.engine.is_business(f))
                .collect(),
        }
    }

    /// "Drained" is a promise to programs without the overlay. So the records by which the log's
    /// copies no longer count must be durable before it is reported: otherwise, after a power
    /// failure, the drain would write old bytes over what such a program has written since.
    fn confirm(&self) -> Verdict {
        match self.engine.store.sync() {
            Ok(()) => Verdict::Drained,
            Err(error) => {
                tracing::error!(%error, "the canonical files are complete but the store cannot record it");
                Verdict::Failed
            }
        }
    }

    pub fn progress(&self) -> Progress {
        progress_of(&self.engine, &self.remaining(), &mut self.tally.lock())
    }

    pub fn wait(&self, deadline: Option<Instant>) -> Verdict {
        self.wait_with(deadline, |_| true)
    }

    /// Calls `watch` about ten times a second until the drain ends or `watch` returns false.
    pub fn wait_with(
        &self,
        deadline: Option<Instant>,
        mut watch: impl FnMut(&Progress) -> bool,
    ) -> Verdict {
        loop {
            let left = self.remaining();
            let progress = progress_of(&self.engine, &left, &mut self.tally.lock());
            let go_on = watch(&progress);
            if left.is_empty() {
                return self.confirm();
            }
            let now = Instant::now();
            if !go_on
                || deadline.is_some_and(|d| now >= d)
                || self.engine.stopping.load(Ordering::Acquire)
            {
                return Verdict::StillDirty;
            }
            let (given_up, unasked) = {
                let schedule = self.engine.schedule.lock();
                let ids = || left.iter().map(|f| f.id());
                let unasked = ids().filter(|id| !schedule.is_requested(*id));
                let unasked: Vec<FileId> = unasked.collect();
                (ids().all(|id| schedule.given_up(id)), unasked)
            };
            if given_up && !left.iter().any(|f| is_slow(&self.engine, f)) {
                return Verdict::Failed;
            }
            if !unasked.is_empty() {
                self.engine.request(unasked);
            }
            let next = now + Duration::from_millis(100);
            let mut schedule = self.engine.schedule.lock();
            // The wait timed out or was notified: either way the next iteration checks everything
            // again.
            self.engine
                .job_ended
                .wait_until(&mut schedule, deadline.map_or(next, |d| d.min(next)));
        }
    }
}

fn progress_of(engine: &EngineState, files: &[Arc<File>], tally: &mut Tally) -> Progress {
    let remaining: u64 = files.iter().map(|f| engine.undrained(f)).sum();
    let (total, done) = tally.update(remaining);
    let rate = engine.meter.rate(Instant::now());
    Progress {
        total,
        done,
        files: files.len(),
        rate,
        eta: progress::eta(remaining, rate),
        active: engine.schedule.lock().active(),
        errors: files
            .iter()
            .filter_map(|f| Some((f.id(), drain_error_of(engine, f)?)))
            .map(|(id, error)| FileError { id, error })
            .collect(),
    }
}

fn drain_error_of(engine: &EngineState, file: &File) -> Option<StickyError> {
    file.error().or_else(|| hangs(engine, file))
}

/// True if the file's drain waits for the file system below but may still go on at any moment: a
/// sync of much data on a slow target can take longer than the patience after which the drain is
/// set aside.
fn is_slow(engine: &EngineState, file: &File) -> bool {
    let dead = || {
        engine
            .stuck
            .silent_for(file.id(), engine.patience() * DEAD_AFTER_PATIENCES)
    };
    file.error().is_none() && engine.stuck.contains(file.id()) && dead().is_none()
}

/// Describes a drain that hangs. That is not an error of the file: its bytes are safe, and the
/// drain goes on by itself.
fn hangs(engine: &EngineState, file: &File) -> Option<StickyError> {
    let since = engine.stuck.silent_for(file.id(), engine.patience())?;
    Some(StickyError {
        errno: libc::ETIMEDOUT,
        message: format!(
            "draining {}: the canonical file, or a target that has data of it, has not answered for {} s; the data is safe where it is, and the drain goes on when the file system answers",
            drain_error::name_of(file),
            since.elapsed().as_secs()
        ),
    })
}
