use super::*;
use crate::types::{SetTime, Time};
use std::sync::atomic::AtomicBool;

#[test]
fn writes_are_absorbed_and_read_back() {
    let w = world();
    let (node, fh) = w.create("f");
    w.write(fh, 3, b"hello");
    assert_eq!(w.read(fh, 0, 100), b"\0\0\0hello");
    assert_eq!(w.read(fh, 5, 2), b"ll");
    assert_eq!(w.read(fh, 8, 10), b"");
    assert_eq!(w.size(node), 8);
    assert_eq!(w.canonical("f"), b"");
    assert!(w.fs.getattr(node).unwrap().blocks > 0);
}

#[test]
fn the_fast_path_takes_over_after_the_first_write() {
    let w = world();
    let (_, fh) = w.create("f");
    let handle = w.fs.handle(fh).unwrap();
    assert!(!w.fs.try_write(&handle, 0, b"a", false));
    w.write(fh, 0, b"a");
    assert!(w.fs.try_write(&handle, 1, b"b", false));
    assert_eq!(w.read(fh, 0, 10), b"ab");
}

#[test]
fn a_drained_file_is_the_canonical_file() {
    let w = world();
    std::fs::write(w.path("f"), "0123456789").unwrap();
    let node = w.lookup("f").unwrap().attr.ino;
    let fh = w.open(node, RDWR);
    w.write(fh, 4, b"XY");
    let before = w.fs.getattr(node).unwrap();
    let file = w.store_file(node);
    w.drain(&file);
    assert!(file.is_clean());
    assert_eq!(w.canonical("f"), b"0123XY6789");
    let after = w.fs.getattr(node).unwrap();
    assert_eq!((after.size, after.mtime), (before.size, before.mtime));
    // A new dirty period begins when the file is written again.
    w.write(fh, 9, b"abc");
    assert_eq!(w.read(fh, 0, 100), b"0123XY678abc");
    w.drain(&file);
    assert_eq!(w.canonical("f"), b"0123XY678abc");
}

#[test]
fn truncation_reaches_dirty_and_clean_files() {
    let w = world();
    let (node, fh) = w.create("f");
    w.write(fh, 0, b"0123456789");
    w.truncate(node, Some(fh), 4);
    w.truncate(node, None, 6);
    assert_eq!(w.read(fh, 0, 100), b"0123\0\0");
    let file = w.store_file(node);
    w.drain(&file);
    assert_eq!(w.canonical("f"), b"0123\0\0");
    w.truncate(node, None, 2);
    assert_eq!(w.canonical("f"), b"01");
    assert_eq!(w.read(fh, 0, 100), b"01");
    let again = w.open(node, RDWR | libc::O_TRUNC);
    assert_eq!(w.size(node), 0);
    w.write(again, 0, b"zz");
    let third = w.open(node, RDWR | libc::O_TRUNC);
    assert_eq!(w.read(third, 0, 10), b"");
    w.drain(&file);
    assert_eq!(w.canonical("f"), b"");
}

#[test]
fn explicit_times_survive_the_drain() {
    let w = world();
    let (node, fh) = w.create("f");
    w.write(fh, 0, b"x");
    let at = Time {
        sec: 1_000_000_000,
        nsec: 5,
    };
    let set = SetAttr {
        mtime: Some(SetTime::At(at)),
        ..SetAttr::default()
    };
    let attr = w.fs.setattr(&me(), node, None, &set).unwrap();
    assert_eq!(attr.mtime, at);
    w.drain(&w.store_file(node));
    assert_eq!(w.fs.getattr(node).unwrap().mtime, at);
}

