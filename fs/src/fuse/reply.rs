//! A result of an operation as its reply.

use super::convert::{file_attr, file_type, nameless};
use super::{backing_id, errno};
use crate::errno::Result;
use crate::ops::{Opened, Overlay, Xattr};
use crate::types::{Attr, Caller, Entry, StatFs};
use fuser::{
    FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

const DIRECT: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

pub fn reply_open(reply: ReplyOpen, ino: INodeNo, opened: Result<Opened>) {
    let opened = match opened {
        Ok(opened) => opened,
        Err(e) => return reply.error(errno("open", ino.0, &e)),
    };
    let (fh, flags) = (FileHandle(opened.fh), flags_of(&opened));
    match opened.passthrough.as_ref().and_then(backing_id) {
        Some(id) => reply.opened_passthrough(fh, flags, id),
        None => reply.opened(fh, DIRECT),
    }
}

pub fn reply_create(
    overlay: &Overlay,
    reply: ReplyCreate,
    parent: INodeNo,
    created: Result<(Entry, Opened)>,
) {
    let (entry, opened) = match created {
        Ok(created) => created,
        Err(e) => return reply.error(errno("create", parent.0, &e)),
    };
    let (ttl, attr) = (overlay.ttl(entry.attr.ino), file_attr(&entry.attr));
    let (generation, fh) = (Generation(entry.generation), FileHandle(opened.fh));
    match opened.passthrough.as_ref().and_then(backing_id) {
        Some(id) => {
            reply.created_passthrough(&ttl, &attr, generation, fh, flags_of(&opened), id);
        }
        None => reply.created(&ttl, &attr, generation, fh, DIRECT),
    }
}

/// With passthrough, direct I/O leaves mappings to the kernel and sends reads and writes here.
fn flags_of(opened: &Opened) -> FopenFlags {
    match opened.sends_requests {
        true => DIRECT,
        false => FopenFlags::empty(),
    }
}

pub fn reply_names(
    overlay: &Overlay,
    mut reply: ReplyDirectory,
    caller: &Caller,
    ino: INodeNo,
    fh: FileHandle,
    offset: u64,
) {
    let listed = overlay.readdir(caller, fh.0, offset, &mut |entry| {
        let name = OsStr::from_bytes(entry.name.to_bytes());
        reply.add(INodeNo(entry.ino), entry.next, file_type(entry.kind), name)
    });
    match listed {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno("readdir", ino.0, &e)),
    }
}

pub fn reply_entries(
    overlay: &Overlay,
    mut reply: ReplyDirectoryPlus,
    caller: &Caller,
    ino: INodeNo,
    fh: FileHandle,
    offset: u64,
) {
    let listed = overlay.readdirplus(caller, fh.0, offset, &mut |entry, found| {
        let name = OsStr::from_bytes(entry.name.to_bytes());
        match found {
            Some(found) => reply.add(
                INodeNo(found.attr.ino),
                entry.next,
                name,
                &overlay.ttl(found.attr.ino),
                &file_attr(&found.attr),
                Generation(found.generation),
            ),
            None => reply.add(
                INodeNo(0),
                entry.next,
                name,
                &Duration::ZERO,
                &nameless(entry.ino, entry.kind, entry.name.to_bytes()),
                Generation(0),
            ),
        }
    });
    match listed {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno("readdirplus", ino.0, &e)),
    }
}

pub fn reply_entry(overlay: &Overlay, reply: ReplyEntry, op: &'static str, entry: Result<Entry>) {
    match entry {
        Ok(entry) => reply.entry(
            &overlay.ttl(entry.attr.ino),
            &file_attr(&entry.attr),
            Generation(entry.generation),
        ),
        Err(e) => reply.error(errno(op, 0, &e)),
    }
}

pub fn reply_attr(overlay: &Overlay, reply: ReplyAttr, op: &'static str, attr: Result<Attr>) {
    match attr {
        Ok(attr) => reply.attr(&overlay.ttl(attr.ino), &file_attr(&attr)),
        Err(e) => reply.error(errno(op, 0, &e)),
    }
}

pub fn reply_empty(reply: ReplyEmpty, op: &'static str, ino: INodeNo, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(op, ino.0, &e)),
    }
}

pub fn reply_opendir(reply: ReplyOpen, ino: INodeNo, opened: Result<u64>) {
    match opened {
        Ok(fh) => reply.opened(FileHandle(fh), FopenFlags::empty()),
        Err(e) => reply.error(errno("opendir", ino.0, &e)),
    }
}

pub fn reply_link(reply: ReplyData, ino: INodeNo, target: Result<Vec<u8>>) {
    match target {
        Ok(target) => reply.data(&target),
        Err(e) => reply.error(errno("readlink", ino.0, &e)),
    }
}

pub fn reply_lseek(reply: ReplyLseek, ino: INodeNo, found: Result<u64>) {
    match found {
        Ok(offset) => reply.offset(offset as i64),
        Err(e) => reply.error(errno("lseek", ino.0, &e)),
    }
}

pub fn reply_statfs(reply: ReplyStatfs, ino: INodeNo, room: Result<StatFs>) {
    match room {
        Ok(s) => reply.statfs(
            s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
        ),
        Err(e) => reply.error(errno("statfs", ino.0, &e)),
    }
}

pub fn reply_copied(reply: ReplyWrite, ino: INodeNo, copied: Result<u64>) {
    match copied {
        Ok(copied) => reply.written(copied as u32),
        Err(e) => reply.error(errno("copy_file_range", ino.0, &e)),
    }
}

pub fn reply_xattr(reply: ReplyXattr, op: &'static str, ino: INodeNo, result: Result<Xattr>) {
    match result {
        Ok(Xattr::Length(len)) => reply.size(len as u32),
        Ok(Xattr::Value(value)) => reply.data(&value),
        Err(e) => reply.error(errno(op, ino.0, &e)),
    }
}
