//! What a store belongs to: the superblock, from the first opening to the last.
//!
//! A store is bound to one backing and one node, because its contents belong to them. Once it holds
//! nothing ([`Store::release`]: after a drain without a mount, or after a first mount that failed)
//! it may be used for another: it is then made anew, with another id.
//!
//! If the daemon is killed while the store is made anew, the superblock, which is the new one
//! already, says so, and the next opening begins again.

use super::{Store, StoreOptions, random};
use crate::disk::{Disk, RealDisk};
use crate::error::{Result, StoreError};
use crate::store::superblock::{Binding, FORMAT, ROCKSDB, Superblock};
use std::path::Path;

impl Store {
    /// True if the store was made when it was opened, or taken up after a release.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Lets the store be used for another backing, if it holds nothing. Must be called when nothing
    /// can be added to it any more, before [`Store::close`]. Returns true if the store was
    /// released.
    pub fn release(&self) -> Result<bool> {
        if !self.dirty_files().is_empty() || self.failure().is_some() {
            return Ok(false);
        }
        let Some(found) = Superblock::load(&RealDisk, &self.dir)? else {
            return Ok(false);
        };
        let released = Superblock {
            binding: Binding::Released,
            ..found
        };
        released.save(&RealDisk, &self.dir)?;
        Ok(true)
    }
}

/// Returns the superblock of this store, which is made if needed. True: it was made, or was
/// released before.
pub(super) fn prepare(disk: &dyn Disk, options: &StoreOptions) -> Result<(Superblock, bool)> {
    let dir = &options.dir;
    let Some(mut found) = Superblock::load(disk, dir)? else {
        let names = disk.list(dir).map_err(|e| StoreError::io("list", dir, e))?;
        let ours = ["lock", "FOREBAY.new", "forebay.log", "log", "index"];
        if let Some(other) = names
            .iter()
            .find(|n| !ours.iter().any(|o| n.as_os_str() == *o))
        {
            return Err(StoreError::Unusable(format!(
                "{} is not a store and is not empty (it holds {}); give an empty directory",
                dir.display(),
                other.display()
            )));
        }
        let new = new_for(options, Binding::Bound);
        sync_parent(disk, dir)?;
        new.save(disk, dir)?;
        return Ok((new, true));
    };
    found.check_rocksdb(dir)?;
    let elsewhere = found.backing != options.backing || found.node != options.node;
    let released = found.binding != Binding::Bound;
    if found.binding == Binding::Renewing || (released && elsewhere) {
        return Ok((renew(disk, options)?, true));
    }
    if found.backing != options.backing {
        return Err(StoreError::Unusable(format!(
            "store {} belongs to {}, not to {}; mount it there, or drain it with `forebay recover`, after which it can be used elsewhere",
            dir.display(),
            found.backing.display(),
            options.backing.display()
        )));
    }
    if found.node != options.node {
        return Err(StoreError::Unusable(format!(
            "store {} belongs to node {}, and this is node {}; say --node {} if the node was renamed",
            dir.display(),
            found.node,
            options.node,
            found.node
        )));
    }
    let old = found.clone();
    if found.format < FORMAT {
        found.format = FORMAT;
        if found.id == 0 {
            found.id = random() >> 1;
        }
    }
    found.rocksdb = ROCKSDB.into();
    found.binding = Binding::Bound;
    if found != old {
        found.save(disk, dir)?;
    }
    Ok((found, released))
}

fn new_for(options: &StoreOptions, binding: Binding) -> Superblock {
    Superblock {
        format: FORMAT,
        rocksdb: ROCKSDB.into(),
        node: options.node.clone(),
        backing: options.backing.clone(),
        key: random() as u32,
        // TOML's integers are signed.
        id: random() >> 1,
        binding,
    }
}

fn renew(disk: &dyn Disk, options: &StoreOptions) -> Result<Superblock> {
    let dir = &options.dir;
    let mut new = new_for(options, Binding::Renewing);
    new.save(disk, dir)?;
    for below in ["log", "index", "kept"].map(|name| dir.join(name)) {
        let names = match disk.list(&below) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            other => other.map_err(|e| StoreError::io("list", &below, e))?,
        };
        for path in names.iter().map(|name| below.join(name)) {
            disk.remove(&path)
                .map_err(|e| StoreError::io("remove", &path, e))?;
        }
        disk.sync_dir(&below)
            .map_err(|e| StoreError::io("sync", &below, e))?;
    }
    new.binding = Binding::Bound;
    new.save(disk, dir)?;
    Ok(new)
}

/// Makes the name of a new store's directory durable, where its parent may be opened.
fn sync_parent(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    match disk.sync_dir(parent) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        other => other.map_err(|e| StoreError::io("sync", parent, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn options(dir: &Path, backing: &str) -> StoreOptions {
        StoreOptions {
            dir: dir.to_owned(),
            node: "n".into(),
            backing: backing.into(),
            index_memory: 1 << 20,
            space: Default::default(),
        }
    }

    /// A released store may be used for another backing. After a kill while it is made anew,
    /// nothing of the old store counts.
    #[test]
    fn a_released_store_is_made_anew_also_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let open = |backing: &str| Store::open(options(dir.path(), backing), Arc::new(RealDisk));
        let (store, _) = open("/a").unwrap();
        let first = store.id();
        assert!(store.is_fresh());
        store.close().unwrap();
        drop(store);
        assert!(open("/b").unwrap_err().to_string().contains("/a"));

        let (store, _) = open("/a").unwrap();
        assert!(!store.is_fresh() && store.id() == first);
        assert!(store.release().unwrap());
        store.close().unwrap();
        drop(store);
        let renewing = new_for(&options(dir.path(), "/b"), Binding::Renewing);
        renewing.save(&RealDisk, dir.path()).unwrap();
        std::fs::write(dir.path().join("index/CURRENT"), "half removed").unwrap();
        let (store, _) = open("/b").unwrap();
        assert!(store.is_fresh() && store.id() != first);
        store.close().unwrap();
        drop(store);
        assert!(open("/a").unwrap_err().to_string().contains("/b"));
    }
}
