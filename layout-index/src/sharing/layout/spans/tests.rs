use super::*;
use crate::sharing::layout::testing::seed;
use rand::prelude::*;

/// With ranges of all widths, sorted or not, the index finds the same as checking each range.
#[test]
fn finds_what_a_look_at_each_finds() {
    let rng = &mut StdRng::seed_from_u64(seed("spans"));
    for _ in 0..300 {
        let count = [0, 1, 31, 32, 33, 1024, 1025, 3000][rng.random_range(0..8)];
        let mut all: Vec<ByteRange> = (0..count)
            .map(|_| {
                let start = rng.random_range(0..10_000);
                let most = [2, 50, 10_000][rng.random_range(0..3)];
                ByteRange::new(start, start + rng.random_range(1..most))
            })
            .collect();
        if rng.random() {
            all.sort_by_key(|r| r.start);
        }
        let spans = Spans::new(all.len(), |i| all[i as usize]);
        let bounds = all.iter().map(|r| r.start).min();
        let bounds = bounds.zip(all.iter().map(|r| r.end).max());
        assert_eq!(
            spans.bounds(|i| all[i as usize]),
            bounds.map(|(start, end)| ByteRange::new(start, end))
        );
        for _ in 0..20 {
            let start = rng.random_range(0..11_000);
            let range = ByteRange::new(start, start + rng.random_range(1..100));
            let mut found = Vec::new();
            spans.overlapping(
                range,
                |i| all[i as usize],
                |i| {
                    found.push(i);
                    ControlFlow::Continue(())
                },
            );
            found.sort_unstable();
            let each = (0..count as u32).filter(|i| all[*i as usize].overlaps(&range));
            assert!(found.iter().copied().eq(each), "{range}");
            let next = all.iter().map(|r| r.start).filter(|s| *s >= start).min();
            assert_eq!(spans.next_start(start, |i| all[i as usize]), next);
        }
    }
}

/// A few ranges over the whole file do not make every lookup visit all ranges.
#[test]
fn wide_ranges_do_not_spoil_the_rest() {
    let count = 100_000u32;
    let span = |i: u32| match i % 1000 {
        0 => ByteRange::new(u64::from(i), u64::from(count)),
        _ => ByteRange::new(u64::from(i), u64::from(i) + 1),
    };
    let spans = Spans::new(count as usize, span);
    let looks = std::cell::Cell::new(0);
    let counted = |i: u32| {
        looks.set(looks.get() + 1);
        span(i)
    };
    let mut found = 0;
    spans.overlapping(ByteRange::new(99_500, 99_510), counted, |_| {
        found += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(found, 100 + 10);
    assert!(looks.get() < 110 * FAN + 100, "looked at {}", looks.get());
}
