//! Unmounts one specific mount: the one that this process made, not whatever is mounted there now.

use super::helper;
use nix::errno::Errno;
use nix::mount::MntFlags;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// A process has a file open or its working directory below the mount point.
    #[error("{0} is in use")]
    Busy(PathBuf),
    /// It was unmounted by another program.
    #[error("{0} is not mounted any more")]
    NotMounted(PathBuf),
    #[error("{path}: {source}", path = .0.display(), source = .1)]
    Failed(PathBuf, io::Error),
}

#[derive(Clone, Debug)]
pub struct Unmounter {
    mountpoint: PathBuf,
    /// The kernel's number of the mount.
    id: u64,
    /// The kernel's number of the file system that is mounted.
    device: u64,
    root: bool,
}

impl Unmounter {
    /// Finds the topmost mount on `mountpoint`.
    pub(super) fn find(mountpoint: &Path, root: bool) -> io::Result<Self> {
        let mount = mounts()?
            .into_iter()
            .rev()
            .find(|mount| mount.path == mountpoint)
            .ok_or_else(|| {
                io::Error::other(format!(
                    "{} is missing from the mount table",
                    mountpoint.display()
                ))
            })?;
        Ok(Self {
            mountpoint: mount.path,
            id: mount.id,
            device: mount.device,
            root,
        })
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    pub fn is_mounted(&self) -> io::Result<bool> {
        Ok(mounts()?.iter().any(|mount| self.is(mount)))
    }

    /// Compares both numbers: the kernel reuses mount numbers at once, and device numbers only after the file
    /// system is no longer in use.
    fn is(&self, mount: &Mount) -> bool {
        mount.id == self.id && mount.device == self.device
    }

    /// Taken from the mount table: a `stat` of the file system would be a request to this process.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Unmounts. `lazy` takes the mount out of the tree at once; processes that use it
    /// continue until they are done.
    pub fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        let path = || self.mountpoint.clone();
        let mounts = mounts().map_err(|e| UnmountError::Failed(path(), e))?;
        // After the end of the session both numbers may be those of another mount at another path.
        let there = |mount: &Mount| self.is(mount) && mount.path == self.mountpoint;
        if !mounts.iter().any(there) {
            return Err(UnmountError::NotMounted(path()));
        }
        if self.root {
            let mut flags = MntFlags::UMOUNT_NOFOLLOW;
            flags.set(MntFlags::MNT_DETACH, lazy);
            return match nix::mount::umount2(&self.mountpoint, flags) {
                Ok(()) => Ok(()),
                Err(Errno::EBUSY) => Err(UnmountError::Busy(path())),
                Err(e) => Err(UnmountError::Failed(path(), e.into())),
            };
        }
        let output =
            helper::unmount(&self.mountpoint, lazy).map_err(|e| UnmountError::Failed(path(), e))?;
        if output.status.success() {
            return Ok(());
        }
        // The helper has no exit code for EBUSY. The mount is ours and still there, so it is in use.
        match self.is_mounted() {
            Ok(true) if !lazy => Err(UnmountError::Busy(path())),
            Ok(_) => Err(UnmountError::Failed(path(), helper::failed(&output))),
            Err(e) => Err(UnmountError::Failed(path(), e)),
        }
    }
}

/// The mounts of this process's namespace, oldest first.
fn mounts() -> io::Result<Vec<Mount>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The fields of one line of the mount table.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    id: u64,
    device: u64,
    path: PathBuf,
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let text = |field| std::str::from_utf8(field).ok();
    let id = text(fields.next()?)?.parse().ok()?;
    // The field after this one is skipped: it is the number of the parent mount.
    let (major, minor) = text(fields.nth(1)?)?.split_once(':')?;
    let device = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
    let path = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    Some(Mount { id, device, path })
}

/// Decodes the table's escapes: it writes spaces and similar characters as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_read() {
        let line = br"36 35 98:0 /mnt1 /mnt/my\040dir\134x rw,noatime master:1 - fuse.forebay a rw";
        let mount = Mount {
            id: 36,
            device: libc::makedev(98, 0),
            path: PathBuf::from(r"/mnt/my dir\x"),
        };
        assert_eq!(parse(line), Some(mount));
        assert_eq!(parse(b""), None);
        assert_eq!(unescape(br"a\04"), br"a\04");
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mounts().unwrap().iter().any(|m| m.path == Path::new("/")));
    }
}
