//! Errors of an OST: one sentence names the OST, says what is wrong, and what to do.

use super::Ost;
use std::io;

/// An error of one OST, or of the whole list (`ost` is then what was listed).
#[derive(Debug, thiserror::Error)]
#[error("{ost}: {what}: {}{}", describe(source), advice(source))]
pub struct OstError {
    pub ost: String,
    /// The operation that failed: "making a file", "writing".
    pub what: &'static str,
    #[source]
    pub source: io::Error,
}

impl OstError {
    pub fn new(ost: &Ost, what: &'static str, source: io::Error) -> OstError {
        OstError {
            ost: format!("OST {} ({})", ost.index, ost.name),
            what,
            source,
        }
    }

    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

fn describe(error: &io::Error) -> String {
    let Some(errno) = error.raw_os_error() else {
        return error.to_string();
    };
    // The text without the number that the standard library adds.
    let text = nix::errno::Errno::from_raw(errno).desc().to_owned();
    match errno {
        libc::EINVAL => format!("{text} (no O_DIRECT there?)"),
        _ => text,
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => "; it is full: free space on it, or leave it out",
        Some(libc::EDQUOT) => "; a quota is used up: ask for more, or clean up",
        Some(libc::EROFS) => "; it is mounted read-only: mount it for writing, or leave it out",
        // A device that went away, or in MooseFS a chunk whose chunkserver went away.
        Some(libc::EIO | libc::ENXIO) => {
            "; the target or its network is broken: ask its administrator"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "; the daemon's user may not write there: change owner or mode"
        }
        Some(libc::ENOTDIR) => "; name a directory of the target",
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ESTALE | libc::ENODEV) => {
            "; its mount is broken: mount the target again"
        }
        Some(libc::EMFILE | libc::ENFILE) => "; too many files are open: raise the limit",
        Some(libc::ETIMEDOUT) => "; it hangs: it is left out until it answers again",
        _ => "",
    }
}
