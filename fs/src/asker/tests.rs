use super::*;

const TERM: u64 = 1 << 14;

fn alone() -> Signals {
    Signals {
        process: 7,
        threads: 1,
        ..Signals::default()
    }
}

fn one_of_two(process: u32) -> Signals {
    Signals {
        process,
        threads: 2,
        ..Signals::default()
    }
}

#[test]
fn the_status_of_this_thread_reads() {
    let me = read("/proc/thread-self/status".into()).unwrap().unwrap();
    assert_eq!(me.process, std::process::id());
    assert!(me.threads >= 1 && !me.stuck);
}

#[test]
fn a_thread_that_is_gone_is_interrupted_and_an_unknown_one_is_not() {
    assert!(Asker::new(u32::MAX - 1).is_interrupted());
    assert!(!Asker::new(0).is_interrupted());
}

#[test]
fn what_is_blocked_does_not_count() {
    let mut me = alone();
    (me.own, me.shared, me.blocked) = (TERM, TERM, TERM);
    assert!(!Asker::new(7).judge(&me, |_| unreachable!()));
    me.blocked = 0;
    assert!(Asker::new(7).judge(&me, |_| unreachable!()));
}

#[test]
fn the_only_thread_takes_what_is_sent_to_the_process() {
    let mut me = alone();
    me.shared = TERM;
    assert!(Asker::new(7).judge(&me, |_| unreachable!()));
}

/// The other thread may be about to take it: only what stays is for this one.
#[test]
fn with_several_threads_a_signal_must_stay() {
    let mut me = one_of_two(7);
    let mut asker = Asker::new(7);
    me.shared = TERM;
    assert!(!asker.judge(&me, |_| unreachable!()));
    me.shared = 0;
    assert!(!asker.judge(&me, |_| unreachable!()));
    me.shared = TERM;
    assert!(!asker.judge(&me, |_| unreachable!()));
    assert!(asker.judge(&me, |_| unreachable!()));
}

#[test]
fn a_later_thread_leaves_it_to_one_that_is_stuck() {
    let mut me = one_of_two(6);
    let mut asker = Asker::new(7);
    me.shared = TERM;
    assert!(!asker.judge(&me, |_| true));
    assert!(!asker.judge(&me, |signals| signals == TERM));
    assert!(asker.judge(&me, |_| false));
}
