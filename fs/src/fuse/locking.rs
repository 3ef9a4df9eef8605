//! Locks, and the close that gives them up. All of it may wait for the backing; a request that has
//! to wait for another owner leaves the pool.

use super::reply::reply_empty;
use super::{Adapter, caller, errno};
use crate::errno::{FsError, Result};
use crate::ops::{Conflict, LockKind, LockRequest, Overlay};
use fuser::{FileHandle, INodeNo, LockOwner, ReplyEmpty, ReplyLock, Request};
use std::sync::Arc;

/// Handle, owner, first and last byte, type as fcntl has it, process.
pub type Asked = (FileHandle, LockOwner, (u64, u64), i32, u32);

impl Adapter {
    /// On the event loop unless there are locks to give up.
    pub fn serve_flush(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let flush = move |fs: &Overlay| reply_empty(reply, "flush", ino, fs.flush(fh.0, owner.0));
        if self.overlay.has_locks(fh.0) || self.overlay.close_waits(fh.0) {
            self.pool(request, flush);
        } else {
            flush(&self.overlay);
        }
    }

    /// That it has come is known at once, whatever the places are busy with. The kernel does not say which process
    /// closed it last: it is done at the cost of the user who opened it.
    pub fn serve_release(&self, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        self.overlay.release_begins(fh.0);
        self.pool_for(self.overlay.opener(fh.0), move |fs| {
            reply_empty(reply, "release", ino, fs.release(fh.0));
        });
    }

    pub fn serve_getlk(&self, request: &Request, ino: INodeNo, asked: Asked, reply: ReplyLock) {
        let ask = match lock_request(request, asked) {
            Ok(ask) => ask,
            Err(e) => return reply.error(errno("getlk", ino.0, &e)),
        };
        let overlay = self.overlay.clone();
        let done = move |found: Result<Option<Conflict>>| match found {
            Ok(Some(c)) => reply.locked(c.first, c.last, lock_type(Some(c.kind)), c.pid),
            Ok(None) => reply.locked(0, 0, lock_type(None), 0),
            Err(e) => reply.error(errno("getlk", ino.0, &e)),
        };
        self.pool(request, move |fs| {
            let get = move |fs: &Overlay| fs.get_lock(&ask);
            match get(fs) {
                Ok(Some(_)) if ask.kind.is_some() => {
                    let found = |found: &Result<_>| matches!(found, Ok(Some(_)));
                    ask_again(&overlay, ask, get, found, done);
                }
                found => done(found),
            }
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
        let done = move |done| reply_empty(reply, "setlk", ino, done);
        self.pool(request, move |fs| match fs.set_lock(&ask) {
            Err(FsError::Locked) if sleep => overlay.wait_lock(ask, Box::new(done)),
            Err(FsError::Locked) => {
                let set = move |fs: &Overlay| fs.set_lock(&ask);
                let locked = |answer: &Result<_>| matches!(answer, Err(FsError::Locked));
                ask_again(&overlay, ask, set, locked, done);
            }
            answer => done(answer),
        });
    }
}

/// Another owner is in the way, unless it has closed its file: that is waited for, and not here.
fn ask_again<T: Send + 'static>(
    overlay: &Arc<Overlay>,
    ask: LockRequest,
    attempt: impl Fn(&Overlay) -> Result<T> + Send + 'static,
    in_the_way: impl Fn(&Result<T>) -> bool + Send + 'static,
    done: impl FnOnce(Result<T>) + Send + 'static,
) {
    match overlay.is_closing(&ask) {
        Ok(true) => {
            let wait = move |fs: &Overlay| fs.after_closes(&ask, attempt, in_the_way);
            overlay.wait_apart(ask, wait, Box::new(done));
        }
        // It may have been given up between the first attempt and the look.
        Ok(false) => done(attempt(overlay)),
        Err(e) => done(Err(e)),
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
