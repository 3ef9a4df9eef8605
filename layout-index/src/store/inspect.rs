//! Inspects a store without opening it for use: takes no lock and writes nothing, so a daemon may
//! be running (the picture is then a moment old). RocksDB follows links and opens what it finds, so
//! a store that other users could have prepared is refused.

use super::{Store, new_shared};
use crate::disk::LookingDisk;
use crate::error::{Result, StoreError};
use crate::store::index::Index;
use crate::store::local_copies::{self, LocalCopies};
use crate::store::log::Log;
use crate::store::recovery::{self, RecoveryReport};
use crate::store::space::{SpaceBook, SpaceOptions};
use crate::store::subfile::Subfiles;
use crate::store::superblock::Superblock;
use crate::types::{FileId, NodeId};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InspectedFile {
    pub id: FileId,
    /// Path below the backing when the file's first byte was absorbed.
    pub path: PathBuf,
    pub size: u64,
    pub undrained: u64,
    pub uid: u32,
    /// The last name is gone, so recovery drops the file's data.
    pub unlinked: bool,
    /// [`crate::File::damage`], if it was asked for.
    pub damage: Vec<String>,
}

/// A store as it is on the disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    pub node: String,
    /// Identity by which other nodes know what this store has published.
    pub id: NodeId,
    pub backing: PathBuf,
    pub rocksdb: String,
    pub files: Vec<InspectedFile>,
    pub undrained: u64,
    pub segments: usize,
    pub used: u64,
    pub report: RecoveryReport,
}

/// Makes sure that only the calling user can have written what is in the store.
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
            "store {} can be written by other users (mode {:o}); run chmod 700 on it if no other user has",
            dir.display(),
            meta.mode() & 0o777
        )));
    }
    Ok(())
}

impl Store {
    /// Inspects the store in `dir`. With `verify`, also reads and checks every undrained byte;
    /// `subfiles` opens the subfiles for that.
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
        let none = local_copies::Found::nothing(Arc::new(disk), dir.join("kept"));
        let copies = LocalCopies::new(none, log.space.clone());
        let state = new_shared(log, index, copies, u64::MAX);
        *state.subfiles.opener.write() = subfiles;
        let report = recovery::recover(&state)?;
        let mut files: Vec<InspectedFile> = state
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
            undrained: state.undrained.load(Ordering::Relaxed),
            segments: state.log.segments().len(),
            used: state.log.space.used(),
            files,
            report,
        };
        state.unpin_all();
        Ok(inspection)
    }
}
