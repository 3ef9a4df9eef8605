//! What one copy guarantees by itself: a sidecar never covers more than was synced, and a copy is
//! never taken for another version.

mod watch;

use super::*;
use crate::disk::{RealDisk, RealFile};
use crate::store::space::SpaceOptions;
use crate::types::ByteRange;
use std::io::IoSlice;
use std::time::Duration;
use watch::{Watch, Watched};

const ID: FileId = FileId { ino: 42, birth: 1 };
const OTHER: FileId = FileId { ino: 43, birth: 1 };
const KEY: u32 = 9;
const MIB: u64 = 1 << 20;

struct Rig {
    dir: tempfile::TempDir,
    watch: Arc<Watch>,
    space: Arc<SpaceBook>,
    copies: Arc<LocalCopies>,
}

impl Rig {
    fn new() -> Rig {
        Rig::at(tempfile::tempdir().unwrap())
    }

    fn at(dir: tempfile::TempDir) -> Rig {
        let watch = Arc::new(Watch::default());
        let disk: Arc<dyn Disk> = Arc::new(Watched(watch.clone()));
        let options = SpaceOptions {
            capacity: Some(64 * MIB),
            ..Default::default()
        };
        let space = Arc::new(SpaceBook::new(&options, 0));
        let found = find(&disk, dir.path().join("kept"), KEY).unwrap();
        let copies = LocalCopies::new(found, space.clone());
        Rig {
            dir,
            watch,
            space,
            copies,
        }
    }

    /// The same directory as a new daemon finds it.
    fn restart(self) -> Rig {
        Rig::at(self.dir)
    }

    fn names(&self) -> Vec<String> {
        let names = RealDisk
            .list(&self.dir.path().join("kept"))
            .unwrap_or_default();
        let mut names: Vec<_> = names.iter().map(|n| n.display().to_string()).collect();
        names.sort();
        names
    }

    fn stage(&self, id: FileId, data: &[u8]) -> Arc<Copy> {
        let copy = self.copies.stage(id, version(data.len() as u64)).unwrap();
        assert_eq!(self.put(&copy, data, 0), Ok(true));
        copy
    }

    fn put(&self, copy: &Arc<Copy>, data: &[u8], at: u64) -> std::result::Result<bool, NoRoom> {
        self.copies
            .put(copy, &[IoSlice::new(data)], at, Evict::Oldest)
    }

    fn is_valid(&self, id: FileId, version: Version) -> bool {
        self.copies.check(id, || Ok(version))
    }

    fn read(&self, id: FileId, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut buf = vec![0xee; len];
        let n = self.copies.read(id, &mut buf, offset, None).unwrap()?;
        buf.truncate(n);
        Some(buf)
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.watch.calls.lock())
    }
}

fn version(size: u64) -> Version {
    let at = Moment { sec: 1000, nsec: 7 };
    Version {
        size,
        mtime: at,
        ctime: at,
    }
}

/// S11.3: a sidecar never covers bytes that a power failure may lose.
#[test]
fn bytes_are_synced_before_the_sidecar_says_that_they_are_there() {
    let rig = Rig::new();
    let copy = rig.stage(ID, b"hello");
    rig.calls();
    rig.copies.save(&copy);
    let want = [
        "sync data",
        "sync directory",
        "create temporary",
        "write temporary",
        "sync temporary",
        "rename temporary",
    ];
    assert_eq!(rig.calls(), want);
    rig.copies.save(&copy);
    assert_eq!(rig.calls(), [""; 0], "nothing has changed since");
}

/// S11.3: after a kill at any step before the last one, the copy is gone, and nothing else has
/// happened.
#[test]
fn a_copy_without_its_sidecar_does_not_survive() {
    for step in [
        "sync data",
        "sync directory",
        "create temporary",
        "write temporary",
        "sync temporary",
        "rename temporary",
    ] {
        let rig = Rig::new();
        let copy = rig.stage(ID, b"hello");
        *rig.watch.fails.lock() = Some(step);
        // What is on the disk here is what a kill at this step leaves.
        assert!(copy.save().is_err(), "{step}");
        let rig = rig.restart();
        assert!(!rig.is_valid(ID, version(5)), "{step}");
        assert_eq!(rig.names(), [""; 0], "{step}");
        assert_eq!(rig.space.copied(), 0, "{step}");
    }
}

