//! What the drain and the control socket ask of a live file system.

use super::Overlay;
use crate::backing::canonical::{open_as_owner, seems_gone};
use crate::backing::sys;
use crate::errno::FsError;
use layout_index::{DiskFile, File, FileId};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Who has a file open through the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Below the backing; `None` when it has no name any more.
    pub path: Option<PathBuf>,
    pub pid: u32,
    pub uid: u32,
    pub writable: bool,
    /// The kernel reads and writes the canonical file itself.
    pub passthrough: bool,
}

impl Overlay {
    /// The canonical file for the drain: through the held descriptor where there is one, else
    /// searched for. `None` when it is certainly gone. May wait.
    pub fn open_canonical(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
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

    /// Where the file is now, below the backing; where it was at the first absorbed write if no
    /// descriptor of it is held.
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

    /// Where the file is at this moment, below the backing. `None` if it has no name, or if only a search would
    /// tell. Asks the backing, and waits for it: `status` must not.
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
