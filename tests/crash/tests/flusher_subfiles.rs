//! The real drain works through subfiles, with OSTs and canonical file on the recorded disk: a crash at every call
//! of it, and every call to an OST failing in turn.
//!
//! Checks S4, S6, S9.2, S9.4 and S9.6.

use flusher::ost::{Ost, OstError, OstSettings, Place, Provider, Targets};
use flusher::{Flusher, Osts, Policy, Selection, Settings, Subfiles, Verdict};
use forebay_crash::cuts::Cuts;
use forebay_crash::fault::{Fault, FaultDisk, Faults, Leaves};
use forebay_crash::image::Loss;
use forebay_crash::osts::OSTS;
use forebay_crash::recorder::Recorder;
use forebay_crash::rig::{CAPACITY, Rig, options};
use forebay_crash::verify::{self, Depth};
use forebay_crash::{drain, scratch};
use layout_index::{
    ByteRange, CanonicalFiles, Disk, DiskFile, File, FileId, FileSettings, RealDisk, Store,
};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// OSTs that are directories on a disk that records or fails.
#[derive(Debug)]
struct OnDisk {
    disk: Arc<dyn Disk>,
    root: PathBuf,
}

impl OnDisk {
    fn dir(&self, ost: &Ost) -> PathBuf {
        self.root.join(&ost.name)
    }

    fn real(&self, ost: &Ost, name: &str) -> io::Result<std::fs::File> {
        let mut how = std::fs::OpenOptions::new();
        how.read(true).write(true).open(self.dir(ost).join(name))
    }
}

impl Provider for OnDisk {
    fn kind(&self) -> &'static str {
        "on-disk"
    }

    fn osts(&self) -> Result<Vec<Ost>, OstError> {
        let ost = |index| Ost {
            index,
            name: format!("ost{index}"),
        };
        Ok((0..OSTS).map(ost).collect())
    }

    fn create(&self, ost: &Ost, name: &str, _direct: bool) -> Result<std::fs::File, OstError> {
        let dir = self.dir(ost);
        let made = self.disk.create(&dir.join(name));
        let made = made.and_then(|_| self.disk.sync_dir(&dir));
        let made = made.and_then(|()| self.real(ost, name));
        made.map_err(|e| OstError::new(ost, "making a subfile", e))
    }

    fn place(&self, _ost: &Ost) -> io::Result<Place> {
        Err(io::Error::other("the disk is all there is"))
    }

    fn open(&self, ost: &Ost, name: &str) -> Result<std::fs::File, OstError> {
        let opened = self.real(ost, name);
        opened.map_err(|e| OstError::new(ost, "opening a subfile", e))
    }

    fn disk(&self, ost: &Ost, name: &str, _file: std::fs::File) -> Arc<dyn DiskFile> {
        let path = self.dir(ost).join(name);
        self.disk.open(&path).expect("opening is not failed")
    }

    fn modified(&self, ost: &Ost, name: &str) -> Result<std::time::SystemTime, OstError> {
        let modified = self
            .real(ost, name)
            .and_then(|file| file.metadata()?.modified());
        modified.map_err(|e| OstError::new(ost, "looking at a subfile", e))
    }

    fn list(&self, ost: &Ost) -> Result<Vec<String>, OstError> {
        let names = self.disk.list(&self.dir(ost));
        let names = names.map_err(|e| OstError::new(ost, "listing subfiles", e))?;
        Ok(names.iter().map(|n| n.display().to_string()).collect())
    }

    fn remove(&self, ost: &Ost, name: &str) -> Result<(), OstError> {
        match self.disk.remove(&self.dir(ost).join(name)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|e| OstError::new(ost, "removing a subfile", e)),
        }
    }
}

/// One canonical file, which can be kept from being opened.
struct One {
    id: FileId,
    file: Arc<dyn DiskFile>,
    closed: Arc<(Mutex<bool>, Condvar)>,
}

impl CanonicalFiles for One {
    fn open_canonical(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        let closed = self.closed.0.lock().unwrap();
        drop(self.closed.1.wait_while(closed, |c| *c).unwrap());
        Ok((file.id() == self.id).then(|| self.file.clone()))
    }

