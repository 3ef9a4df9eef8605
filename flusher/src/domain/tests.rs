use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

fn mapped(osts: u32, writers: u32) -> u32 {
    Domains::mapped(MIB, osts, writers).count()
}

#[test]
fn nearest_factor_or_multiple() {
    assert_eq!(mapped(48, 48), 48);
    assert_eq!(mapped(48, 49), 48, "the paper's unmapped case");
    assert_eq!(mapped(48, 97), 96);
    assert_eq!(mapped(48, 145), 144);
    assert_eq!(mapped(48, 201), 192);
    assert_eq!(mapped(8, 9), 8);
    assert_eq!(mapped(8, 15), 16);
    assert_eq!(mapped(8, 5), 4);
    assert_eq!(mapped(8, 7), 8);
    assert_eq!(mapped(8, 3), 2, "of 2 and 4 the smaller");
    assert_eq!(mapped(8, 6), 4, "of 4 and 8 the smaller");
    assert_eq!(mapped(8, 12), 8, "of 8 and 16 the smaller");
    assert_eq!(mapped(7, 3), 1, "a prime has no other factor");
    assert_eq!(mapped(7, 5), 7);
    assert_eq!(mapped(1, 5), 5, "one object: any number is a multiple");
}

#[test]
fn ends_of_the_number_range() {
    assert_eq!(mapped(0, 0), 1);
    assert_eq!(mapped(0, 3), 3);
    assert_eq!(mapped(u32::MAX, u32::MAX), u32::MAX);
    assert_eq!(
        mapped(u32::MAX - 1, u32::MAX),
        u32::MAX - 1,
        "no double of it"
    );
    let one = Domains::with_count(0, 0);
    assert_eq!((one.unit(), one.count()), (1, 1));
    let whole = Domains::with_count(u64::MAX, 3);
    let all: Vec<_> = whole.units(0, u64::MAX).collect();
    assert_eq!(all, [ByteRange::new(0, u64::MAX)]);
    let last = Domains::with_count(MIB, 1).domain_of(u64::MAX);
    assert_eq!(last, 0);
    let huge = Domains::with_count(1 << 63, 1).units(0, u64::MAX).last();
    assert_eq!(huge, Some(ByteRange::new(1 << 63, u64::MAX)));
}

#[test]
fn units_go_round() {
    let three = Domains::with_count(10, 3);
    let of = |domain| {
        let units = three.units(domain, 65);
        units.map(|r| (r.start, r.end)).collect::<Vec<_>>()
    };
    assert_eq!(of(0), [(0, 10), (30, 40), (60, 65)]);
    assert_eq!(of(1), [(10, 20), (40, 50)]);
    assert_eq!(of(2), [(20, 30), (50, 60)]);
    assert_eq!(of(3), [], "there is no domain 3");
    assert_eq!(three.units(0, 0).count(), 0);
    assert_eq!(three.domain_of(9), 0);
    assert_eq!(three.domain_of(10), 1);
    assert_eq!(three.domain_of(64), 0);
}

#[test]
fn sharing_of_the_measured_cases() {
    let sharing = |count| Domains::with_count(MIB, count).sharing(8);
    assert_eq!([4, 8, 9, 16].map(sharing), [1, 1, 9, 2]);
}

/// Returns the domains whose units lie on `object` of `osts`, computed unit by unit.
fn writers_of(domains: Domains, osts: u32, object: u32) -> BTreeSet<u32> {
    let rounds = u64::from(domains.count());
    (0..rounds)
        .map(|round| (round * u64::from(osts) + u64::from(object)) * domains.unit())
        .map(|offset| domains.domain_of(offset))
        .collect()
}

proptest! {
    #[test]
    fn every_byte_has_one_domain(unit in 1u64..50, count in 1u32..20, size in 0u64..2000) {
        let domains = Domains::with_count(unit, count);
        let mut owner = vec![None; size as usize];
        for domain in 0..count {
            let mut before = 0;
            for range in domains.units(domain, size) {
                prop_assert!(!range.is_empty() && range.len() <= unit);
                prop_assert!(range.start.is_multiple_of(unit) && range.start >= before);
                before = range.end;
                for byte in range.start..range.end {
                    prop_assert_eq!(domains.domain_of(byte), domain);
                    prop_assert_eq!(owner[byte as usize].replace(domain), None);
                }
            }
        }
        prop_assert!(owner.iter().all(Option::is_some));
    }

    #[test]
    fn mapped_fits_and_none_is_nearer(osts in 1u32..200, writers in 1u32..500) {
        let fits = |count: u32| count.is_multiple_of(osts) || osts.is_multiple_of(count);
        let count = mapped(osts, writers);
        prop_assert!(fits(count), "{count} domains on {osts} objects");
        let nearest = (1..=writers + osts).filter(|n| fits(*n)).min_by_key(|n| n.abs_diff(writers));
        prop_assert_eq!(Some(count), nearest);
    }

    #[test]
    fn sharing_is_what_the_units_show(osts in 1u32..40, count in 1u32..40) {
        let domains = Domains::with_count(MIB, count);
        for object in 0..osts {
            let writers = writers_of(domains, osts, object);
            prop_assert_eq!(writers.len() as u32, domains.sharing(osts));
        }
    }

    #[test]
    fn groups_of_a_mapped_file_do_not_overlap(osts in 1u32..40, writers in 1u32..100) {
        let domains = Domains::mapped(MIB, osts, writers);
        let mut seen = BTreeSet::new();
        if domains.count() >= osts {
            for object in 0..osts {
                let group = writers_of(domains, osts, object);
                prop_assert!(group.iter().all(|domain| seen.insert(*domain)));
            }
        } else {
            prop_assert_eq!(domains.sharing(osts), 1);
        }
    }
}
