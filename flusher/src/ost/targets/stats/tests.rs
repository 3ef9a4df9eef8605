use super::*;

const MIB: u64 = 1 << 20;
const RETRY: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(10);

fn settings() -> OstSettings {
    OstSettings {
        deadline: DEADLINE,
        retry_after: RETRY,
        ..OstSettings::default()
    }
}

fn ost(index: u32) -> Ost {
    Ost {
        index,
        name: format!("ost{index}"),
    }
}

fn measured(bandwidth: f64) -> Measured {
    Measured {
        bandwidth,
        latency: Duration::from_millis(2),
        bytes: 16 * MIB,
        direct: true,
    }
}

fn failure(errno: i32) -> Failure {
    Failure {
        errno: Some(errno),
        sentence: format!("error {errno}"),
    }
}

fn listed(n: u32, settings: OstSettings, now: Instant) -> Stats {
    let mut stats = Stats::new(settings);
    stats.set_osts((0..n).map(ost).collect(), now);
    stats
}

fn results(bandwidths: &[f64]) -> Vec<(u32, Result<Measured, Failure>)> {
    (0..)
        .zip(bandwidths)
        .map(|(n, b)| (n, Ok(measured(*b))))
        .collect()
}

/// Statistics of OSTs that were probed with these bandwidths.
fn stats(bandwidths: &[f64], now: Instant) -> Stats {
    let mut stats = listed(bandwidths.len() as u32, settings(), now);
    stats.probed(&results(bandwidths), now);
    stats
}

fn chosen(stats: &Stats) -> Vec<u32> {
    stats.chosen().iter().map(|o| o.index).collect()
}

fn state(stats: &Stats, ost: usize, now: Instant) -> OstState {
    stats.status(now)[ost].state
}

fn fail(stats: &mut Stats, ost: u32, errno: i32, now: Instant) {
    let id = stats.begin(ost, MIB, now).unwrap();
    stats.failed(ost, id, &failure(errno), now);
}

fn deals(stats: &mut Stats, units: usize) -> Vec<u32> {
    let mut one = || {
        let ost = stats.pick(MIB, &[]).unwrap().index;
        stats.unit_ended(ost, MIB);
        ost
    };
    (0..units).map(|_| one()).collect()
}

fn count(picked: &[u32], ost: u32) -> usize {
    picked.iter().filter(|o| **o == ost).count()
}

/// Makes I/Os of a MiB without a break until `rate` has been seen for `seconds`.
fn stream(stats: &mut Stats, ost: u32, rate: f64, from: Instant, seconds: f64) -> Instant {
    let step = Duration::from_secs_f64(MIB as f64 / rate);
    let mut now = from;
    let mut flying = stats.begin(ost, MIB, now).unwrap();
    while now < from + Duration::from_secs_f64(seconds) {
        now += step;
        let next = stats.begin(ost, MIB, now).unwrap();
        stats.done(ost, flying, now);
        flying = next;
    }
    stats.done(ost, flying, now + step);
    now + step
}

#[test]
fn the_paper_example_is_chosen_from_fast_to_slow() {
    let t = Instant::now();
    let stats = stats(&[100.0, 110.0, 120.0, 90.0, 70.0], t);
    assert_eq!(chosen(&stats), [2, 1, 0, 3]);
    assert_eq!(state(&stats, 4, t), OstState::LeftOut);
    assert_eq!(state(&stats, 0, t), OstState::Chosen);
    assert!(stats.is_usable(4) && !stats.is_usable(5));
}

#[test]
fn dealt_in_proportion_to_bandwidth() {
    let mut stats = self::stats(&[100e6, 300e6], Instant::now());
    // Two OSTs of 100 are slower than one of 300.
    assert_eq!(chosen(&stats), [1]);
    assert_eq!(count(&deals(&mut stats, 8), 1), 8);
    let mut stats = self::stats(&[300e6, 200e6], Instant::now());
    let picked = deals(&mut stats, 50);
    assert_eq!((count(&picked, 0), count(&picked, 1)), (30, 20));
}

