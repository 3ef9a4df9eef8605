//! The drain: moves undrained bytes from the node's log into the canonical files, in the
//! background, with its own threads.
//!
//! ```text
//! store events ─┐
//! requests ─────┼─▶ schedule ─▶ one job per file ─▶ stripes ─▶ canonical, synced ─▶ log forgets
//! pressure ─────┘    (when)       (drain.rs)       (stripe.rs)
//! ```
//!
//! What it must never do: put older bytes over newer ones, let the log forget bytes before the
//! canonical file is synced, or lose an error. `drain/mod.rs` says how each is kept.
//!
//! # Policies
//!
//! `immediate` and `on-close` say when data moves by itself. `never` means: until somebody asks,
//! or until the store is above its high watermark, which drains under every policy. A file may have
//! a policy of its own ([`File::policy`]); where nobody has opened it since the start, it is asked
//! for before the drain acts on the file.
//!
//! # Stopping
//!
//! Stripes in flight finish and are synced and recorded; nothing new starts. If that takes too
//! long (a hung PFS) they are abandoned: their bytes stay in the log as undrained, and the next
//! mount drains them again.

pub mod domain;
mod drain;
mod engine;
mod housekeeping;
mod neighbours;
pub mod ost;
mod progress;
mod publishing;
mod retry;
mod schedule;
mod settings;
mod stripe;
mod throttle;
mod together;
mod trouble;

pub use housekeeping::Opener;
pub use progress::{FileError, Progress};
pub use settings::{Policy, Settings, Subfiles};

use engine::Shared;
use housekeeping::Targets;
use layout_index::{Canonical, DiskFile, File, FileId, FilePolicy, Peers, StickyError, Store};
use ost::Fleet;
use parking_lot::{Condvar, Mutex, RwLock};
use progress::{Meter, Tally};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use throttle::Throttle;
use together::Together;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

/// Who waits for a drain waits this many times the patience with a file system that does not answer.
const DEAD: u32 = 12;

/// How long a stopped runtime's threads may take to end.
const GOODBYE: Duration = Duration::from_secs(5);

