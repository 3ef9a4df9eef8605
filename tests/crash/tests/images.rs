//! Crash images: the store is rebuilt as it may be found after a crash at every write and every sync of a scripted
//! workload, and recovery serves exactly what the promises allow.
//!
//! Checks S4 (the drained file is what was read), S5 (a kill loses nothing acknowledged, a power failure nothing
//! synced), S6 (nothing is freed before what replaces it is durable) and S9 (through subfiles or not).
//!
//! `FOREBAY_SEED` replays one workload, `FOREBAY_CUT` one moment of it; `FOREBAY_CUTS` sets how many moments are
//! tried.

use forebay_crash::cuts::{Cuts, Tried};
use forebay_crash::recorder::{Event, Recorder, Recording};
use forebay_crash::rig::{CAPACITY, Rig, Slot, TIGHT};
use forebay_crash::script::Script;
use forebay_crash::{scratch, setting};
use layout_index::store::log::record::RECORD_LEN;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

const FILES: usize = 3;
/// Number of moments per workload; several short workloads vary more than a long one.
const EVENTS: usize = 500;

const SUBFILE_EVENTS: usize = 400;

/// The way on which bytes go to the canonical files.
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

/// Runs the script until it has made enough events. Every step is also checked as it happens.
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

/// Counts what the workloads made the store do: a test that never reached something proves nothing about it.
#[derive(Debug, Default)]
struct Reached {
    /// Number of records of each kind, by the kind's byte in a record.
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
            // The straight way meets the other kinds.
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

#[test]
fn recovery_serves_what_the_promises_allow_at_every_cut() {
    sweep(Way::Straight, 1500);
}

/// S9.2, S9.6: the same on the way through subfiles.
#[test]
fn recovery_serves_what_is_on_its_way_through_subfiles_at_every_cut() {
    sweep(Way::Subfiles, 750);
}

fn sweep(way: Way, cuts: u64) {
    let wanted = setting("FOREBAY_CUTS", cuts) as usize;
    let first = setting("FOREBAY_SEED", 1);
    let one = std::env::var_os("FOREBAY_CUT").is_some();
    let mut tried = Tried::default();
    let mut reached = Reached::default();
    for n in 0.. {
        // One workload that fails is enough to look at.
        if tried.cuts >= wanted || !tried.failures.is_empty() || (one && n > 0) {
            break;
        }
        let seed = first + n;
        let dir = scratch().unwrap();
        let (root, copies) = (dir.path().join("live"), dir.path().join("copies"));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&copies).unwrap();
        let run = record(way, seed, &root, &copies);
        reached.note(&run);
        let cuts = Cuts {
            recording: &run.recording,
            slots: &run.slots,
            from: run.started,
            stride: 1,
            seed,
        };
        tried.add(cuts.try_all(dir.path()));
    }
    tried.assert_right();
    if !one {
        reached.assert_everything(way);
    }
}
