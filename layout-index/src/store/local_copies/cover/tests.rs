use super::*;

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end)
}

fn list(cover: &Cover) -> Vec<(u64, u64)> {
    cover.iter().map(|r| (r.start, r.end)).collect()
}

#[test]
fn ranges_that_touch_become_one() {
    let mut cover = Cover::default();
    assert_eq!(cover.insert(r(10, 20)), 10);
    assert_eq!(cover.insert(r(20, 30)), 10);
    assert_eq!(cover.insert(r(0, 5)), 5);
    assert_eq!(list(&cover), [(0, 5), (10, 30)]);
    assert_eq!(cover.insert(r(4, 12)), 5);
    assert_eq!(list(&cover), [(0, 30)]);
    assert_eq!(cover.insert(r(0, 30)), 0);
    assert_eq!(cover.bytes(), 30);
}

#[test]
fn what_is_missing_is_found() {
    let mut cover = Cover::default();
    cover.insert(r(10, 20));
    cover.insert(r(30, 40));
    assert_eq!(cover.next_gap(0, 100), Some(r(0, 10)));
    assert_eq!(cover.next_gap(10, 100), Some(r(20, 30)));
    assert_eq!(cover.next_gap(35, 100), Some(r(40, 100)));
    assert_eq!(cover.next_gap(30, 40), None);
    assert_eq!(cover.within(r(15, 35)), [r(15, 20), r(30, 35)]);
    assert_eq!(cover.within(r(20, 30)), []);
    assert_eq!(cover.has(r(0, u64::MAX)), 20);
}

/// Compares with a plain set of bytes.
#[test]
fn any_order_of_changes_adds_up() {
    let mut seed = 7u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let mut cover = Cover::default();
    let mut model = [false; 200];
    for step in 0..5_000 {
        let start = random(200);
        let end = (start + random(40)).min(200);
        let part = &mut model[start as usize..end as usize];
        let set = part.iter().filter(|b| **b).count() as u64;
        if random(3) == 0 {
            part.fill(false);
            assert_eq!(cover.remove(r(start, end)), set, "step {step}");
        } else {
            let missing = end - start - set;
            part.fill(true);
            assert_eq!(cover.insert(r(start, end)), missing, "step {step}");
        }
        let bytes = model.iter().filter(|b| **b).count() as u64;
        assert_eq!(cover.bytes(), bytes, "step {step}");
        let ranges = list(&cover);
        assert!(ranges.windows(2).all(|w| w[0].1 < w[1].0), "step {step}");
        for (at, there) in model.iter().enumerate() {
            let at = at as u64;
            assert_eq!(
                cover.has(r(at, at + 1)) == 1,
                *there,
                "step {step} byte {at}"
            );
        }
    }
}