#[test]
fn an_error_ends_the_copy_and_nothing_else() {
    let rig = Rig::new();
    let copy = rig.stage(ID, b"hello");
    *rig.watch.fails.lock() = Some("write data");
    assert_eq!(rig.put(&copy, b"more", 5), Ok(false));
    *rig.watch.fails.lock() = None;
    assert_eq!(rig.put(&copy, b"more", 5), Ok(false));
    assert!(!rig.copies.has(ID));
    assert_eq!(rig.names(), [""; 0]);
    assert_eq!(rig.space.copied(), 0);

    let copy = rig.stage(ID, b"hello");
    assert!(rig.is_valid(ID, version(5)));
    *rig.watch.fails.lock() = Some("read data");
    assert_eq!(rig.read(ID, 0, 5), None, "read below instead");
    assert!(copy.is_dead());
}

#[test]
fn a_saved_copy_is_there_after_a_start_and_read_after_a_sync_point() {
    let rig = Rig::new();
    let copy = rig.stage(ID, b"hello world");
    rig.copies.save(&copy);
    let rig = rig.restart();
    assert_eq!(rig.space.copied(), 11);
    assert_eq!(rig.read(ID, 0, 5), None, "no open has checked it yet");
    assert!(rig.is_valid(ID, version(11)));
    assert_eq!(rig.read(ID, 6, 100).unwrap(), b"world");
    assert_eq!(rig.read(ID, 11, 100), None, "the end is the file's to say");
    let totals = LocalCopyTotals {
        files: 1,
        bytes: 11,
    };
    assert_eq!(rig.copies.totals(), totals);
}

/// S11.1: another size or another time is another version, and ends the copy.
#[test]
fn any_other_version_ends_it() {
    let good = version(5);
    let later = Moment { sec: 1000, nsec: 8 };
    for other in [
        Version { size: 6, ..good },
        Version {
            mtime: later,
            ..good
        },
        Version {
            ctime: later,
            ..good
        },
    ] {
        let rig = Rig::new();
        rig.stage(ID, b"hello");
        assert!(rig.is_valid(ID, good));
        assert!(!rig.is_valid(ID, other));
        assert_eq!(rig.read(ID, 0, 5), None);
        assert_eq!((rig.names().len(), rig.space.copied()), (0, 0));
    }
}

#[test]
fn leftovers_and_damaged_sidecars_are_removed_and_strange_files_are_not() {
    let rig = Rig::new();
    let (a, b) = (rig.stage(ID, b"hello"), rig.stage(OTHER, b"world"));
    rig.copies.save(&a);
    rig.copies.save(&b);
    let dir = rig.dir.path().join("kept");
    let bad = rig.copies.home.sidecar(ID, a.tag);
    let mut bytes = std::fs::read(&bad).unwrap();
    bytes[30] ^= 1;
    std::fs::write(&bad, bytes).unwrap();
    std::fs::write(dir.join("2c.1-0000000000000005"), "no sidecar").unwrap();
    std::fs::write(dir.join("2d.1-0000000000000005.new"), "never renamed").unwrap();
    std::fs::write(dir.join("notes.txt"), "a user's").unwrap();
    let tag = b.tag;
    let rig = rig.restart();
    let left = [
        format!("2b.1-{tag:016x}"),
        format!("2b.1-{tag:016x}.ranges"),
        "notes.txt".into(),
    ];
    assert_eq!(rig.names(), left);
    assert!(!rig.copies.has(ID) && rig.is_valid(OTHER, version(5)));
}

