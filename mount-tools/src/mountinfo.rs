//! Reads `/proc/self/mountinfo`: whether a directory is a Forebay mount, and which mount a path is on.

use crate::control::location;
use nix::errno::Errno;
use nix::sys::signal::SigSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel's name for the type of Forebay mounts.
pub const FSTYPE: &str = "fuse.forebay";

/// A mount that has not answered after this long has a daemon: a dead mount answers at once.
const ANSWERS: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub point: PathBuf,
    pub fstype: String,
    /// Options of the file system, as the kernel shows them.
    pub options: String,
    /// The user who mounted it, if the kernel shows that: it does for FUSE.
    pub user: Option<u32>,
    /// The group with which that user mounted it.
    pub group: Option<u32>,
    /// Device number of the file system.
    pub device: u64,
}

impl Mount {
    pub fn is_forebay(&self) -> bool {
        self.fstype == FSTYPE
    }
}

pub fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Returns the mount that `path` (a real path) is on.
pub fn mount_of(path: &Path) -> io::Result<Option<Mount>> {
    Ok(pick(read()?, path))
}

/// Whether there is a Forebay mount on exactly this directory, whether its daemon is alive or not.
pub fn forebay_at(point: &Path) -> io::Result<bool> {
    Ok(pick(read()?, point).is_some_and(|m| m.is_forebay() && m.point == point))
}

/// Returns the user and the group with which the Forebay mount on exactly this directory was mounted,
/// according to the kernel.
pub fn user_of(point: &Path) -> Option<(u32, u32)> {
    let mount = pick(read().ok()?, point)?;
    let user = mount.user.zip(mount.group);
    user.filter(|_| mount.is_forebay() && mount.point == point)
}

/// Returns the Forebay mounts of users other than root.
pub fn of_users() -> io::Result<Vec<(PathBuf, u32)>> {
    let mounts = read()?.into_iter().filter(Mount::is_forebay);
    let of_user = |m: Mount| Some((m.point, m.user.filter(|uid| *uid != 0)?));
    Ok(mounts.filter_map(of_user).collect())
}

/// Returns the device number of the file system that is mounted on exactly this directory, without asking it.
pub fn device_of(point: &Path) -> io::Result<Option<u64>> {
    let on = pick(read()?, point).filter(|m| m.point == point);
    Ok(on.map(|m| m.device))
}

/// Returns the topmost mount that `path` is on. Among equally long mount points the last one lies on top.
fn pick(mounts: Vec<Mount>, path: &Path) -> Option<Mount> {
    mounts
        .into_iter()
        .filter(|m| path.starts_with(&m.point))
        .max_by_key(|m| m.point.as_os_str().len())
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|b| *b == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|b| *b == b' ');
            let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
            let device = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
            let point = unescape(fields.nth(1)?);
            let mut rest = fields.skip_while(|f| *f != b"-");
            let fstype = String::from_utf8_lossy(rest.nth(1)?).into_owned();
            let options = rest.nth(1).unwrap_or_default();
            let number = |key: &[u8]| {
                options.split(|b| *b == b',').find_map(|option| {
                    let number = option.strip_prefix(key)?;
                    std::str::from_utf8(number).ok()?.parse().ok()
                })
            };
            Some(Mount {
                point: PathBuf::from(point),
                fstype,
                options: String::from_utf8_lossy(options).into_owned(),
                user: number(b"user_id="),
                group: number(b"group_id="),
                device,
            })
        })
        .collect()
}

/// Blanks, tabs, newlines and backslashes are written as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut i = 0;
    while i < field.len() {
        let code = field
            .get(i + 1..i + 4)
            .filter(|d| field[i] == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        match code {
            Some(d) => {
                let value = d.iter().fold(0_u32, |n, c| n * 8 + u32::from(c - b'0'));
                out.push(value as u8);
                i += 4;
            }
            None => {
                out.push(field[i]);
                i += 1;
            }
        }
    }
    OsString::from_vec(out)
}

/// Whether the mount on this directory has lost its daemon. (`stat` would not tell: for a while the kernel
/// answers that from its cache.) A mount that does not answer in time has a daemon, which waits for the file
/// system below.
pub fn is_dead(point: &Path) -> bool {
    let (answered, answer) = std::sync::mpsc::channel();
    let point = point.to_path_buf();
    let asking = std::thread::spawn(move || {
        // This thread may outlive the call, and must not take signals: another thread waits for them.
        if let Err(error) = SigSet::all().thread_block() {
            tracing::debug!(%error, "signals cannot be blocked");
        }
        let error = nix::sys::statvfs::statvfs(&point).err();
        if answered.send(error).is_err() {
            tracing::debug!("a mount answered late");
        }
    });
    // A call into a file system that hangs does not come back, so its thread is not joined.
    let Ok(error) = answer.recv_timeout(ANSWERS) else {
        return false;
    };
    // The thread must end here: a daemon is forked while the process has only one thread.
    if asking.join().is_err() {
        tracing::error!("the thread that asked a mount broke off");
    }
    matches!(error, Some(Errno::ENOTCONN | Errno::ECONNABORTED))
}

/// Returns the real path of a mount point, or of something below it. A path that is a mount point as it is
/// given is not accessed: it may lie below a file system that hangs. If the daemon is dead and the path
/// itself does not answer, its parents are resolved.
pub fn real_point(path: &Path) -> io::Result<PathBuf> {
    // As the kernel writes it: without a slash at its end.
    let absolute: PathBuf = std::path::absolute(path)?.components().collect();
    if forebay_at(&absolute)? || location::find(&absolute).is_some() {
        return Ok(absolute);
    }
    real_path(path)
}

fn real_path(path: &Path) -> io::Result<PathBuf> {
    let error = match std::fs::canonicalize(path) {
        Ok(path) => return Ok(path),
        Err(e) => e,
    };
    let absolute = std::path::absolute(path)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(error);
    };
    if error.raw_os_error() == Some(libc::ENOENT) || name.as_bytes() == b".." {
        return Err(error);
    }
    Ok(real_path(parent)?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
30 22 0:30 / /scratch rw - lustre mgs:/fs rw\n\
31 30 0:31 / /scratch rw,nosuid - fuse.forebay forebay rw,user_id=0,group_id=7\n\
32 22 0:32 / /with\\040blank\\134 rw master:3 - fuse.forebay forebay rw\n\
broken line\n";

    #[test]
    fn the_topmost_mount_of_a_path() {
        let on = |path: &str| pick(parse(TEXT), Path::new(path)).unwrap();
        assert!(on("/scratch/a/b").is_forebay());
        assert_eq!(on("/scratchy").fstype, "ext4");
        assert_eq!(on("/with blank\\/x").point, Path::new("/with blank\\"));
        assert_eq!(on("/scratch").device, libc::makedev(0, 31));
        assert_eq!(parse(TEXT).len(), 4);
        let who = |path: &str| (on(path).user, on(path).group);
        assert_eq!(who("/scratch"), (Some(0), Some(7)));
        assert_eq!(who("/scratchy"), (None, None));
    }

    #[test]
    fn this_machine_has_a_root() {
        let root = mount_of(Path::new("/")).unwrap().unwrap();
        assert_eq!(root.point, Path::new("/"));
        assert!(!forebay_at(Path::new("/")).unwrap());
    }

    #[test]
    fn a_point_is_found_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert_eq!(
            real_point(&link).unwrap(),
            std::fs::canonicalize(dir.path()).unwrap()
        );
        assert!(real_point(&dir.path().join("none")).is_err());
    }
}
