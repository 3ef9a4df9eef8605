//! A round: all that nodes have published of a file until now goes into the canonical file.
//!
//! # Order
//!
//! View, cut, sync, plan; then the domains, by every node that has a part in the file, each with its
//! own sync before its mark; then size and time, sync, base. `docs/decisions/0008-many-nodes.md`
//! says what a kill between any two leaves.
//!
//! # Who writes what
//!
//! Only the holder of the term cuts, sets the size and makes plan and base. Only who took a domain
//! writes its units. Both look at their lease right before each call that changes the canonical
//! file; what they write in the same round is the same, whoever does it.

use super::gated::Gated;
use super::mirror::Mirror;
use super::shared::{Held, directory, lapsed, watched_look};
use super::{Halt, Pulse, blocking, joined, permit, watched};
use crate::domain::Domains;
use crate::engine::Shared;
use crate::stripe::{self, Work};
use crate::trouble::{self, Trouble};
use layout_index::layout::{Base, MAX_DOMAINS, Plan as RoundPlan, View};
use layout_index::{ByteRange, DiskFile, File, Piece, Plan, Timestamp, Version};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;

/// Units looked up at once.
const WINDOW: usize = 1024;

/// How a round went for this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// The canonical file has everything that was published when the round began.
    Over,
    /// It has what an earlier plan covers; there may be more.
    Earlier,
    /// Other nodes are at it.
    Others,
}

pub(super) async fn go(
    shared: &Arc<Shared>,
    file: &Arc<File>,
    name: &Arc<str>,
    held: Option<Arc<Held>>,
    pulse: &Arc<Pulse>,
) -> Result<Round, Halt> {
    watched_look(shared, file, name, pulse).await?;
    let view = file.published_view();
    if view.is_empty() {
        return Ok(Round::Over);
    }
    if held.is_none() {
        // A plan that a holder left who was replaced is its successor's business.
        let current = current_term(shared, file, name).await?;
        if view.plan().is_none_or(|plan| Some(plan.term) != current) {
            return Ok(Round::Others);
        }
    }
    let opened = {
        let (shared, file) = (shared.clone(), file.clone());
        watched(pulse, move || shared.canonicals.open(&file)).await?
    };
    let canonical = match opened {
        Ok(Some(canonical)) => canonical,
        // The next look finds it gone, too.
        Ok(None) => return Ok(Round::Others),
        Err(e) => return Err(Halt::Trouble(trouble::canonical(name, "opening", &e))),
    };
    // Only the holder of the term knows of a moment at which nobody writes the file.
    let mirror = match &held {
        Some(_) => {
            let (shared, file, canonical) = (shared.clone(), file.clone(), canonical.clone());
            watched(pulse, move || Mirror::of(&shared, &file, canonical)).await?
        }
        None => None,
    };
    let canonical = match &mirror {
        Some(mirror) => mirror.clone(),
        None => canonical,
    };
    let job = Arc::new(Job {
        shared: shared.clone(),
        file: file.clone(),
        name: name.clone(),
        canonical,
        held,
        kept: mirror.map(Keeping::new),
        pulse: pulse.clone(),
    });
    let is_new = view.plan().is_none();
    let plan = match view.plan() {
        Some(plan) => plan.clone(),
        None => {
            let this = job.clone();
            watched(pulse, move || this.plan())
                .await?
                .map_err(Halt::Trouble)?;
            watched_look(shared, file, name, pulse).await?;
            match file.published_view().plan() {
                Some(plan) => plan.clone(),
                None => return Ok(Round::Others),
            }
        }
    };
    let covered = Arc::new(file.published_view().covered_by(&plan));
    let plan = Arc::new(plan);
    if let Some(keeping) = &job.kept {
        keeping.mirror.begin_round(&covered, plan.unit);
    }
    job.clone().domains(plan.clone(), covered).await?;
    if job.held.is_none() {
        return Ok(Round::Others);
    }
    let this = job.clone();
    let over = watched(pulse, move || this.finish(&plan))
        .await?
        .map_err(Halt::Trouble)?;
    watched_look(shared, file, name, pulse).await?;
    if let Some(keeping) = job.kept.as_ref().filter(|_| over && file.is_settled()) {
        keeping.complete();
    }
    Ok(match over {
        true if is_new => Round::Over,
        true => Round::Earlier,
        false => Round::Others,
    })
}

