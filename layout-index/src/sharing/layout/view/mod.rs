//! The view of a file: every batch that the canonical file does not have, merged.
//!
//! # Order
//!
//! Batches that the plan covers are older than batches that it does not cover. On each side the
//! smaller (epoch, node) is older, and batches of one node are ordered by generation and position.
//! Bytes at or beyond the cut of any newer batch are gone; a batch's own cut does not affect its
//! own bytes.
//!
//! # Consistency
//!
//! A view is as old as the last refresh and never a mixture of two states: a refresh adds what it
//! finds to a copy (batches are shared, so that is cheap) or under a lock. Epochs that were seen
//! are remembered even when the batches that had them are gone; otherwise a node could give an old
//! epoch to new bytes.

mod blocks;
mod order;
mod paint;
mod touch;

pub use paint::{ViewPiece, ViewSource};

use super::batch::Batch;
use super::plan::{Base, Covered, Plan};
use crate::types::{ByteRange, Epoch, NodeId, Timestamp};
use order::Order;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::size_of;
use std::sync::{Arc, OnceLock};

/// A batch, its layout, and its place there.
#[derive(Clone, Debug)]
struct Layer {
    node: NodeId,
    generation: u32,
    /// Where the batch ends in its layout.
    end: u64,
    batch: Arc<Batch>,
}

#[derive(Clone, Debug, Default)]
pub struct View {
    layers: Vec<Layer>,
    /// How far each layout has been read.
    read: BTreeMap<(NodeId, u32), u64>,
    /// Layouts named in the base whose files are gone.
    gone: BTreeSet<(NodeId, u32)>,
    base: Option<Base>,
    plan: Option<Plan>,
    epoch: Epoch,
    /// Computed when it is first needed, and again after every change.
    order: OnceLock<Order>,
}

impl View {
    /// Adds a batch that ends at byte `end` of its layout. A batch that was added before, or that
    /// the base covers, changes only the epoch.
    pub fn add(&mut self, node: NodeId, generation: u32, end: u64, batch: Arc<Batch>) {
        self.epoch = self.epoch.max(batch.head.epoch);
        if end <= self.read_upto(node, generation) {
            return;
        }
        self.gone.remove(&(node, generation));
        self.read.insert((node, generation), end);
        self.order.take();
        self.layers.push(Layer {
            node,
            generation,
            end,
            batch,
        });
    }

    /// A new view for a file whose directory is gone or was replaced: only the epochs that were
    /// seen are kept.
    pub fn afresh(&self) -> View {
        View {
            epoch: self.epoch,
            ..View::default()
        }
    }

    /// How much of a layout the canonical file has.
    pub fn base_upto(&self, node: NodeId, generation: u32) -> u64 {
        let base = self.base.as_ref();
        base.map_or(0, |base| base.covered.upto(node, generation))
    }

