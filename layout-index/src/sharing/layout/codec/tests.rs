use super::*;
use crate::sharing::layout::testing::{Targets, publish, seed};
use crate::sharing::layout::{BatchBuilder, Piece};
use crate::types::{ByteRange, FileId, NodeId};
use rand::prelude::*;

const ID: LayoutId = LayoutId {
    file: FileId { ino: 1, birth: 2 },
    node: NodeId(3),
    generation: 4,
};

fn random_batch(rng: &mut StdRng) -> Batch {
    let epoch = Epoch(rng.random::<u64>() >> 1);
    publish(rng, &mut Targets::default(), ID.node, epoch).batch
}

#[test]
fn round_trip() {
    let rng = &mut StdRng::seed_from_u64(seed("codec"));
    for _ in 0..3000 {
        let batch = random_batch(rng);
        let mut bytes = batch.encode(&ID).unwrap();
        let len = bytes.len();
        bytes.extend_from_slice(b"more");
        assert_eq!(decode(&bytes, &ID), Decoded::Batch(Arc::new(batch), len));
    }
}

/// A batch belongs to one layout of one node for one file.
#[test]
fn a_batch_of_another_layout_is_refused() {
    let rng = &mut StdRng::seed_from_u64(1);
    let bytes = random_batch(rng).encode(&ID).unwrap();
    let file = FileId { ino: 1, birth: 3 };
    let (node, generation) = (NodeId(2), 5);
    for other in [
        LayoutId { file, ..ID },
        LayoutId { node, ..ID },
        LayoutId { generation, ..ID },
    ] {
        assert!(matches!(decode(&bytes, &other), Decoded::Damaged(_)));
    }
}

#[test]
fn any_flipped_bit_is_noticed() {
    let rng = &mut StdRng::seed_from_u64(seed("flipped bits"));
    for _ in 0..20 {
        let bytes = random_batch(rng).encode(&ID).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let decoded = decode(&flipped, &ID);
            assert!(matches!(decoded, Decoded::Damaged(_)), "bit {bit}");
        }
    }
}

/// An append that is under way, cut at any byte, and one whose length arrived before its bytes.
#[test]
fn a_short_batch_is_incomplete() {
    let rng = &mut StdRng::seed_from_u64(seed("short batches"));
    for _ in 0..50 {
        let bytes = random_batch(rng).encode(&ID).unwrap();
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len], &ID), Decoded::Incomplete, "{len}");
        }
        let zeros = vec![0; bytes.len()];
        assert_eq!(decode(&zeros, &ID), Decoded::Incomplete);
    }
}

/// A sealed batch with `tables` after the given counts: subfiles, runs, units, strips, inline.
fn forged(counts: [u32; 5], tables: &[u8]) -> Vec<u8> {
    let mut bytes = BatchBuilder::new()
        .finish(Head {
            grown: 1 << 40,
            ..Head::default()
        })
        .encode(&ID)
        .unwrap();
    for (at, count) in bytes[FIXED - 20..].chunks_exact_mut(4).zip(counts) {
        at.copy_from_slice(&count.to_le_bytes());
    }
    bytes.extend_from_slice(tables);
    seal(&mut bytes, ID.salt());
    bytes
}

fn numbers(tag: u8, numbers: &[u64]) -> Vec<u8> {
    let mut out = vec![tag];
    numbers.iter().for_each(|n| put_varint(&mut out, *n));
    out
}

#[track_caller]
fn refused(counts: [u32; 5], tables: &[u8], why: &str) {
    match decode(&forged(counts, tables), &ID) {
        Decoded::Damaged(said) => assert!(said.contains(why), "{said}"),
        other => panic!("{other:?}"),
    }
}

