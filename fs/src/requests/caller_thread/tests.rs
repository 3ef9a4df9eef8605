use super::*;

const USR1: u64 = 1 << (libc::SIGUSR1 - 1);
const TERM: u64 = 1 << (libc::SIGTERM - 1);
const CHLD: u64 = 1 << (libc::SIGCHLD - 1);
const XCPU: u64 = 1 << (libc::SIGXCPU - 1);

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
    assert!(CallerThread::new(u32::MAX - 1).is_interrupted());
    assert!(!CallerThread::new(0).is_interrupted());
}

#[test]
fn what_is_blocked_does_not_count() {
    let mut me = alone();
    (me.own, me.shared, me.blocked) = (TERM, TERM, TERM);
    assert!(!CallerThread::new(7).judge(&me, |_| unreachable!()));
    me.blocked = 0;
    assert!(CallerThread::new(7).judge(&me, |_| unreachable!()));
}

#[test]
fn the_only_thread_takes_what_is_sent_to_the_process() {
    let mut me = alone();
    me.shared = TERM;
    assert!(CallerThread::new(7).judge(&me, |_| unreachable!()));
}

/// The kernel truncates a name to 15 bytes, even in the middle of a character.
#[test]
fn a_name_that_is_no_text_hides_nothing() {
    let name = std::thread::spawn(|| {
        std::fs::write("/proc/thread-self/comm", b"w\xc3").unwrap();
        read("/proc/thread-self/status".into())
    });
    assert!(name.join().unwrap().unwrap().is_some());
}

/// The other thread may be about to take the signal: it counts for this thread only if it stays pending.
#[test]
fn with_several_threads_a_signal_must_stay() {
    let mut me = one_of_two(7);
    me.caught = USR1;
    let mut caller = CallerThread::new(7);
    me.shared = USR1;
    assert!(!caller.judge(&me, |_| unreachable!()));
    me.shared = 0;
    assert!(!caller.judge(&me, |_| unreachable!()));
    me.shared = USR1;
    assert!(!caller.judge(&me, |_| unreachable!()));
    assert!(caller.judge(&me, |_| unreachable!()));
}

#[test]
fn a_later_thread_leaves_it_to_one_that_is_stuck() {
    let mut me = one_of_two(6);
    me.caught = USR1;
    let mut caller = CallerThread::new(7);
    me.shared = USR1;
    assert!(!caller.judge(&me, |_| true));
    assert!(!caller.judge(&me, |signals| signals == USR1));
    assert!(caller.judge(&me, |_| false));
}

/// Without this rule two stuck threads would leave the signal to each other.
#[test]
fn what_ends_the_process_is_for_every_thread() {
    let mut me = one_of_two(6);
    let mut caller = CallerThread::new(7);
    me.shared = XCPU;
    assert!(!caller.judge(&me, |_| true));
    assert!(caller.judge(&me, |_| unreachable!()));
    for spared in [&mut me.caught, &mut me.ignored, &mut me.blocked] {
        *spared = XCPU;
    }
    assert!(!caller.judge(&me, |_| true));
}

#[test]
fn fatal_is_what_ends_a_process_by_default_and_is_not_handled() {
    let mut me = alone();
    me.shared = XCPU | TERM | USR1 | CHLD;
    me.own = TERM;
    assert_eq!(me.fatal(), XCPU | TERM | USR1);
    (me.caught, me.ignored, me.blocked) = (USR1, XCPU, TERM);
    assert_eq!(me.fatal(), 0);
}
