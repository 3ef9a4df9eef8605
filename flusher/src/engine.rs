//! The dispatcher: takes the store's events and users' requests, and keeps as many files draining
//! as the settings allow.
//!
//! The store's listener runs on threads of writers and of the store's maintenance, so it only puts a
//! message into an unbounded channel (one per dirty period of a file, one per last close, and one per
//! turn of the maintenance while the store is under pressure). All blocking work happens on the
//! runtime's blocking threads.

use crate::drain::{self, FileJob, Stuck};
use crate::housekeeping::{self, SubfileKeeper};
use crate::ost::Striping;
use crate::peer_watch;
use crate::progress::Meter;
use crate::schedule::{Facts, Outcome, Schedule, Scope, choose};
use crate::settings::Settings;
use crate::shared_files::SharedFiles;
use crate::stripe::Buffers;
use crate::throttle::Throttle;
use layout_index::CanonicalFiles;
use layout_index::{DiskFile, Event, File, FileId, FilePolicy, Store};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

/// How long one unit yields to publications that callers wait for, and how often it checks whether
/// it still must.
const LONGEST_YIELD: Duration = Duration::from_millis(250);
const YIELD_TICK: Duration = Duration::from_millis(5);

/// Stripe sizes of canonical files that the drain uses as they are. Smaller stripes are too small
/// to be written one by one, larger ones are too large to be read into memory.
const USABLE_STRIPE_SIZES: std::ops::RangeInclusive<u64> = 64 << 10..=16 << 20;

/// How often the store's fill level is checked while it is above the high watermark.
const PRESSURE_TICK: Duration = Duration::from_millis(100);

/// How often it is checked otherwise: another process may fill the disk under the store, which
/// causes no event.
const IDLE_TICK: Duration = Duration::from_secs(5);

/// How often the OSTs are checked, and retired subfiles removed.
const HOUSEKEEPING_TICK: Duration = Duration::from_millis(500);

pub(crate) struct EngineState {
    pub store: Arc<Store>,
    pub canonicals: Arc<dyn CanonicalFiles>,
    pub settings: RwLock<Settings>,
    pub throttle: Throttle,
    pub permits: Arc<Semaphore>,
    pub buffers: Buffers,
    pub meter: Meter,
    pub schedule: Mutex<Schedule>,
    /// Notified, with the schedule's lock, when a job has ended.
    pub job_ended: Condvar,
    /// Notified when the schedule was changed from outside the dispatcher.
    pub kick: Notify,
    pub stop: watch::Sender<bool>,
    /// The flusher is stopping: no new stripes are started.
    pub stopping: AtomicBool,
    /// Stopping took too long: threads that still run must not touch the store any more.
    pub abandoned: AtomicBool,
    /// Where subfiles go, if there are OSTs to choose from.
    pub keeper: Option<Arc<SubfileKeeper>>,
    /// The files shared with other nodes, if there can be any other nodes.
    pub shared_files: Option<Arc<SharedFiles>>,
    pub stuck: Stuck,
    /// Files that callers wait for, with the number of callers: the rate limit does not apply to
    /// them.
    pub hurried: Mutex<HashMap<FileId, usize>>,
}