    /// Term of the newest base; 0 if there is none.
    pub fn base_term(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| base.term)
    }

    /// Sets the base, and drops the batches that it covers. A base of a lower term than the known
    /// one is ignored.
    pub fn set_base(&mut self, base: Base) {
        self.epoch = self.epoch.max(base.epoch);
        if self
            .base
            .as_ref()
            .is_some_and(|known| known.term > base.term)
        {
            return;
        }
        self.layers
            .retain(|l| l.end > base.covered.upto(l.node, l.generation));
        self.gone
            .retain(|layout| base.covered.0.contains_key(layout));
        self.order.take();
        self.base = Some(base);
    }

    /// Sets the plan of the newest unfinished round. A plan whose term the base has reached is
    /// finished, and a plan of a lower term than the known one is old: both are ignored.
    pub fn set_plan(&mut self, plan: Option<Plan>) {
        if let Some(plan) = &plan {
            self.epoch = self.epoch.max(plan.epoch);
            if self
                .plan
                .as_ref()
                .is_some_and(|known| known.term > plan.term)
            {
                return;
            }
        }
        self.order.take();
        self.plan = plan;
    }

    /// The layout's file is gone: drops its batches.
    pub fn forget_layout(&mut self, node: NodeId, generation: u32) {
        self.layers
            .retain(|l| (l.node, l.generation) != (node, generation));
        self.read.remove(&(node, generation));
        let covered = |base: &Base| base.covered.0.contains_key(&(node, generation));
        if self.base.as_ref().is_some_and(covered) {
            self.gone.insert((node, generation));
        }
        self.order.take();
    }

    /// A seal ends the layout at byte `end`. Batches beyond it that were read before the seal was
    /// made are published again in another layout, so they are dropped here. Returns false if the
    /// seal is within a batch, where no node makes one.
    #[must_use]
    pub fn end_layout(&mut self, node: NodeId, generation: u32, end: u64) -> bool {
        match self.read.get_mut(&(node, generation)) {
            Some(read) if *read > end => *read = end,
            _ => return true,
        }
        let (of_it, others): (Vec<Layer>, Vec<Layer>) = std::mem::take(&mut self.layers)
            .into_iter()
            .partition(|l| (l.node, l.generation) == (node, generation));
        self.layers = others;
        let (kept, gone): (Vec<Layer>, Vec<Layer>) = of_it.into_iter().partition(|l| l.end <= end);
        let last = kept.last().map_or(0, |l| l.end);
        let drained = self.base_upto(node, generation);
        self.layers.extend(kept);
        self.order.take();
        gone.is_empty() || end <= last.max(drained)
    }

    /// Where reading of a layout goes on. Batches that the base covers need not be read.
    pub fn read_upto(&self, node: NodeId, generation: u32) -> u64 {
        let read = self.read.get(&(node, generation)).copied().unwrap_or(0);
        let base = self.base.as_ref();
        read.max(base.map_or(0, |base| base.covered.upto(node, generation)))
    }

    /// Layouts that are not known to be gone. A refresh must forget those that are not in the
    /// listing, or each base would name all layouts that ever existed.
    pub fn layouts(&self) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        self.covered_now().0.into_keys()
    }

    /// Whether this view has more, or less, of what nodes other than `me` have published than
    /// `before`, or the canonical file has more of that, or is about to (a plan may reverse the
    /// order of concurrent batches).
    pub fn has_news_since(&self, before: &View, me: NodeId) -> bool {
        fn of_others(view: &View, me: NodeId) -> impl Iterator<Item = (&(NodeId, u32), &u64)> {
            view.read.iter().filter(move |((node, _), _)| *node != me)
        }
        let terms = |view: &View| (view.base_term(), view.plan().map(|plan| plan.term));
        terms(self) != terms(before) || !of_others(self, me).eq(of_others(before, me))
    }

    /// Batches of nodes other than `me` that `before` did not have.
    fn news<'a>(&'a self, before: &'a View, me: NodeId) -> impl Iterator<Item = &'a Layer> {
        let of_others = self.layers.iter().filter(move |l| l.node != me);
        of_others.filter(|l| l.end > before.read_upto(l.node, l.generation))
    }

    /// From the first byte of those batches to the last; empty if there are none.
    pub fn bounds_of_news(&self, before: &View, me: NodeId) -> ByteRange {
        let bounds = self.news(before, me).filter_map(|l| l.batch.bounds());
        let both = |a: ByteRange, b: ByteRange| ByteRange {
            start: a.start.min(b.start),
            end: a.end.max(b.end),
        };
        bounds
            .reduce(both)
            .unwrap_or(ByteRange { start: 0, end: 0 })
    }

    /// Bytes of `range` in those batches: the first piece of each.
    pub fn news_within<'a>(
        &'a self,
        before: &'a View,
        me: NodeId,
        range: ByteRange,
    ) -> impl Iterator<Item = (NodeId, ByteRange)> {
        self.news(before, me).filter_map(move |l| {
            let piece = l.batch.next_piece(range.start)?.intersect(&range)?;
            Some((l.node, piece))
        })
    }

    pub fn base(&self) -> Option<&Base> {
        self.base.as_ref()
    }

    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref().filter(|plan| !self.is_finished(plan))
    }

    fn is_finished(&self, plan: &Plan) -> bool {
        self.base
            .as_ref()
            .is_some_and(|base| base.term >= plan.term)
    }

    /// The canonical file has everything.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Bytes in a node's batches, counted each time they were published.
    pub fn bytes_of(&self, node: NodeId) -> u64 {
        let theirs = self.layers.iter().filter(|layer| layer.node == node);
        let strips = theirs.flat_map(|layer| layer.batch.strips());
        strips.map(|strip| strip.total()).sum()
    }

    /// The largest epoch that was ever seen.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Bytes of the blocks in which batches have data: the space that the file would take if it had
    /// nothing else.
    pub fn allocated(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let order = self.order();
        let allocated = || blocks::allocated(&order.ranked);
        *order.allocated.get_or_init(allocated)
    }

    /// Size of the file, if the canonical file is `canonical` bytes long. Correct before, during
    /// and after a round that brings the canonical file to that size.
    pub fn size(&self, canonical: u64) -> u64 {
        let order = self.order();
        canonical.min(order.limit).max(order.grown)
    }

    /// Canonical bytes at or beyond this offset are not part of the file: it reads as zeros there,
    /// except for bytes of batches.
    pub fn limit(&self) -> u64 {
        self.order().limit
    }

    /// `None` means that the canonical file's time applies.
    pub fn mtime(&self) -> Option<Timestamp> {
        self.order().mtime
    }

    /// Returns the batches' bytes in `range`: disjoint pieces in file order, each in one unit.
    /// Between them are the canonical file's bytes below [`View::limit`], and zeros beyond.
    pub fn pieces(&self, range: ByteRange) -> Vec<ViewPiece> {
        self.pieces_upto(range, usize::MAX).0
    }

    /// Like [`View::pieces`], for the beginning of `range`, with about `most` pieces. Also returns
    /// where that beginning ends.
    pub fn pieces_upto(&self, range: ByteRange, most: usize) -> (Vec<ViewPiece>, u64) {
        paint::pieces(self, range, most)
    }

    /// Returns units of `unit` bytes of the file that some batch touches, beginning with the unit
    /// that holds byte `from`, at most `max`. To continue, pass the end of the last unit.
    pub fn ranges(&self, unit: u64, from: u64, max: usize) -> Vec<ByteRange> {
        touch::ranges(self, unit, from, max)
    }

    /// A view of only those batches that the plan covers and the base does not.
    pub fn covered_by(&self, plan: &Plan) -> View {
        let mut view = self.clone();
        view.order.take();
        view.plan = None;
        let covers = |l: &Layer| l.end <= plan.covered.upto(l.node, l.generation);
        view.layers.retain(covers);
        view
    }

    /// Everything that was added, for a new plan.
    pub fn covered_now(&self) -> Covered {
        let mut covered = self.read.clone();
        if let Some(base) = &self.base {
            for (layout, upto) in &base.covered.0 {
                if !self.gone.contains(layout) {
                    let known = covered.entry(*layout).or_default();
                    *known = (*known).max(*upto);
                }
            }
        }
        Covered(covered)
    }

    fn order(&self) -> &Order {
        let plan = || self.plan().map(|plan| &plan.covered);
        self.order.get_or_init(|| Order::new(&self.layers, plan()))
    }

    /// Approximate memory that the view takes, in bytes.
    pub fn memory(&self) -> usize {
        let batches: usize = self.layers.iter().map(|l| l.batch.memory()).sum();
        let covered = |c: Option<&Covered>| c.map_or(0, |c| c.0.len());
        let entries = self.read.len()
            + self.gone.len()
            + covered(self.base.as_ref().map(|b| &b.covered))
            + covered(self.plan.as_ref().map(|p| &p.covered));
        size_of::<View>()
            + batches
            + self.layers.capacity() * size_of::<Layer>()
            + entries * 2 * size_of::<((NodeId, u32), u64)>()
            + self.order.get().map_or(0, Order::memory)
    }
}

#[cfg(test)]
mod tests;
