//! A directory tree as programs see it: its entries, their types and their contents.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Entries by path below the directory. Two trees are alike if these are equal.
pub type Tree = BTreeMap<String, Entry>;

#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    pub mode: u32,
    /// Seconds; for files only.
    pub mtime: Option<i64>,
    /// The first path of the same file, if it has several.
    pub same_as: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Kind {
    Dir,
    File(Vec<u8>),
    Link(String),
    Other,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.kind {
            Kind::Dir => "directory".to_owned(),
            Kind::File(bytes) => format!("file of {} bytes", bytes.len()),
            Kind::Link(to) => format!("link to {to}"),
            Kind::Other => "something else".to_owned(),
        };
        write!(f, "{kind}, mode {:o}, time {:?}", self.mode, self.mtime)?;
        match &self.same_as {
            Some(first) => write!(f, ", the same as {first}"),
            None => Ok(()),
        }
    }
}

/// Reads the whole tree. Names for which `skip` returns true are left out, with everything below them.
pub fn read(dir: &Path, skip: impl Fn(&str) -> bool) -> Tree {
    let mut tree = Tree::new();
    let mut first: HashMap<u64, String> = HashMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        let entries = fs::read_dir(&at).unwrap_or_else(|e| panic!("list {}: {e}", at.display()));
        let mut entries: Vec<_> = entries.map(|e| e.expect("list").path()).collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().expect("a name").to_string_lossy();
            if skip(&name) {
                continue;
            }
            let below = path.strip_prefix(dir).expect("it is below");
            let below = below.to_string_lossy().into_owned();
            let meta = fs::symlink_metadata(&path).expect("stat");
            let kind = if meta.is_dir() {
                left.push(path.clone());
                Kind::Dir
            } else if meta.is_symlink() {
                let to = fs::read_link(&path).expect("read a link");
                Kind::Link(to.to_string_lossy().into_owned())
            } else if meta.is_file() {
                Kind::File(fs::read(&path).expect("read a file"))
            } else {
                Kind::Other
            };
            let same_as = match meta.is_file() && meta.nlink() > 1 {
                true => Some(first.entry(meta.ino()).or_insert(below.clone()).clone()),
                false => None,
            };
            let entry = Entry {
                kind,
                mode: meta.permissions().mode() & 0o7777,
                mtime: meta.is_file().then_some(meta.mtime()),
                same_as,
            };
            tree.insert(below, entry);
        }
    }
    tree
}

/// Fails with the first differences.
pub fn assert_alike(what: &str, got: &Tree, want: &Tree) {
    let mut differences = Vec::new();
    for path in got.keys().chain(want.keys()) {
        let (g, w) = (got.get(path), want.get(path));
        if g != w {
            differences.push(format!("{path}: {g:?}, and it should be {w:?}"));
        }
    }
    differences.sort();
    differences.dedup();
    let few = differences.iter().take(8).cloned().collect::<Vec<_>>();
    assert!(
        differences.is_empty(),
        "{what}: {} differences\n{}",
        differences.len(),
        few.join("\n")
    );
}

/// Returns the tree without times, for files that programs create anew.
pub fn without_times(mut tree: Tree) -> Tree {
    for entry in tree.values_mut() {
        entry.mtime = None;
    }
    tree
}
