//! Turns an error into the number that a system call returns.

use crate::requests::executor::WaitEnd;
use layout_index::StoreError;
use std::io;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The backing's own error, passed on as it is.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The caller tried to make, change or remove an internal name or attribute.
    #[error("the name is reserved for Forebay's own use")]
    Reserved,
    /// The name does not exist, or is hidden.
    #[error("no such entry")]
    NotFound,
    #[error("no such attribute")]
    NoAttribute,
    /// The kernel named a node that is not known here (any more).
    #[error("node {0} is not known")]
    Stale(u64),
    /// The kernel named a handle that was never given out, or was released.
    #[error("handle {0} is not open for this")]
    BadHandle(u64),
    /// The entry is on another file system than the backing's root.
    #[error("the entry is on another file system")]
    OtherDevice,
    #[error("{0}")]
    Invalid(&'static str),
    /// The offset of a seek is past the last data or hole.
    #[error("nothing there")]
    NoData,
    #[error("the directory is not for that")]
    IsDirectory,
    #[error("not supported")]
    Unsupported,
    /// The remaining descriptors are reserved for the store and the drain.
    #[error("the daemon has too many files open")]
    TooManyFiles,
    /// Data that other nodes have published could not be drained in time.
    #[error("other nodes have published data of this file, and draining it took too long")]
    Unsettled,
    /// The kernel's cached pages of a mapping are older than a sync point and could not be dropped.
    #[error("the kernel's pages of a mapped file could not be dropped: {0}")]
    Pages(io::Error),
    /// Another owner holds the lock.
    #[error("another owner holds the lock")]
    Locked,
    /// There is no descriptor or no thread for another lock.
    #[error("no more locks can be had")]
    NoLocks,
    /// The request would have to wait, and too many requests of its user wait already.
    #[error("too many requests of this user wait already")]
    Crowded,
    /// A signal ended the wait.
    #[error("interrupted")]
    Interrupted,
    /// Other nodes kept the range locked for too long.
    #[error("other nodes did not let this one have the bytes in time; try again")]
    NoTurn,
    /// A fault of the program.
    #[error("the operation panicked; please report this")]
    Panicked,
    #[error(
        "the daemon is ending, so nothing can be published to other nodes any more; the data stays in the store"
    )]
    DrainEnded,
    /// The drain failed earlier. Reported at fsync and close.
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
            FsError::Pages(_) | FsError::DrainEnded | FsError::Panicked => libc::EIO,
            FsError::Locked | FsError::Crowded => libc::EAGAIN,
            FsError::NoLocks => libc::ENOLCK,
            FsError::Interrupted => libc::EINTR,
            FsError::Drain { errno, .. } => *errno,
        }
    }

    /// For callers that take only errors of the backing.
    pub fn into_io(self) -> io::Error {
        match self {
            FsError::Io(e) => e,
            e => io::Error::from_raw_os_error(e.errno()),
        }
    }

    /// True if the node itself is at fault and not the request: such an error is logged.
    pub fn is_fault(&self) -> bool {
        match self {
            // An error of the store's disk or of the backing: only EIO (a broken disk) is worth logging.
            FsError::Store(StoreError::Io { source, .. }) => io_errno(source) == libc::EIO,
            FsError::Store(
                StoreError::Full | StoreError::Busy | StoreError::Interrupted | StoreError::Crowded,
            ) => false,
            FsError::Store(_) | FsError::Pages(_) | FsError::DrainEnded | FsError::Panicked => true,
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
        // Callers write through when the store is full. If they cannot, the node has no room.
        StoreError::Full => libc::ENOSPC,
        StoreError::Busy | StoreError::Crowded => libc::EAGAIN,
        StoreError::Io { source, .. } | StoreError::SharedDir { source, .. } => io_errno(source),
        StoreError::AnnouncementPending { .. }
        | StoreError::Appending { .. }
        | StoreError::KeepsChanging(_) => libc::ETIMEDOUT,
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
