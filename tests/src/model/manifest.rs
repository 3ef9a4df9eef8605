//! The files as they should be when a worker ends, for the final comparison through the mount and, after the
//! drain, in the backing.

use crate::sys;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Serialize, Deserialize)]
pub struct Expected {
    /// Path of a plain file with the expected content.
    pub content: PathBuf,
    pub mode: u32,
    pub links: u64,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// Expected files, by path below the mount.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Manifest {
    pub files: BTreeMap<String, Expected>,
    pub operations: u64,
}

impl Manifest {
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, serde_json::to_vec(self)?)
    }

    pub fn load(path: &Path) -> Self {
        let text = std::fs::read(path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
        serde_json::from_slice(&text).expect("a manifest is JSON")
    }

    /// Compares every file below `root` and returns their mtimes.
    pub fn verify(&self, place: &str, root: &Path) -> BTreeMap<String, i64> {
        let mut times = BTreeMap::new();
        for (name, want) in &self.files {
            let path = root.join(name);
            let what = format!("{name} in the {place}");
            let meta = std::fs::metadata(&path).unwrap_or_else(|e| panic!("{what}: {e}"));
            let content = std::fs::read(&want.content).expect("read the expected content");
            assert_eq!(meta.len(), content.len() as u64, "size of {what}");
            crate::test_mount::assert_same(&what, &crate::test_mount::get(&path), &content);
            assert_eq!(meta.mode() & 0o7777, want.mode, "mode of {what}");
            assert_eq!(meta.nlink(), want.links, "link count of {what}");
            for (key, value) in &want.xattrs {
                let got =
                    sys::get_xattr(&path, key).unwrap_or_else(|e| panic!("{what} {key}: {e}"));
                assert_eq!(&got, value, "{key} of {what}");
            }
            times.insert(name.clone(), sys::mtime(&meta));
        }
        times
    }
}
