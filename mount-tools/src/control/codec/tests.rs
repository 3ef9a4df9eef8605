use super::*;
use crate::control::protocol::{Reply, Request, Target, WirePath};
use std::io::Cursor;

fn kind<T: DeserializeOwned + std::fmt::Debug>(bytes: &[u8]) -> io::ErrorKind {
    receive::<T>(&mut Cursor::new(bytes)).unwrap_err().kind()
}

#[test]
fn requests_come_out_as_they_went_in() {
    let requests = [
        Request::Ping,
        Request::Status,
        Request::Umount {
            keep: true,
            timeout_ms: Some(5),
        },
        Request::Drain {
            target: Target::Directory(WirePath(b"a/\xff\"b".to_vec())),
            wait: true,
            timeout_ms: None,
        },
        Request::Layout { ino: u64::MAX },
    ];
    let mut wire = Vec::new();
    for request in &requests {
        send(&mut wire, request).unwrap();
    }
    let mut from = Cursor::new(wire);
    for request in &requests {
        assert_eq!(
            receive::<Request>(&mut from).unwrap().as_ref(),
            Some(request)
        );
    }
    assert!(receive::<Request>(&mut from).unwrap().is_none());
}

#[test]
fn too_long_a_message_is_refused_on_both_sides() {
    let mut frame = ((MAX + 1) as u32).to_le_bytes().to_vec();
    frame.extend([b' '; 8]);
    assert_eq!(kind::<Request>(&frame), io::ErrorKind::InvalidData);
    assert_eq!(kind::<Request>(&[0xff; 4]), io::ErrorKind::InvalidData);
    let huge = "x".repeat(MAX);
    assert!(send(&mut Vec::new(), &huge).is_err());
}

#[test]
fn garbage_is_an_error_and_never_a_panic() {
    assert_eq!(kind::<Request>(b"\x01\0"), io::ErrorKind::UnexpectedEof);
    assert_eq!(
        kind::<Request>(b"\x08\0\0\0{}"),
        io::ErrorKind::UnexpectedEof
    );
    assert_eq!(kind::<Request>(b"\x02\0\0\0{}"), io::ErrorKind::InvalidData);
    assert_eq!(
        kind::<Reply>(b"\x04\0\0\0\xff\xfe\xfd\xfc"),
        io::ErrorKind::InvalidData
    );
    let deep = "[".repeat(5000);
    let mut frame = (deep.len() as u32).to_le_bytes().to_vec();
    frame.extend(deep.as_bytes());
    assert_eq!(kind::<Request>(&frame), io::ErrorKind::InvalidData);
}
