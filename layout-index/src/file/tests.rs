//! One file through all its states against a vector of bytes.
//!
//! Promises S1 (reads return the last completed write, whatever tier holds it), S4 (after drain
//! the canonical file is what the overlay showed), S5 (a crash of the daemon loses nothing
//! acknowledged), S6 (nothing is freed before what replaces it is durable), S9.2 (the way through
//! subfiles, and a crash at any step of it).

use super::*;
use crate::disk::{Disk, DiskFile, RealDisk, RealFile};
use crate::error::StoreError;
use crate::extent::{BLOCK, SubUnit};
use crate::index::SubfileRow;
use crate::space::SpaceOptions;
use crate::store::{Store, StoreOptions};
use crate::subfile::{Subfile, Subfiles};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io::IoSlice;
use std::path::Path;

const STRIPE: u64 = 4096;
const SPACE: u64 = 10 * STRIPE;
const ID: FileId = FileId { ino: 42, birth: 1 };

struct Rig {
    dir: tempfile::TempDir,
    store: Option<Arc<Store>>,
    file: Option<Arc<File>>,
    canonical: RealFile,
    model: Vec<u8>,
    next: u8,
}

fn open(dir: &Path) -> Arc<Store> {
    let options = StoreOptions {
        dir: dir.join("store"),
        node: "n0".into(),
        backing: "/backing".into(),
        index_memory: 4 << 20,
        space: SpaceOptions {
            capacity: Some(32 << 20),
            ..Default::default()
        },
    };
    let (store, report) = Store::open(options, Arc::new(RealDisk)).unwrap();
    assert_eq!(report.damaged, Vec::<String>::new());
    assert_eq!(report.torn, 0);
    store.set_subfiles(Arc::new(Targets(dir.join("subfiles"))));
    store
}

/// An OST that is a directory.
struct Targets(std::path::PathBuf);

