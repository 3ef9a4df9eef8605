//! Tests what one of several nodes may forget over a power failure.
//!
//! Checks S2 and S5.2: other nodes go by what this one told them, and it must not fall back behind that.

use forebay_crash::image::{Loss, Simulation};
use forebay_crash::recorder::Recorder;
use forebay_crash::rig::{CAPACITY, Rig, options};
use forebay_crash::{drain, scratch};
use layout_index::{RealDisk, Store};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::sync::Arc;

/// A file that this node has drained alone is clean, and other nodes are told that nothing is pending: they write
/// it. A power failure then must not bring the drained bytes back, over theirs.
#[test]
fn what_was_drained_alone_stays_drained() {
    let dir = scratch().unwrap();
    let (root, copies, image) = ["live", "copies", "image"]
        .map(|n| dir.path().join(n))
        .into();
    for path in [&root, &copies, &root.join("backing")] {
        std::fs::create_dir_all(path).unwrap();
    }
    let recorder = Recorder::new(&root, &copies);
    let clock = {
        let recorder = recorder.clone();
        Arc::new(move || recorder.now())
    };
    let mut rig = Rig::new(&root, Arc::new(recorder.clone()), clock, 1, CAPACITY).unwrap();
    rig.open().unwrap();
    rig.write(0, 0, 0, 100_000).unwrap();
    rig.fsync(0).unwrap();
    let (file, canonical) = (rig.file(0), rig.slots[0].canonical.clone());
    drain::pass(&file, &*canonical, usize::MAX, |_| Ok(())).unwrap();
    assert!(file.finish(&*canonical, false).unwrap(), "all was drained");
    assert!(file.is_clean());

    let recording = recorder.finish();
    drop(file);
    rig.kill();
    let mut disk = Simulation::default();
    recording
        .events
        .iter()
        .for_each(|event| disk.advance(event));
    let index = recording.indexes.last().map(|index| index.path.as_path());
    let mut rng = StdRng::seed_from_u64(1);
    disk.build(Loss::Synced, &mut rng, index, &image).unwrap();
    let (store, _) = Store::open(options(&image, CAPACITY), Arc::new(RealDisk)).unwrap();
    let back: Vec<_> = store.dirty_files().iter().map(|file| file.id()).collect();
    assert_eq!(back, [], "drained, and back again");
}
