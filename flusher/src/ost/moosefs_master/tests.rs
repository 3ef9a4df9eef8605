//! Packets as a master of version 3.0.117 sent and accepted them, and a master that misbehaves.

use super::mount::{parse_master_info, service};
use super::wire::*;
use super::{Error, Line, Version};
use proptest::prelude::*;
use std::net::{SocketAddrV4, TcpListener};
use std::time::{Duration, Instant};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn address(text: &str) -> SocketAddrV4 {
    text.parse().expect("an address")
}

/// Two chunkservers; the second has lost its link.
const TARGETS: &str = "
    000300ea 0a4d000c 4bde 0002 00000010e3f19000 00000016b7ca0000 00000005
    0000000000000000 0000000000000000 00000000 00000000 00000000 00000000 00000002 00
    01000000 0a4d000b 4bde 0001 0000000000000000 0000000000000000 00000000
    0000000000000000 0000000000000000 00000000 00000000 00000000 00000000 00000000 00";

#[test]
fn the_list_of_chunkservers() {
    let found = targets(&bytes(TARGETS)).expect("two records");
    let there = Target {
        address: address("10.77.0.12:19422"),
        id: 2,
        connected: true,
        maintenance: false,
        labels: 2,
        used: 0x10_e3f1_9000,
        total: 0x16_b7ca_0000,
        chunks: 5,
        errors: 0,
        load: 0,
        busy: false,
    };
    let away = Target {
        address: address("10.77.0.11:19422"),
        id: 1,
        connected: false,
        labels: 0,
        used: 0,
        total: 0,
        chunks: 0,
        ..there.clone()
    };
    assert!(there.has_label('B') && !there.has_label('A') && !there.has_label('b'));
    assert_eq!(found, [there, away]);
    assert_eq!(targets(&[]), Ok(vec![]));
    assert!(targets(&bytes(TARGETS)[1..]).is_err());
}

#[test]
fn only_a_label_that_no_other_has_pins_to_one_target() {
    let mut all = targets(&bytes(TARGETS)).expect("two records");
    let mut set = |labels: [u32; 2]| {
        all[0].labels = labels[0];
        all[1].labels = labels[1];
        [all[0].own_label(&all), all[1].own_label(&all)]
    };
    assert_eq!(set([0b01, 0b10]), [Some('A'), Some('B')]);
    assert_eq!(set([0b011, 0b101]), [Some('B'), Some('C')]);
    assert_eq!(set([0b1, 0b1]), [None, None]);
    assert_eq!(set([1 << 25, 0]), [Some('Z'), None]);
}

/// Two of the predefined classes and one of Forebay's.
const CLASSES: &str = "
    01 31 00 01 0000 01 01 01
    00000000000000000000000000000000 00000000000000000000000000000000
    00000000000000000000000000000000
    01 32 00 01 0000 02 02 02
    0000000000000000000000000000000000000000000000000000000000000000
    0000000000000000000000000000000000000000000000000000000000000000
    0000000000000000000000000000000000000000000000000000000000000000
    0c 666f72656261792d6f6e2d42 00 02 0000 01 01 01
    00000002000000000000000000000000 00000002000000000000000000000000
    00000002000000000000000000000000";

#[test]
fn the_list_of_classes() {
    let found = classes(&bytes(CLASSES)).expect("three classes");
    assert_eq!(
        found.keys().map(String::as_str).collect::<Vec<_>>(),
        ["1", "2", "forebay-on-B"]
    );
    let ours = Class::pinned_to('B').expect("a label");
    assert_eq!(found["forebay-on-B"], ours);
    assert!(!found["1"].places_like(&ours) && !found["2"].places_like(&ours));
    assert!(!Class::pinned_to('A').expect("a label").places_like(&ours));
    for label in ['a', '*', '[', '@', 'É'] {
        assert_eq!(Class::pinned_to(label), None);
    }
}

