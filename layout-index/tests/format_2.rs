//! A store that an earlier build wrote still has the same contents when it is opened now: format 2,
//! which introduced subfiles.
//!
//! Promises S6.4, S9.2. The fixture has extents of one subfile in the index, and newer records
//! about another subfile only in the log, where a third subfile was made and removed; the subfiles
//! are beside the store. It was written by `FOREBAY_FIXTURE=<directory> cargo test -p layout-index
//! --test format_2` with a build of that format (locks and RocksDB's messages and options were left
//! out), and is not written again: such a run now writes a newer format.

use fixture::{bytes, copy, fixture, open};
use layout_index::checksum::crc32c;
use layout_index::extent::{BLOCK, SubUnit};
use layout_index::{
    ByteRange, Disk, DiskFile, File, FileId, Intro, Plan, RealDisk, Source, Store, Subfile,
    SubfileRow, Subfiled, Subfiles, Timestamp,
};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod fixture;

const ID: FileId = FileId { ino: 21, birth: 3 };
const SIZE: usize = 30_000;

/// An OST that is a directory.
struct Targets(PathBuf);

impl Subfiles for Targets {
    fn open(&self, row: &SubfileRow) -> io::Result<Arc<dyn DiskFile>> {
        RealDisk.open(&self.0.join(&row.name))
    }
}

fn open_with(dir: &Path) -> Arc<Store> {
    let store = open(&dir.join("store"));
    store.set_subfiles(Arc::new(Targets(dir.join("subfiles"))));
    store
}

fn make(store: &Store, file: &File, dir: &Path) -> Arc<Subfile> {
    let no = store.new_subfile_no();
    let row = SubfileRow {
        no,
        ost: 4,
        ost_name: "scratch-OST0004".into(),
        name: format!("{}{no:08x}", store.subfile_run()),
        uid: 1000,
    };
    let disk = RealDisk.create(&dir.join("subfiles").join(&row.name));
    let subfile = Arc::new(Subfile::made(row, disk.unwrap()));
    file.add_subfile(subfile.clone()).unwrap();
    subfile
}

/// Moves everything in the log within `range` to `subfile`.
fn move_to(file: &File, dir: &Path, subfile: &Subfile, range: ByteRange) {
    let disk = subfile.file(&Targets(dir.join("subfiles"))).unwrap();
    let snapshot = file.log_snapshot(range).unwrap();
    let mut done = Vec::new();
    for piece in snapshot.pieces {
        let mut buf = vec![0; piece.range.len() as usize];
        let plan = Plan {
            range: piece.range,
            size: piece.range.end,
            pieces: vec![piece.clone()],
        };
        file.read(&plan, &mut buf, None).unwrap();
        let at = subfile.reserve(&*disk, piece.range.len()).unwrap().unwrap();
        disk.write_at(&[IoSlice::new(&buf)], at).unwrap();
        done.push(Subfiled {
            range: piece.range,
            upto: snapshot.upto,
            unit: SubUnit {
                subfile: subfile.no(),
                block: (at / BLOCK) as u32,
                len: buf.len() as u32,
                crc: crc32c(&buf),
            },
            skip: 0,
        });
    }
    disk.sync().unwrap();
    file.subfiled(&done).unwrap();
}

fn write(dir: &Path) {
    std::fs::create_dir(dir.join("subfiles")).unwrap();
    let store = open_with(dir);
    let file = store.file(ID);
    let intro = Intro {
        size: 0,
        mtime: Timestamp(5),
        uid: 1000,
        gid: 100,
        handle: vec![1, 2, 3],
        path: b"dir/file".to_vec(),
    };
    file.exclusive().begin(intro).unwrap();
    file.try_write(0, 0, &bytes(1, 10_000)).unwrap();
    file.try_write(0, 20_000, &bytes(2, 10_000)).unwrap();
    let indexed = make(&store, &file, dir);
    move_to(&file, dir, &indexed, ByteRange::new(0, 30_000));
    store.checkpoint().unwrap();

    file.try_write(1, 5000, &bytes(3, 3000)).unwrap();
    let logged = make(&store, &file, dir);
    move_to(&file, dir, &logged, ByteRange::new(5000, 7000));
    file.try_write(1, 12_000, &bytes(4, 1000)).unwrap();
    let gone = make(&store, &file, dir);
    move_to(&file, dir, &gone, ByteRange::new(12_000, 13_000));
    file.try_write(1, 11_500, &bytes(5, 2000)).unwrap();
    file.retire_empty_subfiles(0).unwrap();
    for subfile in store.take_retired_subfiles().unwrap() {
        assert_eq!(subfile.no(), gone.no());
        let path = dir.join("subfiles").join(&subfile.row().name);
        std::fs::remove_file(path).unwrap();
    }
    let hole = ByteRange::new(28_000, 29_000);
    file.exclusive().zero(hole, false, Timestamp(8)).unwrap();
    store.sync().unwrap();
    // The store is killed here. The next one is killed right after its start, in which it gave back
    // the space that it found unused.
    drop((file, store));
    drop(open_with(dir));
}

fn check(dir: &Path) {
    let store = open_with(dir);
    let file = store.file(ID);
    let stat = file.stat().unwrap();
    assert_eq!((stat.size, stat.mtime), (SIZE as u64, Timestamp(8)));
    let mut nos: Vec<u32> = store.subfiles().iter().map(|s| s.no()).collect();
    nos.sort();
    assert_eq!(nos, [1, 2], "the third one is gone");
    assert_eq!(
        store.new_subfile_no(),
        4,
        "and its number is not given again"
    );
    for entry in std::fs::read_dir(dir.join("subfiles")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!store.is_orphan(&name), "{name} is in use");
    }
    let live: u64 = store.subfiles().iter().map(|s| s.live()).sum();
    assert!(live >= 17_000, "the books have {live} bytes in subfiles");

    let mut want = vec![0; SIZE];
    want[..10_000].copy_from_slice(&bytes(1, 10_000));
    want[20_000..].copy_from_slice(&bytes(2, 10_000));
    want[5000..8000].copy_from_slice(&bytes(3, 3000));
    want[11_500..13_500].copy_from_slice(&bytes(5, 2000));
    want[28_000..29_000].fill(0);
    let plan = file.plan(ByteRange::ALL).unwrap();
    let from = |at: u64| {
        let piece = plan
            .pieces
            .iter()
            .find(|p| p.range.start <= at && at < p.range.end)
            .unwrap();
        match &piece.source {
            Source::Subfile(piece) => piece.subfile.no(),
            Source::Log(_) => 0,
            other => panic!("byte {at} comes from {other:?}"),
        }
    };
    assert_eq!([0, 6000, 7500, 12_500, 25_000].map(from), [1, 2, 0, 0, 1]);
    let canonical = layout_index::RealFile(tempfile::tempfile().unwrap());
    let mut got = vec![0xee; SIZE];
    file.read(&plan, &mut got, Some(&canonical)).unwrap();
    let differs = got.iter().zip(&want).position(|(a, b)| a != b);
    assert_eq!((plan.range.len(), differs), (SIZE as u64, None));
}

#[test]
fn a_store_written_now_says_what_the_fixture_says() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    if let Some(to) = std::env::var_os("FOREBAY_FIXTURE") {
        copy(dir.path(), Path::new(&to));
    }
    check(dir.path());
}

#[test]
fn a_store_of_format_2_is_read() {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture("store-format-2"), dir.path());
    check(dir.path());
    // Checks once more, with what the first start wrote.
    check(dir.path());
}