impl Subfiles for Targets {
    fn open(&self, row: &SubfileRow) -> std::io::Result<Arc<dyn DiskFile>> {
        RealDisk.open(&self.0.join(&row.name))
    }
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("canonical");
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .unwrap();
        let store = open(dir.path());
        let file_object = store.file(ID);
        std::fs::create_dir(dir.path().join("subfiles")).unwrap();
        Rig {
            dir,
            store: Some(store),
            file: Some(file_object),
            canonical: RealFile(file),
            model: Vec::new(),
            next: 0,
        }
    }

    fn file(&self) -> &Arc<File> {
        self.file.as_ref().unwrap()
    }

    fn store(&self) -> &Arc<Store> {
        self.store.as_ref().unwrap()
    }

    fn begin(&self) {
        let exclusive = self.file().exclusive();
        if exclusive.is_clean() {
            let intro = Intro {
                size: self.canonical.size().unwrap(),
                mtime: Timestamp(0),
                uid: 1,
                gid: 1,
                handle: vec![],
                path: b"f".to_vec(),
            };
            exclusive.begin(intro).unwrap();
        }
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        self.next = self.next.wrapping_add(1);
        (0..len)
            .map(|n| self.next ^ (n as u8).rotate_left(3))
            .collect()
    }

    fn place(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[offset as usize..end].copy_from_slice(data);
    }

    fn write(&mut self, offset: u64, len: u64) {
        let data = self.bytes(len);
        self.begin();
        self.file().try_write(offset % 3, offset, &data).unwrap();
        self.place(offset, &data);
    }

    fn through(&mut self, offset: u64, len: u64) {
        let data = self.bytes(len);
        self.file()
            .write_through(&self.canonical, offset, &data)
            .unwrap();
        self.place(offset, &data);
    }

    fn truncate(&mut self, size: u64) {
        let exclusive = self.file().exclusive();
        match exclusive.truncate(size, Timestamp(7)) {
            Err(StoreError::Clean) => self.canonical.set_len(size).unwrap(),
            other => other.unwrap(),
        }
        drop(exclusive);
        self.model.resize(size as usize, 0);
    }

    fn zero(&mut self, offset: u64, len: u64, grow: bool) {
        self.begin();
        let range = ByteRange::new(offset, offset + len);
        self.file()
            .exclusive()
            .zero(range, grow, Timestamp(8))
            .unwrap();
        let end = if grow {
            range.end
        } else {
            range.end.min(self.model.len() as u64)
        };
        if offset < end {
            self.place(offset, &vec![0; (end - offset) as usize]);
        }
    }

    /// The subfile that units go to now; a new one when there is none.
    fn subfile(&self) -> Arc<Subfile> {
        if let Some(known) = self.file().subfiles().pop() {
            return known;
        }
        let no = self.store().new_subfile_no();
        let row = SubfileRow {
            no,
            ost: 0,
            ost_name: "here".into(),
            name: format!("{}{no}", self.store().subfile_prefix()),
        };
        let path = self.dir.path().join("subfiles").join(&row.name);
        let file = RealDisk.create(&path).unwrap();
        let subfile = Arc::new(Subfile::made(row, file));
        self.file().add_subfile(subfile.clone()).unwrap();
        subfile
    }

    /// Copies up to `max` stripes to a subfile, as the flusher does. What it gives back has yet
    /// to be recorded.
    fn copy_to_subfile(&self, max: usize) -> Vec<Subfiled> {
        let file = self.file();
        let stripes = match file.log_stripes(STRIPE, 0, max) {
            Err(StoreError::Clean) => return Vec::new(),
            other => other.unwrap(),
        };
        let targets = Targets(self.dir.path().join("subfiles"));
        let mut done = Vec::new();
        for stripe in stripes {
            let snapshot = file.log_snapshot(stripe.range).unwrap();
            for piece in &snapshot.pieces {
                let mut buf = vec![0xee; piece.range.len() as usize];
                let plan = Plan {
                    range: piece.range,
                    size: u64::MAX,
                    pieces: vec![piece.clone()],
                };
                file.read(&plan, &mut buf, None).unwrap();
                let subfile = self.subfile();
                let open = subfile.file(&targets).unwrap();
                let at = subfile.reserve(&*open, piece.range.len()).unwrap().unwrap();
                open.write_at(&[IoSlice::new(&buf)], at).unwrap();
                open.sync().unwrap();
                done.push(Subfiled {
                    range: piece.range,
                    upto: snapshot.upto,
                    unit: SubUnit {
                        subfile: subfile.no(),
                        block: (at / BLOCK) as u32,
                        len: buf.len() as u32,
                        crc: crate::checksum::crc32c(&buf),
                    },
                });
            }
        }
        done
    }

    /// Removes what may be removed, and everything that only a killed daemon knew.
    fn remove_retired(&self, orphans: bool) {
        let dir = self.dir.path().join("subfiles");
        for gone in self.store().take_retired_subfiles().unwrap() {
            match std::fs::remove_file(dir.join(&gone.row().name)) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                other => other.unwrap(),
            }
        }
        if orphans {
            let known = self.store().subfiles();
            for entry in std::fs::read_dir(&dir).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if known.iter().all(|s| s.row().name != name) {
                    std::fs::remove_file(dir.join(name)).unwrap();
                }
            }
        }
    }

    fn subfiles_there(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("subfiles"))
            .unwrap()
            .count()
    }

    /// Drains up to `max` stripes, as the flusher does.
    fn drain(&mut self, max: usize) {
        let file = self.file().clone();
        file.apply_trim(&self.canonical).unwrap();
        let stripes = match file.dirty_stripes(STRIPE, 0, max) {
            Err(StoreError::Clean) => return,
            other => other.unwrap(),
        };
        let mut done = Vec::new();
        for stripe in stripes {
            let guard = file.lock_canonical(stripe.range);
            let snapshot = file.snapshot(&guard).unwrap();
            for piece in &snapshot.pieces {
                let mut buf = vec![0xee; piece.range.len() as usize];
                let plan = Plan {
                    range: piece.range,
                    size: u64::MAX,
                    pieces: vec![piece.clone()],
                };
                file.read(&plan, &mut buf, None).unwrap();
                self.canonical
                    .write_at(&[IoSlice::new(&buf)], piece.range.start)
                    .unwrap();
            }
            done.push(Drained {
                range: snapshot.range,
                upto: snapshot.upto,
            });
        }
        self.canonical.sync().unwrap();
        file.drained(&done).unwrap();
    }

    fn drain_all(&mut self) {
        while !self.file().finish(&self.canonical).unwrap() {
            self.drain(usize::MAX);
        }
        assert!(self.file().is_clean());
        let mut bytes = vec![0; self.canonical.size().unwrap() as usize];
        self.canonical.read_at(&mut bytes, 0).unwrap();
        assert!(bytes == self.model, "canonical file differs from the model");
        assert_eq!(self.store().totals().undrained, 0);
    }

    /// The daemon dies: memory is gone, files stay.
    fn crash(&mut self) {
        self.file = None;
        self.store = None;
        self.store = Some(open(self.dir.path()));
        self.file = Some(self.store().file(ID));
    }

    fn read(&self, range: ByteRange) -> Vec<u8> {
        match self.file().plan(range) {
            Err(StoreError::Clean) => {
                let mut buf = vec![0; range.len() as usize];
                let n = self.canonical.read_at(&mut buf, range.start).unwrap();
                buf.truncate(n);
                buf
            }
            plan => {
                let plan = plan.unwrap();
                assert_eq!(plan.size, self.model.len() as u64);
                let mut buf = vec![0xee; plan.range.len() as usize];
                self.file()
                    .read(&plan, &mut buf, Some(&self.canonical))
                    .unwrap();
                buf
            }
        }
    }

    fn check(&self, range: ByteRange, what: &str) {
        let end = (range.end as usize).min(self.model.len());
        let start = (range.start as usize).min(end);
        assert!(
            self.read(range) == self.model[start..end],
            "{what}: read {range} differs"
        );
    }
}

