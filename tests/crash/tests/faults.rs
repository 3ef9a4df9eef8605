//! Every single I/O call of a scripted workload fails in turn: an error comes out or the bytes go another way,
//! nothing acknowledged is lost, and the next start on a healthy disk is clean.
//!
//! Checks S5, S6, S7 and S9. `FOREBAY_SEED` chooses the workload, `FOREBAY_CALL` one call of it.

use forebay_crash::fault::{Fault, FaultDisk, Faults, Leaves};
use forebay_crash::image::{Loss, Simulation};
use forebay_crash::recorder::{Recorder, Recording};
use forebay_crash::rig::{CAPACITY, Rig, Slot};
use forebay_crash::script::{Script, Step};
use forebay_crash::verify::{self, Depth};
use forebay_crash::{scratch, setting};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const FILES: usize = 3;
const STEPS: usize = 40;
/// Enough steps for the last scene of the way through subfiles, and a little more.
const SUBFILE_STEPS: usize = 8;

/// The way on which bytes go to the canonical files.
#[derive(Clone, Copy, Debug)]
enum Way {
    Straight,
    Subfiles,
}

/// Runs the workload with call `at` failing. Returns the number of calls that it made.
fn run(way: Way, seed: u64, fault: Fault, at: usize, dir: &Path) -> Result<usize, String> {
    let (root, copies) = (dir.join("live"), dir.join("copies"));
    for path in [dir, &root, &copies] {
        std::fs::create_dir(path).map_err(|e| e.to_string())?;
    }
    let recorder = Recorder::new(&root, &copies);
    let clock = {
        let recorder = recorder.clone();
        Arc::new(move || recorder.now())
    };
    let faults = Faults::new(fault, usize::MAX);
    let disk = Arc::new(FaultDisk {
        faults: faults.clone(),
        disk: Arc::new(recorder.clone()),
    });
    let mut rig = Rig::new(&root, disk, clock, FILES, CAPACITY).map_err(|e| e.to_string())?;
    if matches!(way, Way::Subfiles) {
        faults.changes_only();
    }
    faults.fail_at(at);
    work(way, seed, &mut rig, &faults)?;
    let calls = faults.calls();
    faults.heal();
    if !fault.for_good && rig.is_open() {
        rig.check()?;
    }
    rig.kill();
    let slots = rig.slots.iter().chain(&rig.gone);
    // Of the faults that were no failed sync a sample is enough.
    if faults.is_sync_hit() || at.is_multiple_of(8) {
        power_failure(&recorder.finish(), at as u64, dir, slots.clone())
            .map_err(|why| format!("after a power failure at the end: {why}"))?;
    }
    verify::image(&root, Loss::Killed, Depth::Twice, slots, |slot| {
        slot.history.killed(usize::MAX)
    })?;
    Ok(calls)
}

