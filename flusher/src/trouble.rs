//! What goes wrong with a file, in one sentence that names file, range and operation, and the
//! error that sticks to the file until a drain of it succeeds.

use crate::stripe::Problem;
use layout_index::{ByteRange, File, StickyError, StoreError};
use std::io;
use std::sync::Arc;

/// Why a job stopped short.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub errno: i32,
    pub message: String,
    /// The log's bytes are bad: the rest of the file is not concerned, and trying again is idle.
    pub damaged: bool,
    /// The rest of the file is not concerned: an OST that has these bytes does not answer.
    pub away: bool,
    /// Nothing is wrong with the file or the file system below: the disk of the store is full, and the
    /// drain goes on when it is not. No error of the file, and none for the job.
    pub passing: bool,
}

/// For the canonical file as a whole.
pub(crate) fn canonical(name: &str, op: &str, source: &io::Error) -> Trouble {
    Trouble {
        errno: source.raw_os_error().unwrap_or(libc::EIO),
        message: format!(
            "draining {name}: {op} the canonical file failed: {source}; the data stays in the store and is tried again"
        ),
        damaged: false,
        away: false,
        passing: false,
    }
}

/// For one stripe.
pub(crate) fn stripe(name: &str, range: ByteRange, problem: Problem) -> Trouble {
    match problem {
        Problem::Canonical { op, range, source } => Trouble {
            errno: source.raw_os_error().unwrap_or(libc::EIO),
            message: format!(
                "draining {name} bytes {range}: {op} the canonical file failed: {source}; the data stays in the store and is tried again"
            ),
            damaged: false,
            away: false,
            passing: false,
        },
        Problem::Damaged(e) => Trouble {
            errno: libc::EIO,
            message: format!(
                "draining {name} bytes {range}: {e}; these bytes are not drained, the rest of the file is"
            ),
            damaged: true,
            away: false,
            passing: false,
        },
        Problem::Away(e) => Trouble {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!(
                "draining {name}: {e}; these bytes are drained when the target has them again, the rest of the file is"
            ),
            damaged: false,
            away: true,
            passing: false,
        },
        Problem::Store(e) => store(name, "reading the log of", e),
        Problem::TrimPending => store(name, "truncating", StoreError::TrimPending),
    }
}

pub(crate) fn store(name: &str, op: &str, error: StoreError) -> Trouble {
    Trouble {
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        damaged: matches!(
            error,
            StoreError::Checksum { .. } | StoreError::SubfileChecksum { .. }
        ),
        away: false,
        passing: matches!(error, StoreError::Full),
        message: format!("draining {name}: {op} the file failed: {error}"),
    }
}

/// A failure that is still the same failure is neither logged nor reported to the job twice.
pub(crate) fn stick(file: &File, trouble: &Trouble) {
    if trouble.passing {
        tracing::info!(file = %file.id(), "{}", trouble.message);
        return;
    }
    if file.error().is_some_and(|e| e.message == trouble.message) {
        return;
    }
    tracing::warn!(file = %file.id(), errno = trouble.errno, "{}", trouble.message);
    file.set_error(StickyError {
        errno: trouble.errno,
        message: trouble.message.clone(),
    });
}

pub(crate) fn name_of(file: &File) -> Arc<str> {
    match file.hint().path {
        path if path.is_empty() => format!("file {}", file.id()).into(),
        path => String::from_utf8_lossy(&path).into(),
    }
}
