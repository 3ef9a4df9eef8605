//! Exit codes, and the one sentence of a refusal.

use crate::test_mount::text;
use std::path::Path;
use std::process::Output;

/// Done; for drain and umount: everything is in the canonical files.
pub const OK: i32 = 0;
pub const FAILED: i32 = 1;
pub const USAGE: i32 = 2;
pub const STILL_DIRTY: i32 = 3;
pub const BUSY: i32 = 4;
pub const NO_DAEMON: i32 = 5;
pub const DAMAGED: i32 = 6;
/// Only root, the daemon's user or the file's owner may do this.
pub const DENIED: i32 = 7;

pub fn code(out: &Output) -> i32 {
    out.status.code().expect("forebay ends by itself")
}

/// Checks that the command failed with this exit code and one sentence on standard error that contains these
/// words.
pub fn assert_refused(out: &Output, want: Option<i32>, words: &[&str]) {
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success(), "it went through: {}", text(out));
    if let Some(want) = want {
        assert_eq!(code(out), want, "exit code; it said: {said}");
    }
    for word in words {
        assert!(said.contains(word), "\"{word}\" is not in: {said}");
    }
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    assert_eq!(lines.len(), 1, "one clear sentence, not: {said}");
    assert!(!said.contains("panicked"), "{said}");
}

pub fn str(path: &Path) -> &str {
    path.to_str().expect("test paths are plain text")
}
