mod model;

use super::*;
use crate::sharing::layout::testing::seed;
use crate::sharing::layout::{BatchBuilder, Head, Piece};
use rand::prelude::*;

fn plan(term: u64, covered: Covered) -> Plan {
    Plan {
        term,
        covered,
        unit: 64,
        domains: 1,
        size: 0,
        mtime: Timestamp(0),
        epoch: Epoch(0),
        limit: u64::MAX,
    }
}

fn base(term: u64, covered: Covered) -> Base {
    Base {
        term,
        covered,
        epoch: Epoch(0),
    }
}

fn write(epoch: u64, range: ByteRange) -> Arc<Batch> {
    let mut builder = BatchBuilder::new();
    let bytes = vec![epoch as u8; range.len() as usize];
    builder.push(range, Piece::Inline(&bytes)).unwrap();
    Arc::new(builder.finish(Head {
        epoch: Epoch(epoch),
        mtime: Timestamp(epoch),
        ..Head::default()
    }))
}

fn byte(view: &View, at: u64) -> Option<u8> {
    let pieces = view.pieces(ByteRange::new(at, at + 1));
    match &pieces.first()?.source {
        ViewSource::Inline { batch, at } => Some(batch.inline()[*at as usize]),
        other => panic!("{other:?}"),
    }
}

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

/// "A batch that a plan covers is older than every batch that it does not cover."
#[test]
fn a_plan_makes_what_it_covers_older() {
    let mut view = View::default();
    view.add(A, 0, 100, write(9, ByteRange::new(0, 10)));
    view.add(B, 0, 100, write(2, ByteRange::new(5, 15)));
    assert_eq!(
        (byte(&view, 5), view.mtime()),
        (Some(9), Some(Timestamp(9)))
    );
    let covered = Covered(BTreeMap::from([((A, 0), 100)]));
    view.set_plan(Some(plan(1, covered.clone())));
    assert_eq!(
        (byte(&view, 5), view.mtime()),
        (Some(2), Some(Timestamp(2)))
    );
    view.set_plan(Some(plan(0, Covered::default())));
    assert_eq!(byte(&view, 5), Some(2), "an older plan came back");
    view.set_base(base(1, covered));
    assert_eq!((byte(&view, 4), byte(&view, 5)), (None, Some(2)));
    assert!(view.plan().is_none(), "a plan that the base has reached");
}

/// A layout ends at its seal whatever lies past it, also for a reader that had read past it before.
#[test]
fn what_was_read_behind_a_seal_is_forgotten() {
    let mut view = View::default();
    view.add(A, 0, 100, write(1, ByteRange::new(0, 10)));
    view.add(A, 0, 200, write(2, ByteRange::new(0, 10)));
    view.add(A, 1, 200, write(2, ByteRange::new(20, 30)));
    assert!(view.end_layout(A, 0, u64::MAX));
    assert!(view.end_layout(A, 0, 200));
    assert_eq!(byte(&view, 0), Some(2));
    assert!(!view.clone().end_layout(A, 0, 150), "within a batch");
    assert!(view.clone().end_layout(A, 0, 0), "before the first");
    assert!(view.end_layout(A, 0, 100));
    assert_eq!((byte(&view, 0), byte(&view, 20)), (Some(1), Some(2)));
    assert_eq!(view.read_upto(A, 0), 100);
    assert_eq!(view.covered_now().upto(A, 0), 100, "no plan has more of it");
    assert_eq!(view.epoch(), Epoch(2), "epochs that were seen stay seen");
}

/// With equal epochs, the batch of the larger node id is newer, on every node.
#[test]
fn equal_epochs_are_ordered_by_node() {
    let range = ByteRange::new(0, 4);
    let (low, high) = (write(3, range), write(3, range));
    for swap in [false, true] {
        let mut view = View::default();
        if swap {
            view.add(B, 0, 100, high.clone());
            view.add(A, 0, 100, low.clone());
        } else {
            view.add(A, 0, 100, low.clone());
            view.add(B, 0, 100, high.clone());
        }
        let pieces = view.pieces(range);
        let ViewSource::Inline { batch, .. } = &pieces[0].source else {
            panic!("{pieces:?}");
        };
        assert!(Arc::ptr_eq(batch, &high));
    }
}

