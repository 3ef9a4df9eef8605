use super::*;
use std::os::fd::AsFd;

fn id(file: &std::fs::File) -> FileId {
    let handles = Handles::of(file.as_fd()).unwrap();
    identify(file.as_fd(), handles).unwrap().id
}

#[test]
fn identity_survives_rename_and_tells_files_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let a = std::fs::File::create(&path).unwrap();
    let first = id(&a);
    std::fs::rename(&path, dir.path().join("b")).unwrap();
    let b = std::fs::File::open(dir.path().join("b")).unwrap();
    assert_eq!(id(&b), first);
    let c = std::fs::File::create(&path).unwrap();
    assert_ne!(id(&c), first);
}

#[test]
fn a_reused_inode_number_is_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mut seen = std::collections::HashSet::new();
    for i in 0..100 {
        let f = std::fs::File::create(&path).unwrap();
        let mut stat = sys::stat(f.as_fd()).unwrap();
        // The birth times of all files are within one tick of a coarse clock.
        stat.btime = Some(crate::types::Time { sec: 1, nsec: 0 });
        let id = file_id(f.as_fd(), &stat, Handles::of(f.as_fd()).unwrap());
        assert!(seen.insert(id), "file {i} is taken for an earlier one");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn handles_that_change_are_no_part_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let f = std::fs::File::create(dir.path().join("a")).unwrap();
    let mut stat = sys::stat(f.as_fd()).unwrap();
    let birth = |stat: &Stat, handles| file_id(f.as_fd(), stat, handles).birth;
    let born = stat.btime.map_or(0, |t| t.as_nanos());
    assert_eq!(birth(&stat, Handles::Volatile), born);
    if !handle(f.as_fd()).is_empty() {
        assert_ne!(birth(&stat, Handles::Remote), born);
    }
    stat.btime = None;
    assert_eq!(birth(&stat, Handles::Volatile), 0);
    assert_eq!(
        birth(&stat, Handles::Local) == 0,
        handle(f.as_fd()).is_empty()
    );
}

#[test]
fn only_what_is_known_counts_as_local() {
    assert_eq!(Handles::of_kind(libc::EXT4_SUPER_MAGIC), Handles::Local);
    assert_eq!(Handles::of_kind(libc::NFS_SUPER_MAGIC), Handles::Remote);
    assert_eq!(Handles::of_kind(0x0bd0_0bd0), Handles::Remote);
    assert_eq!(Handles::of_kind(libc::FUSE_SUPER_MAGIC), Handles::Volatile);
}

#[test]
fn handles_round_trip() {
    assert_eq!(decode(&encode(-3, b"xyz")), Some((-3, &b"xyz"[..])));
    assert_eq!(decode(b""), None);
    assert_eq!(decode(b"\x01\0\0\0"), None);
}
