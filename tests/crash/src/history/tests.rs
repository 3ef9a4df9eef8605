use super::*;

fn write(offset: u64, data: &[u8]) -> Effect {
    Effect::Write {
        offset,
        data: data.into(),
    }
}

/// Base `aaaa`; a synced write `b` at 0, an unsynced write `ccc` at 2, a write `d` at 1 in flight.
fn history() -> History {
    let mut history = History::new(b"aaaa".to_vec());
    let begun = history.begin(0, write(0, b"b"));
    history.done(begun, 2);
    history.synced(4);
    let begun = history.begin(4, write(2, b"ccc"));
    history.done(begun, 6);
    let begun = history.begin(6, write(1, b"d"));
    history.done(begun, 8);
    history
}

#[test]
fn a_kill_keeps_everything_acknowledged() {
    let history = history();
    let expected = history.killed(7);
    expected.check(b"baccc").unwrap();
    expected.check(b"bdccc").unwrap();
    assert!(
        expected.check(b"baaa").is_err(),
        "an acknowledged write may not go"
    );
    assert!(expected.check(b"bxccc").is_err(), "no write made that");
    assert!(
        history.killed(8).check(b"baccc").is_err(),
        "acknowledged by then"
    );
}

#[test]
fn a_power_failure_keeps_what_was_synced() {
    let history = history();
    let expected = history.power_lost(7);
    for allowed in [&b"baaa"[..], b"baca", b"baccc", b"bdaa", b"baaac"] {
        expected.check(allowed).unwrap();
    }
    assert!(
        expected.check(b"aaaa").is_err(),
        "a synced write may not go"
    );
    assert!(
        expected.check(b"baa").is_err(),
        "no operation made that size"
    );
    history.power_lost(3).check(b"aaaa").unwrap();
}

#[test]
fn a_truncate_happens_whole_or_not_at_all() {
    let mut history = History::new(b"aaaa".to_vec());
    let begun = history.begin(
        0,
        Effect::Truncate {
            size: 1,
            whole: true,
        },
    );
    history.done(begun, 1);
    let expected = history.power_lost(1);
    expected.check(b"a").unwrap();
    expected.check(b"aaaa").unwrap();
    assert!(expected.check(b"a\0\0\0").is_err(), "old size, but zeros");
    let begun = history.begin(1, write(3, b"b"));
    history.done(begun, 2);
    let expected = history.power_lost(2);
    expected.check(b"a\0\0b").unwrap();
    expected.check(b"aaab").unwrap();
    assert!(
        history.killed(2).check(b"aaab").is_err(),
        "old bytes behind a truncate"
    );
}
