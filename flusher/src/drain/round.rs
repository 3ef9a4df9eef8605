//! A round: writes everything that nodes have published of a file until now into the canonical
//! file.
//!
//! # Order
//!
//! The holder of the term reads the view, cuts the canonical file, syncs it and makes the plan.
//! Then every node that has a part in the file writes domains, and syncs each before it marks it as
//! done. Then the holder sets size and time, syncs, and makes the base.
//! `docs/decisions/0008-many-nodes.md` says what a kill between any two steps leaves.
//!
//! # Which node writes what
//!
//! Only the holder of the term cuts, sets the size, and makes plan and base. Only the node that
//! took a domain writes its units. Both check their lease right before each call that changes the
//! canonical file. All nodes that write a unit in the same round write the same bytes.

use super::blocking;
use super::canonical_file::Gate;
use super::shared_file::SharedJob;
use super::term::Held;
use super::writer::{CanonicalWriter, join_units};
use crate::domain::Domains;
use crate::drain_error::DrainError;
use crate::stripe::Work;
use layout_index::sharing::layout::{Base, MAX_DOMAINS, Plan as RoundPlan, View};
use layout_index::sharing::shared_dir::SharedDir;
use layout_index::store::local_copies::version_after_change;
use layout_index::{ByteRange, DiskFile, Timestamp, Version};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::JoinSet;

const UNITS_PER_LISTING: usize = 1024;

/// How a round went for this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// The canonical file has everything that was published when the round began.
    Over,
    /// It has what an earlier plan covers; there may be more to drain.
    Earlier,
    /// Other nodes are working on the file.
    Others,
}

pub(super) async fn run_round(
    job: &SharedJob,
    held: Option<Arc<Held>>,
) -> Result<Round, DrainError> {
    let file = &job.file;
    job.refresh_view().await?;
    let view = job.shared_files.peers.view(file);
    if view.is_empty() {
        return Ok(Round::Over);
    }
    if held.is_none() {
        // A plan from an earlier term is finished by the current holder.
        let id = file.id();
        let find = move |dir: &SharedDir| dir.terms().highest_term(id);
        let highest = job.with_shared_dir(find).await?;
        let current = highest.map(|(term, _)| term);
        if view.plan().is_none_or(|plan| Some(plan.term) != current) {
            return Ok(Round::Others);
        }
    }
    let gate = held.clone().map_or(Gate::Closed, Gate::Term);
    let Some(writer) = CanonicalWriter::open(job, gate).await? else {
        // The next refresh also finds that the file is gone.
        return Ok(Round::Others);
    };
    let round = RoundJob {
        job: job.clone(),
        writer,
        held,
    };
    let plan = match view.plan() {
        Some(plan) => plan.clone(),
        None => {
            let this = round.clone();
            job.watched(move || this.make_plan()).await??;
            job.refresh_view().await?;
            match job.shared_files.peers.view(file).plan() {
                Some(plan) => plan.clone(),
                None => return Ok(Round::Others),
            }
        }
    };
    let plan = Arc::new(plan);
    let covered = Arc::new(job.shared_files.peers.view(file).covered_by(&plan));
    let mirror = round.writer.canonical.mirror();
    if let Some(mirror) = mirror {
        mirror.begin_round(&covered, plan.unit);
    }
    round.write_domains(&plan, &covered).await?;
    if round.held.is_none() {
        return Ok(Round::Others);
    }
    let this = round.clone();
    let finished = job.watched(move || this.finish(&plan)).await??;
    job.refresh_view().await?;
    let Some(Finished { version }) = finished else {
        return Ok(Round::Others);
    };
    if let Some(mirror) = mirror.filter(|_| file.is_settled()) {
        mirror.complete(version);
        mirror.save();
    }
    Ok(match view.plan() {
        None => Round::Over,
        Some(_) => Round::Earlier,
    })
}

#[derive(Clone)]
struct RoundJob {
    job: SharedJob,
    writer: CanonicalWriter,
    held: Option<Arc<Held>>,
}

struct Finished {
    /// Version of the canonical file at the end of the round, if there is a local copy.
    version: Option<Version>,
}

impl RoundJob {
    /// Called before this node tells others what it has done as the holder of the term.
    fn need_term(&self) -> Result<u64, DrainError> {
        match self.held.as_ref().filter(|held| held.holds()) {
            Some(held) => Ok(held.term),
            None => Err(self.job.lease_expired()),
        }
    }

    /// Cuts the canonical file to the limit of the view, and makes the plan.
    fn make_plan(&self) -> Result<(), DrainError> {
        let (job, canonical) = (&self.job, &*self.writer.canonical);
        let view = job.shared_files.peers.view(&job.file);
        // No thread of this node may write the canonical file meanwhile.
        let _all = job.file.lock_canonical(ByteRange::ALL);
        let size = canonical.size();
        let size = size.map_err(job.canonical_error("asking the size of"))?;
        let limit = view.limit();
        self.need_term()?;
        if size > limit {
            let cut = canonical.set_len(limit);
            cut.map_err(job.canonical_error("truncating"))?;
            let synced = canonical.sync();
            synced.map_err(job.canonical_error("syncing"))?;
        }
        let striping = job.engine.striping(canonical);
        let writers: BTreeSet<_> = view.layouts().map(|(node, _)| node).collect();
        let domains = Domains::mapped(striping.unit, striping.count, writers.len() as u32).count();
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
        let (shared_dir, id) = (job.shared_dir(), job.file.id());
        shared_dir
            .put_plan(id, term, &plan.encode(id))
            .map_err(job.shared_dir_error())
    }