impl EngineState {
    /// Sleeps for `time`, or until the flusher stops.
    pub async fn sleep(&self, time: Duration) {
        let mut stop = self.stop.subscribe();
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    /// Returns the files for which the drain has something to do.
    pub fn dirty_files(&self) -> Vec<Arc<File>> {
        let mut files = self.store.dirty_files();
        files.extend(self.shared_files.iter().flat_map(|t| t.files()));
        files.sort_by_key(|f| f.id());
        files.dedup_by_key(|f| f.id());
        files.retain(|f| self.is_business(f));
        files
    }

    /// True if the drain has something to do for this file.
    pub fn is_business(&self, file: &File) -> bool {
        match &self.shared_files {
            Some(shared_files) => shared_files.is_busy(file),
            None => !file.is_unlinked() && !file.is_clean(),
        }
    }

    /// Bytes of the file that this node has and the canonical file does not, wherever they are.
    pub fn undrained(&self, file: &File) -> u64 {
        let shared_files = self.shared_files.as_ref();
        let published = shared_files.map_or(0, |t| t.peers.published_bytes(file));
        published + file.stat().map_or(0, |s| s.undrained)
    }

    /// Returns how a canonical file is striped over storage targets: as the file system says, or
    /// else in stripes over all of them. May wait.
    pub fn striping(&self, canonical: &dyn DiskFile) -> Striping {
        let unit = self.settings.read().stripe;
        let Some(keeper) = &self.keeper else {
            return Striping { unit, count: 1 };
        };
        let provider = keeper.targets.provider();
        let said = canonical.fd().map_or(Ok(None), |fd| provider.striping(fd));
        match said {
            Ok(Some(said)) if USABLE_STRIPE_SIZES.contains(&said.unit) => return said,
            Ok(_) => {}
            Err(error) => tracing::debug!("{error}; its stripes are taken to be over all targets"),
        }
        let osts = provider.osts();
        let count = osts.map_or(1, |osts| osts.len() as u32);
        Striping { unit, count }
    }

    pub fn wake_all(&self) {
        self.wake_files();
        self.kick.notify_one();
    }

    fn wake_files(&self) {
        let now = Instant::now();
        let files = self.dirty_files();
        let mut schedule = self.schedule.lock();
        for file in files {
            schedule.wake(file.id(), now, now);
        }
    }

    pub fn request(&self, ids: impl IntoIterator<Item = FileId>) {
        let now = Instant::now();
        let mut schedule = self.schedule.lock();
        for id in ids {
            schedule.request(id, now);
        }
        drop(schedule);
        self.kick.notify_one();
    }

    pub fn wake(&self, id: FileId) {
        let now = Instant::now();
        self.schedule.lock().wake(id, now, now);
        self.kick.notify_one();
    }

    /// True if the drain of the file waits because of recent publications, see
    /// [`Schedule::published`].
    pub fn is_published_often(&self, id: FileId) -> bool {
        let linger = self.settings.read().linger;
        let schedule = self.schedule.lock();
        schedule
            .published_often_until(id, linger, Instant::now())
            .is_some()
    }

    /// Tells the schedule that a publication which a caller waited for is complete.
    pub fn published(&self, id: FileId) {
        let linger = self.settings.read().linger;
        self.schedule.lock().published(id, linger, Instant::now());
        self.kick.notify_one();
    }

    /// Waits until the rate limit allows `bytes` of a file, unless a caller waits for the file.
    pub async fn pace(&self, id: FileId, bytes: u64) {
        let is_hurried = || self.hurried.lock().contains_key(&id);
        if is_hurried() {
            return;
        }
        let mut wait = self.throttle.take_tokens(bytes, Instant::now());
        while !wait.is_zero() && !is_hurried() && !self.stopping.load(Ordering::Acquire) {
            let step = wait.min(PRESSURE_TICK);
            self.sleep(step).await;
            wait -= step;
        }
    }

    /// Marks the file as one that a caller waits for, until the returned guard is dropped.
    pub fn hurry(self: &Arc<Self>, id: FileId) -> Hurry {
        *self.hurried.lock().entry(id).or_default() += 1;
        Hurry(self.clone(), id)
    }

    /// Makes background work yield to publications that callers wait for, because both go to the
    /// same targets. It yields only for a moment, so that drain work that such a publication may
    /// depend on also gets done.
    pub async fn yield_to_publications(&self, id: FileId) {
        let until = Instant::now() + LONGEST_YIELD;
        let is_urgent = || !self.hurried.lock().is_empty() && !self.pressed();
        while is_urgent()
            && Instant::now() < until
            && !self.schedule.lock().is_requested(id)
            && !self.stopping.load(Ordering::Acquire)
        {
            self.sleep(YIELD_TICK).await;
        }
    }

    /// How long one call to a file system may take before it counts as hanging.
    pub fn patience(&self) -> Duration {
        self.settings.read().patience
    }

    /// True if the store is above its high watermark, or its disk is full. Draining helps in both
    /// cases: drained data needs no more records on that disk.
    fn pressed(&self) -> bool {
        let space = self.store.space();
        space.used > space.high_watermark || self.store.is_starved()
    }

    fn note_event(&self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Dirty(id) => {
                let batch = self.settings.read().batch;
                self.schedule.lock().wake(id, now + batch, now);
            }
            Event::Closed(id) => self.schedule.lock().wake(id, now, now),
            Event::Pressure => self.wake_all(),
        }
    }
}

