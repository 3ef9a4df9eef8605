//! Takes one file through all its states and compares it with a vector of bytes.
//!
//! Promises S1 (reads return the last completed write, whatever tier holds it), S4 (after drain the
//! canonical file is what the overlay showed), S5 (a crash of the daemon loses nothing
//! acknowledged), S6 (nothing is freed before what replaces it is durable), S9.2 (moving bytes
//! through subfiles, and a crash at any step of it).

use super::*;
use crate::error::StoreError;
use crate::store::Store;
use crate::store::subfile::Subfile;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rig::{ID, Rig, SPACE, STRIPE, open};

pub(super) mod rig;

fn run(seed: u64, steps: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rig = Rig::new();
    for step in 0..steps {
        let offset = rng.random_range(0..SPACE);
        let len = rng.random_range(1..=(SPACE - offset).min(2 * STRIPE + 1));
        let what = match rng.random_range(0..100) {
            0..40 => {
                rig.write(offset, len);
                format!("write {offset}+{len}")
            }
            40..46 => {
                rig.truncate(offset);
                format!("truncate {offset}")
            }
            46..52 => {
                let grow = rng.random_bool(0.5);
                rig.zero(offset, len, grow);
                format!("zero {offset}+{len} grow {grow}")
            }
            52..58 => {
                rig.write_through(offset, len);
                format!("through {offset}+{len}")
            }
            58..72 => {
                let max = rng.random_range(1..6);
                rig.drain(max);
                format!("drain {max}")
            }
            72..75 => {
                let done = rig.copy_to_subfile(rng.random_range(1..6));
                // Anything may happen while the bytes are being copied.
                match rng.random_range(0..5) {
                    0 => rig.write(offset, len),
                    1 => rig.truncate(offset),
                    2 => rig.zero(offset, len, true),
                    3 => rig.store().checkpoint().unwrap(),
                    _ => {}
                }
                rig.file().subfiled(&done).unwrap();
                if rng.random_bool(0.5) {
                    rig.file().retire_empty_subfiles(0).unwrap();
                }
                rig.remove_retired(false);
                format!("subfile {} units", done.len())
            }
            75..78 => {
                rig.drain_all();
                rig.remove_retired(false);
                "drain all".into()
            }
            78..86 => {
                rig.store().checkpoint().unwrap();
                let counted = rig.file().count_undrained(None).unwrap();
                let (books, live) = (rig.store().totals().undrained, rig.store().space().live);
                let in_log = rig.store().totals().in_log;
                assert_eq!((books, live), (counted, in_log), "seed {seed} step {step}");
                let in_subfiles: u64 = rig.store().subfiles().iter().map(|s| s.live()).sum();
                assert_eq!(in_log + in_subfiles, counted, "seed {seed} step {step}");
                "checkpoint".into()
            }
            86..88 => {
                rig.copy_to_subfile(3);
                rig.crash();
                rig.remove_retired(true);
                "crash with bytes on their way to a subfile".into()
            }
            88..90 => {
                rig.crash();
                rig.remove_retired(true);
                "crash".into()
            }
            _ => {
                rig.check(ByteRange::new(offset, offset + len), "read");
                continue;
            }
        };
        rig.check(
            ByteRange::new(0, SPACE),
            &format!("seed {seed} step {step} after {what}"),
        );
    }
    rig.drain_all();
    rig.store().checkpoint().unwrap();
    rig.store().checkpoint().unwrap();
    assert_eq!(
        rig.store().space().live,
        0,
        "seed {seed}: live bytes of a clean store"
    );
    rig.remove_retired(false);
    assert_eq!(
        rig.subfiles_there(),
        0,
        "seed {seed}: subfiles of a clean store"
    );
}

#[test]
fn random_histories_match_the_model() {
    let seed: u64 =
        std::env::var("FOREBAY_SEED").map_or_else(|_| rand::random(), |s| s.parse().unwrap());
    for n in 0..12 {
        let seed = seed.wrapping_add(n);
        println!("seed {seed} (replay with FOREBAY_SEED={seed})");
        run(seed, 400);
    }
}

#[test]
fn segments_are_freed_after_drain_and_checkpoint() {
    let mut rig = Rig::new();
    let data = vec![5u8; 1 << 20];
    rig.begin();
    for n in 0..12u64 {
        rig.file().try_write(0, n << 20, &data).unwrap();
    }
    rig.model = vec![5; 12 << 20];
    let full = rig.store().space().used;
    rig.drain_all();
    rig.store().checkpoint().unwrap();
    let after = rig.store().space().used;
    assert!(after < full / 2, "used {full} before and {after} after");
}

#[test]
fn sequential_small_writes_coalesce() {
    let rig = Rig::new();
    rig.begin();
    for n in 0..64u64 {
        rig.file().try_write(1, n * 512, &[n as u8; 512]).unwrap();
    }
    assert_eq!(rig.file().inner().period.as_ref().unwrap().hot.len(), 1);
}