#[test]
fn holes_are_punched_zeroed_and_found() {
    const MB: u64 = 1 << 20;
    let w = world();
    let (node, fh) = w.create("f");
    w.write(fh, 0, &vec![7; 2 * MB as usize]);
    w.fs.fallocate(
        fh,
        MB / 2,
        MB,
        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        false,
    )
    .unwrap();
    assert_eq!(w.read(fh, MB / 2 - 1, 2), [7, 0]);
    let seek = |at: u64, whence| w.fs.lseek(fh, at as i64, whence);
    assert_eq!(seek(0, libc::SEEK_HOLE).unwrap(), MB / 2);
    assert_eq!(seek(MB / 2, libc::SEEK_DATA).unwrap(), MB * 3 / 2);
    assert_eq!(seek(MB * 3 / 2, libc::SEEK_HOLE).unwrap(), 2 * MB);
    assert_eq!(
        seek(2 * MB, libc::SEEK_DATA).unwrap_err().errno(),
        libc::ENXIO
    );
    w.fs.fallocate(fh, 2 * MB, MB, 0, false).unwrap();
    assert_eq!(w.size(node), 3 * MB);
    assert_eq!(
        seek(2 * MB, libc::SEEK_DATA).unwrap_err().errno(),
        libc::ENXIO
    );
    w.fs.fallocate(fh, 0, 10, libc::FALLOC_FL_ZERO_RANGE, false)
        .unwrap();
    assert_eq!(w.read(fh, 9, 2), [0, 7]);
    let e =
        w.fs.fallocate(fh, 0, MB, libc::FALLOC_FL_COLLAPSE_RANGE, false);
    assert_eq!(e.unwrap_err().errno(), libc::EOPNOTSUPP);
    let want = w.read(fh, 0, 3 * MB as usize);
    w.drain(&w.store_file(node));
    assert_eq!(w.canonical("f"), want);
    // The file is clean again, so the canonical file is used.
    w.fs.fallocate(fh, 3 * MB, 10, 0, false).unwrap();
    assert_eq!(w.size(node), 3 * MB + 10);
}

#[test]
fn copies_see_undrained_bytes() {
    let w = world();
    let (_, from) = w.create("a");
    let (_, to) = w.create("b");
    w.write(from, 0, &[9; 3_000_000]);
    let n =
        w.fs.copy_file_range(from, 1, to, 5, 1 << 40, false)
            .unwrap();
    assert_eq!(n, 2_999_999);
    let got = w.read(to, 0, 4_000_000);
    assert_eq!(got.len(), 3_000_004);
    assert_eq!(&got[..6], &[0, 0, 0, 0, 0, 9]);
}

#[test]
fn without_absorption_writes_go_through() {
    let w = world_with(false);
    let (node, fh) = w.create("f");
    w.write(fh, 0, b"direct");
    assert_eq!(w.canonical("f"), b"direct");
    assert!(w.store_file(node).is_clean());
    w.fs.fsync(fh, true).unwrap();
}

#[test]
fn a_full_store_writes_through() {
    let w = world();
    let (node, fh) = w.create("f");
    let chunk = vec![3u8; 1 << 20];
    for i in 0..100 {
        w.write(fh, i << 20, &chunk);
    }
    assert_eq!(w.size(node), 100 << 20);
    assert!(w.fs.store.totals().written_through > 0);
    for i in [0, 50, 99] {
        assert_eq!(w.read(fh, i << 20, 1 << 20), chunk, "{i}");
    }
    w.drain(&w.store_file(node));
    assert!(w.canonical("f").iter().all(|b| *b == 3));
}

/// S6.2: a close by another process does not use the error up; an fsync of the same handle does.
#[test]
fn a_drain_error_reaches_every_handle() {
    let w = world();
    let (node, fh) = w.create("f");
    w.write(fh, 0, b"x");
    let other = w.open(node, libc::O_RDWR);
    let failed = |errno: i32, message: &str| {
        w.store_file(node).set_error(layout_index::StickyError {
            errno,
            message: message.into(),
        });
    };
    failed(libc::EDQUOT, "no quota");
    for _ in 0..2 {
        assert_eq!(w.fs.flush(fh, 0).unwrap_err().errno(), libc::EDQUOT);
    }
    assert_eq!(w.fs.fsync(fh, false).unwrap_err().errno(), libc::EDQUOT);
    w.fs.fsync(fh, false).unwrap();
    w.fs.flush(fh, 0).unwrap();
    assert_eq!(w.fs.fsync(other, false).unwrap_err().errno(), libc::EDQUOT);
    failed(libc::ENOSPC, "no space");
    assert_eq!(w.fs.fsync(fh, false).unwrap_err().errno(), libc::ENOSPC);
}

