//! Durability: fsync, fdatasync and syncs of directories.
//!
//! fsync guarantees that bytes *and the file that has them* survive a power failure. The bytes are in the
//! log. The existence of the file is recorded in the backing, whose own journal may still delay the creation.
//! So the canonical file is synced too, at least once for each file; otherwise the log could have synced
//! bytes of a file that was never created. fdatasync and O_DSYNC leave that out only if the store knows of
//! nothing that went to the canonical file without the log (written through, cut, allocated, written by the
//! kernel itself before this dirty period) and was not synced since.

use super::Overlay;
use super::nodes::Fsync;
use super::open::report;
use crate::errno::Result;
use std::fs::File;
use std::os::fd::AsFd;

impl Overlay {
    pub fn fsync(&self, fh: u64, data_only: bool) -> Result<()> {
        let handle = self.handle(fh)?;
        let (inode, file) = (&handle.inode, &handle.file);
        file.sync()?;
        let unsynced = file.canonical_unsynced();
        if !data_only || unsynced.is_some() || !inode.is_synced() || file.is_clean() {
            handle.canonical.sync_all()?;
            if let Some(changes) = unsynced {
                file.canonical_synced(changes);
            }
            inode.set_synced();
        }
        if self.others.is_some() && file.settings().fsync == Fsync::Publish {
            if handle.writable {
                self.publish(file)?;
            }
            self.refresh_handle(&handle)?;
        } else {
            self.check_local_copy(file, handle.canonical.fd());
        }
        report(&handle, true)
    }

    pub fn fsyncdir(&self, fh: u64, data_only: bool) -> Result<()> {
        let handle = self.dir_handle(fh)?;
        let dir = File::from(handle.fd.as_fd().try_clone_to_owned()?);
        if data_only {
            dir.sync_data()?;
        } else {
            dir.sync_all()?;
        }
        Ok(())
    }
}
