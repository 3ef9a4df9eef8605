//! Tests of bytes: what a read returns after which writes, in every tier.
//!
//! Each test runs with data in the log and with data drained. `FOREBAY_PLAIN=1` runs them on a plain directory, to
//! check the tests.

use forebay_tests::rng::Rng;
use forebay_tests::sys::{self, Mapping, errno};
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put};
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

/// Runs a test with everything in the log, and again with the drain following every write.
fn both(test: impl Fn(&TestMount)) {
    for drain in [Drain::Never, Drain::Immediate] {
        let mut mount = TestMount::new(drain);
        mount.start();
        test(&mount);
        mount.finish();
    }
}

/// S1.1: a write is read through another handle, another name and by another process.
#[test]
fn a_write_is_read_by_everyone() {
    both(|mount| {
        let data = Rng::new(1).bytes(300_000);
        let file = open_rw(mount.path("a"));
        std::fs::hard_link(mount.path("a"), mount.path("b")).expect("link");
        sys::write_all_at(&file, &data, 777).expect("write");
        let mut want = vec![0; 777];
        want.extend(&data);
        assert_same(
            "same handle",
            &sys::read_at(&file, 0, 400_000).expect("read"),
            &want,
        );
        assert_same("other name", &get(mount.path("b")), &want);
        let out = std::process::Command::new("cat")
            .arg(mount.path("a"))
            .output();
        assert_same("other process", &out.expect("run cat").stdout, &want);
    });
}

/// S1.1, S1.12: the newest bytes win, whatever order of overlaps made them.
#[test]
fn overlapping_writes_show_the_newest() {
    both(|mount| {
        let mut rng = Rng::new(2);
        let file = open_rw(mount.path("f"));
        let mut want = vec![0u8; 200_000];
        for _ in 0..300 {
            let at = rng.below(190_000) as usize;
            let len = rng.size(10_000) as usize;
            rng.fill(&mut want[at..at + len]);
            sys::write_all_at(&file, &want[at..at + len], at as u64).expect("write");
        }
        let end = file.metadata().expect("stat").len() as usize;
        assert_same("overlaps", &get(mount.path("f")), &want[..end]);
        mount.drain();
        assert_same("overlaps, drained", &get(mount.path("f")), &want[..end]);
        assert_same("canonical", &get(mount.canonical("f")), &want[..end]);
    });
}

/// S1.2: size and blocks are right while nothing is drained.
#[test]
fn size_and_blocks_count_undrained_data() {
    both(|mount| {
        let file = open_rw(mount.path("f"));
        sys::write_all_at(&file, &vec![7; 1 << 20], 0).expect("write");
        let meta = std::fs::metadata(mount.path("f")).expect("stat");
        assert_eq!(meta.len(), 1 << 20);
        assert!(meta.blocks() * 512 >= 1 << 20, "{} blocks", meta.blocks());

        let sparse = open_rw(mount.path("sparse"));
        sys::write_all_at(&sparse, b"x", 1 << 30).expect("write");
        let meta = sparse.metadata().expect("stat");
        assert_eq!(meta.len(), (1 << 30) + 1);
        assert!(meta.blocks() * 512 < 1 << 24, "{} blocks", meta.blocks());
    });
}

/// S1.4: bytes that were cut off never come back.
#[test]
fn truncate_down_and_up_shows_zeros() {
    both(|mount| {
        let file = open_rw(mount.path("f"));
        sys::write_all_at(&file, &[1; 100_000], 0).expect("write");
        file.set_len(30_001).expect("cut");
        file.set_len(80_000).expect("grow");
        let mut want = vec![1; 30_001];
        want.resize(80_000, 0);
        assert_same("cut and grown", &get(mount.path("f")), &want);
        sys::write_all_at(&file, &[2; 10], 60_000).expect("write");
        want[60_000..60_010].fill(2);
        assert_same("written again", &get(mount.path("f")), &want);
        mount.drain();
        assert_same("canonical", &get(mount.canonical("f")), &want);
        // The same for bytes that are only in the canonical file.
        sys::truncate(&mount.path("f"), 10).expect("cut");
        sys::truncate(&mount.path("f"), 50_000).expect("grow");
        want.truncate(10);
        want.resize(50_000, 0);
        assert_same("cut after the drain", &get(mount.path("f")), &want);
        mount.drain();
        assert_same("canonical again", &get(mount.canonical("f")), &want);
    });
}

/// S1.4, S1.15: O_TRUNC drops undrained data.
#[test]
fn open_with_o_trunc_starts_empty() {
    both(|mount| {
        put(mount.path("f"), vec![1; 50_000]);
        let file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(mount.path("f"));
        let file = file.expect("open");
        assert_eq!(file.metadata().expect("stat").len(), 0);
        sys::write_all_at(&file, b"new", 0).expect("write");
        drop(file);
        assert_eq!(get(mount.path("f")), b"new");
        mount.drain();
        assert_eq!(get(mount.canonical("f")), b"new");
    });
}

