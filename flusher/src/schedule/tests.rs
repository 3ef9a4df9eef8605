use super::*;

const FILE: FileId = FileId { ino: 7, birth: 1 };
const OTHER: FileId = FileId { ino: 8, birth: 1 };

fn settings() -> Settings {
    Settings {
        retry_min: Duration::from_secs(1),
        retry_max: Duration::from_secs(8),
        batch: Duration::from_millis(50),
        ..Settings::default()
    }
}

fn facts(writers: usize) -> Facts {
    Facts {
        writers,
        ..Facts::default()
    }
}

#[test]
fn policies() {
    use Policy::*;
    use Scope::*;
    let lingered = Facts {
        lingered: true,
        ..facts(1)
    };
    assert_eq!(choose(Immediate, facts(0)), Some(Everything));
    assert_eq!(choose(Immediate, facts(2)), Some(FullStripes));
    assert_eq!(choose(Immediate, lingered), Some(Everything));
    assert_eq!(choose(OnClose, facts(0)), Some(Everything));
    assert_eq!(choose(OnClose, lingered), None);
    assert_eq!(choose(Never, facts(0)), None);
}

/// S4.5: the drain of a file that is published again and again waits until the file rests, and ten
/// seconds at most.
#[test]
fn a_file_that_is_published_again_and_again_is_left_alone_for_a_while() {
    const LINGER: Duration = Duration::from_millis(500);
    let begin = Instant::now();
    let at = |ms| begin + Duration::from_millis(ms);
    let mut s = Schedule::default();
    let scope = |s: &Schedule, ms, writers| {
        let facts = Facts {
            writers,
            ..s.facts(FILE, LINGER, at(ms))
        };
        choose(Policy::Immediate, facts)
    };
    s.published(FILE, LINGER, begin);
    assert_eq!(scope(&s, 100, 1), None);
    assert_eq!(scope(&s, 100, 0), Some(Scope::Everything), "it was closed");
    assert_eq!(
        s.published_often_until(FILE, LINGER, at(100)),
        Some(at(500))
    );
    assert_eq!(scope(&s, 500, 1), Some(Scope::Everything), "it rests");
    for ms in (0..9_900).step_by(300) {
        s.published(FILE, LINGER, at(ms));
        assert_eq!(scope(&s, ms, 1), None);
    }
    assert_eq!(
        s.published_often_until(FILE, LINGER, at(9_900)),
        Some(at(10_000))
    );
    s.published(FILE, LINGER, at(9_990));
    assert_eq!(scope(&s, 10_000, 1), Some(Scope::Everything), "long enough");
    s.start(FILE, Scope::Everything, at(10_000));
    s.published(FILE, LINGER, at(10_100));
    s.finish(FILE, Outcome::Dirty, &settings(), at(10_200));
    assert_eq!(scope(&s, 10_250, 1), None, "a new streak");
}

#[test]
fn requests_and_pressure_drain_whatever_the_policy() {
    for policy in [Policy::Immediate, Policy::OnClose, Policy::Never] {
        for (requested, pressure) in [(true, false), (false, true)] {
            let facts = Facts {
                requested,
                pressure,
                published_often: true,
                ..facts(3)
            };
            assert_eq!(choose(policy, facts), Some(Scope::Everything), "{policy}");
        }
    }
}

#[test]
fn the_earliest_is_first_and_waking_never_postpones() {
    let now = Instant::now();
    let mut s = Schedule::default();
    s.wake(FILE, now + Duration::from_secs(2), now);
    s.wake(OTHER, now + Duration::from_secs(1), now);
    s.wake(FILE, now, now);
    s.wake(FILE, now + Duration::from_secs(9), now);
    assert_eq!(s.pop(now), Some(FILE));
    assert_eq!(s.pop(now), None);
    assert_eq!(s.next_due(), Some(now + Duration::from_secs(1)));
    assert_eq!(s.pop(now + Duration::from_secs(1)), Some(OTHER));
}

