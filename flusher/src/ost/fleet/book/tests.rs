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

fn trouble(errno: i32) -> Trouble {
    Trouble {
        errno: Some(errno),
        sentence: format!("error {errno}"),
    }
}

fn listed(n: u32, settings: OstSettings, now: Instant) -> Book {
    let mut book = Book::new(settings);
    book.set_osts((0..n).map(ost).collect(), now);
    book
}

fn results(bandwidths: &[f64]) -> Vec<(u32, Result<Measured, Trouble>)> {
    (0..)
        .zip(bandwidths)
        .map(|(n, b)| (n, Ok(measured(*b))))
        .collect()
}

/// OSTs of these bandwidths, probed.
fn book(bandwidths: &[f64], now: Instant) -> Book {
    let mut book = listed(bandwidths.len() as u32, settings(), now);
    book.probed(&results(bandwidths), now);
    book
}

fn chosen(book: &Book) -> Vec<u32> {
    book.chosen().iter().map(|o| o.index).collect()
}

fn state(book: &Book, ost: usize, now: Instant) -> OstState {
    book.status(now)[ost].state
}

fn fail(book: &mut Book, ost: u32, errno: i32, now: Instant) {
    let id = book.begin(ost, MIB, now).unwrap();
    book.failed(ost, id, &trouble(errno), now);
}

fn deals(book: &mut Book, units: usize) -> Vec<u32> {
    let mut one = || {
        let ost = book.deal(MIB, &[]).unwrap().index;
        book.settle(ost, MIB);
        ost
    };
    (0..units).map(|_| one()).collect()
}

fn count(dealt: &[u32], ost: u32) -> usize {
    dealt.iter().filter(|o| **o == ost).count()
}

/// I/Os of a MiB without a break until `rate` has been seen for `seconds`.
fn stream(book: &mut Book, ost: u32, rate: f64, from: Instant, seconds: f64) -> Instant {
    let step = Duration::from_secs_f64(MIB as f64 / rate);
    let mut now = from;
    let mut flying = book.begin(ost, MIB, now).unwrap();
    while now < from + Duration::from_secs_f64(seconds) {
        now += step;
        let next = book.begin(ost, MIB, now).unwrap();
        book.done(ost, flying, now);
        flying = next;
    }
    book.done(ost, flying, now + step);
    now + step
}

#[test]
fn the_paper_example_is_chosen_from_fast_to_slow() {
    let t = Instant::now();
    let book = book(&[100.0, 110.0, 120.0, 90.0, 70.0], t);
    assert_eq!(chosen(&book), [2, 1, 0, 3]);
    assert_eq!(state(&book, 4, t), OstState::LeftOut);
    assert_eq!(state(&book, 0, t), OstState::Chosen);
    assert!(book.is_usable(4) && !book.is_usable(5));
}

#[test]
fn dealt_in_proportion_to_bandwidth() {
    let mut book = self::book(&[100e6, 300e6], Instant::now());
    // Two of 100 are less than one of 300.
    assert_eq!(chosen(&book), [1]);
    assert_eq!(count(&deals(&mut book, 8), 1), 8);
    let mut book = self::book(&[300e6, 200e6], Instant::now());
    let dealt = deals(&mut book, 50);
    assert_eq!((count(&dealt, 0), count(&dealt, 1)), (30, 20));
}

#[test]
fn before_the_first_probe_all_take_turns() {
    let now = Instant::now();
    let mut book = listed(3, settings(), now);
    assert_eq!(deals(&mut book, 6), [0, 1, 2, 0, 1, 2]);
    // What the drain sees meanwhile leaves nobody out.
    let now = stream(&mut book, 0, 200e6, now, 5.0);
    stream(&mut book, 1, 1e6, now, 30.0);
    assert_eq!(chosen(&book), [0, 1, 2]);
    let dealt = deals(&mut book, 9);
    assert_eq!([0, 1, 2].map(|o| count(&dealt, o)), [3, 3, 3]);
    // A choice of `width` among equals is none before they are known.
    let width = OstSettings {
        width: Some(2),
        ..settings()
    };
    let mut book = listed(3, width, now);
    assert_eq!(deals(&mut book, 3), [0, 1, 2]);
    assert_eq!(chosen(&book), [0, 1]);
}

