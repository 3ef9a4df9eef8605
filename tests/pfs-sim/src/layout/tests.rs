use super::*;

const K: u64 = 1024;

fn layout(stripe: u64, osts: &[usize]) -> Layout {
    Layout {
        stripe_size: stripe,
        osts: osts.to_vec(),
        pool: None,
    }
}

#[test]
fn pieces_follow_the_stripes() {
    let layout = layout(64 * K, &[5, 2, 7]);
    let got = layout.pieces(100 * K, 200 * K);
    let want = [
        (1, 2, 36 * K, 100 * K, 28 * K),
        (2, 7, 0, 128 * K, 64 * K),
        (0, 5, 64 * K, 192 * K, 64 * K),
        (1, 2, 64 * K, 256 * K, 44 * K),
    ];
    let got: Vec<_> = got
        .iter()
        .map(|p| (p.object, p.ost, p.at, p.offset, p.len))
        .collect();
    assert_eq!(got, want);
}

#[test]
fn one_stripe_is_one_piece() {
    let pieces = layout(64 * K, &[3]).pieces(10, 500 * K);
    assert_eq!(pieces.len(), 1);
    assert_eq!((pieces[0].at, pieces[0].len), (10, 500 * K));
}

/// Every byte has one place, and `offset_of` maps it back.
#[test]
fn mapping_and_back() {
    let layout = layout(64 * K, &[0, 1, 2, 3, 4]);
    for offset in (0..3_000_000).step_by(7919) {
        let piece = layout.pieces(offset, 1)[0];
        assert_eq!(layout.offset_of(piece.object, piece.at), offset);
        assert_eq!(layout.object_len(piece.object, offset), piece.at);
        assert_eq!(layout.object_len(piece.object, offset + 1), piece.at + 1);
    }
    for size in (0..3_000_000).step_by(9973) {
        let sum: u64 = (0..5).map(|o| layout.object_len(o, size)).sum();
        assert_eq!(sum, size);
    }
}

#[test]
fn wishes_are_filled_and_checked() {
    let mount = Wish {
        stripe_size: Some(1 << 20),
        stripe_count: Some(4),
        ..Wish::default()
    };
    let dir = Wish {
        stripe_count: Some(ANY),
        start: Some(6),
        ..Wish::default()
    };
    assert_eq!(dir.or(&mount).settle(8, 3).osts, [6, 7, 0, 1, 2, 3, 4, 5]);
    assert_eq!(mount.settle(8, 7).osts, [7, 0, 1, 2]);
    assert_eq!(mount.settle(2, 0).osts, [0, 1]);
    let bad = |wish: Wish| assert_eq!(wish.check(8), Err(Errno::EINVAL), "{wish:?}");
    bad(Wish {
        stripe_size: Some(1000),
        ..Wish::default()
    });
    bad(Wish {
        start: Some(8),
        ..Wish::default()
    });
    for osts in [vec![], vec![1, 1], vec![9]] {
        bad(Wish {
            osts: Some(osts),
            ..Wish::default()
        });
    }
}
