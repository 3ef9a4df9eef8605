//! The kernel may read files with nothing undrained without the daemon. No program may notice.

use forebay_tests::rng::Rng;
use forebay_tests::sys::{self, Mapping};
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Runs a test on a mount of its own. Files that the test still holds open are closed before unmounting.
fn with(test: impl FnOnce(&mut TestMount)) {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    test(&mut mount);
    mount.finish();
}

/// S1.19, S1.1: a reader that opened the drained file sees what is written afterwards.
#[test]
fn an_old_reader_sees_new_writes() {
    with(|mount| {
        let mut want = Rng::new(1).bytes(300_000);
        put(mount.path("f"), &want);
        mount.drain();
        let reader = File::open(mount.path("f")).expect("open");
        assert_same(
            "drained",
            &sys::read_at(&reader, 0, 400_000).expect("read"),
            &want,
        );
        let writer = open_rw(mount.path("f"));
        for i in 0..50 {
            let at = i * 5_000;
            Rng::new(i as u64).fill(&mut want[at..at + 3_000]);
            sys::write_all_at(&writer, &want[at..at + 3_000], at as u64).expect("write");
            let seen = sys::read_at(&reader, 0, 400_000).expect("read");
            assert_same("while it is written", &seen, &want);
        }
        drop(writer);
        assert_same(
            "closed",
            &sys::read_at(&reader, 0, 400_000).expect("read"),
            &want,
        );
        mount.drain();
        assert_same(
            "drained again",
            &sys::read_at(&reader, 0, 400_000).expect("read"),
            &want,
        );
    });
}

/// S1.19, S1.4: the old reader sees the file shrink and grow.
#[test]
fn an_old_reader_sees_truncates() {
    with(|mount| {
        put(mount.path("f"), vec![1; 100_000]);
        mount.drain();
        let reader = File::open(mount.path("f")).expect("open");
        assert_eq!(
            sys::read_at(&reader, 0, 200_000).expect("read").len(),
            100_000
        );
        sys::truncate(&mount.path("f"), 10).expect("cut");
        assert_eq!(sys::read_at(&reader, 0, 200_000).expect("read"), [1; 10]);
        sys::truncate(&mount.path("f"), 5_000).expect("grow");
        let mut want = vec![1; 10];
        want.resize(5_000, 0);
        assert_same(
            "grown",
            &sys::read_at(&reader, 0, 200_000).expect("read"),
            &want,
        );
        assert_eq!(reader.metadata().expect("stat").len(), 5_000);
    });
}

/// S1.19, S1.8: a mapping of the drained file that was made before a write shows the write.
#[test]
fn an_old_mapping_sees_new_writes_after_reopening() {
    with(|mount| {
        put(mount.path("f"), vec![1; 16_384]);
        mount.drain();
        let file = open_rw(mount.path("f"));
        let mapping = Mapping::new(&file, 0, 16_384).expect("mmap");
        assert_eq!(mapping.bytes()[5_000], 1);
        sys::write_all_at(&file, &[2; 100], 5_000).expect("write");
        assert_eq!(mapping.bytes()[5_000], 2, "the mapping shows the write");
        drop(mapping);
        let mapping = Mapping::new(&file, 0, 16_384).expect("mmap");
        assert_eq!(mapping.bytes()[4_999..5_001], [1, 2]);
    });
}

/// S1.19: many readers and writers open and close one file while it drains over and over.
#[test]
fn readers_come_and_go_while_it_drains() {
    let mut mount = TestMount::new(Drain::Immediate);
    mount.start();
    let size = 200_000;
    put(mount.path("f"), vec![0; size]);
    std::thread::scope(|scope| {
        for who in 0..2u8 {
            let path = mount.path("f");
            scope.spawn(move || {
                // Each writer counts up in its own half; a reader must never see it go back.
                for value in 1..=100u8 {
                    let file = open_rw(&path);
                    let at = usize::from(who) * size / 2;
                    sys::write_all_at(&file, &vec![value; size / 2], at as u64).expect("write");
                }
            });
        }
        for _ in 0..3 {
            let path = mount.path("f");
            scope.spawn(move || {
                let mut last = [0u8; 2];
                while last != [100, 100] {
                    let file = File::open(&path).expect("open");
                    for (who, last) in last.iter_mut().enumerate() {
                        let mut byte = [0];
                        let at = (who * size / 2 + 77) as u64;
                        file.read_exact_at(&mut byte, at).expect("read");
                        assert!(byte[0] >= *last, "went back from {last} to {}", byte[0]);
                        *last = byte[0];
                    }
                }
            });
        }
    });
    assert_same("at the end", &get(mount.path("f")), &vec![100; size]);
    mount.finish();
}

/// S1.19: an executable runs, is replaced, and runs again.
#[test]
fn programs_run_from_the_mount() {
    with(|mount| {
        sys::copy_program("/bin/echo".as_ref(), &mount.path("echo")).expect("copy");
        for _ in 0..2 {
            let out = std::process::Command::new(mount.path("echo"))
                .arg("hello")
                .output();
            assert_eq!(out.expect("run from the mount").stdout, b"hello\n");
            mount.drain();
        }
    });
}
