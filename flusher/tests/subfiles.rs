//! The way through subfiles, on OSTs that are directories, with OSTs that fail and hang.
//!
//! Promises S1 (a read returns the last completed write, whatever tier holds it), S4 (after drain
//! the canonical file is what the overlay showed), S6 (subfiles go only after the canonical file
//! is synced, log space only after the data is safe elsewhere), S9 (storage targets).

use flusher::ost::{Directories, Fleet, Ost, OstError, OstSettings, ProbeOptions, Provider};
use flusher::{Canonicals, Flusher, Osts, Policy, Selection, Settings, Subfiles, Verdict};
use layout_index::{
    ByteRange, DiskFile, File, FileId, Intro, RealDisk, RealFile, SpaceOptions, Store,
    StoreOptions, Timestamp,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const ID: FileId = FileId { ino: 7, birth: 1 };
const OTHER: FileId = FileId { ino: 8, birth: 1 };
const STRIPE: u64 = 64 << 10;

/// What an OST does when a file is to be made on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Well,
    Fails(i32),
    Hangs,
}

#[derive(Debug)]
struct Moody {
    below: Directories,
    moods: Mutex<Vec<Mood>>,
    changed: Condvar,
}

impl Moody {
    fn set(&self, ost: usize, mood: Mood) {
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

    fn finished(&self, _: FileId) {}
}

fn path_of(dir: &Path, id: FileId) -> PathBuf {
    dir.join(format!("file-{}", id.ino))
}

struct Bench {
    dir: tempfile::TempDir,
    store: Arc<Store>,
    provider: Arc<Moody>,
    canonicals_closed: Arc<(Mutex<bool>, Condvar)>,
}

impl Bench {
    fn new(osts: usize) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("backing")).unwrap();
        let paths: Vec<PathBuf> = (0..osts)
            .map(|n| dir.path().join(format!("ost{n}")))
            .collect();
        for path in &paths {
            std::fs::create_dir(path).unwrap();
        }
        Bench {
            store: open_store(dir.path(), "n0"),
            provider: Arc::new(Moody {
                below: Directories::new(paths),
                moods: Mutex::new(vec![Mood::Well; osts]),
                changed: Condvar::new(),
            }),
            canonicals_closed: Arc::default(),
            dir,
        }
    }

    fn backing(&self) -> PathBuf {
        self.dir.path().join("backing")
    }

    fn fleet(&self) -> Arc<Fleet> {
        let settings = OstSettings {
            probing: false,
            probe: ProbeOptions {
                size: 1 << 20,
                deadline: Duration::from_secs(5),
            },
            deadline: Duration::from_millis(300),
            retry_after: Duration::from_millis(200),
            ..OstSettings::default()
        };
        Fleet::start(self.provider.clone(), settings)
    }

    fn flusher(&self, subfiles: Subfiles) -> (Flusher, Arc<Fleet>) {
        self.flusher_of(&self.store, subfiles)
    }

    fn flusher_of(&self, store: &Arc<Store>, subfiles: Subfiles) -> (Flusher, Arc<Fleet>) {
        let below = Below {
            dir: self.backing(),
            closed: self.canonicals_closed.clone(),
        };
        let settings = Settings {
            policy: Policy::Never,
            subfiles,
            stripe: STRIPE,
            patience: Duration::from_millis(300),
            retry_min: Duration::from_millis(5),
            retry_max: Duration::from_millis(50),
            sync_every: 4 * STRIPE,
            batch: Duration::from_millis(2),
            ..Settings::default()
        };
        let fleet = self.fleet();
        let osts = Osts {
            fleet: fleet.clone(),
            backing: OwnedFd::from(std::fs::File::open(self.backing()).unwrap()),
        };
        let flusher = Flusher::start(store.clone(), Arc::new(below), settings, Some(osts)).unwrap();
        (flusher, fleet)
    }

    fn file(&self, id: FileId) -> Arc<File> {
        std::fs::write(path_of(&self.backing(), id), b"").unwrap();
        let file = self.store.file(id);
        begin(&file, id);
        file
    }

    fn below(&self, id: FileId) -> Vec<u8> {
        std::fs::read(path_of(&self.backing(), id)).unwrap()
    }

    /// Files on the OSTs, and their owners.
    fn subfiles(&self) -> Vec<(usize, PathBuf, u32)> {
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

    fn close_canonicals(&self, closed: bool) {
        *self.canonicals_closed.0.lock().unwrap() = closed;
        self.canonicals_closed.1.notify_all();
    }
}