#[test]
fn questions_are_as_the_master_took_them() {
    assert_eq!(
        class_create("forebay-on-C", &Class::pinned_to('C').expect("a label")),
        bytes(
            "0c 666f72656261792d6f6e2d43 00 00 02 0000 01 01 01
             00000004000000000000000000000000 00000004000000000000000000000000
             00000004000000000000000000000000"
        )
    );
    assert_eq!(
        set_class(3, 1000, "forebay-on-B"),
        bytes("00000003 000003e8 ff 00 0c 666f72656261792d6f6e2d42")
    );
    assert_eq!(check(2, None), bytes("00000002"));
    assert_eq!(check(2, Some(1)), bytes("00000002 00000001"));
    let registration = register(1);
    assert_eq!(registration.len(), 73, "the proxy takes no other length");
    assert_eq!(registration[64..], bytes("04 00000001 000300ea"));
    assert_eq!(packet(FUSE_CHECK, &[1, 2]), bytes("000001b8 00000002 0102"));
    assert_eq!(header(&[0, 0, 1, 0xb9, 0, 0, 0, 16]), (441, 16));
    assert_eq!(FUSE_CHECK.answer(), 441);
}

#[test]
fn the_answer_to_pinning() {
    assert_eq!(
        class_set(&bytes("00000001 00000000 00000000")),
        Ok(Ok(true))
    );
    assert_eq!(
        class_set(&bytes("00000000 00000001 00000000")),
        Ok(Ok(true))
    );
    assert_eq!(
        class_set(&bytes("00000000 00000000 00000001")),
        Ok(Ok(false))
    );
    assert_eq!(class_set(&[6]), Ok(Err(Status(6))));
    assert!(class_set(&[0, 0]).is_err());
}

#[test]
fn the_chunks_of_a_file() {
    let body = bytes("0000000000000007 00000001 0a4d000b 4bde 00 0a4d000c 4bde 02");
    let found = chunk(&body, 3).expect("readable").expect("granted");
    let found = found.expect("it has data");
    let (first, second) = (address("10.77.0.11:19422"), address("10.77.0.12:19422"));
    assert_eq!((found.index, found.id, found.version), (3, 7, 1));
    assert_eq!(
        found.copies,
        [
            ChunkCopy {
                address: first,
                state: CopyState::Valid
            },
            ChunkCopy {
                address: second,
                state: CopyState::WrongVersion
            }
        ]
    );
    assert!(found.is_only_on(first) && !found.is_only_on(second));
    let lost = Chunk {
        copies: found.copies[1..].to_vec(),
        ..found
    };
    assert!(!lost.is_only_on(first) && !lost.is_only_on(second));
    assert_eq!(chunk(&[0; 12], 0), Ok(Ok(None)), "a hole");
    assert_eq!(chunk(&[3], 0), Ok(Err(Status(3))));
    for len in [0, 2, 11, 13, 18] {
        assert!(chunk(&body[..len], 0).is_err(), "{len} bytes");
    }

    let mut counts = [0; 48];
    counts[7] = 2; // two chunks with one copy
    counts[47] = 1; // one without data
    assert_eq!(chunk_count(&counts), Ok(Ok(3)));
    assert_eq!(chunk_count(&[3]), Ok(Err(Status(3))));
    assert!(chunk_count(&[0xff; 48]).is_err());
    assert!(chunk_count(&[0; 44]).is_err());
}

