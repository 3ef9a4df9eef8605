//! The window of what a handle has read last (S2.11): which parts of a write differ from it.

use super::*;
use layout_index::{FileId, RealDisk, SpaceOptions, Store, StoreOptions};

struct Rig {
    file: Arc<File>,
    recent: Recent,
    _store: Arc<Store>,
    _dir: tempfile::TempDir,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        dir: dir.path().join("store"),
        node: "n0".into(),
        backing: "/backing".into(),
        index_memory: 4 << 20,
        space: SpaceOptions {
            capacity: Some(32 << 20),
            ..Default::default()
        },
    };
    let (store, _) = Store::open(options, Arc::new(RealDisk)).unwrap();
    Rig {
        file: store.file(FileId { ino: 1, birth: 1 }),
        recent: Recent::default(),
        _store: store,
        _dir: dir,
    }
}

impl Rig {
    fn read(&self, offset: u64, bytes: &[u8], asked: u64) {
        let range = ByteRange::new(offset, asked);
        let reading = Reading::begin(&self.file, range);
        self.recent.remember(reading, offset, bytes, asked);
    }

    /// Returns the runs, and whether the write extends past the end.
    fn written(&self, offset: u64, data: &[u8]) -> Option<(Vec<Range<usize>>, bool)> {
        self.recent.changed(&self.file, offset, data, |changes| {
            (changes.runs.unwrap(), changes.past_the_end)
        })
    }
}

#[test]
fn every_byte_that_differs_and_no_other() {
    let rig = rig();
    rig.read(100, b"abcdefgh", 108);
    let runs = rig.written(100, b"abXdYZgh").unwrap();
    assert_eq!(runs, (vec![2..3, 4..6], false));
    assert_eq!(rig.written(100, b"abXdYZgh"), None, "it was written back");
}

#[test]
fn reads_in_a_row_are_one_window() {
    let rig = rig();
    rig.read(0, b"abcd", 4);
    rig.read(4, b"efgh", 8);
    assert_eq!(rig.written(0, b"aXcd").unwrap().0, vec![1..2]);
    assert_eq!(rig.written(4, b"efgY").unwrap().0, vec![3..4]);
    rig.read(0, b"abcd", 4);
    rig.read(5, b"fgh", 8);
    assert_eq!(rig.written(0, b"abcd"), None, "another read came since");
    assert!(rig.written(5, b"fgh").unwrap().0.is_empty());
}

#[test]
fn past_the_end_zeros_are_nothing() {
    let rig = rig();
    rig.read(0, b"ab", 10);
    // The MPI library reads on, and learns that the file has no more bytes.
    rig.read(2, b"", 10);
    let runs = rig.written(0, b"ab\0\0x\0\0y\0\0").unwrap();
    assert_eq!(runs, (vec![4..5, 7..8], true));
}

#[test]
fn writes_that_were_not_read_are_writes() {
    let rig = rig();
    assert!(!rig.recent.may_cover(ByteRange::new(0, 1)));
    rig.read(10, b"abcd", 14);
    for (offset, data) in [(9, &b"xa"[..]), (12, b"cdx"), (14, b"x"), (0, b"x")] {
        assert_eq!(rig.written(offset, data), None, "{offset}");
    }
    assert!(rig.recent.may_cover(ByteRange::new(10, 14)));
}

/// The memory of all handles together is limited, and a handle gives its part back when it is dropped.
#[test]
fn memory_is_bounded() {
    let rig = rig();
    let before = REMEMBERED.load(Ordering::Relaxed);
    let big = vec![1; 4 << 20];
    let mut at = 0;
    for _ in 0..20 {
        rig.read(at, &big, at + big.len() as u64);
        at += big.len() as u64;
        let held = rig.recent.window.lock().as_ref().unwrap().bytes.len();
        assert!(held <= MOST, "{held}");
    }
    drop(rig);
    assert!(REMEMBERED.load(Ordering::Relaxed) <= before + (1 << 20));
}

/// Recomputed numbers form a single run; numbers that were left alone are in no run.
#[test]
fn many_runs_are_told_apart_by_words() {
    let rig = rig();
    let old = vec![0x40; 80_000];
    let mut new = old.clone();
    for number in new[..40_000].chunks_exact_mut(8) {
        number[..6].fill(1);
    }
    for number in new[40_000..].chunks_exact_mut(16) {
        number[..8].fill(2);
    }
    rig.read(0, &old, 80_000);
    let runs = rig.written(0, &new).unwrap().0;
    assert_eq!(runs[..2], [0..40_008, 40_016..40_024]);
    assert_eq!(runs.len(), 40_000 / 16);
}
