//! Checks which directories may be used together. Paths are compared after symbolic links are resolved, so
//! that a link cannot hide that a store lies inside its own backing.

use crate::exit_codes::{Failure, Result};
use crate::{mountinfo, units};
use std::io;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Returns the real path of a directory that must exist.
pub fn existing_dir(path: &Path, what: &str) -> Result<PathBuf> {
    let real = std::fs::canonicalize(path).map_err(|e| missing(path, what, &e))?;
    match std::fs::metadata(&real) {
        Ok(_) if mountinfo::is_dead(&real) => Err(missing(
            path,
            what,
            &io::Error::from_raw_os_error(libc::ENOTCONN),
        )),
        Ok(meta) if meta.is_dir() => Ok(real),
        Ok(_) => Err(Failure::usage(format!(
            "{what} {} is not a directory",
            path.display()
        ))),
        Err(e) => Err(missing(path, what, &e)),
    }
}

/// Returns the real path of a backing. Refuses a path on a Forebay mount, because the backing itself cannot
/// be seen through the mount.
pub fn bare_backing(path: &Path) -> Result<PathBuf> {
    let real = existing_dir(path, "the backing")?;
    let mount = mountinfo::mount_of(&real)
        .map_err(|e| Failure::failed(format!("the mounts of this machine: {e}")))?;
    match mount.filter(mountinfo::Mount::is_forebay) {
        None => Ok(real),
        Some(mount) => Err(Failure::usage(format!(
            "{} is below the Forebay mount {}, through which the backing itself cannot be seen; do this on a machine that has it not mounted, or ask this node with `forebay status {}` (what dead nodes have published it drains by itself)",
            path.display(),
            mount.point.display(),
            mount.point.display()
        ))),
    }
}

/// Returns the real paths of storage targets. All nodes know a target by its real path.
pub fn osts(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let real = |path: &PathBuf| existing_dir(path, "the storage target");
    paths.iter().map(real).collect()
}

fn missing(path: &Path, what: &str, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::usage(match error.raw_os_error() {
        Some(libc::ENOENT) => format!("{what} {path} does not exist; make it first"),
        Some(libc::ENOTCONN) => format!(
            "{what} {path} is a mount whose daemon is gone; take it away with `forebay umount {path}`"
        ),
        _ => format!("{what} {path} cannot be used: {error}"),
    })
}

/// Returns the real path of a store. The store need not exist, but its parent directory must.
pub fn store_path(path: &Path) -> Result<PathBuf> {
    if path.exists() {
        return existing_dir(path, "the store");
    }
    let absolute = std::path::absolute(path)
        .map_err(|e| Failure::usage(format!("the store {}: {e}", path.display())))?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = existing_dir(parent, "the store's parent directory")?;
            Ok(parent.join(name))
        }
        _ => Err(Failure::usage(format!(
            "the store {} cannot be a directory of its own",
            path.display()
        ))),
    }
}

/// Checks `--store-size` against the smallest allowed size and the size of the disk. The store need not exist
/// yet.
pub fn store_size(size: u64, store: &Path) -> Result<()> {
    let least = layout_index::SpaceOptions::LEAST;
    if size < least {
        return Err(Failure::usage(format!(
            "store-size = {size} is too small; the least is {}",
            units::bytes(least)
        )));
    }
    let there = if store.exists() {
        Some(store)
    } else {
        store.parent()
    };
    let disk = nix::sys::statvfs::statvfs(there.unwrap_or(store))
        .map_err(|e| Failure::failed(format!("the disk of the store {}: {e}", store.display())))?;
    let room = disk.blocks().saturating_mul(disk.fragment_size());
    if size > room {
        return Err(Failure::usage(format!(
            "store-size = {} is more than the disk of {} has ({}); leave it out to take 80 % of what is free",
            units::bytes(size),
            store.display(),
            units::bytes(room)
        )));
    }
    Ok(())
}

/// Refuses a path below the mount point for something that the daemon uses outside of the mount: the mount
/// would hide it, and the daemon would send the requests for it to itself.
pub fn not_below(mount: &Path, path: &Path, what: &str, setting: &str) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    let real = std::fs::canonicalize(parent).unwrap_or_else(|_| parent.into());
    if real.starts_with(mount) || path == mount {
        return Err(Failure::usage(format!(
            "{what} {} is below the mount point {}, which would hide it; choose another with {setting}",
            path.display(),
            mount.display()
        )));
    }
    Ok(())
}

/// Refuses a store inside the backing or the mount point, a backing inside the store, and a mount point
/// inside the backing (unless it is the backing itself). All three must be real paths.
pub fn apart(store: &Path, backing: &Path, mount: &Path) -> Result<()> {
    let refuse = |text: String| Err(Failure::usage(text));
    let (s, b, m) = (store.display(), backing.display(), mount.display());
    if store.starts_with(backing) {
        return refuse(format!(
            "the store {s} is inside the backing {b}; put it on node-local storage outside of it"
        ));
    }
    if backing.starts_with(store) {
        return refuse(format!(
            "the backing {b} is inside the store {s}; give the store a directory of its own"
        ));
    }
    if store.starts_with(mount) {
        return refuse(format!(
            "the store {s} is inside the mount point {m}, which would hide it; put it elsewhere"
        ));
    }
    if mount != backing && mount.starts_with(backing) {
        return refuse(format!(
            "the mount point {m} is inside the backing {b}, so that the mount would contain itself; mount over the backing or outside of it"
        ));
    }
    Ok(())
}

/// Checks a node name. It becomes part of file names that other machines read.
pub fn node_name(name: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=64).contains(&name.len()) && name.chars().all(fine) && !name.starts_with('.') {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "node name \"{}\" will not do; use 1 to 64 letters, digits, dots, dashes or underscores (--node)",
        name.escape_default()
    )))
}
