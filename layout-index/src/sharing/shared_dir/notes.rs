//! Notes: requests from other nodes to publish what this node has of a file, because they wait for
//! it.
//!
//! A note is a hint that makes a node hurry, nothing more. *Killed after a note was taken and
//! before the node acted on it*: the note is lost, so the waiting node leaves it again from time to
//! time.

use super::roots::{NOTES, check_ours};
use super::{SharedDir, sys};
use crate::beneath::{STEP, entries, remove_from, step_down};
use crate::types::{FileId, NodeId};
use std::io;
use std::os::fd::AsFd;

impl SharedDir {
    /// Asks a node to publish what it has of a file. If the node has been asked already, the
    /// existing note stays.
    pub fn leave_note(&self, node: NodeId, file: FileId) -> io::Result<()> {
        let id = node.to_string();
        let Some(dir) = step_down(self.roots.notes.as_fd(), &id, STEP)? else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("node {id} never joined: there is no directory for notes to it"),
            ));
        };
        check_ours(&dir, &format!("{NOTES}/{id}"), self.roots.uid)?;
        let (name, text) = (file.to_string(), self.me().to_string());
        Ok(sys::ensure_link(dir.as_fd(), &name, &text)?)
    }

    /// Takes the files that other nodes wait for, each once. Names that no node gives are left in
    /// place.
    pub fn take_notes(&self) -> io::Result<Vec<FileId>> {
        let Some(dir) = &self.roots.my_notes else {
            return Ok(Vec::new());
        };
        let mut files = Vec::new();
        for entry in entries(dir.as_fd())? {
            if let Ok(file) = entry.name.parse::<FileId>() {
                remove_from(dir.as_fd(), &entry.name)?;
                files.push(file);
            }
        }
        Ok(files)
    }
}
