use super::*;

const FILE: FileId = FileId { ino: 1, birth: 2 };

fn covered() -> Covered {
    let layouts = [((9, 0), 100), ((9, 1), 5000), ((u64::MAX, 7), 0)];
    Covered(layouts.map(|((n, g), upto)| ((NodeId(n), g), upto)).into())
}

fn plan() -> Plan {
    Plan {
        term: 3,
        covered: covered(),
        unit: 1 << 20,
        domains: 8,
        size: 12345,
        mtime: Timestamp(6),
        epoch: Epoch(7),
        limit: u64::MAX,
    }
}

fn base() -> Base {
    Base {
        term: 3,
        covered: covered(),
        epoch: Epoch(7),
    }
}

#[test]
fn round_trip() {
    assert_eq!(Plan::decode(&plan().encode(FILE), FILE), Ok(plan()));
    assert_eq!(Base::decode(&base().encode(FILE), FILE), Ok(base()));
    let empty = Base {
        covered: Covered::default(),
        ..base()
    };
    assert_eq!(Base::decode(&empty.encode(FILE), FILE), Ok(empty));
}

/// Plans and bases appear whole, so a short one is as bad as a flipped bit. A file of the other
/// kind, or for another file, is refused, too.
#[test]
fn anything_else_is_refused() {
    let (plan, base) = (plan().encode(FILE), base().encode(FILE));
    let refused =
        |bytes: &[u8]| Plan::decode(bytes, FILE).is_err() && Base::decode(bytes, FILE).is_err();
    for whole in [&plan, &base] {
        for len in 0..whole.len() {
            assert!(refused(&whole[..len]), "{len}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(refused(&longer));
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(&flipped), "{bit}");
        }
    }
    assert!(Plan::decode(&base, FILE).is_err() && Base::decode(&plan, FILE).is_err());
    let other = FileId { ino: 1, birth: 3 };
    let why = Plan::decode(&plan, other).unwrap_err();
    assert!(why.contains("is of file 1.2"), "{why}");
}

/// Forged plans have right checksums, and numbers that a drain could not work with.
#[test]
fn forgeries_are_refused() {
    let bad = [
        Plan { unit: 0, ..plan() },
        Plan {
            unit: 1 << 63,
            ..plan()
        },
        Plan {
            domains: 0,
            ..plan()
        },
        Plan {
            domains: MAX_DOMAINS + 1,
            ..plan()
        },
        Plan {
            size: 1 << 63,
            ..plan()
        },
        Plan {
            limit: 1 << 63,
            ..plan()
        },
        Plan {
            epoch: Epoch(u64::MAX),
            ..plan()
        },
        Plan {
            covered: Covered([((NodeId(1), 1), u64::MAX)].into()),
            ..plan()
        },
    ];
    for plan in bad {
        assert!(Plan::decode(&plan.encode(FILE), FILE).is_err(), "{plan:?}");
    }
    let mut twice = base().encode(FILE);
    let entries = twice.len() - 3 * ENTRY;
    let (first, second) = twice[entries..].split_at_mut(ENTRY);
    second[..ENTRY].copy_from_slice(first);
    let why = Base::decode(&seal(twice), FILE).unwrap_err();
    assert!(why.contains("not in order"), "{why}");
    let mut many = base().encode(FILE);
    let at = many.len() - 3 * ENTRY - 4;
    many[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let why = Base::decode(&seal(many), FILE).unwrap_err();
    assert!(why.contains("number of layouts"), "{why}");
}

#[test]
fn one_covers_the_other() {
    let mut less = covered();
    less.0.insert((NodeId(9), 1), 4999);
    assert!(covered().includes(&less) && !less.includes(&covered()));
    assert!(covered().includes(&Covered::default()));
}
