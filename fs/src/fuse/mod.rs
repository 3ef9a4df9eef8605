//! The FUSE adapter: the only place that sees fuser. It translates, and decides on which thread.
//!
//! # Threads
//! Handlers run on fuser's event loops, of which there are a few; one that waits stops a share of
//! the whole mount. So only what cannot wait runs there: a write that the log takes at once, a
//! read that needs nothing but the log, a flush by somebody without locks, forgetting nodes. Everything else moves its reply
//! and an owned copy of its arguments to threads that may wait (and may take another
//! identity, which is per thread), of which each user has a share ([`crate::places`]). A request that waits for a
//! lock waits on a thread of its own, which the operations start.
//!
//! # What is asked of the kernel
//! - `ATOMIC_O_TRUNC`: an open that truncates is one request, not two with a gap between.
//! - `DONT_MASK`: the umask comes with the request and is applied by the backing, which knows when
//!   a default ACL overrides it.
//! - `POSIX_ACL`: with `default_permissions` the kernel checks permissions itself, and would refuse
//!   those that only an ACL grants. The ACLs are the backing's; inheritance is done there.
//! - `DIRECT_IO_ALLOW_MMAP`, `PASSTHROUGH`: see `ops::open`.
//! - `POSIX_LOCKS`, `FLOCK_LOCKS`: the kernel's own tables end at this node; the backing's locks do
//!   not (docs/decisions/0009-locks-across-nodes.md). Not asked for when the locks are to be local.
//! - `EXPORT_SUPPORT`: files are found by handle when the kernel has forgotten them (`ops::export`).
//! - The write-back cache is not: it rewrites whole pages, which two nodes may share.
//! - `HANDLE_KILLPRIV*` is not: the kernel then marks each direct write whose writer must not keep
//!   setuid bits (`FUSE_WRITE_KILL_SUIDGID`), and sends a chmod for truncation and passthrough.
//!
//! A temporary file without a name (`O_TMPFILE`) is a request fuser does not know; its ENOSYS
//! becomes EOPNOTSUPP in the kernel.

mod convert;
mod filesystem;
mod locking;
mod reply;
mod transfer;

use crate::errno::FsError;
use crate::ops::{MAX_WRITE, Overlay, Registrar};
use crate::places::{NO_CALLER, Origin};
use crate::types::Caller;
use fuser::{BackingId, Errno, InitFlags, KernelConfig, ReplyCreate, ReplyOpen, Request};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Asynchronous requests (AIO, read-ahead, releases) that the kernel sends before it keeps all further ones back,
/// whichever user asks. Those that wait for a place ([`crate::places`]) count as well, for they are not answered: one user's
/// must not fill this, so it is the most that the kernel takes.
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
    overlay: Arc<Overlay>,
    /// The kernel agreed to passthrough, which it only grants to root.
    passthrough: bool,
}

impl Adapter {
    pub fn new(overlay: Arc<Overlay>) -> Self {
        Self {
            overlay,
            passthrough: false,
        }
    }

    fn configure(&mut self, config: &mut KernelConfig) {
        for flag in WANTED {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "this kernel does not have it");
            }
        }
        // A kernel that does not know the second one makes handles all the same.
        let handles = match self.overlay.exports() {
            true => InitFlags::FUSE_EXPORT_SUPPORT,
            false => InitFlags::FUSE_NO_EXPORT_SUPPORT,
        };
        if config.add_capabilities(handles).is_err() {
            tracing::debug!(?handles, "this kernel does not have it");
        }
        if self.overlay.shared_locks() {
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
        // Both are within bounds; the kernel cuts them to its own.
        if config.set_max_write(MAX_WRITE).is_err()
            || config.set_max_background(MAX_BACKGROUND).is_err()
        {
            tracing::debug!("the kernel's own request sizes stay");
        }
    }

    /// Runs `task` where it may wait, at the cost of the user who asks.
    fn pool(&self, request: &Request, task: impl FnOnce(&Overlay) + Send + 'static) {
        self.pool_for(Some(caller(request)), task);
    }

    fn pool_for(&self, caller: Option<Caller>, task: impl FnOnce(&Overlay) + Send + 'static) {
        let origin = caller.map_or(NO_CALLER, |caller| Origin {
            uid: caller.uid,
            tid: caller.pid,
        });
        let overlay = self.overlay.clone();
        let places = self.overlay.places();
        places.run(origin, move || task(&overlay));
    }

    /// What no user waits for.
    fn housekeeping(&self, task: impl FnOnce(&Overlay) + Send + 'static) {
        self.pool_for(None, task);
    }
}

fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

/// The number for the reply. The node's own faults are logged here, once.
fn errno(op: &'static str, ino: u64, error: &FsError) -> Errno {
    if error.is_fault() {
        tracing::error!(op, ino, %error, "operation failed");
    }
    Errno::from_i32(error.errno())
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

/// What `Registrar` made above.
fn backing_id(registered: &crate::inode::Registered) -> Option<&BackingId> {
    registered.downcast_ref()
}
