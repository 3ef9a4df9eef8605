//! The words of the operations. Nothing here knows FUSE: another transport would use the same.

use crate::errno::FsError;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;

/// Name of the shared directory of all nodes; no entry of that name exists for the mount's users.
pub const RESERVED_NAME: &[u8] = b".forebay";
/// Extended attributes below this prefix do not exist for the mount's users either.
pub const RESERVED_XATTR: &[u8] = b"user.forebay.internal.";

/// The root directory's node number: FUSE fixes it.
pub const ROOT: u64 = 1;

/// Who asks. `pid` is the thread's; its supplementary groups and, while it waits for a lock,
/// its signals are read. 0 means nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// A point in time, as `struct timespec` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    pub sec: i64,
    pub nsec: u32,
}

impl Time {
    /// Nanoseconds since 1970; earlier times are clamped to zero.
    pub fn as_nanos(self) -> u64 {
        let sec = u64::try_from(self.sec).unwrap_or(0);
        if self.sec < 0 {
            return 0;
        }
        sec.saturating_mul(1_000_000_000)
            .saturating_add(u64::from(self.nsec))
    }

    pub fn from_nanos(nanos: u64) -> Self {
        Self {
            sec: (nanos / 1_000_000_000) as i64,
            nsec: (nanos % 1_000_000_000) as u32,
        }
    }
}

/// What `stat` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Node number; also the inode number that users see.
    pub ino: u64,
    pub size: u64,
    /// Of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Type and permission bits.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// As `libc::makedev` makes it.
    pub rdev: u64,
    pub blksize: u32,
}

/// A name that was resolved; the kernel holds one more reference to the node now.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub attr: Attr,
    /// Differs for two files that had the same node number one after the other.
    pub generation: u64,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(Time),
}

/// What to change; `None` leaves it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub ino: u64,
    /// Where the listing goes on after this entry.
    pub next: u64,
    /// `S_IFMT` bits, or 0 where the backing does not say.
    pub kind: u32,
    pub name: CString,
}

/// The backing's room.
#[derive(Clone, Copy, Debug)]
pub struct StatFs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
}

/// One component of a path: not empty, no slash, neither `.` nor `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(CString);

impl Name {
    pub fn parse(name: &OsStr) -> Result<Self, FsError> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
            return Err(FsError::Invalid("a name must be one path component"));
        }
        CString::new(bytes)
            .map(Self)
            .map_err(|_| FsError::Invalid("a name must not hold a zero byte"))
    }

    /// A name that the mount's users may neither see nor make.
    pub fn is_reserved(&self) -> bool {
        self.0.as_bytes() == RESERVED_NAME
    }

    /// For operations that would create, remove or rename it.
    pub fn allowed(self) -> Result<Self, FsError> {
        if self.is_reserved() {
            Err(FsError::Reserved)
        } else {
            Ok(self)
        }
    }

    pub fn as_c(&self) -> &CStr {
        &self.0
    }
}

#[cfg(test)]
mod tests;
