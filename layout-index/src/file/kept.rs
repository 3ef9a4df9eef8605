//! The file's kept copy, where the rest of the store meets it. See [`crate::kept`] for the rules.

use super::File;
use crate::disk::DiskFile;
use crate::kept::Version;
use std::io;

impl File {
    /// At a sync point, after what others have published was looked at: whether the file's bytes
    /// may be read from its copy from now on. `ask` looks at the canonical file, and is not called
    /// if there is no copy.
    pub fn check_kept(&self, ask: impl FnOnce() -> io::Result<Version>) -> bool {
        self.shared.kept.has(self.id) && self.is_settled() && self.shared.kept.check(self.id, ask)
    }

    /// Where the copy ends, if it may be read.
    pub fn kept_size(&self) -> Option<u64> {
        self.shared.kept.readable_size(self.id)
    }

    /// The canonical file was changed past the store, or is about to be.
    pub fn forget_kept(&self) {
        self.shared.kept.forget(self.id);
    }

    /// Reads from the copy of a file that [`File::plan`] has just found clean, and the rest from the
    /// canonical file; `None` if there is no copy, or (without `canonical`) it does not have all.
    /// Also `None` at the end of the file: only the canonical file knows if it has grown.
    pub fn read_kept(
        &self,
        buf: &mut [u8],
        offset: u64,
        canonical: Option<&dyn DiskFile>,
    ) -> io::Result<Option<usize>> {
        self.shared.kept.read(self.id, buf, offset, canonical)
    }
}
