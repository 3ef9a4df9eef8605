//! The mount, as the kernel has it, and how it is taken away.
//!
//! A mount point may lie below a file system that hangs, as the backing does or another one. Then even the path to it
//! is not to be had, and `umount` waits for ever. So that is done on a thread that is not waited for without end.

use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A mount point that has not answered for so long lies below a file system that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub enum UnmountFailure {
    Busy,
    /// Another program was faster.
    Gone,
    /// The mount point lies below a file system that hangs.
    Hangs,
    Other(String),
}

/// The mount, as the kernel has it.
pub trait Point: Send + Sync {
    /// Takes the mount away; `lazy` detaches it from the tree even while it is in use.
    fn unmount(&self, lazy: bool) -> Result<(), UnmountFailure>;
    /// It is in the tree of the daemon's mount namespace.
    fn is_mounted(&self) -> io::Result<bool>;
    /// The number of the mounted file system.
    fn device(&self) -> u64;
    /// Ends the connection, also while programs use the mount.
    fn abort(&self) -> io::Result<()>;
}

/// Takes the mount away, unless its mount point hangs.
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
    // It is out of the tree, and the kernel writes what programs have mapped: that must not be cut off.
    told.recv().unwrap_or(Ok(()))
}