/// After a run with a fault the power fails as well.
fn power_failure<'a>(
    recording: &Recording,
    seed: u64,
    dir: &Path,
    slots: impl Iterator<Item = &'a Slot> + Clone,
) -> Result<(), String> {
    let mut disk = Simulation::default();
    for event in &recording.events {
        disk.advance(event);
    }
    let index = recording.indexes.last().map(|copy| copy.path.as_path());
    for loss in [Loss::Synced, Loss::Torn] {
        let root = dir.join("image");
        let mut rng = StdRng::seed_from_u64(seed);
        disk.build(loss, &mut rng, index, &root)
            .map_err(|e| e.to_string())?;
        verify::image(&root, loss, Depth::Once, slots.clone(), |slot| {
            slot.history.power_lost(usize::MAX)
        })
        .map_err(|why| format!("{loss:?}: {why}"))?;
        std::fs::remove_dir_all(&root).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn work(way: Way, seed: u64, rig: &mut Rig, faults: &Faults) -> Result<(), String> {
    let (mut script, steps) = match way {
        Way::Straight => (Script::new(seed, FILES), STEPS),
        Way::Subfiles => (Script::with_subfiles(seed, FILES), SUBFILE_STEPS),
    };
    for n in 0..steps {
        if !rig.is_open() && rig.open().is_err() && rig.open().is_err() {
            // The disk has died: nothing more can be done here.
            return Ok(());
        }
        let step = script.draw();
        let hits = faults.hits();
        let result = step.run(rig);
        let what = || format!("step {n} {step:?}");
        if faults.hits() == hits && rig.is_open() && rig.store().failure().is_none() {
            result.map_err(|e| format!("{}: nothing failed, but: {e}", what()))?;
        } else if faults.take_sync_failed() && result.is_ok() && !is_beside(&step, rig) {
            return Err(format!("{}: a failed sync was not reported", what()));
        }
    }
    Ok(())
}

/// Returns whether the step syncs a file of which the log knows nothing: that succeeds even where the log is broken.
fn is_beside(step: &Step, rig: &Rig) -> bool {
    matches!(step, Step::Fsync { n } if rig.file(*n).is_clean())
}

/// Lets every `stride`th call fail; `fault` says how.
fn sweep(way: Way, name: &str, stride: usize, fault: impl Fn(usize) -> Fault) {
    let seed = setting("FOREBAY_SEED", 7);
    let dir = scratch().unwrap();
    let all = run(way, seed, fault(0), usize::MAX, &dir.path().join("whole")).unwrap();
    let only = std::env::var("FOREBAY_CALL")
        .ok()
        .map(|c| c.parse::<usize>().unwrap());
    let mut failures = Vec::new();
    let mut runs = 0;
    for at in (0..all).step_by(stride) {
        if only.is_some_and(|o| o != at) {
            continue;
        }
        let (root, fault) = (dir.path().join("run"), fault(at));
        let result = catch_unwind(AssertUnwindSafe(|| run(way, seed, fault, at, &root)));
        if let Err(why) = result.unwrap_or_else(|_| Err("panicked".into())) {
            failures.push(format!("seed {seed} call {at}/{all} {fault:?}: {why}"));
        }
        std::fs::remove_dir_all(&root).unwrap();
        runs += 1;
    }
    println!("{name}: {runs} of {all} calls failed in turn");
    for failure in failures.iter().take(20) {
        println!("{failure}");
    }
    assert!(all > 200, "the workload makes only {all} calls");
    assert_eq!(
        failures.len(),
        0,
        "runs of {runs} went wrong; the first are above"
    );
}

#[test]
fn an_io_error_at_any_call() {
    sweep(Way::Straight, "EIO once", 1, |at| Fault {
        errno: libc::EIO,
        for_good: false,
        leaves: [Leaves::Nothing, Leaves::All, Leaves::Half][at % 3],
    });
}

#[test]
fn no_space_at_any_call() {
    sweep(Way::Straight, "ENOSPC once", 1, |at| Fault {
        errno: libc::ENOSPC,
        for_good: false,
        leaves: [Leaves::Half, Leaves::Nothing][at % 2],
    });
}

#[test]
fn a_disk_that_dies_at_any_call() {
    sweep(Way::Straight, "EIO for good", 3, |_| Fault {
        errno: libc::EIO,
        for_good: true,
        leaves: Leaves::Half,
    });
}

/// S9.2: the calls that make, write, sync and remove subfiles fail, and those that write the log's records about
/// them. Failing reads are left to the other workload.
#[test]
fn a_failure_at_any_call_on_the_way_through_subfiles() {
    for (errno, stride) in [(libc::EIO, 1), (libc::ENOSPC, 2)] {
        sweep(Way::Subfiles, "through subfiles", stride, |at| Fault {
            errno,
            for_good: false,
            leaves: [Leaves::Nothing, Leaves::All, Leaves::Half][at % 3],
        });
    }
}

/// RocksDB does its own I/O, so its directory is taken away under it.
#[test]
fn an_index_that_cannot_be_written_stops_the_store_and_loses_nothing() {
    let dir = scratch().unwrap();
    let root = dir.path().join("run");
    std::fs::create_dir(&root).unwrap();
    let time = AtomicUsize::new(1);
    let clock = Arc::new(move || time.fetch_add(1, Ordering::SeqCst));
    let disk = Arc::new(layout_index::RealDisk);
    let mut rig = Rig::new(&root, disk, clock, FILES, CAPACITY).unwrap();
    rig.open().unwrap();
    let mut script = Script::new(3, FILES);
    let (index, away) = (root.join("store/index"), root.join("away"));
    for n in 0..60 {
        let step = script.draw();
        if n == 30 {
            rig.write(0, 0, 0, 1000).unwrap();
            std::fs::rename(&index, &away).unwrap();
            assert!(
                rig.checkpoint().is_err(),
                "a checkpoint without an index succeeded"
            );
            std::fs::rename(&away, &index).unwrap();
            assert!(
                rig.checkpoint().is_err(),
                "a half-done merge was gone on with"
            );
            assert!(
                rig.store().failure().is_some(),
                "the store takes writes as if nothing was"
            );
            rig.check().unwrap();
            rig.kill_and_open().unwrap();
        }
        if !matches!(step, Step::Kill | Step::Reopen) {
            step.run(&mut rig).unwrap();
        }
    }
    rig.kill();
    let slots = rig.slots.iter().chain(&rig.gone);
    verify::image(&root, Loss::Killed, Depth::Twice, slots, |slot| {
        slot.history.killed(usize::MAX)
    })
    .unwrap();
}
