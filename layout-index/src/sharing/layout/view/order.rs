//! The order of the batches, and what newer cuts leave of each.

use super::Layer;
use crate::sharing::layout::batch::Batch;
use crate::sharing::layout::plan::Covered;
use crate::sharing::layout::spans::Spans;
use crate::types::{ByteRange, NodeId, Timestamp};
use std::mem::size_of;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

/// A batch of which some bytes are left.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    pub node: NodeId,
    pub batch: Arc<Batch>,
    /// From its first byte to its last, below the cuts of all newer batches.
    pub bounds: ByteRange,
}

#[derive(Clone, Debug)]
pub(super) struct Order {
    /// The oldest first.
    pub ranked: Vec<Ranked>,
    spans: Spans,
    pub limit: u64,
    /// The size is at least this.
    pub grown: u64,
    pub mtime: Option<Timestamp>,
    /// Computed when it is first needed.
    pub allocated: OnceLock<u64>,
}

/// Up to this many batches, checking each one costs less than sorting those that overlap; and a
/// caller that has found everything in the newest batches stops there.
const FEW: usize = 16384;

impl Order {
    pub fn new(layers: &[Layer], plan: Option<&Covered>) -> Order {
        let mut sorted: Vec<&Layer> = layers.iter().collect();
        sorted.sort_by_key(|l| {
            let covered = plan.is_some_and(|p| l.end <= p.upto(l.node, l.generation));
            (!covered, l.batch.head.epoch, l.node, l.generation, l.end)
        });
        let mut limit = u64::MAX;
        let mut ranked = Vec::with_capacity(sorted.len());
        for layer in sorted.iter().rev() {
            let below = ByteRange::new(0, limit);
            let bounds = layer.batch.bounds().and_then(|b| b.intersect(&below));
            if let Some(bounds) = bounds {
                ranked.push(Ranked {
                    node: layer.node,
                    batch: layer.batch.clone(),
                    bounds,
                });
            }
            limit = limit.min(layer.batch.head.cut.unwrap_or(u64::MAX));
        }
        ranked.reverse();
        let grown = sorted.iter().fold(0u64, |size, layer| {
            let head = &layer.batch.head;
            size.min(head.cut.unwrap_or(u64::MAX)).max(head.grown)
        });
        let spans = Spans::new(ranked.len(), |i| ranked[i as usize].bounds);
        Order {
            mtime: sorted.last().map(|l| l.batch.head.mtime),
            ranked,
            spans,
            limit,
            grown,
            allocated: OnceLock::new(),
        }
    }

    fn bounds(&self, rank: u32) -> ByteRange {
        self.ranked[rank as usize].bounds
    }

    /// The batches that may have bytes of `range`, the newest first.
    pub fn ranks_in(&self, range: ByteRange) -> Box<dyn Iterator<Item = u32> + '_> {
        if self.ranked.len() <= FEW {
            let all = (0..self.ranked.len() as u32).rev();
            return Box::new(all.filter(move |i| self.bounds(*i).overlaps(&range)));
        }
        let mut found = Vec::new();
        self.spans.overlapping(
            range,
            |i| self.bounds(i),
            |i| {
                found.push(i);
                ControlFlow::Continue(())
            },
        );
        found.sort_unstable();
        Box::new(found.into_iter().rev())
    }

    pub fn memory(&self) -> usize {
        self.ranked.capacity() * size_of::<Ranked>() + self.spans.memory()
    }
}
