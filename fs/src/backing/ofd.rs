//! Locks of an open file description (`F_OFD_SETLK`): they belong to the description and not to the process,
//! so one daemon can hold locks for many owners that exclude each other.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The last byte a file can have; a lock up to here covers whatever the file grows to.
pub const LAST: u64 = i64::MAX as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    Shared,
    Exclusive,
}

impl LockKind {
    /// True if two owners cannot hold these kinds over the same byte.
    pub fn excludes(self, other: LockKind) -> bool {
        self == LockKind::Exclusive || other == LockKind::Exclusive
    }
}

/// The bytes from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: u64,
    pub last: u64,
}

impl Span {
    pub const ALL: Span = Span {
        first: 0,
        last: LAST,
    };

    /// `None` for a range that no file can have.
    pub fn new(first: u64, last: u64) -> Option<Span> {
        (first <= last && last <= LAST).then_some(Span { first, last })
    }

    pub fn and(self, other: Span) -> Option<Span> {
        Span::new(self.first.max(other.first), self.last.min(other.last))
    }
}

/// A lock that conflicts with a requested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub span: Span,
    pub kind: LockKind,
    /// The process that holds the lock, if it is on this machine and has locked the file without the overlay.
    pub pid: Option<u32>,
}

fn flock(kind: Option<LockKind>, span: Span) -> libc::flock {
    let kind = match kind {
        None => libc::F_UNLCK,
        Some(LockKind::Shared) => libc::F_RDLCK,
        Some(LockKind::Exclusive) => libc::F_WRLCK,
    };
    let len = match span.last {
        LAST => 0,
        last => last - span.first + 1,
    };
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: span.first as i64,
        l_len: len as i64,
        l_pid: 0,
    }
}

fn fcntl(fd: BorrowedFd<'_>, command: i32, lock: &mut libc::flock) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open and `lock` is the structure these commands read and fill.
        if unsafe { libc::fcntl(fd.as_raw_fd(), command, &mut *lock) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Takes locks over `span`, or with `None` gives them up, replacing what the description had there. Returns
/// false and changes nothing if another description has a conflicting lock.
pub fn set(fd: BorrowedFd<'_>, kind: Option<LockKind>, span: Span) -> io::Result<bool> {
    match fcntl(fd, libc::F_OFD_SETLK, &mut flock(kind, span)) {
        Ok(()) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Returns one of the locks that keep the description from taking `kind` over `span`.
pub fn get(fd: BorrowedFd<'_>, kind: LockKind, span: Span) -> io::Result<Option<Found>> {
    let mut lock = flock(Some(kind), span);
    fcntl(fd, libc::F_OFD_GETLK, &mut lock)?;
    let kind = match i32::from(lock.l_type) {
        libc::F_RDLCK => LockKind::Shared,
        libc::F_WRLCK => LockKind::Exclusive,
        _ => return Ok(None),
    };
    let first = u64::try_from(lock.l_start).unwrap_or(0);
    let last = match u64::try_from(lock.l_len) {
        Ok(0) | Err(_) => LAST,
        Ok(len) => first.saturating_add(len - 1).min(LAST),
    };
    Ok(Some(Found {
        span: Span { first, last },
        kind,
        pid: u32::try_from(lock.l_pid).ok().filter(|pid| *pid != 0),
    }))
}
