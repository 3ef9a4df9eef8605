//! Notes: somebody waits for what a node has of a file.
//!
//! A note is a hint that makes a node hurry, nothing more. *Killed after it was taken and before
//! the node hurried*: it is lost, so whoever waits leaves it again from time to time.

use super::{Commons, NOTES, check_ours, sys};
use crate::beneath::{STEP, entries, remove_from, step_down};
use crate::types::{FileId, NodeId};
use nix::errno::Errno;
use std::io;
use std::os::fd::AsFd;

impl Commons {
    /// Asks a node to publish what it has of a file. One that was asked already is not asked twice.
    pub fn ask(&self, node: NodeId, file: FileId) -> io::Result<()> {
        let id = node.to_string();
        let Some(dir) = step_down(self.notes.as_fd(), &id, STEP)? else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("node {id} never joined: there is no directory for notes to it"),
            ));
        };
        check_ours(&dir, &format!("{NOTES}/{id}"), self.uid)?;
        match sys::link(dir.as_fd(), &file.to_string(), &self.me.to_string()) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// The files that somebody waits for, each once. Names that are none of ours stay.
    pub fn take_notes(&self) -> io::Result<Vec<FileId>> {
        let Some(dir) = &self.my_notes else {
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
