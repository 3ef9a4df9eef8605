//! Mappings that stay mapped, at sync points: the kernel's pages of what others have changed go.
//!
//! An open drops them by itself. A lock and an fsync do not, so they end with this: after the file was
//! refreshed, and before they are answered. Whoever then looks at its mapping has the pages read
//! again, from what the refresh found. See [`crate::inode::pages`] for when that is needed, and
//! [`crate::mount`]'s `pages` for who does it.
//!
//! Only direct handles have such pages: of a file with passthrough handles the kernel keeps those of
//! the canonical file, which are the file system's below to keep right.
//!
//! # What the helper's open is
//! Nothing but its effect on the kernel. It opens no canonical file (the backing may not trust root),
//! waits for no other node and has no handle here ([`NO_HANDLE`]). A file that is mapped past the canonical
//! file has direct handles until the sync point is answered, so a direct one is always allowed.
//!
//! # Threads
//! A request that waits here waits for requests of the same user that need working places: page reads. So it waits at a
//! waiting place ([`crate::places`]), or not at all.

use super::Overlay;
use super::kept::version;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::Inode;
use crate::inode::pages::State;
use crate::places;
use crate::types::Caller;
use layout_index::Timestamp;
use std::io;

/// Of opens that only drop pages.
pub(super) const NO_HANDLE: u64 = 0;

/// Has the kernel drop pages.
pub(crate) trait PageDrop: Send + Sync {
    /// Returns when the kernel has none of the pages any more that it had when this was called.
    fn drop_pages(&self, inode: &Inode) -> io::Result<()>;
    /// Returns when the kernel has asked for the size of the file, and knows it.
    fn ask_size(&self, inode: &Inode) -> io::Result<()>;
    /// The thread opens files for nothing else.
    fn is_dropper(&self, thread: u32) -> bool;
}

impl Overlay {
    /// Who drops pages. The first one stays.
    pub(crate) fn on_stale_pages(&self, dropper: Box<dyn PageDrop>) {
        if self.page_drop.set(dropper).is_err() {
            tracing::warn!("the overlay is mounted already; the first mount drops pages");
        }
    }

    /// The kernel reads a page for a mapping. Never waits.
    pub fn page_wanted(&self, handle: &Handle) {
        handle.inode.pages.mark();
    }

    pub(super) fn only_drops_pages(&self, caller: &Caller) -> bool {
        let dropper = self.page_drop.get();
        caller.uid == 0 && dropper.is_some_and(|dropper| dropper.is_dropper(caller.pid))
    }

    /// A mapping shows nothing older than the refresh before this. Waits for reads of pages.
    pub(super) fn renew_pages(&self, handle: &Handle) -> Result<()> {
        let Some(dropper) = self
            .page_drop
            .get()
            .filter(|_| handle.passthrough.is_none())
        else {
            return Ok(());
        };
        let state = || {
            // Before the look: a version that is not final then may never be.
            let now = Timestamp::now();
            let version = version(handle.canonical.fd())?;
            Ok(State {
                version,
                news: handle.file.news(),
                is_final: version.is_final_among_nodes(now),
            })
        };
        let Handle { inode, .. } = handle;
        let drop_pages = || dropper.drop_pages(inode).map_err(FsError::Pages);
        if inode.pages.are_none() {
            return Ok(());
        }
        self.waiting_for_helper(|| {
            let gave_up = || FsError::Interrupted;
            inode
                .pages
                .sync_point(state, drop_pages, places::goes_on, gave_up)
        })
    }

    /// Does what waits for the helper process, unless too many requests of the user wait already.
    pub(super) fn waiting_for_helper<T>(&self, wait: impl FnOnce() -> Result<T>) -> Result<T> {
        places::may_wait()?;
        wait()
    }
}
