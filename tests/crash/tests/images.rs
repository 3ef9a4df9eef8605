//! Crash images: the store is rebuilt as it may be found after a crash at every write and every
//! sync of a scripted workload, and recovery serves exactly what the promises allow.
//!
//! Promises S4 (the drained file is what was read), S5 (a kill loses nothing acknowledged, a power
//! failure nothing synced), S6 (nothing is freed before what replaces it is durable).
//!
//! `FOREBAY_SEED` replays one workload, `FOREBAY_CUT` one moment of it; `FOREBAY_CUTS` sets how
//! many moments are tried.

use forebay_crash::image::{Loss, Simulation};
use forebay_crash::recorder::{Event, Recorder, Recording};
use forebay_crash::rig::{CAPACITY, Rig, Slot, TIGHT};
use forebay_crash::script::Script;
use forebay_crash::verify::{self, Depth};
use forebay_crash::{scratch, setting};
use layout_index::log::record::RECORD_LEN;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;

const FILES: usize = 3;
const THREADS: usize = 2;
/// Moments per workload; several short ones vary more than a long one.
const EVENTS: usize = 500;

const SUBFILE_EVENTS: usize = 400;

/// Which way bytes go to the canonical files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Straight,
    Subfiles,
}

struct Run {
    recording: Recording,
    slots: Vec<Slot>,
    started: usize,
    full: usize,
    moved: u64,
}

/// Runs the script until it made enough events. Every step is also checked as it happens.
fn record(way: Way, seed: u64, root: &Path, copies: &Path) -> Run {
    let recorder = Recorder::new(root, copies);
    let clock = {
        let recorder = recorder.clone();
        Arc::new(move || recorder.now())
    };
    let capacity = if seed.is_multiple_of(3) {
        TIGHT
    } else {
        CAPACITY
    };
    let mut rig = Rig::new(root, Arc::new(recorder.clone()), clock, FILES, capacity).unwrap();
    rig.open().unwrap();
    let (mut script, events) = match way {
        Way::Straight => (Script::new(seed, FILES), EVENTS),
        Way::Subfiles => (Script::with_subfiles(seed, FILES), SUBFILE_EVENTS),
    };
    let mut step = 0;
    let verbose = std::env::var_os("FOREBAY_CUT").is_some();
    while recorder.now() < events {
        let next = script.draw();
        if verbose {
            println!("event {} step {step}: {next:?}", recorder.now());
        }
        next.run(&mut rig)
            .unwrap_or_else(|e| panic!("seed {seed} step {step} {next:?}: {e}"));
        rig.check()
            .unwrap_or_else(|e| panic!("seed {seed} step {step} after {next:?}: {e}"));
        step += 1;
    }
    rig.kill();
    let mut slots = std::mem::take(&mut rig.slots);
    slots.append(&mut rig.gone);
    Run {
        recording: recorder.finish(),
        slots,
        started: rig.started,
        full: rig.full,
        moved: rig.moved,
    }
}

#[derive(Default)]
struct Tally {
    cuts: usize,
    images: usize,
    failures: Vec<String>,
    reached: Reached,
}

/// What the workloads made the store do: a test that never reached it proves nothing about it.
#[derive(Debug, Default)]
struct Reached {
    /// By the kind's byte in a record.
    records: BTreeMap<u8, usize>,
    segments_made: usize,
    segments_freed: usize,
    full: usize,
    subfiles_made: usize,
    subfiles_removed: usize,
    moved: u64,
}