#[test]
fn no_more_than_the_width() {
    let t = Instant::now();
    let mut book = listed(
        4,
        OstSettings {
            width: Some(2),
            ..settings()
        },
        t,
    );
    book.probed(&results(&[90.0, 100.0, 95.0, 92.0]), t);
    assert_eq!(chosen(&book), [1, 2]);
    let dealt = deals(&mut book, 10);
    assert_eq!(count(&dealt, 1) + count(&dealt, 2), 10);
    assert_eq!(state(&book, 3, t), OstState::LeftOut);
    fail(&mut book, 1, libc::EIO, t);
    assert_eq!(chosen(&book), [2, 3]);
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
        let mut book = book(&[300.0, 100.0, 290.0], t);
        fail(&mut book, 0, errno, t);
        assert!(!book.is_usable(0));
        assert_eq!(chosen(&book), [2], "errno {errno}");
        assert_eq!(count(&deals(&mut book, 10), 0), 0);
        let status = &book.status(t)[0];
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
        let mut book = book(&[100.0, 100.0], t);
        fail(&mut book, 0, errno, t);
        assert!(book.is_usable(0), "errno {errno}");
        assert_eq!(chosen(&book), [0, 1]);
    }
}

#[test]
fn an_io_in_flight_for_too_long_is_a_stall() {
    let t = Instant::now();
    let mut book = book(&[100.0, 100.0], t);
    let id = book.begin(1, 3 * MIB, t).unwrap();
    book.drop_stalled(t + DEADLINE);
    assert!(book.is_usable(1));
    let now = t + DEADLINE + Duration::from_millis(1);
    book.drop_stalled(now);
    assert_eq!(state(&book, 1, now), OstState::Stalled);
    assert_eq!(chosen(&book), [0]);
    let status = &book.status(now)[1];
    assert_eq!(status.in_flight, 3 * MIB);
    let said = status.error.clone().unwrap();
    assert!(
        said.starts_with("OST 1 (ost1): an I/O has not come back for 10.0 s"),
        "{said}"
    );
    // It comes back, and counts, and the OST stays dropped until it is tried.
    book.done(1, id, now);
    assert_eq!(book.status(now)[1].written, 3 * MIB);
    assert!(!book.is_usable(1));
    assert_eq!(book.due(now + RETRY), [ost(1)]);
    book.retried(1, Ok(measured(100.0)), now + RETRY);
    assert_eq!(chosen(&book), [0, 1]);
}

#[test]
fn one_that_came_back_is_not_dropped_again_for_the_old_io() {
    let t = Instant::now();
    let mut book = book(&[100.0, 100.0], t);
    book.begin(1, MIB, t).unwrap();
    let mut now = t + DEADLINE * 2;
    book.drop_stalled(now);
    now += RETRY;
    assert_eq!(book.due(now), [ost(1)]);
    book.retried(1, Ok(measured(100.0)), now);
    book.drop_stalled(now + DEADLINE * 5);
    assert!(book.is_usable(1));
    assert_eq!(book.status(now)[1].in_flight, MIB);
}

#[test]
fn tries_are_twice_as_far_apart_each_time_up_to_16_times() {
    let mut now = Instant::now();
    let mut book = book(&[100.0, 100.0], now);
    fail(&mut book, 0, libc::EIO, now);
    for times in [1, 2, 4, 8, 16, 16, 16] {
        let wait = RETRY * times;
        assert_eq!(book.status(now)[0].retry_in, Some(wait.as_secs_f64()));
        assert_eq!(book.due(now + wait - Duration::from_millis(1)), []);
        now += wait;
        assert_eq!(book.due(now), [ost(0)]);
        assert_eq!(book.due(now), [], "two tries at once");
        book.retried(0, Err(trouble(libc::ENOSPC)), now);
        assert_eq!(state(&book, 0, now), OstState::Full);
    }
    now += RETRY * 16;
    assert_eq!(book.due(now), [ost(0)]);
    book.retried(0, Ok(measured(100.0)), now);
    assert!(book.is_usable(0));
    assert_eq!(book.status(now)[0].error, None);
    assert_eq!(book.status(now)[0].retry_in, None);
    assert_eq!(book.due(now + RETRY * 100), []);
}

