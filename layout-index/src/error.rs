//! Errors of the store, distinguished by what the caller has to do about them.

use crate::types::{ByteRange, FileId};
use std::io;
use std::path::PathBuf;

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No room for data, or this user's share is used up: write through to the canonical file.
    #[error("the store has no room for this write")]
    Full,
    /// Another request holds a range that this call needs; only the `try_` calls return this.
    #[error("the range is in use by another request")]
    Busy,
    /// The file is not in a dirty period: nothing of it is in the log. Begin one, or use the
    /// canonical file.
    #[error("the file has no undrained data")]
    Clean,
    /// A truncate has yet to reach the canonical file: apply it before writing there.
    #[error("a truncate has yet to reach the canonical file")]
    TrimPending,
    /// The store's disk failed. The store takes no more writes until it is mounted again.
    #[error("the store stopped taking writes after {what} failed: {cause}")]
    Failed { what: String, cause: String },
    /// An I/O call on the store or a canonical file failed.
    #[error("{op} {path}: {source}")]
    Io {
        op: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Bytes in the log do not match their checksum. They are never served or drained.
    #[error(
        "file {file} bytes {range}: the log's copy (segment {segment}, offset {offset}) does not match its checksum"
    )]
    Checksum {
        file: FileId,
        range: ByteRange,
        segment: u32,
        offset: u32,
    },
    /// Bytes in a subfile do not match their checksum. They are never served or drained.
    #[error(
        "file {file} bytes {range}: subfile {subfile} on OST {ost} does not match its checksum"
    )]
    SubfileChecksum {
        file: FileId,
        range: ByteRange,
        subfile: String,
        ost: String,
    },
    /// A call on a subfile failed on its target.
    #[error("file {file} bytes {range}: {op} subfile {subfile} on OST {ost}: {source}")]
    SubfileIo {
        file: FileId,
        range: ByteRange,
        op: &'static str,
        subfile: String,
        ost: String,
        source: io::Error,
    },
    /// A subfile is missing, or was removed meanwhile: plan the read again.
    #[error("file {file} bytes {range}: subfile {subfile} is not on OST {ost} any more")]
    Vanished {
        file: FileId,
        range: ByteRange,
        subfile: String,
        ost: String,
    },
    /// A call to the shared directory failed.
    #[error("{op} file {file} in the shared directory: {source}")]
    SharedDir {
        file: FileId,
        op: &'static str,
        source: io::Error,
    },
    /// Another node has announced data of the file and not published it in time.
    #[error(
        "file {file}: node {nodes} has closed it and not published its data within {seconds} s; the data is in that node's store: bring its daemon back, or run `forebay recover` there"
    )]
    AnnouncementPending {
        file: FileId,
        nodes: String,
        seconds: f64,
    },
    /// Another node appends to the file, or was killed while it did, and its bytes were not
    /// published or announced in time.
    #[error(
        "file {file}: {node} appends to it and did not let this one append within {seconds} s; nothing was written: try again, and if it stays so look at that node's daemon"
    )]
    Appending {
        file: FileId,
        node: String,
        seconds: f64,
    },
    /// The caller of a request that waited for other nodes was killed.
    #[error("the caller is gone")]
    Interrupted,
    /// A request would have to wait for other nodes, and its user has too many that do.
    #[error("too many requests of this user wait already")]
    Crowded,
    /// The file changed during every attempt to refresh it.
    #[error("file {0}: other nodes publish it faster than it can be looked at; try again")]
    KeepsChanging(FileId),
    /// Data that another node (or this one, earlier) wrote into the shared directory is
    /// inconsistent.
    #[error(
        "file {file}: a {what} in the shared directory is damaged ({why}); nothing that it should describe is read or drained"
    )]
    Layout {
        file: FileId,
        what: &'static str,
        why: String,
    },
    /// The canonical file has no name any more.
    #[error("file {0} is gone")]
    Gone(FileId),
    /// Bytes of the file are published that the canonical file does not have, or this node is
    /// publishing: that must be drained first.
    #[error("other nodes have published bytes of the file")]
    NotAlone,
    /// The extent index did not answer.
    #[error("extent index: {0}")]
    Index(#[from] rocksdb::Error),
    /// The store's directory, or data in the store, cannot be used by this program.
    #[error("{0}")]
    Unusable(String),
}

impl StoreError {
    pub fn io(op: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        StoreError::Io {
            op,
            path: path.into(),
            source,
        }
    }

    /// The operating system's error number, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            StoreError::Io { source, .. }
            | StoreError::SubfileIo { source, .. }
            | StoreError::SharedDir { source, .. } => source.raw_os_error(),
            StoreError::Full => Some(libc::ENOSPC),
            _ => None,
        }
    }
}