impl Reached {
    fn note(&mut self, run: &Run) {
        let mut record_files = BTreeSet::new();
        let is_subfile = |path: &Path| path.starts_with("ost0") || path.starts_with("ost1");
        let is_records = |path: &Path| path.extension().is_some_and(|e| e == "records");
        for event in &run.recording.events {
            match event {
                Event::Create { path, inode } if is_records(path) => {
                    record_files.insert(*inode);
                    self.segments_made += 1;
                }
                Event::Remove { path } if is_records(path) => self.segments_freed += 1,
                Event::Create { path, .. } if is_subfile(path) => self.subfiles_made += 1,
                Event::Remove { path } if is_subfile(path) => self.subfiles_removed += 1,
                Event::Write { inode, data, .. } if record_files.contains(inode) => {
                    for record in data.chunks(RECORD_LEN) {
                        *self.records.entry(record[4]).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        self.full += run.full;
        self.moved += run.moved;
    }

    fn assert_everything(&self, way: Way) {
        println!("{self:?}");
        let (kinds, more): (&[u8], bool) = match way {
            Way::Straight => (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], self.full > 0),
            // The others have been met on the straight way.
            Way::Subfiles => (
                &[1, 3, 6, 9, 12, 13, 14, 15, 16],
                self.subfiles_removed > 0 && self.moved > 0,
            ),
        };
        for kind in kinds {
            assert!(
                self.records.contains_key(kind),
                "no record of kind {kind} was written"
            );
        }
        assert!(self.segments_freed > 0 && more, "{self:?}");
    }
}

/// Tries the images of every cut that is this thread's.
fn try_cuts(run: &Run, seed: u64, thread: usize, dir: &Path, tally: &Mutex<Tally>) {
    let only = std::env::var("FOREBAY_CUT")
        .ok()
        .map(|c| c.parse::<usize>().unwrap());
    let events = &run.recording.events;
    let mut disk = Simulation::default();
    for cut in 0..=events.len() {
        if cut > 0 {
            disk.advance(&events[cut - 1]);
        }
        if cut < run.started || cut % THREADS != thread || only.is_some_and(|o| o != cut) {
            continue;
        }
        let mut images = 0;
        let mut failures = Vec::new();
        // The index as of the last flush; and the one before, if that flush may not have been.
        let known = &run.recording.indexes;
        let newest = known.iter().rposition(|i| i.from <= cut);
        let older = newest
            .filter(|n| known[*n].from == cut)
            .map(|n| n.checked_sub(1));
        for index in [Some(newest), older].into_iter().flatten() {
            // Torn twice: its dice fall differently each time.
            for (n, loss) in [Loss::Synced, Loss::Torn, Loss::Torn, Loss::Killed]
                .into_iter()
                .enumerate()
            {
                let mut rng = StdRng::seed_from_u64(seed ^ (4 * cut + n) as u64);
                let root = dir.join(format!("image-{thread}"));
                let path = index.map(|n| known[n].path.as_path());
                disk.build(loss, &mut rng, path, &root).unwrap();
                let depth = if cut % 4 < 2 {
                    Depth::Twice
                } else {
                    Depth::Once
                };
                let found = catch_unwind(AssertUnwindSafe(|| {
                    verify::image(&root, loss, depth, run.slots.iter(), |slot| match loss {
                        Loss::Killed => slot.history.killed(cut),
                        _ => slot.history.power_lost(cut),
                    })
                }));
                let found = found.unwrap_or_else(|_| Err("panicked".into()));
                if let Err(why) = found {
                    failures.push(format!(
                        "seed {seed} cut {cut}/{} {loss:?} index {index:?}: {why}",
                        events.len()
                    ));
                }
                images += 1;
                std::fs::remove_dir_all(&root).unwrap();
            }
        }
        let mut tally = tally.lock().unwrap();
        tally.cuts += 1;
        tally.images += images;
        tally.failures.append(&mut failures);
    }
}

#[test]
fn recovery_serves_what_the_promises_allow_at_every_cut() {
    sweep(Way::Straight, 1500);
}

/// S9.2, S9.6: the same on the way through subfiles.
#[test]
fn recovery_serves_what_is_on_its_way_through_subfiles_at_every_cut() {
    sweep(Way::Subfiles, 1100);
}

fn sweep(way: Way, cuts: u64) {
    let wanted = setting("FOREBAY_CUTS", cuts) as usize;
    let first = setting("FOREBAY_SEED", 1);
    let one = std::env::var_os("FOREBAY_CUT").is_some();
    let tally = Mutex::new(Tally::default());
    for n in 0.. {
        let (cuts, images, failed) = {
            let tally = tally.lock().unwrap();
            (tally.cuts, tally.images, !tally.failures.is_empty())
        };
        // One workload that fails is enough to look at.
        if cuts >= wanted || failed || (one && n > 0) {
            println!("{cuts} cut points, {images} images");
            break;
        }
        let seed = first + n;
        let dir = scratch().unwrap();
        let (root, copies) = (dir.path().join("live"), dir.path().join("copies"));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&copies).unwrap();
        let run = record(way, seed, &root, &copies);
        tally.lock().unwrap().reached.note(&run);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (run, dir, tally) = (&run, dir.path(), &tally);
                scope.spawn(move || try_cuts(run, seed, thread, dir, tally));
            }
        });
    }
    let tally = tally.into_inner().unwrap();
    let failed = tally.failures.len();
    if !one && failed == 0 {
        tally.reached.assert_everything(way);
    }
    for failure in tally.failures.iter().take(40) {
        println!("{failure}");
    }
    assert_eq!(
        failed, 0,
        "of {} images are wrong; the first are above",
        tally.images
    );
}