    fn file_clean(&self, _id: FileId) {}
}

struct Bench {
    rig: Rig,
    recorder: Recorder,
    root: PathBuf,
    closed: Arc<(Mutex<bool>, Condvar)>,
}

impl Bench {
    /// Makes one file with something in it, all of it in the log and synced.
    fn new(dir: &Path) -> Bench {
        let (root, copies, backing) = (dir.join("live"), dir.join("copies"), dir.join("backing"));
        for path in [dir, &root, &copies, &backing] {
            std::fs::create_dir_all(path).unwrap();
        }
        let recorder = Recorder::new(&root, &copies);
        let clock = {
            let recorder = recorder.clone();
            Arc::new(move || recorder.now())
        };
        let disk = Arc::new(recorder.clone());
        let mut rig = Rig::new(&root, disk, clock, 1, CAPACITY).unwrap();
        rig.open().unwrap();
        rig.write(0, 0, 0, 500_000).unwrap();
        rig.checkpoint().unwrap();
        for n in 0..6 {
            rig.write(0, 2, n * 40_000, 3000).unwrap();
        }
        rig.zero(0, ByteRange::new(100_000, 120_000), false)
            .unwrap();
        rig.fsync(0).unwrap();
        Bench {
            rig,
            recorder,
            root,
            closed: Arc::default(),
        }
    }

    fn close_canonical(&self, closed: bool) {
        *self.closed.0.lock().unwrap() = closed;
        self.closed.1.notify_all();
    }

    fn flusher(&self, osts: Arc<dyn Disk>) -> Arc<Flusher> {
        let provider = OnDisk {
            disk: osts,
            root: self.root.clone(),
        };
        let targets = Targets::start(
            Arc::new(provider),
            OstSettings {
                probing: false,
                retry_after: Duration::from_millis(20),
                ..OstSettings::default()
            },
        );
        let settings = Settings {
            stripe: drain::STRIPE,
            retry_min: Duration::from_millis(2),
            retry_max: Duration::from_millis(20),
            sync_every: 2 * drain::STRIPE,
            ..Settings::default()
        };
        let canonicals = One {
            id: self.rig.slots[0].id,
            file: self.rig.slots[0].canonical.clone(),
            closed: self.closed.clone(),
        };
        let osts = Osts {
            targets,
            peers: None,
        };
        let store = self.rig.store().clone();
        store.set_file_settings(FileSettings {
            drain: Policy::Never,
            subfiles: Subfiles::Always,
            ..FileSettings::default()
        });
        Flusher::start(store, Arc::new(canonicals), settings, Some(osts)).unwrap()
    }

