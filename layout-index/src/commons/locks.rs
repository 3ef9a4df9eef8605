//! Locks between nodes that no program sees: what `absorb = coherent` holds while it reads and writes.
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
        let locks = step_into(self.top.as_fd(), LOCKS, DIRECTORY)?;
        check_ours(&locks, LOCKS, self.uid)?;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT;
        Ok(beneath(locks.as_fd(), &group, flags, mode)?.into())
    }
}
