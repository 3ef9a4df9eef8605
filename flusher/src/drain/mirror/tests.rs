//! S11.1: what a copy has is what the canonical file has, whatever the drain did to it.

use super::*;
use layout_index::{FileId, RealDisk, RealFile, Store, StoreOptions};
use std::os::unix::fs::FileExt;

const ID: FileId = FileId { ino: 7, birth: 1 };

struct Rig {
    dir: tempfile::TempDir,
    store: Arc<Store>,
    mirror: Arc<Mirror>,
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
        let kept = store.kept().clone();
        let copy = kept.fill_anew(ID).unwrap();
        let mirror = Mirror::new(Arc::new(RealFile(canonical)), kept, copy, true);
        Rig { dir, store, mirror }
    }

    fn write(&self, data: &[u8], at: u64) {
        self.mirror.write_at(&[IoSlice::new(data)], at).unwrap();
    }

    /// The copy's word for every byte that it has, against the canonical file.
    fn compare(&self) -> u64 {
        self.mirror.complete(self.mirror.version());
        let file = self.store.file(ID);
        assert!(file.check_kept(|| self.mirror.look()), "no copy");
        let want = std::fs::read(self.dir.path().join("canonical")).unwrap();
        let below = std::fs::File::open(self.dir.path().join("canonical")).unwrap();
        let mut has = 0;
        for (at, want) in want.iter().enumerate() {
            let mut byte = [0xee];
            if file.read_kept(&mut byte, at as u64, None).unwrap() == Some(1) {
                has += 1;
                assert_eq!(byte[0], *want, "byte {at}");
            }
        }
        let mut got = vec![0xee; want.len() + 10];
        let below: RealFile = RealFile(below);
        let n = file.read_kept(&mut got, 0, Some(&below)).unwrap().unwrap();
        assert_eq!(&got[..n], &want[..]);
        has
    }
}

impl Mirror {
    fn look(&self) -> io::Result<Version> {
        self.canonical.version()
    }
}

#[test]
fn writes_holes_and_cuts_are_in_both() {
    let rig = Rig::new();
    rig.write(&[1; 20_000], 0);
    rig.write(&[2; 5_000], 30_000);
    rig.write(&[3; 100], 10_000);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    rig.mirror.allocate(punch, 4_000, 9_000).unwrap();
    rig.mirror.set_len(16_000).unwrap();
    rig.mirror.set_len(32_000).unwrap();
    rig.write(&[4; 10], 31_990);
    assert_eq!(rig.compare(), 16_010);
}

#[test]
fn a_write_that_fails_below_ends_the_copy() {
    let rig = Rig::new();
    rig.write(&[1; 100], 0);
    let read_only = std::fs::File::open(rig.dir.path().join("canonical")).unwrap();
    let broken = Mirror {
        canonical: Arc::new(RealFile(read_only)),
        kept: rig.store.kept().clone(),
        copy: rig.mirror.copy.clone(),
        shared: true,
    };
    assert!(broken.write_at(&[IoSlice::new(&[2; 100])], 50).is_err());
    assert_eq!(rig.store.kept().totals().files, 0);
    // And the drain's next write does not notice.
    rig.write(&[3; 100], 0);
    assert_eq!(rig.store.kept().totals().files, 0);
}

/// A program without the overlay wrote the file between two jobs.
#[test]
fn what_somebody_else_changed_between_two_jobs_is_not_kept() {
    let rig = Rig::new();
    rig.write(&[1; 100], 0);
    rig.mirror.pause();
    let foreign = std::fs::File::options()
        .write(true)
        .open(rig.dir.path().join("canonical"))
        .unwrap();
    let kept = rig.store.kept();
    let same = kept.fill(ID, rig.mirror.look().ok(), false).unwrap();
    assert!(Arc::ptr_eq(&same, &rig.mirror.copy));
    foreign.write_all_at(&[9; 10], 50).unwrap();
    let other = kept.fill(ID, rig.mirror.look().ok(), false).unwrap();
    assert!(!Arc::ptr_eq(&other, &rig.mirror.copy));
    assert_eq!(other.bytes(), 0);
}
