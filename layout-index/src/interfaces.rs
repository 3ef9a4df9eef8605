//! What the file system and the drain are to each other and to this crate. Neither of those crates
//! imports the other one, so the traits by which they meet are here; `Overlay`, `Flusher` and
//! `Targets` implement them.
//!
//! ```text
//! Overlay ──Publisher──▶ Flusher ──CanonicalFiles──▶ Overlay
//!    └───────Placement──▶ Targets ◀──Placement── SharedDir
//! ```

use crate::disk::DiskFile;
use crate::policy::FilePolicy;
use crate::store::file::{File, StickyError};
use crate::types::FileId;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Size and owner of the canonical file as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Canonical {
    pub size: u64,
    pub uid: u32,
}

/// Access to canonical files for the drain. Called on the drain's threads; may wait for the file
/// system below.
pub trait CanonicalFiles: Send + Sync {
    /// Opens the canonical file for reading and writing as the file's owner. `None` if it is
    /// certainly gone: its undrained data is then dropped.
    fn open_canonical(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>>;

    /// Returns size and owner of the canonical file, or ENOENT if it is certainly gone.
    fn stat_canonical(&self, file: &File) -> io::Result<Canonical> {
        match self.open_canonical(file)? {
            Some(canonical) => Ok(Canonical {
                size: canonical.size()?,
                uid: file.hint().uid,
            }),
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    /// Called when the file is clean: what was kept open for it may be closed.
    fn file_clean(&self, id: FileId);

    /// Whether files can have policies of their own. Must not wait.
    fn has_policies(&self) -> bool {
        false
    }

    /// Returns the settings in which the file's policy differs from that of the mount, as they
    /// would be if the file were opened now.
    fn policy_of(&self, _file: &File) -> io::Result<FilePolicy> {
        Ok(FilePolicy::default())
    }
}

/// Moves data to where other nodes see it. Its methods may wait, at most as long as the file's
/// `visibility-timeout` says, except for `publish`. Must not be called on the drain's own threads.
pub trait Publisher: Send + Sync {
    /// Puts everything that was written to the file until now where other nodes see it, and waits
    /// for that.
    fn publish(&self, file: &Arc<File>) -> Result<(), StickyError>;

    /// Waits until what was announced is published. Ends early when `goes_on` returns false.
    fn wait_fulfilled(
        &self,
        file: &Arc<File>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), StickyError>;

    /// Must be called when something was announced that is still to be published.
    fn request_publish(&self, file: &Arc<File>);

    /// Drops what this node has published of a file, whatever the drain's policy: this node has
    /// removed the file, and no process has it open any more.
    fn drop_published(&self, file: &Arc<File>);

    /// Drains everything that any node has published of the file, and what this node has not
    /// published, so that the canonical file is the whole truth. False if that took too long or
    /// `goes_on` returned false.
    fn drain_published(&self, file: &Arc<File>, goes_on: &dyn Fn() -> bool) -> bool;
}

/// Chooses the storage targets of new files, and knows which targets answer. A file whose placement
/// fails is wherever the file system puts it, which is never an error.
pub trait Placement: Send + Sync {
    /// Flags for the creation of a file whose place is still to be chosen.
    fn create_flags(&self) -> i32;

    /// Stripes a canonical file, which was just created, over the targets that are fastest now.
    /// Called as the user who created the file.
    fn stripe(&self, file: BorrowedFd<'_>);

    /// Places a file of the shared directory on one target: another one with each call, if there
    /// are several. `None` if it is not known which target has the file.
    fn place_on_one(&self, file: BorrowedFd<'_>) -> Option<u32>;

    /// Notes that a write to the target is under way, until the returned value is dropped. A target
    /// that takes too long gets nothing more until the write has come back.
    fn begin_write(&self, target: u32) -> Box<dyn Send>;

    /// True if files on the target can be written to, as far as is known.
    fn answers(&self, target: u32) -> bool;

    /// How long a target may take to answer.
    fn deadline(&self) -> Duration;
}
