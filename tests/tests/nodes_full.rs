//! Two nodes write one file while the file system below is full.

use forebay_tests::loopfs::LoopFs;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw};
use std::fs::File;

const MIB: usize = 1 << 20;

/// Size of a piece: each node writes every other piece.
const PIECE: usize = 64 << 10;

const ROUNDS: usize = 2;

/// S7.2: on a full file system fsync and close return only that file system's own error, ENOSPC. When there is room
/// again, everything is drained.
#[test]
fn only_the_backings_own_error() {
    let home = tempfile::tempdir().expect("a directory");
    let below = home.path().join("below");
    let full = LoopFs::new(&home.path().join("image"), &below, 96 << 20);
    let mut mounts = ["a", "b"].map(|node| {
        let mut mount = TestMount::new(Drain::Immediate);
        mount.set_backing(full.dir()).set("node", node);
        // Each of these lines says what is full, and for which file.
        mount.allow_log("No space left").allow_log("it is full");
        mount.allow_log("no storage target takes its data");
        // Bytes that were there before are overwritten without a sync point in between (S2.16).
        mount.allow_log("has written the same bytes");
        mount.start();
        mount
    });
    let filler = full.dir().join("filler");
    let files = mounts.each_ref().map(|mount| open_rw(mount.path("f")));
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
    for mount in &mounts {
        mount.drain();
    }
    drop(files);
    for mount in &mut mounts {
        mount.umount();
    }
    let mut want = [vec![1; PIECE], vec![2; PIECE]]
        .concat()
        .repeat(ROUNDS * 8 * MIB / 2 / PIECE);
    want.truncate(ROUNDS * 8 * MIB);
    assert_same("the file", &get(full.dir().join("f")), &want);
}

/// Fills the file system until nothing more goes in.
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
