//! Operations without a mount: with a real directory, a real store, and a caller.

mod data;
pub mod locks;
mod names;
mod opening;
mod policies;
mod rights;
mod subfiles;

use super::*;
use crate::requests::executor::Executor;
use crate::types::{ROOT, SetAttr};
use layout_index::policy::Absorb;
use layout_index::{
    ByteRange, CanonicalFiles, DiskFile, Drained, File, FileSettings, RealDisk, SpaceOptions,
    StoreOptions,
};
use std::ffi::OsStr;
use std::io::IoSlice;
use std::path::PathBuf;

pub const RDWR: i32 = libc::O_RDWR;

pub struct World {
    pub fs: Arc<Overlay>,
    pub executor: Arc<Executor>,
    pub backing: PathBuf,
    _dir: Arc<tempfile::TempDir>,
}

pub fn me() -> Caller {
    Caller {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        pid: std::process::id(),
    }
}

pub fn world() -> World {
    world_with(true)
}

pub fn world_with(absorb: bool) -> World {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir(dir.path().join("backing")).unwrap();
    node_in(&dir, "test", absorb)
}

/// Several nodes with a store each, over one backing.
pub fn nodes<const N: usize>() -> [World; N] {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir(dir.path().join("backing")).unwrap();
    std::array::from_fn(|n| node_in(&dir, &format!("node{n}"), true))
}

fn node_in(dir: &Arc<tempfile::TempDir>, node: &str, absorb: bool) -> World {
    let backing = dir.path().join("backing");
    let options = StoreOptions {
        dir: dir.path().join(node),
        node: node.into(),
        backing: backing.clone(),
        index_memory: 16 << 20,
        space: SpaceOptions {
            capacity: Some(64 << 20),
            ..SpaceOptions::default()
        },
    };
    let (store, _) = Store::open(options, Arc::new(RealDisk)).unwrap();
    store.set_file_settings(FileSettings {
        absorb: if absorb { Absorb::On } else { Absorb::Off },
        ..FileSettings::default()
    });
    let below_mount = Backing::open(&backing).unwrap();
    let fs = Overlay::new(OverlayOptions {
        descriptors: Descriptors::prepare(&below_mount).unwrap(),
        backing: below_mount,
        store,
        policies: Arc::default(),
        ttl: Duration::from_secs(1),
        placement: None,
        others: None,
        shared_locks: true,
    });
    World {
        fs,
        executor: Arc::default(),
        backing,
        _dir: dir.clone(),
    }
}

pub fn os(name: &str) -> &OsStr {
    OsStr::new(name)
}

impl World {
    pub fn path(&self, name: &str) -> PathBuf {
        self.backing.join(name)
    }

    pub fn create(&self, name: &str) -> (u64, u64) {
        let flags = RDWR | libc::O_CREAT;
        let (entry, opened) = self
            .fs
            .create(&me(), ROOT, os(name), 0o644, 0o022, flags, None)
            .unwrap();
        (entry.attr.ino, opened.fh)
    }

    pub fn open(&self, node: u64, flags: i32) -> u64 {
        self.fs.open(&me(), node, flags, None).unwrap().fh
    }

    pub fn lookup(&self, name: &str) -> Result<Entry> {
        self.fs.lookup(&me(), ROOT, os(name))
    }

    pub fn write(&self, fh: u64, offset: u64, data: &[u8]) {
        let handle = self.fs.handle(fh).unwrap();
        if !self.fs.try_write(&handle, offset, data, false) {
            self.fs.write(&handle, offset, data, false, false).unwrap();
        }
    }

    pub fn read(&self, fh: u64, offset: u64, len: usize) -> Vec<u8> {
        let handle = self.fs.handle(fh).unwrap();
        let mut buf = vec![0xee; len];
        let n = match self.fs.try_read(&handle, offset, &mut buf).unwrap() {
            Some(n) => n,
            None => self.fs.read(&handle, offset, &mut buf).unwrap(),
        };
        buf.truncate(n);
        buf
    }

    pub fn size(&self, node: u64) -> u64 {
        self.fs.getattr(node).unwrap().size
    }

    pub fn truncate(&self, node: u64, fh: Option<u64>, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.setattr(&me(), node, fh, &set).unwrap();
    }

    pub fn canonical(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn store_file(&self, node: u64) -> Arc<File> {
        self.fs.store.file(self.fs.inode(node).unwrap().id)
    }

    /// Does what the flusher does, in its simplest form.
    pub fn drain(&self, file: &File) {
        let canonical = self.fs.open_canonical(file).unwrap().unwrap();
        drain_to(file, &*canonical);
        self.fs.file_clean(file.id());
    }
}

pub fn drain_to(file: &File, canonical: &dyn DiskFile) {
    const STRIPE: u64 = 1 << 20;
    loop {
        file.apply_trim(canonical).unwrap();
        let stripes = file.dirty_stripes(STRIPE, 0, 16).unwrap();
        for stripe in &stripes {
            let guard = file.lock_canonical(stripe.range);
            let snapshot = file.snapshot(&guard).unwrap();
            for piece in &snapshot.pieces {
                let plan = file.plan(piece.range).unwrap();
                let mut buf = vec![0; plan.range.len() as usize];
                file.read(&plan, &mut buf, Some(canonical)).unwrap();
                canonical
                    .write_at(&[IoSlice::new(&buf)], plan.range.start)
                    .unwrap();
            }
            canonical.sync().unwrap();
            let ByteRange { .. } = snapshot.range;
            file.drained(&[Drained {
                range: snapshot.range,
                upto: snapshot.upto,
            }])
            .unwrap();
        }
        if file.finish(canonical, true).unwrap() {
            return;
        }
    }
}
