//! Compares the view with batches applied byte by byte.

use super::{base, plan};
use crate::sharing::layout::testing::{MAX, Model, Published, Targets, publish, seed};
use crate::sharing::layout::view::*;
use crate::sharing::layout::{LayoutId, Tail, parse};
use crate::types::FileId;
use rand::prelude::*;

const FILE: FileId = FileId { ino: 5, birth: 6 };

/// A change that a refresh finds besides batches.
type Change = Box<dyn Fn(&mut View)>;

/// A batch and its place in a layout.
struct Placed {
    node: NodeId,
    generation: u32,
    end: u64,
    published: Published,
}

impl Placed {
    fn is_in(&self, covered: &Covered) -> bool {
        self.end <= covered.upto(self.node, self.generation)
    }
}

/// Layouts of some nodes as files, and the batches in them.
struct World {
    targets: Targets,
    layouts: Vec<(LayoutId, Vec<u8>)>,
    batches: Vec<Placed>,
}

fn world(rng: &mut StdRng) -> World {
    let mut targets = Targets::default();
    let (mut layouts, mut batches) = (Vec::new(), Vec::new());
    for node in 0..rng.random_range(1..5) {
        let node = NodeId(100 - node);
        let mut epoch = Epoch(0);
        for generation in 0..rng.random_range(1..3) {
            let id = LayoutId {
                file: FILE,
                node,
                generation,
            };
            let mut bytes = id.header(&[1, 0, 0, 0, 9]).to_vec();
            for _ in 0..rng.random_range(0..5) {
                epoch.0 += rng.random_range(1..4);
                let published = publish(rng, &mut targets, node, epoch);
                bytes.extend(published.batch.encode(&id).unwrap());
                batches.push(Placed {
                    node,
                    generation,
                    end: bytes.len() as u64,
                    published,
                });
            }
            layouts.push((id, bytes));
        }
    }
    World {
        targets,
        layouts,
        batches,
    }
}

impl World {
    /// Covers the first batches of each node, a random number of them, but at least what `least`
    /// covers.
    fn some(&self, rng: &mut StdRng, least: &Covered) -> Covered {
        let mut covered = Covered::default();
        let mut more = BTreeMap::new();
        for placed in &self.batches {
            let more = more.entry(placed.node).or_insert(true);
            *more = *more && rng.random_bool(0.7);
            if *more || placed.is_in(least) {
                covered
                    .0
                    .insert((placed.node, placed.generation), placed.end);
            }
        }
        covered
    }

    /// Applies the batches that `which` chooses to `file`, ordered by epoch and node.
    fn apply(&self, file: &mut Model, which: impl Fn(&Placed) -> bool) {
        let mut chosen: Vec<&Placed> = self.batches.iter().filter(|p| which(p)).collect();
        chosen.sort_by_key(|p| (p.published.batch.head.epoch, p.node));
        chosen.iter().for_each(|p| file.apply(&p.published));
    }

    /// Reads the layouts into a view, in any order and in parts, some of them twice.
    fn read(&self, rng: &mut StdRng, view: &mut View, mut between: Vec<Change>) {
        let mut found = Vec::new();
        for (id, bytes) in &self.layouts {
            let from = view.read_upto(id.node, id.generation);
            let parsed = parse(&bytes[from as usize..], from, id);
            assert_eq!(parsed.tail, Tail::Complete);
            found.push((id, parsed.batches.into_iter().peekable()));
        }
        while let Some(at) = (0..found.len()).choose(rng) {
            let (id, batches) = &mut found[at];
            match batches.next() {
                None => drop(found.swap_remove(at)),
                Some((end, batch)) => {
                    view.add(id.node, id.generation, end, batch.clone());
                    if rng.random_bool(0.1) {
                        view.add(id.node, id.generation, end, batch);
                    }
                }
            }
            if rng.random_bool(0.1)
                && let Some(change) = between.pop()
            {
                change(view);
            }
        }
        between.iter().for_each(|change| change(view));
    }

    /// Returns what a reader sees through `view` when the canonical file is `canonical`.
    fn seen(&self, view: &View, canonical: &Model) -> Model {
        let limit = view.limit().min(MAX) as usize;
        let mut bytes = canonical.bytes.clone();
        bytes[limit..].fill(0);
        for piece in view.pieces(ByteRange::ALL) {
            let at = piece.range.start as usize;
            let new = self.targets.read(&piece);
            bytes[at..at + new.len()].copy_from_slice(&new);
        }
        Model {
            bytes,
            size: view.size(canonical.size),
            mtime: view.mtime().unwrap_or(canonical.mtime),
        }
    }
}

