//! Runs fsx (crates.io, 0.3.2): 100,000 random operations on one file, with every byte and the size checked after
//! each. The operations are chosen in conformance/fsx.toml.
//!
//! Checks S1.1, S1.2, S1.4, S1.8, S1.10, S1.17 and S6.3.

use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, text};
use forebay_tests::{prereq, rng};
use std::process::Command;
use std::time::Duration;

/// S6.3: the drain writes the same file all the while, as fast as it can.
#[test]
fn fsx_while_draining() {
    run(Drain::Immediate);
}

/// S1.1: everything stays in the log.
#[test]
fn fsx_without_drain() {
    run(Drain::Never);
}

fn run(drain: Drain) {
    let fsx = prereq::tool("fsx", "0.3.2");
    // fsx takes a seed of 32 bits.
    let seed = rng::seed(&format!("fsx, drain {}", drain.key())) & 0xffff_ffff;
    let operations = rng::count("FOREBAY_FSX_OPS", 100_000);
    let mut mount = TestMount::with_limit(drain, Duration::from_secs(900 + operations / 100));
    mount.start();
    let artifacts = mount.root().join("artifacts");
    std::fs::create_dir(&artifacts).expect("make a directory");
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/fsx.toml");
    let fsx = |seed: u64| {
        let out = Command::new(&fsx)
            .args(["-f", config, "-N", &operations.to_string()])
            .args(["-S", &seed.to_string()])
            .arg("-P")
            .arg(&artifacts)
            .arg(mount.path("fsx"))
            .output()
            .expect("start fsx");
        let said = text(&out);
        (out, said)
    };
    let (mut out, mut said) = fsx(seed);
    // Now and then fsx asks for an allocation of zero bytes, which every file system refuses.
    let refused = |said: &str| {
        let last = said.lines().next_back().unwrap_or_default();
        last.contains("POSIX_FALLOCATE") && last.contains(" 0x0 bytes)")
    };
    for another in 1..4 {
        if !refused(&said) {
            break;
        }
        (out, said) = fsx(seed.wrapping_add(another) & 0xffff_ffff);
    }
    let last: Vec<&str> = said.lines().rev().take(40).collect();
    assert!(
        out.status.success(),
        "fsx -S {seed}: {}\n{}",
        out.status,
        last.into_iter().rev().collect::<Vec<_>>().join("\n")
    );
    let seen = get(mount.path("fsx"));
    mount.umount();
    assert_same(
        "fsx's file in the backing",
        &get(mount.canonical("fsx")),
        &seen,
    );
    mount.finish();
}
