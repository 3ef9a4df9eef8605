//! Compares merging into RocksDB with the same extents in one map.

use super::*;
use crate::extent::Unit;
use crate::types::{FileId, Seq, Timestamp};
use proptest::prelude::*;

fn row() -> FileRow {
    FileRow {
        id: FileId { ino: 1, birth: 2 },
        uid: 0,
        gid: 0,
        handle: vec![],
        path: vec![],
        size: 0,
        mtime: Timestamp(0),
        limit: u64::MAX,
        grown: 0,
        shapes: Vec::new(),
        shaped: Seq(0),
        unlinked: false,
        subfiles: Vec::new(),
    }
}

fn sum(map: &ExtentMap) -> u64 {
    map.iter()
        .filter_map(|(s, e)| e.payload(*s))
        .map(|(_, bytes)| bytes)
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn merges_equal_one_map(
        rounds in prop::collection::vec(
            prop::collection::vec((0u64..4000, 1u64..200, 0u8..3), 1..60), 1..6)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::open(dir.path(), 8 << 20).unwrap();
        let no = FileNo(7);
        // The files with the next lower and the next higher number must stay as they are.
        let other = {
            let mut map = ExtentMap::default();
            let place = Place::Log { unit: Unit { segment: 9, offset: 0, len: 50, crc: 0 }, skip: 0 };
            map.insert(10, Extent { end: 60, seq: Seq(1), place }, |_, _| {});
            map
        };
        for n in [6, 8] {
            let change = Change { no: FileNo(n), row: &row(), recent: &other, has_cold: false };
            index.merge(&change, &mut 0, &mut |_| {}).unwrap();
        }
        let mut all = ExtentMap::default();
        let (mut count, mut live) = (0i64, 0i64);
        for (round, ops) in rounds.iter().enumerate() {
            let mut recent = ExtentMap::default();
            for (n, (start, len, kind)) in ops.iter().enumerate() {
                let place = match kind {
                    0 => Place::Canonical,
                    1 => Place::Zero,
                    _ => Place::Log {
                        unit: Unit {
                            segment: round as u32,
                            offset: n as u32 * 1000,
                            len: *len as u32,
                            crc: 0,
                        },
                        skip: 0,
                    },
                };
                let extent = Extent { end: start + len, seq: Seq(n as u64), place };
                recent.insert(*start, extent, |_, _| {});
            }
            let change = Change { no, row: &row(), recent: &recent, has_cold: round > 0 };
            let mut gone = 0;
            let visible = |below: &[(u64, Extent)]| {
                let mut map = ExtentMap::default();
                let above = recent.iter().map(|(s, e)| (*s, *e));
                for (start, extent) in below.iter().copied().chain(above) {
                    map.insert(start, extent, |_, _| {});
                }
                (0..4200)
                    .map(|at| map.within(ByteRange::new(at, at + 1)).next().map(|(_, e)| e.place))
                    .collect::<Vec<_>>()
            };
            let before: Vec<_> = all.iter().map(|(s, e)| (*s, *e)).collect();
            let expected = visible(&before);
            index
                .merge(&change, &mut 0, &mut |merged| {
                    // Between batches a reader sees the same bytes as before and after.
                    let stored = index.extents(no, ByteRange::ALL).unwrap();
                    assert!(visible(&stored) == expected, "a byte is missing between two batches");
                    count += merged.count;
                    gone += merged.gone.iter().filter_map(|(s, e)| e.payload(*s)).map(|p| p.1).sum::<u64>();
                })
                .unwrap();
            live += sum(&recent) as i64 - gone as i64;
            for (start, extent) in recent.iter() {
                all.insert(*start, *extent, |_, _| {});
                if extent.place == Place::Canonical {
                    all.remove(ByteRange::new(*start, extent.end), |_, _| {});
                }
            }
            let stored = index.extents(no, ByteRange::ALL).unwrap();
            let mut rebuilt = ExtentMap::default();
            for (start, extent) in &stored {
                rebuilt.insert(*start, *extent, |_, e| panic!("overlap {e:?}"));
            }
            prop_assert_eq!(stored.len() as i64, count);
            prop_assert_eq!(sum(&rebuilt), sum(&all));
            prop_assert_eq!(live, sum(&all) as i64);
            for at in 0..4200u64 {
                let one = ByteRange::new(at, at + 1);
                let byte = |map: &ExtentMap| map.within(one).next().map(|(_, e)| e.place);
                prop_assert_eq!(byte(&rebuilt), byte(&all));
            }
            let part = ByteRange::new(1000, 1500);
            let cut: Vec<_> = stored.iter().filter_map(|(s, e)| e.cut(*s, part)).collect();
            prop_assert_eq!(index.extents(no, part).unwrap(), cut);
        }
        for n in [6, 8] {
            prop_assert_eq!(index.extents(FileNo(n), ByteRange::ALL).unwrap().len(), 1);
        }
    }
}