#[test]
fn before_the_first_probe_all_take_turns() {
    let now = Instant::now();
    let mut stats = listed(3, settings(), now);
    assert_eq!(deals(&mut stats, 6), [0, 1, 2, 0, 1, 2]);
    // The drain's I/O before the first probe leaves no OST out.
    let now = stream(&mut stats, 0, 200e6, now, 5.0);
    stream(&mut stats, 1, 1e6, now, 30.0);
    assert_eq!(chosen(&stats), [0, 1, 2]);
    let picked = deals(&mut stats, 9);
    assert_eq!([0, 1, 2].map(|o| count(&picked, o)), [3, 3, 3]);
    // With `width` set, OSTs that are not measured yet still take turns all together.
    let width = OstSettings {
        width: Some(2),
        ..settings()
    };
    let mut stats = listed(3, width, now);
    assert_eq!(deals(&mut stats, 3), [0, 1, 2]);
    assert_eq!(chosen(&stats), [0, 1]);
}

#[test]
fn no_more_than_the_width() {
    let t = Instant::now();
    let mut stats = listed(
        4,
        OstSettings {
            width: Some(2),
            ..settings()
        },
        t,
    );
    stats.probed(&results(&[90.0, 100.0, 95.0, 92.0]), t);
    assert_eq!(chosen(&stats), [1, 2]);
    let picked = deals(&mut stats, 10);
    assert_eq!(count(&picked, 1) + count(&picked, 2), 10);
    assert_eq!(state(&stats, 3, t), OstState::LeftOut);
    fail(&mut stats, 1, libc::EIO, t);
    assert_eq!(chosen(&stats), [2, 3]);
}

#[test]
fn what_fails_fills_or_times_out_is_dropped_at_once() {
    for (errno, expected) in [
        (libc::EIO, OstState::Failed),
        (libc::EROFS, OstState::Failed),
        (libc::ENOENT, OstState::Failed),
        (libc::EACCES, OstState::Failed),
        (libc::ENOSPC, OstState::Full),
        (libc::ETIMEDOUT, OstState::Stalled),
    ] {
        let t = Instant::now();
        let mut stats = stats(&[300.0, 100.0, 290.0], t);
        fail(&mut stats, 0, errno, t);
        assert!(!stats.is_usable(0));
        assert_eq!(chosen(&stats), [2], "errno {errno}");
        assert_eq!(count(&deals(&mut stats, 10), 0), 0);
        let status = &stats.status(t)[0];
        assert_eq!(status.state, expected);
        assert_eq!(status.error.as_deref(), Some(&*format!("error {errno}")));
        assert_eq!(status.retry_in, Some(RETRY.as_secs_f64()));
        assert_eq!(status.in_flight, 0);
    }
}

#[test]
fn what_is_no_fault_of_the_ost_does_not_drop_it() {
    for errno in [libc::EDQUOT, libc::EINTR, libc::ENOMEM, libc::EMFILE] {
        let t = Instant::now();
        let mut stats = stats(&[100.0, 100.0], t);
        fail(&mut stats, 0, errno, t);
        assert!(stats.is_usable(0), "errno {errno}");
        assert_eq!(chosen(&stats), [0, 1]);
    }
}

