//! Tests a process that has no descriptors left. It is a test program of its own, because the limit
//! applies to the whole process.

use layout_index::{FileId, Intro, RealDisk, SpaceOptions, Store, StoreOptions};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::sync::Arc;

/// S7.6: a sync for which no descriptor can be opened loses nothing, and does not count as a
/// failure of the store's disk.
#[test]
fn a_store_outlives_want_of_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions {
        dir: dir.path().join("store"),
        node: "n0".into(),
        backing: "/backing".into(),
        index_memory: 4 << 20,
        space: SpaceOptions {
            capacity: Some(32 << 20),
            ..SpaceOptions::default()
        },
    };
    let (store, _) = Store::open(options, Arc::new(RealDisk)).unwrap();
    let file = store.file(FileId { ino: 42, birth: 1 });
    file.exclusive().begin(Intro::default()).unwrap();
    // Makes a segment, whose name the next sync makes durable.
    file.write(0, 0, &[7; 5000]).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
    let opened = std::fs::File::open(dir.path());
    let synced = store.sync();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let error = opened.expect_err("there is none left");
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    synced.unwrap();
    assert!(store.failure().is_none());
    file.write(0, 5000, &[8; 5000]).unwrap();
    store.sync().unwrap();
}
