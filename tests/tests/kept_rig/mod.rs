//! A mount over a simulated parallel file system that counts what is read from it.

// Each test file is a crate of its own and uses only a part of this module.
#![allow(dead_code)]

#[path = "../nodes_pair/mod.rs"]
pub mod nodes_pair;

use forebay_tests::cli::str;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, text};
use nodes_pair::{Shared, list};
use pfs_sim::Sim;
use serde_json::Value;
use std::path::Path;

pub fn sim() -> Shared {
    Shared::simulated(Sim::builder().osts(2).stripe("1M", 2))
}

/// Makes a node, which is not started yet.
pub fn node(shared: &Shared, drain: Drain) -> TestMount {
    shared.node("n0", drain)
}

/// Returns the number of bytes that were ever read from the files below.
pub fn bytes_read(shared: &Shared) -> u64 {
    let counters = shared.sim().counters().expect("read the counters");
    counters.total.bytes_read
}

pub fn prefetch(mount: &TestMount, path: &Path) -> Value {
    let out = mount.run(["prefetch", str(path), "--json"]);
    serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("prefetch --json ({e}): {}", text(&out)))
}

pub fn kept(mount: &TestMount) -> (u64, u64) {
    let status = mount.status();
    (status.number("/kept/files"), status.number("/kept/bytes"))
}

/// Counts the files of local copies in the store: the sidecars, or data files and sidecars.
pub fn files(mount: &TestMount, kind: &str) -> usize {
    let names = list(&mount.store().join("kept"));
    let is = |p: &&std::path::PathBuf| p.extension().is_some_and(|e| e == "ranges");
    match kind {
        "sidecars" => names.iter().filter(is).count(),
        _ => names.len(),
    }
}

/// Reads the file through the mount, and fails if that reads anything from the backing.
pub fn reads_here(shared: &Shared, mount: &TestMount, name: &str, want: &[u8]) {
    let before = bytes_read(shared);
    assert_same(name, &get(mount.path(name)), want);
    assert_eq!(bytes_read(shared), before, "{name} was read below");
}
