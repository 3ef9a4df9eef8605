//! Which node appends to a file: a lock that at most one node holds, a mark that names the node,
//! and a sign that another node wants the lock.
//!
//! The lock is one byte of a file in `locks/`, so it is freed when the daemon that holds it dies.
//! The mark is a link in `appending/` with the file's name, whose text names the node. It is made
//! before the first append under the lock, and removed when all appends are announced or published,
//! before the lock is freed. The sign is a link in `wanted/` with the file's name: the holder looks
//! for it while it has the lock, removes it and gives the lock up.
//!
//! # Crash behaviour
//! *Killed with the lock*: the kernel frees the lock and the mark stays, so other nodes know that
//! this node has appended bytes that they cannot see, and wait. The node's next start announces
//! them, and then removes the mark; if it is killed between these two steps, the start after it
//! announces them again, and one publication fulfils both announcements. *Killed while waiting*:
//! the sign stays, and makes the next holder give the lock up once more than needed. *Killed after
//! the sign was removed and before the lock is freed*: the kernel frees the lock. A sign is a hint,
//! so a waiting node makes it again from time to time.

use super::names::{Owner, names_of};
use super::{SharedDir, sys};
use crate::beneath::{entries_of, remove_from};
use crate::checksum::crc32c;
use crate::types::{FileId, NodeId};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

const WANTED: &str = "wanted";
const APPENDING: &str = "appending";

/// An open file description on which the append lock of one file is taken. Dropping it frees the
/// lock.
#[derive(Debug)]
pub(crate) struct AppendLock {
    lock: File,
    byte: i64,
}

impl AppendLock {
    /// False while another node has the lock. On a file system without locks, only the mark keeps
    /// other nodes away ([`SharedDir::mark_append`]), until its node removes it.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        let range = libc::flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: self.byte,
            l_len: 1,
            l_pid: 0,
        };
        match fcntl(&self.lock, FcntlArg::F_OFD_SETLK(&range)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(Errno::ENOSYS | Errno::EOPNOTSUPP) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }
}

impl SharedDir {
    pub(crate) fn open_append_lock(&self, file: FileId) -> io::Result<AppendLock> {
        let [group, name] = names_of(file);
        // Files with the same byte wait for each other, which costs time and nothing else.
        Ok(AppendLock {
            lock: self.open_lock(&format!("append-{group}"))?,
            byte: i64::from(crc32c(name.as_bytes())),
        })
    }

    /// Marks the file; only the holder of the lock may do so. Returns the node whose mark is in the
    /// way, if there is one.
    pub(crate) fn mark_append(&self, file: FileId) -> io::Result<Option<NodeId>> {
        let dir = self.roots.make_dir(APPENDING)?;
        let name = file.to_string();
        loop {
            match sys::link(dir.as_fd(), &name, &self.me().to_string()) {
                Ok(()) => return Ok(None),
                Err(Errno::EEXIST) => {}
                Err(e) => return Err(e.into()),
            }
            // The old mark can vanish: a node that has started again removes it without the lock.
            if let Some(text) = sys::read_link(dir.as_fd(), &name)? {
                let node = text.parse().ok().map(|owner: Owner| owner.id);
                return Ok(node.filter(|node| *node != self.me().id));
            }
        }
    }

    /// Removes the mark. All that this node has appended to the file must be announced or
    /// published.
    pub(crate) fn unmark_append(&self, file: FileId) -> io::Result<()> {
        self.remove_sign(APPENDING, file)
    }

    /// Returns the files that an earlier run of this node was appending to when it ended.
    pub(crate) fn marked_appends(&self) -> io::Result<Vec<FileId>> {
        let mut mine = self.appenders()?;
        mine.retain(|(_, node)| *node == self.me().id);
        Ok(mine.into_iter().map(|(file, _)| file).collect())
    }

    /// Returns the files that nodes append to, or did when they ended. The appended bytes may be in
    /// such a node's store only.
    pub(crate) fn appenders(&self) -> io::Result<Vec<(FileId, NodeId)>> {
        let Some(dir) = self.roots.find_dir(APPENDING)? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for file in self.list_signs(APPENDING)? {
            let text = sys::read_link(dir.as_fd(), &file.to_string())?;
            let owner = text.and_then(|text| text.parse().ok());
            found.extend(owner.map(|owner: Owner| (file, owner.id)));
        }
        Ok(found)
    }

    /// Tells the node that has the lock of `file` that this one wants it.
    pub(crate) fn want_append(&self, file: FileId) -> io::Result<()> {
        let dir = self.roots.make_dir(WANTED)?;
        let (name, text) = (file.to_string(), self.me().to_string());
        Ok(sys::ensure_link(dir.as_fd(), &name, &text)?)
    }

    /// Returns the files whose append lock some node wants.
    pub(crate) fn wanted_appends(&self) -> io::Result<Vec<FileId>> {
        self.list_signs(WANTED)
    }

    pub(crate) fn is_append_wanted(&self, file: FileId) -> io::Result<bool> {
        match self.roots.find_dir(WANTED)? {
            Some(dir) => Ok(sys::stat_name(dir.as_fd(), &file.to_string())?.is_some()),
            None => Ok(false),
        }
    }

    pub(crate) fn clear_append_wanted(&self, file: FileId) -> io::Result<()> {
        self.remove_sign(WANTED, file)
    }

    fn list_signs(&self, name: &str) -> io::Result<Vec<FileId>> {
        let Some(dir) = self.roots.find_dir(name)? else {
            return Ok(Vec::new());
        };
        let names = entries_of(dir)?.into_iter();
        Ok(names.filter_map(|entry| entry.name.parse().ok()).collect())
    }

    fn remove_sign(&self, name: &str, file: FileId) -> io::Result<()> {
        match self.roots.find_dir(name)? {
            Some(dir) => remove_from(dir.as_fd(), &file.to_string()),
            None => Ok(()),
        }
    }
}