fn begin(file: &File, id: FileId) {
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

fn open_store(dir: &Path, node: &str) -> Arc<Store> {
    open_store_for(dir, &dir.join("backing"), node)
}

fn open_store_for(dir: &Path, backing: &Path, node: &str) -> Arc<Store> {
    let options = StoreOptions {
        dir: dir.join(format!("store-{node}")),
        node: node.into(),
        backing: backing.into(),
        index_memory: 16 << 20,
        space: SpaceOptions {
            capacity: Some(256 << 20),
            ..SpaceOptions::default()
        },
    };
    let (store, report) = Store::open(options, Arc::new(RealDisk)).unwrap();
    assert_eq!(report.damaged, Vec::<String>::new());
    store.start_maintenance().unwrap();
    store
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !check() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn put(file: &File, model: &mut Vec<u8>, offset: usize, data: &[u8]) {
    file.write(1, offset as u64, data).unwrap();
    if model.len() < offset + data.len() {
        model.resize(offset + data.len(), 0);
    }
    model[offset..offset + data.len()].copy_from_slice(data);
}

fn strided(file: &File) -> Vec<u8> {
    let mut model = Vec::new();
    for i in 0..200 {
        put(file, &mut model, i * 4700, &vec![i as u8 + 1; 3000]);
    }
    put(file, &mut model, 2 << 20, &vec![77; 1 << 20]);
    model
}

/// Through the store; the canonical file has nothing yet.
fn read(file: &File, len: usize) -> Vec<u8> {
    let empty = RealFile(tempfile::tempfile().unwrap());
    let plan = file.plan(ByteRange::new(0, len as u64)).unwrap();
    let mut buf = vec![0xee; plan.range.len() as usize];
    file.read(&plan, &mut buf, Some(&empty)).unwrap();
    buf
}

/// S9.1, S9.3, S9.5: with the canonical file out of reach the data leaves the log all the same, reads
/// as before, belongs to its owner, and nobody else waits.
#[test]
fn data_is_in_subfiles_while_the_canonical_file_hangs() {
    let bench = Bench::new(3);
    let file = bench.file(ID);
    let model = strided(&file);
    bench.close_canonicals(true);
    let (flusher, _) = bench.flusher(Subfiles::Always);
    let drain = flusher.drain(Selection::All);
    eventually("the log to be empty", || bench.store.totals().in_log == 0);
    assert!(bench.store.totals().undrained > 0);
    let there = bench.subfiles();
    let mut osts: Vec<usize> = there.iter().map(|(n, ..)| *n).collect();
    osts.sort();
    assert_eq!(osts, [0, 1, 2], "one subfile on each OST");
    if nix::unistd::geteuid().is_root() {
        assert!(there.iter().all(|(.., uid)| *uid == 1234), "{there:?}");
    }
    assert!(read(&file, model.len()) == model, "read from subfiles");

    eventually("the hang to be noticed", || {
        let errors = flusher.progress().errors;
        errors
            .iter()
            .any(|e| e.error.message.contains("has not answered"))
    });
    assert!(
        file.error().is_none(),
        "a hang is not an error of the job's"
    );
    // The job goes on, and its new data leaves the log too.
    let mut model = model;
    put(&file, &mut model, 100, &[5; 9000]);
    drain.progress();
    eventually("new data to leave the log", || {
        bench.store.totals().in_log == 0
    });

    // What hung goes on, slowly: that is no failure any more, and worth waiting for.
    flusher.set_rate_limit(Some(1 << 20));
    bench.close_canonicals(false);
    eventually("the hang to end", || flusher.progress().errors.is_empty());
    assert!(!file.is_clean(), "it was drained before anybody could wait");
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert!(bench.below(ID) == model);
    eventually("the subfiles to go", || bench.subfiles().is_empty());
}

/// Reads, overwrites, truncates and punches go on while everything moves.
#[test]
fn random_changes_end_as_the_model_says() {
    for seed in 0..6 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let bench = Bench::new(3);
        let file = bench.file(ID);
        let (flusher, _) = bench.flusher(Subfiles::Always);
        flusher.set_policy(Policy::Immediate);
        let mut model = Vec::new();
        for _ in 0..300 {
            let offset = rng.random_range(0..20 * STRIPE as usize);
            let len = rng.random_range(1..3 * STRIPE as usize);
            if file.is_clean() {
                let intro = Intro {
                    size: bench.below(ID).len() as u64,
                    mtime: Timestamp::now(),
                    uid: 0,
                    gid: 0,
                    handle: Vec::new(),
                    path: b"file-7".to_vec(),
                };
                file.exclusive().begin(intro).unwrap();
            }
            let exclusive = file.exclusive();
            if exclusive.is_clean() {
                continue;
            }
            match rng.random_range(0..10) {
                0 => {
                    exclusive.truncate(offset as u64, Timestamp::now()).unwrap();
                    model.resize(offset, 0);
                }
                1 => {
                    let end = model.len().min(offset + len);
                    let range = ByteRange::new(offset as u64, (offset + len) as u64);
                    exclusive.zero(range, false, Timestamp::now()).unwrap();
                    if offset < end {
                        model[offset..end].fill(0);
                    }
                }
                _ => {
                    drop(exclusive);
                    let data = vec![rng.random(); len];
                    match file.write(1, offset as u64, &data) {
                        Err(layout_index::StoreError::Clean) => continue,
                        other => other.unwrap(),
                    }
                    if model.len() < offset + len {
                        model.resize(offset + len, 0);
                    }
                    model[offset..offset + len].copy_from_slice(&data);
                }
            }
        }
        assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
        assert!(bench.below(ID) == model, "seed {seed}");
        drop(flusher);
        assert_eq!(bench.subfiles(), [], "seed {seed}: all subfiles are gone");
    }
}

/// S9.4
#[test]
fn an_ost_that_hangs_or_fails_is_left_and_its_data_goes_elsewhere() {
    for mood in [
        Mood::Hangs,
        Mood::Fails(libc::EIO),
        Mood::Fails(libc::ENOSPC),
        Mood::Fails(libc::EROFS),
    ] {
        let bench = Bench::new(3);
        bench.provider.set(1, mood);
        let file = bench.file(ID);
        let model = strided(&file);
        bench.close_canonicals(true);
        let (flusher, fleet) = bench.flusher(Subfiles::Always);
        flusher.drain(Selection::All);
        eventually("the log to be empty", || bench.store.totals().in_log == 0);
        assert!(read(&file, model.len()) == model);
        let status = fleet.status();
        let said = status.osts[1].error.clone().unwrap_or_default();
        assert!(status.osts[1].state.is_dropped(), "{mood:?}: {status:?}");
        assert!(!said.is_empty(), "{mood:?}");
        assert!(bench.subfiles().iter().all(|(n, ..)| *n != 1));
        // It is well again and is tried again.
        bench.provider.set(1, Mood::Well);
        eventually("the OST to be taken back", || {
            fleet.tick(Instant::now());
            fleet.is_usable(1)
        });
        bench.close_canonicals(false);
        assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
        assert!(bench.below(ID) == model);
    }
}

/// S9.4
#[test]
fn with_no_ost_left_the_data_goes_straight_to_the_canonical_file() {
    let bench = Bench::new(2);
    for n in 0..2 {
        bench.provider.set(n, Mood::Fails(libc::EIO));
    }
    let file = bench.file(ID);
    let model = strided(&file);
    let (flusher, _) = bench.flusher(Subfiles::Always);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert!(bench.below(ID) == model);
}

/// A quota is the user's, not the OST's: the OST is not dropped.
#[test]
fn a_used_up_quota_drops_no_ost() {
    let bench = Bench::new(2);
    for n in 0..2 {
        bench.provider.set(n, Mood::Fails(libc::EDQUOT));
    }
    let file = bench.file(ID);
    let model = strided(&file);
    let (flusher, fleet) = bench.flusher(Subfiles::Always);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert!(bench.below(ID) == model);
    assert!(fleet.is_usable(0) && fleet.is_usable(1));
}

/// S9.7, `subfiles = auto`: straight to the canonical file, unless another node writes it too.
#[test]
fn auto_makes_subfiles_only_for_files_that_others_write() {
    let bench = Bench::new(2);
    let (alone, shared) = (bench.file(ID), bench.file(OTHER));
    let (one, two) = (strided(&alone), strided(&shared));
    // Another node has said that it writes OTHER, and is not done.
    let elsewhere = open_store(bench.dir.path(), "n1");
    let theirs = elsewhere.file(OTHER);
    begin(&theirs, OTHER);
    let end = two.len() - 1000;
    theirs.write(1, end as u64, &two[end..]).unwrap();
    bench.close_canonicals(true);
    let (their_flusher, _) = bench.flusher_of(&elsewhere, Subfiles::Auto);
    their_flusher.drain(Selection::All);
    let files = bench.backing().join(".forebay/files");
    eventually("the other node to say so", || files.exists());

    let (flusher, _) = bench.flusher(Subfiles::Auto);
    flusher.drain(Selection::All);
    eventually("the shared file to leave the log", || shared.in_log() == 0);
    assert!(shared.stat().unwrap().undrained > 0);
    assert_eq!(alone.subfiles().len(), 0);
    assert!(alone.in_log() > 0);

    bench.close_canonicals(false);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert_eq!(
        their_flusher.drain(Selection::All).wait(soon()),
        Verdict::Drained
    );
    assert!(bench.below(ID) == one && bench.below(OTHER) == two);
    let said = |dir: &Path| walk(dir).len();
    eventually("nobody to say that he writes", || said(&files) == 0);
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// S9.6: what a killed daemon made and did not record, or recorded the end of, goes at the next start;
/// what belongs to others, and what is in use, stays.
#[test]
fn orphans_are_removed_at_the_start_and_others_are_not() {
    let bench = Bench::new(2);
    let file = bench.file(ID);
    let model = strided(&file);
    bench.close_canonicals(true);
    let (flusher, _) = bench.flusher(Subfiles::Always);
    flusher.drain(Selection::All);
    eventually("the log to be empty", || bench.store.totals().in_log == 0);
    let used = bench.subfiles();
    // What a kill leaves, while the daemon itself goes on and is not looked at any more.
    bench.store.sync().unwrap();
    let killed = bench.dir.path().join("killed");
    copy(&bench.dir.path().join("store-n0"), &killed.join("store-n0"));
    let store = open_store_for(&killed, &bench.backing(), "n0");
    assert_eq!(store.subfile_prefix(), bench.store.subfile_prefix());

    let place = bench.dir.path().join("ost0/.forebay/subfiles");
    let orphan = place.join(format!("{}00000000", store.subfile_prefix()));
    let foreign = place.join("00000000deadbeef-00000001");
    let taken = |path: &Path| used.iter().any(|(_, used, _)| used == path);
    assert!(!taken(&orphan), "numbers begin at 1");
    for path in [&orphan, &foreign] {
        std::fs::write(path, b"x").unwrap();
    }
    let (_flusher, _) = bench.flusher_of(&store, Subfiles::Always);
    eventually("the orphan to go", || !orphan.exists());
    assert!(foreign.exists(), "another store's subfile");
    for (_, path, _) in &used {
        assert!(path.exists(), "{path:?} is in use");
    }
    assert!(read(&store.file(ID), model.len()) == model);
    bench.close_canonicals(false);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let there = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &there);
        } else {
            std::fs::copy(entry.path(), there).unwrap();
        }
    }
}