fn run(seed: u64, steps: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rig = Rig::new();
    for step in 0..steps {
        let offset = rng.random_range(0..SPACE);
        let len = rng.random_range(1..=(SPACE - offset).min(2 * STRIPE + 1));
        let what = match rng.random_range(0..100) {
            0..40 => {
                rig.write(offset, len);
                format!("write {offset}+{len}")
            }
            40..46 => {
                rig.truncate(offset);
                format!("truncate {offset}")
            }
            46..52 => {
                let grow = rng.random_bool(0.5);
                rig.zero(offset, len, grow);
                format!("zero {offset}+{len} grow {grow}")
            }
            52..58 => {
                rig.through(offset, len);
                format!("through {offset}+{len}")
            }
            58..72 => {
                let max = rng.random_range(1..6);
                rig.drain(max);
                format!("drain {max}")
            }
            72..75 => {
                let done = rig.copy_to_subfile(rng.random_range(1..6));
                // Anything may happen while the bytes are on their way.
                match rng.random_range(0..5) {
                    0 => rig.write(offset, len),
                    1 => rig.truncate(offset),
                    2 => rig.zero(offset, len, true),
                    3 => rig.store().checkpoint().unwrap(),
                    _ => {}
                }
                rig.file().subfiled(&done).unwrap();
                if rng.random_bool(0.5) {
                    rig.file().retire_empty_subfiles(0).unwrap();
                }
                rig.remove_retired(false);
                format!("subfile {} units", done.len())
            }
            75..78 => {
                rig.drain_all();
                rig.remove_retired(false);
                "drain all".into()
            }
            78..86 => {
                rig.store().checkpoint().unwrap();
                let counted = rig.file().count_undrained().unwrap();
                let (books, live) = (rig.store().totals().undrained, rig.store().space().live);
                let in_log = rig.store().totals().in_log;
                assert_eq!((books, live), (counted, in_log), "seed {seed} step {step}");
                let in_subfiles: u64 = rig.store().subfiles().iter().map(|s| s.live()).sum();
                assert_eq!(in_log + in_subfiles, counted, "seed {seed} step {step}");
                "checkpoint".into()
            }
            86..88 => {
                rig.copy_to_subfile(3);
                rig.crash();
                rig.remove_retired(true);
                "crash with bytes on their way to a subfile".into()
            }
            88..90 => {
                rig.crash();
                rig.remove_retired(true);
                "crash".into()
            }
            _ => {
                rig.check(ByteRange::new(offset, offset + len), "read");
                continue;
            }
        };
        rig.check(
            ByteRange::new(0, SPACE),
            &format!("seed {seed} step {step} after {what}"),
        );
    }
    rig.drain_all();
    rig.store().checkpoint().unwrap();
    rig.store().checkpoint().unwrap();
    assert_eq!(
        rig.store().space().live,
        0,
        "seed {seed}: live bytes of a clean store"
    );
    rig.remove_retired(false);
    assert_eq!(
        rig.subfiles_there(),
        0,
        "seed {seed}: subfiles of a clean store"
    );
}

