use super::*;

fn attr(size: u64, blocks: u64) -> Attr {
    Attr {
        ino: 5,
        size,
        blocks,
        atime: Time::default(),
        mtime: Time { sec: 10, nsec: 0 },
        ctime: Time { sec: 20, nsec: 0 },
        mode: libc::S_IFREG | 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
    }
}

fn dirty(size: u64, mtime: u64, undrained: u64) -> DirtyStat {
    DirtyStat {
        size,
        mtime: Timestamp(mtime * 1_000_000_000),
        undrained,
    }
}

#[test]
fn setid_bits_fall_as_the_kernel_drops_them() {
    assert_eq!(without_setid(0o100644), None);
    assert_eq!(without_setid(0o104755), Some(0o755));
    assert_eq!(without_setid(0o106755), Some(0o755));
    // Setgid without group execution is no privilege.
    assert_eq!(without_setid(0o102644), None);
    assert_eq!(without_setid(0o106644), Some(0o2644));
}

#[test]
fn a_dirty_file_shows_the_stores_size_and_time() {
    let mut a = attr(0, 0);
    overlay_dirty(&mut a, &dirty(10_000, 30, 10_000));
    assert_eq!(a.size, 10_000);
    assert_eq!(a.mtime.sec, 30);
    assert_eq!(a.ctime.sec, 30);
    assert_eq!(a.blocks, 20);
}

#[test]
fn an_explicit_time_leaves_the_change_time_alone() {
    let mut a = attr(4096, 8);
    a.mtime.sec = 1_000_000;
    overlay_dirty(&mut a, &dirty(4096, 1_000_000, 4096));
    assert_eq!(a.ctime.sec, 20);
}

#[test]
fn blocks_stay_between_now_and_whole() {
    // Overwritten in place: no more than the whole file.
    let mut a = attr(8192, 16);
    overlay_dirty(&mut a, &dirty(8192, 30, 8192));
    assert_eq!(a.blocks, 16);
    // Sparse: only the bytes that were written.
    let mut a = attr(0, 0);
    overlay_dirty(&mut a, &dirty(1 << 40, 30, 4096));
    assert_eq!(a.blocks, 8);
    // Cut down: the canonical file still has all its blocks.
    let mut a = attr(1 << 20, 2048);
    overlay_dirty(&mut a, &dirty(0, 30, 0));
    assert_eq!(a.blocks, 2048);
}
