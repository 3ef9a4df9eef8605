use super::*;

/// Returns bytes that were written by hand from the published structure, not made by this module.
fn v1(size: u32, count: u16, start: u16) -> Vec<u8> {
    let mut bytes = vec![0xd0, 0x0b, 0xd1, 0x0b, 1, 0, 0, 0];
    bytes.extend([0; 16]);
    bytes.extend(size.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes
}

#[test]
fn version_1_is_32_bytes() {
    let bytes = v1(1 << 20, 1, 3);
    assert_eq!(bytes.len(), 32);
    let wish = parse(&bytes).expect("a plain version 1");
    assert_eq!(wish.stripe_size, Some(1 << 20));
    assert_eq!(wish.stripe_count, Some(1));
    assert_eq!(wish.start, Some(3));
    assert_eq!(of_wish(&wish), bytes);
    let open = parse(&v1(0, 0, ANY)).expect("all defaults");
    assert_eq!(open, Wish::default());
}

#[test]
fn version_3_has_a_pool() {
    let mut bytes = v1(65536, ANY, ANY);
    bytes[2] = 0xd3;
    assert_eq!(parse(&bytes), Err(Errno::EINVAL), "cut before the pool");
    bytes.extend(*b"flash\0\0\0\0\0\0\0\0\0\0\0");
    let wish = parse(&bytes).expect("version 3");
    assert_eq!(wish.pool, Some(*b"flash\0\0\0\0\0\0\0\0\0\0\0"));
    assert_eq!(wish.stripe_count, Some(ANY));
    assert_eq!(of_wish(&wish), bytes);
}

#[test]
fn a_list_of_osts() {
    let mut bytes = v1(65536, 2, ANY);
    bytes[2] = 0xd5;
    bytes.extend([0; 16]);
    for ost in [7u32, 4] {
        bytes.extend([0; 20]);
        bytes.extend(ost.to_le_bytes());
    }
    let wish = parse(&bytes).expect("specific");
    assert_eq!(wish.osts, Some(vec![7, 4]));
    assert_eq!(of_wish(&wish), bytes);
    bytes.truncate(bytes.len() - 1);
    assert_eq!(parse(&bytes), Err(Errno::EINVAL), "cut in the list");
}

#[test]
fn a_file_shows_its_objects() {
    let layout = Layout {
        stripe_size: 1 << 20,
        osts: vec![2, 0],
        pool: None,
    };
    let bytes = of_file(77, &layout);
    assert_eq!(bytes.len(), 32 + 2 * 24);
    assert_eq!(bytes[..4], [0xd0, 0x0b, 0xd1, 0x0b]);
    assert_eq!(bytes[28..32], [2, 0, 0, 0], "count, layout generation");
    assert_eq!(bytes[32..40], 77u64.to_le_bytes());
    assert_eq!(bytes[52..56], [2, 0, 0, 0], "first OST");
    assert_eq!(bytes[76..80], [0, 0, 0, 0], "second OST");
    assert_eq!(parse_file(&bytes), Ok(layout));
}

#[test]
fn nonsense_is_refused() {
    let mut wrong = v1(65536, 1, 0);
    wrong[2] = 0xd6;
    assert_eq!(parse(&wrong), Err(Errno::EINVAL), "composite");
    let mut raid1 = v1(65536, 1, 0);
    raid1[4] = 2;
    assert_eq!(parse(&raid1), Err(Errno::EINVAL), "mirrored");
    for len in 0..32 {
        assert_eq!(parse(&v1(65536, 1, 0)[..len]), Err(Errno::EINVAL), "{len}");
    }
}
