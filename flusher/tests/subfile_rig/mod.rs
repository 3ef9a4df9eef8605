//! A store, canonical files that may hang, and OSTs that may fail or hang.

use crate::scripted_osts::{Script, Scripted};
use flusher::ost::{OstSettings, ProbeOptions, Provider, Targets};
use flusher::{Flusher, Osts, Policy, Settings, Subfiles};
use layout_index::sharing::shared_dir::{Owner, SharedDir};
use layout_index::{
    ByteRange, Canonical, CanonicalFiles, DiskFile, File, FileId, FileSettings, Intro, Peers,
    RealDisk, RealFile, SpaceOptions, Store, StoreOptions, Timestamp,
};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub const ID: FileId = FileId { ino: 7, birth: 1 };
pub const OTHER: FileId = FileId { ino: 8, birth: 1 };
pub const STRIPE: u64 = 64 << 10;

/// How an OST behaves when a file is to be made on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Well,
    Fails(i32),
    Hangs,
}

/// Canonical files that behave normally, or hang when they are opened.
struct Below {
    dir: PathBuf,
    closed: Arc<(Mutex<bool>, Condvar)>,
}

impl CanonicalFiles for Below {
    fn open_canonical(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        let closed = self.closed.0.lock().unwrap();
        drop(self.closed.1.wait_while(closed, |c| *c).unwrap());
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path_of(&self.dir, file.id()))?;
        Ok(Some(Arc::new(RealFile(file))))
    }

    fn stat_canonical(&self, file: &File) -> io::Result<Canonical> {
        let size = std::fs::metadata(path_of(&self.dir, file.id()))?.len();
        let uid = file.hint().uid;
        Ok(Canonical { size, uid })
    }

    fn file_clean(&self, _: FileId) {}
}

pub fn path_of(dir: &Path, id: FileId) -> PathBuf {
    dir.join(format!("file-{}", id.ino))
}

pub struct Bench {
    pub dir: tempfile::TempDir,
    pub store: Arc<Store>,
    pub provider: Arc<Scripted>,
    pub canonicals_closed: Arc<(Mutex<bool>, Condvar)>,
}

impl Bench {
    pub fn new(osts: usize) -> Bench {
        Bench::with_capacity(osts, 256 << 20)
    }

    /// The same directories as a daemon that starts later sees them: its canonical files answer.
    pub fn over(other: &Bench) -> Bench {
        let root = other.dir.path();
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(other.backing(), dir.path().join("backing")).unwrap();
        let paths = other.provider.osts().unwrap();
        Bench {
            store: open_store(dir.path(), "unused"),
            provider: Scripted::new(
                paths.iter().map(|o| root.join(&o.name)).collect(),
                Script::default(),
            ),
            canonicals_closed: Arc::default(),
            dir,
        }
    }

