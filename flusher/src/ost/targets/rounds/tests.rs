use super::*;
use std::time::Duration;

fn settings() -> OstSettings {
    OstSettings {
        probe_age: Duration::from_secs(100),
        retry_after: Duration::from_secs(10),
        ..OstSettings::default()
    }
}

#[test]
fn at_the_start_and_when_the_last_is_old_and_never_two_at_once() {
    let (settings, t) = (settings(), Instant::now());
    let mut rounds = Rounds::default();
    assert!(rounds.due(&settings, t));
    assert!(!rounds.due(&settings, t + Duration::from_secs(1000)));
    assert!(!rounds.any_over());
    let over = t + Duration::from_secs(1001);
    rounds.ended(true, over);
    assert!(rounds.any_over() && !rounds.is_running());
    assert!(!rounds.due(&settings, over + Duration::from_secs(99)));
    assert!(rounds.due(&settings, over + Duration::from_secs(100)));
    assert_eq!(
        rounds.probed_seconds_ago(over + Duration::from_secs(7)),
        Some(7.0)
    );
}

#[test]
fn a_list_that_cannot_be_had_is_asked_for_again_less_and_less_often() {
    let settings = settings();
    let mut t = Instant::now();
    let mut rounds = Rounds::default();
    assert!(rounds.due(&settings, t));
    for wait in [10, 20, 40, 80, 160, 160] {
        rounds.failed("no master".into(), t);
        assert_eq!(rounds.error(), Some("no master"));
        t += Duration::from_secs(wait);
        assert!(!rounds.due(&settings, t - Duration::from_millis(1)));
        assert!(rounds.due(&settings, t));
    }
    rounds.ended(false, t);
    assert_eq!(rounds.error(), None);
    assert_eq!(rounds.probed_seconds_ago(t), None);
    assert!(!rounds.due(&settings, t + Duration::from_secs(99)));
}

#[test]
fn times_without_end_do_not_overflow() {
    let settings = OstSettings {
        probe_age: Duration::MAX,
        retry_after: Duration::MAX,
        ..OstSettings::default()
    };
    let t = Instant::now();
    let mut rounds = Rounds::default();
    assert!(rounds.due(&settings, t));
    rounds.failed("no".into(), t);
    assert!(!rounds.due(&settings, t + Duration::from_secs(1 << 30)));
}
