use super::*;
use std::os::fd::AsFd;

#[test]
fn identity_survives_rename_and_tells_files_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let a = std::fs::File::create(&path).unwrap();
    let first = identify(a.as_fd()).unwrap().id;
    std::fs::rename(&path, dir.path().join("b")).unwrap();
    let b = std::fs::File::open(dir.path().join("b")).unwrap();
    assert_eq!(identify(b.as_fd()).unwrap().id, first);
    let c = std::fs::File::create(&path).unwrap();
    assert_ne!(identify(c.as_fd()).unwrap().id, first);
}

#[test]
fn a_reused_inode_number_is_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mut seen = std::collections::HashSet::new();
    for _ in 0..50 {
        let f = std::fs::File::create(&path).unwrap();
        assert!(seen.insert(identify(f.as_fd()).unwrap().id));
        std::fs::remove_file(&path).unwrap();
        drop(f);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn without_a_birth_time_the_handle_decides() {
    let dir = tempfile::tempdir().unwrap();
    let f = std::fs::File::create(dir.path().join("a")).unwrap();
    let mut stat = sys::stat(f.as_fd()).unwrap();
    stat.btime = None;
    let id = file_id(f.as_fd(), &stat);
    assert_eq!(id.birth == 0, handle(f.as_fd()).is_empty());
}

#[test]
fn handles_round_trip() {
    assert_eq!(decode(&encode(-3, b"xyz")), Some((-3, &b"xyz"[..])));
    assert_eq!(decode(b""), None);
    assert_eq!(decode(b"\x01\0\0\0"), None);
}