#[test]
fn an_event_during_a_job_is_not_lost() {
    let now = Instant::now();
    let mut s = Schedule::default();
    s.wake(FILE, now, now);
    assert_eq!(s.pop(now), Some(FILE));
    s.start(FILE, Scope::Everything, now);
    s.wake(FILE, now, now);
    assert_eq!(s.pop(now), None, "one job per file at a time");
    s.finish(FILE, Outcome::Clean, &settings(), now);
    assert_eq!(s.pop(now + settings().batch), Some(FILE));
}

#[test]
fn a_clean_file_is_forgotten() {
    let now = Instant::now();
    let mut s = Schedule::default();
    s.request(FILE, now);
    s.start(FILE, Scope::Everything, now);
    s.finish(FILE, Outcome::Clean, &settings(), now);
    assert!(!s.is_requested(FILE));
    assert!(s.entries.is_empty());
}

#[test]
fn failures_pause_longer_and_longer_and_events_do_not_shorten_it() {
    let now = Instant::now();
    let mut s = Schedule::default();
    s.wake(FILE, now, now);
    for (failures, pause) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8)] {
        s.start(FILE, Scope::Everything, now);
        s.finish(FILE, Outcome::Failed, &settings(), now);
        s.wake(FILE, now, now);
        assert_eq!(s.next_due(), Some(now + Duration::from_secs(pause)));
        assert_eq!(s.given_up(FILE), failures >= FAILURES_UNTIL_GIVEN_UP);
    }
    s.request(FILE, now);
    assert_eq!(s.pop(now), Some(FILE), "a request does not wait");
    assert!(!s.given_up(FILE));
}

#[test]
fn damage_is_hopeless_but_new_data_still_moves() {
    let now = Instant::now();
    let mut s = Schedule::default();
    s.request(FILE, now);
    s.start(FILE, Scope::Everything, now);
    s.finish(FILE, Outcome::Damaged, &settings(), now);
    assert!(s.given_up(FILE));
    assert_eq!(s.next_due(), Some(now + settings().retry_max));
    s.wake(FILE, now, now);
    assert_eq!(s.pop(now), Some(FILE));
}

#[test]
fn partial_stripes_linger_since_the_last_sweep() {
    let now = Instant::now();
    let linger = Duration::from_secs(1);
    let mut s = Schedule::default();
    s.wake(FILE, now, now);
    assert!(!s.facts(FILE, linger, now).lingered);
    assert!(s.facts(FILE, linger, now + linger).lingered);
    s.start(FILE, Scope::Everything, now + linger);
    s.finish(FILE, Outcome::Dirty, &settings(), now + linger);
    assert!(!s.facts(FILE, linger, now + linger).lingered);
}

/// S4.6: what was undrained at some time counts as drained when a job that began later has
/// succeeded, however busy the file is, or when the file was clean meanwhile.
#[test]
fn a_busy_file_gets_through() {
    let begin = Instant::now();
    let at = |ms| begin + Duration::from_millis(ms);
    let mut s = Schedule::default();
    let pass = |s: &mut Schedule, ms, outcome| {
        s.start(FILE, Scope::Everything, at(ms));
        s.wake(FILE, at(ms), at(ms));
        s.finish(FILE, outcome, &settings(), at(ms + 1));
    };
    s.request(FILE, begin);
    assert!(!s.is_drained_since(FILE, at(5)), "no job yet");
    pass(&mut s, 4, Outcome::Passed);
    assert!(!s.is_drained_since(FILE, at(5)), "that one began before");
    pass(&mut s, 10, Outcome::Dirty);
    pass(&mut s, 20, Outcome::Failed);
    assert!(!s.is_drained_since(FILE, at(5)), "none got through");
    pass(&mut s, 30, Outcome::Passed);
    assert!(s.is_drained_since(FILE, at(5)));
    assert!(!s.is_drained_since(FILE, at(30)));
    pass(&mut s, 40, Outcome::Clean);
    assert!(
        s.is_drained_since(FILE, at(30)),
        "a new dirty period began behind it"
    );
    s.forget(FILE);
    assert!(s.is_drained_since(FILE, at(50)), "it is clean");
    s.wake(FILE, at(60), at(60));
    assert!(s.is_drained_since(FILE, at(50)), "it was clean");
    assert!(!s.is_drained_since(FILE, at(60)));
}
