//! `FOREBAY`, the small TOML file that says what a store is and what may open it.
//!
//! It is written by rename: when the store is made, when it is released ([`Binding`]) and taken up
//! again, and when a newer RocksDB or a newer format opens it, since an older program must not take
//! the store for one of its own. If the daemon is killed between the temporary file and the rename,
//! the old superblock, if there was one, still counts, and the next write removes the leftover.

use crate::disk::Disk;
use crate::error::{Result, StoreError};
use serde::{Deserialize, Serialize};
use std::io::IoSlice;
use std::path::{Path, PathBuf};

/// Version of the log's and the index's format: `docs/FORMAT.md`.
pub const FORMAT: u32 = 3;
/// The oldest format that this program reads; opening such a store makes it one of [`FORMAT`].
pub const OLDEST: u32 = 1;
pub const NAME: &str = "FOREBAY";
/// The RocksDB that this program is linked with.
pub const ROCKSDB: &str = env!("FOREBAY_ROCKSDB_VERSION");

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superblock {
    pub format: u32,
    /// The newest RocksDB that has written the index.
    pub rocksdb: String,
    pub node: String,
    pub backing: PathBuf,
    /// Secret of this store, mixed into every record's checksum.
    pub key: u32,
    /// Tells this store's subfiles from those of other stores. Format 1 has no id.
    #[serde(default)]
    pub id: u64,
    #[serde(default, skip_serializing_if = "Binding::is_bound")]
    pub binding: Binding,
}

/// Whether the contents of the store count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Binding {
    #[default]
    Bound,
    /// The store holds nothing, and may be made anew for another backing.
    Released,
    /// The store is being made anew: whatever is in it is to be removed.
    Renewing,
}

impl Binding {
    fn is_bound(&self) -> bool {
        *self == Binding::Bound
    }
}

impl Superblock {
    pub fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Superblock>> {
        let path = dir.join(NAME);
        let file = match disk.open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(StoreError::io("open", path, e)),
        };
        let mut bytes = vec![0; 64 * 1024];
        let n = file
            .read_at(&mut bytes, 0)
            .map_err(|e| StoreError::io("read", &path, e))?;
        bytes.truncate(n);
        let text = String::from_utf8_lossy(&bytes);
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let damaged = |e: toml::de::Error| {
            StoreError::Unusable(format!(
                "{} is damaged ({}); restore it from another copy of the store or start with an empty directory",
                path.display(),
                e.message()
            ))
        };
        let version: Version = toml::from_str(&text).map_err(damaged)?;
        if !(OLDEST..=FORMAT).contains(&version.format) {
            return Err(StoreError::Unusable(format!(
                "store {} has format {} and this forebay reads formats {OLDEST} to {FORMAT}; drain it with the version that wrote it",
                dir.display(),
                version.format
            )));
        }
        toml::from_str(&text).map(Some).map_err(damaged)
    }

    pub fn save(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let text = toml::to_string(self)
            .map_err(|e| StoreError::Unusable(format!("superblock of {}: {e}", dir.display())))?;
        let (path, temporary) = (dir.join(NAME), dir.join("FOREBAY.new"));
        match disk.remove(&temporary) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io("remove", temporary, e));
            }
            _ => {}
        }
        let file = disk
            .create(&temporary)
            .map_err(|e| StoreError::io("create", &temporary, e))?;
        file.write_at(&[IoSlice::new(text.as_bytes())], 0)
            .and_then(|()| file.sync())
            .map_err(|e| StoreError::io("write", &temporary, e))?;
        disk.rename(&temporary, &path)
            .map_err(|e| StoreError::io("rename", &temporary, e))?;
        disk.sync_dir(dir)
            .map_err(|e| StoreError::io("sync", dir, e))
    }

    /// Refuses an index that was written by a newer RocksDB than this program has.
    pub fn check_rocksdb(&self, dir: &Path) -> Result<()> {
        if version_of(&self.rocksdb) > version_of(ROCKSDB) {
            return Err(StoreError::Unusable(format!(
                "store {} was written with RocksDB {} and this forebay has {ROCKSDB}; use a forebay built with RocksDB {} or newer, or drain the store with the one that wrote it",
                dir.display(),
                self.rocksdb,
                self.rocksdb
            )));
        }
        Ok(())
    }
}

fn version_of(text: &str) -> Vec<u32> {
    text.split('.')
        .map(|part| part.parse().unwrap_or(0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    fn block() -> Superblock {
        Superblock {
            format: FORMAT,
            rocksdb: ROCKSDB.into(),
            node: "n0".into(),
            backing: "/scratch".into(),
            key: 7,
            id: 8,
            binding: Binding::Bound,
        }
    }

    #[test]
    fn round_trip_and_refusals() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Superblock::load(&RealDisk, dir.path()).unwrap(), None);
        block().save(&RealDisk, dir.path()).unwrap();
        assert_eq!(
            Superblock::load(&RealDisk, dir.path()).unwrap(),
            Some(block())
        );

        Superblock {
            format: 99,
            ..block()
        }
        .save(&RealDisk, dir.path())
        .unwrap();
        let error = Superblock::load(&RealDisk, dir.path())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("format 99") && error.contains("drain it"),
            "{error}"
        );

        std::fs::write(dir.path().join(NAME), "format = {").unwrap();
        let error = Superblock::load(&RealDisk, dir.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains("damaged"), "{error}");
    }

    #[test]
    fn a_newer_rocksdb_is_refused_by_number() {
        let newer = Superblock {
            rocksdb: "99.10.1".into(),
            ..block()
        };
        let error = newer
            .check_rocksdb(Path::new("/s"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("99.10.1") && error.contains(ROCKSDB),
            "{error}"
        );
        assert!(version_of("7.10.0") > version_of("7.9.3"));
    }
}
