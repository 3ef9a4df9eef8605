//! The drain over a real store and real files, with failures at critical points.

use flusher::{Flusher, Policy, Selection, Settings, Verdict};
use layout_index::{
    ByteRange, CanonicalFiles, DiskFile, File, FileId, FileSettings, Intro, RealDisk, RealFile,
    SpaceOptions, Store, StoreOptions, Timestamp,
};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ID: FileId = FileId { ino: 7, birth: 1 };
const STRIPE: u64 = 64 << 10;

/// The faults of the canonical side, and the calls that it has counted.
#[derive(Debug, Default)]
struct Faults {
    writes: AtomicU32,
    syncs: AtomicU32,
    gone: AtomicU32,
    /// Opens that hang for longer than the drain is patient, and then panic.
    panics: AtomicU32,
    /// Undrained bytes of the store when the canonical file was synced.
    at_sync: Mutex<Vec<u64>>,
    finished: AtomicU64,
}

impl Faults {
    fn take(counter: &AtomicU32) -> bool {
        let less = |n: u32| n.checked_sub(1);
        counter
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            .is_ok()
    }
}

const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Canonical {
    file: RealFile,
    faults: Arc<Faults>,
    store: Arc<Store>,
}

impl DiskFile for Canonical {
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        if Faults::take(&self.faults.writes) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.file.write_at(bufs, offset)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.faults
            .at_sync
            .lock()
            .push(self.store.totals().undrained);
        if Faults::take(&self.faults.syncs) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.file.sync()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(mode, offset, len)
    }
    fn set_mtime(&self, mtime: u64) -> io::Result<()> {
        self.file.set_mtime(mtime)
    }
}

struct Below {
    dir: PathBuf,
    faults: Arc<Faults>,
    store: Arc<Store>,
}

impl CanonicalFiles for Below {
    fn open_canonical(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        if Faults::take(&self.faults.panics) {
            std::thread::sleep(3 * PATIENCE);
            panic!("a defect that a test made");
        }
        if Faults::take(&self.faults.gone) {
            return Ok(None);
        }
        let path = canonical_path(&self.dir, file.id());
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)?;
        Ok(Some(Arc::new(Canonical {
            file: RealFile(file),
            faults: self.faults.clone(),
            store: self.store.clone(),
        })))
    }
    fn file_clean(&self, _: FileId) {
        self.faults.finished.fetch_add(1, Ordering::SeqCst);
    }
}

fn canonical_path(dir: &Path, id: FileId) -> PathBuf {
    dir.join(format!("file-{}", id.ino))
}

struct Bench {
    dir: tempfile::TempDir,
    store: Arc<Store>,
    faults: Arc<Faults>,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("backing")).unwrap();
        let store = open_store(dir.path());
        Bench {
            dir,
            store,
            faults: Arc::default(),
        }
    }

    fn backing(&self) -> PathBuf {
        self.dir.path().join("backing")
    }

    fn flusher(&self, policy: Policy) -> Arc<Flusher> {
        self.flusher_with_patience(policy, Settings::default().patience)
    }

    fn flusher_with_patience(&self, policy: Policy, patience: Duration) -> Arc<Flusher> {
        let below = Below {
            dir: self.backing(),
            faults: self.faults.clone(),
            store: self.store.clone(),
        };
        self.store.set_file_settings(FileSettings {
            drain: policy,
            ..FileSettings::default()
        });
        let settings = Settings {
            stripe: STRIPE,
            concurrency: 3,
            retry_min: Duration::from_millis(5),
            retry_max: Duration::from_millis(50),
            sync_every: 4 * STRIPE,
            verify: true,
            patience,
            batch: Duration::from_millis(2),
            linger: Duration::from_millis(20),
            ..Settings::default()
        };
        Flusher::start(self.store.clone(), Arc::new(below), settings, None).unwrap()
    }

    /// Begins a dirty period of a file whose canonical file has `content`.
    fn file(&self, id: FileId, content: &[u8]) -> Arc<File> {
        std::fs::write(canonical_path(&self.backing(), id), content).unwrap();
        let file = self.store.file(id);
        begin(&file, id, content.len() as u64);
        file
    }

    fn below(&self, id: FileId) -> Vec<u8> {
        std::fs::read(canonical_path(&self.backing(), id)).unwrap()
    }
}