/// A sidecar under another file's name is refused, whatever its checksum says.
#[test]
fn a_sidecar_speaks_for_its_own_file_only() {
    let rig = Rig::new();
    let copy = rig.stage(ID, b"hello");
    rig.copies.save(&copy);
    let tag = copy.tag;
    for (from, to) in [
        (
            rig.copies.home.data(ID, tag),
            rig.copies.home.data(OTHER, tag),
        ),
        (
            rig.copies.home.sidecar(ID, tag),
            rig.copies.home.sidecar(OTHER, tag),
        ),
    ] {
        std::fs::rename(from, to).unwrap();
    }
    let rig = rig.restart();
    assert!(!rig.copies.has(OTHER) && !rig.copies.has(ID));
    assert_eq!(rig.names(), [""; 0]);
}

#[test]
fn the_log_comes_first_and_the_least_recently_opened_goes() {
    let rig = Rig::new();
    let data = vec![1; 8 * MIB as usize];
    for ino in 0..6 {
        rig.stage(FileId { ino, birth: 0 }, &data);
    }
    let id = |ino| FileId { ino, birth: 0 };
    assert!(rig.is_valid(id(0), version(8 * MIB)), "opened just now");
    assert!(rig.space.reserve(30 * MIB, crate::store::log::Room::Data));
    assert!(rig.space.used() + rig.space.copied() <= rig.space.capacity());
    let there: Vec<u64> = (0..6).filter(|ino| rig.copies.has(id(*ino))).collect();
    assert_eq!(there, [0, 3, 4, 5]);
    assert_eq!(rig.space.copied(), 32 * MIB);
}

#[test]
fn a_prefetch_does_not_push_out_what_it_has_just_read() {
    let rig = Rig::new();
    let old = rig.stage(OTHER, &vec![1; 30 * MIB as usize]);
    let began = Instant::now();
    let data = vec![2; 8 * MIB as usize];
    let mut got = 0;
    for ino in 0..20 {
        let id = FileId { ino, birth: 0 };
        let copy = rig.copies.stage(id, version(8 * MIB)).unwrap();
        let evict = Evict::UnusedSince(began);
        match rig.copies.put(&copy, &[IoSlice::new(&data)], 0, evict) {
            Ok(done) => assert!(done),
            Err(NoRoom) => break,
        }
        got += 1;
    }
    assert!(old.is_dead(), "what was there before makes room");
    assert!((5..8).contains(&got), "{got} files of 8 MiB in 64 MiB");
    let there = (0..got).filter(|ino| {
        rig.copies.has(FileId {
            ino: *ino,
            birth: 0,
        })
    });
    assert_eq!(there.count() as u64, got);
}

#[test]
fn gaps_are_read_below() {
    let rig = Rig::new();
    let path = rig.dir.path().join("canonical");
    std::fs::write(&path, [b'c'; 30]).unwrap();
    let below = RealFile(std::fs::File::open(&path).unwrap());
    let copy = rig.copies.stage(ID, version(30)).unwrap();
    rig.put(&copy, b"0123456789", 10).unwrap();
    rig.copies.put_zeros(&copy, ByteRange::new(22, 25));
    assert!(rig.is_valid(ID, version(30)));
    assert_eq!(rig.read(ID, 5, 10), None);
    assert_eq!(rig.read(ID, 12, 4).unwrap(), b"2345");
    let mut buf = [0; 40];
    let n = rig.copies.read(ID, &mut buf, 0, Some(&below)).unwrap();
    assert_eq!(n, Some(30));
    assert_eq!(&buf[..30], b"cccccccccc0123456789cc\0\0\0ccccc");
    assert_eq!(copy.next_gap(0), Some(ByteRange::new(0, 10)));
    assert!(!copy.is_full());
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    let rig = Rig::new();
    let copy = rig.copies.fill_anew(ID).unwrap();
    rig.put(&copy, &[1; 10_000], 0).unwrap();
    rig.copies.put_size(&copy, 4096);
    rig.copies.put_zeros(&copy, ByteRange::new(4096, 8192));
    rig.copies.complete(&copy, Some(version(8192)));
    assert!(rig.is_valid(ID, version(8192)));
    let got = rig.read(ID, 4000, 10_000).unwrap();
    assert_eq!(got.len(), 4192);
    assert!(got[..96].iter().all(|b| *b == 1) && got[96..].iter().all(|b| *b == 0));
}

