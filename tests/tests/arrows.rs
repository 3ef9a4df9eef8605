//! Who may import whom. The arrows keep the parts replaceable: a second transport beside fuser,
//! another drain beside tokio, the store under other tools.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the workspace").to_owned()
}

/// Package name to names of what it depends on, by kind: `normal` includes build dependencies.
struct Dependencies {
    normal: BTreeMap<String, BTreeSet<String>>,
    dev: BTreeMap<String, BTreeSet<String>>,
}

fn metadata(options: &[&str]) -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--offline", "--locked"])
        .args(options)
        .current_dir(root())
        .output()
        .expect("start cargo");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    serde_json::from_slice(&out.stdout).expect("metadata is JSON")
}

fn dependencies() -> Dependencies {
    let metadata = metadata(&["--no-deps"]);
    let mut found = Dependencies {
        normal: BTreeMap::new(),
        dev: BTreeMap::new(),
    };
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name").to_owned();
        let of = |dev: bool| {
            let list = package["dependencies"].as_array().expect("dependencies");
            list.iter()
                .filter(|d| (d["kind"].as_str() == Some("dev")) == dev)
                .map(|d| d["name"].as_str().expect("a name").to_owned())
                .collect()
        };
        found.normal.insert(name.clone(), of(false));
        found.dev.insert(name, of(true));
    }
    found
}

const OURS: [&str; 4] = ["layout-index", "flusher", "forebay-fs", "mount-tools"];

/// The design's arrows. Tests of a crate may not bend them either.
#[test]
fn arrows_between_crates() {
    let found = dependencies();
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("layout-index", &[][..]),
        ("flusher", &["layout-index"][..]),
        ("forebay-fs", &["layout-index"][..]),
        (
            "mount-tools",
            &["layout-index", "flusher", "forebay-fs"][..],
        ),
    ]);
    for (name, allowed) in allowed {
        for kind in [&found.normal, &found.dev] {
            let deps = kind.get(name);
            let deps = deps.unwrap_or_else(|| panic!("{name} is not a package of this workspace"));
            for dep in deps.iter().filter(|dep| OURS.contains(&dep.as_str())) {
                assert!(
                    allowed.contains(&dep.as_str()),
                    "{name} must not import {dep}; the arrows are in docs/ARCHITECTURE.md"
                );
            }
        }
    }
}

/// fuser lives in fs (and in the two file systems that Forebay is measured against and on), tokio
/// in flusher.
#[test]
fn frameworks_stay_in_their_crate() {
    let found = dependencies();
    for (name, deps) in &found.normal {
        let bench = name == "pfs-sim" || name.starts_with("forebay-") && name != "forebay-fs";
        if name != "forebay-fs" && !bench {
            assert!(!deps.contains("fuser"), "{name} must not import fuser");
        }
        if name != "flusher" {
            assert!(!deps.contains("tokio"), "{name} must not import tokio");
        }
        if name != "layout-index" && OURS.contains(&name.as_str()) {
            assert!(!deps.contains("rocksdb"), "{name} must not import rocksdb");
        }
    }
}

/// Inside fs only the adapter and the mount see fuser: `ops` must work without it.
#[test]
fn fuser_stays_in_the_adapter() {
    let src = root().join("fs/src");
    let mut todo = vec![src.clone()];
    let mut seen = 0;
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("list the sources");
            todo.extend(entries.map(|entry| entry.expect("entry").path()));
            continue;
        }
        let inside = path.strip_prefix(&src).expect("below src");
        let adapter = inside.starts_with("fuse")
            || inside == Path::new("fuse.rs")
            || inside.starts_with("mount")
            || inside == Path::new("mount.rs");
        let text = std::fs::read_to_string(&path).expect("read a source");
        let names_it = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .any(|line| line.contains("fuser::") || line.contains("use fuser"));
        seen += usize::from(names_it);
        assert!(
            adapter || !names_it,
            "fs/src/{} names fuser",
            inside.display()
        );
    }
    assert!(
        seen > 0,
        "nothing names fuser: this test looks in the wrong place"
    );
}

/// Files stay short enough to be read.
#[test]
fn sources_stay_short() {
    const MOST: usize = 500;
    let mut long = Vec::new();
    let mut todo: Vec<PathBuf> = ["layout-index", "flusher", "fs", "mount-tools", "tests"]
        .iter()
        .map(|dir| root().join(dir))
        .collect();
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("list the sources");
            todo.extend(entries.map(|entry| entry.expect("entry").path()));
        } else if path.extension().is_some_and(|e| e == "rs") {
            let lines = std::fs::read_to_string(&path)
                .expect("read a source")
                .lines()
                .count();
            if lines > MOST {
                long.push(format!("{} has {lines} lines", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "split these by role:\n{}", long.join("\n"));
}

/// What README, `make` and Cargo promise is enough for everything that is compiled.
#[test]
fn the_oldest_toolchain_is_the_one_that_is_named() {
    let number = |text: &str| -> Vec<u32> {
        let parts = text.split('.').take(2);
        parts.map(|n| n.parse().expect("a number")).collect()
    };
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = metadata(&["--filter-platform", &host]);
    let packages = metadata["packages"].as_array().expect("packages");
    let version = |package: &Value| package["rust_version"].as_str().map(str::to_owned);
    let ours = packages.iter().find(|p| p["name"] == "mount-tools");
    let ours = ours.and_then(version).expect("ours has a rust-version");
    let mut known = 0;
    for package in packages {
        let Some(needs) = version(package) else {
            continue;
        };
        known += 1;
        assert!(
            number(&needs) <= number(&ours),
            "{} needs Rust {needs}, and rust-version in Cargo.toml is {ours}",
            package["name"]
        );
    }
    assert!(known > 50, "only {known} packages say what they need");
    for file in ["README.md", "scripts/deps.sh"] {
        let text = std::fs::read_to_string(root().join(file)).expect("read");
        let named = format!("{ours} or newer");
        assert!(text.contains(&named), "{file} does not say \"{named}\"");
    }
}
