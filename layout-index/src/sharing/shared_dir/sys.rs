//! System calls on names in a held directory that `beneath` does not provide, each in one place.

use crate::calls;
use nix::errno::Errno;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::UnlinkatFlags;
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The attributes of a name that this module needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameStat {
    pub device: (u32, u32),
    pub ino: u64,
    pub mode: u32,
    pub uid: u32,
    pub sec: i64,
    pub nsec: u32,
}

impl NameStat {
    /// Device and number of what has the name: another file under the same name differs in it.
    pub fn identity(self) -> ((u32, u32), u64) {
        (self.device, self.ino)
    }
}

/// Reads the attributes of a name; those of the link itself if it is one. `None` if it is missing.
pub(super) fn stat_name(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<NameStat>> {
    calls::note("stat");
    let name = CString::new(name)?;
    // Changes by other clients must be seen, so the attribute cache of this client's kernel is
    // bypassed.
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_STATX_FORCE_SYNC;
    let mask = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID;
    let mask = mask | libc::STATX_INO | libc::STATX_MTIME;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the name is NUL-terminated, and the buffer has the size that the kernel expects.
    let rc = unsafe {
        libc::statx(
            dir.as_raw_fd(),
            name.as_ptr(),
            flags,
            mask,
            found.as_mut_ptr(),
        )
    };
    match Errno::result(rc) {
        Ok(_) => {}
        Err(Errno::ENOENT) => return Ok(None),
        Err(e) => return Err(e.into()),
    }
    // SAFETY: plain numbers, all of them set to zero before the call filled them in.
    let found = unsafe { found.assume_init() };
    Ok(Some(NameStat {
        device: (found.stx_dev_major, found.stx_dev_minor),
        ino: found.stx_ino,
        mode: u32::from(found.stx_mode),
        uid: found.stx_uid,
        sec: found.stx_mtime.tv_sec,
        nsec: found.stx_mtime.tv_nsec,
    }))
}

/// A random time, for [`set_time`].
pub(super) fn random_time() -> TimeSpec {
    let (sec, nsec): (u32, u32) = rand::random();
    TimeSpec::new(i64::from(sec >> 1), i64::from(nsec % 1_000_000_000))
}

/// Sets the mtime of a name, of the link itself if it is one.
pub(super) fn set_time(dir: BorrowedFd<'_>, name: &str, time: TimeSpec) -> nix::Result<()> {
    calls::note("utime");
    let flag = UtimensatFlags::NoFollowSymlink;
    utimensat(dir, name, &TimeSpec::UTIME_OMIT, &time, flag)
}

/// Makes a symbolic link that is never followed: it only carries its text.
pub(super) fn link(dir: BorrowedFd<'_>, name: &str, text: &str) -> nix::Result<()> {
    calls::note("link");
    nix::unistd::symlinkat(text, dir, name)
}

/// Like [`link`], for a link that may be there already, whatever its text.
pub(super) fn ensure_link(dir: BorrowedFd<'_>, name: &str, text: &str) -> nix::Result<()> {
    match link(dir, name, text) {
        Err(Errno::EEXIST) => Ok(()),
        made => made,
    }
}

/// Returns the text of a link, or `None` if it is missing. A text of more than 64 bytes, which no
/// node writes, is returned truncated.
pub(super) fn read_link(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<String>> {
    calls::note("readlink");
    let name = CString::new(name)?;
    let mut text = [0u8; 64];
    // SAFETY: the name is NUL-terminated, and the length of the buffer is given with it.
    let rc = unsafe {
        libc::readlinkat(
            dir.as_raw_fd(),
            name.as_ptr(),
            text.as_mut_ptr().cast(),
            text.len(),
        )
    };
    match Errno::result(rc) {
        Ok(n) => Ok(Some(
            String::from_utf8_lossy(&text[..n as usize]).into_owned(),
        )),
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

pub(super) fn rename(dir: BorrowedFd<'_>, from: &str, to: &str) -> nix::Result<()> {
    calls::note("rename");
    nix::fcntl::renameat(dir, from, dir, to)
}

pub(super) fn remove_dir(dir: BorrowedFd<'_>, name: &str) -> nix::Result<()> {
    calls::note("rmdir");
    nix::unistd::unlinkat(dir, name, UnlinkatFlags::RemoveDir)
}