/// Checks the order of decision 0008: whatever a base and a plan cover, and in whatever order
/// things were read, the view shows the same as applying the batches byte by byte. The same holds
/// while a round is half done, and after it; and a drain is told every unit that it has to write
/// and no other.
fn check(seed: u64) {
    let rng = &mut StdRng::seed_from_u64(seed);
    let world = world(rng);
    let in_base = world.some(rng, &Covered::default());
    let in_plan = world.some(rng, &in_base);
    let with_plan = rng.random_bool(0.7);

    let mut canonical = Model::new(rng);
    world.apply(&mut canonical, |p| p.is_in(&in_base));
    let planned = |p: &Placed| with_plan && p.is_in(&in_plan);
    let mut after_round = canonical.clone();
    world.apply(&mut after_round, |p| planned(p) && !p.is_in(&in_base));
    let mut expected = after_round.clone();
    world.apply(&mut expected, |p| !planned(p) && !p.is_in(&in_base));

    let mut view = View::default();
    let (old, new, round) = (
        base(3, Covered::default()),
        base(4, in_base.clone()),
        plan(5, in_plan.clone()),
    );
    let mut changes: Vec<Change> = vec![
        Box::new(move |view| view.set_base(old.clone())),
        Box::new(move |view| view.set_base(new.clone())),
    ];
    if with_plan {
        changes.push(Box::new(move |view| view.set_plan(Some(round.clone()))));
    }
    changes.shuffle(rng);
    if rng.random_bool(0.3) {
        changes.pop().unwrap()(&mut view);
    }
    world.read(rng, &mut view, changes);
    if !with_plan {
        view.set_plan(Some(plan(4, in_plan.clone())));
    }
    assert_eq!(world.seen(&view, &canonical), expected, "seed {seed}");

    let start = rng.random_range(0..MAX);
    let part = ByteRange::new(start, rng.random_range(start..=MAX));
    let whole = view.pieces(ByteRange::ALL);
    let clipped = whole.iter().filter_map(|p| p.range.intersect(&part));
    let pieces = view.pieces(part);
    assert!(
        pieces.iter().map(|p| p.range).eq(clipped),
        "seed {seed}: pieces of {part}"
    );
    // Reading in parts gives the same, however small the parts are.
    let mut at = 0;
    let mut in_parts = Vec::new();
    while at < MAX {
        let (some, upto) = view.pieces_upto(ByteRange::new(at, MAX), 1);
        assert!(upto > at, "seed {seed}: no way on from {at}");
        in_parts.extend(some.into_iter().map(|p| p.range));
        at = upto;
    }
    let bytes = |ranges: &[ByteRange]| ranges.iter().map(ByteRange::len).sum::<u64>();
    let whole_ranges: Vec<_> = whole.iter().map(|p| p.range).collect();
    assert_eq!(bytes(&in_parts), bytes(&whole_ranges), "seed {seed}");
    assert!(
        whole.is_sorted_by(|a, b| a.range.end <= b.range.start),
        "seed {seed}"
    );

    check_touched(rng, &view, &whole, seed);

    // A round is under way: the canonical file is cut and has some units of the merge.
    let round = plan(5, in_plan);
    let merge = view.covered_by(&round);
    if with_plan {
        assert_eq!(
            world.seen(&merge, &canonical),
            after_round,
            "seed {seed}: the merge"
        );
        let mut half = canonical.clone();
        half.cut(merge.limit().min(MAX));
        half.mtime = Timestamp(8);
        for unit in merge.ranges(64, 0, usize::MAX) {
            if rng.random_bool(0.5) {
                for piece in merge.pieces(unit) {
                    let at = piece.range.start as usize;
                    let new = world.targets.read(&piece);
                    half.bytes[at..at + new.len()].copy_from_slice(&new);
                    if !matches!(piece.source, ViewSource::Zero) {
                        half.size = half.size.max(piece.range.end);
                    }
                }
            }
        }
        let mut seen = world.seen(&view, &half);
        if view.is_empty() {
            seen.mtime = expected.mtime;
        }
        assert_eq!(seen, expected, "seed {seed}: half of a round is done");

        view.set_base(base(5, round.covered.clone()));
        assert_eq!(
            world.seen(&view, &after_round),
            expected,
            "seed {seed}: a round is done"
        );
    }

    let all = view.covered_now();
    for (id, bytes) in &world.layouts {
        let read = view.read_upto(id.node, id.generation);
        assert_eq!(all.upto(id.node, id.generation), read, "seed {seed}");
        let has_batches = world
            .batches
            .iter()
            .any(|p| (p.node, p.generation) == (id.node, id.generation));
        assert!(!has_batches || read == bytes.len() as u64, "seed {seed}");
    }
    let newest = world
        .batches
        .iter()
        .map(|p| p.published.batch.head.epoch)
        .max();
    view.set_base(base(6, all));
    assert!(view.is_empty(), "seed {seed}");
    // Batches that the base covered before they were read were never seen.
    assert!(
        Some(view.epoch()) <= newest || view.epoch() == Epoch(0),
        "seed {seed}"
    );
    assert_eq!(
        world.seen(&view, &expected),
        expected,
        "seed {seed}: all is drained"
    );
}

/// Checks that `ranges`, in pages of any size, returns exactly the units that the view's pieces
/// touch.
fn check_touched(rng: &mut StdRng, view: &View, pieces: &[ViewPiece], seed: u64) {
    let unit = rng.random_range(1..200);
    let (mut found, mut from) = (Vec::new(), 0);
    loop {
        let page = view.ranges(unit, from, rng.random_range(1..5));
        let Some(last) = page.last() else { break };
        from = last.end;
        found.extend(page);
    }
    let touched = pieces
        .iter()
        .flat_map(|p| p.range.start / unit..=(p.range.end - 1) / unit);
    let touched: BTreeSet<u64> = touched.collect();
    let touched = touched
        .iter()
        .map(|u| ByteRange::new(u * unit, (u + 1) * unit));
    assert!(
        found.iter().copied().eq(touched),
        "seed {seed}: units of {unit}"
    );
}

#[test]
fn a_view_is_its_batches_applied_one_after_the_other() {
    let first = seed("view");
    for n in 0..4000 {
        check(first.wrapping_add(n));
    }
}