#[test]
fn one_that_fails_again_soon_is_not_tried_as_often() {
    let mut now = Instant::now();
    let mut book = book(&[100.0, 100.0], now);
    for times in [1, 2, 4] {
        fail(&mut book, 0, libc::EIO, now);
        assert_eq!(
            book.status(now)[0].retry_in,
            Some((RETRY * times).as_secs_f64())
        );
        now += RETRY * times;
        assert_eq!(book.due(now), [ost(0)]);
        book.retried(0, Ok(measured(100.0)), now);
        now += Duration::from_secs(5);
    }
    // It was away for four times as long, and has now been good for that long.
    now += RETRY * 4;
    fail(&mut book, 0, libc::EIO, now);
    assert_eq!(book.status(now)[0].retry_in, Some(RETRY.as_secs_f64()));
}

#[test]
fn a_stuck_probe_keeps_the_next_one_away_until_it_comes_back() {
    let mut now = Instant::now();
    let mut book = book(&[100.0, 100.0], now);
    fail(&mut book, 0, libc::ETIMEDOUT, now);
    now += RETRY;
    assert_eq!(book.due(now), [ost(0)]);
    book.probe_began(0, now);
    now += DEADLINE;
    book.retried(0, Err(trouble(libc::ETIMEDOUT)), now);
    for times in [2, 4, 8, 16, 16] {
        now += RETRY * times;
        assert_eq!(book.due(now), []);
    }
    book.probe_ended(0, now);
    assert_eq!(book.status(now)[0].retry_in, Some(RETRY.as_secs_f64()));
    assert_eq!(book.due(now + RETRY), [ost(0)]);
}

#[test]
fn a_quota_met_by_a_try_is_an_answer_of_the_ost() {
    let t = Instant::now();
    let mut book = book(&[100.0, 100.0], t);
    fail(&mut book, 0, libc::EIO, t);
    assert_eq!(book.due(t + RETRY), [ost(0)]);
    book.retried(0, Err(trouble(libc::EDQUOT)), t + RETRY);
    assert_eq!(chosen(&book), [0, 1]);
}

#[test]
fn nothing_is_dealt_when_all_have_failed() {
    let t = Instant::now();
    let mut book = book(&[100.0, 100.0], t);
    fail(&mut book, 0, libc::EIO, t);
    fail(&mut book, 1, libc::ENOSPC, t);
    assert_eq!(book.deal(MIB, &[]), None);
    assert!(chosen(&book).is_empty());
    assert_eq!(Book::new(settings()).deal(MIB, &[]), None);
}

#[test]
fn an_ost_that_was_left_out_is_better_than_none() {
    let t = Instant::now();
    let mut book = book(&[100.0, 5.0, 7.0], t);
    assert_eq!(chosen(&book), [0]);
    assert_eq!(book.deal(MIB, &[0]), Some(ost(2)));
    assert_eq!(book.deal(MIB, &[0, 2]), Some(ost(1)));
    assert_eq!(book.deal(MIB, &[0, 1, 2]), None);
    fail(&mut book, 2, libc::EIO, t);
    assert_eq!(book.deal(MIB, &[0]), Some(ost(1)));
}

#[test]
fn a_probe_that_fails_drops_and_a_quota_does_not() {
    let t = Instant::now();
    let mut book = listed(4, settings(), t);
    let mut found = results(&[100.0, 90.0]);
    found.push((2, Err(trouble(libc::EIO))));
    found.push((3, Err(trouble(libc::EDQUOT))));
    found.push((77, Ok(measured(1.0))));
    book.probed(&found, t);
    // The unmeasured one counts as the median.
    assert_eq!(chosen(&book), [0, 3, 1]);
    assert_eq!(state(&book, 2, t), OstState::Failed);
    assert_eq!(book.status(t)[3].bandwidth, None);
}

#[test]
fn a_probe_does_not_bring_back_what_the_drain_dropped_meanwhile() {
    let t = Instant::now();
    let mut book = book(&[100.0, 100.0], t);
    fail(&mut book, 0, libc::EIO, t);
    assert_eq!(book.to_probe(), [ost(1)]);
    book.probed(&results(&[100.0, 100.0]), t);
    assert_eq!(chosen(&book), [1]);
}

#[test]
fn bandwidths_that_are_none() {
    let t = Instant::now();
    let mut book = book(&[0.0, f64::NAN, f64::INFINITY, -5.0], t);
    assert_eq!(chosen(&book), [0, 1, 2, 3]);
    assert_eq!(deals(&mut book, 4), [0, 1, 2, 3]);
    assert!(book.status(t).iter().all(|o| o.bandwidth.is_none()));
}

