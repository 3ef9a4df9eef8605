//! Locks between nodes that no program sees: those that `absorb = coherent` holds while it reads
//! and writes, the right to append (`append`), and closes whose locks are not free yet.
//!
//! Programs' own locks are on the canonical file, and the daemons' locks must not get in their way.
//! So they are on separate files, which are never written. If the process is killed while it holds
//! a lock, the kernel frees it.

use super::{SharedDir, names_of};
use crate::beneath::beneath;
use crate::types::FileId;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

const LOCKS: &str = "locks";

impl SharedDir {
    /// Opens the lock file for `file`, with an open file description of its own. Several user files
    /// share one lock file, which costs time and nothing else.
    pub fn open_lock_file(&self, file: FileId) -> io::Result<File> {
        let [group, _] = names_of(file);
        self.open_lock(&group)
    }

    /// Opens the file in which nodes lock bytes for files that were closed on them and may still be
    /// locked by programs there. `fs` decides which byte stands for which file.
    pub fn open_closing_file(&self) -> io::Result<File> {
        self.open_lock("closing")
    }

    pub(super) fn open_lock(&self, name: &str) -> io::Result<File> {
        let locks = self.roots.make_dir(LOCKS)?;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT;
        Ok(beneath(locks.as_fd(), name, flags, mode)?.into())
    }
}