fn begin(file: &File, id: FileId, size: u64) {
    let intro = Intro {
        size,
        mtime: Timestamp::now(),
        uid: 0,
        gid: 0,
        handle: Vec::new(),
        path: format!("file-{}", id.ino).into_bytes(),
    };
    file.exclusive().begin(intro).unwrap();
}

fn open_store(dir: &Path) -> Arc<Store> {
    let options = StoreOptions {
        dir: dir.join("store"),
        node: "n0".into(),
        backing: dir.join("backing"),
        index_memory: 16 << 20,
        space: SpaceOptions {
            capacity: Some(256 << 20),
            ..SpaceOptions::default()
        },
    };
    let (store, _) = Store::open(options, Arc::new(RealDisk)).unwrap();
    store.start_maintenance().unwrap();
    store
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = soon().unwrap();
    while !check() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn put(file: &File, model: &mut Vec<u8>, offset: usize, data: &[u8]) {
    file.write(1, offset as u64, data).unwrap();
    if model.len() < offset + data.len() {
        model.resize(offset + data.len(), 0);
    }
    model[offset..offset + data.len()].copy_from_slice(data);
}

#[test]
fn strided_writes_become_the_canonical_file() {
    let bench = Bench::new();
    let mut model = vec![9; 100_000];
    let file = bench.file(ID, &model);
    let flusher = bench.flusher(Policy::Never);
    for i in 0..200 {
        let data = vec![i as u8 + 1; 3000];
        put(&file, &mut model, i * 4700, &data);
    }
    let handle = flusher.drain(Selection::Files(vec![ID]));
    assert_eq!(handle.wait(soon()), Verdict::Drained);
    assert!(bench.below(ID) == model);
    assert!(file.is_clean());
    let progress = handle.progress();
    assert_eq!((progress.files, progress.done), (0, progress.total));
    assert_eq!(bench.faults.finished.load(Ordering::SeqCst), 1);
}

#[test]
fn random_changes_while_draining_end_as_the_model_says() {
    for (seed, policy) in [
        (1, Policy::Immediate),
        (2, Policy::Immediate),
        (3, Policy::OnClose),
    ] {
        let mut rng = StdRng::seed_from_u64(seed);
        let bench = Bench::new();
        let mut model = Vec::new();
        let file = bench.file(ID, &model);
        let flusher = bench.flusher(policy);
        file.add_writer();
        for step in 0..1500 {
            if file.is_clean() {
                begin(&file, ID, model.len() as u64);
            }
            let at = rng.random_range(0..600_000);
            match rng.random_range(0..40) {
                0 => {
                    let done = file.exclusive().truncate(at as u64, Timestamp::now());
                    if done.is_ok() {
                        model.resize(at, 0);
                    }
                }
                1 if at < model.len() => {
                    let end = (at + 50_000).min(model.len());
                    let range = ByteRange::new(at as u64, end as u64);
                    if file
                        .exclusive()
                        .zero(range, false, Timestamp::now())
                        .is_ok()
                    {
                        model[at..end].fill(0);
                    }
                }
                _ => {
                    let len = rng.random_range(1..30_000);
                    let data = vec![rng.random(); len];
                    while file.write(step, at as u64, &data).is_err() {
                        begin(&file, ID, model.len() as u64);
                    }
                    if model.len() < at + len {
                        model.resize(at + len, 0);
                    }
                    model[at..at + len].copy_from_slice(&data);
                }
            }
            if step % 300 == 0 && policy == Policy::Immediate {
                std::thread::sleep(Duration::from_millis(30));
            }
        }
        file.remove_writer();
        eventually("the drain after the last close", || file.is_clean());
        assert_eq!(flusher.shutdown(true), Verdict::Drained);
        let below = bench.below(ID);
        assert_eq!(below.len(), model.len(), "seed {seed}");
        let differs = below.iter().zip(&model).position(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
    }
}

#[test]
fn policies_wait_for_their_moment() {
    let bench = Bench::new();
    let file = bench.file(ID, b"");
    // A writer is added before the drain sees the file: a file that no process has open is drained
    // at once.
    file.add_writer();
    let flusher = bench.flusher(Policy::OnClose);
    file.write(1, 0, &[1; 5000]).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    assert!(!file.is_clean(), "drained while open");
    file.remove_writer();
    eventually("the drain on close", || file.is_clean());

    flusher.set_policy(Policy::Never);
    begin(&file, ID, 5000);
    file.write(1, 0, &[2; 5000]).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    assert!(!file.is_clean(), "drained without being asked");
    flusher.set_policy(Policy::Immediate);
    eventually("the drain after the policy changed", || file.is_clean());
    assert_eq!(bench.below(ID), [2; 5000]);
}

#[test]
fn a_failing_canonical_file_sticks_is_retried_and_heals() {
    let bench = Bench::new();
    let file = bench.file(ID, b"");
    let flusher = bench.flusher(Policy::Never);
    file.write(1, 0, &[5; 300_000]).unwrap();
    bench.faults.writes.store(1_000_000, Ordering::SeqCst);
    let handle = flusher.drain(Selection::All);
    assert_eq!(handle.wait(soon()), Verdict::Failed);
    let error = file.error().expect("the error sticks");
    assert_eq!(error.errno, libc::ENOSPC);
    for part in ["file-7", "writing", "stays in the store"] {
        assert!(error.message.contains(part), "{}", error.message);
    }
    assert_eq!(handle.progress().errors.len(), 1);
    bench.faults.writes.store(0, Ordering::SeqCst);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert_eq!(file.error(), None);
    assert_eq!(bench.below(ID), [5; 300_000]);
}

#[test]
fn nothing_is_forgotten_before_a_sync_that_worked() {
    let bench = Bench::new();
    let file = bench.file(ID, b"");
    let flusher = bench.flusher(Policy::Never);
    file.write(1, 0, &[5; STRIPE as usize * 3]).unwrap();
    bench.faults.syncs.store(2, Ordering::SeqCst);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    let seen = bench.faults.at_sync.lock().clone();
    assert!(seen.len() >= 3, "{seen:?}");
    assert_eq!(seen[..3], [STRIPE * 3; 3], "freed before it was synced");
    assert_eq!(bench.below(ID), [5; STRIPE as usize * 3]);
}

#[test]
fn a_file_that_is_gone_takes_its_data_along() {
    let bench = Bench::new();
    let file = bench.file(ID, b"");
    let flusher = bench.flusher(Policy::Never);
    file.write(1, 0, &[5; 1000]).unwrap();
    bench.faults.gone.store(1, Ordering::SeqCst);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert!(file.is_clean());
    assert!(bench.below(ID).is_empty());
}

#[test]
fn unlinked_files_are_left_alone() {
    let bench = Bench::new();
    let file = bench.file(ID, b"");
    let flusher = bench.flusher(Policy::Immediate);
    file.add_writer();
    file.mark_unlinked().unwrap();
    file.write(1, 0, &[5; 1000]).unwrap();
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert!(!file.is_clean());
    assert!(bench.below(ID).is_empty());
}

#[test]
fn damaged_bytes_stay_and_the_rest_goes() {
    let bench = Bench::new();
    let file = bench.file(ID, &[1; STRIPE as usize * 4]);
    let flusher = bench.flusher(Policy::Never);
    for stripe in 0..4_u64 {
        let data = vec![0xa0 + stripe as u8; STRIPE as usize];
        file.write(stripe, stripe * STRIPE, &data).unwrap();
    }
    file.sync().unwrap();
    damage(&bench.dir.path().join("store/log"), &[0xa2; 4096]);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Failed);
    let error = file.error().expect("the damage sticks");
    assert!(error.message.contains("checksum"), "{}", error.message);
    let below = bench.below(ID);
    for (stripe, want) in [(0, 0xa0), (1, 0xa1), (2, 1), (3, 0xa3)] {
        let at = stripe * STRIPE as usize;
        let part = &below[at..at + STRIPE as usize];
        assert!(
            part.iter().all(|b| *b == want),
            "stripe {stripe} is {:x}",
            part[0]
        );
    }
    assert!(!file.is_clean());
}

/// Flips a byte in the first place where `pattern` is found in the log.
fn damage(log: &Path, pattern: &[u8]) {
    use std::os::unix::fs::FileExt;
    for entry in std::fs::read_dir(log).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(pattern.len()).position(|w| w == pattern) {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[pattern[0] ^ 0xff], at as u64 + 100)
                .unwrap();
            return;
        }
    }
    panic!("the pattern is not in the log");
}

