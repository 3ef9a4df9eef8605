//! A file, its store, its canonical file, a target, and the bytes that all of them should add up
//! to.

use super::super::*;
use crate::disk::{Disk, DiskFile, RealDisk, RealFile};
use crate::error::StoreError;
use crate::extent::{BLOCK, SubUnit};
use crate::store::index::SubfileRow;
use crate::store::space::SpaceOptions;
use crate::store::subfile::{Subfile, Subfiles};
use crate::store::{Store, StoreOptions};
use std::io::IoSlice;
use std::path::Path;

pub const STRIPE: u64 = 4096;
pub const SPACE: u64 = 10 * STRIPE;
pub const ID: FileId = FileId { ino: 42, birth: 1 };

pub struct Rig {
    pub dir: tempfile::TempDir,
    pub store: Option<Arc<Store>>,
    pub file: Option<Arc<File>>,
    pub canonical: RealFile,
    pub model: Vec<u8>,
    pub next: u8,
}

pub fn open(dir: &Path) -> Arc<Store> {
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

/// A target that is a directory.
struct Targets(std::path::PathBuf);

impl Subfiles for Targets {
    fn open(&self, row: &SubfileRow) -> std::io::Result<Arc<dyn DiskFile>> {
        RealDisk.open(&self.0.join(&row.name))
    }
}

impl Rig {
    pub fn new() -> Rig {
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

    pub fn file(&self) -> &Arc<File> {
        self.file.as_ref().unwrap()
    }

    pub fn store(&self) -> &Arc<Store> {
        self.store.as_ref().unwrap()
    }

    pub fn begin(&self) {
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

    pub fn bytes(&mut self, len: u64) -> Vec<u8> {
        self.next = self.next.wrapping_add(1);
        (0..len)
            .map(|n| self.next ^ (n as u8).rotate_left(3))
            .collect()
    }

    pub fn place(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[offset as usize..end].copy_from_slice(data);
    }

    pub fn write(&mut self, offset: u64, len: u64) {
        let data = self.bytes(len);
        self.begin();
        self.file().try_write(offset % 3, offset, &data).unwrap();
        self.place(offset, &data);
    }

    pub fn write_through(&mut self, offset: u64, len: u64) {
        let data = self.bytes(len);
        self.file()
            .write_through(&self.canonical, offset, &data)
            .unwrap();
        self.place(offset, &data);
    }

    pub fn truncate(&mut self, size: u64) {
        let exclusive = self.file().exclusive();
        match exclusive.truncate(size, Timestamp(7)) {
            Err(StoreError::Clean) => self.canonical.set_len(size).unwrap(),
            other => other.unwrap(),
        }
        drop(exclusive);
        self.model.resize(size as usize, 0);
    }

    pub fn zero(&mut self, offset: u64, len: u64, grow: bool) {
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

    /// The subfile that units currently go to; makes one if there is none.
    pub fn subfile(&self) -> Arc<Subfile> {
        if let Some(known) = self.file().subfiles().pop() {
            return known;
        }
        let no = self.store().new_subfile_no();
        let row = SubfileRow {
            no,
            ost: 0,
            ost_name: "here".into(),
            name: format!("{}{no}", self.store().subfile_run()),
            uid: 1,
        };
        let path = self.dir.path().join("subfiles").join(&row.name);
        let file = RealDisk.create(&path).unwrap();
        let subfile = Arc::new(Subfile::made(row, file));
        self.file().add_subfile(subfile.clone()).unwrap();
        subfile
    }

    /// Copies up to `max` stripes to a subfile, as the flusher does. The caller has yet to record
    /// what this returns.
    pub fn copy_to_subfile(&self, max: usize) -> Vec<Subfiled> {
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
                    skip: 0,
                });
            }
        }
        done
    }

    /// Removes the subfiles that may be removed, and with `orphans` all that only a killed daemon
    /// knew.
    pub fn remove_retired(&self, orphans: bool) {
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

    pub fn subfiles_there(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("subfiles"))
            .unwrap()
            .count()
    }

    /// Drains up to `max` stripes, as the flusher does.
    pub fn drain(&mut self, max: usize) {
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

    pub fn drain_all(&mut self) {
        while !self.file().finish(&self.canonical, true).unwrap() {
            self.drain(usize::MAX);
        }
        assert!(self.file().is_clean());
        let mut bytes = vec![0; self.canonical.size().unwrap() as usize];
        self.canonical.read_at(&mut bytes, 0).unwrap();
        assert!(bytes == self.model, "canonical file differs from the model");
        assert_eq!(self.store().totals().undrained, 0);
    }

    /// Simulates a crash of the daemon: memory is gone, files stay.
    pub fn crash(&mut self) {
        self.file = None;
        self.store = None;
        self.store = Some(open(self.dir.path()));
        self.file = Some(self.store().file(ID));
    }

    pub fn read(&self, range: ByteRange) -> Vec<u8> {
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

    pub fn check(&self, range: ByteRange, what: &str) {
        let end = (range.end as usize).min(self.model.len());
        let start = (range.start as usize).min(end);
        let read = self.read(range);
        assert!(
            read == self.model[start..end],
            "{what}: read {range} differs"
        );
        self.check_parts(range, &read, what);
    }

    /// A plan that is made in parts reads the same.
    fn check_parts(&self, range: ByteRange, whole: &[u8], what: &str) {
        let mut at = range.start;
        let mut read = Vec::new();
        loop {
            let plan = match self.file().plan_upto(ByteRange::new(at, range.end), 3) {
                Err(StoreError::Clean) => return,
                plan => plan.unwrap(),
            };
            let mut part = vec![0xee; plan.range.len() as usize];
            let canonical = Some(&self.canonical as &dyn DiskFile);
            self.file().read(&plan, &mut part, canonical).unwrap();
            read.append(&mut part);
            if plan.range.end >= range.end.min(plan.size) {
                break;
            }
            assert!(plan.range.end > at, "{what}: no way on from {at}");
            at = plan.range.end;
        }
        assert!(read == whole, "{what}: {range} in parts differs");
    }
}
