//! Which units of the canonical file a drain has to write, without looking at any other.

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

/// One batch is enough to make a unit one to write. Nodes that write in turns are neighbours in
/// the order, so from the one that had the last unit a few, ever farther off, are asked for the
/// next; all others only when none of those has it, in the order in which they come in the file.
pub(super) fn ranges(view: &View, unit: u64, from: u64, max: usize) -> Vec<ByteRange> {
    let ranked = &view.order().ranked;
    let unit = unit.max(1);
    let mut from = from - from % unit;
    // The byte that each batch was last known to have next: may lie before `from`.
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
