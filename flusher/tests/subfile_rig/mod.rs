//! A store, canonical files that may hang, and OSTs that may fail or hang.

use flusher::ost::{Directories, Fleet, Ost, OstError, OstSettings, ProbeOptions, Provider};
use flusher::{Canonicals, Flusher, Osts, Policy, Settings, Subfiles};
use layout_index::commons::{Commons, Owner};
use layout_index::{
    ByteRange, Canonical, DiskFile, File, FileId, Intro, Peers, RealDisk, RealFile, SpaceOptions,
    Store, StoreOptions, Timestamp,
};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub const ID: FileId = FileId { ino: 7, birth: 1 };
pub const OTHER: FileId = FileId { ino: 8, birth: 1 };
pub const STRIPE: u64 = 64 << 10;

/// What an OST does when a file is to be made on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Well,
    Fails(i32),
    Hangs,
}

#[derive(Debug)]
pub struct Moody {
    below: Directories,
    moods: Mutex<Vec<Mood>>,
    changed: Condvar,
}

impl Moody {
    pub fn set(&self, ost: usize, mood: Mood) {
        self.moods.lock().unwrap()[ost] = mood;
        self.changed.notify_all();
    }
}

impl Provider for Moody {
    fn kind(&self) -> &'static str {
        "moody"
    }

    fn osts(&self) -> Result<Vec<Ost>, OstError> {
        self.below.osts()
    }

    fn create(&self, ost: &Ost, name: &str, direct: bool) -> Result<std::fs::File, OstError> {
        let moods = self.moods.lock().unwrap();
        let hangs = |moods: &mut Vec<Mood>| moods[ost.index as usize] == Mood::Hangs;
        let moods = self.changed.wait_while(moods, hangs).unwrap();
        let mood = moods[ost.index as usize];
        drop(moods);
        match mood {
            Mood::Fails(errno) => {
                let source = io::Error::from_raw_os_error(errno);
                Err(OstError::new(ost, "making a file", source))
            }
            _ => self.below.create(ost, name, direct),
        }
    }

    fn open(&self, ost: &Ost, name: &str) -> Result<std::fs::File, OstError> {
        self.below.open(ost, name)
    }

    fn modified(&self, ost: &Ost, name: &str) -> Result<std::time::SystemTime, OstError> {
        self.below.modified(ost, name)
    }

    fn list(&self, ost: &Ost) -> Result<Vec<String>, OstError> {
        self.below.list(ost)
    }

    fn remove(&self, ost: &Ost, name: &str) -> Result<(), OstError> {
        self.below.remove(ost, name)
    }
}

/// Canonical files as they are, or ones that hang when they are opened.
struct Below {
    dir: PathBuf,
    closed: Arc<(Mutex<bool>, Condvar)>,
}

impl Canonicals for Below {
    fn open(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        let closed = self.closed.0.lock().unwrap();
        drop(self.closed.1.wait_while(closed, |c| *c).unwrap());
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path_of(&self.dir, file.id()))?;
        Ok(Some(Arc::new(RealFile(file))))
    }

    fn look(&self, file: &File) -> io::Result<Canonical> {
        let size = std::fs::metadata(path_of(&self.dir, file.id()))?.len();
        let uid = file.hint().uid;
        Ok(Canonical { size, uid })
    }

    fn finished(&self, _: FileId) {}
}

pub fn path_of(dir: &Path, id: FileId) -> PathBuf {
    dir.join(format!("file-{}", id.ino))
}

pub struct Bench {
    pub dir: tempfile::TempDir,
    pub store: Arc<Store>,
    pub provider: Arc<Moody>,
    pub canonicals_closed: Arc<(Mutex<bool>, Condvar)>,
}

impl Bench {
    pub fn new(osts: usize) -> Bench {
        Bench::with_capacity(osts, 256 << 20)
    }

    /// The same places, as a daemon that starts later sees them: its canonical files answer.
    pub fn over(other: &Bench) -> Bench {
        let root = other.dir.path();
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(other.backing(), dir.path().join("backing")).unwrap();
        let paths = other.provider.osts().unwrap();
        Bench {
            store: open_store(dir.path(), "unused"),
            provider: Arc::new(Moody {
                below: Directories::new(paths.iter().map(|o| root.join(&o.name)).collect()),
                moods: Mutex::new(vec![Mood::Well; paths.len()]),
                changed: Condvar::new(),
            }),
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
            provider: Arc::new(Moody {
                below: Directories::new(paths),
                moods: Mutex::new(vec![Mood::Well; osts]),
                changed: Condvar::new(),
            }),
            canonicals_closed: Arc::default(),
            dir,
        }
    }

    pub fn backing(&self) -> PathBuf {
        self.dir.path().join("backing")
    }

    pub fn fleet(&self) -> Arc<Fleet> {
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
        Fleet::start(self.provider.clone(), settings)
    }

    pub fn flusher(&self, subfiles: Subfiles) -> (Flusher, Arc<Fleet>) {
        self.flusher_of(&self.store, subfiles)
    }

    pub fn flusher_of(&self, store: &Arc<Store>, subfiles: Subfiles) -> (Flusher, Arc<Fleet>) {
        self.start(store, subfiles, None)
    }

    /// One of several nodes.
    pub fn flusher_among(&self, store: &Arc<Store>, subfiles: Subfiles) -> Flusher {
        let backing = std::fs::File::open(self.backing()).unwrap();
        let me = Owner {
            id: store.id(),
            run: store.run(),
        };
        let lease = Duration::from_secs(30);
        let commons = Commons::join(backing.into(), me, store.node(), lease).unwrap();
        let peers = Peers::new(store, commons, Duration::from_secs(10));
        assert!(peers.resume().unwrap().is_empty());
        self.start(store, subfiles, Some(peers)).0
    }

    fn start(
        &self,
        store: &Arc<Store>,
        subfiles: Subfiles,
        peers: Option<Arc<Peers>>,
    ) -> (Flusher, Arc<Fleet>) {
        let below = Below {
            dir: self.backing(),
            closed: self.canonicals_closed.clone(),
        };
        let settings = Settings {
            policy: Policy::Never,
            subfiles,
            stripe: STRIPE,
            patience: Duration::from_secs(3),
            retry_min: Duration::from_millis(5),
            retry_max: Duration::from_millis(50),
            sync_every: 4 * STRIPE,
            batch: Duration::from_millis(2),
            ..Settings::default()
        };
        let fleet = self.fleet();
        let osts = Osts {
            fleet: fleet.clone(),
            peers,
        };
        let flusher = Flusher::start(store.clone(), Arc::new(below), settings, Some(osts)).unwrap();
        (flusher, fleet)
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

    /// Files on the OSTs, and their owners.
    pub fn subfiles(&self) -> Vec<(usize, PathBuf, u32)> {
        let mut found = Vec::new();
        for n in 0..self.provider.moods.lock().unwrap().len() {
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

/// Through the store; the canonical file has nothing yet.
pub fn read(file: &File, len: usize) -> Vec<u8> {
    let empty = RealFile(tempfile::tempfile().unwrap());
    let plan = file.plan(ByteRange::new(0, len as u64)).unwrap();
    let mut buf = vec![0xee; plan.range.len() as usize];
    file.read(&plan, &mut buf, Some(&empty)).unwrap();
    buf
}
