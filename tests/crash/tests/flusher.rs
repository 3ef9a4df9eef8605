//! The real drain works against a canonical file whose every call fails in turn: the error sticks to the file, the
//! log gives nothing up before the canonical file has it, and when the file system is well again the drain finishes
//! by itself.
//!
//! Checks S4 and S6.

use flusher::{Flusher, Policy, Selection, Settings, Verdict};
use forebay_crash::fault::{Fault, FaultFile, Faults, Leaves};
use forebay_crash::image::{Loss, Simulation};
use forebay_crash::recorder::Recorder;
use forebay_crash::rig::{CAPACITY, Rig, options};
use forebay_crash::verify::{self, Depth};
use forebay_crash::{drain, scratch};
use layout_index::{
    ByteRange, CanonicalFiles, DiskFile, File, FileId, FileSettings, RealDisk, Store,
};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// One canonical file, whose calls are counted.
struct One {
    id: FileId,
    file: Arc<dyn DiskFile>,
}

impl CanonicalFiles for One {
    fn open_canonical(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        Ok((file.id() == self.id).then(|| self.file.clone()))
    }

    fn file_clean(&self, _id: FileId) {}
}

/// How calls fail: from one on until the file system is healed, or just the one.
#[derive(Clone, Copy, Debug)]
struct Way {
    for_good: bool,
    /// Stripes are read back, which finds some failures that were not reported.
    verify: bool,
}

const WAYS: [Way; 3] = [
    Way {
        for_good: true,
        verify: true,
    },
    Way {
        for_good: true,
        verify: false,
    },
    Way {
        for_good: false,
        verify: false,
    },
];

fn settings(verify: bool) -> Settings {
    Settings {
        stripe: drain::STRIPE,
        concurrency: 1,
        retry_min: Duration::from_millis(2),
        retry_max: Duration::from_millis(20),
        sync_every: 2 * drain::STRIPE,
        verify,
        ..Settings::default()
    }
}