    pub fn with_capacity(osts: usize, capacity: u64) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("backing")).unwrap();
        let paths: Vec<PathBuf> = (0..osts)
            .map(|n| dir.path().join(format!("ost{n}")))
            .collect();
        for path in &paths {
            std::fs::create_dir(path).unwrap();
        }
        Bench {
            store: open_store_of(dir.path(), &dir.path().join("backing"), "n0", capacity),
            provider: Scripted::new(paths, Script::default()),
            canonicals_closed: Arc::default(),
            dir,
        }
    }

    pub fn set_mood(&self, ost: u32, mood: Mood) {
        self.provider.set(|script| {
            script.hang.remove(&ost);
            script.fail.remove(&ost);
            match mood {
                Mood::Well => {}
                Mood::Fails(errno) => drop(script.fail.insert(ost, errno)),
                Mood::Hangs => drop(script.hang.insert(ost)),
            }
        });
    }

    pub fn backing(&self) -> PathBuf {
        self.dir.path().join("backing")
    }

    pub fn targets(&self) -> Arc<Targets> {
        let settings = OstSettings {
            probing: false,
            probe: ProbeOptions {
                size: 1 << 20,
                deadline: Duration::from_secs(5),
            },
            deadline: Duration::from_secs(3),
            retry_after: Duration::from_millis(200),
            ..OstSettings::default()
        };
        Targets::start(self.provider.clone(), settings)
    }

    pub fn flusher(&self, subfiles: Subfiles) -> (Arc<Flusher>, Arc<Targets>) {
        self.flusher_of(&self.store, subfiles)
    }

    pub fn flusher_of(
        &self,
        store: &Arc<Store>,
        subfiles: Subfiles,
    ) -> (Arc<Flusher>, Arc<Targets>) {
        self.start(store, subfiles, None)
    }

    /// Makes the flusher of one of several nodes.
    pub fn flusher_among(&self, store: &Arc<Store>, subfiles: Subfiles) -> Arc<Flusher> {
        let backing = std::fs::File::open(self.backing()).unwrap();
        let me = Owner {
            id: store.id(),
            run: store.run(),
        };
        let lease = Duration::from_secs(30);
        let shared_dir = SharedDir::join(backing.into(), me, store.node(), lease).unwrap();
        let peers = Peers::new(store, shared_dir, layout_index::sleep);
        assert!(peers.resume().unwrap().is_empty());
        self.start(store, subfiles, Some(peers)).0
    }

    fn start(
        &self,
        store: &Arc<Store>,
        subfiles: Subfiles,
        peers: Option<Arc<Peers>>,
    ) -> (Arc<Flusher>, Arc<Targets>) {
        let below = Below {
            dir: self.backing(),
            closed: self.canonicals_closed.clone(),
        };
        store.set_file_settings(FileSettings {
            drain: Policy::Never,
            subfiles,
            visibility_timeout: Duration::from_secs(10),
            ..FileSettings::default()
        });
        let settings = Settings {
            stripe: STRIPE,
            patience: Duration::from_secs(3),
            retry_min: Duration::from_millis(5),
            retry_max: Duration::from_millis(50),
            sync_every: 4 * STRIPE,
            batch: Duration::from_millis(2),
            ..Settings::default()
        };
        let targets = self.targets();
        let osts = Osts {
            targets: targets.clone(),
            peers,
        };
        let flusher = Flusher::start(store.clone(), Arc::new(below), settings, Some(osts)).unwrap();
        (flusher, targets)
    }

    pub fn file(&self, id: FileId) -> Arc<File> {
        std::fs::write(path_of(&self.backing(), id), b"").unwrap();
        let file = self.store.file(id);
        begin(&file, id);
        file
    }

    pub fn below(&self, id: FileId) -> Vec<u8> {
        std::fs::read(path_of(&self.backing(), id)).unwrap()
    }

    /// Lists the files on the OSTs, and their owners.
    pub fn subfiles(&self) -> Vec<(usize, PathBuf, u32)> {
        let mut found = Vec::new();
        for n in 0..self.provider.osts().unwrap().len() {
            let place = self.dir.path().join(format!("ost{n}/.forebay/subfiles"));
            for entry in std::fs::read_dir(place).into_iter().flatten() {
                let path = entry.unwrap().path();
                let uid = path.metadata().map_or(0, |m| m.uid());
                found.push((n, path, uid));
            }
        }
        found
    }

    pub fn close_canonicals(&self, closed: bool) {
        *self.canonicals_closed.0.lock().unwrap() = closed;
        self.canonicals_closed.1.notify_all();
    }
}

pub fn begin(file: &File, id: FileId) {
    let intro = Intro {
        size: 0,
        mtime: Timestamp::now(),
        uid: 1234,
        gid: 1235,
        handle: Vec::new(),
        path: format!("file-{}", id.ino).into_bytes(),
    };
    file.exclusive().begin(intro).unwrap();
}

pub fn open_store(dir: &Path, node: &str) -> Arc<Store> {
    open_store_for(dir, &dir.join("backing"), node)
}

pub fn open_store_for(dir: &Path, backing: &Path, node: &str) -> Arc<Store> {
    open_store_of(dir, backing, node, 256 << 20)
}

pub fn open_store_of(dir: &Path, backing: &Path, node: &str, capacity: u64) -> Arc<Store> {
    let options = StoreOptions {
        dir: dir.join(format!("store-{node}")),
        node: node.into(),
        backing: backing.into(),
        index_memory: 16 << 20,
        space: SpaceOptions {
            capacity: Some(capacity),
            ..SpaceOptions::default()
        },
    };
    let (store, report) = Store::open(options, Arc::new(RealDisk)).unwrap();
    assert_eq!(report.damaged, Vec::<String>::new());
    store.start_maintenance().unwrap();
    store
}

pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !check() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

pub fn put(file: &File, model: &mut Vec<u8>, offset: usize, data: &[u8]) {
    file.write(1, offset as u64, data).unwrap();
    if model.len() < offset + data.len() {
        model.resize(offset + data.len(), 0);
    }
    model[offset..offset + data.len()].copy_from_slice(data);
}

pub fn strided(file: &File) -> Vec<u8> {
    let mut model = Vec::new();
    for i in 0..200 {
        put(file, &mut model, i * 4700, &vec![i as u8 + 1; 3000]);
    }
    put(file, &mut model, 2 << 20, &vec![77; 1 << 20]);
    model
}

/// Reads through the store; the canonical file has nothing yet.
pub fn read(file: &File, len: usize) -> Vec<u8> {
    let empty = RealFile(tempfile::tempfile().unwrap());
    let plan = file.plan(ByteRange::new(0, len as u64)).unwrap();
    let mut buf = vec![0xee; plan.range.len() as usize];
    file.read(&plan, &mut buf, Some(&empty)).unwrap();
    buf
}