/// Where the canonical files come from. Called on the drain's threads; may wait on the PFS.
pub trait Canonicals: Send + Sync {
    /// The canonical file, open for reading and writing as the file's owner. `None` when it is
    /// gone for certain: its undrained data is dropped then.
    fn open(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>>;
    /// The canonical file as it is now; ENOENT when it is gone for certain.
    fn look(&self, file: &File) -> io::Result<Canonical> {
        match self.open(file)? {
            Some(canonical) => Ok(Canonical {
                size: canonical.size()?,
                uid: file.hint().uid,
            }),
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }
    /// The file is clean now: what was kept open for it may be closed.
    fn finished(&self, id: FileId);
    /// Whether files can have policies of their own. Never waits.
    fn has_policies(&self) -> bool {
        false
    }
    /// Where the file's policy is not that of the mount, as it would be if it were opened now.
    fn policy(&self, _file: &File) -> io::Result<FilePolicy> {
        Ok(FilePolicy::default())
    }
}

/// OSTs that subfiles may go to.
pub struct Osts {
    pub fleet: Arc<Fleet>,
    /// The other nodes, where there can be some.
    pub peers: Option<Arc<Peers>>,
}

/// What to drain.
#[derive(Clone, Debug)]
pub enum Selection {
    /// Every file that has undrained data, also those that get some while the handle is polled.
    All,
    /// What is undrained when the handle is made, and nothing that is written later: this ends, however busy
    /// the files are.
    Now,
    Files(Vec<FileId>),
}

/// How a drain that somebody waited for ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Drained,
    /// Time ran out, the waiter gave up, or the flusher was stopped.
    StillDirty,
    /// What is left keeps failing; it is tried again, but waiting is pointless for now.
    Failed,
}

/// Runs until it is shut down; dropping it stops it without draining.
pub struct Flusher {
    shared: Arc<Shared>,
    runtime: Mutex<Option<Runtime>>,
    tally: Mutex<Tally>,
}

/// Stripes in flight get this long when the flusher stops.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

impl Flusher {
    pub fn start(
        store: Arc<Store>,
        canonicals: Arc<dyn Canonicals>,
        settings: Settings,
        targets: Option<Osts>,
    ) -> io::Result<Flusher> {
        let now = Instant::now();
        let concurrency = settings.concurrency.max(1);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            // Permits bound what works; a thread that hangs with its OST must not be in the way.
            .max_blocking_threads(1024)
            .thread_name("forebay-drain")
            .enable_time()
            .build()?;
        let (fleet, peers) = targets.map_or((None, None), |osts| (Some(osts.fleet), osts.peers));
        let targets = fleet.map(|fleet| {
            let targets = Arc::new(Targets::new(fleet));
            store.set_subfiles(targets.opener.clone());
            targets
        });
        let shared = Arc::new(Shared {
            targets,
            together: peers.map(Together::new),
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
        runtime.spawn(engine::run(shared.clone(), events));
        Ok(Flusher {
            shared,
            runtime: Mutex::new(Some(runtime)),
            tally: Mutex::default(),
        })
    }

    pub fn settings(&self) -> Settings {
        self.shared.settings.read().clone()
    }

    pub fn set_policy(&self, policy: Policy) {
        self.shared.settings.write().policy = policy;
        self.shared.wake_all();
    }

    pub fn set_rate_limit(&self, bytes_per_second: Option<u64>) {
        self.shared.settings.write().rate_limit = bytes_per_second;
        self.shared
            .throttle
            .set_rate(bytes_per_second, Instant::now());
    }

    /// Asks for a drain now, whatever the policy. The request stands until the files are clean,
    /// also when the handle is dropped.
    pub fn drain(&self, selection: Selection) -> DrainHandle {
        let ids = match &selection {
            Selection::All | Selection::Now => {
                self.shared.dirty_files().iter().map(|f| f.id()).collect()
            }
            Selection::Files(ids) => ids.clone(),
        };
        self.shared.request(ids.clone());
        let handle = DrainHandle {
            shared: self.shared.clone(),
            selection,
            began: Instant::now(),
            ids: ids.into_iter().collect(),
            tally: Mutex::default(),
        };
        handle.progress();
        handle
    }

    /// The whole store.
    pub fn progress(&self) -> Progress {
        let mut tally = self.tally.lock();
        let progress = look(&self.shared, &self.shared.dirty_files(), &mut tally);
        if progress.files == 0 {
            *tally = Tally::default();
        }
        progress
    }

    /// What keeps this file from being drained: the error that sticks to it, or what hangs.
    pub fn trouble_of(&self, file: &File) -> Option<StickyError> {
        trouble_of(&self.shared, file)
    }

    /// Drains everything first if told so, then stops. The verdict is about that drain.
    pub fn shutdown(&self, drain: bool) -> Verdict {
        let verdict = if drain {
            self.drain(Selection::All).wait(None)
        } else if self.shared.dirty_files().is_empty() {
            Verdict::Drained
        } else {
            Verdict::StillDirty
        };
        self.stop();
        verdict
    }

    /// The last subfiles go with the last data, unless their OST takes too long.
    fn remove_retired(&self) {
        let Some(targets) = self.shared.targets.clone() else {
            return;
        };
        let store = self.shared.store.clone();
        let (done, ended) = std::sync::mpsc::channel();
        let removing = std::thread::Builder::new()
            .name("forebay-subfiles".into())
            .spawn(move || {
                housekeeping::collect_retired(&store, &targets);
                drop(store);
                housekeeping::clear_all(&targets);
                if done.send(()).is_err() {
                    tracing::debug!("subfiles were removed late");
                }
            });
        match removing {
            Ok(_) if ended.recv_timeout(GOODBYE).is_ok() => {}
            Ok(_) => self.shared.abandoned.store(true, Ordering::Release),
            Err(error) => tracing::warn!(%error, "the next start removes old subfiles"),
        }
    }

    fn stop(&self) {
        let Some(runtime) = self.runtime.lock().take() else {
            return;
        };
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.stop.send_replace(true);
        self.shared.kick.notify_one();
        let deadline = Instant::now() + STOP_PATIENCE;
        let mut schedule = self.shared.schedule.lock();
        while schedule.running() > 0 {
            let timeout = self.shared.job_ended.wait_until(&mut schedule, deadline);
            if timeout.timed_out() {
                self.shared.abandoned.store(true, Ordering::Release);
                tracing::warn!(
                    files = schedule.running(),
                    "the drain did not stop in time: what it was writing stays in the store"
                );
                break;
            }
        }
        drop(schedule);
        self.remove_retired();
        if !self.shared.stuck.is_empty() {
            self.shared.abandoned.store(true, Ordering::Release);
        }
        self.shared.permits.close();
        if let Some(targets) = &self.shared.targets {
            targets.permits.close();
        }
        // Its threads hold the store: they let go of it before this returns, unless one hangs in
        // the file system below.
        let hangs = self.shared.abandoned.load(Ordering::Acquire);
        runtime.shutdown_timeout(if hangs { Duration::ZERO } else { GOODBYE });
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A drain that was asked for.
pub struct DrainHandle {
    shared: Arc<Shared>,
    selection: Selection,
    began: Instant,
    /// Requested at that time.
    ids: HashSet<FileId>,
    tally: Mutex<Tally>,
}

impl DrainHandle {
    fn remaining(&self) -> Vec<Arc<File>> {
        match &self.selection {
            Selection::All => self.shared.dirty_files(),
            Selection::Now => {
                let mut files = self.shared.dirty_files();
                let schedule = self.shared.schedule.lock();
                files.retain(|f| {
                    self.ids.contains(&f.id()) && !schedule.is_through(f.id(), self.began)
                });
                files
            }
            Selection::Files(ids) => ids
                .iter()
                .filter_map(|id| self.shared.store.lookup(*id))
                .filter(|f| self.shared.is_business(f))
                .collect(),
        }
    }

    /// "Drained" is a promise to programs without the overlay, so the log's word that its copy
    /// no longer counts is durable before it is given: else a power failure would drain old
    /// bytes over what such a program wrote since.
    fn confirm(&self) -> Verdict {
        match self.shared.store.sync() {
            Ok(()) => Verdict::Drained,
            Err(error) => {
                tracing::error!(%error, "the canonical files are complete but the store cannot record it");
                Verdict::Failed
            }
        }
    }

    pub fn progress(&self) -> Progress {
        look(&self.shared, &self.remaining(), &mut self.tally.lock())
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
            let progress = look(&self.shared, &left, &mut self.tally.lock());
            let go_on = watch(&progress);
            if left.is_empty() {
                return self.confirm();
            }
            let now = Instant::now();
            if !go_on
                || deadline.is_some_and(|d| now >= d)
                || self.shared.stopping.load(Ordering::Acquire)
            {
                return Verdict::StillDirty;
            }
            let (given_up, unasked) = {
                let schedule = self.shared.schedule.lock();
                let ids = || left.iter().map(|f| f.id());
                let unasked = ids().filter(|id| !schedule.is_requested(*id));
                let unasked: Vec<FileId> = unasked.collect();
                (ids().all(|id| schedule.given_up(id)), unasked)
            };
            if given_up && !left.iter().any(|f| is_slow(&self.shared, f)) {
                return Verdict::Failed;
            }
            if !unasked.is_empty() {
                self.shared.request(unasked);
            }
            let next = now + Duration::from_millis(100);
            let mut schedule = self.shared.schedule.lock();
            // Timed out or rung: either way the next round looks at everything again.
            self.shared
                .job_ended
                .wait_until(&mut schedule, deadline.map_or(next, |d| d.min(next)));
        }
    }
}

fn look(shared: &Shared, files: &[Arc<File>], tally: &mut Tally) -> Progress {
    let remaining: u64 = files.iter().map(|f| shared.undrained(f)).sum();
    let (total, done) = tally.update(remaining);
    let rate = shared.meter.rate(Instant::now());
    Progress {
        total,
        done,
        files: files.len(),
        rate,
        eta: progress::eta(remaining, rate),
        active: shared.schedule.lock().active(),
        errors: files
            .iter()
            .filter_map(|f| Some((f.id(), trouble_of(shared, f)?)))
            .map(|(id, error)| FileError { id, error })
            .collect(),
    }
}

fn trouble_of(shared: &Shared, file: &File) -> Option<StickyError> {
    file.error().or_else(|| hangs(shared, file))
}

/// Its drain waits for the file system below, and may go on at any moment: a sync of much data on a slow target
/// takes longer than what makes others leave it alone.
fn is_slow(shared: &Shared, file: &File) -> bool {
    let dead = || shared.stuck.silent_for(file.id(), shared.patience() * DEAD);
    file.error().is_none() && shared.stuck.contains(file.id()) && dead().is_none()
}

/// Not an error of the job's: its bytes are safe, and the drain goes on by itself.
fn hangs(shared: &Shared, file: &File) -> Option<StickyError> {
    let since = shared.stuck.silent_for(file.id(), shared.patience())?;
    Some(StickyError {
        errno: libc::ETIMEDOUT,
        message: format!(
            "draining {}: the canonical file, or a target that has data of it, has not answered for {} s; the data is safe where it is, and the drain goes on when the file system answers",
            trouble::name_of(file),
            since.elapsed().as_secs()
        ),
    })
}
