//! Runs pjdfstest (crates.io, 0.2.2), the POSIX conformance suite: names, modes, owners, times and the errors of
//! every call. The cases that do not pass are in conformance/exclusions.txt with a reason.
//!
//! Checks S1.6, S1.11, S1.13, S1.16 and S8.1.

use forebay_tests::prereq;
use forebay_tests::test_mount::{Drain, TestMount, text};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Fewer passed cases would mean that the suite no longer does what it did when this was written.
const LEAST_PASSED: usize = 370;

struct Exclusions {
    fail: BTreeMap<String, String>,
    skip: Vec<String>,
    again: Vec<String>,
}

fn exclusions() -> Exclusions {
    let mut list = Exclusions {
        fail: BTreeMap::new(),
        skip: Vec::new(),
        again: Vec::new(),
    };
    for line in include_str!("../conformance/exclusions.txt").lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, reason) = line.split_once(' ').expect("a reason beside every name");
        assert!(!reason.trim().is_empty(), "{name} has no reason");
        if name == "skipped" || name == "again" {
            let (case, _) = reason.split_once(' ').expect("a reason beside every name");
            let cases = if name == "again" {
                &mut list.again
            } else {
                &mut list.skip
            };
            cases.push(case.into());
        } else {
            list.fail.insert(name.into(), reason.into());
        }
    }
    list
}

/// Compares a name with a pattern, in which `*` stands for anything, at the start and at the end.
fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(inner), Some(_)) => name.contains(inner.trim_end_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

/// S8.1, S1.13: all cases but the listed ones pass.
#[test]
fn pjdfstest() {
    let program = prereq::tool("pjdfstest", "0.2.2");
    let mut mount = TestMount::new(Drain::Immediate);
    mount.start();
    let dir = mount.path("pjdfstest");
    std::fs::create_dir(&dir).expect("mkdir");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let other = tempfile::tempdir_in("/dev/shm").expect("a directory on another file system");
    let run = |cases: &[&str]| {
        let out = Command::new(&program)
            .arg("-c")
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/conformance/pjdfstest.toml"
            ))
            .arg("-p")
            .arg(&dir)
            .arg("-s")
            .arg(other.path())
            .args(cases)
            .output()
            .expect("start pjdfstest");
        text(&out)
    };
    let said = run(&[]);

    let listed = exclusions();
    let mut wrong = Vec::new();
    let mut passed = BTreeSet::new();
    let mut lines = said.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, verdict)) = line.rsplit_once(char::is_whitespace) else {
            continue;
        };
        let name = name.trim();
        let detail = lines.peek().filter(|next| next.starts_with('\t'));
        match verdict {
            "ok" => {
                passed.insert(name.to_owned());
            }
            "FAILED" if listed.again.iter().any(|case| case == name) => {
                let alone = run(&["--exact", &format!("pjdfstest::tests::{name}")]);
                if alone.contains("FAILED") || !alone.contains(" ok") {
                    wrong.push(format!("{name} failed, and alone too: {alone}"));
                }
            }
            "FAILED" if !listed.fail.contains_key(name) => {
                wrong.push(format!("{name} failed: {detail:?}"));
            }
            "skipped" if !listed.skip.iter().any(|pattern| matches(pattern, name)) => {
                wrong.push(format!("{name} was skipped: {detail:?}"));
            }
            _ => {}
        }
    }
    for name in listed.fail.keys().filter(|name| passed.contains(*name)) {
        wrong.push(format!("{name} passes: take it off the list of exclusions"));
    }
    if passed.len() < LEAST_PASSED {
        wrong.push(format!("only {} cases passed", passed.len()));
    }
    assert!(wrong.is_empty(), "{}\n---\n{said}", wrong.join("\n"));
    println!("pjdfstest: {} cases passed", passed.len());
    mount.finish();
}