/// S1.5: a removed file lives on in its handle, and its data goes nowhere.
#[test]
fn an_unlinked_open_file_goes_on() {
    both(|mount| {
        let mut file = open_rw(mount.path("f"));
        file.write_all(b"before").expect("write");
        std::fs::remove_file(mount.path("f")).expect("unlink");
        file.write_all(b" and after").expect("write");
        assert_eq!(file.metadata().expect("stat").nlink(), 0);
        assert_eq!(file.metadata().expect("stat").len(), 16);
        file.seek(SeekFrom::Start(0)).expect("seek");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, "before and after");
        file.sync_all().expect("fsync");
        file.set_len(3).expect("truncate");
        assert_eq!(sys::read_at(&file, 0, 10).expect("read"), b"bef");
        // A new file of that name is another file.
        put(mount.path("f"), b"other");
        assert_eq!(get(mount.path("f")), b"other");
        assert_eq!(sys::read_at(&file, 0, 10).expect("read"), b"bef");
        drop(file);
        mount.drain();
        assert_eq!(get(mount.canonical("f")), b"other");
    });
}

/// S1.6: a file is renamed over another one that is open and undrained; both handles keep their own file.
#[test]
fn rename_over_an_open_dirty_file() {
    both(|mount| {
        let old = open_rw(mount.path("target"));
        let new = open_rw(mount.path("source"));
        sys::write_all_at(&old, &[1; 70_000], 0).expect("write");
        sys::write_all_at(&new, &[2; 40_000], 0).expect("write");
        std::fs::rename(mount.path("source"), mount.path("target")).expect("rename");
        assert_same("new content", &get(mount.path("target")), &[2; 40_000]);
        sys::write_all_at(&old, &[3; 10], 0).expect("write to the replaced file");
        sys::write_all_at(&new, &[4; 10], 0).expect("write to the renamed file");
        assert_eq!(sys::read_at(&old, 0, 11).expect("read")[9..], [3, 1]);
        let mut want = vec![2; 40_000];
        want[..10].fill(4);
        assert_same("renamed file", &get(mount.path("target")), &want);
        assert!(std::fs::metadata(mount.path("source")).is_err());
        mount.drain();
        assert_same("canonical", &get(mount.canonical("target")), &want);
    });
}

/// S1.8: mapped bytes and written bytes are the same bytes.
#[test]
fn shared_mappings_see_writes_and_are_seen() {
    both(|mount| {
        let file = open_rw(mount.path("f"));
        let mut want = Rng::new(3).bytes(100_000);
        sys::write_all_at(&file, &want, 0).expect("write");
        let mut mapping = Mapping::new(&file, 0, want.len()).expect("mmap");
        assert_same("mapped", mapping.bytes(), &want);
        mapping.bytes_mut()[5_000..5_003].copy_from_slice(b"abc");
        want[5_000..5_003].copy_from_slice(b"abc");
        mapping.sync().expect("msync");
        assert_same("after msync", &get(mount.path("f")), &want);
        mapping.bytes_mut()[99_999] = b'z';
        want[99_999] = b'z';
        drop(mapping);
        drop(file);
        assert_same("after munmap and close", &get(mount.path("f")), &want);
        assert_eq!(
            std::fs::metadata(mount.path("f")).expect("stat").len(),
            100_000
        );
        mount.drain();
        assert_same("canonical", &get(mount.canonical("f")), &want);
        // This maps drained bytes, for reading and for writing.
        let file = open_rw(mount.path("f"));
        let mut mapping = Mapping::new(&file, 4096, 4096).expect("mmap");
        assert_same("mapped, drained", mapping.bytes(), &want[4096..8192]);
        mapping.bytes_mut()[0] = b'!';
        want[4096] = b'!';
        mapping.sync().expect("msync");
        assert_same("written after the drain", &get(mount.path("f")), &want);
    });
}

/// S1.8: two mappings of one file in two places are one memory.
#[test]
fn mappings_share_pages() {
    both(|mount| {
        put(mount.path("f"), vec![0; 8192]);
        let (one, two) = (open_rw(mount.path("f")), open_rw(mount.path("f")));
        let mut a = Mapping::new(&one, 0, 8192).expect("mmap");
        let b = Mapping::new(&two, 0, 8192).expect("mmap");
        a.bytes_mut()[100] = 42;
        assert_eq!(b.bytes()[100], 42);
    });
}

