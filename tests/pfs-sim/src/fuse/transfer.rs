//! Calls that may wait: each takes its reply along and sends it when the OSTs are done.

use super::Adapter;
use super::convert::{TTL, attr, errno};
use crate::data::Open;
use crate::node::Node;
use crate::ops::{Caller, Handle, NewAttrs};
use crate::virtual_files;
use fuser::{Errno, FileHandle, ReplyAttr, ReplyData, ReplyWrite, Request};
use std::sync::Arc;

/// Open flags that ask for each write to be on the OSTs before it is acknowledged.
const WAITS: i32 = libc::O_DIRECT | libc::O_SYNC | libc::O_DSYNC;

impl Adapter {
    pub(super) fn caller(&self, req: &Request) -> Caller {
        Caller {
            mount: self.mount,
            uid: req.uid(),
            gid: req.gid(),
            pid: req.pid(),
        }
    }

    /// Returns the open file that `truncate` or `ftruncate` acts on.
    fn opened(&self, caller: Caller, node: &Node, fh: Option<FileHandle>) -> Option<Open> {
        if let Some(open) = fh.and_then(|fh| self.pfs.open_file(fh.0).ok()) {
            return Some(open);
        }
        let client = self.pfs.client(caller, None);
        let file = node.file()?.clone();
        Some(Open { file, client })
    }

    pub(super) fn set_size(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        fh: Option<FileHandle>,
        size: u64,
        new: NewAttrs,
        reply: ReplyAttr,
    ) {
        let Some(open) = self.opened(caller, node, fh) else {
            return reply.error(Errno::EINVAL);
        };
        let (pfs, node) = (self.pfs.clone(), node.clone());
        let cluster = &self.pfs.cluster;
        cluster.truncate(&open, size, move |result| match result {
            Ok(()) => {
                pfs.set_attrs(&node, &new);
                reply.attr(&TTL, &attr(&node));
            }
            Err(e) => reply.error(errno(e)),
        });
        if fh.is_none() {
            self.pfs.nameless_call_ended(&open);
        }
    }

    pub(super) fn read_from(&self, fh: u64, offset: u64, size: u64, reply: ReplyData) {
        match self.pfs.handle(fh).as_deref() {
            Ok(Handle::Virtual { content, .. }) => {
                let start = content.len().min(offset as usize);
                let end = content.len().min(start + size as usize);
                reply.data(&content[start..end]);
            }
            Ok(Handle::File { open, .. }) => {
                let cluster = &self.pfs.cluster;
                cluster.read(open, offset, size, move |result| match result {
                    Ok(data) => reply.data(data),
                    Err(e) => reply.error(errno(e)),
                });
            }
            Ok(Handle::Other { .. }) | Err(_) => reply.error(Errno::EBADF),
        }
    }

    pub(super) fn write_to(
        &self,
        fh: u64,
        offset: u64,
        data: &[u8],
        flags: i32,
        mapped: bool,
        reply: ReplyWrite,
    ) {
        match self.pfs.handle(fh).as_deref() {
            Ok(Handle::Virtual { ino, .. }) if virtual_files::is_control(*ino) => {
                match self.pfs.command(data) {
                    Ok(()) => reply.written(data.len() as u32),
                    Err(e) => reply.error(errno(e)),
                }
            }
            Ok(Handle::File { node, open }) => {
                node.attrs.lock().changed();
                let append = flags & libc::O_APPEND != 0 && !mapped;
                let offset = (!append).then_some(offset);
                let behind = flags & WAITS == 0;
                let cluster = &self.pfs.cluster;
                cluster.write(open, offset, data, behind, move |result| match result {
                    Ok(written) => reply.written(written as u32),
                    Err(e) => reply.error(errno(e)),
                });
            }
            _ => reply.error(Errno::EBADF),
        }
    }
}
