//! A store that an earlier build wrote still has the same contents when it is opened now: format 1.
//!
//! Promise S6.4: a store that can be read is read correctly, any other store is refused. The
//! fixture has extents in the index, and newer records only in the log. It was written by the last
//! program of that format and is not written again; `format_2.rs` tests the next format.

use fixture::{bytes, copy, fixture, open};
use layout_index::store::superblock::{FORMAT, NAME, Superblock};
use layout_index::{ByteRange, Drained, FileId, Intro, RealDisk, Timestamp};
use std::path::Path;

mod fixture;

const KEPT: FileId = FileId { ino: 11, birth: 1 };
const UNLINKED: FileId = FileId { ino: 12, birth: 2 };
/// The canonical file's own bytes, where they are visible.
const CANONICAL: u8 = 0xcc;

/// Writes every kind of record that a store can hold before the end of a drain.
fn write(dir: &Path) {
    let store = open(dir);
    for (id, size) in [(KEPT, 4096), (UNLINKED, 0)] {
        let file = store.file(id);
        let intro = Intro {
            size,
            mtime: Timestamp(5),
            uid: 1000,
            gid: 100,
            handle: vec![1, 2, 3],
            path: format!("dir/file-{}", id.ino).into_bytes(),
        };
        file.exclusive().begin(intro).unwrap();
    }
    let kept = store.file(KEPT);
    kept.try_write(0, 10_000, &bytes(1, 50_000)).unwrap();
    kept.try_write(1, 20_000, &bytes(2, 300)).unwrap();
    store
        .file(UNLINKED)
        .try_write(2, 0, &bytes(3, 500))
        .unwrap();
    store.checkpoint().unwrap();
    kept.try_write(3, 10_100, &bytes(4, 100)).unwrap();
    kept.exclusive().truncate(40_000, Timestamp(7)).unwrap();
    let hole = ByteRange::new(30_000, 31_000);
    kept.exclusive().zero(hole, false, Timestamp(8)).unwrap();
    let stripe = ByteRange::new(36_864, 40_000);
    let guard = kept.lock_canonical(stripe);
    let upto = kept.snapshot(&guard).unwrap().upto;
    let range = stripe;
    kept.drained(&[Drained { range, upto }]).unwrap();
    drop(guard);
    store.file(UNLINKED).mark_unlinked().unwrap();
    store.sync().unwrap();
    // The store is killed here. The next one is killed right after its start, in which it gave back
    // the space that it found unused.
    drop((kept, store));
    drop(open(dir));
}

fn check(dir: &Path) {
    let store = open(dir);
    let names: Vec<FileId> = store.dirty_files().iter().map(|f| f.id()).collect();
    assert_eq!(names, [KEPT], "the unlinked file is dropped");
    let file = store.file(KEPT);
    let stat = file.stat().unwrap();
    assert_eq!((stat.size, stat.mtime), (40_000, Timestamp(8)));

    let mut want = vec![CANONICAL; 4096];
    want.resize(10_000, 0);
    want.extend(&bytes(1, 50_000)[..30_000]);
    want[20_000..20_300].copy_from_slice(&bytes(2, 300));
    want[10_100..10_200].copy_from_slice(&bytes(4, 100));
    want[30_000..31_000].fill(0);
    // Drained, as far as the log knows: the canonical file's bytes count.
    want[36_864..40_000].fill(CANONICAL);

    let canonical = tempfile::NamedTempFile::new().unwrap();
    let mut there = vec![CANONICAL; 4096];
    there.resize(36_864, 0);
    there.resize(40_000, CANONICAL);
    std::fs::write(canonical.path(), there).unwrap();
    let canonical = layout_index::RealFile(canonical.reopen().unwrap());
    let plan = file.plan(ByteRange::new(0, 50_000)).unwrap();
    let mut got = vec![0xee; plan.range.len() as usize];
    file.read(&plan, &mut got, Some(&canonical)).unwrap();
    let differs = got.iter().zip(&want).position(|(a, b)| a != b);
    assert_eq!((got.len(), differs), (want.len(), None));
}

#[test]
fn a_store_written_now_says_what_the_fixture_says() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    write(&store);
    check(&store);
}

#[test]
fn a_store_of_format_1_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    copy(&fixture("store-format-1"), &store);
    check(&store);
}

/// A program that knows only format 1 reads the number first, and refuses the store.
#[test]
fn a_store_of_format_1_is_a_new_one_once_it_was_opened() {
    #[derive(serde::Deserialize)]
    struct Version {
        format: u32,
    }
    let number = |dir: &Path| {
        let text = std::fs::read_to_string(dir.join(NAME)).unwrap();
        toml::from_str::<Version>(&text).unwrap().format
    };
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    copy(&fixture("store-format-1"), &store);
    assert_eq!(number(&store), 1);
    let old = Superblock::load(&RealDisk, &store).unwrap().unwrap();
    drop(open(&store));
    assert_eq!((number(&store), FORMAT), (3, 3));
    let new = Superblock::load(&RealDisk, &store).unwrap().unwrap();
    assert_eq!((old.id, old.key), (0, new.key), "records stay readable");
    assert_ne!(new.id, 0, "subfiles have a name of their own");
    // Another start keeps the same superblock.
    check(&store);
    let again = Superblock::load(&RealDisk, &store).unwrap();
    assert_eq!(again, Some(new));
}
