//! Converts fuser's types to ours and back.

use crate::errno::{FsError, Result};
use crate::ops::{LockKind, LockRequest};
use crate::types::{Attr, Caller, SetTime, Time};
use fuser::{FileAttr, FileHandle, FileType, INodeNo, LockOwner, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel's own 32-bit encoding of device numbers.
pub fn encode_dev(rdev: u64) -> u32 {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

pub fn decode_dev(rdev: u32) -> u64 {
    let major = (rdev & 0xfff00) >> 8;
    let minor = (rdev & 0xff) | ((rdev >> 12) & 0xfff00);
    libc::makedev(major, minor)
}

pub fn lock_type(kind: Option<LockKind>) -> i32 {
    match kind {
        None => libc::F_UNLCK,
        Some(LockKind::Shared) => libc::F_RDLCK,
        Some(LockKind::Exclusive) => libc::F_WRLCK,
    }
}

/// `kind` is a type as in fcntl, `pid` the process that is shown to others.
pub fn lock_request(
    caller: Caller,
    fh: FileHandle,
    owner: LockOwner,
    (first, last): (u64, u64),
    kind: i32,
    pid: u32,
) -> Result<LockRequest> {
    let kind = match kind {
        libc::F_UNLCK => None,
        libc::F_RDLCK => Some(LockKind::Shared),
        libc::F_WRLCK => Some(LockKind::Exclusive),
        _ => return Err(FsError::Invalid("no such kind of lock")),
    };
    Ok(LockRequest {
        fh: fh.0,
        owner: owner.0,
        first,
        last,
        kind,
        pid,
        caller,
    })
}

pub fn file_type(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

pub fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.mode),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_dev(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let nanos = Duration::from_nanos(time.nsec.into());
    let seconds = Duration::from_secs(time.sec.unsigned_abs());
    let whole = if time.sec < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    whole
        .and_then(|t| t.checked_add(nanos))
        .unwrap_or(UNIX_EPOCH)
}

pub fn set_time(time: TimeOrNow) -> SetTime {
    let time = match time {
        TimeOrNow::Now => return SetTime::Now,
        TimeOrNow::SpecificTime(time) => time,
    };
    SetTime::At(match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time {
            sec: since.as_secs() as i64,
            nsec: since.subsec_nanos(),
        },
        // fuser subtracts both parts of a negative time from the epoch, although the nanoseconds count
        // forwards; this restores the kernel's numbers.
        Err(before) => Time {
            sec: -(before.duration().as_secs() as i64),
            nsec: before.duration().subsec_nanos(),
        },
    })
}

/// Attributes for an entry of a directory listing that was not looked up, which the node number zero
/// indicates. For `.` and `..` the kernel ignores the number, and users want to see it.
pub fn nameless(ino: u64, kind: u32, name: &[u8]) -> FileAttr {
    let dots = matches!(name, b"." | b"..");
    FileAttr {
        ino: INodeNo(if dots { ino } else { 0 }),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if dots {
            FileType::Directory
        } else {
            file_type(kind)
        },
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (1, 3), (8, 17), (253, 70_000), (4095, 1_048_575)] {
            let dev = libc::makedev(major, minor);
            assert_eq!(decode_dev(encode_dev(dev)), dev, "{major}:{minor}");
        }
    }

    #[test]
    fn times_before_1970_keep_their_value() {
        let t = system_time(Time {
            sec: -2,
            nsec: 800_000_000,
        });
        assert_eq!(
            UNIX_EPOCH.duration_since(t).unwrap(),
            Duration::from_millis(1200)
        );
        // fuser reads -2 s + 0.8 s from the kernel as this time.
        let read = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let want = Time {
            sec: -2,
            nsec: 800_000_000,
        };
        assert_eq!(set_time(TimeOrNow::SpecificTime(read)), SetTime::At(want));
    }

    #[test]
    fn kinds_map() {
        assert_eq!(file_type(libc::S_IFDIR | 0o755), FileType::Directory);
        assert_eq!(file_type(libc::S_IFREG), FileType::RegularFile);
        assert_eq!(file_type(libc::S_IFSOCK), FileType::Socket);
    }
}