/// Covered bytes are not read again, and an older base brings nothing back. A layout that is gone
/// is in no new plan, but its covered length is remembered as long as an old listing may still show
/// it.
#[test]
fn covered_layouts_stay_covered_until_they_are_gone() {
    let mut view = View::default();
    let batch = write(4, ByteRange::new(0, 4));
    view.add(A, 1, 100, batch.clone());
    view.set_base(base(
        7,
        Covered(BTreeMap::from([((A, 1), 100), ((B, 1), 300)])),
    ));
    assert!(view.is_empty());
    assert_eq!((view.read_upto(A, 1), view.read_upto(B, 1)), (100, 300));
    view.set_base(base(6, Covered::default()));
    view.add(A, 1, 100, batch.clone());
    assert!(
        view.is_empty(),
        "an older base or an old batch brought it back"
    );
    assert_eq!(view.covered_now().upto(B, 1), 300);
    view.forget_layout(B, 1);
    assert!(view.layouts().eq([(A, 1)]));
    assert_eq!(view.read_upto(B, 1), 300);
    view.add(B, 1, 250, batch.clone());
    assert!(
        view.is_empty(),
        "a covered batch of a layout that was taken for gone"
    );
    view.add(B, 1, 400, batch);
    assert!(view.layouts().eq([(A, 1), (B, 1)]));
    view.forget_layout(B, 1);
    assert!(view.is_empty());
    assert_eq!(view.epoch(), Epoch(4), "an epoch that was seen stays seen");
}

/// A huge sparse file costs what is in it, not what it spans.
#[test]
fn units_of_a_sparse_file_are_found_without_a_walk() {
    let mut builder = BatchBuilder::new();
    let far = i64::MAX as u64 - 1;
    for i in 0..1_000u64 {
        builder
            .push(ByteRange::new(i << 52, (i << 52) + 1), Piece::Zero)
            .unwrap();
    }
    builder
        .push(ByteRange::new(far, far + 1), Piece::Zero)
        .unwrap();
    let mut view = View::default();
    view.add(A, 0, 100, Arc::new(builder.finish(Head::default())));
    let ranges = view.ranges(1 << 20, 0, usize::MAX);
    assert_eq!(ranges.len(), 1_001);
    assert_eq!(ranges[999].start, 999 << 52);
    assert_eq!(view.ranges(1 << 20, far, 10).len(), 1);
    assert_eq!(view.pieces(ByteRange::ALL).len(), 1_001);
}

/// Neighbouring bytes of four nodes: every byte comes from the node that wrote it, whatever the
/// chunks in which a range is processed.
#[test]
fn single_interleaved_bytes() {
    let mut view = View::default();
    for node in 0..4u64 {
        let mut builder = BatchBuilder::new();
        for i in 0..20_000 {
            let at = i * 4 + node;
            builder
                .push(ByteRange::new(at, at + 1), Piece::Inline(&[node as u8]))
                .unwrap();
        }
        let batch = builder.finish(Head::default());
        assert_eq!(batch.strips().len(), 1);
        view.add(NodeId(node), 0, 100, Arc::new(batch));
    }
    let pieces = view.pieces(ByteRange::ALL);
    assert_eq!(pieces.len(), 80_000);
    for (at, piece) in pieces.iter().enumerate() {
        let ViewSource::Inline { batch, at: place } = &piece.source else {
            panic!("{piece:?}");
        };
        assert_eq!(piece.range, ByteRange::new(at as u64, at as u64 + 1));
        assert_eq!(batch.inline()[*place as usize], at as u8 % 4);
    }
}

/// More batches than a lookup checks one by one, and more than are asked in turn for a unit.
#[test]
fn very_many_batches() {
    let rng = &mut StdRng::seed_from_u64(seed("very many batches"));
    for count in [300, 20_000] {
        let mut view = View::default();
        let mut newest = BTreeMap::new();
        for i in 0..count {
            let start = rng.random_range(0..count * 40);
            let len = rng.random_range(1..30);
            view.add(
                NodeId(i),
                0,
                100,
                write(i, ByteRange::new(start, start + len)),
            );
            newest.extend((start..start + len).map(|at| (at, i)));
        }
        let mut found = BTreeMap::new();
        for piece in view.pieces(ByteRange::ALL) {
            let ViewSource::Inline { batch, .. } = &piece.source else {
                panic!("{piece:?}");
            };
            let epoch = batch.head.epoch.0;
            found.extend((piece.range.start..piece.range.end).map(|at| (at, epoch)));
        }
        assert!(found == newest, "{count} batches");
        let units = newest.keys().map(|at| at / 64).collect::<BTreeSet<u64>>();
        let ranges = view.ranges(64, 0, usize::MAX);
        assert!(
            ranges.iter().map(|r| r.start / 64).eq(units),
            "{count} batches"
        );
    }
}
