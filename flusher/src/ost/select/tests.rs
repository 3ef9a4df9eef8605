use super::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

fn some(bandwidths: &[f64]) -> Vec<Option<f64>> {
    bandwidths.iter().copied().map(Some).collect()
}

/// The worked example of the paper: 100, 110, 120, 90 and 70, of which the last is left out. (It
/// prints 280 for the last aggregate, which by its own formula is 350.)
#[test]
fn the_papers_example_leaves_the_slowest_out() {
    let choice = select(&some(&[100.0, 110.0, 120.0, 90.0, 70.0]), DELTA);
    assert_eq!(choice.aggregate, [120.0, 220.0, 300.0, 360.0, 350.0]);
    assert_eq!(choice.chosen(), [2, 1, 0, 3]);
}

/// The shape of the paper's figures 4 and 5: 156 OSTs of which 12 are below 50 MB/s. The
/// aggregate has its peak near 128 OSTs and falls gently after it, and the cut is at the 145th.
#[test]
fn the_papers_156_osts_are_cut_where_the_slow_ones_begin() {
    let mut bandwidths: Vec<f64> = (0..144)
        .map(|n| {
            let past = (f64::from(n) - 128.0).max(0.0);
            160.0 - 0.62 * f64::from(n) - 0.2 * past
        })
        .collect();
    bandwidths.extend((0..12).map(|n| 48.0 - f64::from(n) * 2.0));
    let sorted = select(&some(&bandwidths), DELTA);
    let peak = (0..156).max_by(|a, b| sorted.aggregate[*a].total_cmp(&sorted.aggregate[*b]));
    assert!(
        (120..136).contains(&peak.unwrap()),
        "the peak is at {peak:?}"
    );
    assert_eq!(sorted.chosen, 144);

    bandwidths.shuffle(&mut StdRng::seed_from_u64(1));
    let choice = select(&some(&bandwidths), DELTA);
    assert_eq!(choice.chosen, 144);
    let slowest = |n: &usize| bandwidths[*n] < 50.0;
    assert!(!choice.chosen().iter().any(slowest), "a slow one is chosen");
}

/// "If all probed bandwidth values are similar, the algorithm will select most of them."
#[test]
fn similar_osts_are_all_chosen() {
    let mut rng = StdRng::seed_from_u64(2);
    let bandwidths: Vec<f64> = (0..64).map(|_| rng.random_range(95.0..105.0)).collect();
    assert_eq!(select(&some(&bandwidths), DELTA).chosen, 64);
}

#[test]
fn two_at_a_tenth_of_the_speed_are_left_out() {
    let mut bandwidths = vec![100.0; 16];
    bandwidths[3] = 10.0;
    bandwidths[7] = 10.0;
    let choice = select(&some(&bandwidths), DELTA);
    assert_eq!(choice.chosen, 14);
    assert!(!choice.chosen().contains(&3) && !choice.chosen().contains(&7));
}

#[test]
fn what_cannot_be_used_is_not_chosen() {
    let choice = select(&[None, Some(5.0), Some(0.0), Some(f64::NAN)], DELTA);
    assert_eq!(choice.chosen(), [1]);
    assert_eq!(select(&[None, None], DELTA).chosen, 0);
    assert_eq!(select(&[], DELTA), select(&[None], DELTA));
}

#[test]
fn a_stricter_threshold_cuts_at_the_first_fall() {
    let bandwidths = some(&[100.0, 50.0, 33.0, 24.9]);
    assert_eq!(select(&bandwidths, DELTA).chosen, 4);
    assert_eq!(select(&bandwidths, 0.0).chosen, 2);
}
