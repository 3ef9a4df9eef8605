//! Medians, because a shared machine produces outliers and a mean is distorted by them; and mean
//! and deviation where the variation itself is measured.

/// Returns the middle value, or the mean of the two middle ones; NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Returns the quantile `q`, interpolated linearly between adjacent values; NaN for no values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = q * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

/// How much a figure varies from run to run.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Spread {
    pub runs: usize,
    pub mean: f64,
    /// Standard deviation of the sample (n - 1); zero for a single run.
    pub deviation: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Returns `None` if there are no values.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let runs = values.len();
        if runs == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / runs as f64;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        Some(Spread {
            runs,
            mean,
            deviation: (squares / (runs.max(2) - 1) as f64).sqrt(),
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    /// Coefficient of variation: the deviation as a share of the mean.
    pub fn variation(&self) -> f64 {
        self.deviation / self.mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_a_sample() {
        let spread = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).expect("values");
        assert_eq!((spread.runs, spread.mean), (8, 5.0));
        assert!((spread.deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert!((spread.variation() - spread.deviation / 5.0).abs() < 1e-12);
        assert_eq!((spread.min, spread.max), (2.0, 9.0));
        assert_eq!(Spread::of(&[3.0]).map(|s| s.deviation), Some(0.0));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn middle() {
        assert_eq!(median(&[5.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(quantile(&[0.0, 10.0], 0.9), 9.0);
    }
}
