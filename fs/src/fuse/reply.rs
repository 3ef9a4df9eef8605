//! A result of an operation as its reply.

use super::convert::file_attr;
use super::errno;
use crate::errno::Result;
use crate::ops::{Overlay, Xattr};
use crate::types::{Attr, Entry};
use fuser::{Generation, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyXattr};

pub fn reply_entry(overlay: &Overlay, reply: ReplyEntry, op: &'static str, entry: Result<Entry>) {
    match entry {
        Ok(entry) => reply.entry(
            &overlay.ttl(),
            &file_attr(&entry.attr),
            Generation(entry.generation),
        ),
        Err(e) => reply.error(errno(op, 0, &e)),
    }
}

pub fn reply_attr(overlay: &Overlay, reply: ReplyAttr, op: &'static str, attr: Result<Attr>) {
    match attr {
        Ok(attr) => reply.attr(&overlay.ttl(), &file_attr(&attr)),
        Err(e) => reply.error(errno(op, 0, &e)),
    }
}

pub fn reply_empty(reply: ReplyEmpty, op: &'static str, ino: INodeNo, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(op, ino.0, &e)),
    }
}

pub fn reply_xattr(reply: ReplyXattr, op: &'static str, ino: INodeNo, result: Result<Xattr>) {
    match result {
        Ok(Xattr::Length(len)) => reply.size(len as u32),
        Ok(Xattr::Value(value)) => reply.data(&value),
        Err(e) => reply.error(errno(op, ino.0, &e)),
    }
}
