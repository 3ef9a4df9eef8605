//! Other nodes over the same backing: where the operations meet them.
//!
//! # Sync points
//! Opening, fsync and taking a lock *refresh*: what others had published before is seen from then
//! on. Closing, fsync and giving a lock up *publish*: what was written here before is seen by those who
//! refresh later. A close may also only announce that ([`Close::Defer`]): who opens the file
//! elsewhere then waits for the rest.
//!
//! # Handles that go past the store
//! A passthrough handle, and one that absorbs nothing, read and write the canonical file
//! itself. What is published lies over that, so before such a handle is given out, and at its sync
//! points, everything published is drained (*settled*). That waits; it happens only to a file
//! that this node reads while others write it.
//!
//! # Crash behaviour
//! Nothing is kept here. An announcement that was made is fulfilled by the next start of the store.

use super::Overlay;
use crate::backing::canonical;
use crate::backing::sys::{self, Stat};
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::Inode;
use crate::places::{self, WaitEnd};
use crate::types::{Caller, ROOT, Time};
pub use layout_index::policy::{Close, Fsync};
use layout_index::{Canonical, File, Peers, StickyError, StoreError, Wait};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a request tries again where there are no other nodes.
const ALONE: Duration = Duration::from_secs(60);

/// Who moves data to where others see it. All of it waits.
pub trait Publisher: Send + Sync {
    fn publish(&self, file: &Arc<File>) -> std::result::Result<(), StickyError>;
    /// What was announced has come. Ends when `goes_on` says no.
    fn deliver(
        &self,
        file: &Arc<File>,
        goes_on: &dyn Fn() -> bool,
    ) -> std::result::Result<(), StickyError>;
    /// Something was announced; the rest is to follow.
    fn owes(&self, file: &Arc<File>);
    /// The canonical file is the whole truth afterwards; false if that took too long or `goes_on` said no.
    fn settle(&self, file: &Arc<File>, goes_on: &dyn Fn() -> bool) -> bool;
}

/// The other nodes, as a mount knows them.
pub struct Others {
    pub peers: Arc<Peers>,
    /// Of files that have no policy of their own.
    pub close: Close,
    pub fsync: Fsync,
    pub publisher: OnceLock<Arc<dyn Publisher>>,
    /// Closed files whose data is on its way, by base name: see [`Close::DeferNext`].
    pub(super) last: parking_lot::Mutex<std::collections::HashMap<Vec<u8>, Arc<File>>>,
}

impl Others {
    pub fn new(peers: Arc<Peers>, close: Close, fsync: Fsync) -> Others {
        peers.set_pause(pause);
        Others {
            peers,
            close,
            fsync,
            publisher: OnceLock::new(),
            last: Default::default(),
        }
    }

    /// Other nodes wait for what was written here, and it follows.
    pub(super) fn announce(&self, file: &Arc<File>) -> Result<()> {
        let publisher = self.publisher()?;
        self.peers.intend(file)?;
        publisher.owes(file);
        Ok(())
    }

    /// Set before the first request.
    fn publisher(&self) -> Result<&Arc<dyn Publisher>> {
        self.publisher.get().ok_or(FsError::NoPublisher)
    }

    /// How long other nodes are waited for.
    pub(super) fn patience(&self, file: &File) -> Duration {
        self.peers.patience(file)
    }
}

