//! Conversions between the kernel's types and the simulator's.

use crate::node::Node;
use crate::virtual_files;
use fuser::{
    Errno, FileAttr, FileType, FopenFlags, Generation, INodeNo, ReplyEmpty, ReplyEntry, ReplyXattr,
    TimeOrNow,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel caches nothing beyond the call, because another mount point may change it.
pub const TTL: Duration = Duration::ZERO;

pub fn errno(e: crate::Errno) -> Errno {
    Errno::from_i32(e as i32)
}

pub fn kind(mode: u32) -> FileType {
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

pub fn attr(node: &Node) -> FileAttr {
    let stripe = node.file().and_then(|file| file.layout());
    let attrs = node.attrs.lock();
    FileAttr {
        ino: INodeNo(node.ino),
        size: node.size(),
        blocks: node.blocks(),
        atime: attrs.atime,
        mtime: attrs.mtime,
        ctime: attrs.ctime,
        crtime: attrs.ctime,
        kind: kind(attrs.mode),
        perm: (attrs.mode & 0o7777) as u16,
        nlink: attrs.nlink,
        uid: attrs.uid,
        gid: attrs.gid,
        rdev: attrs.rdev,
        blksize: stripe.map_or(4096, |layout| layout.stripe_size as u32),
        flags: 0,
    }
}

pub fn virtual_attr(ino: u64) -> Option<FileAttr> {
    let mode = virtual_files::mode(ino)?;
    Some(FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: kind(mode),
        perm: (mode & 0o7777) as u16,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

pub fn direct() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

pub fn time(given: TimeOrNow) -> SystemTime {
    match given {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

pub fn send_entry(reply: ReplyEntry, found: Result<Arc<Node>, crate::Errno>) {
    match found {
        Ok(node) => reply.entry(&TTL, &attr(&node), Generation(0)),
        Err(e) => reply.error(errno(e)),
    }
}

pub fn send_empty(reply: ReplyEmpty, result: Result<(), crate::Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

pub fn send_xattr(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, crate::Errno>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(e) => reply.error(errno(e)),
    }
}