/// Writes full and half-written stripes, many small runs in one stripe, a hole, a truncate yet to be applied, and
/// extents in the index as well as in memory, and syncs all of it.
fn fill(rig: &mut Rig) -> layout_index::Result<()> {
    rig.write(0, 0, 300_000, 200_000)?;
    rig.truncate(0, 150_000)?;
    rig.write(0, 1, 190_000, 150_000)?;
    for n in 0..12 {
        rig.write(0, 2, n * 5000, 1000)?;
    }
    rig.checkpoint()?;
    rig.zero(0, ByteRange::new(100_000, 120_000), false)?;
    rig.write(0, 3, 250_000, 5000)?;
    rig.fsync(0)
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > until {
            return Err(format!("waited {PATIENCE:?} for {what}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Runs the drain with call `at` on the canonical file failing. Returns the number of calls.
fn run(dir: &Path, at: usize, errno: i32, way: Way) -> Result<usize, String> {
    let (root, copies) = (dir.join("live"), dir.join("copies"));
    for path in [dir, &root, &copies] {
        std::fs::create_dir(path).map_err(|e| e.to_string())?;
    }
    let recorder = Recorder::new(&root, &copies);
    let clock = {
        let recorder = recorder.clone();
        Arc::new(move || recorder.now())
    };
    let mut rig = Rig::new(&root, Arc::new(recorder.clone()), clock, 1, CAPACITY)
        .map_err(|e| e.to_string())?;
    rig.open().map_err(|e| e.to_string())?;
    fill(&mut rig).map_err(|e| e.to_string())?;

    let fault = Fault {
        errno,
        for_good: way.for_good,
        leaves: Leaves::Half,
    };
    let faults = Faults::new(fault, at);
    let canonicals = One {
        id: rig.slots[0].id,
        file: Arc::new(FaultFile {
            faults: faults.clone(),
            real: rig.slots[0].canonical.clone(),
        }),
    };
    rig.store().set_file_settings(FileSettings {
        drain: Policy::Never,
        ..FileSettings::default()
    });
    let flusher = Flusher::start(
        rig.store().clone(),
        Arc::new(canonicals),
        settings(way.verify),
        None,
    )
    .map_err(|e| e.to_string())?;
    let drain = flusher.drain(Selection::All);
    let file = rig.file(0);
    // How stripes and syncs fall together varies by a call, so the last call may not come. A single failure is over
    // before the test can see it.
    let untouched = || file.is_clean() && faults.hits() == 0;
    if way.for_good {
        wait_for("the error to stick", || {
            file.error().is_some() || untouched()
        })?;
    }
    if way.for_good && !untouched() {
        let error = file.error().ok_or("the error does not stick")?;
        if error.errno != errno {
            return Err(format!("errno {errno} became {error:?}"));
        }
        if file.error_after(0).is_none() {
            return Err("fsync would not hear of it".into());
        }
        rig.check()
            .map_err(|why| format!("while it fails: {why}"))?;
        power_failure(&recorder, &rig, dir)
            .map_err(|why| format!("power failure while it fails: {why}"))?;
        faults.heal();
    }
    wait_for("the drain", || {
        drain.wait(Some(Instant::now() + Duration::from_millis(100))) == Verdict::Drained
    })?;
    if let Some(error) = file.error() {
        return Err(format!("drained, and the error still sticks: {error:?}"));
    }
    drop(drain);
    let calls = faults.calls();
    flusher.shutdown(false);
    drop(flusher);
    drop(file);
    rig.check().map_err(|why| format!("drained: {why}"))?;
    if rig.slots[0].history.content() != canonical(&rig)? {
        return Err("the canonical file is not what was written".into());
    }
    rig.kill();
    // The drain's threads let go of the store in their own time.
    wait_for("the drain's threads to end", || {
        Store::open(options(&root, CAPACITY), Arc::new(RealDisk)).is_ok()
    })?;
    verify::image(&root, Loss::Killed, Depth::Once, rig.slots.iter(), |slot| {
        slot.history.killed(usize::MAX)
    })?;
    Ok(calls)
}

fn canonical(rig: &Rig) -> Result<Vec<u8>, String> {
    drain::canonical_content(&rig.file(0), &*rig.slots[0].canonical).map_err(|e| e.to_string())
}

/// Everything was synced before the drain began, so nothing may be missing.
fn power_failure(recorder: &Recorder, rig: &Rig, dir: &Path) -> Result<(), String> {
    let now = recorder.now();
    let recording = recorder.finish();
    let mut disk = Simulation::default();
    for event in &recording.events[..now] {
        disk.advance(event);
    }
    let index = recording.indexes.iter().rfind(|copy| copy.from <= now);
    let root = dir.join("image");
    for loss in [Loss::Synced, Loss::Torn] {
        let mut rng = StdRng::seed_from_u64(now as u64);
        disk.build(loss, &mut rng, index.map(|copy| copy.path.as_path()), &root)
            .map_err(|e| e.to_string())?;
        verify::image(&root, loss, Depth::Once, rig.slots.iter(), |slot| {
            slot.history.power_lost(now)
        })
        .map_err(|why| format!("{loss:?}: {why}"))?;
        std::fs::remove_dir_all(&root).map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[test]
fn a_canonical_file_that_fails_at_any_call_keeps_its_data_in_the_store() {
    let dir = scratch().unwrap();
    let mut failures = Vec::new();
    for way in WAYS {
        let all = run(&dir.path().join("run"), usize::MAX, libc::EIO, way).unwrap();
        assert!(all > 15, "the drain makes only {all} calls");
        std::fs::remove_dir_all(dir.path().join("run")).unwrap();
        for at in 0..all {
            let errno = [libc::EIO, libc::ENOSPC, libc::EDQUOT][at % 3];
            let run_dir = dir.path().join("run");
            if let Err(why) = run(&run_dir, at, errno, way) {
                failures.push(format!("{way:?} call {at}/{all} errno {errno}: {why}"));
            }
            std::fs::remove_dir_all(&run_dir).unwrap();
        }
        println!("{way:?}: {all} canonical calls failed in turn");
    }
    for failure in &failures {
        println!("{failure}");
    }
    assert_eq!(failures.len(), 0, "runs went wrong; they are above");
}
