use super::*;
use crate::sharing::layout::testing::{Targets, publish, seed};
use crate::types::Epoch;
use rand::prelude::*;

const ID: LayoutId = LayoutId {
    file: FileId { ino: 1, birth: 2 },
    node: NodeId(3),
    generation: 4,
};

/// A layout, and where its batches end.
fn layout(rng: &mut StdRng) -> (Vec<u8>, Vec<u64>) {
    let mut bytes = ID.header(&[1, 0, 0, 0, 9]).to_vec();
    let mut ends = Vec::new();
    for epoch in 0..3 {
        let published = publish(rng, &mut Targets::default(), ID.node, Epoch(epoch));
        bytes.extend(published.batch.encode(&ID).unwrap());
        ends.push(bytes.len() as u64);
    }
    (bytes, ends)
}

fn ends(parsed: &Parsed) -> Vec<u64> {
    parsed.batches.iter().map(|(end, _)| *end).collect()
}

/// Wherever a layout ends, all whole batches are found, and the rest is no error.
#[test]
fn a_layout_cut_at_every_byte() {
    let rng = &mut StdRng::seed_from_u64(seed("cut layouts"));
    let (bytes, all) = layout(rng);
    for len in 0..=bytes.len() {
        let parsed = parse(&bytes[..len], 0, &ID);
        let whole: Vec<u64> = all.iter().copied().filter(|e| *e <= len as u64).collect();
        assert_eq!(ends(&parsed), whole, "{len}");
        let complete = len == HEADER_LEN || whole.last() == Some(&(len as u64));
        let tail = if complete {
            Tail::Complete
        } else {
            Tail::Incomplete
        };
        assert_eq!(parsed.tail, tail, "{len}");
    }
}

#[test]
fn reading_goes_on_where_it_ended() {
    let rng = &mut StdRng::seed_from_u64(seed("tails"));
    let (bytes, all) = layout(rng);
    let parsed = parse(&bytes[..all[0] as usize + 5], 0, &ID);
    assert_eq!(
        (parsed.end(0), parsed.tail.clone()),
        (all[0], Tail::Incomplete)
    );
    let parsed = parse(&bytes[all[0] as usize..], all[0], &ID);
    assert_eq!(
        (ends(&parsed), parsed.tail),
        (all[1..].to_vec(), Tail::Complete)
    );
}

/// A flipped bit costs the batch it is in and those after it, never one before it, and is reported.
#[test]
fn a_flipped_bit_anywhere_is_reported() {
    let rng = &mut StdRng::seed_from_u64(seed("flipped layouts"));
    let (bytes, all) = layout(rng);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let parsed = parse(&flipped, 0, &ID);
        let intact = |end: &&u64| **end <= bit as u64 / 8;
        let before: Vec<u64> = all.iter().filter(intact).copied().collect();
        let before = if bit / 8 < HEADER_LEN { vec![] } else { before };
        assert_eq!(ends(&parsed), before, "bit {bit}");
        let Tail::Damaged { at, .. } = parsed.tail else {
            panic!("bit {bit}: {:?}", parsed.tail);
        };
        let begins = if bit / 8 < HEADER_LEN {
            0
        } else {
            HEADER_LEN as u64
        };
        assert_eq!(at, before.last().copied().unwrap_or(begins), "bit {bit}");
    }
}

/// A layout that was copied to another place reports which layout it is.
#[test]
fn a_layout_of_another_is_refused() {
    let other = LayoutId {
        node: NodeId(0xabc),
        ..ID
    };
    let parsed = parse(&other.header(&[1, 0, 0, 0, 9]), 0, &ID);
    let Tail::Damaged { at: 0, why } = parsed.tail else {
        panic!("{:?}", parsed.tail);
    };
    assert!(why.contains("node 0000000000000abc"), "{why}");
    let parsed = parse(&[b'x'; 300], 0, &ID);
    assert!(matches!(parsed.tail, Tail::Damaged { at: 0, .. }));
}