#[test]
fn a_time_set_while_the_drain_works_stays() {
    let w = world();
    let (node, fh) = w.create("f");
    w.write(fh, 0, b"x");
    let file = w.store_file(node);
    let at = |sec| Time { sec, nsec: 7 };
    let set = SetAttr {
        mtime: Some(SetTime::At(at(1_000_000_000))),
        ..SetAttr::default()
    };
    std::thread::scope(|s| {
        let writers_out = file.exclusive();
        let setting = s.spawn(|| w.fs.setattr(&me(), node, None, &set).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        // The drain does this when it finishes, with the time that it knows.
        let canonical = w.fs.open_canonical(&file).unwrap().unwrap();
        canonical.set_mtime(at(2_000_000_000).as_nanos()).unwrap();
        drop(writers_out);
        assert_eq!(setting.join().unwrap().mtime, at(1_000_000_000));
    });
    w.drain(&file);
    assert_eq!(w.fs.getattr(node).unwrap().mtime, at(1_000_000_000));
}

/// The recorded time must be the one that `utimens` was asked for, and not one that a drain has set meanwhile.
#[test]
fn a_time_set_on_a_dirty_file_is_what_was_asked_for() {
    let w = world();
    let (node, fh) = w.create("f");
    w.write(fh, 0, b"x");
    let set = SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        size: Some(5),
        mode: Some(0o600),
        ..SetAttr::default()
    };
    let before = layout_index::Timestamp::now();
    let attr = w.fs.setattr(&me(), node, Some(fh), &set).unwrap();
    assert!(attr.mtime >= Time::from_nanos(before.0));
    assert_eq!((attr.size, attr.mode & 0o777), (5, 0o600));
    assert_eq!(w.store_file(node).stat().unwrap().size, 5);
}

/// The canonical file, with syncs that do nothing: more drains end in the same time.
#[derive(Debug)]
struct Unsynced(Arc<dyn DiskFile>);

impl DiskFile for Unsynced {
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_at(bufs, offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        self.0.allocate(mode, offset, len)
    }

    fn set_mtime(&self, mtime: u64) -> io::Result<()> {
        self.0.set_mtime(mtime)
    }
}

/// Writes and drains one byte after the other while `size` is called, and returns a size that was too small.
fn shrinks(size: impl Fn(&World, u64) -> u64 + Sync) -> Option<(u64, u64)> {
    let w = world();
    let (node, fh) = w.create("f");
    let file = w.store_file(node);
    let canonical = Unsynced(w.fs.open_canonical(&file).unwrap().unwrap());
    let written = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let ask = || {
        let until = std::time::Instant::now() + Duration::from_secs(2);
        while std::time::Instant::now() < until {
            let least = written.load(Ordering::Acquire);
            let got = size(&w, node);
            if got < least {
                return Some((least, got));
            }
        }
        None
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let size = written.load(Ordering::Acquire);
                w.write(fh, size, b"x");
                written.store(size + 1, Ordering::Release);
                drain_to(&file, &canonical);
                w.fs.file_clean(file.id());
            }
        });
        let asking: Vec<_> = (0..6).map(|_| s.spawn(ask)).collect();
        let lies: Vec<_> = asking.into_iter().map(|a| a.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        lies.into_iter().flatten().next()
    })
}

#[test]
fn sizes_do_not_shrink_when_the_drain_finishes() {
    assert_eq!(shrinks(|w, node| w.size(node)), None);
    assert_eq!(shrinks(|w, _| w.lookup("f").unwrap().attr.size), None);
}

#[test]
fn data_syncs_reach_what_went_past_the_log() {
    let w = world();
    let (node, fh) = w.create("f");
    let file = w.store_file(node);
    w.write(fh, 0, b"x");
    // A new dirty period may lie over bytes of the canonical file that were never synced.
    assert!(file.canonical_unsynced().is_some());
    w.fs.fsync(fh, true).unwrap();
    assert_eq!(file.canonical_unsynced(), None);
    w.fs.fsync(fh, true).unwrap();
    let handle = w.fs.handle(fh).unwrap();
    file.write_through(&handle.canonical, 0, b"y").unwrap();
    assert!(file.canonical_unsynced().is_some());
    w.fs.fsync(fh, true).unwrap();
    assert_eq!(file.canonical_unsynced(), None);
}
