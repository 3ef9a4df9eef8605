use super::*;
use crate::sharing::layout::{Decoded, LayoutId, decode};
use crate::types::{FileId, NodeId};
use std::sync::Arc;

pub(super) const ID: LayoutId = LayoutId {
    file: FileId { ino: 1, birth: 2 },
    node: NodeId(3),
    generation: 4,
};

fn subfile() -> SubfileRef {
    SubfileRef {
        run: 1,
        no: 2,
        ost: "ost-0".into(),
    }
}

fn unit(block: u32, len: u32) -> SubUnit {
    SubUnit {
        subfile: 2,
        block,
        len,
        crc: block,
    }
}

/// Pieces of `len` bytes at `starts`, packed into units of `unit_len` bytes without gaps.
fn packed(starts: impl Iterator<Item = u64>, len: u64, unit_len: u32) -> BatchBuilder {
    let subfile = subfile();
    let mut builder = BatchBuilder::new();
    let (mut block, mut used) = (0, 0);
    for start in starts {
        let mut at = start;
        while at < start + len {
            if used == unit_len {
                (block, used) = (block + unit_len.div_ceil(512), 0);
            }
            let part = (start + len - at).min(u64::from(unit_len - used));
            let piece = Piece::Subfile {
                subfile: &subfile,
                unit: unit(block, unit_len),
                skip: used,
            };
            builder.push(ByteRange::new(at, at + part), piece).unwrap();
            at += part;
            used += part as u32;
        }
    }
    builder
}

/// A node's part of an interleaved file is one strip, however its bytes lie in units.
#[test]
fn a_stride_is_one_strip() {
    for unit_len in [100, 470, 1000, UNIT_MAX] {
        let starts = (0..500).map(|i| 7 + i * 1000);
        let batch = packed(starts, 470, unit_len).finish(Head::default());
        let [strip] = batch.strips() else {
            panic!("{:?}", batch.strips());
        };
        assert_eq!(
            (strip.start, strip.len, strip.stride, strip.count),
            (7, 470, 1000, 500)
        );
        assert_eq!(batch.head.grown, 7 + 499 * 1000 + 470);
    }
}

/// A pattern is found wherever it begins, and the pieces that follow it are not included.
#[test]
fn a_pattern_between_others() {
    let starts = [0, 999, 3000, 4000, 5000, 6000, 6500, 20_000];
    let batch = packed(starts.into_iter(), 100, 700).finish(Head::default());
    let found: Vec<_> = batch.strips().iter().map(|s| (s.start, s.count)).collect();
    assert_eq!(found, [(0, 1), (999, 1), (3000, 4), (6500, 1), (20_000, 1)]);
}

#[test]
fn one_behind_the_other_is_one_piece() {
    let batch = packed((0..50).map(|i| i * 470), 470, 1000).finish(Head::default());
    assert_eq!(batch.strips().len(), 1);
    assert_eq!(
        (batch.strips()[0].len, batch.strips()[0].count),
        (50 * 470, 1)
    );
}

/// Irregular pieces stay apart: those of another length, at another distance, with bytes elsewhere,
/// and a range that is written twice.
#[test]
fn what_differs_is_not_joined() {
    let subfile = subfile();
    let mut builder = BatchBuilder::new();
    let mut push = |start, len: u64, skip| {
        let piece = Piece::Subfile {
            subfile: &subfile,
            unit: unit(0, 1000),
            skip,
        };
        builder
            .push(ByteRange::new(start, start + len), piece)
            .unwrap();
    };
    push(0, 10, 0);
    push(20, 10, 10);
    push(41, 10, 20);
    push(62, 11, 30);
    push(83, 11, 50);
    push(83, 11, 61);
    let batch = builder.finish(Head::default());
    let strips: Vec<_> = batch
        .strips()
        .iter()
        .map(|s| (s.start, s.len, s.stride, s.count))
        .collect();
    assert_eq!(
        strips,
        [
            (0, 10, 0, 1),
            (20, 10, 0, 1),
            (41, 10, 0, 1),
            (62, 11, 0, 1),
            (83, 11, 0, 1),
            (83, 11, 0, 1)
        ]
    );
    assert_eq!(batch.units().len(), 1, "a unit is named once");
    assert_eq!(batch.subfiles().len(), 1);
}

#[test]
fn what_no_reader_would_take_is_refused() {
    let subfile = subfile();
    let mut builder = BatchBuilder::new();
    let range = ByteRange::new(0, 10);
    let mut from = |unit, skip| {
        let piece = Piece::Subfile {
            subfile: &subfile,
            unit,
            skip,
        };
        builder.push(range, piece)
    };
    assert_eq!(from(unit(u32::MAX, 512), 0), Ok(()));
    for (unit, skip) in [
        (unit(0, 9), 0),
        (unit(0, 10), 1),
        (unit(0, UNIT_MAX + 1), 0),
        (unit(u32::MAX, 513), 0),
    ] {
        let refused = BuildError::Unit { range, unit, skip };
        assert_eq!(from(unit, skip), Err(refused));
    }
    let far = ByteRange::new(5, 1 << 63);
    assert_eq!(builder.push(far, Piece::Zero), Err(BuildError::Range(far)));
    assert_eq!(
        builder.push(range, Piece::Inline(b"short")),
        Err(BuildError::Inline { range, given: 5 })
    );
    let long = SubfileRef {
        ost: "x".repeat(256),
        ..subfile
    };
    let piece = Piece::Subfile {
        subfile: &long,
        unit: unit(0, 10),
        skip: 0,
    };
    assert_eq!(
        builder.push(range, piece),
        Err(BuildError::Target(long.ost.clone()))
    );
    let batch = builder.finish(Head::default());
    assert_eq!(batch.strips().len(), 1, "what was refused left something");
}

/// A publisher that checks `encoded_len` never ends up with a batch that is too long to be encoded.
#[test]
fn a_full_builder_still_encodes() {
    let mut builder = BatchBuilder::new();
    let bytes = vec![7; 1 << 20];
    let mut at = 0;
    let full = loop {
        let range = ByteRange::new(at, at + bytes.len() as u64);
        if let Err(e) = builder.push(range, Piece::Inline(&bytes)) {
            break e;
        }
        at += 2 * bytes.len() as u64;
    };
    assert_eq!(full, BuildError::Full);
    let small = loop {
        let promised = builder.encoded_len();
        let piece = Piece::Inline(&bytes[..3]);
        if let Err(e) = builder.push(ByteRange::new(at, at + 3), piece) {
            break e;
        }
        assert!(builder.encoded_len() > promised);
        at += at % 7 + 4;
    };
    assert_eq!(small, BuildError::Full);
    let promised = builder.encoded_len();
    let batch = builder.finish(Head::default());
    let encoded = batch.encode(&ID).unwrap();
    assert!(encoded.len() <= promised, "{} {promised}", encoded.len());
    assert_eq!(
        decode(&encoded, &ID),
        Decoded::Batch(Arc::new(batch), encoded.len()),
        "round trip"
    );
}
