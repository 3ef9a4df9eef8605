//! Nodes that publish and die, and the command that drains what they left.

// Each test file is a crate of its own and uses only a part of this module.
#![allow(dead_code)]

use crate::nodes_pair::Shared;
use forebay_tests::rng::Rng;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, get, open_rw};
use forebay_tests::wait::{in_background, in_time};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

pub fn data(seed: u64, size: usize) -> Vec<u8> {
    Rng::new(seed).bytes(size)
}

/// Makes a node that publishes at each close before the close returns, and drains nothing by itself.
pub fn publisher(shared: &Shared, name: &str) -> TestMount {
    let mut node = shared.mortal(name, Drain::Never);
    node.set("close", "publish");
    expects_deaths(&mut node);
    node
}

/// Allows the log lines with which other nodes report a death.
pub fn expects_deaths(node: &mut TestMount) {
    for said in ["lease", "the shared directory", "took over"] {
        node.allow_log(said);
    }
}

/// Returns a machine that mounts nothing: the test mount only lends its surroundings.
pub fn login() -> TestMount {
    TestMount::new(Drain::Never)
}

/// Writes through a handle of its own, and closes it.
pub fn write_at(node: &TestMount, name: &str, at: usize, bytes: &[u8]) {
    let file = open_rw(node.path(name));
    sys::write_all_at(&file, bytes, at as u64).expect("write");
    sys::close(file).expect("close");
}

pub fn read_on(node: &TestMount, name: &str) -> Vec<u8> {
    let path = node.path(name);
    in_time("reading", in_background(move || get(path)))
}

pub fn mtime(path: impl AsRef<Path>) -> i64 {
    sys::mtime(&fs::metadata(path).expect("stat"))
}

pub fn no_paths() -> Vec<PathBuf> {
    Vec::new()
}

/// Applies a write to the expected content of a file that several nodes write in turn.
pub fn overlay(want: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    want.resize(want.len().max(end), 0);
    want[at..end].copy_from_slice(bytes);
}

/// Starts the command and does not wait for it.
pub fn adopter(login: &TestMount, shared: &Shared) -> Child {
    let backing = shared.backing();
    let mut command = login.forebay(["drain".as_ref(), "--adopt".as_ref(), backing.as_os_str()]);
    command
        .arg("--json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    sys::die_with_parent(&mut command);
    command.spawn().expect("start forebay")
}

/// Runs `forebay drain --adopt` to its end.
pub fn adopt(login: &TestMount, shared: &Shared, options: &[&str]) -> Output {
    let backing = shared.backing();
    let mut args = vec!["drain".as_ref(), "--adopt".as_ref(), backing.as_os_str()];
    args.extend(options.iter().map(OsStr::new));
    login.run(args)
}
