//! What an earlier daemon left: whole copies are taken over, and other files of copies are removed.

use super::sidecar::{self, Sidecar};
use super::{SIDECAR, TEMPORARY};
use crate::disk::Disk;
use crate::error::{Result, StoreError};
use crate::types::FileId;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The copies that a start has found.
pub(crate) struct Found {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) key: u32,
    pub(super) copies: Vec<Sidecar>,
}

impl Found {
    /// For inspection, which changes nothing and needs no copies.
    pub fn nothing(disk: Arc<dyn Disk>, dir: PathBuf) -> Found {
        Found {
            disk,
            dir,
            key: 0,
            copies: Vec::new(),
        }
    }

    /// Bytes that those copies have.
    pub fn bytes(&self) -> u64 {
        self.copies.iter().map(|s| s.cover.bytes()).sum()
    }
}

/// Reads what an earlier daemon left, and removes files of copies that are not whole.
pub(crate) fn find(disk: &Arc<dyn Disk>, dir: PathBuf, key: u32) -> Result<Found> {
    let names = match disk.list(&dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other.map_err(|e| StoreError::io("list", &dir, e))?,
    };
    let mut found = Found {
        disk: disk.clone(),
        dir,
        key,
        copies: Vec::new(),
    };
    let mut whole: HashMap<FileId, &str> = HashMap::new();
    let ours: Vec<&str> = names.iter().filter_map(|n| n.to_str()).collect();
    for name in &ours {
        let Some((id, tag, None)) = parse(name) else {
            continue;
        };
        match load(&found, id, tag) {
            // Two copies of one file: a power failure undid the removal of one. Neither is needed.
            Some(_) if whole.contains_key(&id) => {
                whole.remove(&id);
                found.copies.retain(|sidecar| sidecar.id != id);
            }
            Some(copy) => {
                whole.insert(id, name);
                found.copies.push(copy);
            }
            None => {}
        }
    }
    for name in ours {
        let Some((id, _, kind)) = parse(name) else {
            continue;
        };
        let stays =
            kind != Some(TEMPORARY) && whole.get(&id).is_some_and(|whole| *whole == stem_of(name));
        if !stays {
            let path = found.dir.join(name);
            disk.remove(&path)
                .map_err(|e| StoreError::io("remove leftover", path, e))?;
        }
    }
    Ok(found)
}

/// The name without the suffix that tells the files of a copy apart.
fn stem_of(name: &str) -> &str {
    name.strip_suffix(SIDECAR)
        .or_else(|| name.strip_suffix(TEMPORARY))
        .and_then(|stem| stem.strip_suffix('.'))
        .unwrap_or(name)
}

/// Identity, tag and kind of a file that a copy consists of; `None` for other names.
fn parse(name: &str) -> Option<(FileId, u64, Option<&str>)> {
    let stem = stem_of(name);
    let kind = (stem != name).then(|| &name[stem.len() + 1..]);
    let (id, tag) = stem.rsplit_once('-')?;
    let id: FileId = id.parse().ok()?;
    let tag = (tag.len() == 16).then(|| u64::from_str_radix(tag, 16).ok())??;
    Some((id, tag, kind))
}

/// Loads the sidecar of a data file that was found. Returns `None` if it is missing or not valid.
fn load(found: &Found, id: FileId, tag: u64) -> Option<Sidecar> {
    let name = format!("{id}-{tag:016x}");
    let sidecar = found
        .disk
        .open(&found.dir.join(format!("{name}.{SIDECAR}")))
        .ok()?;
    let size = usize::try_from(sidecar.size().ok()?).ok()?;
    if size > sidecar::LONGEST {
        return None;
    }
    let mut bytes = vec![0; size];
    let n = sidecar.read_at(&mut bytes, 0).ok()?;
    let sidecar = Sidecar::decode(&bytes[..n], found.key)?;
    (sidecar.id == id && sidecar.tag == tag).then_some(sidecar)
}
