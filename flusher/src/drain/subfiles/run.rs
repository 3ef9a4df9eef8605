//! The batches that are under way in one pass, and when they are synced.
//!
//! # Tickets
//!
//! A batch has a ticket from here until its bytes are recorded or given up, wherever it is. While
//! it has one its stripes are not dealt a second time, though the log still has them.

use super::{Batch, Halt, Mover, Pace, Placed, Step, joined};
use crate::ost::{Dealt, Offer};
use layout_index::ByteRange;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

pub(super) struct Run {
    mover: Arc<Mover>,
    steps: JoinSet<Result<Step, Halt>>,
    under_way: Arc<Mutex<UnderWay>>,
    /// Written, not yet synced.
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
    /// An OST was lost with something that it had not synced: to be done again.
    pub lost: bool,
    /// Nobody takes some of it.
    pub refused: bool,
}

#[derive(Debug, Default)]
struct UnderWay {
    /// Where they begin.
    stripes: HashSet<u64>,
    bytes: u64,
}

/// A batch's place among those that are under way.
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

    /// Bytes that came meanwhile and are worth another look.
    pub fn enough(&self) -> u64 {
        (self.mover.shared.settings.read().sync_every / 4).max(1)
    }

    pub fn pass(&self) -> Pass {
        self.pass
    }

    pub async fn send(&mut self, batch: Batch) -> Result<(), Halt> {
        let shared = self.mover.shared.clone();
        if self.mover.pace == Pace::Limited {
            self.keep_to_the_pace(batch.bytes).await?;
        }
        if shared.stopping.load(Ordering::Relaxed) {
            return Err(Halt::Stopping);
        }
        let permit = self.permit().await?;
        let Some(dealt) = self.deal(batch.bytes).await? else {
            self.pass.refused = true;
            return Ok(());
        };
        let ticket = self.ticket(&batch);
        let place = self.mover.clone().place(batch, dealt, ticket, permit);
        self.steps.spawn(place);
        while let Some(step) = self.steps.try_join_next() {
            self.take(joined(step).map_err(Halt::from)??);
        }
        if self.is_due() {
            self.commit();
        }
        Ok(())
    }

    /// Waits for the rate limit. What is written is synced meanwhile: others wait for these OSTs.
    async fn keep_to_the_pace(&mut self, bytes: u64) -> Result<(), Halt> {
        let shared = self.mover.shared.clone();
        let paced = shared.pace(self.mover.file.id(), bytes);
        tokio::pin!(paced);
        loop {
            tokio::select! {
                biased;
                () = &mut paced => return Ok(()),
                any = self.settle_one() => if !any? {
                    paced.await;
                    return Ok(());
                }
            }
        }
    }

    /// Waits until an OST has time for so much. `None`: there is no OST.
    async fn deal(&mut self, bytes: u64) -> Result<Option<Dealt>, Halt> {
        let fleet = self.mover.targets.fleet.clone();
        loop {
            let settled = fleet.settled();
            tokio::pin!(settled);
            match fleet.offer(bytes) {
                Offer::Dealt(dealt) => return Ok(Some(dealt)),
                Offer::Nobody => return Ok(None),
                Offer::Busy => {}
            }
            let any_here = tokio::select! {
                any = self.settle_one() => any?,
                () = &mut settled => true,
            };
            // All that the OSTs are busy with belongs to other files.
            if !any_here {
                settled.await;
            }
        }
    }

    /// Waits for one of the drain's places. Those who have them may wait for an OST that is busy
    /// with what this run has written, so that is synced as at any other time.
    async fn permit(&mut self) -> Result<OwnedSemaphorePermit, Halt> {
        let permit = self.mover.targets.permits.clone().acquire_owned();
        tokio::pin!(permit);
        loop {
            let due = self.synced + self.mover.shared.settings.read().sync_after;
            tokio::select! {
                permit = &mut permit => return permit.map_err(|_| Halt::Stopping),
                Some(step) = self.steps.join_next() => {
                    self.take(joined(step).map_err(Halt::from)??);
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

    /// Waits for one of those that are under way. False: nothing is.
    pub async fn settle_one(&mut self) -> Result<bool, Halt> {
        self.commit();
        match self.steps.join_next().await {
            Some(step) => self.take(joined(step).map_err(Halt::from)??),
            None => return Ok(false),
        }
        Ok(true)
    }

    fn is_due(&self) -> bool {
        let settings = self.mover.shared.settings.read();
        self.bytes >= settings.sync_every || self.synced.elapsed() >= settings.sync_after
    }

    fn take(&mut self, step: Step) {
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

    /// Syncs what is written, each OST for itself. Where a sync is under way the rest waits for it:
    /// the slower an OST's syncs are, the fewer it has to do.
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
