use super::*;
use crate::extent::{BLOCK, SubUnit};
use crate::sharing::layout::{BatchBuilder, Covered, Head, Piece};
use crate::sharing::shared_dir::{Owner, Patience};
use crate::types::Epoch;
use std::time::Duration;

const FILE: FileId = FileId { ino: 7, birth: 8 };
const NODE: NodeId = NodeId(1);
const LEASE: Duration = Duration::from_secs(60);

struct Bench {
    _dir: tempfile::TempDir,
    shared_dir: SharedDir,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let backing = std::fs::File::open(dir.path()).unwrap().into();
        let me = Owner { id: NODE, run: 1 };
        let shared_dir = SharedDir::join(backing, me, "n", LEASE).unwrap();
        Bench {
            _dir: dir,
            shared_dir,
        }
    }

    /// Makes a layout of one batch with these parts of subfile 1: the block at which a unit begins,
    /// the length of the unit, and which bytes of it. Returns the length of the layout.
    fn layout(&self, generation: u32, parts: &[(u64, u32, std::ops::Range<u32>)]) -> u64 {
        let subfile = SubfileRef {
            run: 1,
            no: 1,
            ost: "ost".into(),
        };
        let mut builder = BatchBuilder::new();
        let mut at = 0;
        for (block, len, part) in parts {
            let unit = SubUnit {
                subfile: 0,
                block: (block * ALIGN / BLOCK) as u32,
                len: *len,
                crc: 0,
            };
            let range = ByteRange::new(at, at + u64::from(part.end - part.start));
            let piece = Piece::Subfile {
                subfile: &subfile,
                unit,
                skip: part.start,
            };
            builder.push(range, piece).unwrap();
            at = range.end + 10;
        }
        let head = Head {
            epoch: Epoch(1),
            ..Head::default()
        };
        let id = LayoutId {
            file: FILE,
            node: NODE,
            generation,
        };
        let mut bytes = id.header(&[]).to_vec();
        bytes.extend(builder.finish(head).encode(&id).unwrap());
        self.shared_dir
            .append_layout(FILE, generation, 0, &bytes, Patience::Forever)
            .unwrap();
        bytes.len() as u64
    }

    fn base(&self, layouts: &[(u32, u64)]) {
        let covered = layouts.iter().map(|(gen_no, len)| ((NODE, *gen_no), *len));
        let base = Base {
            term: 1,
            covered: Covered(covered.collect()),
            epoch: Epoch(1),
        };
        self.shared_dir
            .put_base(FILE, 1, &base.encode(FILE))
            .unwrap();
    }

    fn idle(&self) -> Vec<IdleSubfile> {
        idle_subfiles(&self.shared_dir, FILE, NODE).unwrap()
    }
}

#[test]
fn one_that_is_published_to_the_last_byte_may_go() {
    let bench = Bench::new();
    // Two appends; both end within a block, and the rest of the block is padding.
    let len = bench.layout(1, &[(0, 5000, 0..5000), (2, 100, 0..60), (2, 100, 60..100)]);
    assert!(bench.idle().is_empty(), "nothing is drained");
    bench.base(&[(1, len)]);
    let idle = bench.idle();
    assert_eq!(idle.len(), 1);
    assert_eq!(idle[0].ost, "ost");
    assert!(idle[0].name.starts_with(&NODE.to_string()));
    for len in [0, 2 * ALIGN + 100, 3 * ALIGN] {
        assert!(idle[0].is_all(len), "{len}");
    }
    assert!(!idle[0].is_all(3 * ALIGN + 1), "something follows");
}

#[test]
fn bytes_that_no_layout_speaks_of_keep_it() {
    type Parts<'a> = &'a [(u64, u32, std::ops::Range<u32>)];
    let cases: [(&str, Parts<'_>); 5] = [
        ("an append before", &[(1, 4096, 0..4096)]),
        (
            "an append between",
            &[(0, 4096, 0..4096), (2, 4096, 0..4096)],
        ),
        ("the beginning of a unit", &[(0, 8192, 1..8192)]),
        ("the end of a unit", &[(0, 8192, 0..8191)]),
        (
            "the middle of a unit",
            &[(0, 8192, 0..100), (0, 8192, 101..8192)],
        ),
    ];
    for (what, parts) in cases {
        let bench = Bench::new();
        let len = bench.layout(1, parts);
        bench.base(&[(1, len)]);
        let idle = bench.idle();
        assert_eq!(idle.len(), 1, "{what}");
        let last = parts
            .iter()
            .map(|(block, len, _)| block * ALIGN + u64::from(*len));
        assert!(!idle[0].is_all(last.max().unwrap()), "{what}");
    }
}

/// After a layout is sealed, the next one goes on in the same subfile.
#[test]
fn a_layout_that_is_not_drained_keeps_what_another_one_is_done_with() {
    let bench = Bench::new();
    let first = bench.layout(1, &[(0, 4096, 0..4096)]);
    let second = bench.layout(2, &[(1, 4096, 0..4096)]);
    bench.base(&[(1, first)]);
    assert!(bench.idle().is_empty());
    bench.base(&[(1, first), (2, second)]);
    assert!(bench.idle()[0].is_all(2 * ALIGN));
    // Batches past a seal do not count, so those bytes are not known to be published.
    bench.shared_dir.seal_layout(FILE, 2, 192).unwrap();
    assert!(!bench.idle()[0].is_all(2 * ALIGN));
}

#[test]
fn what_cannot_be_read_says_nothing() {
    let bench = Bench::new();
    let len = bench.layout(1, &[(0, 4096, 0..4096)]);
    bench.base(&[(1, len)]);
    assert_eq!(bench.idle().len(), 1);
    bench
        .shared_dir
        .append_layout(FILE, 1, len, &[0x5a; 100], Patience::Forever)
        .unwrap();
    assert!(bench.idle().is_empty());
}
