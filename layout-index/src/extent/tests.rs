//! Compares the map with a vector that has one entry per byte.

use super::*;
use proptest::prelude::*;

const SPACE: u64 = 256;

fn log(segment: u32, offset: u32, len: u32, skip: u32) -> Place {
    Place::Log {
        unit: Unit {
            segment,
            offset,
            len,
            crc: 0,
        },
        skip,
    }
}

fn byte_of(place: Place, start: u64, at: u64) -> (u8, u64) {
    match place {
        Place::Log { unit, skip } => (
            unit.segment as u8 + 10,
            u64::from(unit.offset) + u64::from(skip) + at - start,
        ),
        Place::Subfile { unit, skip } => (
            unit.subfile as u8 + 100,
            u64::from(unit.block) * BLOCK + u64::from(skip) + at - start,
        ),
        Place::Zero => (1, 0),
        Place::Canonical => (2, 0),
    }
}

fn flatten(map: &ExtentMap) -> Vec<Option<(u8, u64)>> {
    let mut bytes = vec![None; SPACE as usize];
    let mut last = 0;
    for (&start, extent) in map.iter() {
        assert!(
            start >= last && start < extent.end,
            "extents overlap or are empty"
        );
        last = extent.end;
        for at in start..extent.end.min(SPACE) {
            bytes[at as usize] = Some(byte_of(extent.place, start, at));
        }
    }
    bytes
}

proptest! {
    #[test]
    fn newest_byte_wins_and_replaced_parts_are_reported(
        ops in prop::collection::vec((0..SPACE - 1, 1u64..40, 0u8..5), 1..120)
    ) {
        let mut map = ExtentMap::default();
        let mut model: Vec<Option<(u8, u64)>> = vec![None; SPACE as usize];
        for (n, (start, len, kind)) in ops.into_iter().enumerate() {
            let end = (start + len).min(SPACE);
            let range = ByteRange::new(start, end);
            let mut gone = vec![None; SPACE as usize];
            let note = |s: u64, e: Extent| {
                for at in s..e.end {
                    gone[at as usize] = Some(byte_of(e.place, s, at));
                }
            };
            if kind == 3 {
                map.remove(range, note);
                for at in start..end {
                    prop_assert_eq!(gone[at as usize], model[at as usize]);
                    model[at as usize] = None;
                }
                continue;
            }
            let place = match kind {
                0 => Place::Zero,
                1 => Place::Canonical,
                4 => Place::Subfile {
                    unit: SubUnit {
                        subfile: n as u32 % 4,
                        block: n as u32,
                        len: (end - start) as u32,
                        crc: 0,
                    },
                    skip: 0,
                },
                _ => log(n as u32 % 4, n as u32 * 1000, (end - start) as u32, 0),
            };
            map.insert(start, Extent { end, seq: Seq(n as u64), place }, note);
            for at in start..end {
                prop_assert_eq!(gone[at as usize], model[at as usize]);
                model[at as usize] = Some(byte_of(place, start, at));
            }
            prop_assert_eq!(flatten(&map), model.clone());
        }
        for (start, end) in [(0, SPACE), (10, 11), (50, 90), (255, 256)] {
            let mut seen = vec![None; SPACE as usize];
            for (s, e) in map.within(ByteRange::new(start, end)) {
                prop_assert!(s >= start && e.end <= end);
                for at in s..e.end {
                    seen[at as usize] = Some(byte_of(e.place, s, at));
                }
            }
            for at in start..end {
                prop_assert_eq!(seen[at as usize], model[at as usize]);
            }
        }
    }
}

#[test]
fn sequential_writes_of_one_unit_become_one_extent() {
    let mut map = ExtentMap::default();
    for n in 0..8u32 {
        let start = u64::from(n) * 4096;
        let place = log(1, 0, (n + 1) * 4096, n * 4096);
        map.insert(
            start,
            Extent {
                end: start + 4096,
                seq: Seq(n.into()),
                place,
            },
            |_, _| {},
        );
    }
    assert_eq!(map.len(), 1);
    let (_, all) = map.within(ByteRange::ALL).next().unwrap();
    assert_eq!(
        all,
        Extent {
            end: 32768,
            seq: Seq(7),
            place: log(1, 0, 32768, 0)
        }
    );
}