/// S1.9: several processes append records of their own; none is lost or split.
#[test]
fn appends_do_not_overlap() {
    both(|mount| {
        put(mount.path("f"), b"");
        std::thread::scope(|scope| {
            for who in 0..4u8 {
                let path = mount.path("f");
                scope.spawn(move || {
                    let mut file = OpenOptions::new().append(true).open(path).expect("open");
                    for _ in 0..100 {
                        file.write_all(&[b'a' + who; 1001]).expect("append");
                    }
                });
            }
        });
        let all = get(mount.path("f"));
        assert_eq!(all.len(), 4 * 100 * 1001);
        let mut count = [0; 4];
        for record in all.chunks(1001) {
            assert!(record.iter().all(|b| *b == record[0]), "a record is split");
            count[usize::from(record[0] - b'a')] += 1;
        }
        assert_eq!(count, [100; 4]);
    });
}

/// S1.10: fallocate allocates, keeps the size, punches and zeroes.
#[test]
fn fallocate_modes() {
    both(|mount| {
        let file = open_rw(mount.path("f"));
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let zero = libc::FALLOC_FL_ZERO_RANGE;
        sys::write_all_at(&file, &[9; 20_000], 0).expect("write");
        let mut want = vec![9; 20_000];
        sys::fallocate(&file, 0, 15_000, 15_000).expect("allocate");
        want.resize(30_000, 0);
        assert_same("allocate grows", &get(mount.path("f")), &want);
        sys::fallocate(&file, keep, 0, 90_000).expect("allocate, keep size");
        assert_same("keep size", &get(mount.path("f")), &want);
        sys::fallocate(&file, sys::PUNCH, 100, 5_000).expect("punch");
        want[100..5_100].fill(0);
        sys::fallocate(&file, zero, 6_000, 500).expect("zero");
        want[6_000..6_500].fill(0);
        sys::fallocate(&file, zero | keep, 29_000, 5_000).expect("zero, keep size");
        assert_same("punched and zeroed", &get(mount.path("f")), &want);
        sys::fallocate(&file, zero, 29_000, 5_000).expect("zero, grow");
        want.resize(34_000, 0);
        assert_same("zero grows", &get(mount.path("f")), &want);
        mount.drain();
        assert_same("canonical", &get(mount.canonical("f")), &want);
        sys::fallocate(&file, sys::PUNCH, 10_000, 5_000).expect("punch drained bytes");
        want[10_000..15_000].fill(0);
        assert_same("punched after the drain", &get(mount.path("f")), &want);
    });
}

/// S1.10: modes that would move bytes are refused, not ignored.
#[test]
fn other_fallocate_modes_are_refused() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    let file = open_rw(mount.path("f"));
    sys::write_all_at(&file, &[9; 20_000], 0).expect("write");
    for mode in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE] {
        let e = errno(sys::fallocate(&file, mode, 0, 4096), "fallocate");
        assert_eq!(e, libc::EOPNOTSUPP);
    }
    assert_same("untouched", &get(mount.path("f")), &[9; 20_000]);
    drop(file);
    mount.finish();
}

/// S1.10: SEEK_DATA and SEEK_HOLE work over the log and the canonical file.
#[test]
fn seek_finds_data_and_holes() {
    both(|mount| {
        let file = open_rw(mount.path("f"));
        sys::write_all_at(&file, &[1; 4096], 1 << 20).expect("write");
        sys::write_all_at(&file, &[1; 4096], 8 << 20).expect("write");
        file.set_len(16 << 20).expect("grow");
        let data = |from| sys::seek(&file, from, libc::SEEK_DATA).expect("seek");
        let hole = |from| sys::seek(&file, from, libc::SEEK_HOLE).expect("seek");
        for _ in 0..2 {
            assert!(data(0).is_some_and(|at| at <= 1 << 20));
            assert_eq!(data(1 << 20), Some(1 << 20));
            assert!(hole(1 << 20).is_some_and(|at| ((1 << 20) + 4096..=8 << 20).contains(&at)));
            assert_eq!(data((8 << 20) + 5), Some((8 << 20) + 5));
            assert_eq!(hole(15 << 20).map(|at| at <= 16 << 20), Some(true));
            assert_eq!(data(16 << 20), None);
            assert_eq!(hole((16 << 20) + 1), None);
            mount.drain();
        }
    });
}

/// S1.10: a hole between undrained extents reads as zeros and stays one.
#[test]
fn sparse_files() {
    both(|mount| {
        let file = open_rw(mount.path("f"));
        for i in 0..5u64 {
            sys::write_all_at(&file, &[i as u8 + 1; 1000], i * 3_000_000).expect("write");
        }
        let mut want = vec![0; 12_001_000];
        for i in 0..5 {
            want[i * 3_000_000..i * 3_000_000 + 1000].fill(i as u8 + 1);
        }
        assert_same("sparse", &get(mount.path("f")), &want);
        mount.drain();
        assert_same("canonical", &get(mount.canonical("f")), &want);
    });
}