#[test]
fn an_io_in_flight_for_too_long_is_a_stall() {
    let t = Instant::now();
    let mut stats = stats(&[100.0, 100.0], t);
    let id = stats.begin(1, 3 * MIB, t).unwrap();
    stats.drop_stalled(t + DEADLINE);
    assert!(stats.is_usable(1));
    let now = t + DEADLINE + Duration::from_millis(1);
    stats.drop_stalled(now);
    assert_eq!(state(&stats, 1, now), OstState::Stalled);
    assert_eq!(chosen(&stats), [0]);
    let status = &stats.status(now)[1];
    assert_eq!(status.in_flight, 3 * MIB);
    let said = status.error.clone().unwrap();
    assert!(
        said.starts_with("OST 1 (ost1): an I/O has not come back for 10.0 s"),
        "{said}"
    );
    // The I/O comes back and is counted, and the OST stays dropped until it is tried.
    stats.done(1, id, now);
    assert_eq!(stats.status(now)[1].written, 3 * MIB);
    assert!(!stats.is_usable(1));
    assert_eq!(stats.due(now + RETRY), [ost(1)]);
    stats.retried(1, Ok(measured(100.0)), now + RETRY);
    assert_eq!(chosen(&stats), [0, 1]);
}

#[test]
fn one_that_came_back_is_not_dropped_again_for_the_old_io() {
    let t = Instant::now();
    let mut stats = stats(&[100.0, 100.0], t);
    stats.begin(1, MIB, t).unwrap();
    let mut now = t + DEADLINE * 2;
    stats.drop_stalled(now);
    now += RETRY;
    assert_eq!(stats.due(now), [ost(1)]);
    stats.retried(1, Ok(measured(100.0)), now);
    stats.drop_stalled(now + DEADLINE * 5);
    assert!(stats.is_usable(1));
    assert_eq!(stats.status(now)[1].in_flight, MIB);
}

#[test]
fn tries_are_twice_as_far_apart_each_time_up_to_16_times() {
    let mut now = Instant::now();
    let mut stats = stats(&[100.0, 100.0], now);
    fail(&mut stats, 0, libc::EIO, now);
    for times in [1, 2, 4, 8, 16, 16, 16] {
        let wait = RETRY * times;
        assert_eq!(stats.status(now)[0].retry_in, Some(wait.as_secs_f64()));
        assert_eq!(stats.due(now + wait - Duration::from_millis(1)), []);
        now += wait;
        assert_eq!(stats.due(now), [ost(0)]);
        assert_eq!(stats.due(now), [], "two tries at once");
        stats.retried(0, Err(failure(libc::ENOSPC)), now);
        assert_eq!(state(&stats, 0, now), OstState::Full);
    }
    now += RETRY * 16;
    assert_eq!(stats.due(now), [ost(0)]);
    stats.retried(0, Ok(measured(100.0)), now);
    assert!(stats.is_usable(0));
    assert_eq!(stats.status(now)[0].error, None);
    assert_eq!(stats.status(now)[0].retry_in, None);
    assert_eq!(stats.due(now + RETRY * 100), []);
}

#[test]
fn one_that_fails_again_soon_is_not_tried_as_often() {
    let mut now = Instant::now();
    let mut stats = stats(&[100.0, 100.0], now);
    for times in [1, 2, 4] {
        fail(&mut stats, 0, libc::EIO, now);
        assert_eq!(
            stats.status(now)[0].retry_in,
            Some((RETRY * times).as_secs_f64())
        );
        now += RETRY * times;
        assert_eq!(stats.due(now), [ost(0)]);
        stats.retried(0, Ok(measured(100.0)), now);
        now += Duration::from_secs(5);
    }
    // The OST was away for four times as long, and has now been good for that long.
    now += RETRY * 4;
    fail(&mut stats, 0, libc::EIO, now);
    assert_eq!(stats.status(now)[0].retry_in, Some(RETRY.as_secs_f64()));
}

#[test]
fn a_stuck_probe_keeps_the_next_one_away_until_it_comes_back() {
    let mut now = Instant::now();
    let mut stats = stats(&[100.0, 100.0], now);
    fail(&mut stats, 0, libc::ETIMEDOUT, now);
    now += RETRY;
    assert_eq!(stats.due(now), [ost(0)]);
    stats.probe_began(0, now);
    now += DEADLINE;
    stats.retried(0, Err(failure(libc::ETIMEDOUT)), now);
    for times in [2, 4, 8, 16, 16] {
        now += RETRY * times;
        assert_eq!(stats.due(now), []);
    }
    stats.probe_ended(0, now);
    assert_eq!(stats.status(now)[0].retry_in, Some(RETRY.as_secs_f64()));
    assert_eq!(stats.due(now + RETRY), [ost(0)]);
}