#[test]
fn a_full_store_says_so_and_control_records_still_fit() {
    let mut rig = Rig::new();
    rig.begin();
    let data = vec![1u8; 1 << 20];
    let mut n = 0u64;
    let error = loop {
        match rig.file().try_write(0, n << 20, &data) {
            Ok(()) => n += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(error, StoreError::Full), "{error}");
    rig.model = vec![1; (n as usize) << 20];
    rig.write_through(n << 20, 4096);
    rig.truncate(STRIPE);
    rig.drain_all();
}

#[test]
fn overlapping_request_in_flight_is_busy() {
    let rig = Rig::new();
    rig.begin();
    let held = rig.file().hold_range(ByteRange::new(0, 100));
    assert!(matches!(
        rig.file().try_write(0, 50, &[1]),
        Err(StoreError::Busy)
    ));
    rig.file().try_write(0, 100, &[1]).unwrap();
    drop(held);
    rig.file().try_write(0, 50, &[1]).unwrap();
}

#[test]
fn a_damaged_payload_is_never_served() {
    let mut rig = Rig::new();
    rig.write(0, 4096);
    rig.store().sync().unwrap();
    rig.file = None;
    rig.store = None;
    let log = rig.dir.path().join("store/log");
    let data = std::fs::read_dir(&log)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "data"));
    for path in data {
        let mut bytes = std::fs::read(&path).unwrap();
        // The introduction is JSON; the write is not.
        if bytes[0] != b'{' {
            bytes[100] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    rig.store = Some(open(rig.dir.path()));
    rig.file = Some(rig.store().file(ID));
    let plan = rig.file().plan(ByteRange::new(0, 4096)).unwrap();
    let error = rig
        .file()
        .read(&plan, &mut vec![0; 4096], None)
        .unwrap_err();
    assert!(matches!(error, StoreError::Checksum { .. }), "{error}");
}

#[test]
fn room_that_a_killed_daemon_did_not_use_is_given_back() {
    let mut rig = Rig::new();
    rig.write(0, 5000);
    let before = rig.store().space();
    assert!(before.used >= before.segment, "{before:?}");
    rig.crash();
    let after = rig.store().space();
    // One record introduces the file, one is the write.
    assert!(
        (5000..6000).contains(&after.used),
        "{before:?} then {after:?}"
    );
    rig.check(ByteRange::ALL, "after the crash");
    rig.drain_all();
}

/// Recovery itself may append, to record that an unlinked file's data is dropped. The segment that
/// it began for that is appended to from then on, and must not be treated like those that it found.
#[test]
fn a_segment_that_recovery_began_is_kept() {
    let mut rig = Rig::new();
    rig.write(0, 5000);
    rig.file().mark_unlinked().unwrap();
    rig.crash();
    rig.store().checkpoint().unwrap();
    rig.model.clear();
    for n in 0..8 {
        rig.write(n * 1000, 1000);
    }
    rig.store().checkpoint().unwrap();
    rig.check(ByteRange::new(0, SPACE), "after the checkpoint");
    rig.crash();
    rig.check(ByteRange::new(0, SPACE), "after another crash");
}

#[test]
fn inspect_shows_the_store_without_opening_it() {
    let mut rig = Rig::new();
    rig.write(0, 5000);
    let seen = Store::inspect(&rig.dir.path().join("store"), true, None).unwrap();
    assert_eq!(
        (seen.files.len(), seen.undrained, seen.files[0].size),
        (1, 5000, 5000)
    );
}

/// S9.1: a plan made before the drain finds that a subfile is gone; another plan has the bytes.
#[test]
fn a_subfile_that_was_drained_and_removed_makes_the_reader_look_again() {
    let mut rig = Rig::new();
    rig.write(0, 3 * STRIPE);
    let done = rig.copy_to_subfile(usize::MAX);
    rig.file().subfiled(&done).unwrap();
    assert_eq!(rig.store().totals().in_log, 0);
    // A new daemon has not opened the subfile yet.
    rig.crash();
    let old = rig.file().plan(ByteRange::new(0, STRIPE)).unwrap();
    assert!(!old.is_local());
    rig.drain_all();
    rig.remove_retired(false);
    let file = rig.file().clone();
    rig.file = None;
    // The object that was drained has the subfile open; a fresh one has not.
    let fresh = Plan {
        pieces: old
            .pieces
            .iter()
            .map(|piece| Piece {
                range: piece.range,
                source: match &piece.source {
                    Source::Subfile(sub) => Source::Subfile(SubfilePiece {
                        subfile: Arc::new(Subfile::new(sub.subfile.row().clone())),
                        ..sub.clone()
                    }),
                    other => other.clone(),
                },
            })
            .collect(),
        ..old
    };
    let error = file
        .read(&fresh, &mut vec![0; STRIPE as usize], None)
        .unwrap_err();
    assert!(matches!(error, StoreError::Vanished { .. }), "{error}");
    rig.file = Some(file);
    rig.check(ByteRange::new(0, STRIPE), "after another look");
}

/// S5.3, S9.1: bytes of a subfile that changed underneath are never served.
#[test]
fn a_damaged_subfile_is_never_served() {
    let mut rig = Rig::new();
    rig.write(0, STRIPE);
    let done = rig.copy_to_subfile(1);
    rig.file().subfiled(&done).unwrap();
    let subfile = rig.file().subfiles().pop().unwrap();
    let path = rig.dir.path().join("subfiles").join(&subfile.row().name);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let plan = rig.file().plan(ByteRange::new(50, 200)).unwrap();
    let error = rig.file().read(&plan, &mut [0; 150], None).unwrap_err();
    assert!(
        matches!(error, StoreError::SubfileChecksum { .. }),
        "{error}"
    );
    assert_eq!(rig.file().damage().len(), 1);
}

/// S9.2: bytes that are being copied to a subfile that is retired meanwhile stay in the log.
#[test]
fn nothing_is_recorded_in_a_subfile_that_is_gone() {
    let mut rig = Rig::new();
    rig.write(0, 2 * STRIPE);
    let done = rig.copy_to_subfile(usize::MAX);
    rig.file().retire_empty_subfiles(0).unwrap();
    rig.remove_retired(false);
    assert_eq!(rig.subfiles_there(), 0);
    assert_eq!(rig.file().subfiled(&done).unwrap(), 0);
    rig.check(ByteRange::new(0, SPACE), "after the subfile is gone");
    rig.crash();
    rig.check(ByteRange::new(0, SPACE), "and a crash");
    rig.drain_all();
}
