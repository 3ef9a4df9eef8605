//! Layouts, plans and bases come from other machines: whatever they contain, the decoders do not
//! panic, their memory is bounded by the size of the input, and everything that they accept can be
//! used.
//!
//! The inputs are a million layouts that get past their header, and a quarter of a million plans
//! and bases: valid files with bytes changed, moved, cut and repeated, most of them with recomputed
//! checksums, as a forger would have, and bytes that never were a file. The checksums are computed
//! here according to `docs/FORMAT.md`, not by the code under test.

use layout_index::checksum::{append, crc32c};
use layout_index::extent::{SubUnit, UNIT_MAX};
use layout_index::sharing::layout::{
    Base, BatchBuilder, Covered, Decoded, HEADER_LEN, Head, LayoutId, Piece, Plan, SubfileRef,
    View, ViewSource, decode, parse,
};
use layout_index::{ByteRange, Epoch, FileId, FileNo, NodeId, Seq, Timestamp};
use rand::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Counts allocated bytes. The only test of this program runs in one thread.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches none of its memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are those that the system allocator needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's guarantees are those that the system allocator needs.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes of memory that decoding may take for each byte of input.
const WORTH: usize = 64;

/// Runs `decoder` on input of `len` bytes and checks how much memory it had allocated at once.
fn bounded<T>(len: usize, context: &str, decoder: impl FnOnce() -> T) -> T {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = decoder();
    let took = PEAK.load(Ordering::Relaxed) - before;
    assert!(
        took <= 4096 + len * WORTH,
        "{context}: {len} bytes of input took {took} bytes of memory"
    );
    result
}

const ID: LayoutId = LayoutId {
    file: FileId { ino: 11, birth: 12 },
    node: NodeId(13),
    generation: 14,
};

fn subfile(rng: &mut StdRng) -> SubfileRef {
    SubfileRef {
        run: rng.random(),
        no: rng.random_range(0..4),
        ost: ["", "ost-1", "näme"][rng.random_range(0..3)].into(),
    }
}

fn batch(rng: &mut StdRng) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for _ in 0..rng.random_range(0..4) {
        let subfile = subfile(rng);
        let len = rng.random_range(1..5000);
        let stride = len + rng.random_range(0..5000);
        let mut at = rng.random::<u64>() >> rng.random_range(2..60);
        for block in 0..rng.random_range(1..5) {
            let range = ByteRange::new(at, at + len);
            let unit = SubUnit {
                subfile: 0,
                block: block * 10,
                len: len as u32 + 7,
                crc: rng.random(),
            };
            let bytes = vec![1; len.min(20) as usize];
            let piece = match rng.random_range(0..6) {
                0 => Piece::Zero,
                1 => Piece::Inline(&bytes),
                _ => Piece::Subfile {
                    subfile: &subfile,
                    unit,
                    skip: 7,
                },
            };
            let range = match piece {
                Piece::Inline(bytes) => ByteRange::new(at, at + bytes.len() as u64),
                _ => range,
            };
            builder.push(range, piece).unwrap();
            at += stride;
        }
    }
    let head = Head {
        epoch: Epoch(rng.random_range(0..100)),
        period: FileNo(3),
        upto: Seq(4),
        cut: rng.random_bool(0.3).then(|| rng.random_range(0..10_000)),
        grown: rng.random_range(0..10_000),
        mtime: Timestamp(5),
    };
    builder.finish(head).encode(&ID).unwrap()
}

fn covered(rng: &mut StdRng) -> Covered {
    let entry = |_| {
        (
            (NodeId(rng.random_range(0..9)), 0),
            rng.random::<u64>() >> 2,
        )
    };
    Covered((0..5).map(entry).collect::<BTreeMap<_, _>>())
}

fn plan(rng: &mut StdRng) -> Vec<u8> {
    let plan = Plan {
        term: 3,
        covered: covered(rng),
        unit: 1 << 20,
        domains: 8,
        size: 5,
        mtime: Timestamp(6),
        epoch: Epoch(7),
        limit: u64::MAX,
    };
    plan.encode(ID.file)
}

fn base(rng: &mut StdRng) -> Vec<u8> {
    let base = Base {
        term: 3,
        covered: covered(rng),
        epoch: Epoch(7),
    };
    base.encode(ID.file)
}

