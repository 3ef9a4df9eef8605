//! The dispatcher: takes the store's events and people's requests, and keeps as many files
//! draining as the settings allow.
//!
//! The store's listener runs on the writer's thread, so it only drops a message into an unbounded
//! channel (one per file and dirty life, one per last close). All blocking work happens on the
//! runtime's blocking threads.

use crate::Canonicals;
use crate::drain::{self, Pulse};
use crate::housekeeping::{self, Targets};
use crate::neighbours;
use crate::ost::Striping;
use crate::progress::Meter;
use crate::schedule::{Facts, Outcome, Schedule, Scope, choose};
use crate::settings::{Policy, Settings, Subfiles};
use crate::stripe::Buffers;
use crate::throttle::Throttle;
use crate::together::Together;
use layout_index::{DiskFile, Event, File, FileId, FilePolicy, Store};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

/// How long one unit gives way, and how often it looks whether it must.
const LONGEST_WAY: Duration = Duration::from_millis(250);
const WAY_TICK: Duration = Duration::from_millis(5);

/// Stripes of canonical files that are drained as they are; others are too small to be written one by one,
/// or too large to be read into memory.
const UNITS: std::ops::RangeInclusive<u64> = 64 << 10..=16 << 20;

/// How often the store's fill level is looked at while it is above the high watermark.
const PRESSURE_TICK: Duration = Duration::from_millis(100);

/// And otherwise: another process may fill the disk under the store, which is no event.
const IDLE_TICK: Duration = Duration::from_secs(5);

/// How often OSTs are looked at, and subfiles removed.
const HOUSE_TICK: Duration = Duration::from_millis(500);

pub(crate) struct Shared {
    pub store: Arc<Store>,
    pub canonicals: Arc<dyn Canonicals>,
    pub settings: RwLock<Settings>,
    pub throttle: Throttle,
    pub permits: Arc<Semaphore>,
    pub buffers: Buffers,
    pub meter: Meter,
    pub schedule: Mutex<Schedule>,
    /// Rings, with the schedule's lock, when a job has ended.
    pub job_ended: Condvar,
    /// Rings when the schedule was changed from outside.
    pub kick: Notify,
    pub stop: watch::Sender<bool>,
    /// No new stripes.
    pub stopping: AtomicBool,
    /// Stopping took too long: whoever still runs must not touch the store any more.
    pub abandoned: AtomicBool,
    /// Where subfiles go, if there are OSTs to choose from.
    pub targets: Option<Arc<Targets>>,
    /// Where other nodes are, if there can be any.
    pub together: Option<Together>,
    pub stuck: Stuck,
    /// Files that somebody waits for: the rate limit is not for them.
    pub hurried: Mutex<HashMap<FileId, usize>>,
}

/// Files whose phase into the canonical file was left to itself because it hung. It is the file's
/// only one until it ends, also when it has come to life again.
#[derive(Debug, Default)]
pub(crate) struct Stuck(Mutex<HashMap<FileId, Arc<Pulse>>>);

impl Stuck {
    pub fn add(&self, id: FileId, pulse: Arc<Pulse>) {
        self.0.lock().insert(id, pulse);
    }

    /// That phase has ended. One that it began may still hang.
    pub fn remove(&self, id: FileId, pulse: &Arc<Pulse>) {
        let mut all = self.0.lock();
        if all.get(&id).is_some_and(|stuck| Arc::ptr_eq(stuck, pulse)) {
            all.remove(&id);
        }
    }

    pub fn contains(&self, id: FileId) -> bool {
        self.has_other(id, None)
    }

    /// There is one that is not `own`.
    pub fn has_other(&self, id: FileId, own: Option<&Arc<Pulse>>) -> bool {
        let all = self.0.lock();
        let is_own = |stuck: &Arc<Pulse>| own.is_some_and(|own| Arc::ptr_eq(stuck, own));
        all.get(&id).is_some_and(|stuck| !is_own(stuck))
    }

