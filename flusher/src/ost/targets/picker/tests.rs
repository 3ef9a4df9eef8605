use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const UNIT: u64 = 1 << 20;

fn picker(weights: &[f64]) -> Picker {
    let mut picker = Picker::default();
    picker.set(&numbered(weights));
    picker
}

fn numbered(weights: &[f64]) -> Vec<(u32, f64)> {
    (0..).zip(weights.iter().copied()).collect()
}

fn pick(picker: &mut Picker, units: usize) -> Vec<u32> {
    (0..units).map(|_| at_once(picker, UNIT, &[])).collect()
}

/// Assigns a unit that its OST does at once.
fn at_once(picker: &mut Picker, bytes: u64, except: &[u32]) -> u32 {
    let ost = picker.pick(bytes, except).unwrap();
    picker.unit_ended(ost, bytes);
    ost
}

#[test]
fn equal_weights_take_turns_in_order() {
    assert_eq!(pick(&mut picker(&[7.0; 3]), 7), [0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn a_burst_is_spread() {
    let picked = pick(&mut picker(&[5.0, 1.0, 1.0]), 7);
    assert_eq!(picked.iter().filter(|o| **o == 0).count(), 5);
    assert!(
        picked.windows(4).all(|four| four.iter().any(|o| *o != 0)),
        "{picked:?}"
    );
}

#[test]
fn sizes_even_out() {
    let mut picker = picker(&[1.0, 1.0]);
    let mut had = [0_u64; 2];
    for n in 0..1000 {
        let bytes = if n % 3 == 0 { 8 * UNIT } else { UNIT };
        had[at_once(&mut picker, bytes, &[]) as usize] += bytes;
    }
    assert!(had[0].abs_diff(had[1]) <= 16 * UNIT, "{had:?}");
}

#[test]
fn one_that_was_excepted_is_not_flooded_afterwards() {
    let mut picker = picker(&[1.0, 1.0]);
    for _ in 0..100 {
        assert_eq!(at_once(&mut picker, UNIT, &[0]), 1);
    }
    let picked = pick(&mut picker, 10);
    assert_eq!(picked.iter().filter(|o| **o == 0).count(), 5, "{picked:?}");
}

/// One of three OSTs with equal weights does nothing: the others get the units.
#[test]
fn the_ost_that_answers_gets_more() {
    let mut picker = picker(&[1.0; 3]);
    let mut had = [0_u64; 3];
    for _ in 0..100 {
        let ost = picker.pick(UNIT, &[]).unwrap();
        had[ost as usize] += 1;
        if ost != 0 {
            picker.unit_ended(ost, UNIT);
        }
    }
    assert!(had[0] <= 2 && had[1].abs_diff(had[2]) <= 2, "{had:?}");
    assert_eq!(picker.open(0), had[0] * UNIT);
}

/// An OST that is estimated to be twice as fast as it is still ends at the same time as the others.
#[test]
fn a_wrong_belief_is_made_up_for() {
    let mut left = 400;
    let mut picker = picker(&[2.0, 1.0, 1.0, 1.0]);
    let mut queues = [0_u32; 4];
    let mut done = [0; 4];
    let mut steps = 0;
    while left > 0 || queues.iter().any(|q| *q > 0) {
        while left > 0 && queues.iter().sum::<u32>() < 12 {
            queues[picker.pick(UNIT, &[]).unwrap() as usize] += 1;
            left -= 1;
        }
        for (ost, queue) in queues.iter_mut().enumerate().filter(|(_, q)| **q > 0) {
            *queue -= 1;
            done[ost] += 1;
            picker.unit_ended(ost as u32, UNIT);
        }
        steps += 1;
    }
    assert!(steps <= 106, "{steps} steps for 100 units each: {done:?}");
}

#[test]
fn those_that_stay_keep_their_turn() {
    let mut picker = picker(&[1.0; 4]);
    assert_eq!(pick(&mut picker, 2), [0, 1]);
    picker.set(&[(0, 1.0), (2, 1.0), (3, 1.0), (9, 1.0)]);
    let next = pick(&mut picker, 3);
    assert!(!next.contains(&0), "OST 0 has had its unit: {next:?}");
}

#[test]
fn no_ost_to_pick() {
    assert_eq!(Picker::default().pick(UNIT, &[]), None);
    assert_eq!(picker(&[1.0, 2.0]).pick(UNIT, &[1, 0]), None);
}

#[test]
fn weights_that_are_none_and_units_of_nothing() {
    let mut picker = picker(&[0.0, f64::NAN, f64::INFINITY, -1.0, 3.0]);
    assert_eq!(picker.pick(UNIT, &[]), Some(4));
    assert_eq!(picker.pick(0, &[]), Some(4));
    assert_eq!(picker.pick(u64::MAX, &[]), Some(4));
    assert_eq!(picker.pick(UNIT, &[4]), None);
}

/// Many kinds of weights, from bandwidths of one byte to a terabyte per second.
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
        let mut picker = picker(&weights);
        let total: f64 = weights.iter().sum();
        let mut had: HashMap<u32, f64> = HashMap::new();
        for t in 1..=units {
            *had.entry(at_once(&mut picker, UNIT, &[])).or_default() += 1.0;
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
        let mut picker = picker(&weights);
        for (bytes, except) in units {
            let left = (0..weights.len() as u32).any(|o| !except.contains(&o));
            let picked = picker.pick(bytes, &except);
            prop_assert_eq!(picked.is_some(), left);
            prop_assert!(picked.is_none_or(|o| !except.contains(&o)));
        }
    }
}
