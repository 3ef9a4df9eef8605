//! Appending where other nodes may append too, and sizes that the kernel believes in.
//!
//! # Where an append goes
//! The kernel gives an append the end of the file as it was last told. Another node may have moved
//! that end since, so with many nodes the offset of a request that appends is not used: the bytes go
//! to the end that this node knows while it has the right to append (`layout_index`'s `peers/append`).
//! The kernel sends one append to a file at a time, and no other write beside it.
//!
//! While a program of this node has had the file open for reading since before there was something to absorb, the
//! kernel reads the canonical file by itself (passthrough). Handles that write are then opened so that their
//! requests come here all the same, and the bytes are written to the canonical file, appends in the node's turn.
//!
//! # What the kernel believes
//! Not all depends on requests that say that they append: `RWF_APPEND` is not shown in a request, and the
//! file position after an append is computed by the kernel. So the kernel must know the size at each
//! sync point. It takes a size from answers about attributes only. What it was told is noted
//! ([`KernelSize`]), and where that is not the size any more:
//!
//! - an open for writing is refused with ESTALE. The kernel looks the name up again, hears the size, and opens
//!   again. It does so once, so the same thread is refused once;
//! - a lock and an fsync have the helper process ask for the size (`mount/pages`), as they have it drop pages.

use super::Overlay;
use super::data::may_have;
use super::nodes::{Others, look};
use crate::backing::ofd::LockKind;
use crate::backing::sys;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::Inode;
use crate::places;
use crate::types::Caller;
use layout_index::{ByteRange, File};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// No request has more bytes.
pub const MAX_WRITE: u32 = 1 << 20;

/// A kernel that was refused an open looks again at once.
const LOOKS_AGAIN: Duration = Duration::from_secs(10);
/// The same for names: shorter, because the name may be gone, and the thread not come back.
const NAMED: Duration = Duration::from_secs(1);

/// Opens that were refused so that the kernel looks again. It does so once: a thread that was refused for the sake
/// of a name is not refused for that of a size.
#[derive(Default)]
pub(super) struct Refused {
    /// By node and thread.
    sizes: Mutex<HashMap<(u64, u32), Instant>>,
    /// By thread: the node is another one when it comes back.
    names: Mutex<HashMap<u32, Instant>>,
}

impl Refused {
    /// False the second time in a row.
    fn refuse(&self, node: u64, thread: u32) -> bool {
        let named = self.names.lock().remove(&thread);
        if named.is_some_and(|at| at.elapsed() < NAMED) {
            return false;
        }
        let mut refused = self.sizes.lock();
        if refused
            .remove(&(node, thread))
            .is_some_and(|at| at.elapsed() < LOOKS_AGAIN)
        {
            return false;
        }
        refused.retain(|_, at| at.elapsed() < LOOKS_AGAIN);
        refused.insert((node, thread), Instant::now());
        true
    }

    fn opened(&self, node: u64, thread: u32) {
        self.sizes.lock().remove(&(node, thread));
    }

    /// A name that the kernel has from before stands for another file now.
    pub(super) fn for_name(&self, thread: u32) {
        let mut names = self.names.lock();
        names.retain(|_, at| at.elapsed() < NAMED);
        names.insert(thread, Instant::now());
    }
}

impl Overlay {
    /// The offset of a request that appends is not to be used.
    pub fn finds_end(&self, handle: &Handle) -> bool {
        self.others.is_some() && handle.writable
    }

    /// Writes all of `data` behind the end of the file, wherever nodes have moved it to.
    pub fn append(
        &self,
        handle: &Handle,
        data: &[u8],
        kill_setid: bool,
        durable: bool,
    ) -> Result<()> {
        let Some(others) = &self.others else {
            return Err(FsError::Invalid("the kernel knows where the file ends"));
        };
        if !handle.writable {
            return Err(FsError::BadHandle(handle.fh));
        }
        self.strip_privileges(&handle.inode, kill_setid)?;
        if !handle.inode.is_unlinked() {
            return self.append_in_turn(others, handle, data, durable);
        }
        self.put_at_end(handle, data)?;
        if durable {
            self.fsync(handle.fh, true)?;
        }
        Ok(())
    }