    /// Takes domains one after the other until none is left to take: the other nodes that have a
    /// part in the file take the rest. Within a domain units are written in parallel.
    async fn write_domains(
        &self,
        plan: &Arc<RoundPlan>,
        covered: &Arc<View>,
    ) -> Result<(), DrainError> {
        let (id, term) = (self.job.file.id(), plan.term);
        for domain in 0..plan.domains {
            self.job.check_stopping()?;
            let take = move |dir: &SharedDir| dir.domains().take_domain(id, term, domain);
            let Some(attempt) = self.job.with_shared_dir(take).await? else {
                continue;
            };
            let written = self.write_domain(plan, covered, domain).await;
            if written.is_err() {
                let give_up = move |dir: &SharedDir| {
                    if let Err(error) = dir.domains().give_up_domain(id, term, domain, attempt) {
                        tracing::warn!(file = %id, %error, "a domain is free again when this node's lease is over");
                    }
                    Ok(())
                };
                self.job.with_shared_dir(give_up).await?;
            }
            written?;
        }
        Ok(())
    }

    /// Writes the units of a domain, syncs, and marks the domain as done. When this returns, with
    /// or without an error, none of its writes is under way any more.
    async fn write_domain(
        &self,
        plan: &RoundPlan,
        covered: &Arc<View>,
        domain: u32,
    ) -> Result<(), DrainError> {
        let (job, id, term) = (self.job.clone(), self.job.file.id(), plan.term);
        let writer = self.writer.with_gate(Gate::Domain {
            peers: job.shared_files.peers.clone(),
            file: id,
            term,
            domain,
        });
        let mut running = JoinSet::new();
        let started = self
            .start_units(&writer, plan, covered, domain, &mut running)
            .await;
        let joined = join_units(&mut running, |unit| unit).await;
        started.and(joined)?;
        let mark = move || {
            // After this node's lease has ended another node may be writing the domain. A late mark
            // would let the next round begin beside that.
            let domains = job.shared_dir().domains();
            if !domains.holds_domain(id, term, domain) {
                return Err(job.lease_expired());
            }
            let marked = domains.mark_domain_done(id, term, domain);
            marked.map_err(job.shared_dir_error())
        };
        writer.sync_then(mark).await
    }

    async fn start_units(
        &self,
        writer: &CanonicalWriter,
        plan: &RoundPlan,
        covered: &Arc<View>,
        domain: u32,
        running: &mut JoinSet<Result<(), DrainError>>,
    ) -> Result<(), DrainError> {
        let file = &self.job.file;
        let domains = Domains::with_count(plan.unit, plan.domains);
        let unit = plan.unit;
        let mut from = 0;
        loop {
            let view = covered.clone();
            let units = blocking(move || view.ranges(unit, from, UNITS_PER_LISTING)).await?;
            let Some(last) = units.last() else {
                return Ok(());
            };
            from = last.end;
            let within = |unit: ByteRange| unit.intersect(&ByteRange::new(0, plan.size));
            let units = units.into_iter().filter_map(within);
            for range in units.filter(|u| domains.domain_of(u.start) == domain) {
                let pieces = self.job.shared_files.peers.pieces_of(file, covered, range);
                let work = Work::exactly(&pieces);
                if work.is_empty() {
                    continue;
                }
                self.job.engine.yield_to_publications(file.id()).await;
                let bytes = work.bytes();
                let write = move |writer: &CanonicalWriter| {
                    let _guard = writer.job.file.lock_canonical(range);
                    let written = writer.write(range, &pieces, &work);
                    written.map_err(|e| DrainError::stripe(&writer.job.name, range, e))
                };
                writer.start(bytes, running, |unit| unit, write).await?;
            }
        }
    }

    /// If all domains are done: sets size and time, syncs, makes the base. `None` if some are not
    /// done.
    fn finish(&self, plan: &RoundPlan) -> Result<Option<Finished>, DrainError> {
        let (job, canonical) = (&self.job, &*self.writer.canonical);
        let (shared_dir, id) = (job.shared_dir(), job.file.id());
        let listing = shared_dir.list(id).map_err(job.shared_dir_error())?;
        let is_done = |done: &BTreeSet<(u64, u32)>| {
            (0..plan.domains).all(|domain| done.contains(&(plan.term, domain)))
        };
        if !listing.is_some_and(|listing| is_done(&listing.done)) {
            return Ok(None);
        }
        let _all = job.file.lock_canonical(ByteRange::ALL);
        let size = canonical.size();
        let size = size.map_err(job.canonical_error("asking the size of"))?;
        self.need_term()?;
        if size < plan.size {
            let extended = canonical.set_len(plan.size);
            extended.map_err(job.canonical_error("extending"))?;
        }
        match canonical.set_mtime(plan.mtime.0) {
            // Other users may write the file, but only its owner may set its time: the file then
            // keeps the time of the drain.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
            other => other.map_err(job.canonical_error("setting the time of"))?,
        }
        let synced = canonical.sync();
        synced.map_err(job.canonical_error("syncing"))?;
        let mirror = canonical.mirror();
        let version = mirror.and_then(|_| version_after_change(canonical));
        self.need_term()?;
        let base = Base {
            term: plan.term,
            covered: plan.covered.clone(),
            epoch: plan.epoch,
        };
        shared_dir
            .put_base(id, plan.term, &base.encode(id))
            .map_err(job.shared_dir_error())?;
        Ok(Some(Finished { version }))
    }
}
