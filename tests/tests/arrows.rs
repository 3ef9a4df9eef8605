//! Checks which crate may import which. The rules keep the parts replaceable: a second transport beside fuser,
//! another drain beside tokio, other tools on top of the store.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the workspace").to_owned()
}

/// The names of the packages that each package depends on, by kind. `normal` includes build dependencies.
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

/// Checks the imports that the design allows. The tests of a crate must obey them too.
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

/// Only fs imports fuser (and so do the file systems that Forebay is measured against and on), only flusher imports
/// tokio, and of our crates only layout-index imports rocksdb.
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

/// All files below `dir`, but for build output.
fn paths(dir: &Path) -> Vec<PathBuf> {
    let mut todo = vec![dir.to_owned()];
    let mut found = Vec::new();
    while let Some(path) = todo.pop() {
        if path.is_dir() && !path.ends_with("target") {
            let entries = std::fs::read_dir(&path).expect("list a directory");
            todo.extend(entries.map(|entry| entry.expect("entry").path()));
        } else if path.is_file() {
            found.push(path);
        }
    }
    found
}

/// The source files below `dir`, by their path in it.
fn sources(dir: &Path) -> Vec<(PathBuf, String)> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("read a source");
        (path.strip_prefix(dir).expect("below").to_owned(), text)
    };
    paths(dir).into_iter().map(read).collect()
}

fn names(text: &str, what: &[&str]) -> bool {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .any(|line| what.iter().any(|name| line.contains(name)))
}

/// Inside fs only the adapter and the mount use fuser: `ops` must work without it.
#[test]
fn fuser_stays_in_the_adapter() {
    let mut seen = 0;
    for (inside, text) in sources(&root().join("fs/src")) {
        let adapter = inside.starts_with("fuse")
            || inside == Path::new("fuse.rs")
            || inside.starts_with("mount")
            || inside == Path::new("mount.rs");
        let names_it = names(&text, &["fuser::", "use fuser"]);
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

/// Inside layout-index the store does not know how nodes share files.
#[test]
fn the_store_does_not_know_the_sharing() {
    let src = root().join("layout-index/src");
    let sharing = ["crate::sharing", "crate::{", "super::sharing"];
    for (inside, text) in sources(&src.join("store")) {
        assert!(
            !names(&text, &sharing),
            "layout-index/src/store/{} imports from the sharing",
            inside.display()
        );
    }
    let store = |(_, text): &(_, String)| names(text, &["crate::store"]);
    assert!(
        sources(&src.join("sharing")).iter().any(store),
        "the sharing imports nothing from the store: this test looks in the wrong place"
    );
}

/// Source files that the pages of docs/ and the READMEs name exist: a rename is a change of the docs, too.
#[test]
fn files_that_the_docs_name_exist() {
    let crates = ["layout-index", "flusher", "fs", "mount-tools", "tests"];
    let files: Vec<String> = crates
        .iter()
        .flat_map(|name| paths(&root().join(name)))
        .map(|path| format!("/{}", path.display()))
        .collect();
    let pages = paths(&root().join("docs")).into_iter();
    let pages = pages.filter(|page| page.extension().is_some_and(|e| e == "md"));
    let mut named = 0;
    for page in pages.chain([root().join("README.md"), root().join("CONTRIBUTING.md")]) {
        let text = std::fs::read_to_string(&page).expect("read a page");
        let quoted = text
            .lines()
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        for path in quoted.filter(|it| it.ends_with(".rs") && !it.contains([' ', '*', '{'])) {
            named += 1;
            let end = format!("/{path}");
            assert!(
                files.iter().any(|file| file.ends_with(&end)),
                "{} names {path}, which is not there",
                page.display()
            );
        }
    }
    assert!(
        named > 100,
        "only {named} files are named: this test looks in the wrong place"
    );
}

/// The Rust version that README.md, `make` and Cargo.toml name is enough for everything that is compiled.
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
