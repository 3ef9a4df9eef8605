//! Local copies: reading drained files from the node's own disk, and reading files into it.
//!
//! # Consistency
//! A copy is checked at every sync point of a handle (open, lock, fsync), after the refresh: one `fstat` of the
//! canonical file, and only if there is a copy. If the canonical file has another version, the copy is dropped. So
//! a copy never shows older bytes than the canonical file would have shown at the last sync point.
//!
//! # No passthrough
//! A file that has a copy gets direct handles. The kernel could read the copy itself, but it has one file
//! behind each inode until all handles are closed: then a writer would write to the copy, and so would its
//! shared mappings, and no later open could show a newer version (`docs/decisions/0011-kept-copies.md`).
//!
//! # Who may read a file into the store
//! A user that has opened it for reading through the mount: the backing has agreed to that open, as the
//! caller, and the bytes are read through its descriptor.

use super::Overlay;
use crate::backing::sys;
use crate::handle::Handle;
use layout_index::policy::Absorb;
use layout_index::store::local_copies::{Evict, Moment, NoRoom};
use layout_index::{ByteRange, DiskFile, File, FileId, Timestamp, Version};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of bytes that a prefetch reads at once.
const STEP: u64 = 4 << 20;
/// How often a file is checked that was changed just now.
const LOOKS: usize = 100;

/// How reading a file into the store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetched {
    /// The copy has all of the file; this many bytes were read.
    Kept { read: u64 },
    /// There was a complete copy before.
    Already,
    /// The file has undrained data, is open for writing, or is `absorb = coherent`.
    Dirty,
    /// The file changed meanwhile.
    Changed,
    /// The store has no room for the rest of the file.
    NoRoom { read: u64 },
    /// The store accepts no copies: it fails, or is being closed.
    Unusable,
    /// The requesting client is gone.
    Stopped,
}

pub(super) fn version(fd: BorrowedFd<'_>) -> io::Result<Version> {
    let stat = sys::stat(fd)?;
    let moment = |t: crate::types::Time| Moment {
        sec: t.sec,
        nsec: t.nsec,
    };
    Ok(Version {
        size: stat.size,
        mtime: moment(stat.mtime),
        ctime: moment(stat.ctime),
    })
}

impl Overlay {
    /// At a sync point: true if `file` has a copy that may be read, because it is the
    /// current version of `canonical`.
    pub(super) fn check_local_copy(&self, file: &File, canonical: BorrowedFd<'_>) -> bool {
        self.absorb_of(file) != Absorb::Coherent && file.check_local_copy(|| version(canonical))
    }