#[test]
fn many_files_at_once_and_a_stop_half_way_lose_nothing() {
    let bench = Bench::new();
    let ids: Vec<FileId> = (10..40).map(|ino| FileId { ino, birth: 1 }).collect();
    for id in &ids {
        let file = bench.file(*id, b"");
        for part in 0..20_u64 {
            let data = vec![id.ino as u8; 10_000];
            file.write(id.ino, part * 10_000, &data).unwrap();
        }
    }
    let flusher = bench.flusher(Policy::Never);
    let handle = flusher.drain(Selection::All);
    let stopped = handle.wait_with(soon(), |progress| progress.done * 3 < progress.total);
    flusher.shutdown(false);
    assert!(matches!(stopped, Verdict::StillDirty | Verdict::Drained));
    assert_eq!(
        handle.wait(soon()),
        stopped,
        "a stopped drain does not go on"
    );

    let flusher = bench.flusher(Policy::Immediate);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    for id in &ids {
        assert!(
            bench.below(*id) == [id.ino as u8; 200_000],
            "file {}",
            id.ino
        );
    }
}

#[test]
fn the_rate_limit_holds() {
    let bench = Bench::new();
    let file = bench.file(ID, b"");
    let flusher = bench.flusher(Policy::Never);
    flusher.set_rate_limit(Some(2 << 20));
    file.write(1, 0, &vec![5; 1 << 20]).unwrap();
    let began = Instant::now();
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    let took = began.elapsed();
    // Half a second's worth of bytes. Nothing is saved up, because the limit was set just now.
    assert!(took >= Duration::from_millis(400), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_deadline_is_kept_and_the_request_stands() {
    let bench = Bench::new();
    let file = bench.file(ID, b"");
    let flusher = bench.flusher(Policy::Never);
    flusher.set_rate_limit(Some(256 << 10));
    file.write(1, 0, &vec![5; 1 << 20]).unwrap();
    let handle = flusher.drain(Selection::All);
    let deadline = Instant::now() + Duration::from_millis(100);
    assert_eq!(handle.wait(Some(deadline)), Verdict::StillDirty);
    drop(handle);
    flusher.set_rate_limit(None);
    eventually("the drain that was asked for", || file.is_clean());
}

/// A call that was set aside and then panics has ended: the file is drained again.
#[test]
fn a_call_that_hangs_and_then_panics_does_not_keep_the_file_busy() {
    let bench = Bench::new();
    let file = bench.file(ID, b"");
    let mut model = Vec::new();
    put(&file, &mut model, 0, &[7; 5000]);
    bench.faults.panics.store(1, Ordering::SeqCst);
    let flusher = bench.flusher_with_patience(Policy::Never, PATIENCE);
    let handle = flusher.drain(Selection::All);
    eventually("the drain says that it hangs", || {
        flusher.drain_error_of(&file).is_some()
    });
    assert_eq!(handle.wait(soon()), Verdict::Drained);
    assert!(bench.below(ID) == model);
}