/// Forged batches have right checksums, and numbers that would make a reader allocate, overflow or
/// run past an end.
#[test]
fn forgeries_are_refused() {
    let more = "more than there is";
    for table in 0..5 {
        let mut counts = [0; 5];
        counts[table] = u32::MAX;
        refused(counts, &[0; 100], more);
    }
    refused([u32::MAX; 5], &[], more);

    let strip = |tag, n: &[u64]| numbers(tag, n);
    let far = u64::MAX;
    refused([0, 0, 0, 1, 0], &strip(ZERO, &[far, 1]), "largest offset");
    refused([0, 0, 0, 1, 0], &strip(ZERO, &[1, far]), "largest offset");
    refused(
        [0, 0, 0, 1, 0],
        &strip(ZERO, &[0, 1 << 63]),
        "largest offset",
    );
    let many = |len, count, stride| strip(ZERO | MANY, &[0, len, count, stride]);
    refused([0, 0, 0, 1, 0], &many(1, far, 2), "largest offset");
    refused([0, 0, 0, 1, 0], &many(1, 3, far), "largest offset");
    refused([0, 0, 0, 1, 0], &many(2, 3, 1), "overlapping");
    refused([0, 0, 0, 1, 0], &many(2, 0, 5), "overlapping");
    refused(
        [0, 0, 0, 1, 0],
        &strip(ZERO | BACK, &[5, 5]),
        "largest offset",
    );
    refused(
        [0, 0, 0, 1, 0],
        &strip(ZERO | SAME, &[0]),
        "overlapping or empty",
    );
    refused([0, 0, 0, 1, 0], &strip(KIND, &[0, 1, 0]), "unknown kind");
    refused([0, 0, 0, 1, 0], &strip(0x40, &[0, 1, 0]), "unknown kind");
    refused(
        [0, 0, 0, 1, 0],
        &strip(0, &[0, 1, 0, 0]),
        "outside of its units",
    );
    refused([0, 0, 0, 1, 0], &strip(GOES_ON, &[0, 1]), "past its units");
    let mut inline = strip(INLINE, &[0, 3, 1]);
    inline.extend_from_slice(b"abc");
    refused([0, 0, 0, 1, 3], &inline, "past its bytes");
    let mut inline = strip(INLINE, &[0, 3, far]);
    inline.extend_from_slice(b"abc");
    refused([0, 0, 0, 1, 3], &inline, "past its bytes");
    refused([0, 0, 0, 1, 0], &[0xff; 30], "unknown kind");
    refused(
        [0, 0, 0, 1, 0],
        &[&[ZERO][..], &[0xff; 30]].concat(),
        "64 bits",
    );
    refused([0, 0, 0, 0, 0], &[0], "too many");

    let unit = |unit: &[u64], crcs: usize| {
        let mut tables = vec![0; 9];
        unit.iter().for_each(|n| put_varint(&mut tables, *n));
        tables.resize(tables.len() + crcs * 4, 0);
        tables
    };
    refused([1, 1, 1, 0, 0], &unit(&[1, 0, 1, 1], 1), "does not name");
    refused([1, 1, 1, 0, 0], &unit(&[0, 0, 0, 1], 1), "0 bytes");
    let long = u64::from(UNIT_MAX) + 1;
    refused([1, 1, 1, 0, 0], &unit(&[0, 0, long, 1], 1), "a unit of");
    refused([1, 1, 1, 0, 0], &unit(&[0, 0, 1 << 32, 1], 1), "too large");
    let last = u64::from(u32::MAX) << 1;
    refused([1, 1, 1, 0, 0], &unit(&[0, last + 2, 1, 1], 1), "can hold");
    refused([1, 1, 1, 0, 0], &unit(&[0, 1, 1, 1], 1), "can hold");
    refused([1, 1, 1, 0, 0], &unit(&[0, u64::MAX, 1, 1], 1), "can hold");
    refused([1, 1, 1, 0, 0], &unit(&[0, last, 513, 1], 1), "can hold");
    refused([1, 1, 2, 0, 0], &unit(&[0, last, 512, 2], 2), "can hold");
    refused([1, 1, 1, 0, 0], &unit(&[0, 0, 1, 2], 2), "number of units");
    refused([1, 1, 2, 0, 0], &unit(&[0, 0, 1, 1], 2), "number of units");
    refused([1, 1, 1, 0, 0], &unit(&[0, 0, 1, 0], 1), "number of units");
    let mut sticks_out = unit(&[0, 0, 10, 1], 1);
    sticks_out.extend(strip(0, &[0, 5, 0, 6]));
    refused([1, 1, 1, 1, 0], &sticks_out, "past its units");
    let mut name = vec![0; 8];
    name.extend([2, 0xff, 0xfe]);
    refused([1, 0, 0, 0, 0], &name, "UTF-8");
    refused(
        [1, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 0, 9],
        "middle of a field",
    );
}

/// Growth is in one field only, and no bytes lie beyond it, so that a drain that cuts at the size
/// loses nothing.
#[test]
fn bytes_beyond_the_size_are_refused() {
    let mut strip = numbers(INLINE | GOES_ON, &[(1 << 40) - 2, 3]);
    strip.extend_from_slice(b"abc");
    refused([0, 0, 0, 1, 3], &strip, "beyond the size");
    let zeros = numbers(ZERO, &[(1 << 40) - 2, 3]);
    let decoded = decode(&forged([0, 0, 0, 1, 0], &zeros), &ID);
    assert!(matches!(decoded, Decoded::Batch(..)), "{decoded:?}");

    let mut builder = BatchBuilder::new();
    builder
        .push(ByteRange::new(5, 8), Piece::Inline(b"abc"))
        .unwrap();
    let mut batch = builder.finish(Head::default());
    assert_eq!(batch.head.grown, 8);
    batch.head.grown = 0;
    let decoded = decode(&batch.encode(&ID).unwrap(), &ID);
    batch.head.grown = 8;
    assert!(matches!(decoded, Decoded::Batch(again, _) if *again == batch));
}

/// Pieces that touch are merged into one: a forger cannot make a reader count to 2^60.
#[test]
fn touching_pieces_are_one() {
    let strip = numbers(ZERO | MANY, &[3, 1, 1 << 60, 1]);
    let Decoded::Batch(batch, _) = decode(&forged([0, 0, 0, 1, 0], &strip), &ID) else {
        panic!("refused");
    };
    let strip = batch.strips()[0];
    assert_eq!((strip.start, strip.len, strip.count), (3, 1 << 60, 1));
}

#[test]
fn another_version_is_named() {
    let mut bytes = forged([0; 5], &[]);
    bytes[FRAME] = 9;
    seal(&mut bytes, ID.salt());
    let Decoded::Damaged(why) = decode(&bytes, &ID) else {
        panic!("read a batch of another version");
    };
    assert!(why.contains("version 9"), "{why}");
}