async fn current_term(
    shared: &Arc<Shared>,
    file: &Arc<File>,
    name: &str,
) -> Result<Option<u64>, Halt> {
    let (there, id) = (shared.clone(), file.id());
    let highest = blocking(move || match &there.together {
        Some(together) => together.peers.commons().highest_term(id),
        None => Ok(None),
    })
    .await?;
    let highest = highest.map_err(|e| directory(name, &e))?;
    Ok(highest.map(|(term, _)| term))
}

fn unit_done(done: Result<Result<(), Trouble>, tokio::task::JoinError>) -> Result<(), Halt> {
    joined(done)?.map_err(Halt::Trouble)
}

/// What is published of one unit of the file.
struct Unit {
    range: ByteRange,
    pieces: Vec<Piece>,
    work: Work,
}

struct Job {
    shared: Arc<Shared>,
    file: Arc<File>,
    name: Arc<str>,
    canonical: Arc<dyn DiskFile>,
    held: Option<Arc<Held>>,
    kept: Option<Keeping>,
    pulse: Arc<Pulse>,
}

/// The copy that is written beside the canonical file. Unless the round comes to its end, it counts
/// for nothing.
struct Keeping {
    mirror: Arc<Mirror>,
    /// The canonical file at the end of the round.
    version: Mutex<Option<Version>>,
    complete: AtomicBool,
}

impl Keeping {
    fn new(mirror: Arc<Mirror>) -> Keeping {
        Keeping {
            mirror,
            version: Mutex::default(),
            complete: AtomicBool::new(false),
        }
    }

    fn complete(&self) {
        self.complete.store(true, Ordering::Release);
        self.mirror.complete(*self.version.lock());
        let mirror = self.mirror.clone();
        drop(tokio::task::spawn_blocking(move || mirror.save()));
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if !self.complete.load(Ordering::Acquire) {
            self.mirror.abandon();
        }
    }
}

impl Job {
    fn commons(&self) -> Option<&layout_index::commons::Commons> {
        self.shared.together.as_ref().map(|t| t.peers.commons())
    }

    fn need_term(&self) -> Result<u64, Trouble> {
        match self.held.as_ref().filter(|held| held.holds()) {
            Some(held) => Ok(held.term),
            None => Err(lapsed(&self.name)),
        }
    }

    fn directory(&self, e: &io::Error) -> Trouble {
        match directory(&self.name, e) {
            Halt::Trouble(trouble) => trouble,
            Halt::Stopping => lapsed(&self.name),
        }
    }

    /// Cuts the canonical file where the view says, and makes the plan.
    fn plan(&self) -> Result<(), Trouble> {
        let view = self.file.published_view();
        let canonical =
            |op: &'static str| move |e: io::Error| trouble::canonical(&self.name, op, &e);
        // Nobody on this node writes through meanwhile.
        let _all = self.file.lock_canonical(ByteRange::ALL);
        let size = self
            .canonical
            .size()
            .map_err(canonical("asking the size of"))?;
        let limit = view.limit();
        self.need_term()?;
        if size > limit {
            self.canonical
                .set_len(limit)
                .map_err(canonical("truncating"))?;
            self.canonical.sync().map_err(canonical("syncing"))?;
        }
        let striping = self.shared.striping(&*self.canonical);
        let writers = view.layouts().map(|(node, _)| node);
        let writers: std::collections::BTreeSet<_> = writers.collect();
        let writers = writers.len() as u32;
        let domains = Domains::mapped(striping.unit, striping.count, writers).count();
        let term = self.need_term()?;
        let plan = RoundPlan {
            term,
            covered: view.covered_now(),
            unit: striping.unit,
            domains: domains.min(MAX_DOMAINS),
            size: view.size(size),
            mtime: view.mtime().unwrap_or(Timestamp(0)),
            epoch: view.epoch(),
            limit,
        };
        let Some(commons) = self.commons() else {
            return Err(lapsed(&self.name));
        };
        let id = self.file.id();
        commons
            .put_plan(id, term, &plan.encode(id))
            .and_then(|()| commons.touch(id))
            .map_err(|e| self.directory(&e))
    }

