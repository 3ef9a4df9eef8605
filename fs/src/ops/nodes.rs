//! Other nodes over the same backing, as far as the operations are concerned.
//!
//! # Sync points
//! Opening, fsync and taking a lock *refresh*: they make visible what other nodes had published before. Closing,
//! fsync and giving a lock up *publish*: what was written here before is visible to nodes that refresh later. A
//! close may also only announce its data ([`Close::Defer`]): an open of the file on another node then waits for it.
//!
//! # Handles that bypass the store
//! A passthrough handle, and a handle that absorbs nothing, read and write the canonical file itself. What is
//! published lies over the canonical file, so before such a handle is given out, and at its sync points,
//! everything that is published is drained (*settled*). That waits; it happens only to a file that this node
//! reads while other nodes write it.
//!
//! # Crash behaviour
//! Nothing is stored here. An announcement is fulfilled by the next start of the store.

use super::Overlay;
use crate::backing::sys;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::Inode;
use crate::requests::executor::{self, WaitEnd};
use crate::types::{Caller, ROOT, Time};
pub use layout_index::policy::{Close, Fsync};
use layout_index::{Canonical, File, Peers, Publisher, StickyError, StoreError, Wait};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a request repeats its attempts if there are no other nodes.
const ALONE: Duration = Duration::from_secs(60);

/// The other nodes, as a mount knows them.
pub struct Others {
    pub peers: Arc<Peers>,
    /// The drain. It holds the file system, which must not hold it in turn.
    publisher: Weak<dyn Publisher>,
    /// Closed files whose announcement is still pending, by base name: see [`Close::DeferNext`].
    pub(super) last: parking_lot::Mutex<std::collections::HashMap<Vec<u8>, Arc<File>>>,
}

impl Others {
    pub fn new(peers: Arc<Peers>, publisher: Weak<dyn Publisher>) -> Others {
        Others {
            peers,
            publisher,
            last: Default::default(),
        }
    }

    /// Announces what was written here, so that other nodes wait for it, and has the drain publish it.
    pub(super) fn announce(&self, file: &Arc<File>) -> Result<()> {
        let publisher = self.publisher()?;
        self.peers.announce(file)?;
        publisher.request_publish(file);
        Ok(())
    }

    pub(super) fn publisher(&self) -> Result<Arc<dyn Publisher>> {
        self.publisher.upgrade().ok_or(FsError::DrainEnded)
    }

    /// How long a request waits for other nodes.
    pub(super) fn patience(&self, file: &File) -> Duration {
        self.peers.patience(file)
    }
}

/// How a request waits for other nodes: [`executor::sleep`] in the form in which [`Peers`] call it.
pub fn pause(time: Duration) -> layout_index::Result<()> {
    executor::sleep(time).map_err(|end| match end {
        WaitEnd::Gone => StoreError::Interrupted,
        WaitEnd::Crowded => StoreError::Crowded,
    })
}

fn not_published(error: StickyError) -> FsError {
    FsError::Drain {
        errno: error.errno,
        message: error.message,
    }
}

pub(super) fn stat_canonical(fd: BorrowedFd<'_>) -> std::io::Result<Canonical> {
    Ok(sys::stat(fd)?.into())
}

impl Overlay {
    /// How long a request waits for other nodes, or for publications and drains of the file.
    pub(super) fn patience(&self, file: &File) -> Duration {
        let others = self.others.as_ref();
        others.map_or(ALONE, |others| others.patience(file))
    }

