//! The batches that are under way in one pass. Decides when they are synced.
//!
//! # Tickets
//!
//! A batch has a ticket from when it is sent until its bytes are recorded or given up. As long as
//! it has one, its stripes are not assigned a second time, although the log still has them.

use super::{Batch, Mover, Pace, Placed, Step, joined};
use crate::drain_error::DrainError;
use crate::ost::{Offer, Picked};
use layout_index::ByteRange;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

pub(super) struct Run {
    mover: Arc<Mover>,
    steps: JoinSet<Result<Step, DrainError>>,
    under_way: Arc<Mutex<UnderWay>>,
    /// Batches that are written and not yet synced.
    placed: Vec<Placed>,
    bytes: u64,
    synced: Instant,
    /// Subfiles whose sync is under way.
    syncing: HashSet<u32>,
    pass: Pass,
}

/// How a pass went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    pub bytes: u64,
    /// An OST was lost before it had synced something: that must be moved again.
    pub lost: bool,
    /// No OST takes some of it.
    pub refused: bool,
}

#[derive(Debug, Default)]
struct UnderWay {
    /// The offsets at which they begin.
    stripes: HashSet<u64>,
    bytes: u64,
}

/// A batch's entry among those that are under way.
#[derive(Debug)]
pub(super) struct Ticket {
    among: Arc<Mutex<UnderWay>>,
    stripes: Vec<ByteRange>,
    bytes: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut among = self.among.lock();
        among.bytes -= self.bytes;
        for stripe in &self.stripes {
            among.stripes.remove(&stripe.start);
        }
    }
}

impl Run {
    pub fn new(mover: Arc<Mover>) -> Run {
        Run {
            mover,
            steps: JoinSet::new(),
            under_way: Arc::default(),
            placed: Vec::new(),
            bytes: 0,
            synced: Instant::now(),
            syncing: HashSet::new(),
            pass: Pass::default(),
        }
    }

    pub fn has(&self, stripe: ByteRange) -> bool {
        self.under_way.lock().stripes.contains(&stripe.start)
    }

    pub fn under_way(&self) -> u64 {
        self.under_way.lock().bytes
    }

    /// Returns how many new bytes in the log are worth another scan.
    pub fn worth_a_scan(&self) -> u64 {
        (self.mover.job.engine.settings.read().sync_every / 4).max(1)
    }

    pub fn pass(&self) -> Pass {
        self.pass
    }

    pub async fn send(&mut self, batch: Batch) -> Result<(), DrainError> {
        if self.mover.pace == Pace::Limited {
            self.wait_for_rate_limit(batch.bytes).await?;
        }
        self.mover.job.check_stopping()?;
        let permit = self.permit().await?;
        let Some(picked) = self.pick(batch.bytes).await? else {
            self.pass.refused = true;
            return Ok(());
        };
        let ticket = self.ticket(&batch);
        let place = self.mover.clone().place(batch, picked, ticket, permit);
        self.steps.spawn(place);
        while let Some(step) = self.steps.try_join_next() {
            self.note_step(joined(step)??);
        }
        if self.is_due() {
            self.commit();
        }
        Ok(())
    }

    /// Waits for the rate limit. What is written is synced meanwhile, because other files wait for
    /// these OSTs.
    async fn wait_for_rate_limit(&mut self, bytes: u64) -> Result<(), DrainError> {
        let engine = self.mover.job.engine.clone();
        let paced = engine.pace(self.mover.job.file.id(), bytes);
        tokio::pin!(paced);
        loop {
            tokio::select! {
                biased;
                () = &mut paced => return Ok(()),
                any = self.join_one() => if !any? {
                    paced.await;
                    return Ok(());
                }
            }
        }
    }

    /// Waits until an OST has time for `bytes`. `None` if no OST can be used.
    async fn pick(&mut self, bytes: u64) -> Result<Option<Picked>, DrainError> {
        let targets = self.mover.keeper.targets.clone();
        loop {
            let settled = targets.settled();
            tokio::pin!(settled);
            match targets.offer(bytes) {
                Offer::Picked(picked) => return Ok(Some(picked)),
                Offer::NoTarget => return Ok(None),
                Offer::Busy => {}
            }
            let any_here = tokio::select! {
                any = self.join_one() => any?,
                () = &mut settled => true,
            };
            // Everything that the OSTs are busy with belongs to other files.
            if !any_here {
                settled.await;
            }
        }
    }

    /// Waits for one of the drain's permits. The tasks that hold them may wait for an OST that is
    /// busy with what this run has written, so that is synced here as at any other time.
    async fn permit(&mut self) -> Result<OwnedSemaphorePermit, DrainError> {
        let permit = self.mover.keeper.permits.clone().acquire_owned();
        tokio::pin!(permit);
        loop {
            let due = self.synced + self.mover.job.engine.settings.read().sync_after;
            tokio::select! {
                permit = &mut permit => return permit.map_err(|_| DrainError::Stopping),
                Some(step) = self.steps.join_next() => {
                    self.note_step(joined(step)??);
                }
                () = tokio::time::sleep_until(due.into()) => self.commit(),
            }
        }
    }

    fn ticket(&self, batch: &Batch) -> Ticket {
        let mut among = self.under_way.lock();
        among.bytes += batch.bytes;
        among.stripes.extend(batch.stripes.iter().map(|s| s.start));
        Ticket {
            among: self.under_way.clone(),
            stripes: batch.stripes.clone(),
            bytes: batch.bytes,
        }
    }

    /// Waits for one of the steps that are under way. False if there is none.
    pub async fn join_one(&mut self) -> Result<bool, DrainError> {
        self.commit();
        match self.steps.join_next().await {
            Some(step) => self.note_step(joined(step)??),
            None => return Ok(false),
        }
        Ok(true)
    }

    fn is_due(&self) -> bool {
        let settings = self.mover.job.engine.settings.read();
        self.bytes >= settings.sync_every || self.synced.elapsed() >= settings.sync_after
    }

    fn note_step(&mut self, step: Step) {
        match step {
            Step::Placed(placed) => {
                self.bytes += placed.written.bytes;
                self.placed.push(placed);
            }
            Step::Synced { subfile, moved } => {
                self.syncing.remove(&subfile);
                self.pass.bytes += moved.unwrap_or(0);
                self.pass.lost |= moved.is_none();
            }
            Step::Refused => self.pass.refused = true,
            Step::Superseded => {}
        }
    }

    /// Syncs what is written, each subfile by itself. Batches of a subfile whose sync is under way
    /// wait for the next one: the slower the syncs of an OST are, the fewer it has to do.
    fn commit(&mut self) {
        self.bytes = 0;
        self.synced = Instant::now();
        let mut by_subfile: HashMap<u32, Vec<Placed>> = HashMap::new();
        let free = |placed: &mut Placed| !self.syncing.contains(&placed.written.subfile.no());
        for placed in self.placed.extract_if(.., free) {
            let no = placed.written.subfile.no();
            by_subfile.entry(no).or_default().push(placed);
        }
        for (subfile, placed) in by_subfile {
            self.syncing.insert(subfile);
            let mover = self.mover.clone();
            self.steps.spawn(async move {
                let moved = mover.record(placed).await?;
                Ok(Step::Synced { subfile, moved })
            });
        }
    }
}