    /// Reads a clean file from its copy, if that has all of the range. Waits for no other machine.
    pub(super) fn try_read_local_copy(
        &self,
        handle: &Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> io::Result<Option<usize>> {
        handle.file.read_local_copy(buf, offset, None)
    }

    /// Reads a clean file from its copy, and the bytes that the copy does not have from the canonical file.
    pub(super) fn read_clean(
        &self,
        handle: &Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> io::Result<usize> {
        let canonical: &dyn DiskFile = &handle.canonical;
        if self.turns(handle).is_some() {
            return canonical.read_at(buf, offset);
        }
        match handle.file.read_local_copy(buf, offset, Some(canonical))? {
            Some(n) => Ok(n),
            // Finding out whether the file has grown takes a `stat` instead of a read.
            None if handle
                .file
                .local_copy_size()
                .is_some_and(|size| offset >= size)
                && self.check_local_copy(&handle.file, handle.canonical.fd()) =>
            {
                Ok(0)
            }
            None => canonical.read_at(buf, offset),
        }
    }

    /// Makes a change to a file that affects its times and not its bytes, and carries its copy
    /// over to the new version.
    pub(super) fn bytes_untouched<T>(
        &self,
        file: Option<(FileId, BorrowedFd<'_>)>,
        change: impl FnOnce() -> T,
    ) -> T {
        let file = file.filter(|(id, _)| self.store.local_copies().has(*id));
        let before = file.and_then(|(_, fd)| version(fd).ok());
        let done = change();
        if let (Some((id, fd)), Some(before)) = (file, before)
            && let Ok(after) = version(fd)
        {
            self.store.local_copies().renew(id, before, after);
        }
        done
    }

    /// The handle of `node` that process `by.1` of user `by.0` has open for reading. With `None`, which is
    /// for callers that may read everything, the handle of any process.
    pub fn reading_handle(&self, node: u64, by: Option<(u32, u32)>) -> Option<Arc<Handle>> {
        let fits = |h: &Handle| {
            let (uid, pid) = (h.opener.uid, h.opener.pid);
            h.inode.node == node && h.readable && by.is_none_or(|by| by == (uid, pid))
        };
        let mut handles = self.handles.iter();
        handles.find(|h| fits(h.value())).map(|h| h.value().clone())
    }

    /// Reads all of a settled file into the store. Copies that no process has opened since `began` may be
    /// evicted for it. `progress` is told how many bytes of the file the copy has, and returns whether to
    /// continue. Waits for the backing.
    pub fn prefetch(
        &self,
        handle: &Handle,
        began: Instant,
        mut progress: impl FnMut(u64) -> bool,
    ) -> io::Result<Prefetched> {
        let (file, fd) = (&handle.file, handle.canonical.fd());
        let busy = || file.writers() > 0 || !file.is_settled() || self.turns(handle).is_some();
        if busy() {
            return Ok(Prefetched::Dirty);
        }
        let Some(version) = final_version(fd, &mut progress)? else {
            return Ok(Prefetched::Changed);
        };
        let copies = self.store().local_copies();
        if version.size == 0 || self.check_local_copy(file, fd) && copies.is_full(file.id()) {
            return Ok(Prefetched::Already);
        }
        let Some(copy) = copies.stage(file.id(), version) else {
            return Ok(Prefetched::Unusable);
        };
        // A dirty period that began before the copy was staged has not ended the copy, so this is checked again.
        if busy() {
            copies.drop_copy(&copy);
            return Ok(Prefetched::Dirty);
        }
        let mut buffer = vec![0; STEP.min(version.size) as usize];
        let (mut read, mut at) = (0, 0);
        while let Some(gap) = copy.next_gap(at) {
            let part = ByteRange::new(gap.start, gap.end.min(gap.start + STEP));
            let buf = &mut buffer[..part.len() as usize];
            if handle.canonical.read_at(buf, part.start)? < buf.len() {
                copies.drop_copy(&copy);
                return Ok(Prefetched::Changed);
            }
            read += part.len();
            at = part.end;
            if buf.iter().all(|b| *b == 0) {
                copies.put_zeros(&copy, part);
            } else {
                let bufs = [IoSlice::new(buf)];
                match copies.put(&copy, &bufs, part.start, Evict::UnusedSince(began)) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(NoRoom) => {
                        copies.drop_copy(&copy);
                        return Ok(Prefetched::NoRoom { read });
                    }
                }
            }
            if !progress(copy.bytes()) {
                copies.drop_copy(&copy);
                return Ok(Prefetched::Stopped);
            }
        }
        // Bytes that were read after a change belong to no version. A change after this check
        // will show in the version.
        if !self.check_local_copy(file, fd) || !copy.is_full() {
            copies.drop_copy(&copy);
            return Ok(match busy() {
                true => Prefetched::Dirty,
                false => Prefetched::Changed,
            });
        }
        copies.save(&copy);
        Ok(Prefetched::Kept { read })
    }
}

/// The version of the file, once every later change will show in it. `None` if the file changes without end,
/// or if the requesting client is gone.
fn final_version(
    fd: BorrowedFd<'_>,
    progress: &mut impl FnMut(u64) -> bool,
) -> io::Result<Option<Version>> {
    let mut seen: Option<(Version, Instant)> = None;
    for _ in 0..LOOKS {
        let now = version(fd)?;
        let since = match seen {
            Some((last, since)) if last == now => since,
            _ => Instant::now(),
        };
        seen = Some((now, since));
        if now.is_final(since.elapsed(), Timestamp::now()) {
            return Ok(Some(now));
        }
        if !progress(0) {
            return Ok(None);
        }
        std::thread::sleep(now.tick().min(Duration::from_millis(200)));
    }
    Ok(None)
}
