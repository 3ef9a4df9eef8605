//! The largest size that a file can have in the backing.
//!
//! Data that the log accepts must be drainable: a byte beyond the largest offset that the backing allows would stay in
//! the store for ever. So such writes are refused with the error that the backing itself would return, EFBIG.
//!
//! The kernel knows the limit of each file and lets no file position exceed it. Asking takes two calls that cause
//! no I/O and change nothing: the daemon reads and writes with offsets, and never uses the position. Clients that
//! are FUSE file systems themselves (ceph-fuse) do not tell the kernel about a limit; theirs is found by the drain.

use super::sys;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// No file can be larger than this on any file system.
const NO_LIMIT: u64 = i64::MAX as u64;

/// The limit of the last file that was asked about, which is most likely that of the next.
#[derive(Debug)]
pub struct Largest(AtomicU64);

impl Default for Largest {
    fn default() -> Self {
        Self(AtomicU64::new(NO_LIMIT))
    }
}

impl Largest {
    /// The limit of an open regular file.
    pub fn of(&self, file: BorrowedFd<'_>) -> u64 {
        let allows = |size: u64| {
            let at = sys::lseek(file, size as i64, libc::SEEK_SET);
            // Any other error says nothing about sizes.
            !at.is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL))
        };
        let last = self.0.load(Ordering::Relaxed);
        let found = search(last, allows);
        if found != last {
            self.0.store(found, Ordering::Relaxed);
        }
        found
    }
}

/// The largest number that is allowed, provided that 0 is allowed and every number below an allowed one.
fn search(guess: u64, allows: impl Fn(u64) -> bool) -> u64 {
    if allows(guess) && (guess >= NO_LIMIT || !allows(guess + 1)) {
        return guess;
    }
    if allows(NO_LIMIT) {
        return NO_LIMIT;
    }
    let (mut good, mut bad) = (0, NO_LIMIT);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if allows(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_from_any_guess() {
        for limit in [0, 1, 4095, (1 << 44) - 4096, NO_LIMIT - 1, NO_LIMIT] {
            for guess in [0, 4095, 1 << 44, NO_LIMIT] {
                assert_eq!(search(guess, |size| size <= limit), limit, "from {guess}");
            }
        }
    }
}