#[test]
fn random_histories_match_the_model() {
    let seed: u64 =
        std::env::var("FOREBAY_SEED").map_or_else(|_| rand::random(), |s| s.parse().unwrap());
    for n in 0..12 {
        let seed = seed.wrapping_add(n);
        println!("seed {seed} (replay with FOREBAY_SEED={seed})");
        run(seed, 400);
    }
}

#[test]
fn segments_are_freed_after_drain_and_checkpoint() {
    let mut rig = Rig::new();
    let data = vec![5u8; 1 << 20];
    rig.begin();
    for n in 0..12u64 {
        rig.file().try_write(0, n << 20, &data).unwrap();
    }
    rig.model = vec![5; 12 << 20];
    let full = rig.store().space().used;
    rig.drain_all();
    rig.store().checkpoint().unwrap();
    let after = rig.store().space().used;
    assert!(after < full / 2, "used {full} before and {after} after");
}

#[test]
fn sequential_small_writes_coalesce() {
    let rig = Rig::new();
    rig.begin();
    for n in 0..64u64 {
        rig.file().try_write(1, n * 512, &[n as u8; 512]).unwrap();
    }
    assert_eq!(rig.file().inner().life.as_ref().unwrap().hot.len(), 1);
}

#[test]
fn a_full_store_says_so_and_control_records_still_fit() {
    let mut rig = Rig::new();
    rig.begin();
    let data = vec![1u8; 1 << 20];
    let mut n = 0u64;
    let error = loop {
        match rig.file().try_write(0, n << 20, &data) {
            Ok(()) => n += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(error, StoreError::Full), "{error}");
    rig.model = vec![1; (n as usize) << 20];
    rig.through(n << 20, 4096);
    rig.truncate(STRIPE);
    rig.drain_all();
}

#[test]
fn overlapping_request_in_flight_is_busy() {
    let rig = Rig::new();
    rig.begin();
    let held = rig.file().hold_range(ByteRange::new(0, 100));
    assert!(matches!(
        rig.file().try_write(0, 50, &[1]),
        Err(StoreError::Busy)
    ));
    rig.file().try_write(0, 100, &[1]).unwrap();
    drop(held);
    rig.file().try_write(0, 50, &[1]).unwrap();
}

#[test]
fn a_damaged_payload_is_never_served() {
    let mut rig = Rig::new();
    rig.write(0, 4096);
    rig.store().sync().unwrap();
    rig.file = None;
    rig.store = None;
    let log = rig.dir.path().join("store/log");
    let data = std::fs::read_dir(&log)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "data"));
    for path in data {
        let mut bytes = std::fs::read(&path).unwrap();
        // The introduction is JSON; the write is not.
        if bytes[0] != b'{' {
            bytes[100] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    rig.store = Some(open(rig.dir.path()));
    rig.file = Some(rig.store().file(ID));
    let plan = rig.file().plan(ByteRange::new(0, 4096)).unwrap();
    let error = rig
        .file()
        .read(&plan, &mut vec![0; 4096], None)
        .unwrap_err();
    assert!(matches!(error, StoreError::Checksum { .. }), "{error}");
}

#[test]
fn room_that_a_killed_daemon_did_not_use_is_given_back() {
    let mut rig = Rig::new();
    rig.write(0, 5000);
    let before = rig.store().space();
    assert!(before.used >= before.segment, "{before:?}");
    rig.crash();
    let after = rig.store().space();
    // One record introduces the file, one is the write.
    assert!(
        (5000..6000).contains(&after.used),
        "{before:?} then {after:?}"
    );
    rig.check(ByteRange::ALL, "after the crash");
    rig.drain_all();
}

/// Recovery itself may append, to say that an unlinked file's data is dropped: what it began is
/// appended to from then on, and must not go the way of what it found.
#[test]
fn a_segment_that_recovery_began_is_kept() {
    let mut rig = Rig::new();
    rig.write(0, 5000);
    rig.file().mark_unlinked().unwrap();
    rig.crash();
    rig.store().checkpoint().unwrap();
    rig.model.clear();
    for n in 0..8 {
        rig.write(n * 1000, 1000);
    }
    rig.store().checkpoint().unwrap();
    rig.check(ByteRange::new(0, SPACE), "after the checkpoint");
    rig.crash();
    rig.check(ByteRange::new(0, SPACE), "after another crash");
}

#[test]
fn inspect_shows_the_store_without_opening_it() {
    let mut rig = Rig::new();
    rig.write(0, 5000);
    let seen = Store::inspect(&rig.dir.path().join("store"), true, None).unwrap();
    assert_eq!(
        (seen.files.len(), seen.undrained, seen.files[0].size),
        (1, 5000, 5000)
    );
}

/// S9.1: a plan from before the drain meets a subfile that is gone; another plan has the bytes.
#[test]
fn a_subfile_that_was_drained_and_removed_makes_the_reader_look_again() {
    let mut rig = Rig::new();
    rig.write(0, 3 * STRIPE);
    let done = rig.copy_to_subfile(usize::MAX);
    rig.file().subfiled(&done).unwrap();
    assert_eq!(rig.store().totals().in_log, 0);
    // A new daemon has not opened the subfile yet.
    rig.crash();
    let old = rig.file().plan(ByteRange::new(0, STRIPE)).unwrap();
    assert!(!old.is_local());
    rig.drain_all();
    rig.remove_retired(false);
    let file = rig.file().clone();
    rig.file = None;
    // Whoever drained it has it open; nobody else does.
    let fresh = Plan {
        pieces: old
            .pieces
            .iter()
            .map(|piece| Piece {
                range: piece.range,
                source: match &piece.source {
                    Source::Subfile(sub) => Source::Subfile(SubfilePiece {
                        subfile: Arc::new(Subfile::new(sub.subfile.row().clone())),
                        ..sub.clone()
                    }),
                    other => other.clone(),
                },
            })
            .collect(),
        ..old
    };
    let error = file
        .read(&fresh, &mut vec![0; STRIPE as usize], None)
        .unwrap_err();
    assert!(matches!(error, StoreError::Vanished { .. }), "{error}");
    rig.file = Some(file);
    rig.check(ByteRange::new(0, STRIPE), "after another look");
}

/// S5.3, S9.1: bytes of a subfile that changed under way are never served.
#[test]
fn a_damaged_subfile_is_never_served() {
    let mut rig = Rig::new();
    rig.write(0, STRIPE);
    let done = rig.copy_to_subfile(1);
    rig.file().subfiled(&done).unwrap();
    let subfile = rig.file().subfiles().pop().unwrap();
    let path = rig.dir.path().join("subfiles").join(&subfile.row().name);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let plan = rig.file().plan(ByteRange::new(50, 200)).unwrap();
    let error = rig.file().read(&plan, &mut [0; 150], None).unwrap_err();
    assert!(
        matches!(error, StoreError::SubfileChecksum { .. }),
        "{error}"
    );
    assert_eq!(rig.file().damage().len(), 1);
}
