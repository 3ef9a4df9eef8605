//! Checks the published structures byte by byte. None of this was tested with a real Lustre.

use super::*;
use proptest::prelude::*;

const MIB: u32 = 1 << 20;

#[test]
fn numbers_of_the_calls_as_published() {
    assert_eq!(LL_IOC_LOV_SETSTRIPE, 0x4008_669a);
    assert_eq!(LL_IOC_LOV_GETSTRIPE, 0x4008_669b);
    assert_eq!(O_LOV_DELAY_CREATE, 0o20400);
    assert_eq!(MAX_LAYOUT, 48 + 2000 * 24);
}

#[test]
fn a_subfile_is_a_v1_request_with_one_stripe() {
    let placement = Placement::OneOst {
        ost: 0x0123,
        stripe_size: 4 * MIB,
    };
    #[rustfmt::skip]
    let expected = [
        0xd0, 0x0b, 0xd1, 0x0b,             // lmm_magic
        0x01, 0x00, 0x00, 0x00,             // lmm_pattern: RAID0
        0, 0, 0, 0, 0, 0, 0, 0,             // lmm_oi: id
        0, 0, 0, 0, 0, 0, 0, 0,             // lmm_oi: seq
        0x00, 0x00, 0x40, 0x00,             // lmm_stripe_size
        0x01, 0x00,                         // lmm_stripe_count
        0x23, 0x01,                         // lmm_stripe_offset: the OST
    ];
    assert_eq!(placement.encode().expect("valid"), expected);
    let reserved = Placement::OneOst {
        ost: 0xffff,
        stripe_size: MIB,
    };
    assert_eq!(reserved.encode(), Err(Error::BadOst(0xffff)));
}

#[test]
fn a_pool_makes_it_v3() {
    let striped = |pool: Option<&str>| Placement::Striped {
        stripe_size: MIB,
        stripe_count: 4,
        pool: pool.map(str::to_owned),
    };
    assert_eq!(striped(None).encode().expect("valid").len(), 32);
    let bytes = striped(Some("flash")).encode().expect("valid");
    #[rustfmt::skip]
    let expected = [
        0xd0, 0x0b, 0xd3, 0x0b,
        0x01, 0x00, 0x00, 0x00,
        0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0,
        0x00, 0x00, 0x10, 0x00,
        0x04, 0x00,
        0xff, 0xff,                         // wherever the file system likes
        b'f', b'l', b'a', b's', b'h', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes, expected);
    assert!(striped(Some("fifteen_letters")).encode().is_ok());
    let bad = ["sixteen_letters_", "nul\0"].map(|name| striped(Some(name)).encode());
    assert_eq!(bad, [Err(Error::BadPool), Err(Error::BadPool)]);
}

#[test]
fn named_osts_are_objects_of_a_v3_request() {
    let placement = Placement::Osts {
        stripe_size: MIB,
        osts: vec![7, 2],
    };
    let bytes = placement.encode().expect("valid");
    assert_eq!(bytes.len(), 48 + 2 * 24);
    assert_eq!(bytes[..4], LOV_USER_MAGIC_SPECIFIC.to_le_bytes());
    assert_eq!(bytes[28..32], [2, 0, 7, 0], "two stripes from OST 7");
    assert_eq!(bytes[32..48], [0; 16], "no pool");
    assert_eq!(bytes[48 + 20..48 + 24], [7, 0, 0, 0]);
    assert_eq!(bytes[72 + 20..72 + 24], [2, 0, 0, 0]);
    assert_eq!(Layout::decode(&bytes).expect("readable").osts(), [7, 2]);
}

#[test]
fn sizes_and_counts_are_checked() {
    let encode = |stripe_size, stripe_count| {
        let pool = None;
        Placement::Striped {
            stripe_size,
            stripe_count,
            pool,
        }
        .encode()
    };
    assert_eq!(encode(0, 1), Err(Error::BadStripeSize(0)));
    assert_eq!(encode(4096, 1), Err(Error::BadStripeSize(4096)));
    assert_eq!(encode(MIB, 0), Err(Error::BadStripeCount(0)));
    assert_eq!(encode(MIB, 2001), Err(Error::BadStripeCount(2001)));
    assert!(encode(LOV_MIN_STRIPE_SIZE, LOV_ALL_STRIPES).is_ok());
    let none = Placement::Osts {
        stripe_size: MIB,
        osts: vec![],
    };
    assert_eq!(none.encode(), Err(Error::BadStripeCount(0)));
}

/// Every byte is different, so that each field can only come from its own offset.
fn two_stripes(magic: u32) -> Vec<u8> {
    let header = if magic == LOV_USER_MAGIC_V1 { 32 } else { 48 };
    let mut bytes: Vec<u8> = (0..header + 2 * 24).map(|i| i as u8).collect();
    bytes[..4].copy_from_slice(&magic.to_le_bytes());
    bytes[4..8].copy_from_slice(&LOV_PATTERN_RAID0.to_le_bytes());
    bytes[28..30].copy_from_slice(&2u16.to_le_bytes());
    if magic == LOV_USER_MAGIC_V3 {
        bytes[32..48].copy_from_slice(b"pool\0garbage....");
    }
    bytes
}

