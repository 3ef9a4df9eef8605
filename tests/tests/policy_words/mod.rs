//! Helpers for attributes, and for what `forebay explain` says of a file.

// Each test file is a crate of its own and uses only a part of this module.
#![allow(dead_code)]

use forebay_tests::cli::str;
use forebay_tests::sys;
use forebay_tests::test_mount::{TestMount, text};
use serde_json::Value;
use std::path::Path;

/// Sets `user.forebay.KEY`.
pub fn set(path: &Path, key: &str, value: &str) {
    let name = format!("user.forebay.{key}");
    sys::set_xattr(path, &name, value.as_bytes(), 0)
        .unwrap_or_else(|e| panic!("set {name} = {value} on {}: {e}", path.display()));
}

pub fn unset(path: &Path, key: &str) {
    let name = format!("user.forebay.{key}");
    sys::remove_xattr(path, &name).unwrap_or_else(|e| panic!("remove {name}: {e}"));
}

/// Returns everything that `forebay explain --json` says.
pub fn explain(mount: &TestMount, path: &Path, more: &[&str]) -> Value {
    let mut args = vec!["explain", str(path), "--json"];
    args.extend(more);
    let out = mount.run(args);
    assert!(out.status.success(), "{}", text(&out));
    serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("explain is not JSON ({e}): {}", text(&out)))
}

/// Returns one key of it: the value, and the source that decided.
pub fn key(explained: &Value, key: &str) -> (String, String) {
    let keys = explained["keys"].as_array().expect("keys");
    let found = keys.iter().find(|k| k["key"] == key);
    let found = found.unwrap_or_else(|| panic!("no {key} in {explained:#}"));
    let by = match found["from"].as_str().expect("from") {
        "directory" => format!(
            "directory {}",
            found["directory"].as_str().expect("directory")
        ),
        "rule" => format!("rule {} line {}", found["rule"], found["line"]),
        other => other.to_owned(),
    };
    (found["value"].as_str().expect("value").to_owned(), by)
}

/// Asserts one key of a file in the mount.
pub fn assert_key(mount: &TestMount, name: &str, of: &str, value: &str, by: &str) {
    let explained = explain(mount, &mount.path(name), &[]);
    let want = (value.to_owned(), by.to_owned());
    assert_eq!(key(&explained, of), want, "{of} of {name}: {explained:#}");
}

/// Returns the undrained bytes of one file.
pub fn undrained(mount: &TestMount, name: &str) -> u64 {
    let files = mount.status().files();
    let found = files.into_iter().find(|(path, _)| path == name);
    found.map_or(0, |(_, bytes)| bytes)
}
