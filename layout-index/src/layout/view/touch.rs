//! Which units of the canonical file a drain has to write, without looking at any other.

use super::View;
use super::order::Ranked;
use crate::types::ByteRange;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

/// The first byte at or after `from` that the batch has.
fn next(ranked: &Ranked, from: u64) -> Option<u64> {
    let (strips, spans) = (ranked.batch.strips(), ranked.batch.spans());
    let span = |i: u32| strips[i as usize].bounds();
    let mut lowest = spans.next_start(from, span);
    let here = ByteRange::at(from, 1)?;
    spans.overlapping(here, span, |i| {
        let strip = &strips[i as usize];
        let start = strip
            .piece_after(from)
            .map(|i| strip.piece(i).start.max(from));
        lowest = match (lowest, start) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if start == Some(from) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    lowest.filter(|at| *at < ranked.bounds.end)
}

/// Of the batches that touch a unit one is enough, so the one that was found last is asked first,
/// and others only when they are the next.
pub(super) fn ranges(view: &View, unit: u64, from: u64, max: usize) -> Vec<ByteRange> {
    let ranked = &view.order().ranked;
    let unit = unit.max(1);
    let mut from = from - from % unit;
    let mut heap: BinaryHeap<Reverse<(u64, usize)>> = (0..ranked.len())
        .filter_map(|i| Some(Reverse((next(&ranked[i], from)?, i))))
        .collect();
    let mut found: Vec<ByteRange> = Vec::new();
    let mut last = None;
    while found.len() < max {
        let here = last.and_then(|i: usize| next(&ranked[i], from));
        let at = match here.filter(|at| at - from < unit) {
            Some(at) => at,
            None => {
                let Some(Reverse((at, i))) = heap.pop() else {
                    break;
                };
                let at = if at < from {
                    next(&ranked[i], from)
                } else {
                    Some(at)
                };
                let Some(at) = at else { continue };
                if heap.peek().is_some_and(|Reverse((other, _))| *other < at) {
                    heap.push(Reverse((at, i)));
                    continue;
                }
                heap.push(Reverse((at, i)));
                last = Some(i);
                at
            }
        };
        let start = at - at % unit;
        let end = start.saturating_add(unit);
        found.push(ByteRange::new(start, end));
        from = end;
    }
    found
}