#[test]
fn a_slow_one_is_left_out_when_the_drain_finds_out() {
    let t = Instant::now();
    let mut book = book(&[100e6; 4], t);
    stream(&mut book, 2, 5e6, t, 40.0);
    assert_eq!(chosen(&book), [0, 1, 3]);
    assert_eq!(state(&book, 2, t), OstState::LeftOut);
}

#[test]
fn the_choice_does_not_flap() {
    let mut now = Instant::now();
    // The last one is just above the cut: 3 * 66 is 1 % less than 2 * 100.
    let mut book = book(&[100e6, 100e6, 66e6], now);
    assert_eq!(chosen(&book), [0, 1, 2]);
    // A few percent up and down move no choice, though each alone would cut it off.
    for round in 0..50 {
        let rate = if round % 2 == 0 { 60e6 } else { 72e6 };
        now = stream(&mut book, 2, rate, now, 3.0);
        assert_eq!(chosen(&book), [0, 1, 2], "round {round}");
    }
    now = stream(&mut book, 2, 30e6, now, 60.0);
    assert_eq!(chosen(&book), [0, 1]);
    let mut changes = 0;
    let mut last = chosen(&book);
    for round in 0..50 {
        let rate = if round % 2 == 0 { 28e6 } else { 33e6 };
        now = stream(&mut book, 2, rate, now, 3.0);
        changes += usize::from(last != chosen(&book));
        last = chosen(&book);
    }
    assert_eq!(changes, 0);
}

#[test]
fn without_probing_all_are_equal_whatever_the_drain_sees() {
    let t = Instant::now();
    let mut book = listed(
        3,
        OstSettings {
            probing: false,
            ..settings()
        },
        t,
    );
    let now = stream(&mut book, 0, 1e6, t, 20.0);
    stream(&mut book, 1, 100e6, now, 20.0);
    assert_eq!(chosen(&book), [0, 1, 2]);
    let dealt = deals(&mut book, 9);
    assert_eq!([0, 1, 2].map(|o| count(&dealt, o)), [3, 3, 3]);
    // Dropping and trying again work all the same, and a try measures nothing.
    fail(&mut book, 2, libc::EIO, t);
    assert_eq!(chosen(&book), [0, 1]);
    assert_eq!(book.due(t + RETRY), [ost(2)]);
    book.retried(2, Ok(measured(1.0)), t + RETRY);
    assert_eq!(chosen(&book), [0, 1, 2]);
    assert_eq!(book.status(t)[2].bandwidth, None);
}

#[test]
fn what_the_drain_wrote_during_a_probe_is_added_to_it() {
    let t = Instant::now();
    let mut book = book(&[100e6, 100e6], t);
    book.probe_began(0, t);
    book.probe_began(1, t);
    let second = t + Duration::from_secs(1);
    let id = book.begin(0, 60_000_000, t).unwrap();
    book.done(0, id, second);
    book.probe_ended(0, second);
    book.probe_ended(1, second);
    book.probed(&results(&[40e6, 100e6]), second);
    let bandwidth = |n: usize| book.status(second)[n].bandwidth.unwrap();
    assert!((bandwidth(0) - 100e6).abs() < 1.0, "{}", bandwidth(0));
    assert_eq!(bandwidth(1), 100e6);
    assert_eq!(chosen(&book).len(), 2);
}

#[test]
fn a_new_list_keeps_what_is_known() {
    let t = Instant::now();
    let mut book = book(&[100.0, 100.0, 5.0], t);
    fail(&mut book, 1, libc::EIO, t);
    let gone = book.begin(2, MIB, t).unwrap();
    book.set_osts(vec![ost(0), ost(1), ost(3)], t);
    // Not measured yet: as good as the others.
    assert_eq!(chosen(&book), [0, 3]);
    assert_eq!(state(&book, 1, t), OstState::Failed);
    book.done(2, gone, t);
    assert_eq!(book.begin(2, MIB, t), None);
    let renamed = Ost {
        name: "another disk".into(),
        ..ost(1)
    };
    book.set_osts(vec![ost(0), renamed], t);
    assert_eq!(chosen(&book), [0, 1]);
}
