//! A mount over a simulated parallel file system that counts what is read of it.

// Each test file is a crate of its own and uses its part of this.
#![allow(dead_code)]

#[path = "../nodes_pair/mod.rs"]
pub mod nodes_pair;

use forebay_tests::bay::{Bay, Drain, assert_same, get, text};
use forebay_tests::cli::str;
use nodes_pair::{Shared, list};
use pfs_sim::Sim;
use serde_json::Value;
use std::path::Path;

pub fn sim() -> Shared {
    Shared::simulated(Sim::builder().osts(2).stripe("1M", 2))
}

/// A node that is not started yet.
pub fn node(shared: &Shared, drain: Drain) -> Bay {
    shared.node("n0", drain)
}

/// Bytes that were ever read from the files below.
pub fn bytes_read(shared: &Shared) -> u64 {
    let counters = shared.sim().counters().expect("read the counters");
    counters.total.bytes_read
}

pub fn prefetch(bay: &Bay, path: &Path) -> Value {
    let out = bay.run(["prefetch", str(path), "--json"]);
    serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("prefetch --json ({e}): {}", text(&out)))
}

pub fn kept(bay: &Bay) -> (u64, u64) {
    let status = bay.status();
    (status.number("/kept/files"), status.number("/kept/bytes"))
}

/// What there is in the store beside the log: data files and sidecars.
pub fn files(bay: &Bay, kind: &str) -> usize {
    let names = list(&bay.store().join("kept"));
    let is = |p: &&std::path::PathBuf| p.extension().is_some_and(|e| e == "ranges");
    match kind {
        "sidecars" => names.iter().filter(is).count(),
        _ => names.len(),
    }
}

/// Reads the file through the mount, and fails if that read anything below.
pub fn reads_here(shared: &Shared, bay: &Bay, name: &str, want: &[u8]) {
    let before = bytes_read(shared);
    assert_same(name, &get(bay.path(name)), want);
    assert_eq!(bytes_read(shared), before, "{name} was read below");
}