#[test]
fn the_mount_table() {
    let device = libc::makedev(0, 40);
    let line = |kind: &str, source: &str| {
        format!(
            "22 27 0:21 / /proc rw - proc proc rw\n\
             49 27 0:40 / /mnt/mfs rw,relatime shared:5 - {kind} {source} rw,allow_other\n"
        )
    };
    let found = |kind, source| service(&line(kind, source), device);
    let master = || Some("10.77.0.10:19421".to_owned());
    assert_eq!(found("fuse", r"mfs\04310.77.0.10:19421"), master());
    assert_eq!(found("fuse", r"mfs\04310.77.0.10:19421/a\040dir"), master());
    assert_eq!(found("fuse.mfs", "10.77.0.10:19421"), master());
    assert_eq!(
        found("fuse.mfs", "mfsmaster:9421/home"),
        Some("mfsmaster:9421".into())
    );
    for (kind, source) in [
        ("fuse", "10.77.0.10:19421"),
        ("fuse", r"mfsmeta\04310.77.0.10:19421"),
        ("fuse.sshfs", "host:22"),
        ("ext4", "mfs#10.77.0.10:19421"),
        ("fuse.mfs", "mfsmaster"),
        ("fuse.mfs", ":9421"),
        ("fuse.mfs", "mfsmaster:0"),
    ] {
        assert_eq!(found(kind, source), None, "{kind} {source}");
    }
    let other = libc::makedev(0, 41);
    assert_eq!(service(&line("fuse.mfs", "mfsmaster:9421"), other), None);
}

#[test]
fn masterinfo() {
    let info = parse_master_info(&[127, 0, 0, 1, 0x81, 0x17, 0, 0, 0, 1, 0, 3, 0, 0xea]);
    assert_eq!(info.address, address("127.0.0.1:33047"));
    assert_eq!((info.session, info.version), (1, Version(3, 0, 117)));
    assert!(super::VERSIONS.contains(&info.version));
    assert!(!super::VERSIONS.contains(&Version(3, 0, 74)));
    assert!(!super::VERSIONS.contains(&Version(4, 0, 0)));
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address").to_string();
    (listener, address)
}

#[test]
fn a_master_that_keeps_silent_is_waited_for_no_longer_than_the_limit() {
    let (_silent, address) = listener();
    let start = Instant::now();
    let mut line = Line::open("master", &address, Duration::from_millis(50)).expect("connects");
    let error = line.ask(CSERV_LIST, &[]).expect_err("no answer");
    assert!(start.elapsed() >= Duration::from_millis(50));
    let Error::Unreachable { source, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
    assert!(error.to_string().contains(&address), "{error}");
}

#[test]
fn answers_that_are_none() {
    use std::io::Write;
    let cases: [(&[u8], &str); 4] = [
        (b"HTTP/1.1 400 Bad Request", "not understood"),
        (&[0, 0, 1, 0xf5, 0xff, 0xff, 0xff, 0xff], "not understood"),
        (&[0, 0, 1, 0xf5, 0, 0, 0, 9, 1], "does not answer"),
        (&[], "does not answer"),
    ];
    for (answer, complaint) in cases {
        let (server, address) = listener();
        let serve = std::thread::spawn(move || {
            let (mut client, _) = server.accept().expect("a client");
            client.write_all(answer).expect("answer");
        });
        let mut line = Line::open("master", &address, Duration::from_secs(10)).expect("connects");
        let error = line.ask(CSERV_LIST, &[]).expect_err("not an answer");
        assert!(error.to_string().contains(complaint), "{answer:?}: {error}");
        serve.join().expect("the server");
    }
}

proptest! {
    #[test]
    fn arbitrary_answers_never_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let read = [
            targets(&body).is_ok(),
            classes(&body).is_ok(),
            class_set(&body).is_ok(),
            chunk_count(&body).is_ok(),
            chunk(&body, 0).is_ok(),
            status(&body).is_ok(),
        ];
        prop_assert!(!read[5] || body.len() == 1);
        // An answer of one byte is a status, for every question whose answer may be one.
        prop_assert!(body.len() != 1 || (read[2] && read[3] && read[4]));
    }

    #[test]
    fn arbitrary_mount_tables_never_panic(table in r"([0-9a-z:/# \\-]{0,40}\n?){0,4}") {
        if let Some(found) = service(&table, libc::makedev(0, 40)) {
            prop_assert!(found.contains(':'));
        }
    }
}