#[test]
fn every_field_is_at_its_published_offset() {
    for (magic, header, pool) in [
        (LOV_USER_MAGIC_V1, 32u8, None),
        (LOV_USER_MAGIC_V3, 48, Some("pool".to_owned())),
    ] {
        let mut bytes = two_stripes(magic);
        // This is the state after the ioctl: the rest of the buffer is unchanged.
        bytes.extend([0xee; 100]);
        let u64_from = |at: u8| u64::from_le_bytes(std::array::from_fn(|i| at + i as u8));
        let u32_from = |at: u8| u32::from_le_bytes(std::array::from_fn(|i| at + i as u8));
        let object = |at: u8| Object {
            id: u64_from(at),
            seq: u64_from(at + 8),
            generation: u32_from(at + 16),
            ost: u32_from(at + 20),
        };
        let expected = Layout {
            pattern: LOV_PATTERN_RAID0,
            id: u64_from(8),
            seq: u64_from(16),
            stripe_size: u32_from(24),
            stripe_count: 2,
            generation: u16::from_le_bytes([30, 31]),
            pool,
            objects: vec![object(header), object(header + 24)],
        };
        assert_eq!(Layout::decode(&bytes), Ok(expected.clone()));
        let default = Layout {
            objects: vec![],
            ..expected
        };
        assert_eq!(Layout::decode_default(&bytes), Ok(default));
    }
}

#[test]
fn a_layout_cut_anywhere_is_short() {
    for magic in [LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3] {
        let bytes = two_stripes(magic);
        for len in 0..bytes.len() {
            assert_eq!(Layout::decode(&bytes[..len]), Err(Error::Short(len)));
        }
        assert!(Layout::decode(&bytes).is_ok());
    }
}

#[test]
fn other_layouts_are_refused_by_name() {
    let with_magic = |magic: u32| Layout::decode(&two_stripes(magic));
    assert_eq!(with_magic(LOV_USER_MAGIC_COMP_V1), Err(Error::Composite));
    assert_eq!(with_magic(LOV_USER_MAGIC_SEL), Err(Error::Composite));
    assert_eq!(with_magic(LOV_USER_MAGIC_FOREIGN), Err(Error::Foreign));
    let other_order = LOV_USER_MAGIC_V1.swap_bytes();
    assert_eq!(with_magic(other_order), Err(Error::BadMagic(other_order)));
    for pattern in [LOV_PATTERN_MDT, LOV_PATTERN_RAID0 | LOV_PATTERN_F_RELEASED] {
        let mut bytes = two_stripes(LOV_USER_MAGIC_V1);
        bytes[4..8].copy_from_slice(&pattern.to_le_bytes());
        assert_eq!(Layout::decode(&bytes), Err(Error::BadPattern(pattern)));
    }
    let mut bytes = two_stripes(LOV_USER_MAGIC_V1);
    bytes[28..30].copy_from_slice(&LOV_ALL_STRIPES.to_le_bytes());
    assert_eq!(Layout::decode(&bytes), Err(Error::BadStripeCount(0xffff)));
    assert!(Layout::decode_default(&bytes).is_ok());
}

#[test]
fn the_list_of_osts() {
    let text = "lov.scratch-clilov-ffff8800b54d3000.target_obd=\n\
                0: scratch-OST0000_UUID ACTIVE\n\
                1: scratch-OST0001_UUID INACTIVE\n\
                \n\
                26: scratch-OST001a_UUID ACTIVE\n";
    let osts = parse_osts(text).expect("a list");
    let seen: Vec<_> = osts.iter().map(|o| (o.index, o.active)).collect();
    assert_eq!(seen, [(0, true), (1, false), (26, true)]);
    assert_eq!(osts[2].uuid, "scratch-OST001a_UUID");
    assert_eq!(parse_osts(""), Ok(vec![]));
    for bad in [
        "x: a ACTIVE",
        "0 a ACTIVE",
        "0: a",
        "0: a DEGRADED",
        "-1: a ACTIVE",
    ] {
        let error = parse_osts(bad).expect_err(bad);
        assert!(
            matches!(error, Error::BadOstLine { line: 1, .. }),
            "{error}"
        );
    }
}

#[test]
fn the_list_is_found_where_either_version_keeps_it() {
    let root = tempfile::tempdir().expect("a directory");
    let make = |path: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("create");
        std::fs::write(&path, "0: scratch-OST0000_UUID ACTIVE\n").expect("write");
        path
    };
    assert!(ost_list_files(root.path(), "scratch").is_empty());
    let mut expected = [
        make("proc/fs/lustre/lov/scratch-clilov-ffff8800/target_obd"),
        make("sys/kernel/debug/lustre/lov/scratch-clilov-ffff8801/target_obd"),
    ];
    make("proc/fs/lustre/lov/scratch2-clilov-ffff8802/target_obd");
    expected.sort();
    assert_eq!(ost_list_files(root.path(), "scratch"), expected);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let first = Layout::decode(&bytes);
        // The same with a magic number in front, which gets further.
        for magic in [LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3, LOV_USER_MAGIC_SPECIFIC] {
            let mut layout = [&magic.to_le_bytes()[..], &LOV_PATTERN_RAID0.to_le_bytes(), &bytes].concat();
            if let Some(count) = layout.get_mut(28..30) {
                count[1] &= 3;
            }
            if let Ok(layout) = Layout::decode(&layout) {
                prop_assert_eq!(layout.objects.len(), usize::from(layout.stripe_count));
            }
        }
        prop_assert!(first.is_err() || bytes.len() >= 32);
    }

    #[test]
    fn arbitrary_text_never_panics(text in "(?s).{0,200}") {
        if let Ok(osts) = parse_osts(&text) {
            prop_assert!(osts.len() <= text.lines().count());
        }
    }

    #[test]
    fn what_was_asked_for_can_be_read_back(
        stripe_size in (1u32..=1024).prop_map(|n| n << 16),
        osts in prop::collection::vec(0u32..0xffe0, 1..50),
    ) {
        let placement = Placement::Osts { stripe_size, osts: osts.clone() };
        let layout = Layout::decode(&placement.encode().expect("valid")).expect("readable");
        prop_assert_eq!(layout.stripe_size, stripe_size);
        prop_assert_eq!(layout.osts(), osts);
        prop_assert_eq!(layout.pool, None);
    }
}
