use super::*;
use crate::backing::ofd::LAST;

fn piece(first: u64, last: u64, kind: LockKind, fh: u64) -> Piece {
    Piece {
        span: Span { first, last },
        kind,
        pid: 1,
        fh,
    }
}

fn spans(held: &Held) -> Vec<(u64, u64)> {
    held.within(Span::ALL)
        .map(|p| (p.span.first, p.span.last))
        .collect()
}

#[test]
fn removing_splits_and_inserting_joins() {
    let mut held = Held::default();
    held.insert(piece(0, LAST, LockKind::Shared, 1));
    held.remove(Span {
        first: 10,
        last: 19,
    });
    assert_eq!(spans(&held), [(0, 9), (20, LAST)]);
    held.insert(piece(10, 19, LockKind::Shared, 1));
    assert_eq!(spans(&held), [(0, LAST)]);
    held.insert(piece(5, 6, LockKind::Exclusive, 1));
    assert_eq!(spans(&held), [(0, 4), (5, 6), (7, LAST)]);
    held.remove(Span::ALL);
    assert!(held.is_empty());
}

#[test]
fn what_came_through_another_handle_stays_apart() {
    let mut held = Held::default();
    held.insert(piece(0, 9, LockKind::Shared, 1));
    held.insert(piece(10, 19, LockKind::Shared, 2));
    assert_eq!(held.spans_of_handle(1).count(), 1);
    assert_eq!(held.spans_of_handle(2).next().unwrap().first, 10);
}

/// Compares with an array of bytes after random changes.
#[test]
fn it_is_what_a_byte_map_says() {
    const BYTES: usize = 40;
    let seed = std::process::id().into();
    println!("seed {seed}");
    let mut state: u64 = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) % below
    };
    let mut held = Held::default();
    let mut model = [None; BYTES];
    for _ in 0..20_000 {
        let first = random(BYTES as u64);
        let last = first + random(BYTES as u64 - first);
        let value = match random(3) {
            0 => None,
            1 => Some((LockKind::Shared, random(2))),
            _ => Some((LockKind::Exclusive, random(2))),
        };
        match value {
            Some((kind, fh)) => held.insert(piece(first, last, kind, fh)),
            None => held.remove(Span { first, last }),
        }
        model[first as usize..=last as usize].fill(value);
        let all = Span::new(0, BYTES as u64 - 1).unwrap();
        let mut found = Vec::new();
        for (span, piece) in held.cover(all) {
            assert_eq!(found.len() as u64, span.first);
            found.resize(span.last as usize + 1, piece.map(|p| (p.kind, p.fh)));
        }
        assert_eq!(found, model);
        let joined = held.0.windows(2).all(|w| {
            w[0].span.last + 1 < w[1].span.first || (w[0].kind, w[0].fh) != (w[1].kind, w[1].fh)
        });
        assert!(joined, "{held:?}");
    }
}
