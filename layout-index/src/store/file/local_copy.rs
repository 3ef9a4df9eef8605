//! A file's local copy, as the rest of the store uses it. See [`crate::store::local_copies`] for the rules.

use super::File;
use crate::disk::DiskFile;
use crate::store::local_copies::Version;
use std::io;

impl File {
    /// Returns whether the file's bytes may be read from its local copy from now on. Called at a
    /// sync point, after a refresh. `ask` reads the version of the canonical file, and is not
    /// called if there is no copy.
    pub fn check_local_copy(&self, ask: impl FnOnce() -> io::Result<Version>) -> bool {
        self.state.local_copies.has(self.id)
            && self.is_settled()
            && self.state.local_copies.check(self.id, ask)
    }

    /// Size of the file according to its local copy, if that may be read.
    pub fn local_copy_size(&self) -> Option<u64> {
        self.state.local_copies.readable_size(self.id)
    }

    /// Drops the local copy, because the canonical file was changed past the store or is about to
    /// be.
    pub fn forget_local_copy(&self) {
        self.state.local_copies.forget(self.id);
    }

    /// Reads from the local copy of a file that [`File::plan`] has just found clean, and the rest
    /// from the canonical file. Returns `None` if there is no copy, or if `canonical` is `None` and
    /// the copy does not have everything. Also returns `None` at the end of the file, since only
    /// the canonical file shows whether it has grown.
    pub fn read_local_copy(
        &self,
        buf: &mut [u8],
        offset: u64,
        canonical: Option<&dyn DiskFile>,
    ) -> io::Result<Option<usize>> {
        self.state
            .local_copies
            .read(self.id, buf, offset, canonical)
    }
}