/// As the store calls it.
fn pause(time: Duration) -> layout_index::Result<()> {
    places::pause(time).map_err(|end| match end {
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

pub(super) fn look(fd: BorrowedFd<'_>) -> std::io::Result<Canonical> {
    Ok(canonical_of(&sys::stat(fd)?))
}

fn canonical_of(stat: &Stat) -> Canonical {
    Canonical {
        size: stat.size,
        uid: stat.uid,
    }
}

impl Overlay {
    /// Before the first request: who publishes.
    pub fn set_publisher(&self, publisher: Arc<dyn Publisher>) {
        if let Some(others) = &self.others
            && others.publisher.set(publisher).is_err()
        {
            tracing::warn!("there is a publisher already; the first one stays");
        }
    }

    /// How long a request waits for other nodes, or for publications and drains of the file.
    pub(super) fn patience(&self, file: &File) -> Duration {
        let others = self.others.as_ref();
        others.map_or(ALONE, |others| others.patience(file))
    }

    /// What others published until now is seen from here on.
    pub(super) fn refresh(&self, inode: &Inode, file: &File, wait: Wait) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        let ask = || look(inode.fd());
        others.peers.refresh(file, &ask, wait)?;
        Ok(())
    }

    /// The kernel may have attributes from before.
    pub(super) fn refreshed(&self, inode: &Inode) {
        if self.others.is_some()
            && let Some(invalidate) = self.invalidate.get()
        {
            inode.keep_no_attributes(|| invalidate(inode.node));
        }
    }

    /// How long the kernel may keep names and attributes of a file: not at all while it is open here
    /// and other nodes may change it, so that a size is what the last sync point made it.
    pub fn ttl(&self, node: u64) -> Duration {
        // The root by this number has attributes that must not be shown: `lookup_parent`.
        if node == ROOT || self.others.is_some() && self.inodes.is_open(node) {
            return Duration::ZERO;
        }
        self.ttl
    }

    /// The kernel may have kept a name for a while whose file another node has removed: ESTALE makes
    /// it look the name up again, and find a newer file of that name. What is written to the
    /// removed one would be lost. Gives the time of the file's last change below.
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

    /// A file without a name that this node has not removed. What is left of it is dropped (S2.6).
    pub(super) fn removed_elsewhere(&self, inode: &Inode, links: u32) -> bool {
        links == 0 && self.others.is_some() && !inode.is_unlinked()
    }

    /// For handles that use the canonical file itself.
    pub(super) fn settle(&self, file: &Arc<File>) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        let publisher = others.publisher()?;
        if file.is_settled() {
            return Ok(());
        }
        places::may_wait()?;
        match publisher.settle(file, &places::goes_on) {
            true => Ok(()),
            false if !places::goes_on() => Err(FsError::Interrupted),
            // What the file system below says is what the caller is told (S7.2).
            false => Err(file.error().map_or(FsError::Unsettled, not_published)),
        }
    }

    pub(super) fn publish(&self, file: &Arc<File>) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        // Also lets other nodes append: they find the end behind what is published.
        let appends = others.peers.appends_of(file, places::caller_thread());
        self.publish_bytes(file)?;
        others.peers.end_appends(file, appends);
        Ok(())
    }

    /// Goes on when the caller is killed, and where its user has no place to wait: what it locked must not be free
    /// before its bytes are published.
    pub(super) fn publish_bytes(&self, file: &Arc<File>) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        let publisher = others.publisher()?;
        places::leave_work();
        // Also what was written past the store.
        if let Some(inode) = self.inodes.get_by_id(&file.id()) {
            self.strip_after_writes(&inode)?;
        }
        if file.is_clean() || file.is_unlinked() {
            file.wait_published();
            return Ok(());
        }
        publisher.publish(file).map_err(not_published)
    }

    /// Others see a cut and a new size, and what needs no moving; the rest of the file's bytes are
    /// published as ever. MPI libraries set sizes and call no fsync after it.
    pub(super) fn tell_size(&self, inode: &Inode, file: &Arc<File>) -> Result<()> {
        let Some(others) = self.others.as_ref().filter(|_| !file.is_unlinked()) else {
            return Ok(());
        };
        let publisher = others.publisher()?;
        self.strip_after_writes(inode)?;
        // The drain looks after the file before something of it is published, and hears when it is.
        publisher.owes(file);
        others.peers.publish(file, &|| look(inode.fd()))?;
        publisher.owes(file);
        Ok(())
    }

    /// A close of this handle has to tell other nodes.
    pub fn close_waits(&self, fh: u64) -> bool {
        let tells = |h: &Handle| h.writable && (h.file.is_to_tell() || h.inode.is_written());
        self.others.is_some() && self.handles.get(&fh).is_some_and(|h| tells(&h))
    }

    /// A handle was closed.
    pub(super) fn closed(&self, handle: &Handle) -> Result<()> {
        if !handle.writable {
            return Ok(());
        }
        self.changed(&handle.inode, &handle.file)
    }

    /// Other nodes are to see what was changed: a handle that could write was closed, or the change
    /// was made by name, and no close follows.
    pub(super) fn changed(&self, inode: &Inode, file: &Arc<File>) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        let appends = others.peers.appends_of(file, places::caller_thread());
        // Also what was written past the store: privileges that are set from here on are meant.
        self.strip_after_writes(inode)?;
        if file.is_clean() || file.is_unlinked() {
            file.wait_published();
            others.peers.end_appends(file, appends);
            return Ok(());
        }
        let close = self.close_of(file);
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

    /// With [`Close::DeferNext`], what the last file of this base name still owes is waited for.
    pub(super) fn wait_for_last(&self, inode: &Inode, file: &File) -> Result<()> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        if self.close_of(file) != Close::DeferNext {
            return Ok(());
        }
        let Some(name) = self.base_name(inode) else {
            return Ok(());
        };
        if !others.last.lock().contains_key(&name) {
            return Ok(());
        }
        // First: what is left is waited for by the next open otherwise.
        places::may_wait()?;
        let last = others.last.lock().remove(&name);
        let Some(last) = last else {
            return Ok(());
        };
        let publisher = others.publisher()?;
        publisher
            .deliver(&last, &places::goes_on)
            .map_err(not_published)
    }

    /// The name with its numbers taken out: `ckpt_0007.h5` and `ckpt_0008.h5` have the same.
    fn base_name(&self, inode: &Inode) -> Option<Vec<u8>> {
        use std::os::unix::ffi::OsStrExt;
        let path = self.backing.relative_path(inode.fd()).ok().flatten()?;
        let bytes = path.as_os_str().as_bytes().iter().copied();
        Some(bytes.filter(|b| !b.is_ascii_digit()).collect())
    }

    /// A sync point of a handle that reads: fsync, or a lock that was taken.
    pub(super) fn refresh_handle(&self, handle: &Handle) -> Result<()> {
        self.refresh(&handle.inode, &handle.file, Wait::ForOthers)?;
        self.check_kept(&handle.file, handle.canonical.fd());
        if self.others.is_none() {
            return Ok(());
        }
        self.refreshed(&handle.inode);
        if handle.passthrough.is_some() || !handle.absorbs {
            self.settle(&handle.file)?;
        }
        self.tell_kernel_size(handle)?;
        self.renew_pages(handle)
    }

    /// The canonical file for the drain and the publisher: found if nobody has it open. ENOENT when
    /// it is gone for certain.
    pub fn look_canonical(&self, file: &File) -> std::io::Result<Canonical> {
        if let Some(inode) = self.inodes.get_by_id(&file.id()) {
            match sys::stat(inode.fd()) {
                Err(e) if canonical::seems_gone(&e) => {}
                Ok(stat) if self.removed_elsewhere(&inode, stat.nlink) => {
                    return Err(std::io::Error::from_raw_os_error(libc::ENOENT));
                }
                looked => {
                    let looked = canonical_of(&looked?);
                    self.strip_after_writes(&inode).map_err(FsError::into_io)?;
                    return Ok(looked);
                }
            }
        }
        match self.backing.find(file.id(), &file.hint())? {
            Some(fd) => {
                use std::os::fd::AsFd;
                look(fd.as_fd())
            }
            None => Err(std::io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }
}
