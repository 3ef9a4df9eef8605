//! Operations that the drain and the control socket need from a mounted file system.

use super::{Overlay, Unreferenced};
use crate::backing::canonical::{open_as_owner, seems_gone};
use crate::backing::sys;
use crate::errno::FsError;
use layout_index::{Canonical, CanonicalFiles, DiskFile, File, FileId, FilePolicy};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file that a process has open through the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Path below the backing; `None` when the file has no name any more.
    pub path: Option<PathBuf>,
    pub pid: u32,
    pub uid: u32,
    pub writable: bool,
    /// The kernel reads and writes the canonical file itself.
    pub passthrough: bool,
}

impl CanonicalFiles for Overlay {
    /// Opens the file through the held descriptor if there is one, otherwise by searching for it.
    fn open_canonical(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        if let Some(inode) = self.inodes.get_by_id(&file.id()) {
            match sys::glance(inode.fd()) {
                Ok(seen) if self.removed_elsewhere(&inode, seen.nlink) => return Ok(None),
                Err(e) if !seems_gone(&e) => return Err(e),
                Ok(_) => self.strip_after_writes(&inode).map_err(FsError::into_io)?,
                _ => {}
            }
            match open_as_owner(inode.fd()) {
                Err(e) if seems_gone(&e) => {}
                opened => return opened.map(Some),
            }
        }
        self.backing.open_canonical(file.id(), &file.hint())
    }

    /// Searches for the file if no descriptor of it is held.
    fn stat_canonical(&self, file: &File) -> io::Result<Canonical> {
        if let Some(inode) = self.inodes.get_by_id(&file.id()) {
            match sys::stat(inode.fd()) {
                Err(e) if seems_gone(&e) => {}
                Ok(stat) if self.removed_elsewhere(&inode, stat.nlink) => {
                    return Err(io::Error::from_raw_os_error(libc::ENOENT));
                }
                stat => {
                    let stat = stat?;
                    self.strip_after_writes(&inode).map_err(FsError::into_io)?;
                    return Ok(stat.into());
                }
            }
        }
        self.backing.stat_canonical(file)
    }

    /// The descriptor of the file is not needed for the drain any more. Called while the drain still holds the
    /// file.
    fn file_clean(&self, id: FileId) {
        self.drained.fetch_add(1, Ordering::AcqRel);
        let inode = self.inodes.get_by_id(&id);
        if let Some(inode) = &inode
            && let Err(error) = self.strip_after_writes(inode)
        {
            tracing::warn!(file = %id, %error, "privileges of a drained file could not be looked at");
        }
        let is_dirty = || {
            let unlinked = inode.as_ref().is_some_and(|inode| inode.is_unlinked());
            !unlinked && self.store().lookup(id).is_some_and(|f| !f.is_settled())
        };
        if let Some(gone) = self.inodes.keep_while(&id, is_dirty) {
            self.let_go(Unreferenced(gone));
        }
    }

    fn has_policies(&self) -> bool {
        true
    }

    /// For the drain, for a file that may not be open. May wait.
    fn policy_of(&self, file: &File) -> io::Result<FilePolicy> {
        if let Some(inode) = self.inodes.get_by_id(&file.id()) {
            return self.policy_behind(inode.fd());
        }
        match self.backing.find(file.id(), &file.hint())? {
            Some(fd) => self.policy_behind(fd.as_fd()),
            // The file is gone, which the drain will find out itself.
            None => Ok(FilePolicy::default()),
        }
    }
}

impl Overlay {
    /// The current path of the file below the backing, if a descriptor of it is held. Otherwise its path at the
    /// first absorbed write, or if that is not known the path of the file that its handle leads to.
    pub fn path_of(&self, id: FileId) -> Option<PathBuf> {
        if let Some(inode) = self.inodes.get_by_id(&id) {
            return self.backing.known_path(inode.fd()).ok().flatten();
        }
        let hint = self.store().lookup(id)?.hint();
        if !hint.path.is_empty() {
            return Some(PathBuf::from(OsString::from_vec(hint.path)));
        }
        if hint.handle.is_empty() {
            return None;
        }
        let found = self.backing.find(id, &hint).ok()??;
        self.backing.relative_path(found.as_fd()).ok().flatten()
    }

    /// The path of the file below the backing at this moment. `None` if it has no name, or if only a search
    /// would find it. Asks the backing and waits for it, which `status` must not do.
    pub fn place_of(&self, id: FileId) -> io::Result<Option<PathBuf>> {
        if let Some(inode) = self.inodes.get_by_id(&id) {
            let path = self.backing.known_path(inode.fd())?;
            return self.backing.confirm(id, path);
        }
        match self.store().lookup(id) {
            Some(file) => self.backing.place_of(id, &file.hint()),
            None => Ok(None),
        }
    }

    /// The file with this node number, if the kernel knows it.
    pub fn id_of(&self, node: u64) -> Option<FileId> {
        let inode = self.inodes.get(node)?;
        inode.is_file().then_some(inode.id)
    }

    pub fn open_handles(&self) -> usize {
        self.handles.len() + self.dirs.len()
    }

    pub fn who_is_open(&self) -> Vec<OpenFile> {
        let handles: Vec<_> = self.handles.iter().map(|h| h.value().clone()).collect();
        handles
            .iter()
            .map(|h| OpenFile {
                path: self.backing.relative_path(h.inode.fd()).ok().flatten(),
                pid: h.opener.pid,
                uid: h.opener.uid,
                writable: h.writable,
                passthrough: h.passthrough.is_some(),
            })
            .collect()
    }
}