    /// Makes what other nodes have published until now visible here.
    pub(super) fn refresh(&self, inode: &Inode, file: &File, wait: Wait) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        let ask = || stat_canonical(inode.fd());
        others.peers.refresh(file, &ask, wait)?;
        Ok(())
    }

    /// As [`Overlay::refresh`], without waiting. If other nodes publish the file faster than it can be
    /// refreshed, what was found last has to do: it is complete, if not the newest.
    pub(super) fn refresh_for_read(&self, inode: &Inode, file: &File) -> Result<()> {
        let has_refreshed = || {
            self.others
                .as_ref()
                .is_some_and(|o| o.peers.has_refreshed(file))
        };
        match self.refresh(inode, file, Wait::No) {
            Err(FsError::Store(StoreError::KeepsChanging(_))) if has_refreshed() => Ok(()),
            other => other,
        }
    }

    /// Called after a refresh: makes the kernel drop the attributes that it has cached before.
    pub(super) fn refreshed(&self, inode: &Inode) {
        if self.others.is_some()
            && let Some(invalidate) = self.invalidate.get()
        {
            inode.keep_no_attributes(|| invalidate(inode.node));
        }
    }

    /// How long the kernel may cache names and attributes of a file: not at all while it is open here and
    /// other nodes may change it, so that its size is the one found by the last sync point.
    pub fn ttl(&self, node: u64) -> Duration {
        // An answer with the number `ROOT` has attributes that must not be shown: see `lookup_parent`.
        if node == ROOT || self.others.is_some() && self.inodes.is_open(node) {
            return Duration::ZERO;
        }
        self.ttl
    }

    /// Fails with ESTALE if another node has removed the file. The kernel may still have the name cached:
    /// ESTALE makes it look the name up again, and find a newer file of that name. What is written to the
    /// removed file would be lost. Returns the ctime of the canonical file.
    pub(super) fn still_named(
        &self,
        caller: &Caller,
        inode: &Inode,
        canonical: BorrowedFd<'_>,
    ) -> Result<Time> {
        let seen = sys::glance(canonical)?;
        if self.removed_elsewhere(inode, seen.nlink) {
            self.refused.for_name(caller.pid);
            return Err(FsError::Stale(inode.node));
        }
        Ok(seen.ctime)
    }

    /// True for a file without a name that this node has not removed. What is left of such
    /// a file is dropped (S2.6).
    pub(super) fn removed_elsewhere(&self, inode: &Inode, links: u32) -> bool {
        self.others.is_some() && self.lost_its_name(inode, links)
    }

    /// `links` must have been read before: a removal that was under way then has either not ended, or
    /// is noted on the inode.
    pub(super) fn lost_its_name(&self, inode: &Inode, links: u32) -> bool {
        links == 0 && !self.removals.contains(&inode.id) && !inode.is_unlinked()
    }

    /// Drains everything that is published. For handles that use the canonical file itself.
    pub(super) fn drain_published(&self, file: &Arc<File>) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        let publisher = others.publisher()?;
        if file.is_settled() {
            return Ok(());
        }
        executor::begin_wait()?;
        match publisher.drain_published(file, &executor::may_keep_waiting) {
            true => Ok(()),
            false if !executor::may_keep_waiting() => Err(FsError::Interrupted),
            // The caller gets the error of the backing if there is one (S7.2).
            false => Err(file.error().map_or(FsError::Unsettled, not_published)),
        }
    }

    pub(super) fn publish(&self, file: &Arc<File>) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        // This also lets other nodes append: they find the end of the file behind what is published.
        let appends = others.peers.appends_of(file, executor::caller_thread());
        self.publish_bytes(file)?;
        others.peers.end_appends(file, appends);
        Ok(())
    }

    /// Continues if the caller is killed, and if its user has no place to wait: a range that the caller has
    /// locked must not become free before its bytes are published.
    pub(super) fn publish_bytes(&self, file: &Arc<File>) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        let publisher = others.publisher()?;
        executor::leave_working_slot();
        // This is also for bytes that were written past the store.
        if let Some(inode) = self.inodes.get_by_id(&file.id()) {
            self.strip_after_writes(&inode)?;
        }
        if file.is_clean() || file.is_unlinked() {
            file.wait_published();
            return Ok(());
        }
        publisher.publish(file).map_err(not_published)
    }

    /// Publishes a cut and a new size, and the bytes that need not be moved for that; the rest of the file's
    /// bytes are published as usual. MPI libraries set sizes and call no fsync after it.
    pub(super) fn tell_size(&self, inode: &Inode, file: &Arc<File>) -> Result<()> {
        let Some(others) = self.others.as_ref().filter(|_| !file.is_unlinked()) else {
            return Ok(());
        };
        let publisher = others.publisher()?;
        self.strip_after_writes(inode)?;
        // The drain must know of the file before a part of it is published, and is told again afterwards.
        publisher.request_publish(file);
        others.peers.publish(file, &|| stat_canonical(inode.fd()))?;
        publisher.request_publish(file);
        Ok(())
    }

    /// True if a close of this handle has something to tell other nodes.
    pub fn close_waits(&self, fh: u64) -> bool {
        self.others.as_ref().is_some_and(|others| {
            let tells = |h: &Handle| others.peers.must_tell_others(&h.file) || h.inode.is_written();
            let handle = self.handles.get(&fh);
            handle.is_some_and(|handle| handle.writable && tells(&handle))
        })
    }

    /// Called when a handle was closed.
    pub(super) fn closed(&self, handle: &Handle) -> Result<()> {
        if !handle.writable {
            return Ok(());
        }
        self.changed(&handle.inode, &handle.file)
    }

    /// Makes changes visible to other nodes, by publication or announcement. Called when a handle that could
    /// write was closed, or when the change was made by name, so that no close follows.
    pub(super) fn changed(&self, inode: &Inode, file: &Arc<File>) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        let appends = others.peers.appends_of(file, executor::caller_thread());
        // This is also for bytes that were written past the store. Privileges that are set after this are intended.
        self.strip_after_writes(inode)?;
        if file.is_clean() || file.is_unlinked() {
            file.wait_published();
            others.peers.end_appends(file, appends);
            return Ok(());
        }
        let close = file.settings().close;
        if close == Close::Publish {
            return self.publish(file);
        }
        others.announce(file)?;
        others.peers.end_appends(file, appends);
        if close == Close::DeferNext
            && let Some(name) = self.base_name(inode)
        {
            others.last.lock().insert(name, file.clone());
        }
        Ok(())
    }

    /// With [`Close::DeferNext`], waits for the pending announcement of the last file of this base name.
    pub(super) fn wait_for_last(&self, inode: &Inode, file: &File) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        if file.settings().close != Close::DeferNext {
            return Ok(());
        }
        let Some(name) = self.base_name(inode) else {
            return Ok(());
        };
        if !others.last.lock().contains_key(&name) {
            return Ok(());
        }
        // This comes before the removal: if it fails, the next open finds the file in the table and waits for it.
        executor::begin_wait()?;
        let last = others.last.lock().remove(&name);
        let Some(last) = last else {
            return Ok(());
        };
        let publisher = others.publisher()?;
        publisher
            .wait_fulfilled(&last, &executor::may_keep_waiting)
            .map_err(not_published)
    }

    /// The file's path without its digits: `ckpt_0007.h5` and `ckpt_0008.h5` have the same base name.
    fn base_name(&self, inode: &Inode) -> Option<Vec<u8>> {
        use std::os::unix::ffi::OsStrExt;
        let path = self.backing.relative_path(inode.fd()).ok().flatten()?;
        let bytes = path.as_os_str().as_bytes().iter().copied();
        Some(bytes.filter(|b| !b.is_ascii_digit()).collect())
    }

    /// A sync point of a handle that reads: an fsync, or a lock that was taken.
    pub(super) fn refresh_handle(&self, handle: &Handle) -> Result<()> {
        self.refresh(&handle.inode, &handle.file, Wait::ForOthers)?;
        self.check_local_copy(&handle.file, handle.canonical.fd());
        if self.others.is_none() {
            return Ok(());
        }
        self.refreshed(&handle.inode);
        if handle.passthrough.is_some() || !handle.absorbs {
            self.drain_published(&handle.file)?;
        }
        self.tell_kernel_size(handle)?;
        self.renew_pages(handle)
    }
}
