//! Mappings that stay mapped, at sync points: the kernel's pages of what others have changed go.
//!
//! An open drops them by itself. A lock and an fsync do not, so they end with this: after the file was
//! refreshed, and before they are answered. Whoever then looks at its mapping has the pages read
//! again, from what the refresh found. See [`crate::inode::pages`] for when that is needed, and
//! [`crate::mount`]'s `pages` for who does it.
//!
//! Only direct handles have such pages: of a file with passthrough handles the kernel keeps those of
//! the canonical file, which are the file system's below to keep right.

use super::Overlay;
use super::kept::version;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::Inode;
use crate::inode::pages::State;
use layout_index::Timestamp;
use std::io;

/// Returns when the kernel has none of the file's pages any more.
pub(crate) type DropPages = Box<dyn Fn(&Inode) -> io::Result<()> + Send + Sync>;

impl Overlay {
    /// How to have the kernel drop pages. The first one stays.
    pub(crate) fn on_stale_pages(&self, drop_pages: DropPages) {
        if self.drop_pages.set(drop_pages).is_err() {
            tracing::warn!("the overlay is mounted already; the first mount drops pages");
        }
    }

    /// The kernel reads a page for a mapping. Never waits.
    pub fn page_wanted(&self, handle: &Handle) {
        handle.inode.pages.mark();
    }

    /// A mapping shows nothing older than the refresh before this. Waits for reads of pages.
    pub(super) fn renew_pages(&self, handle: &Handle) -> Result<()> {
        let Some(drop_pages) = self
            .drop_pages
            .get()
            .filter(|_| handle.passthrough.is_none())
        else {
            return Ok(());
        };
        let state = || {
            let version = version(handle.canonical.fd())?;
            Ok(State {
                version,
                news: handle.file.news(),
                is_final: version.is_final_among_nodes(Timestamp::now()),
            })
        };
        let drop_them = || drop_pages(&handle.inode).map_err(FsError::Pages);
        handle.inode.pages.sync_point(state, drop_them)
    }
}