/// Changes some of `bytes`, from offset `from` on.
fn mutate(rng: &mut StdRng, bytes: &mut Vec<u8>, from: usize) {
    for _ in 0..rng.random_range(1..5) {
        if bytes.len() <= from {
            return;
        }
        let at = rng.random_range(from..bytes.len());
        let end = rng.random_range(at..bytes.len().min(at + 20) + 1);
        match rng.random_range(0..8) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.random_range(0..5)],
            3 => bytes[at..end].fill([0, 0xff, 0x80][rng.random_range(0..3)]),
            4 => drop(bytes.drain(at..end)),
            5 => bytes.truncate(at),
            6 => {
                let part = bytes[at..end].to_vec();
                let to = rng.random_range(from..=bytes.len());
                bytes.splice(to..to, part);
            }
            _ => {
                let wide = bytes.len().min(at + 8);
                let number = [u64::MAX, i64::MAX as u64, 1 << 32, 1 << 62][rng.random_range(0..4)];
                bytes[at..wide].copy_from_slice(&number.to_le_bytes()[..wide - at]);
            }
        }
    }
}

fn salt() -> u32 {
    crc32c(&ID.header(&[])[12..44])
}

/// Makes a batch's length and checksums fit its bytes.
fn seal_batch(batch: &mut Vec<u8>) {
    batch.resize(batch.len().max(12), 0);
    let len = batch.len() as u32;
    batch[0..4].copy_from_slice(&len.to_le_bytes());
    let crc = append(salt(), &batch[12..]);
    batch[4..8].copy_from_slice(&crc.to_le_bytes());
    let crc = append(salt(), &batch[..8]);
    batch[8..12].copy_from_slice(&crc.to_le_bytes());
}

