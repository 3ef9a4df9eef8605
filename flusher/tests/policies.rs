//! Files with policies of their own: the drain asks for policies that it does not know, and a file
//! system that does not answer for one file does not hold up others.

use flusher::{Flusher, Selection, Settings, Verdict};
use layout_index::policy::Drain;
use layout_index::{
    CanonicalFiles, DiskFile, File, FileId, FilePolicy, Intro, RealDisk, RealFile, SpaceOptions,
    Store, StoreOptions, Timestamp,
};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Files whose policy is `never`, and files whose policy cannot be read.
const KEPT: u64 = 1;
const KEPT_TOO: u64 = 2;
const BROKEN: u64 = 3;
const HANGS: u64 = 4;

struct Below {
    dir: PathBuf,
    asked: AtomicU32,
    /// Questions about [`HANGS`] are not answered before this is true.
    answers: Mutex<bool>,
    changed: Condvar,
}

impl CanonicalFiles for Below {
    fn open_canonical(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        let options = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path(&self.dir, file.id()))?;
        Ok(Some(Arc::new(RealFile(options))))
    }

    fn file_clean(&self, _: FileId) {}

    fn has_policies(&self) -> bool {
        true
    }

    fn policy_of(&self, file: &File) -> io::Result<FilePolicy> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match file.id().ino {
            KEPT | KEPT_TOO => Ok(FilePolicy {
                drain: Some(Drain::Never),
                ..FilePolicy::default()
            }),
            BROKEN => Err(io::Error::from_raw_os_error(libc::EIO)),
            HANGS => {
                let mut answers = self.answers.lock();
                while !*answers {
                    self.changed.wait(&mut answers);
                }
                Ok(FilePolicy {
                    drain: Some(Drain::Never),
                    ..FilePolicy::default()
                })
            }
            _ => Ok(FilePolicy::default()),
        }
    }
}

fn path(dir: &Path, id: FileId) -> PathBuf {
    dir.join(id.ino.to_string())
}

struct Bench {
    store: Arc<Store>,
    below: Arc<Below>,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            dir: dir.path().join("store"),
            node: "n0".into(),
            backing: dir.path().into(),
            index_memory: 16 << 20,
            space: SpaceOptions {
                capacity: Some(64 << 20),
                ..SpaceOptions::default()
            },
        };
        let (store, _) = Store::open(options, Arc::new(RealDisk)).unwrap();
        store.start_maintenance().unwrap();
        let below = Below {
            dir: dir.path().into(),
            asked: AtomicU32::new(0),
            answers: Mutex::new(false),
            changed: Condvar::new(),
        };
        Bench {
            store,
            below: Arc::new(below),
            dir,
        }
    }

    /// Makes a file with undrained data that no process has open.
    fn file(&self, ino: u64) -> Arc<File> {
        let id = FileId { ino, birth: 1 };
        std::fs::write(path(self.dir.path(), id), "").unwrap();
        let file = self.store.file(id);
        let intro = Intro {
            mtime: Timestamp::now(),
            path: ino.to_string().into_bytes(),
            ..Intro::default()
        };
        file.exclusive().begin(intro).unwrap();
        file.write(1, 0, &[7; 10_000]).unwrap();
        file
    }

    fn flusher(&self, patience: Duration) -> Arc<Flusher> {
        let settings = Settings {
            concurrency: 1,
            batch: Duration::from_millis(2),
            linger: Duration::from_millis(20),
            patience,
            ..Settings::default()
        };
        Flusher::start(self.store.clone(), self.below.clone(), settings, None).unwrap()
    }

    fn answer(&self) {
        *self.below.answers.lock() = true;
        self.below.changed.notify_all();
    }
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !check() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// S10.5: as after a start, when no file has been opened. Each policy is asked for once.
#[test]
fn unknown_policies_are_asked_for_before_anything_is_drained() {
    let bench = Bench::new();
    let (kept, too) = (bench.file(KEPT), bench.file(KEPT_TOO));
    let (broken, plain) = (bench.file(BROKEN), bench.file(10));
    let flusher = bench.flusher(Duration::from_secs(10));
    eventually("those without a policy of their own drain", || {
        plain.is_clean() && broken.is_clean()
    });
    eventually("all were asked for", || {
        kept.has_policy() && too.has_policy()
    });
    assert_eq!(kept.policy().drain, Some(Drain::Never));
    assert!(!kept.is_clean() && !too.is_clean());

    // A policy that is set later counts at once, and a request overrides the policy.
    kept.set_policy(FilePolicy::default());
    eventually("it drains when it may", || kept.is_clean());
    assert!(!too.is_clean());
    let handle = flusher.drain(Selection::Files(vec![too.id()]));
    let soon = Some(Instant::now() + Duration::from_secs(20));
    assert_eq!(handle.wait(soon), Verdict::Drained);
    assert_eq!(bench.below.asked.load(Ordering::SeqCst), 4);
    assert_eq!(flusher.shutdown(true), Verdict::Drained);
}

/// The only job slot becomes free again, and the file is drained as the mount's settings say.
#[test]
fn a_policy_that_is_not_to_be_had_in_time() {
    let bench = Bench::new();
    let hangs = bench.file(HANGS);
    let flusher = bench.flusher(Duration::from_millis(50));
    eventually("it drains without", || hangs.is_clean());
    let other = bench.file(10);
    eventually("so does the next one", || other.is_clean());
    bench.answer();
    assert_eq!(flusher.shutdown(true), Verdict::Drained);
    assert!(hangs.policy().is_empty(), "a late answer changes nothing");
}
