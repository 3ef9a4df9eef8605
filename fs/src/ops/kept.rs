//! Kept copies: reading drained files from the node's own disk, and reading files into it.
//!
//! # Consistency
//! A copy is looked at at every sync point of a handle (open, lock, fsync), after what other nodes
//! have published: one `fstat` of the canonical file, and only if there is a copy. If that is another
//! version, the copy goes. So a copy never shows older bytes than the canonical file would have
//! shown at the last sync point.
//!
//! # No passthrough
//! A file that has a copy gets direct handles. The kernel could read the copy by itself, but it has
//! one file behind each inode until all handles are closed: then a writer would write to the copy,
//! its shared mappings would, and no later open could show a newer version
//! (`docs/decisions/0011-kept-copies.md`).
//!
//! # Who may read a file into the store
//! Whoever has opened it for reading through the mount: the backing has agreed to that open, as the
//! caller, and the bytes are read through its descriptor.

use super::Overlay;
use crate::backing::sys;
use crate::handle::Handle;
use layout_index::kept::{Evict, Moment, NoRoom};
use layout_index::policy::Absorb;
use layout_index::{ByteRange, DiskFile, File, FileId, Timestamp, Version};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Read at once.
const STEP: u64 = 4 << 20;
/// How often a file is looked at that was changed just now.
const LOOKS: usize = 100;

/// How reading a file into the store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetched {
    /// All of it is kept; so many bytes were read.
    Kept { read: u64 },
    /// It was kept before.
    Already,
    /// It has undrained data or is open for writing.
    Dirty,
    /// It changed meanwhile.
    Changed,
    /// The store has no room for the rest.
    NoRoom { read: u64 },
    /// The store does not take copies: it fails, or is being closed.
    Unusable,
    /// Whoever asked is gone.
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
    /// A sync point: whether the copy of `file`, if any, is what `canonical` is now.
    pub(super) fn check_kept(&self, file: &File, canonical: BorrowedFd<'_>) -> bool {
        self.absorb_of(file) != Absorb::Coherent && file.check_kept(|| version(canonical))
    }

    /// A clean file's bytes, as far as its copy has all of them. Waits for no other machine.
    pub(super) fn try_read_kept(
        &self,
        handle: &Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> io::Result<Option<usize>> {
        handle.file.read_kept(buf, offset, None)
    }

    /// A clean file's bytes: from its copy, and what that has not from the canonical file.
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
        match handle.file.read_kept(buf, offset, Some(canonical))? {
            Some(n) => Ok(n),
            // Whether the file has grown is asked rather than read.
            None if handle.file.kept_size().is_some_and(|size| offset >= size)
                && self.check_kept(&handle.file, handle.canonical.fd()) =>
            {
                Ok(0)
            }
            None => canonical.read_at(buf, offset),
        }
    }

    /// Does something to a file that changes its times and not its bytes, and lets its copy live.
    pub(super) fn bytes_untouched<T>(
        &self,
        file: Option<(FileId, BorrowedFd<'_>)>,
        change: impl FnOnce() -> T,
    ) -> T {
        let file = file.filter(|(id, _)| self.store.kept().has(*id));
        let before = file.and_then(|(_, fd)| version(fd).ok());
        let done = change();
        if let (Some((id, fd)), Some(before)) = (file, before)
            && let Ok(after) = version(fd)
        {
            self.store.kept().renew(id, before, after);
        }
        done
    }

    /// The handle of `node` that process `pid` of user `uid` has open for reading; of anybody for
    /// those who may read everything.
    pub fn reading_handle(&self, node: u64, by: Option<(u32, u32)>) -> Option<Arc<Handle>> {
        let fits = |h: &Handle| {
            let (uid, pid) = (h.opener.uid, h.opener.pid);
            h.inode.node == node && h.readable && by.is_none_or(|by| by == (uid, pid))
        };
        let mut handles = self.handles.iter();
        handles.find(|h| fits(h.value())).map(|h| h.value().clone())
    }

    /// Reads all of a settled file into the store. Copies that nobody has opened since `began` may
    /// go for it. `progress` hears how many bytes of the file are kept, and says whether to go on.
    /// Waits for the backing.
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
        let kept = self.store().kept();
        if version.size == 0 || self.check_kept(file, fd) && kept.is_full(file.id()) {
            return Ok(Prefetched::Already);
        }
        let Some(copy) = kept.stage(file.id(), version) else {
            return Ok(Prefetched::Unusable);
        };
        // A life that began before the copy did has not ended it.
        if busy() {
            kept.drop_copy(&copy);
            return Ok(Prefetched::Dirty);
        }
        let mut buffer = vec![0; STEP.min(version.size) as usize];
        let (mut read, mut at) = (0, 0);
        while let Some(gap) = copy.next_gap(at) {
            let part = ByteRange::new(gap.start, gap.end.min(gap.start + STEP));
            let buf = &mut buffer[..part.len() as usize];
            if handle.canonical.read_at(buf, part.start)? < buf.len() {
                kept.drop_copy(&copy);
                return Ok(Prefetched::Changed);
            }
            read += part.len();
            at = part.end;
            if buf.iter().all(|b| *b == 0) {
                kept.put_zeros(&copy, part);
            } else {
                let bufs = [IoSlice::new(buf)];
                match kept.put(&copy, &bufs, part.start, Evict::UnusedSince(began)) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(NoRoom) => {
                        kept.drop_copy(&copy);
                        return Ok(Prefetched::NoRoom { read });
                    }
                }
            }
            if !progress(copy.bytes()) {
                kept.drop_copy(&copy);
                return Ok(Prefetched::Stopped);
            }
        }
        // What was read after a change is of no version. Those that came later show.
        if !self.check_kept(file, fd) || !copy.is_full() {
            kept.drop_copy(&copy);
            return Ok(match busy() {
                true => Prefetched::Dirty,
                false => Prefetched::Changed,
            });
        }
        kept.save(&copy);
        Ok(Prefetched::Kept { read })
    }
}

/// The version of the file, once it is one that every later change will show in. `None` if it
/// changes without end, or nobody wants it any more.
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
