//! Locks, and the close that gives them up. All of it may wait for the backing; a request that has
//! to wait for another owner leaves the pool.

use super::reply::reply_empty;
use super::{Adapter, caller, errno};
use crate::errno::{FsError, Result};
use crate::ops::{LockKind, LockRequest, Overlay};
use fuser::{FileHandle, INodeNo, LockOwner, ReplyEmpty, ReplyLock, Request};

/// Handle, owner, first and last byte, type as fcntl has it, process.
pub type Asked = (FileHandle, LockOwner, (u64, u64), i32, u32);

impl Adapter {
    /// On the event loop unless there are locks to give up.
    pub fn serve_flush(&self, ino: INodeNo, fh: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        let flush = move |fs: &Overlay| reply_empty(reply, "flush", ino, fs.flush(fh.0, owner.0));
        if self.overlay.has_locks(fh.0, owner.0) || self.overlay.close_waits(fh.0) {
            self.pool(flush);
        } else {
            flush(&self.overlay);
        }
    }

    pub fn serve_getlk(&self, request: &Request, ino: INodeNo, asked: Asked, reply: ReplyLock) {
        let ask = lock_request(request, asked);
        self.pool(move |fs| match ask.and_then(|ask| fs.get_lock(&ask)) {
            Ok(Some(c)) => reply.locked(c.first, c.last, lock_type(Some(c.kind)), c.pid),
            Ok(None) => reply.locked(0, 0, lock_type(None), 0),
            Err(e) => reply.error(errno("getlk", ino.0, &e)),
        });
    }

    pub fn serve_setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        asked: Asked,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let ask = match lock_request(request, asked) {
            Ok(ask) => ask,
            Err(e) => return reply.error(errno("setlk", ino.0, &e)),
        };
        let overlay = self.overlay.clone();
        self.pool(move |fs| match fs.set_lock(&ask) {
            Err(FsError::Locked) if sleep => {
                let done = move |done| reply_empty(reply, "setlk", ino, done);
                overlay.wait_lock(ask, Box::new(done));
            }
            done => reply_empty(reply, "setlk", ino, done),
        });
    }
}

fn lock_type(kind: Option<LockKind>) -> i32 {
    match kind {
        None => libc::F_UNLCK,
        Some(LockKind::Shared) => libc::F_RDLCK,
        Some(LockKind::Exclusive) => libc::F_WRLCK,
    }
}

fn lock_request(request: &Request, asked: Asked) -> Result<LockRequest> {
    let (fh, owner, (first, last), kind, pid) = asked;
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
        asker: caller(request),
    })
}
