//! One file through all its states against a vector of bytes.
//!
//! Promises S1 (reads return the last completed write, whatever tier holds it), S4 (after drain
//! the canonical file is what the overlay showed), S5 (a crash of the daemon loses nothing
//! acknowledged), S6 (nothing is freed before what replaces it is durable).

use super::*;
use crate::disk::{DiskFile, RealDisk, RealFile};
use crate::error::StoreError;
use crate::space::SpaceOptions;
use crate::store::{Store, StoreOptions};
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
    store
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
            72..78 => {
                rig.drain_all();
                "drain all".into()
            }
            78..86 => {
                rig.store().checkpoint().unwrap();
                let counted = rig.file().count_undrained().unwrap();
                let (books, live) = (rig.store().totals().undrained, rig.store().space().live);
                assert_eq!((books, live), (counted, counted), "seed {seed} step {step}");
                "checkpoint".into()
            }
            86..90 => {
                rig.crash();
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
    let seen = Store::inspect(&rig.dir.path().join("store"), true).unwrap();
    assert_eq!(
        (seen.files.len(), seen.undrained, seen.files[0].size),
        (1, 5000, 5000)
    );
}
