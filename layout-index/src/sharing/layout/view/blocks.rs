//! How much space the data of batches takes, in whole blocks.

use super::order::Ranked;
use crate::sharing::layout::batch::{Bytes, Strip};
use crate::types::ByteRange;

/// Block size in which file systems allocate.
const BLOCK: u64 = 4096;

/// Up to this many pieces are checked one by one, and blocks that several of them touch count once.
/// With more pieces their bytes are added up without rounding, so overlaps count several times and
/// partial blocks count in part.
const LOOKED_AT: u64 = 1 << 16;

pub(super) fn allocated(ranked: &[Ranked]) -> u64 {
    let data = || {
        ranked.iter().flat_map(|of| {
            let strips = of.batch.strips().iter();
            let data = strips.filter(|strip| strip.bytes != Bytes::Zero);
            data.map(|strip| (of.bounds, strip))
        })
    };
    let pieces: u64 = data().map(|(_, strip)| strip.count).sum();
    if pieces > LOOKED_AT {
        let bytes = data().map(|(_, strip)| strip.total());
        return bytes.fold(0, u64::saturating_add);
    }
    let mut blocks: Vec<ByteRange> = data()
        .flat_map(|(bounds, strip)| blocks_of(strip, bounds))
        .collect();
    blocks.sort_unstable_by_key(|range| range.start);
    let mut sum = 0;
    let mut upto = 0;
    for range in blocks {
        let start = range.start.max(upto);
        sum += range.end.saturating_sub(start);
        upto = upto.max(range.end);
    }
    sum
}

fn blocks_of(strip: &Strip, bounds: ByteRange) -> impl Iterator<Item = ByteRange> {
    let pieces = (0..strip.count).filter_map(move |i| strip.piece(i).intersect(&bounds));
    pieces.map(|piece| {
        let end = piece.end.div_ceil(BLOCK).saturating_mul(BLOCK);
        ByteRange::new(piece.start / BLOCK * BLOCK, end)
    })
}
