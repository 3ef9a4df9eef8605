//! The mount as the kernel has it, and how it is unmounted.
//!
//! A mount point may lie below a file system that hangs: the backing or another one. Then even the path to
//! the mount point cannot be resolved, and `umount` waits for ever. So a separate thread unmounts, and the
//! daemon gives up waiting for it if the mount point hangs.

use forebay_fs::{UnmountError, Unmounter};
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A mount point that has not answered for this long lies below a file system that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub enum UnmountFailure {
    Busy,
    /// Another program has unmounted it first.
    Gone,
    /// The mount point lies below a file system that hangs.
    Hangs,
    Other(String),
}

/// The mount as the kernel has it.
pub trait Point: Send + Sync {
    /// Unmounts; `lazy` detaches the mount from the tree even while it is in use.
    fn unmount(&self, lazy: bool) -> Result<(), UnmountFailure>;
    /// Whether the mount is in the tree of the daemon's mount namespace.
    fn is_mounted(&self) -> io::Result<bool>;
    /// Device number of the mounted file system.
    fn device(&self) -> u64;
    /// Aborts the connection, even while programs use the mount.
    fn abort(&self) -> io::Result<()>;
}

impl Point for Unmounter {
    fn unmount(&self, lazy: bool) -> Result<(), UnmountFailure> {
        self.unmount(lazy).map_err(|e| match e {
            UnmountError::Busy(_) => UnmountFailure::Busy,
            UnmountError::NotMounted(_) => UnmountFailure::Gone,
            other => UnmountFailure::Other(other.to_string()),
        })
    }

    fn is_mounted(&self) -> io::Result<bool> {
        self.is_mounted()
    }

    fn device(&self) -> u64 {
        self.device()
    }

    fn abort(&self) -> io::Result<()> {
        forebay_fs::abort_connection(self.device())
    }
}

/// Unmounts, unless the mount point hangs.
pub fn unmount(point: &Arc<dyn Point>, lazy: bool) -> Result<(), UnmountFailure> {
    let there = point.clone();
    let (tell, told) = mpsc::channel();
    let tried = std::thread::Builder::new()
        .name("forebay-umount".into())
        .spawn(move || {
            if tell.send(there.unmount(lazy)).is_err() {
                tracing::info!("the mount point has answered late");
            }
        });
    if let Err(error) = tried {
        tracing::warn!(%error, "no thread to unmount with");
        return point.unmount(lazy);
    }
    if let Ok(done) = told.recv_timeout(PATIENCE) {
        return done;
    }
    if point.is_mounted().unwrap_or(true) {
        return Err(UnmountFailure::Hangs);
    }
    // The mount is out of the tree, and the kernel is writing back pages that programs have mapped. That must
    // not be cut off.
    told.recv().unwrap_or(Ok(()))
}