#[test]
fn a_quota_met_by_a_try_is_an_answer_of_the_ost() {
    let t = Instant::now();
    let mut stats = stats(&[100.0, 100.0], t);
    fail(&mut stats, 0, libc::EIO, t);
    assert_eq!(stats.due(t + RETRY), [ost(0)]);
    stats.retried(0, Err(failure(libc::EDQUOT)), t + RETRY);
    assert_eq!(chosen(&stats), [0, 1]);
}

#[test]
fn nothing_is_dealt_when_all_have_failed() {
    let t = Instant::now();
    let mut stats = stats(&[100.0, 100.0], t);
    fail(&mut stats, 0, libc::EIO, t);
    fail(&mut stats, 1, libc::ENOSPC, t);
    assert_eq!(stats.pick(MIB, &[]), None);
    assert!(chosen(&stats).is_empty());
    assert_eq!(Stats::new(settings()).pick(MIB, &[]), None);
}

#[test]
fn an_ost_that_was_left_out_is_better_than_none() {
    let t = Instant::now();
    let mut stats = stats(&[100.0, 5.0, 7.0], t);
    assert_eq!(chosen(&stats), [0]);
    assert_eq!(stats.pick(MIB, &[0]), Some(ost(2)));
    assert_eq!(stats.pick(MIB, &[0, 2]), Some(ost(1)));
    assert_eq!(stats.pick(MIB, &[0, 1, 2]), None);
    fail(&mut stats, 2, libc::EIO, t);
    assert_eq!(stats.pick(MIB, &[0]), Some(ost(1)));
}

#[test]
fn a_probe_that_fails_drops_and_a_quota_does_not() {
    let t = Instant::now();
    let mut stats = listed(4, settings(), t);
    let mut found = results(&[100.0, 90.0]);
    found.push((2, Err(failure(libc::EIO))));
    found.push((3, Err(failure(libc::EDQUOT))));
    found.push((77, Ok(measured(1.0))));
    stats.probed(&found, t);
    // The OST without a measurement counts as the median.
    assert_eq!(chosen(&stats), [0, 3, 1]);
    assert_eq!(state(&stats, 2, t), OstState::Failed);
    assert_eq!(stats.status(t)[3].bandwidth, None);
}

#[test]
fn a_probe_does_not_bring_back_what_the_drain_dropped_meanwhile() {
    let t = Instant::now();
    let mut stats = stats(&[100.0, 100.0], t);
    fail(&mut stats, 0, libc::EIO, t);
    assert_eq!(stats.to_probe(), [ost(1)]);
    stats.probed(&results(&[100.0, 100.0]), t);
    assert_eq!(chosen(&stats), [1]);
}

#[test]
fn bandwidths_that_are_none() {
    let t = Instant::now();
    let mut stats = stats(&[0.0, f64::NAN, f64::INFINITY, -5.0], t);
    assert_eq!(chosen(&stats), [0, 1, 2, 3]);
    assert_eq!(deals(&mut stats, 4), [0, 1, 2, 3]);
    assert!(stats.status(t).iter().all(|o| o.bandwidth.is_none()));
}

#[test]
fn a_slow_one_is_left_out_when_the_drain_finds_out() {
    let t = Instant::now();
    let mut stats = stats(&[100e6; 4], t);
    stream(&mut stats, 2, 5e6, t, 40.0);
    assert_eq!(chosen(&stats), [0, 1, 3]);
    assert_eq!(state(&stats, 2, t), OstState::LeftOut);
}

