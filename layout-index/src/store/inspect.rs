//! Looking at a store without opening it for use: no lock is taken and nothing is written, so a
//! daemon may be running (the picture is then a moment old). RocksDB follows links and opens what it finds, so
//! a store that other users could have prepared is not looked at.

use super::{Store, new_shared};
use crate::disk::LookingDisk;
use crate::error::{Result, StoreError};
use crate::index::Index;
use crate::kept::{self, Kept};
use crate::log::Log;
use crate::recovery::{self, RecoveryReport};
use crate::space::{SpaceBook, SpaceOptions};
use crate::subfile::Subfiles;
use crate::superblock::Superblock;
use crate::types::{FileId, NodeId};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InspectedFile {
    pub id: FileId,
    /// Below the backing, where it was when its first byte was absorbed.
    pub path: PathBuf,
    pub size: u64,
    pub undrained: u64,
    pub uid: u32,
    /// The last name is gone: recovery drops it.
    pub unlinked: bool,
    /// [`crate::File::damage`], if it was asked for.
    pub damage: Vec<String>,
}

/// A store as it lies on the disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    pub node: String,
    /// By which other nodes know what it has published.
    pub id: NodeId,
    pub backing: PathBuf,
    pub rocksdb: String,
    pub files: Vec<InspectedFile>,
    pub undrained: u64,
    pub segments: usize,
    pub used: u64,
    pub report: RecoveryReport,
}

/// Only the user who looks can have written what is in it.
fn check_ours(dir: &Path) -> Result<()> {
    let meta = std::fs::symlink_metadata(dir).map_err(|e| StoreError::io("stat", dir, e))?;
    let me = nix::unistd::geteuid().as_raw();
    if meta.uid() != me {
        return Err(StoreError::Unusable(format!(
            "store {} belongs to user {} and not to user {me}; look at it as that user",
            dir.display(),
            meta.uid()
        )));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(StoreError::Unusable(format!(
            "store {} can be written by other users (mode {:o}); run chmod 700 on it if nobody else has",
            dir.display(),
            meta.mode() & 0o777
        )));
    }
    Ok(())
}

impl Store {
    /// `verify` also reads every undrained byte and checks it; what is in subfiles is opened with
    /// `subfiles`.
    pub fn inspect(
        dir: &Path,
        verify: bool,
        subfiles: Option<Arc<dyn Subfiles>>,
    ) -> Result<Inspection> {
        check_ours(dir)?;
        let disk = LookingDisk;
        let superblock = Superblock::load(&disk, dir)?.ok_or_else(|| {
            StoreError::Unusable(format!("{} is not a Forebay store", dir.display()))
        })?;
        superblock.check_rocksdb(dir)?;
        let index = Index::open_read_only(&dir.join("index"))?;
        let space = SpaceBook::new(
            &SpaceOptions {
                capacity: Some(0),
                ..Default::default()
            },
            0,
        );
        let log = Log::open_read_only(Arc::new(disk), dir.join("log"), superblock.key, space)?;
        let none = kept::Found::nothing(Arc::new(disk), dir.join("kept"));
        let kept = Kept::new(none, log.space.clone());
        let shared = new_shared(log, index, kept, u64::MAX);
        *shared.subfiles.opener.write() = subfiles;
        let report = recovery::recover(&shared)?;
        let mut files: Vec<InspectedFile> = shared
            .all_files()
            .iter()
            .filter_map(|file| {
                let (intro, stat) = (file.intro()?, file.stat()?);
                Some(InspectedFile {
                    id: file.id(),
                    path: PathBuf::from(std::ffi::OsString::from(
                        String::from_utf8_lossy(&intro.path).into_owned(),
                    )),
                    size: stat.size,
                    undrained: file.count_undrained(None).unwrap_or(stat.undrained),
                    uid: intro.uid,
                    unlinked: file.is_unlinked(),
                    damage: if verify { file.damage() } else { Vec::new() },
                })
            })
            .collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let inspection = Inspection {
            node: superblock.node,
            id: NodeId(superblock.id),
            backing: superblock.backing,
            rocksdb: superblock.rocksdb,
            undrained: shared.undrained.load(Ordering::Relaxed),
            segments: shared.log.segments().len(),
            used: shared.log.space.used(),
            files,
            report,
        };
        shared.unpin_all();
        Ok(inspection)
    }
}
