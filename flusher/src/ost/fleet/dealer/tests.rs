use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const UNIT: u64 = 1 << 20;

fn dealer(weights: &[f64]) -> Dealer {
    let mut dealer = Dealer::default();
    dealer.set(&numbered(weights));
    dealer
}

fn numbered(weights: &[f64]) -> Vec<(u32, f64)> {
    (0..).zip(weights.iter().copied()).collect()
}

fn deal(dealer: &mut Dealer, units: usize) -> Vec<u32> {
    (0..units).map(|_| at_once(dealer, UNIT, &[])).collect()
}

/// A unit that its OST does at once.
fn at_once(dealer: &mut Dealer, bytes: u64, except: &[u32]) -> u32 {
    let ost = dealer.deal(bytes, except).unwrap();
    dealer.settle(ost, bytes);
    ost
}

#[test]
fn equal_weights_take_turns_in_order() {
    assert_eq!(deal(&mut dealer(&[7.0; 3]), 7), [0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn a_burst_is_spread() {
    let dealt = deal(&mut dealer(&[5.0, 1.0, 1.0]), 7);
    assert_eq!(dealt.iter().filter(|o| **o == 0).count(), 5);
    assert!(
        dealt.windows(4).all(|four| four.iter().any(|o| *o != 0)),
        "{dealt:?}"
    );
}

#[test]
fn sizes_even_out() {
    let mut dealer = dealer(&[1.0, 1.0]);
    let mut had = [0_u64; 2];
    for n in 0..1000 {
        let bytes = if n % 3 == 0 { 8 * UNIT } else { UNIT };
        had[at_once(&mut dealer, bytes, &[]) as usize] += bytes;
    }
    assert!(had[0].abs_diff(had[1]) <= 16 * UNIT, "{had:?}");
}

#[test]
fn one_that_was_excepted_is_not_flooded_afterwards() {
    let mut dealer = dealer(&[1.0, 1.0]);
    for _ in 0..100 {
        assert_eq!(at_once(&mut dealer, UNIT, &[0]), 1);
    }
    let dealt = deal(&mut dealer, 10);
    assert_eq!(dealt.iter().filter(|o| **o == 0).count(), 5, "{dealt:?}");
}

/// Three that count as equal, and one of them does nothing: the others get what comes.
#[test]
fn whoever_answers_gets_more() {
    let mut dealer = dealer(&[1.0; 3]);
    let mut had = [0_u64; 3];
    for _ in 0..100 {
        let ost = dealer.deal(UNIT, &[]).unwrap();
        had[ost as usize] += 1;
        if ost != 0 {
            dealer.settle(ost, UNIT);
        }
    }
    assert!(had[0] <= 2 && had[1].abs_diff(had[2]) <= 2, "{had:?}");
    assert_eq!(dealer.open(0), had[0] * UNIT);
}

/// One that is taken for twice as fast as it is ends with the others all the same.
#[test]
fn a_wrong_belief_is_made_up_for() {
    let mut left = 400;
    let mut dealer = dealer(&[2.0, 1.0, 1.0, 1.0]);
    let mut queues = [0_u32; 4];
    let mut done = [0; 4];
    let mut steps = 0;
    while left > 0 || queues.iter().any(|q| *q > 0) {
        while left > 0 && queues.iter().sum::<u32>() < 12 {
            queues[dealer.deal(UNIT, &[]).unwrap() as usize] += 1;
            left -= 1;
        }
        for (ost, queue) in queues.iter_mut().enumerate().filter(|(_, q)| **q > 0) {
            *queue -= 1;
            done[ost] += 1;
            dealer.settle(ost as u32, UNIT);
        }
        steps += 1;
    }
    assert!(steps <= 106, "{steps} steps for 100 units each: {done:?}");
}

#[test]
fn those_that_stay_keep_their_turn() {
    let mut dealer = dealer(&[1.0; 4]);
    assert_eq!(deal(&mut dealer, 2), [0, 1]);
    dealer.set(&[(0, 1.0), (2, 1.0), (3, 1.0), (9, 1.0)]);
    let next = deal(&mut dealer, 3);
    assert!(!next.contains(&0), "OST 0 has had its unit: {next:?}");
}

#[test]
fn nobody_to_deal_to() {
    assert_eq!(Dealer::default().deal(UNIT, &[]), None);
    assert_eq!(dealer(&[1.0, 2.0]).deal(UNIT, &[1, 0]), None);
}

#[test]
fn weights_that_are_none_and_units_of_nothing() {
    let mut dealer = dealer(&[0.0, f64::NAN, f64::INFINITY, -1.0, 3.0]);
    assert_eq!(dealer.deal(UNIT, &[]), Some(4));
    assert_eq!(dealer.deal(0, &[]), Some(4));
    assert_eq!(dealer.deal(u64::MAX, &[]), Some(4));
    assert_eq!(dealer.deal(UNIT, &[4]), None);
}

/// As long as they are: bandwidths of one byte and of a terabyte per second.
fn weights() -> impl Strategy<Value = Vec<f64>> {
    prop_oneof![
        prop::collection::vec(1.0..100.0_f64, 1..20),
        prop::collection::vec((0.0..12.0_f64).prop_map(|e| 10_f64.powf(e)), 1..20),
        prop::collection::vec((1_u32..5).prop_map(f64::from), 1..200),
    ]
}

proptest! {
    #[test]
    fn shares_are_within_one_unit_of_proportion(weights in weights(), units in 1_usize..600) {
        let mut dealer = dealer(&weights);
        let total: f64 = weights.iter().sum();
        let mut had: HashMap<u32, f64> = HashMap::new();
        for t in 1..=units {
            *had.entry(at_once(&mut dealer, UNIT, &[])).or_default() += 1.0;
            for (ost, weight) in numbered(&weights) {
                let due = t as f64 * weight / total;
                let got = had.get(&ost).copied().unwrap_or(0.0);
                prop_assert!((got - due).abs() < 1.0 + 1e-6, "OST {ost}: {got} of {due} after {t}");
            }
        }
    }

    #[test]
    fn never_an_excepted_one_and_always_one_if_there_is_any(
        weights in weights(),
        units in prop::collection::vec((0_u64..1 << 30, prop::collection::vec(0_u32..25, 0..6)), 1..200),
    ) {
        let mut dealer = dealer(&weights);
        for (bytes, except) in units {
            let left = (0..weights.len() as u32).any(|o| !except.contains(&o));
            let dealt = dealer.deal(bytes, &except);
            prop_assert_eq!(dealt.is_some(), left);
            prop_assert!(dealt.is_none_or(|o| !except.contains(&o)));
        }
    }
}