fn seal_whole(file: &mut [u8]) {
    if file.len() >= 12 {
        let crc = append(crc32c(&file[..8]), &file[12..]);
        file[8..12].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A mutated layout of some batches; true if its checksums were recomputed.
fn layout(rng: &mut StdRng, valid: &[Vec<u8>]) -> (Vec<u8>, bool) {
    let mut bytes = ID.header(&[1, 0, 0, 0, 9]).to_vec();
    let forged = rng.random_bool(0.8);
    for _ in 0..rng.random_range(1..4) {
        let mut batch = match rng.random_range(0..10) {
            0 => (0..rng.random_range(0..200))
                .map(|_| rng.random())
                .collect(),
            _ => valid.choose(rng).unwrap().clone(),
        };
        if forged {
            // Mutates from the end of the frame on, or only in the tables, which hold the lengths.
            let from = if rng.random_bool(0.5) { 84 } else { 12 };
            mutate(rng, &mut batch, from);
            seal_batch(&mut batch);
        }
        bytes.extend(batch);
    }
    if !forged || rng.random_bool(0.1) {
        mutate(rng, &mut bytes, 0);
    }
    (bytes, forged)
}

/// Checks that every query of a decoded view gives results within bounds.
fn check_view(rng: &mut StdRng, view: &View, context: &str) {
    let mut from = 0;
    for _ in 0..3 {
        let unit = 1 << rng.random_range(0..40);
        let units = view.ranges(unit, from, 3);
        let in_order = units.iter().all(|u| u.start % unit == 0 && u.end > from);
        assert!(
            in_order && units.is_sorted_by(|a, b| a.end <= b.start),
            "{context}"
        );
        let Some(touched) = units.last() else { break };
        from = touched.end;
        let range = ByteRange::new(touched.start, touched.end.min(touched.start + 600));
        let pieces = view.pieces(range);
        assert!(
            pieces.is_sorted_by(|a, b| a.range.end <= b.range.start),
            "{context}"
        );
        for piece in &pieces {
            assert_eq!(
                piece.range.intersect(&range),
                Some(piece.range),
                "{context}"
            );
            let len = piece.range.len();
            match &piece.source {
                ViewSource::Zero => {}
                ViewSource::Inline { batch, at } => {
                    assert!(
                        u64::from(*at) + len <= batch.inline().len() as u64,
                        "{context}"
                    );
                }
                ViewSource::Subfile {
                    batch, unit, skip, ..
                } => {
                    let (_, unit) = batch.unit(*unit);
                    assert!(unit.len <= UNIT_MAX && unit.offset() < 1 << 41, "{context}");
                    assert!(u64::from(*skip) + len <= u64::from(unit.len), "{context}");
                }
            }
        }
    }
    assert!(view.size(5) <= i64::MAX as u64, "{context}");
}

/// Number of layouts that must get past the header, to the decoder of batches.
const LAYOUTS: u64 = 1_000_000;
const PLANS_AND_BASES: u64 = 250_000;

/// Results of all inputs of a kind.
#[derive(Default)]
struct Tally {
    inputs: u64,
    /// Inputs with recomputed checksums.
    forged: u64,
    /// Inputs that reached the decoder of batches.
    reached: u64,
    /// Batches, plans or bases that were accepted.
    decoded: u64,
}

fn seeded() -> (u64, StdRng) {
    let seed: u64 = match std::env::var("FOREBAY_SEED") {
        Ok(text) => text.parse().expect("FOREBAY_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("layout fuzz: replay with FOREBAY_SEED={seed}");
    (seed, StdRng::seed_from_u64(seed))
}

fn one_layout(rng: &mut StdRng, valid: &[Vec<u8>], tally: &mut Tally, context: &str) {
    let (bytes, forged) = layout(rng, valid);
    tally.forged += u64::from(forged);
    let parsed = bounded(bytes.len(), context, || parse(&bytes, 0, &ID));
    // Every header here has a handle: without one, nothing after the header was decoded.
    tally.reached += u64::from(!parsed.handle.is_empty());
    let mut view = View::default();
    for (end, batch) in parsed.batches {
        assert!(
            end <= bytes.len() as u64 && end > HEADER_LEN as u64,
            "{context}"
        );
        if tally.inputs.is_multiple_of(16) {
            let again = decode(&batch.encode(&ID).unwrap(), &ID);
            let Decoded::Batch(again, _) = again else {
                panic!("{context}: encoded anew: {again:?}");
            };
            assert_eq!(again, batch, "{context}");
        }
        tally.decoded += 1;
        view.add(ID.node, ID.generation, end, batch);
    }
    check_view(rng, &view, context);
}

fn one_plan_or_base(rng: &mut StdRng, valid: &[Vec<u8>], is_plan: bool, context: &str) -> bool {
    let mut bytes = valid.choose(rng).unwrap().clone();
    let from = if rng.random_bool(0.5) { 32 } else { 0 };
    mutate(rng, &mut bytes, from);
    if rng.random_bool(0.8) {
        seal_whole(&mut bytes);
    }
    let ok = bounded(bytes.len(), context, || match is_plan {
        true => Plan::decode(&bytes, ID.file).map(|p| assert!(p.unit > 0 && p.domains > 0)),
        false => Base::decode(&bytes, ID.file).map(drop),
    });
    ok.is_ok()
}

/// This is the only test of the program, because memory is counted for the whole process.
#[test]
fn a_million_hostile_files() {
    let (seed, mut rng) = seeded();
    let rng = &mut rng;
    let batches: Vec<Vec<u8>> = (0..500).map(|_| batch(rng)).collect();
    let (plans, bases): (Vec<_>, Vec<_>) = (0..50).map(|_| (plan(rng), base(rng))).unzip();
    let mut layouts = Tally::default();
    while layouts.reached < LAYOUTS {
        let context = format!("seed {seed} layout {}", layouts.inputs);
        one_layout(rng, &batches, &mut layouts, &context);
        layouts.inputs += 1;
    }
    let mut whole = Tally::default();
    while whole.inputs < PLANS_AND_BASES {
        let context = format!("seed {seed} plan or base {}", whole.inputs);
        let is_plan = whole.inputs.is_multiple_of(2);
        let valid = if is_plan { &plans } else { &bases };
        let through = one_plan_or_base(rng, valid, is_plan, &context);
        whole.decoded += u64::from(through);
        whole.inputs += 1;
    }
    println!(
        "{} layouts, {} of them with checksums made anew, {} past their header: {} batches were let \
         through; {} plans and bases: {} were",
        layouts.inputs,
        layouts.forged,
        layouts.reached,
        layouts.decoded,
        whole.inputs,
        whole.decoded
    );
    assert!(
        layouts.decoded > 100_000 && whole.decoded > 10_000,
        "the inputs are too wild to test anything"
    );
}
