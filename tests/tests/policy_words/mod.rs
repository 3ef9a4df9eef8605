//! Attributes, and what `forebay explain` says of a file.

// Each test file is a crate of its own and uses its part of this.
#![allow(dead_code)]

use forebay_tests::bay::{Bay, text};
use forebay_tests::cli::str;
use forebay_tests::sys;
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

/// All that `forebay explain --json` says.
pub fn explain(bay: &Bay, path: &Path, more: &[&str]) -> Value {
    let mut args = vec!["explain", str(path), "--json"];
    args.extend(more);
    let out = bay.run(args);
    assert!(out.status.success(), "{}", text(&out));
    serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("explain is not JSON ({e}): {}", text(&out)))
}

/// One key of it: the value, and who decided.
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
pub fn assert_key(bay: &Bay, name: &str, of: &str, value: &str, by: &str) {
    let explained = explain(bay, &bay.path(name), &[]);
    let want = (value.to_owned(), by.to_owned());
    assert_eq!(key(&explained, of), want, "{of} of {name}: {explained:#}");
}

/// Undrained bytes of one file.
pub fn undrained(bay: &Bay, name: &str) -> u64 {
    let files = bay.status().files();
    let found = files.into_iter().find(|(path, _)| path == name);
    found.map_or(0, |(_, bytes)| bytes)
}
