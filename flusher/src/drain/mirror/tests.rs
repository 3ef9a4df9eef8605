//! S11.1: the copy has the bytes of the canonical file, whatever the drain did to that file.

use super::*;
use crate::drain::canonical_file::{CanonicalFile, Gate};
use layout_index::{FileId, RealDisk, RealFile, Store, StoreOptions};
use std::os::unix::fs::FileExt;

const ID: FileId = FileId { ino: 7, birth: 1 };

struct Rig {
    dir: tempfile::TempDir,
    store: Arc<Store>,
    mirror: Arc<Mirror>,
    canonical: CanonicalFile,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            dir: dir.path().join("store"),
            node: "n0".into(),
            backing: "/backing".into(),
            index_memory: 4 << 20,
            space: layout_index::SpaceOptions {
                capacity: Some(64 << 20),
                ..Default::default()
            },
        };
        let (store, _) = Store::open(options, Arc::new(RealDisk)).unwrap();
        let canonical = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(dir.path().join("canonical"))
            .unwrap();
        let copies = store.local_copies().clone();
        let copy = copies.fill_anew(ID).unwrap();
        let mirror = Arc::new(Mirror::new(copies, copy, true));
        let below = Arc::new(RealFile(canonical));
        Rig {
            dir,
            store,
            canonical: CanonicalFile::new(below, Gate::Open, Some(mirror.clone())),
            mirror,
        }
    }

    fn write(&self, data: &[u8], at: u64) {
        self.canonical.write_at(&[IoSlice::new(data)], at).unwrap();
    }

    /// Compares every byte that the copy has with the canonical file, and returns how many bytes it
    /// has.
    fn compare(&self) -> u64 {
        self.mirror.complete(version_after_change(&self.canonical));
        let file = self.store.file(ID);
        assert!(
            file.check_local_copy(|| self.canonical.version()),
            "no copy"
        );
        let want = std::fs::read(self.dir.path().join("canonical")).unwrap();
        let below = std::fs::File::open(self.dir.path().join("canonical")).unwrap();
        let mut has = 0;
        for (at, want) in want.iter().enumerate() {
            let mut byte = [0xee];
            if file.read_local_copy(&mut byte, at as u64, None).unwrap() == Some(1) {
                has += 1;
                assert_eq!(byte[0], *want, "byte {at}");
            }
        }
        let mut got = vec![0xee; want.len() + 10];
        let below: RealFile = RealFile(below);
        let n = file
            .read_local_copy(&mut got, 0, Some(&below))
            .unwrap()
            .unwrap();
        assert_eq!(&got[..n], &want[..]);
        has
    }
}

#[test]
fn writes_holes_and_cuts_are_in_both() {
    let rig = Rig::new();
    rig.write(&[1; 20_000], 0);
    rig.write(&[2; 5_000], 30_000);
    rig.write(&[3; 100], 10_000);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    rig.canonical.allocate(punch, 4_000, 9_000).unwrap();
    rig.canonical.set_len(16_000).unwrap();
    rig.canonical.set_len(32_000).unwrap();
    rig.write(&[4; 10], 31_990);
    assert_eq!(rig.compare(), 16_010);
}

#[test]
fn a_write_that_fails_below_ends_the_copy() {
    let rig = Rig::new();
    rig.write(&[1; 100], 0);
    let read_only = std::fs::File::open(rig.dir.path().join("canonical")).unwrap();
    let below = Arc::new(RealFile(read_only));
    let broken = CanonicalFile::new(below, Gate::Open, Some(rig.mirror.clone()));
    assert!(broken.write_at(&[IoSlice::new(&[2; 100])], 50).is_err());
    assert_eq!(rig.store.local_copies().totals().files, 0);
    // The drain's next write does not notice that the copy is gone.
    rig.write(&[3; 100], 0);
    assert_eq!(rig.store.local_copies().totals().files, 0);
}

/// A program without the overlay wrote the file between two jobs.
#[test]
fn changes_of_others_between_two_jobs_are_not_kept() {
    let rig = Rig::new();
    rig.write(&[1; 100], 0);
    rig.mirror.pause(&rig.canonical);
    let foreign = std::fs::File::options()
        .write(true)
        .open(rig.dir.path().join("canonical"))
        .unwrap();
    let copies = rig.store.local_copies();
    let same = copies
        .fill(ID, rig.canonical.version().ok(), false)
        .unwrap();
    assert!(Arc::ptr_eq(&same, &rig.mirror.copy));
    foreign.write_all_at(&[9; 10], 50).unwrap();
    let other = copies
        .fill(ID, rig.canonical.version().ok(), false)
        .unwrap();
    assert!(!Arc::ptr_eq(&other, &rig.mirror.copy));
    assert_eq!(other.bytes(), 0);
}

/// The lease ran out before the job ended: another node may have written what the copy does not
/// have.
#[test]
fn a_job_that_lost_its_lease_leaves_no_copy() {
    let rig = Rig::new();
    rig.write(&[1; 100], 0);
    rig.mirror.pause(&rig.canonical.with_gate(Gate::Closed));
    let Rig {
        store,
        mirror,
        canonical,
        ..
    } = rig;
    let version = canonical.version().ok();
    drop((mirror, canonical));
    assert_eq!(store.local_copies().totals().files, 0);
    assert_eq!(
        store
            .local_copies()
            .fill(ID, version, false)
            .unwrap()
            .bytes(),
        0
    );
}
