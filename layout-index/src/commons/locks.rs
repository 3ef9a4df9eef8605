//! Locks between nodes that no program sees: what `absorb = coherent` holds while it reads and writes,
//! the right to append (`append`), and closes whose locks are not free yet.
//!
//! Programs' own locks are on the canonical file, and these must not get in their way: they are on
//! files of their own, which nobody writes. Killed while one is held: it goes with the process.

use super::{Commons, check_ours};
use crate::beneath::{DIRECTORY, beneath, step_into};
use crate::commons::names_of;
use crate::types::FileId;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

const LOCKS: &str = "locks";

impl Commons {
    /// An open file for locks that concern `file`, of a description of its own. Several files of the
    /// users' share one of these: that costs time and nothing else.
    pub fn lock_file(&self, file: FileId) -> io::Result<File> {
        let [group, _] = names_of(file);
        self.lock_named(&group)
    }

    /// The file whose bytes are locked by nodes on which files were closed that may still be locked
    /// there. Which byte is whose, `fs` decides.
    pub fn closing_file(&self) -> io::Result<File> {
        self.lock_named("closing")
    }

    pub(super) fn lock_named(&self, name: &str) -> io::Result<File> {
        let locks = step_into(self.top.as_fd(), LOCKS, DIRECTORY)?;
        check_ours(&locks, LOCKS, self.uid)?;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT;
        Ok(beneath(locks.as_fd(), name, flags, mode)?.into())
    }
}
