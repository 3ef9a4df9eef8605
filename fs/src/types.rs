//! Types that the operations take and return. None of them depends on FUSE: another transport
//! would use the same types.

use crate::errno::FsError;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;

/// Name of the directory that all nodes share. For the mount's users there is no entry of that name.
pub const RESERVED_NAME: &[u8] = b".forebay";
/// Extended attributes with this prefix do not exist for the mount's users either.
pub const RESERVED_XATTR: &[u8] = b"user.forebay.internal.";

/// The root directory's node number, which FUSE fixes.
pub const ROOT: u64 = 1;

/// The caller of a request. `pid` is the thread's number; it is used to read the supplementary groups and,
/// while the thread waits, its signals. 0 if the thread is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// A point in time, with the fields of `struct timespec`.
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

/// The attributes that `stat` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Node number; also the inode number that users see.
    pub ino: u64,
    pub size: u64,
    /// Number of blocks of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Type and permission bits.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number as `libc::makedev` encodes it.
    pub rdev: u64,
    pub blksize: u32,
}

/// A resolved name. The kernel now holds one more reference to the node.
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

/// Attributes to change; `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
}

/// Number of bytes that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written(pub u64);

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub ino: u64,
    /// Offset at which the listing continues after this entry.
    pub next: u64,
    /// `S_IFMT` bits, or 0 if the backing does not report the type.
    pub kind: u32,
    pub name: CString,
}

/// Size and free space of the backing.
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

    /// Refuses a reserved name. For operations that would create, remove or rename it.
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
