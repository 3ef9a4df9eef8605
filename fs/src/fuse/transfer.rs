//! Moving bytes: at once on the event loop where nothing can be waited for, else on the pool.
//!
//! The event loop lets go of the handle before it replies: after that the kernel may release it,
//! and the last reference closes the file, which may wait.

use super::{Adapter, errno};
use fuser::{
    FileHandle, INodeNo, LockOwner, OpenFlags, ReplyData, ReplyWrite, Request, WriteFlags,
};
use std::cell::RefCell;

thread_local! {
    /// An event loop's read buffer: one for each, so a read does not allocate.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Adapter {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn serve_read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: usize,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let handle = match self.overlay.handle(fh.0) {
            Ok(handle) => handle,
            Err(e) => return reply.error(errno("read", ino.0, &e)),
        };
        if owner.is_none() {
            self.overlay.page_wanted(&handle);
        }
        let later = BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.overlay.try_read(&handle, offset, &mut buffer[..size]) {
                Ok(None) => return Some((reply, handle)),
                read => {
                    drop(handle);
                    match read {
                        Ok(len) => reply.data(&buffer[..len.unwrap_or(0)]),
                        Err(e) => reply.error(errno("read", ino.0, &e)),
                    }
                }
            }
            None
        });
        let Some((reply, handle)) = later else { return };
        self.pool(req, move |fs| {
            let mut buffer = vec![0; size];
            match fs.read(&handle, offset, &mut buffer) {
                Ok(len) => reply.data(&buffer[..len]),
                Err(e) => reply.error(errno("read", ino.0, &e)),
            }
        });
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn serve_write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        reply: ReplyWrite,
    ) {
        let handle = match self.overlay.handle(fh.0) {
            Ok(handle) => handle,
            Err(e) => return reply.error(errno("write", ino.0, &e)),
        };
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let durable = flags.0 & libc::O_DSYNC != 0;
        // Pages of mappings have a place, whatever the handle was opened for.
        let appends = flags.0 & libc::O_APPEND != 0
            && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE)
            && self.overlay.finds_end(&handle);
        let end = offset.saturating_add(data.len() as u64);
        if !durable && !appends && self.overlay.try_write(&handle, offset, data, kill) {
            handle.inode.kernel_size.written(end);
            drop(handle);
            return reply.written(data.len() as u32);
        }
        let data = data.to_vec();
        self.pool(req, move |fs| {
            let written = match appends {
                true => fs.append(&handle, &data, kill, durable),
                false => fs.write(&handle, offset, &data, kill, durable),
            };
            match written {
                Ok(()) => {
                    handle.inode.kernel_size.written(end);
                    reply.written(data.len() as u32);
                }
                Err(e) => reply.error(errno("write", ino.0, &e)),
            }
        });
    }
}