/// S1.15: O_DIRECT works for any offset, length and buffer.
#[test]
fn o_direct_of_any_alignment() {
    let mut mount = TestMount::new(Drain::Immediate);
    mount.start();
    let path = mount.path("f");
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .custom_flags(libc::O_DIRECT);
    let file = options.open(&path).expect("open with O_DIRECT");
    let data = Rng::new(4).bytes(70_001);
    sys::write_all_at(&file, &data, 0).expect("write");
    sys::write_all_at(&file, &data[..4096], 131_072).expect("write");
    assert_same(
        "direct",
        &sys::read_at(&file, 13, 50_000).expect("read"),
        &data[13..50_013],
    );
    mount.drain();
    assert_same(
        "drained",
        &sys::read_at(&file, 13, 50_000).expect("read"),
        &data[13..50_013],
    );
    drop(file);
    // The kernel now reads the canonical file by itself, and that file has alignment rules of its own.
    let plain = OpenOptions::new().read(true).open(&path).expect("open");
    let file = options.open(&path).expect("open with O_DIRECT");
    assert_same(
        "beside passthrough",
        &sys::read_at(&file, 13, 50_000).expect("read"),
        &data[13..50_013],
    );
    sys::write_all_at(&file, b"unaligned", 17).expect("write");
    for reader in [&plain, &file] {
        let seen = sys::read_at(reader, 17, 9).expect("read");
        assert_same("written beside passthrough", &seen, b"unaligned");
    }
    drop((plain, file));
    options.write(false).create(false);
    let alone = options.open(&path).expect("open with O_DIRECT");
    let seen = sys::read_at(&alone, 17, 9).expect("read");
    assert_same("O_DIRECT alone", &seen, b"unaligned");
    drop(alone);
    mount.finish();
}

/// S1.15: with O_SYNC and O_DSYNC a write returns when it is durable.
#[test]
fn synchronous_writes() {
    both(|mount| {
        for (name, flag) in [("s", libc::O_SYNC), ("d", libc::O_DSYNC)] {
            let mut options = OpenOptions::new();
            options
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flag);
            let file = options.open(mount.path(name)).expect("open");
            sys::write_all_at(&file, &[5; 10_000], 5).expect("write");
            assert_eq!(get(mount.path(name)).len(), 10_005);
        }
    });
}

/// S1.16: bytes beyond 4 GiB are written, read and drained.
#[test]
fn files_over_4_gib() {
    both(|mount| {
        let file = open_rw(mount.path("f"));
        let data = Rng::new(5).bytes(100_000);
        let far = (5u64 << 30) + 123;
        sys::write_all_at(&file, &data, far).expect("write");
        sys::write_all_at(&file, &data, (4u64 << 30) - 50_000).expect("write across 4 GiB");
        for _ in 0..2 {
            assert_eq!(file.metadata().expect("stat").len(), far + 100_000);
            assert_same(
                "far",
                &sys::read_at(&file, far, 100_000).expect("read"),
                &data,
            );
            let across = sys::read_at(&file, (4u64 << 30) - 50_000, 100_000);
            assert_same("across 4 GiB", &across.expect("read"), &data);
            mount.drain();
        }
        let canonical = open_rw(mount.canonical("f"));
        assert_same(
            "canonical",
            &sys::read_at(&canonical, far, 100_000).expect("read"),
            &data,
        );
    });
}

/// S1.17: copy_file_range copies between undrained files, and from a drained one.
#[test]
fn copy_file_range_copies_what_is_seen() {
    both(|mount| {
        let data = Rng::new(6).bytes(200_000);
        let (from, to) = (open_rw(mount.path("from")), open_rw(mount.path("to")));
        sys::write_all_at(&from, &data, 0).expect("write");
        let copied = sys::copy_range(&from, 1_000, &to, 77, 150_000).expect("copy");
        assert_eq!(copied, 150_000);
        assert_same("copy", &get(mount.path("to"))[77..], &data[1_000..151_000]);
        mount.drain();
        let copied = sys::copy_range(&from, 100_000, &to, 0, 500_000).expect("copy to the end");
        assert_eq!(copied, 100_000);
        assert_same(
            "copy of drained bytes",
            &get(mount.path("to"))[..100_000],
            &data[100_000..],
        );
        assert_eq!(
            sys::copy_range(&from, 300_000, &to, 0, 10).expect("past the end"),
            0
        );
    });
}

/// S1.1: reads end at the end of the file, and one past it is empty.
#[test]
fn reads_stop_at_the_end() {
    both(|mount| {
        let file = open_rw(mount.path("f"));
        sys::write_all_at(&file, b"12345", 0).expect("write");
        assert_eq!(sys::read_at(&file, 3, 100).expect("read"), b"45");
        assert_eq!(file.read_at(&mut [0; 10], 5).expect("read at the end"), 0);
        assert_eq!(file.read_at(&mut [0; 10], 5000).expect("read past it"), 0);
    });
}