    /// Ends the flusher, and then the daemon.
    fn end(&mut self, flusher: Arc<Flusher>) {
        flusher.shutdown(false);
        drop(flusher);
        self.rig.kill();
        // The drain's threads let go of the store in their own time.
        wait_for("the drain's threads to end", || {
            Store::open(options(&self.root, CAPACITY), Arc::new(RealDisk)).is_ok()
        });
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn drained(flusher: &Flusher) {
    let drain = flusher.drain(Selection::All);
    let deadline = Some(Instant::now() + PATIENCE);
    assert_eq!(drain.wait(deadline), Verdict::Drained);
}

/// A user goes on writing meanwhile, and two more dirty periods of the file go the same way.
#[test]
fn a_crash_at_any_call_of_the_drain_through_subfiles_loses_nothing() {
    let dir = scratch().unwrap();
    let mut bench = Bench::new(dir.path());
    let from = bench.recorder.now();
    let flusher = bench.flusher(Arc::new(bench.recorder.clone()));
    let drain = flusher.drain(Selection::All);
    for n in 0..4 {
        bench.rig.write(0, n, 30_000 * n + 1000, 20_000).unwrap();
        if n % 2 == 1 {
            bench.rig.fsync(0).unwrap();
        }
    }
    let deadline = Some(Instant::now() + PATIENCE);
    assert_eq!(drain.wait(deadline), Verdict::Drained);
    drop(drain);
    // The index has nothing of the second dirty period, and the file is synced while all its data is in subfiles;
    // making the subfiles of the third dirty period makes the removal of those of the second durable.
    bench.close_canonical(true);
    bench.rig.write(0, 1, 60_000, 100_000).unwrap();
    let drain = flusher.drain(Selection::All);
    wait_for("the log to be empty", || {
        bench.rig.store().totals().in_log == 0
    });
    bench.rig.fsync(0).unwrap();
    bench.close_canonical(false);
    // A caller that waits for the drain has the log synced, and here no caller waits.
    wait_for("the file to be clean", || bench.rig.file(0).is_clean());
    drop(drain);
    wait_for("the subfiles to go", || {
        (0..OSTS).all(|ost| bench.rig.osts().names(ost).unwrap().is_empty())
    });
    bench.rig.write(0, 1, 0, 300_000).unwrap();
    drained(&flusher);
    assert!(bench.rig.store().totals().subfiled > 500_000);
    bench.rig.check().unwrap();
    bench.end(flusher);
    let recording = bench.recorder.finish();
    let cuts = Cuts {
        recording: &recording,
        slots: &bench.rig.slots,
        from,
        stride: 1,
        seed: 1,
    };
    let tried = cuts.try_all(dir.path());
    tried.assert_right();
    assert!(tried.cuts > 60, "the drain makes only {} calls", tried.cuts);
}

/// Runs the drain with call `at` to an OST failing. Returns the number of calls.
fn run(dir: &Path, at: usize, errno: i32) -> Result<usize, String> {
    let mut bench = Bench::new(dir);
    let fault = Fault {
        errno,
        for_good: false,
        leaves: [Leaves::Nothing, Leaves::Half, Leaves::All][at % 3],
    };
    let faults = Faults::new(fault, at);
    faults.changes_only();
    let from = bench.recorder.now();
    let flusher = bench.flusher(Arc::new(FaultDisk {
        faults: faults.clone(),
        disk: Arc::new(bench.recorder.clone()),
    }));
    drained(&flusher);
    let error = bench.rig.file(0).error();
    let canonical = drain::canonical_content(&bench.rig.file(0), &*bench.rig.slots[0].canonical)
        .map_err(|e| e.to_string())?;
    bench.end(flusher);
    if let Some(error) = error {
        return Err(format!("drained, and the job hears of {error:?}"));
    }
    if bench.rig.slots[0].history.content() != canonical {
        return Err("the canonical file is not what was written".into());
    }
    // The drain must not have counted on what a failed sync left in doubt.
    if faults.is_sync_hit() {
        let cuts = Cuts {
            recording: &bench.recorder.finish(),
            slots: &bench.rig.slots,
            from,
            stride: 5,
            seed: at as u64,
        };
        let tried = cuts.try_all(dir);
        if let Some(why) = tried.failures.first() {
            return Err(format!("{} images are wrong: {why}", tried.failures.len()));
        }
    }
    let slots = bench.rig.slots.iter();
    verify::image(&bench.root, Loss::Killed, Depth::Once, slots, |slot| {
        slot.history.killed(usize::MAX)
    })?;
    Ok(faults.calls())
}

#[test]
fn an_ost_that_fails_at_any_call_costs_nothing_but_its_copy() {
    let dir = scratch().unwrap();
    let root = dir.path().join("run");
    let all = run(&root, usize::MAX, libc::EIO).unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    assert!(all > 10, "the drain makes only {all} calls to OSTs");
    let mut failures = Vec::new();
    for at in 0..all {
        let errno = [libc::EIO, libc::ENOSPC][at % 2];
        if let Err(why) = run(&root, at, errno) {
            failures.push(format!("call {at}/{all} errno {errno}: {why}"));
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
    println!("{all} calls to OSTs failed in turn");
    for failure in &failures {
        println!("{failure}");
    }
    assert_eq!(failures.len(), 0, "runs went wrong; they are above");
}
