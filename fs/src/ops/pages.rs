//! Drops the kernel's pages of mappings that stay mapped, at sync points, if other nodes have changed the file.
//!
//! An open drops them by itself. A lock and an fsync do not, so they end with this: after the file was
//! refreshed, and before they are answered. A process that then reads its mapping has the pages read again,
//! as the refresh found them. See [`crate::inode::pages`] for when that is necessary, and [`crate::mount`]'s
//! `pages` for the process that does it.
//!
//! Only direct handles have such pages. For a file with passthrough handles the kernel keeps pages of the
//! canonical file, which the backing keeps up to date.
//!
//! # The helper's open
//! It has no purpose but its effect on the kernel. It opens no canonical file (the backing may not trust root),
//! waits for no other node and has no handle here ([`NO_HANDLE`]). A file whose mappings are served by the daemon
//! has direct handles until the sync point is answered, so a direct open is always allowed.
//!
//! # Threads
//! A request that waits here waits for requests of the same user that need working slots: page reads. So it
//! waits in a waiting slot ([`crate::requests::executor`]), or not at all.

use super::Overlay;
use super::local_copy::version;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::Inode;
use crate::inode::pages::State;
use crate::requests::executor;
use crate::types::Caller;
use layout_index::Timestamp;
use std::io;

/// The handle number of opens that only drop pages.
pub(super) const NO_HANDLE: u64 = 0;

/// Makes the kernel drop pages.
pub(crate) trait PageDrop: Send + Sync {
    /// Returns when the kernel has dropped all pages that it had when this was called.
    fn drop_pages(&self, inode: &Inode) -> io::Result<()>;
    /// Returns when the kernel has asked for the file's size and knows it.
    fn ask_size(&self, inode: &Inode) -> io::Result<()>;
    /// True if this thread belongs to the helper, which opens files for no other purpose.
    fn is_dropper(&self, thread: u32) -> bool;
}

impl Overlay {
    /// Sets what drops pages. The first call counts.
    pub(crate) fn on_stale_pages(&self, dropper: Box<dyn PageDrop>) {
        if self.page_drop.set(dropper).is_err() {
            tracing::warn!("the overlay is mounted already; the first mount drops pages");
        }
    }

    /// Called when the kernel reads a page for a mapping. Never waits.
    pub fn page_wanted(&self, handle: &Handle) {
        handle.inode.pages.mark();
    }

    pub(super) fn only_drops_pages(&self, caller: &Caller) -> bool {
        let dropper = self.page_drop.get();
        caller.uid == 0 && dropper.is_some_and(|dropper| dropper.is_dropper(caller.pid))
    }

    /// Makes mappings show nothing older than the preceding refresh. Waits for reads of pages.
    pub(super) fn renew_pages(&self, handle: &Handle) -> Result<()> {
        let Some(dropper) = self
            .page_drop
            .get()
            .filter(|_| handle.passthrough.is_none())
        else {
            return Ok(());
        };
        let others = self.others.as_ref();
        let state = || {
            // The time is taken before the `stat`: the version must have been final when it was read, because
            // two changes within one tick of the clock lead to the same version.
            let now = Timestamp::now();
            let version = version(handle.canonical.fd())?;
            Ok(State {
                version,
                news: others.map_or(0, |others| others.peers.news(&handle.file)),
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
                .sync_point(state, drop_pages, executor::may_keep_waiting, gave_up)
        })
    }

    /// Runs `wait`, which waits for the helper process, unless too many requests of the user wait already.
    pub(super) fn waiting_for_helper<T>(&self, wait: impl FnOnce() -> Result<T>) -> Result<T> {
        executor::begin_wait()?;
        wait()
    }
}