#[test]
fn the_choice_does_not_flap() {
    let mut now = Instant::now();
    // The last OST is just above the cut: 3 * 66 is 1 % less than 2 * 100.
    let mut stats = stats(&[100e6, 100e6, 66e6], now);
    assert_eq!(chosen(&stats), [0, 1, 2]);
    // Changes of a few percent up and down do not change the choice, though each alone would cut
    // the OST off.
    for round in 0..50 {
        let rate = if round % 2 == 0 { 60e6 } else { 72e6 };
        now = stream(&mut stats, 2, rate, now, 3.0);
        assert_eq!(chosen(&stats), [0, 1, 2], "round {round}");
    }
    now = stream(&mut stats, 2, 30e6, now, 60.0);
    assert_eq!(chosen(&stats), [0, 1]);
    let mut changes = 0;
    let mut last = chosen(&stats);
    for round in 0..50 {
        let rate = if round % 2 == 0 { 28e6 } else { 33e6 };
        now = stream(&mut stats, 2, rate, now, 3.0);
        changes += usize::from(last != chosen(&stats));
        last = chosen(&stats);
    }
    assert_eq!(changes, 0);
}

#[test]
fn without_probing_all_are_equal_whatever_the_drain_sees() {
    let t = Instant::now();
    let mut stats = listed(
        3,
        OstSettings {
            probing: false,
            ..settings()
        },
        t,
    );
    let now = stream(&mut stats, 0, 1e6, t, 20.0);
    stream(&mut stats, 1, 100e6, now, 20.0);
    assert_eq!(chosen(&stats), [0, 1, 2]);
    let picked = deals(&mut stats, 9);
    assert_eq!([0, 1, 2].map(|o| count(&picked, o)), [3, 3, 3]);
    // Dropping and trying again work all the same, and a try measures nothing.
    fail(&mut stats, 2, libc::EIO, t);
    assert_eq!(chosen(&stats), [0, 1]);
    assert_eq!(stats.due(t + RETRY), [ost(2)]);
    stats.retried(2, Ok(measured(1.0)), t + RETRY);
    assert_eq!(chosen(&stats), [0, 1, 2]);
    assert_eq!(stats.status(t)[2].bandwidth, None);
}

#[test]
fn what_the_drain_wrote_during_a_probe_is_added_to_it() {
    let t = Instant::now();
    let mut stats = stats(&[100e6, 100e6], t);
    stats.probe_began(0, t);
    stats.probe_began(1, t);
    let second = t + Duration::from_secs(1);
    let id = stats.begin(0, 60_000_000, t).unwrap();
    stats.done(0, id, second);
    stats.probe_ended(0, second);
    stats.probe_ended(1, second);
    stats.probed(&results(&[40e6, 100e6]), second);
    let bandwidth = |n: usize| stats.status(second)[n].bandwidth.unwrap();
    assert!((bandwidth(0) - 100e6).abs() < 1.0, "{}", bandwidth(0));
    assert_eq!(bandwidth(1), 100e6);
    assert_eq!(chosen(&stats).len(), 2);
}

#[test]
fn a_new_list_keeps_what_is_known() {
    let t = Instant::now();
    let mut stats = stats(&[100.0, 100.0, 5.0], t);
    fail(&mut stats, 1, libc::EIO, t);
    let gone = stats.begin(2, MIB, t).unwrap();
    stats.set_osts(vec![ost(0), ost(1), ost(3)], t);
    // The new OST is not measured yet, so it counts as much as the others.
    assert_eq!(chosen(&stats), [0, 3]);
    assert_eq!(state(&stats, 1, t), OstState::Failed);
    stats.done(2, gone, t);
    assert_eq!(stats.begin(2, MIB, t), None);
    let renamed = Ost {
        name: "another disk".into(),
        ..ost(1)
    };
    stats.set_osts(vec![ost(0), renamed], t);
    assert_eq!(chosen(&stats), [0, 1]);
}
