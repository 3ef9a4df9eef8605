use super::*;
use Mode::{Exclusive, Shared};

const END: u64 = u64::MAX;

#[test]
fn who_is_alone_asks_once() {
    let mut table = LockTable::default();
    for i in 0..100 {
        assert_eq!(table.acquire(1, Exclusive, i * 10, i * 10 + 10), 0);
    }
    assert_eq!(table.held(), [(1, Exclusive, 0, END)]);
}

/// Two writers that alternate move a lock at each write of the first pass. When they write the same
/// ranges again, they hold the locks that they need.
#[test]
fn interleaved_writers_move_a_lock_each_time() {
    let mut table = LockTable::default();
    let mut moves = 0;
    for i in 0..50u64 {
        moves += table.acquire(i % 2, Exclusive, i * 10, i * 10 + 10);
    }
    assert_eq!(moves, 49);
    let again: u64 = (0..50u64)
        .map(|i| table.acquire(i % 2, Exclusive, i * 10, i * 10 + 10))
        .sum();
    assert_eq!(again, 0);
}

/// Blocks that share a lock unit move a lock at every write, in every pass.
#[test]
fn neighbours_in_one_unit_fight_for_ever() {
    let mut table = LockTable::default();
    let write = |table: &mut LockTable, i: u64| table.acquire(i % 2, Exclusive, i * 9, i * 9 + 12);
    let first: u64 = (0..40).map(|i| write(&mut table, i)).sum();
    let again: u64 = (0..40).map(|i| write(&mut table, i)).sum();
    assert!(first >= 39, "{first}");
    assert!(again >= 39, "{again}");
}

/// Two clients that each write their own half move at most two locks, at the start.
#[test]
fn segments_settle() {
    let mut table = LockTable::default();
    let mut moves = 0;
    for i in 0..50u64 {
        moves += table.acquire(1, Exclusive, i * 10, i * 10 + 10);
        moves += table.acquire(2, Exclusive, 1000 + i * 10, 1010 + i * 10);
    }
    // The second client's first request makes the first one keep only what it had used; the first
    // client then requests the gap.
    assert!(moves <= 2, "{moves}");
}

#[test]
fn a_lock_gives_way_by_what_was_used() {
    let mut table = LockTable::default();
    table.acquire(1, Exclusive, 100, 200);
    assert_eq!(table.acquire(2, Exclusive, 300, 400), 1);
    let mut held = table.held();
    held.sort_by_key(|lock| lock.2);
    assert_eq!(held, [(1, Exclusive, 0, 200), (2, Exclusive, 200, END)]);
    assert_eq!(table.acquire(3, Exclusive, 0, 50), 1);
    assert_eq!(table.acquire(3, Exclusive, 150, 160), 1, "within the used");
    let held = table.held();
    assert!(held.iter().all(|lock| lock.0 != 1), "{held:?}");
}

#[test]
fn readers_share_and_writers_do_not() {
    let mut table = LockTable::default();
    for client in 0..5 {
        assert_eq!(table.acquire(client, Shared, 0, 1000), 0);
    }
    assert_eq!(
        table.acquire(0, Exclusive, 500, 600),
        4,
        "four other readers"
    );
    assert_eq!(
        table.acquire(0, Shared, 510, 520),
        0,
        "its own write lock will do"
    );
    assert_eq!(
        table.acquire(3, Shared, 510, 520),
        1,
        "the writer gives way"
    );
    assert_eq!(table.acquire(3, Shared, 530, 540), 0);
}

#[test]
fn who_leaves_holds_nothing() {
    let mut table = LockTable::default();
    table.acquire(1, Exclusive, 0, 10);
    table.acquire(1, Shared, 50, 60);
    table.drop_client(1);
    assert!(table.held().is_empty());
    assert_eq!(table.acquire(2, Exclusive, 0, 100), 0);
}

/// In all situations, exclusive locks of one client overlap no locks of another.
#[test]
fn conflicting_locks_never_overlap() {
    let mut table = LockTable::default();
    let mut seed = 1u64;
    let mut next = |below: u64| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    for _ in 0..2000 {
        let (client, start) = (next(4), next(1000));
        let end = start + 1 + next(50);
        let mode = if next(3) == 0 { Shared } else { Exclusive };
        table.acquire(client, mode, start, end);
        assert!(table.use_held(client, mode, start, end), "granted");
        let held = table.held();
        for (i, a) in held.iter().enumerate() {
            assert!(a.2 < a.3, "{a:?}");
            for b in &held[..i] {
                let apart = a.3 <= b.2 || b.3 <= a.2;
                let compatible = a.0 == b.0 || (a.1 == Shared && b.1 == Shared);
                assert!(apart || compatible, "{a:?} {b:?}");
            }
        }
    }
}
