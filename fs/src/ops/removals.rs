//! Names that this node is removing.
//!
//! A file without a name that this node has not removed was removed by another node, and what this node has of it is
//! dropped. The removal is noted on the inode only after the backing has removed the name. In between the file has no
//! name either: the drain would take it for removed elsewhere, and drop bytes that a program here can still read.

use layout_index::FileId;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Files and directories of which a name is being removed, with the number of such calls.
#[derive(Debug, Default)]
pub(super) struct Removals(Mutex<HashMap<FileId, usize>>);

/// A removal that is under way. It ends after it was noted on the inode.
#[must_use]
pub(super) struct Removal<'a> {
    all: &'a Removals,
    id: FileId,
}

impl Removals {
    /// Must be called before the backing is asked to remove the name.
    pub fn begin(&self, id: FileId) -> Removal<'_> {
        *self.0.lock().entry(id).or_default() += 1;
        Removal { all: self, id }
    }

    pub fn contains(&self, id: &FileId) -> bool {
        self.0.lock().contains_key(id)
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(count) = all.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.id);
            }
        }
    }
}