    /// Takes domains until none is to be had, one after the other: the rest is for the others who
    /// have a part in the file. Within a domain units go side by side.
    async fn domains(
        self: Arc<Self>,
        plan: Arc<RoundPlan>,
        covered: Arc<View>,
    ) -> Result<(), Halt> {
        for domain in 0..plan.domains {
            if self.shared.stopping.load(Ordering::Acquire) {
                return Err(Halt::Stopping);
            }
            let (job, term) = (self.clone(), plan.term);
            let taken = blocking(move || job.take_domain(term, domain)).await?;
            let Some(attempt) = taken.map_err(Halt::Trouble)? else {
                continue;
            };
            let written = self.write_domain(&plan, &covered, domain).await;
            let job = self.clone();
            let failed = written.is_err();
            let marked = blocking(move || match failed {
                true => {
                    job.give_up_domain(term, domain, attempt);
                    Ok(())
                }
                false => job.mark_domain(term, domain),
            })
            .await?;
            written?;
            marked.map_err(Halt::Trouble)?;
        }
        Ok(())
    }

    fn take_domain(&self, term: u64, domain: u32) -> Result<Option<u32>, Trouble> {
        match self.commons() {
            Some(commons) => commons
                .take_domain(self.file.id(), term, domain)
                .map_err(|e| self.directory(&e)),
            None => Ok(None),
        }
    }

    /// All of it is in the canonical file, and synced.
    fn mark_domain(&self, term: u64, domain: u32) -> Result<(), Trouble> {
        let id = self.file.id();
        // A mark that comes late would let the next round begin beside the next try.
        match self.commons().filter(|c| c.does(id, term, domain)) {
            Some(commons) => commons
                .domain_done(id, term, domain)
                .map_err(|e| self.directory(&e)),
            None => Err(lapsed(&self.name)),
        }
    }

    fn give_up_domain(&self, term: u64, domain: u32, attempt: u32) {
        let id = self.file.id();
        if let Some(commons) = self.commons()
            && let Err(error) = commons.give_up_domain(id, term, domain, attempt)
        {
            tracing::warn!(file = %id, %error, "a domain is free again when this node's lease is over");
        }
    }

    /// Nothing is under way any more when this ends, however it ends.
    async fn write_domain(
        self: &Arc<Self>,
        plan: &Arc<RoundPlan>,
        covered: &Arc<View>,
        domain: u32,
    ) -> Result<(), Halt> {
        let mut running = JoinSet::new();
        let sent = self.send_units(plan, covered, domain, &mut running).await;
        let mut first = sent.err();
        while let Some(done) = running.join_next().await {
            if let Err(halt) = unit_done(done) {
                first.get_or_insert(halt);
            }
        }
        if let Some(halt) = first {
            return Err(halt);
        }
        let job = self.clone();
        watched(&self.pulse, move || {
            let synced = job.canonical.sync();
            synced.map_err(|e| trouble::canonical(&job.name, "syncing", &e))
        })
        .await?
        .map_err(Halt::Trouble)
    }

