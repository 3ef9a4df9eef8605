use super::*;

fn sidecar() -> Sidecar {
    let mut cover = Cover::default();
    cover.insert(ByteRange::new(0, 4096));
    cover.insert(ByteRange::new(8192, 10_000));
    Sidecar {
        id: FileId {
            ino: 42,
            birth: 0xfeed,
        },
        tag: 7,
        version: Version {
            size: 10_000,
            mtime: Moment { sec: -5, nsec: 9 },
            ctime: Moment {
                sec: 1 << 33,
                nsec: 999_999_999,
            },
        },
        cover,
    }
}

/// Replaces the checksum by one that is right for the body.
fn forge(mut body: Vec<u8>, key: u32) -> Vec<u8> {
    body.truncate(body.len() - CHECKSUM);
    let crc = sum(&body, key);
    body.extend_from_slice(&crc.to_le_bytes());
    body
}

#[test]
fn what_is_written_is_read() {
    let bytes = sidecar().encode(3);
    assert_eq!(bytes.len(), HEADER + 2 * RANGE + CHECKSUM);
    assert_eq!(Sidecar::decode(&bytes, 3), Some(sidecar()));
    assert_eq!(Sidecar::decode(&bytes, 4), None, "of another store");
}

#[test]
fn any_flipped_bit_and_any_cut_is_refused() {
    let bytes = sidecar().encode(3);
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Sidecar::decode(&bad, 3), None, "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert_eq!(Sidecar::decode(&bytes[..len], 3), None, "{len} bytes");
    }
}

#[test]
fn ranges_that_make_no_sense_are_refused_whatever_the_checksum_says() {
    let bytes = sidecar().encode(3);
    let with = |at: usize, n: u64| {
        let mut bad = bytes.clone();
        bad[at..at + 8].copy_from_slice(&n.to_le_bytes());
        Sidecar::decode(&forge(bad, 3), 3)
    };
    assert_eq!(with(64, 1), None, "fewer ranges than there are");
    assert_eq!(with(64, u64::MAX), None, "more ranges than fit");
    assert_eq!(with(HEADER + 24, 10_001), None, "past the end of the file");
    assert_eq!(with(HEADER + 24, 8192), None, "empty");
    assert_eq!(with(HEADER + 24, 100), None, "backwards");
    assert_eq!(with(HEADER + 16, 4096), None, "touches the one before");
    assert_eq!(with(HEADER + 16, 100), None, "overlaps the one before");
    assert_eq!(
        with(HEADER + 24, 9_000).map(|s| s.cover.bytes()),
        Some(4904)
    );
}
