//! How long to leave a failing file alone: twice as long after every failure, within bounds.
//!
//! There is no last attempt. Giving up would leave data that the application believes written in a
//! place where no user looks for it. Meanwhile the error sticks to the file, and `status` shows it.

use std::time::Duration;

pub(crate) fn backoff(min: Duration, max: Duration, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(20);
    min.saturating_mul(1 << doublings).min(max.max(min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_from_the_first_failure_up_to_the_longest_pause() {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(1));
        let pauses: Vec<u128> = (1..=6).map(|n| backoff(min, max, n).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
    }

    #[test]
    fn survives_any_number_of_failures_and_swapped_bounds() {
        let second = Duration::from_secs(1);
        assert_eq!(backoff(second, second * 60, u32::MAX), second * 60);
        assert_eq!(backoff(second, Duration::ZERO, 3), second);
        assert_eq!(backoff(second, second * 60, 0), second);
    }
}