    async fn send_units(
        self: &Arc<Self>,
        plan: &Arc<RoundPlan>,
        covered: &Arc<View>,
        domain: u32,
        running: &mut JoinSet<Result<(), Trouble>>,
    ) -> Result<(), Halt> {
        let domains = Domains::of(plan.unit, plan.domains);
        let mut from = 0;
        loop {
            let view = covered.clone();
            let unit = plan.unit;
            let units = blocking(move || view.ranges(unit, from, WINDOW)).await?;
            let Some(last) = units.last() else {
                return Ok(());
            };
            from = last.end;
            let within = |unit: ByteRange| unit.intersect(&ByteRange::new(0, plan.size));
            let units = units.into_iter().filter_map(within);
            for range in units.filter(|u| domains.domain_of(u.start) == domain) {
                let pieces = self.file.published_pieces(covered, range);
                let work = Work::exactly(&pieces);
                if work.is_empty() {
                    continue;
                }
                self.shared.give_way(self.file.id()).await;
                self.shared.pace(self.file.id(), work.bytes()).await;
                let permit = permit(&self.shared, &self.pulse, running, unit_done).await?;
                if self.shared.stopping.load(Ordering::Acquire) {
                    return Err(Halt::Stopping);
                }
                let (job, term) = (self.clone(), plan.term);
                let unit = Unit {
                    range,
                    pieces,
                    work,
                };
                let permit = self.pulse.keep(permit);
                let waiting = self.pulse.enter();
                running.spawn_blocking(move || {
                    let _until_then = (waiting, permit);
                    job.write_unit(term, domain, &unit)
                });
                while let Some(done) = running.try_join_next() {
                    unit_done(done)?;
                }
            }
        }
    }

    fn write_unit(&self, term: u64, domain: u32, unit: &Unit) -> Result<(), Trouble> {
        let Unit {
            range,
            pieces,
            work,
        } = unit;
        let verify = self.shared.settings.read().verify;
        let _guard = self.file.lock_canonical(*range);
        let gate = {
            let (shared, id) = (self.shared.clone(), self.file.id());
            Gated::new(self.canonical.clone(), move || {
                let together = shared.together.as_ref();
                together.is_some_and(|t| t.peers.commons().does(id, term, domain))
            })
        };
        self.shared
            .buffers
            .with(|buffer| {
                stripe::write(*range, work, &gate, buffer, verify, |run, buf| {
                    let plan = Plan {
                        range: run.range,
                        size: run.range.end,
                        pieces: pieces[run.pieces.clone()].to_vec(),
                    };
                    self.file.read(&plan, buf, None)
                })
            })
            .map_err(|problem| trouble::stripe(&self.name, *range, problem))?;
        self.shared.meter.record(work.bytes(), Instant::now());
        Ok(())
    }

    /// If all domains are done: size, time, sync, base. False if some are not.
    fn finish(&self, plan: &RoundPlan) -> Result<bool, Trouble> {
        let Some(commons) = self.commons() else {
            return Ok(false);
        };
        let id = self.file.id();
        let listing = commons.list(id).map_err(|e| self.directory(&e))?;
        let Some(listing) = listing else {
            return Ok(false);
        };
        let all = (0..plan.domains).all(|domain| listing.done.contains(&(plan.term, domain)));
        if !all {
            return Ok(false);
        }
        let canonical =
            |op: &'static str| move |e: io::Error| trouble::canonical(&self.name, op, &e);
        let _all = self.file.lock_canonical(ByteRange::ALL);
        let size = self
            .canonical
            .size()
            .map_err(canonical("asking the size of"))?;
        self.need_term()?;
        if size < plan.size {
            self.canonical
                .set_len(plan.size)
                .map_err(canonical("extending"))?;
        }
        match self.canonical.set_mtime(plan.mtime.0) {
            // A file that others may write but only its owner may date: its time is the drain's.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
            other => other.map_err(canonical("setting the time of"))?,
        }
        self.canonical.sync().map_err(canonical("syncing"))?;
        if let Some(keeping) = &self.kept {
            *keeping.version.lock() = keeping.mirror.version();
        }
        self.need_term()?;
        let base = Base {
            term: plan.term,
            covered: plan.covered.clone(),
            epoch: plan.epoch,
        };
        commons
            .put_base(id, plan.term, &base.encode(id))
            .and_then(|()| commons.touch(id))
            .map_err(|e| self.directory(&e))?;
        Ok(true)
    }
}
