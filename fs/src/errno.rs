//! The one place where an error becomes the number that a system call returns.

use crate::places::WaitEnd;
use layout_index::StoreError;
use std::io;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The backing's own answer: handed through as it is.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The store could not do its part.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An internal name or attribute was to be made, changed or removed.
    #[error("the name is reserved for Forebay's own use")]
    Reserved,
    /// The name does not exist, or is hidden.
    #[error("no such entry")]
    NotFound,
    #[error("no such attribute")]
    NoAttribute,
    /// A node number the kernel should not know any more.
    #[error("node {0} is not known")]
    Stale(u64),
    /// A handle number that was never given out, or was released.
    #[error("handle {0} is not open for this")]
    BadHandle(u64),
    /// The entry is on another file system than the backing's root.
    #[error("the entry is on another file system")]
    OtherDevice,
    #[error("{0}")]
    Invalid(&'static str),
    /// Past the last data or hole.
    #[error("nothing there")]
    NoData,
    #[error("the directory is not for that")]
    IsDirectory,
    #[error("not supported")]
    Unsupported,
    /// The rest of the descriptors is for the store and the drain.
    #[error("the daemon has too many files open")]
    TooManyFiles,
    /// What other nodes have published could not be drained in time.
    #[error("other nodes have published data of this file, and draining it took too long")]
    Unsettled,
    /// They are older than a sync point.
    #[error("the kernel's pages of a mapped file could not be dropped: {0}")]
    Pages(io::Error),
    /// Another owner holds the lock.
    #[error("another owner holds the lock")]
    Locked,
    /// No descriptor or no thread for one more.
    #[error("no more locks can be had")]
    NoLocks,
    /// A request would have to wait, and its user has too many that do.
    #[error("too many requests of this user wait already")]
    Crowded,
    /// A wait was ended by a signal.
    #[error("interrupted")]
    Interrupted,
    /// Other nodes kept a range locked for too long.
    #[error("other nodes did not let this one have the bytes in time; try again")]
    NoTurn,
    #[error(
        "the mount was not told who publishes to other nodes; this is a fault of the daemon: please report it"
    )]
    NoPublisher,
    /// The drain failed earlier; told once, at fsync or close.
    #[error("the drain of this file failed: {message}")]
    Drain { errno: i32, message: String },
}

impl FsError {
    pub fn errno(&self) -> i32 {
        match self {
            FsError::Io(e) => io_errno(e),
            FsError::Store(e) => store_errno(e),
            FsError::Reserved => libc::EPERM,
            FsError::NotFound => libc::ENOENT,
            FsError::NoAttribute => libc::ENODATA,
            FsError::Stale(_) => libc::ESTALE,
            FsError::BadHandle(_) => libc::EBADF,
            FsError::OtherDevice => libc::EXDEV,
            FsError::Invalid(_) => libc::EINVAL,
            FsError::NoData => libc::ENXIO,
            FsError::IsDirectory => libc::EISDIR,
            FsError::Unsupported => libc::EOPNOTSUPP,
            FsError::TooManyFiles => libc::ENFILE,
            FsError::Unsettled | FsError::NoTurn => libc::ETIMEDOUT,
            FsError::Pages(_) | FsError::NoPublisher => libc::EIO,
            FsError::Locked | FsError::Crowded => libc::EAGAIN,
            FsError::NoLocks => libc::ENOLCK,
            FsError::Interrupted => libc::EINTR,
            FsError::Drain { errno, .. } => *errno,
        }
    }

    /// For callers that know only errors of the backing.
    pub fn into_io(self) -> io::Error {
        match self {
            FsError::Io(e) => e,
            e => io::Error::from_raw_os_error(e.errno()),
        }
    }

    /// Something is wrong with the node itself, not with what was asked: worth a line in the log.
    pub fn is_fault(&self) -> bool {
        match self {
            // The store's disk or the backing; only a broken one is news.
            FsError::Store(StoreError::Io { source, .. }) => io_errno(source) == libc::EIO,
            FsError::Store(
                StoreError::Full | StoreError::Busy | StoreError::Interrupted | StoreError::Crowded,
            ) => false,
            FsError::Store(_) | FsError::Pages(_) | FsError::NoPublisher => true,
            _ => false,
        }
    }
}

impl From<WaitEnd> for FsError {
    fn from(end: WaitEnd) -> Self {
        match end {
            WaitEnd::Gone => FsError::Interrupted,
            WaitEnd::Crowded => FsError::Crowded,
        }
    }
}

impl From<nix::errno::Errno> for FsError {
    fn from(e: nix::errno::Errno) -> Self {
        FsError::Io(e.into())
    }
}

fn io_errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(match e.kind() {
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::StorageFull | io::ErrorKind::WriteZero => libc::ENOSPC,
        _ => libc::EIO,
    })
}

fn store_errno(e: &StoreError) -> i32 {
    match e {
        // The callers write through instead; if they cannot, the node has no room.
        StoreError::Full => libc::ENOSPC,
        StoreError::Busy | StoreError::Crowded => libc::EAGAIN,
        StoreError::Io { source, .. } | StoreError::Shared { source, .. } => io_errno(source),
        StoreError::Awaited { .. } | StoreError::Appending { .. } | StoreError::Restless(_) => {
            libc::ETIMEDOUT
        }
        StoreError::Gone(_) => libc::ESTALE,
        StoreError::Interrupted => libc::EINTR,
        StoreError::Clean
        | StoreError::TrimPending
        | StoreError::NotAlone
        | StoreError::Layout { .. }
        | StoreError::Failed { .. }
        | StoreError::Checksum { .. }
        | StoreError::SubfileChecksum { .. }
        | StoreError::SubfileIo { .. }
        | StoreError::Vanished { .. }
        | StoreError::Index(_)
        | StoreError::Unusable(_) => libc::EIO,
    }
}

pub type Result<T, E = FsError> = std::result::Result<T, E>;
