//! Two nodes write one file, and the file system below is full.

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw};
use forebay_tests::loopfs::LoopFs;
use forebay_tests::sys;
use std::fs::File;

const MIB: usize = 1 << 20;

/// Bytes of one node: every other one of these.
const PIECE: usize = 64 << 10;

const ROUNDS: usize = 2;

/// S7.2: whatever fsync and close say on a full file system is what that says: ENOSPC. When there is room
/// again all of it is drained.
#[test]
fn only_the_backings_own_error() {
    let home = tempfile::tempdir().expect("a directory");
    let below = home.path().join("below");
    let full = LoopFs::new(&home.path().join("image"), &below, 96 << 20);
    let mut bays = ["a", "b"].map(|node| {
        let mut bay = Bay::new(Drain::Immediate);
        bay.set_backing(full.dir()).set("node", node);
        // Each of these says what is full, and for which file.
        bay.allow_log("No space left").allow_log("it is full");
        bay.allow_log("no storage target takes its data");
        // What was there before is written over without a sync point in between (S2.16).
        bay.allow_log("has written the same bytes");
        bay.start();
        bay
    });
    let filler = full.dir().join("filler");
    let files = bays.each_ref().map(|bay| open_rw(bay.path("f")));
    for (node, file) in files.iter().enumerate() {
        sys::write_all_at(file, &[9; 100], node as u64 * 100).expect("write");
        file.sync_all().expect("there is room");
    }
    fill(&filler);
    let mut said = Vec::new();
    for round in 0..ROUNDS {
        for (node, file) in files.iter().enumerate() {
            for at in (0..8 * MIB).step_by(2 * PIECE) {
                let at = (round * 8 * MIB + at + node * PIECE) as u64;
                sys::write_all_at(file, &[1 + node as u8; PIECE], at).expect("write");
            }
            let synced = file.sync_all().map_err(|e| e.raw_os_error());
            said.push((round, node, synced));
        }
    }
    let wrong = |(_, _, said): &&(_, _, Result<_, _>)| *said != Err(Some(libc::ENOSPC));
    let wrong: Vec<_> = said.iter().filter(wrong).collect();
    assert!(wrong.is_empty(), "round, node, answer: {wrong:?}");
    std::fs::remove_file(&filler).expect("make room");
    for bay in &bays {
        bay.drain();
    }
    drop(files);
    for bay in &mut bays {
        bay.umount();
    }
    let mut want = [vec![1; PIECE], vec![2; PIECE]]
        .concat()
        .repeat(ROUNDS * 8 * MIB / 2 / PIECE);
    want.truncate(ROUNDS * 8 * MIB);
    assert_same("the file", &get(full.dir().join("f")), &want);
}

/// Until nothing more goes in.
fn fill(path: &std::path::Path) {
    let file = File::create(path).expect("make the filler");
    let mut at = 0;
    for size in [MIB, 4096] {
        while sys::write_all_at(&file, &vec![0; size], at).is_ok() {
            at += size as u64;
        }
    }
    file.sync_all().expect("sync the filler");
}