    fn append_in_turn(
        &self,
        others: &Others,
        handle: &Handle,
        data: &[u8],
        durable: bool,
    ) -> Result<()> {
        let (inode, file) = (&handle.inode, &handle.file);
        let ask = || look(inode.fd());
        let turn = others.peers.append_turn(file, &ask)?;
        if handle.coherent {
            let _all = self.take_turn(others, inode, file, ByteRange::ALL, LockKind::Exclusive)?;
            self.put_at_end(handle, data)?;
            self.publish_bytes(file)?;
        } else {
            self.put_at_end(handle, data)?;
        }
        // Within the turn: a sync point of the handle would end it, and the rest of the `write` may follow.
        if durable {
            self.fsync(handle.fh, true)?;
        }
        let goes_on = goes_on(data).filter(|_| !turn.is_overdue());
        if goes_on.is_some() || !(turn.is_wanted() || handle.coherent) {
            turn.keep(goes_on);
            return Ok(());
        }
        // The bytes are recorded. If they cannot be published now, they are announced, and the error
        // of the publication is told by what waits for it.
        if !handle.coherent && self.publish_bytes(file).is_err() && !file.is_clean() {
            others.announce(file)?;
        }
        turn.give_up(&others.peers);
        Ok(())
    }

    fn put_at_end(&self, handle: &Handle, data: &[u8]) -> Result<()> {
        if !self.absorbs(handle) {
            self.settle(&handle.file)?;
        }
        let end = self.end_of(&handle.file, handle.canonical.fd())?;
        if !may_have(handle, end, data.len()) {
            return Err(std::io::Error::from_raw_os_error(libc::EFBIG).into());
        }
        if self.absorbs(handle) {
            self.absorb(handle, end, data)
        } else {
            self.write_through(handle, end, data)
        }
    }

    /// Where the file ends, as this node shows it. The drain may finish between the two looks, so the
    /// store is asked again.
    pub(super) fn end_of(&self, file: &File, canonical: BorrowedFd<'_>) -> Result<u64> {
        loop {
            if let Some(shown) = file.shown() {
                return Ok(shown.size);
            }
            let size = sys::stat(canonical)?.size;
            if file.shown().is_none() {
                return Ok(size);
            }
        }
    }

    /// Refuses an open where the kernel believes in another size than the file has after the refresh.
    pub(super) fn size_is_known(
        &self,
        caller: &Caller,
        inode: &Inode,
        file: &File,
        canonical: BorrowedFd<'_>,
    ) -> Result<()> {
        if self.others.is_none() {
            return Ok(());
        }
        let known = inode.kernel_size.is(self.end_of(file, canonical)?);
        // Threads of other process namespaces have no number here, and could not be told apart.
        let is_refused = || caller.pid != 0 && self.refused.refuse(inode.node, caller.pid);
        if !known && is_refused() {
            return Err(FsError::Stale(inode.node));
        }
        self.refused.opened(inode.node, caller.pid);
        Ok(())
    }

    /// Has the kernel ask for the size, if it is another than the kernel was told.
    pub(super) fn tell_kernel_size(&self, handle: &Handle) -> Result<()> {
        let Handle { inode, file, .. } = handle;
        let Some(helper) = self.page_drop.get().filter(|_| handle.writable) else {
            return Ok(());
        };
        if inode
            .kernel_size
            .is(self.end_of(file, handle.canonical.fd())?)
        {
            return Ok(());
        }
        self.waiting_for_helper(|| helper.ask_size(inode).map_err(FsError::Pages))
    }
}

/// The rest of one `write` of the calling thread may follow: the request is as long as can be. Where the memory of
/// the program does not begin with a page, that is up to a page less.
fn goes_on(data: &[u8]) -> Option<u32> {
    (data.len() + 4096 > MAX_WRITE as usize).then(places::caller_thread)
}