    /// Since when it has not answered; `None` if there is no such phase, or it goes on.
    pub fn silent_for(&self, id: FileId, patience: Duration) -> Option<Instant> {
        self.0.lock().get(&id)?.silent_for(patience)
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl Shared {
    /// Sleeps, but not through the end.
    pub async fn sleep(&self, time: Duration) {
        let mut stop = self.stop.subscribe();
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    /// The files that the drain has to do with.
    pub fn dirty_files(&self) -> Vec<Arc<File>> {
        let mut files = self.store.dirty_files();
        files.extend(self.together.iter().flat_map(|t| t.files()));
        files.sort_by_key(|f| f.id());
        files.dedup_by_key(|f| f.id());
        files.retain(|f| self.is_business(f));
        files
    }

    /// The drain has something to do with this file.
    pub fn is_business(&self, file: &File) -> bool {
        match &self.together {
            Some(together) => together.is_busy(file),
            None => !file.is_unlinked() && !file.is_clean(),
        }
    }

    /// Bytes of the file that this node has and the canonical file does not, wherever they are.
    pub fn undrained(&self, file: &File) -> u64 {
        let together = self.together.as_ref();
        let published = together.map_or(0, |t| t.peers.published_bytes(file));
        published + file.stat().map_or(0, |s| s.undrained)
    }

    /// Whether what is drained of this file stays here as a copy.
    pub fn keeps(&self, file: &File) -> bool {
        file.policy().keep.unwrap_or(self.settings.read().keep)
    }

    /// How a canonical file is spread over storage targets: as the file system says, or else in stripes
    /// over all of them. May wait.
    pub fn striping(&self, canonical: &dyn DiskFile) -> Striping {
        let unit = self.settings.read().stripe;
        let Some(targets) = &self.targets else {
            return Striping { unit, count: 1 };
        };
        let provider = targets.fleet.provider();
        let said = canonical.fd().map_or(Ok(None), |fd| provider.striping(fd));
        match said {
            Ok(Some(said)) if UNITS.contains(&said.unit) => return said,
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

    /// Its drain waits, see [`Schedule::published`].
    pub fn is_restless(&self, id: FileId) -> bool {
        let linger = self.settings.read().linger;
        let schedule = self.schedule.lock();
        schedule
            .restless_until(id, linger, Instant::now())
            .is_some()
    }

    /// Somebody waited for what was written to be published, and it is.
    pub fn published(&self, id: FileId) {
        let linger = self.settings.read().linger;
        self.schedule.lock().published(id, linger, Instant::now());
        self.kick.notify_one();
    }

    /// Waits for `bytes` of a file to be within the rate limit, unless somebody waits for the file.
    pub async fn pace(&self, id: FileId, bytes: u64) {
        let is_hurried = || self.hurried.lock().contains_key(&id);
        if is_hurried() {
            return;
        }
        let mut wait = self.throttle.take(bytes, Instant::now());
        while !wait.is_zero() && !is_hurried() && !self.stopping.load(Ordering::Acquire) {
            let step = wait.min(PRESSURE_TICK);
            self.sleep(step).await;
            wait -= step;
        }
    }

    /// Somebody waits for this file until what is returned goes.
    pub fn hurry(self: &Arc<Self>, id: FileId) -> Hurry {
        *self.hurried.lock().entry(id).or_default() += 1;
        Hurry(self.clone(), id)
    }

    /// What nobody waits for lets those pass whom somebody waits for: publications, which go to the
    /// same targets. For a moment only, so that whatever such a one may need of the drain comes, too.
    pub async fn give_way(&self, id: FileId) {
        let until = Instant::now() + LONGEST_WAY;
        let is_urgent = || !self.hurried.lock().is_empty() && !self.pressed();
        while is_urgent()
            && Instant::now() < until
            && !self.schedule.lock().is_requested(id)
            && !self.stopping.load(Ordering::Acquire)
        {
            self.sleep(WAY_TICK).await;
        }
    }

    /// How long a file system may take for one call before it counts as hanging.
    pub fn patience(&self) -> Duration {
        self.settings.read().patience
    }

    /// When this file's data moves by itself.
    pub fn policy_of(&self, file: &File) -> Policy {
        let own = file.policy().drain;
        own.unwrap_or_else(|| self.settings.read().policy)
    }

    pub fn subfiles_of(&self, file: &File) -> Subfiles {
        let own = file.policy().subfiles;
        own.unwrap_or_else(|| self.settings.read().subfiles)
    }

    /// The store needs room, or its disk does: what is drained needs no more records there.
    fn pressed(&self) -> bool {
        let space = self.store.space();
        space.used > space.high_watermark || self.store.is_starved()
    }

    fn note(&self, event: Event) {
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

/// See [`Shared::hurry`].
pub(crate) struct Hurry(Arc<Shared>, FileId);

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

pub(crate) async fn run(shared: Arc<Shared>, mut events: UnboundedReceiver<Event>) {
    let mut stop = shared.stop.subscribe();
    let mut jobs = JoinSet::new();
    let mut listening = true;
    shared.wake_all();
    if let Some(targets) = &shared.targets {
        tokio::spawn(keep_house(shared.clone(), targets.clone()));
    }
    if shared.together.is_some() {
        tokio::spawn(neighbours::hear(shared.clone()));
    }
    while !shared.stopping.load(Ordering::Acquire) {
        let pressure = shared.pressed();
        if pressure {
            // Without ringing for itself: it would never get to sleep, and keep what else runs on
            // this thread waiting for as long as the pressure lasts.
            shared.wake_files();
        }
        let due = launch(&shared, &mut jobs, pressure);
        let tick = if pressure { PRESSURE_TICK } else { IDLE_TICK };
        let until = due.map_or(tick, |due| {
            due.saturating_duration_since(Instant::now()).min(tick)
        });
        tokio::select! {
            event = events.recv(), if listening => match event {
                Some(event) => {
                    shared.note(event);
                    while let Ok(event) = events.try_recv() {
                        shared.note(event);
                    }
                }
                None => listening = false,
            },
            Some(ended) = jobs.join_next(), if !jobs.is_empty() => end(&shared, ended),
            () = shared.kick.notified() => {}
            _ = stop.wait_for(|stop| *stop) => {}
            () = tokio::time::sleep(until) => {}
        }
    }
    while let Some(ended) = jobs.join_next().await {
        end(&shared, ended);
    }
}

/// Looks after the OSTs beside the drain. What may hang has a thread of its own.
async fn keep_house(shared: Arc<Shared>, targets: Arc<Targets>) {
    match targets.fleet.provider().osts() {
        Ok(osts) => {
            for ost in osts {
                let (store, targets) = (shared.store.clone(), targets.clone());
                tokio::task::spawn_blocking(move || {
                    housekeeping::remove_orphans(store, &targets, &ost);
                });
            }
        }
        Err(error) => tracing::warn!("{error}; what an earlier daemon left there stays"),
    }
    while !shared.stopping.load(Ordering::Acquire) {
        shared.sleep(HOUSE_TICK).await;
        targets.fleet.tick(Instant::now());
        let (store, there) = (shared.store.clone(), targets.clone());
        let collected =
            tokio::task::spawn_blocking(move || housekeeping::collect_retired(&store, &there));
        match collected.await {
            // The runtime goes away: the next start finds them.
            Err(error) if error.is_cancelled() => return,
            Err(error) => tracing::error!(%error, "looking for old subfiles broke off"),
            Ok(()) => {}
        }
        for ost in housekeeping::osts_to_clear(&targets) {
            let targets = targets.clone();
            tokio::task::spawn_blocking(move || housekeeping::remove_retired(&targets, &ost));
        }
    }
}

type Ended = (FileId, Outcome);

fn end(shared: &Shared, ended: Result<Ended, tokio::task::JoinError>) {
    match ended {
        Ok((id, outcome)) => {
            let settings = shared.settings.read().clone();
            let mut schedule = shared.schedule.lock();
            schedule.finish(id, outcome, &settings, Instant::now());
            shared.job_ended.notify_all();
        }
        Err(error) => tracing::error!(%error, "a drain job was lost"),
    }
}

/// Starts jobs for files that are due; says when the next one is. `None` when all job slots are
/// taken or nothing waits: an event will come.
fn launch(shared: &Arc<Shared>, jobs: &mut JoinSet<Ended>, pressure: bool) -> Option<Instant> {
    let (linger, slots) = {
        let settings = shared.settings.read();
        (settings.linger, settings.concurrency.max(1))
    };
    let now = Instant::now();
    let mut schedule = shared.schedule.lock();
    let mut running = schedule.running();
    while running < slots {
        let Some(id) = schedule.pop(now) else {
            return schedule.next_due();
        };
        let file = shared.store.lookup(id);
        let Some(file) = file.filter(|f| shared.is_business(f)) else {
            schedule.forget(id);
            shared.job_ended.notify_all();
            continue;
        };
        let facts = Facts {
            writers: file.writers(),
            pressure: pressure && !shared.store.is_spared(&file),
            ..schedule.facts(id, linger, now)
        };
        let known = file.has_policy() || !shared.canonicals.has_policies();
        if !known && !facts.requested && !facts.pressure {
            schedule.start(id, Scope::FullStripes, now);
            running += 1;
            jobs.spawn(learn(shared.clone(), file));
            continue;
        }
        let Some(scope) = choose(shared.policy_of(&file), facts) else {
            if let Some(until) = schedule.restless_until(id, linger, now) {
                schedule.wake(id, until, now);
            }
            continue;
        };
        schedule.start(id, scope, now);
        running += 1;
        let shared = shared.clone();
        jobs.spawn(async move {
            // A task of its own, so that a panic is this file's failure and no one else's.
            match tokio::spawn(drain::file(shared, file, scope)).await {
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

/// Nobody has opened the file since the start, so its policy is asked for; the job after this one
/// acts on it. A file system that does not answer leaves the file to the mount's settings.
async fn learn(shared: Arc<Shared>, file: Arc<File>) -> Ended {
    let (there, this) = (shared.clone(), file.clone());
    let asked = tokio::task::spawn_blocking(move || there.canonicals.policy(&this));
    let policy = match tokio::time::timeout(shared.patience(), asked).await {
        Ok(Ok(Ok(policy))) => policy,
        Ok(Ok(Err(error))) => {
            tracing::info!(file = %file.id(), %error, "its policy cannot be read: the mount's settings hold");
            FilePolicy::default()
        }
        // The runtime goes away.
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
