//! Finds the units of the canonical file that a drain has to write, without visiting any others.

use super::View;
use super::order::Ranked;
use crate::types::ByteRange;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::iter::{once, successors};

/// The first byte at or after `from` that the batch has and that is not cut off.
fn next(ranked: &Ranked, from: u64) -> Option<u64> {
    let next = ranked.batch.next_byte(from);
    next.filter(|at| *at < ranked.bounds.end)
}

/// A unit must be written if at least one batch has a byte in it. Nodes that write in turns are
/// next to each other in the order. So a few batches are asked first for the next unit: the one
/// that had the last unit, and then others at doubling distances from it. All other batches are
/// asked only if none of those has a byte in that unit, in the order in which their next bytes come
/// in the file.
pub(super) fn ranges(view: &View, unit: u64, from: u64, max: usize) -> Vec<ByteRange> {
    let ranked = &view.order().ranked;
    let unit = unit.max(1);
    let mut from = from - from % unit;
    // Each batch's next byte when it was last computed, which may lie before `from` by now.
    let mut heap: BinaryHeap<Reverse<(u64, usize)>> = (0..ranked.len())
        .filter_map(|i| Some(Reverse((next(&ranked[i], from)?, i))))
        .collect();
    let mut found: Vec<ByteRange> = Vec::new();
    let mut last = None;
    while found.len() < max {
        let near = last.and_then(|last: usize| {
            let doubled = successors(Some(1), |step| Some(step * 2));
            let mut some = once(0).chain(doubled.take_while(|step| *step < ranked.len()));
            let has_it = |i: &usize| next(&ranked[*i], from).is_some_and(|at| at - from < unit);
            some.find_map(|step| Some((last + step) % ranked.len()).filter(has_it))
        });
        let first = near.map(|i| (from, i)).or_else(|| {
            while let Some(mut top) = heap.peek_mut() {
                let Reverse((at, i)) = *top;
                if at >= from {
                    return Some((at, i));
                }
                match next(&ranked[i], from) {
                    Some(at) => *top = Reverse((at, i)),
                    None => {
                        PeekMut::pop(top);
                    }
                }
            }
            None
        });
        let Some((at, i)) = first else { break };
        last = Some(i);
        let start = at - at % unit;
        from = start.saturating_add(unit);
        found.push(ByteRange::new(start, from));
    }
    found
}
