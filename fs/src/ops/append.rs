//! Appends where other nodes may append too, and the file sizes that the kernel knows.
//!
//! # Where an append goes
//! The kernel gives an append the end of the file as it was last told. Another node may have moved that end
//! since, so if there can be other nodes the offset of an append request is not used: the bytes go to the end
//! that this node knows while it has the right to append (`layout_index`'s `peers/append`). The kernel sends
//! one append to a file at a time, and no other write beside it.
//!
//! While a program of this node has had the file open for reading since before there was anything to absorb, the
//! kernel reads the canonical file itself (passthrough). Handles that write are then opened so that their requests
//! are sent here all the same, and their bytes are written to the canonical file, appends in this node's turn.
//!
//! # Which size the kernel knows
//! Not everything depends on requests that are marked as appends: `RWF_APPEND` does not show in a request,
//! and the kernel computes the file position after an append. So the kernel must know the size at each sync
//! point. It takes a size from answers about attributes only. The size that it was told is noted
//! ([`KernelSize`]); where the file has another size by now:
//!
//! - an open for writing is refused with ESTALE. The kernel then looks the name up again, learns the size,
//!   and opens again. It does so only once, so the same thread is refused only once;
//! - a lock and an fsync have the helper process ask for the size (`mount/pages`), just as they have it drop pages.

use super::Overlay;
use super::data::may_have;
use super::nodes::{Others, stat_canonical};
use crate::backing::ofd::LockKind;
use crate::backing::sys;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::Inode;
use crate::requests::executor;
use crate::types::Caller;
use layout_index::{ByteRange, File};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Largest number of bytes in a write request.
pub const MAX_WRITE: u32 = 1 << 20;

/// How long a refusal for the sake of a size is remembered. The kernel looks up and opens again at once.
const LOOKS_AGAIN: Duration = Duration::from_secs(10);
/// The same for the sake of a name: shorter, because the name may be gone, and then the thread does not come back.
const NAMED: Duration = Duration::from_secs(1);

/// Opens that were refused so that the kernel looks the name up again. It does so only once: a thread that
/// was refused for the sake of a name is not refused again for the sake of a size.
#[derive(Default)]
pub(super) struct Refused {
    /// Refusals by node and thread.
    sizes: Mutex<HashMap<(u64, u32), Instant>>,
    /// Refusals by thread: the thread comes back with another node number.
    names: Mutex<HashMap<u32, Instant>>,
}

impl Refused {
    /// Notes a refusal and returns true; false the second time in a row.
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

    /// Notes a refusal because a name that the kernel has cached now belongs to another file.
    pub(super) fn for_name(&self, thread: u32) {
        let mut names = self.names.lock();
        names.retain(|_, at| at.elapsed() < NAMED);
        names.insert(thread, Instant::now());
    }
}

impl Overlay {
    /// True if the offset of an append request through this handle must not be used.
    pub fn finds_end(&self, handle: &Handle) -> bool {
        self.others.is_some() && handle.writable
    }

    /// Writes all of `data` at the end of the file, wherever other nodes have moved that end.
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
        let ask = || stat_canonical(inode.fd());
        let turn = others.peers.append_turn(file, &ask)?;
        if handle.coherent {
            let _all = self.take_turn(others, inode, file, ByteRange::ALL, LockKind::Exclusive)?;
            self.put_at_end(handle, data)?;
            self.publish_bytes(file)?;
        } else {
            self.put_at_end(handle, data)?;
        }
        // The fsync is made while the turn is held: otherwise, as a sync point, it would end the turn, and the
        // rest of the `write` may still follow.
        if durable {
            self.fsync(handle.fh, true)?;
        }
        let goes_on = goes_on(data).filter(|_| !turn.is_overdue());
        if goes_on.is_some() || !(turn.is_wanted() || handle.coherent) {
            turn.keep(goes_on);
            return Ok(());
        }
        // The bytes are recorded. If they cannot be published now they are announced, and a request that
        // waits for the announcement returns the publication's error.
        if !handle.coherent && self.publish_bytes(file).is_err() && !file.is_clean() {
            others.announce(file)?;
        }
        turn.give_up(&others.peers);
        Ok(())
    }

    fn put_at_end(&self, handle: &Handle, data: &[u8]) -> Result<()> {
        if !self.absorbs(handle) {
            self.drain_published(&handle.file)?;
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

    /// The end of the file as this node shows it. The drain may finish between the check of the store and the
    /// `stat` of the canonical file, so the store is checked again.
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

    /// Refuses an open if the size that the kernel knows is not the file's size after the refresh.
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
        // Threads of other process namespaces have no number here, so they could not be told apart.
        let is_refused = || caller.pid != 0 && self.refused.refuse(inode.node, caller.pid);
        if !known && is_refused() {
            return Err(FsError::Stale(inode.node));
        }
        self.refused.opened(inode.node, caller.pid);
        Ok(())
    }

    /// Has the kernel ask for the size, if that is not what the kernel was told last.
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

/// Returns the calling thread if the rest of its `write` may follow, because the request is as long as a
/// request can be. Where the program's buffer does not begin at a page boundary, that is up to a page less.
fn goes_on(data: &[u8]) -> Option<u32> {
    (data.len() + 4096 > MAX_WRITE as usize).then(executor::caller_thread)
}
