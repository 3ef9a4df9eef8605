//! The FUSE adapter: the only module that handles fuser's requests and replies. It translates them for
//! [`crate::requests`] and does nothing else.
//!
//! # What is asked of the kernel
//! - `ATOMIC_O_TRUNC`: an open that truncates is one request, not two with a gap between them.
//! - `DONT_MASK`: the umask comes with the request and is applied by the backing, which knows when a
//!   default ACL overrides it.
//! - `POSIX_ACL`: with `default_permissions` the kernel checks permissions itself, and without this flag it
//!   would refuse accesses that only an ACL grants. The ACLs are the backing's; inheritance is done there.
//! - `DIRECT_IO_ALLOW_MMAP`, `PASSTHROUGH`: see `ops::open`.
//! - `POSIX_LOCKS`, `FLOCK_LOCKS`: the kernel's own lock tables cover this node only; the backing's locks cover all
//!   nodes (docs/decisions/0009-locks-across-nodes.md). Not requested when the locks are to be local.
//! - `EXPORT_SUPPORT`: files are found by handle when the kernel has forgotten them (`ops::export`).
//! - The write-back cache is not requested: it rewrites whole pages, which two nodes may share.
//! - `HANDLE_KILLPRIV*` is not requested: the kernel then marks each direct write whose writer must not keep
//!   setuid bits (`FUSE_WRITE_KILL_SUIDGID`), and sends a chmod for truncation and passthrough.
//!
//! A temporary file without a name (`O_TMPFILE`) is a request that fuser does not know; the kernel turns
//! fuser's ENOSYS into EOPNOTSUPP.

mod convert;
mod filesystem;
mod reply;

use crate::ops::{MAX_WRITE, Overlay, Registrar};
use crate::requests::{Call, Op, Requests};
use crate::types::Caller;
use fuser::{BackingId, INodeNo, InitFlags, KernelConfig, ReplyCreate, ReplyOpen, Request};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Number of unanswered asynchronous requests (AIO, read-ahead, releases) after which the kernel holds back all
/// further ones, whichever user makes them. Requests that wait for a slot ([`crate::requests::executor`]) are unanswered too,
/// and one user's requests must not reach this limit, so it is the largest that the kernel accepts.
const MAX_BACKGROUND: u16 = u16::MAX;

const WANTED: [InitFlags; 8] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

const LOCKS: [InitFlags; 2] = [InitFlags::FUSE_POSIX_LOCKS, InitFlags::FUSE_FLOCK_LOCKS];

pub struct Adapter {
    requests: Arc<Requests>,
    /// The kernel agreed to passthrough, which it grants only to root.
    passthrough: bool,
}

impl Adapter {
    pub fn new(requests: Arc<Requests>) -> Self {
        Self {
            requests,
            passthrough: false,
        }
    }

    fn configure(&mut self, config: &mut KernelConfig) {
        for flag in WANTED {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "this kernel does not have it");
            }
        }
        // A kernel that does not know `NO_EXPORT_SUPPORT` makes handles all the same.
        let handles = match self.overlay().exports() {
            true => InitFlags::FUSE_EXPORT_SUPPORT,
            false => InitFlags::FUSE_NO_EXPORT_SUPPORT,
        };
        if config.add_capabilities(handles).is_err() {
            tracing::debug!(?handles, "this kernel does not have it");
        }
        if self.overlay().shared_locks() {
            for flag in LOCKS {
                if config.add_capabilities(flag).is_err() {
                    tracing::warn!(
                        ?flag,
                        "this kernel keeps such locks to itself: they end here"
                    );
                }
            }
        }
        self.passthrough = nix::unistd::geteuid().is_root()
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        // Both values are within fuser's limits; the kernel reduces them to its own.
        if config.set_max_write(MAX_WRITE).is_err()
            || config.set_max_background(MAX_BACKGROUND).is_err()
        {
            tracing::debug!("the kernel's own request sizes stay");
        }
    }

    fn overlay(&self) -> &Overlay {
        self.requests.overlay()
    }

    fn call(&self, op: Op, request: &Request, ino: INodeNo) -> Call<'_> {
        self.requests.begin(op, ino.0, Some(caller(request)))
    }
}

fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

impl Registrar for ReplyOpen {
    fn register(&self, fd: BorrowedFd<'_>) -> io::Result<crate::inode::Registered> {
        Ok(Arc::new(self.open_backing(fd)?))
    }
}

impl Registrar for ReplyCreate {
    fn register(&self, fd: BorrowedFd<'_>) -> io::Result<crate::inode::Registered> {
        Ok(Arc::new(self.open_backing(fd)?))
    }
}

/// The backing id that the `Registrar` implementations above have made.
fn backing_id(registered: &crate::inode::Registered) -> Option<&BackingId> {
    registered.downcast_ref()
}