/// See [`EngineState::hurry`].
pub(crate) struct Hurry(Arc<EngineState>, FileId);

impl Drop for Hurry {
    fn drop(&mut self) {
        let mut hurried = self.0.hurried.lock();
        if let Some(waiting) = hurried.get_mut(&self.1) {
            *waiting -= 1;
            if *waiting == 0 {
                hurried.remove(&self.1);
            }
        }
    }
}

pub(crate) async fn run(engine: Arc<EngineState>, mut events: UnboundedReceiver<Event>) {
    let mut stop = engine.stop.subscribe();
    let mut jobs = JoinSet::new();
    let mut listening = true;
    engine.wake_all();
    if let Some(keeper) = &engine.keeper {
        tokio::spawn(run_housekeeping(engine.clone(), keeper.clone()));
    }
    if let Some(shared_files) = engine.shared_files.clone() {
        tokio::spawn(peer_watch::watch_peers(engine.clone(), shared_files));
    }
    while !engine.stopping.load(Ordering::Acquire) {
        let pressure = engine.pressed();
        if pressure {
            // This does not notify `kick`: the loop would wake itself, never sleep, and keep other
            // tasks on this thread waiting for as long as the pressure lasts.
            engine.wake_files();
        }
        let due = launch_jobs(&engine, &mut jobs, pressure);
        let tick = if pressure { PRESSURE_TICK } else { IDLE_TICK };
        let until = due.map_or(tick, |due| {
            due.saturating_duration_since(Instant::now()).min(tick)
        });
        tokio::select! {
            event = events.recv(), if listening => match event {
                Some(event) => {
                    engine.note_event(event);
                    while let Ok(event) = events.try_recv() {
                        engine.note_event(event);
                    }
                }
                None => listening = false,
            },
            Some(ended) = jobs.join_next(), if !jobs.is_empty() => note_job_end(&engine, ended),
            () = engine.kick.notified() => {}
            _ = stop.wait_for(|stop| *stop) => {}
            () = tokio::time::sleep(until) => {}
        }
    }
    while let Some(ended) = jobs.join_next().await {
        note_job_end(&engine, ended);
    }
}

/// Looks after the OSTs beside the drain. Work that may hang runs on a thread of its own.
async fn run_housekeeping(engine: Arc<EngineState>, keeper: Arc<SubfileKeeper>) {
    match keeper.targets.provider().osts() {
        Ok(osts) => {
            for ost in osts {
                let (store, keeper) = (engine.store.clone(), keeper.clone());
                tokio::task::spawn_blocking(move || {
                    housekeeping::remove_orphans(store, &keeper, &ost);
                });
            }
        }
        Err(error) => tracing::warn!("{error}; what an earlier daemon left there stays"),
    }
    while !engine.stopping.load(Ordering::Acquire) {
        engine.sleep(HOUSEKEEPING_TICK).await;
        keeper.targets.tick(Instant::now());
        let (store, there) = (engine.store.clone(), keeper.clone());
        let collected =
            tokio::task::spawn_blocking(move || housekeeping::collect_retired(&store, &there));
        match collected.await {
            // The runtime is shutting down; the next start finds these subfiles.
            Err(error) if error.is_cancelled() => return,
            Err(error) => tracing::error!(%error, "looking for old subfiles broke off"),
            Ok(()) => {}
        }
        for ost in housekeeping::osts_to_clear(&keeper) {
            let keeper = keeper.clone();
            tokio::task::spawn_blocking(move || housekeeping::remove_retired(&keeper, &ost));
        }
    }
}

