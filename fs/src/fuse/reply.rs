//! Packs answers into fuser's replies.

use super::backing_id;
use super::convert::{file_attr, file_type, lock_type, nameless};
use crate::errno::Result;
use crate::ops::{Conflict, Opened, Overlay, Xattr};
use crate::requests::Reply;
use crate::types::{Attr, DirEntry, Entry, StatFs, Written};
use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use std::convert::Infallible;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

const DIRECT: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// Implements [`Reply`] for types of fuser, which have a method `error` in common.
macro_rules! replies {
    ($($reply:ident: $answer:ty, |$self:pat_param, $overlay:pat_param, $ok:pat_param| $send:expr;)*) => {
        $(impl Reply<$answer> for $reply {
            fn send(self, $overlay: &Overlay, answer: Result<$answer, i32>) {
                match answer {
                    Ok($ok) => {
                        let $self = self;
                        $send
                    }
                    Err(errno) => self.error(Errno::from_i32(errno)),
                }
            }
        })*
    };
}

replies! {
    ReplyEmpty: (), |reply, _, ()| reply.ok();
    ReplyDirectory: (), |reply, _, ()| reply.ok();
    ReplyDirectoryPlus: (), |reply, _, ()| reply.ok();
    ReplyAttr: Attr, |reply, overlay, attr| reply.attr(&overlay.ttl(attr.ino), &file_attr(&attr));
    ReplyEntry: Entry, |reply, overlay, entry| reply.entry(
        &overlay.ttl(entry.attr.ino),
        &file_attr(&entry.attr),
        Generation(entry.generation),
    );
    ReplyOpen: Opened, |reply, _, opened| {
        let (fh, flags) = (FileHandle(opened.fh), flags_of(&opened));
        match opened.passthrough.as_ref().and_then(backing_id) {
            Some(id) => reply.opened_passthrough(fh, flags, id),
            None => reply.opened(fh, DIRECT),
        }
    };
    ReplyCreate: (Entry, Opened), |reply, overlay, (entry, opened)| {
        let (ttl, attr) = (overlay.ttl(entry.attr.ino), file_attr(&entry.attr));
        let (generation, fh) = (Generation(entry.generation), FileHandle(opened.fh));
        match opened.passthrough.as_ref().and_then(backing_id) {
            Some(id) => {
                reply.created_passthrough(&ttl, &attr, generation, fh, flags_of(&opened), id);
            }
            None => reply.created(&ttl, &attr, generation, fh, DIRECT),
        }
    };
    // An open directory.
    ReplyOpen: u64, |reply, _, fh| reply.opened(FileHandle(fh), FopenFlags::empty());
    ReplyData: Vec<u8>, |reply, _, data| reply.data(&data);
    ReplyWrite: Written, |reply, _, Written(len)| reply.written(len as u32);
    ReplyLseek: u64, |reply, _, offset| reply.offset(offset as i64);
    ReplyLock: Option<Conflict>, |reply, _, found| match found {
        Some(c) => reply.locked(c.first, c.last, lock_type(Some(c.kind)), c.pid),
        None => reply.locked(0, 0, lock_type(None), 0),
    };
    ReplyStatfs: StatFs, |reply, _, s| reply.statfs(
        s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
    );
    ReplyXattr: Xattr, |reply, _, found| match found {
        Xattr::Length(len) => reply.size(len as u32),
        Xattr::Value(value) => reply.data(&value),
    };
    ReplyIoctl: Infallible, |_, _, never| match never {};
    ReplyPoll: Infallible, |_, _, never| match never {};
}

impl Reply<&[u8]> for ReplyData {
    fn send(self, _: &Overlay, answer: Result<&[u8], i32>) {
        match answer {
            Ok(data) => self.data(data),
            Err(errno) => self.error(Errno::from_i32(errno)),
        }
    }
}

/// For requests that the kernel wants no answer to.
impl Reply<()> for () {
    fn send(self, _: &Overlay, _: Result<(), i32>) {}
}

/// For a passthrough handle: with direct I/O the kernel maps the canonical file but sends reads and writes here.
fn flags_of(opened: &Opened) -> FopenFlags {
    match opened.sends_requests {
        true => DIRECT,
        false => FopenFlags::empty(),
    }
}

/// Adds an entry to a listing. True if there was no room for it.
pub fn add_name(reply: &mut ReplyDirectory, entry: &DirEntry) -> bool {
    let name = OsStr::from_bytes(entry.name.to_bytes());
    reply.add(INodeNo(entry.ino), entry.next, file_type(entry.kind), name)
}

/// The same with the attributes of what was found, if it was looked up.
pub fn add_entry(
    reply: &mut ReplyDirectoryPlus,
    overlay: &Overlay,
    entry: &DirEntry,
    found: Option<&Entry>,
) -> bool {
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
}