/// If another node drained in between, what was filled before is not what is in the file.
#[test]
fn a_fill_goes_on_only_if_the_file_is_as_it_was_left() {
    let rig = Rig::new();
    let copy = rig.copies.fill(ID, Some(version(1)), false).unwrap();
    rig.put(&copy, b"first", 0).unwrap();
    rig.copies.pause(&copy, Some(version(5)));
    let same = rig.copies.fill(ID, Some(version(5)), false).unwrap();
    assert!(Arc::ptr_eq(&same, &copy));
    let other = rig.copies.fill(ID, Some(version(6)), false).unwrap();
    assert!(copy.is_dead() && other.bytes() == 0);
    rig.put(&other, b"again", 0).unwrap();
    let alone = rig.copies.fill(ID, None, true).unwrap();
    assert!(Arc::ptr_eq(&alone, &other), "no other node writes it");
    rig.copies.complete(&alone, None);
    assert!(alone.is_dead(), "its version could not be told");
}

/// S11.1, S11.3: a new dirty period goes on with the copy of the last one, whose sidecar is removed
/// before its first byte changes.
#[test]
fn a_new_dirty_period_goes_on_with_the_copy() {
    let rig = Rig::new();
    let copy = rig.stage(ID, b"hello");
    rig.copies.save(&copy);
    assert!(rig.is_valid(ID, version(5)));
    rig.copies.period_begins(ID);
    assert_eq!(rig.read(ID, 0, 5), None, "not while the file is dirty");
    assert!(!rig.is_valid(ID, version(5)));
    rig.calls();
    let same = rig.copies.fill(ID, Some(version(5)), false).unwrap();
    assert!(Arc::ptr_eq(&same, &copy));
    rig.put(&same, b"J", 0).unwrap();
    let want = ["remove sidecar", "sync directory", "write data"];
    assert_eq!(rig.calls(), want);
    let later = Version {
        mtime: Moment { sec: 2000, nsec: 1 },
        ..version(5)
    };
    rig.copies.complete(&same, Some(later));
    assert_eq!(rig.read(ID, 0, 5), None, "no open has checked it yet");
    assert!(rig.is_valid(ID, later));
    assert_eq!(rig.read(ID, 0, 5).unwrap(), b"Jello");
    rig.copies.save(&same);
    let rig = rig.restart();
    assert!(rig.is_valid(ID, later));

    rig.copies.period_begins(ID);
    let other = rig.copies.fill(ID, Some(version(5)), true).unwrap();
    assert_eq!(
        other.bytes(),
        0,
        "another program changed it before the period began"
    );
}

#[test]
fn a_reader_of_a_copy_that_dies_reads_on_below() {
    let rig = Rig::new();
    let copy = rig.stage(ID, b"hello");
    rig.copies.save(&copy);
    assert!(rig.is_valid(ID, version(5)));
    rig.copies.forget(ID);
    assert_eq!(rig.read(ID, 0, 5), None);
    assert_eq!(rig.put(&copy, b"late", 0), Ok(false));
    assert_eq!((rig.space.copied(), rig.names().len()), (0, 0));
}

#[test]
fn a_closed_store_is_left_alone() {
    let rig = Rig::new();
    let copy = rig.stage(ID, b"hello");
    rig.copies.close();
    assert_eq!(rig.names().len(), 2, "saved");
    rig.copies.drop_copy(&copy);
    assert_eq!(rig.names().len(), 2, "the next daemon has it");
    assert!(rig.copies.fill_anew(OTHER).is_none());
}

#[test]
fn a_version_is_final_after_a_tick() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "x").unwrap();
    let file = RealFile(std::fs::File::open(&path).unwrap());
    let began = Instant::now();
    let version = version_after_change(&file);
    assert!(began.elapsed() >= Duration::from_millis(12));
    assert_eq!(version.map(|v| v.size), Some(1));
}
