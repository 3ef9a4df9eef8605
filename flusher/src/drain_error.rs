//! Why a drain stopped early: each error is one sentence that names file, range and operation. It
//! sticks to the file until a drain of the file succeeds.

use crate::schedule::Outcome;
use crate::stripe::Problem;
use layout_index::{ByteRange, File, StickyError, StoreError};
use std::io;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DrainError {
    /// Nothing is wrong with the file.
    #[error("the daemon is stopping; the data stays in the store")]
    Stopping,
    #[error(
        "draining {name}: {op} the canonical file failed: {source}; the data stays in the store and is tried again"
    )]
    Canonical {
        name: Arc<str>,
        op: &'static str,
        source: io::Error,
    },
    /// Bytes in the log or in a subfile are damaged. The rest of the file is not affected, and
    /// trying again is useless.
    #[error(
        "draining {name} bytes {range}: {source}; these bytes are not drained, the rest of the file is"
    )]
    Damaged {
        name: Arc<str>,
        range: ByteRange,
        source: Box<StoreError>,
    },
    /// An OST that has these bytes does not answer. The rest of the file is not affected.
    #[error(
        "draining {name}: {source}; these bytes are drained when the target has them again, the rest of the file is"
    )]
    Away {
        name: Arc<str>,
        source: Box<StoreError>,
    },
    #[error("draining {name}: {op} the file failed: {source}")]
    Store {
        name: Arc<str>,
        op: &'static str,
        source: Box<StoreError>,
    },
    #[error(
        "draining {name}: the shared directory does not work: {source}; the data stays where it is and is tried again"
    )]
    SharedDir { name: Arc<str>, source: io::Error },
    /// The node that took over goes on with the drain.
    #[error("draining {name}: this node's lease has run out meanwhile")]
    LeaseExpired { name: Arc<str> },
    /// With the number of the error that a target gave, if one did: the application gets the number
    /// that the file system below returned, not one that only this program makes up.
    #[error(
        "publishing {name}: no storage target takes its data; it stays in the store and is tried again"
    )]
    NoTarget { name: Arc<str>, errno: Option<i32> },
    /// What the file's drain has said before.
    #[error("{}", .0.message)]
    Earlier(StickyError),
}

impl DrainError {
    /// Makes the error for one stripe.
    pub fn stripe(name: &Arc<str>, range: ByteRange, problem: Problem) -> DrainError {
        let name = name.clone();
        match problem {
            Problem::Canonical { op, range, source } => DrainError::Canonical {
                name: format!("{name} bytes {range}").into(),
                op,
                source,
            },
            Problem::Damaged(source) => DrainError::Damaged {
                name,
                range,
                source: source.into(),
            },
            Problem::Away(source) => DrainError::Away {
                name,
                source: source.into(),
            },
            Problem::Store(source) => DrainError::Store {
                name,
                op: "reading the log of",
                source: source.into(),
            },
            Problem::TrimPending => DrainError::Store {
                name,
                op: "truncating",
                source: StoreError::TrimPending.into(),
            },
        }
    }

    fn errno(&self) -> i32 {
        let errno = match self {
            DrainError::Canonical { source, .. } | DrainError::SharedDir { source, .. } => {
                source.raw_os_error()
            }
            DrainError::Away { source, .. } | DrainError::Store { source, .. } => {
                source.raw_os_error()
            }
            DrainError::NoTarget { errno, .. } => *errno,
            DrainError::Earlier(error) => Some(error.errno),
            DrainError::Stopping | DrainError::Damaged { .. } | DrainError::LeaseExpired { .. } => {
                None
            }
        };
        errno.unwrap_or(libc::EIO)
    }

    pub fn is_damaged(&self) -> bool {
        match self {
            DrainError::Damaged { .. } => true,
            DrainError::Store { source, .. } => matches!(
                **source,
                StoreError::Checksum { .. } | StoreError::SubfileChecksum { .. }
            ),
            _ => false,
        }
    }

    /// Returns the error as the application and `status` get it.
    pub fn sticky(&self) -> StickyError {
        StickyError {
            errno: self.errno(),
            message: self.to_string(),
        }
    }

    /// Makes this the file's sticky error, and returns how the job ended. If it is still the same
    /// failure, it is neither logged nor reported to the application again.
    pub fn stick(&self, file: &File) -> Outcome {
        match self {
            DrainError::Stopping => return Outcome::Stopped,
            // The store's disk is full, and the drain goes on when it has room again: the
            // application is not told.
            DrainError::Store { source, .. } if matches!(**source, StoreError::Full) => {
                tracing::info!(file = %file.id(), "{self}");
                return Outcome::Failed;
            }
            _ => {}
        }
        let error = self.sticky();
        if file.error().is_none_or(|e| e.message != error.message) {
            tracing::warn!(file = %file.id(), errno = error.errno, "{}", error.message);
            file.set_error(error);
        }
        match self.is_damaged() {
            true => Outcome::Damaged,
            false => Outcome::Failed,
        }
    }
}

pub(crate) fn name_of(file: &File) -> Arc<str> {
    match file.hint().path {
        path if path.is_empty() => format!("file {}", file.id()).into(),
        path => String::from_utf8_lossy(&path).into(),
    }
}
