//! Where a mount's socket is, and how clients find it: a runtime directory holds, for each mount, a socket
//! and a small JSON file, both named by a hash of the mount point's real path.
//!
//! A root daemon's directory and socket are open to all users (what a peer may do is decided by its
//! credentials, request by request); an ordinary user's are for that user alone. A directory that another
//! user could write to is neither used nor trusted.
//!
//! Root trusts only entries that root has written. From an entry that another user has written, root takes no
//! more than the socket to ask, and only for a mount that belongs to that user according to the kernel. A
//! process of that user reads the store that the entry names (`commands/status/owner.rs`).
//!
//! The JSON file outlives a daemon that was killed, so that `status` still finds the store. The next mount or
//! `umount` at the same mount point removes it.

use crate::exit_codes::{Failure, Result};
use crate::mountinfo;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Environment variable that replaces all other runtime directories, for daemons and clients alike.
pub const OVERRIDE: &str = "FOREBAY_RUNTIME_DIR";

/// Facts about a mount that clients get from its entry, without asking its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    pub pid: u32,
    pub node: String,
    pub mount: PathBuf,
    pub store: PathBuf,
    pub backing: PathBuf,
    /// [`crate::settings::MountSettings::digest`]; 0 if the daemon did not write it.
    #[serde(default)]
    pub settings: u64,
}

/// A mount's entry in a runtime directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub socket: PathBuf,
    pub info: PathBuf,
}

impl Place {
    pub fn of(dir: &Path, mount: &Path) -> Place {
        let name = format!("{:016x}", fnv1a(mount.as_os_str().as_bytes()));
        Place {
            socket: dir.join(format!("{name}.sock")),
            info: dir.join(format!("{name}.json")),
        }
    }

    /// Binds the socket and writes the file beside it. Replaces what a dead daemon has left.
    pub fn publish(&self, info: &Info) -> io::Result<UnixListener> {
        remove(&self.socket)?;
        let listener = UnixListener::bind(&self.socket)?;
        let (socket_mode, info_mode) = if is_root() {
            (0o666, 0o644)
        } else {
            (0o600, 0o600)
        };
        std::fs::set_permissions(&self.socket, PermissionsExt::from_mode(socket_mode))?;
        let fresh = self.info.with_extension("new");
        remove(&fresh)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(info_mode)
            .open(&fresh)?;
        file.set_permissions(PermissionsExt::from_mode(info_mode))?;
        file.write_all(&serde_json::to_vec(info)?)?;
        std::fs::rename(&fresh, &self.info)?;
        Ok(listener)
    }

    /// Removes the entry of the daemon `pid`, unless another daemon has replaced it since.
    pub fn retract(&self, pid: u32) -> io::Result<()> {
        let writer = self.info.parent().and_then(owner);
        let info = writer.and_then(|writer| read_info(&self.info, writer));
        match info {
            Some(info) if info.pid == pid => remove(&self.socket).and(remove(&self.info)),
            _ => Ok(()),
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A hash that is the same in every build.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Directory in which a daemon of this user keeps its sockets.
pub fn own_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os(OVERRIDE).filter(|_| is_overridden()) {
        return PathBuf::from(dir);
    }
    if is_root() {
        return PathBuf::from("/run/forebay");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() && dir.is_dir() => dir.join("forebay"),
        _ => PathBuf::from(format!("/tmp/forebay-{}", nix::unistd::geteuid())),
    }
}

/// Creates this user's runtime directory if needed, and checks that no other user owns it or can write to it.
pub fn prepare() -> Result<PathBuf> {
    let dir = own_dir();
    let mode = if is_root() { 0o755 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(&dir) {
        Ok(()) => std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).map_err(|e| {
            Failure::failed(format!("the runtime directory {}: {e}", dir.display()))
        })?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => {
            return Err(Failure::failed(format!(
                "cannot make the runtime directory {}: {e}",
                dir.display()
            )));
        }
    }
    let me = nix::unistd::geteuid().as_raw();
    if owner(&dir) != Some(me) {
        return Err(Failure::failed(format!(
            "the runtime directory {} belongs to or can be written by another user; remove it or set {OVERRIDE}",
            dir.display()
        )));
    }
    Ok(dir)
}

/// Returns the user who alone can write to this directory; `None` if other users can too, or if it is no
/// directory.
fn owner(dir: &Path) -> Option<u32> {
    let meta = std::fs::symlink_metadata(dir).ok()?;
    (meta.is_dir() && meta.mode() & 0o022 == 0).then_some(meta.uid())
}

/// Runtime directories that this user may trust, each with the user who writes it.
fn believed() -> Vec<(PathBuf, u32)> {
    let me = nix::unistd::geteuid().as_raw();
    let mut dirs = vec![own_dir()];
    if !is_overridden() {
        dirs.push("/run/forebay".into());
        dirs.push(format!("/tmp/forebay-{me}").into());
    }
    written_by(dirs, |uid| uid == 0 || uid == me)
}

/// Directories in which a daemon of `uid` may have its socket, as root sees it.
fn of_user(uid: u32) -> Vec<(PathBuf, u32)> {
    let dirs = if is_overridden() {
        vec![own_dir()]
    } else {
        let run = format!("/run/user/{uid}/forebay");
        vec![run.into(), format!("/tmp/forebay-{uid}").into()]
    };
    written_by(dirs, |owner| owner == uid)
}

fn is_overridden() -> bool {
    std::env::var_os(OVERRIDE).is_some_and(|d| !d.is_empty())
}

fn written_by(dirs: Vec<PathBuf>, believed: impl Fn(u32) -> bool) -> Vec<(PathBuf, u32)> {
    let mut seen = std::collections::HashSet::new();
    dirs.into_iter()
        .filter(|dir| seen.insert(dir.clone()))
        .filter_map(|dir| owner(&dir).map(|uid| (dir, uid)))
        .filter(|(_, uid)| believed(*uid))
        .collect()
}

fn children(dir: &str) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// The entry of a mount, whether its daemon is alive or not.
#[derive(Clone, Debug)]
pub struct Found {
    pub place: Place,
    pub info: Info,
    /// The user who may answer on the socket.
    pub owner: u32,
}

/// Returns the entry for a mount point (a real path).
pub fn find(mount: &Path) -> Option<Found> {
    let dirs = match mountinfo::user_of(mount) {
        Some((uid, _)) if uid != 0 && is_root() => of_user(uid),
        _ => believed(),
    };
    dirs.into_iter().find_map(|(dir, owner)| {
        let place = Place::of(&dir, mount);
        let info = read_info(&place.info, owner).filter(|info| info.mount == mount)?;
        Some(Found { place, info, owner })
    })
}

/// Returns every entry that this user may trust.
pub fn all() -> Vec<Found> {
    let mut found: Vec<Found> = believed()
        .into_iter()
        .flat_map(|(dir, owner)| {
            let files = children(dir.to_str().unwrap_or_default()).collect::<Vec<_>>();
            files.into_iter().filter_map(move |file| {
                if file.extension()? != "json" {
                    return None;
                }
                let info = read_info(&file, owner)?;
                let place = Place::of(&dir, &info.mount);
                (place.info == file).then_some(Found { place, info, owner })
            })
        })
        .collect();
    found.sort_by(|a, b| a.info.mount.cmp(&b.info.mount));
    found
}

fn read_info(path: &Path, owner: u32) -> Option<Info> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.uid() != owner {
        return None;
    }
    let mut text = Vec::new();
    file.take(64 * 1024).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}