type Ended = (FileId, Outcome);

fn note_job_end(engine: &EngineState, ended: Result<Ended, tokio::task::JoinError>) {
    match ended {
        Ok((id, outcome)) => {
            let settings = engine.settings.read().clone();
            let mut schedule = engine.schedule.lock();
            schedule.finish(id, outcome, &settings, Instant::now());
            engine.job_ended.notify_all();
        }
        Err(error) => tracing::error!(%error, "a drain job was lost"),
    }
}

/// Starts jobs for files that are due, and returns when the next file is due. `None` if all job
/// slots are taken or no file waits: an event will come.
fn launch_jobs(
    engine: &Arc<EngineState>,
    jobs: &mut JoinSet<Ended>,
    pressure: bool,
) -> Option<Instant> {
    let (linger, slots) = {
        let settings = engine.settings.read();
        (settings.linger, settings.concurrency.max(1))
    };
    let now = Instant::now();
    let mut schedule = engine.schedule.lock();
    let mut running = schedule.running();
    while running < slots {
        let Some(id) = schedule.pop(now) else {
            return schedule.next_due();
        };
        let file = engine.store.lookup(id);
        let Some(file) = file.filter(|f| engine.is_business(f)) else {
            schedule.forget(id);
            engine.job_ended.notify_all();
            continue;
        };
        let facts = Facts {
            writers: file.writers(),
            pressure: pressure && !engine.store.is_spared(&file),
            ..schedule.facts(id, linger, now)
        };
        let known = file.has_policy() || !engine.canonicals.has_policies();
        if !known && !facts.requested && !facts.pressure {
            schedule.start(id, Scope::FullStripes, now);
            running += 1;
            jobs.spawn(learn_policy(engine.clone(), file));
            continue;
        }
        let Some(scope) = choose(file.settings().drain, facts) else {
            if let Some(until) = schedule.published_often_until(id, linger, now) {
                schedule.wake(id, until, now);
            }
            continue;
        };
        schedule.start(id, scope, now);
        running += 1;
        let engine = engine.clone();
        jobs.spawn(async move {
            // The job runs in a task of its own, so that a panic fails only this file.
            match tokio::spawn(drain::drain_file(FileJob::new(&engine, &file), scope)).await {
                Ok(outcome) => (id, outcome),
                Err(error) => {
                    tracing::error!(file = %id, %error, "a drain job broke off");
                    (id, Outcome::Failed)
                }
            }
        });
    }
    None
}

/// Asks for the policy of a file that has not been opened since the start. The file's next job acts
/// on it. If the file system does not answer, the mount's settings apply to the file.
async fn learn_policy(engine: Arc<EngineState>, file: Arc<File>) -> Ended {
    let (there, this) = (engine.clone(), file.clone());
    let asked = tokio::task::spawn_blocking(move || there.canonicals.policy_of(&this));
    let policy = match tokio::time::timeout(engine.patience(), asked).await {
        Ok(Ok(Ok(policy))) => policy,
        Ok(Ok(Err(error))) => {
            tracing::info!(file = %file.id(), %error, "its policy cannot be read: the mount's settings hold");
            FilePolicy::default()
        }
        // The runtime is shutting down.
        Ok(Err(error)) if error.is_cancelled() => return (file.id(), Outcome::Stopped),
        Ok(Err(error)) => {
            tracing::error!(file = %file.id(), %error, "asking for its policy broke off");
            FilePolicy::default()
        }
        Err(_) => {
            tracing::info!(file = %file.id(), "its policy is not to be had in time: the mount's settings hold");
            FilePolicy::default()
        }
    };
    file.learn_policy(policy);
    (file.id(), Outcome::Dirty)
}
