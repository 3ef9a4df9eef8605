//! Reading and writing.
//!
//! # Order of a write
//! Privileges are stripped first, then the bytes go to the log, then the request is answered: a crash can
//! leave a file without its setuid bit and without the bytes, but never with both. The first write of a clean
//! file begins a dirty period with the canonical file's size at that moment, under `exclusive`, and keeps the
//! inode known from then on, so that the drain finds it.
//!
//! # Reads between writes
//! Jobs share an open file through handles that read and write: MPI libraries open every file so. They rely
//! on a read that comes after another node's fsync (and a barrier) to see what that fsync published, and on
//! the reader's side they make no call that a file system could take as a sync point. So each read through
//! such a handle refreshes first ([`Handle::looks`]): this takes a stat of the file's place in the shared
//! directory, and one of the canonical file if this node has unpublished data of the file. It does not wait
//! for data that is only announced. Handles that only read refresh when they are opened.
//!
//! # Full or broken store
//! The write goes through to the canonical file, as the opener. The store keeps it in order with what the log
//! holds; the job sees the backing's own errors and no others.

use super::Overlay;
use crate::backing::ofd::LockKind;
use crate::backing::{identity, sys};
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::{Inode, NO_CAPS, NO_SETID};
use crate::recent::Reading;
use crate::requests::executor;
use crate::types::Written;
use layout_index::{ByteRange, File, Intro, StoreError, Timestamp, Wait};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

/// First and longest pause before another attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// A read of more pieces than this takes a long time, so it runs where it delays no other request.
const FEW_PIECES: usize = 256;
const PIECES_AT_A_TIME: usize = 4096;

/// How often a read is planned again because a subfile was removed meanwhile.
const LOOKS: usize = 8;

/// How the bytes of a write request are to be written.
#[derive(Clone, Copy, Debug)]
pub struct WriteMode {
    /// The writer may not keep the file's setuid bits.
    pub kill_setid: bool,
    /// The handle was opened with O_DSYNC or O_SYNC.
    pub durable: bool,
    /// The handle was opened with O_APPEND, and these bytes are no page of a mapping.
    pub append: bool,
}

/// A thread that receives requests must not wait, so `read_at_once` and `write_at_once` answer a request only if they
/// need not. They drop the reference to the handle before the answer is sent: after that the kernel may release the
/// handle, and dropping the last reference closes the file, which may wait.
impl Overlay {
    pub fn read_at_once<'b>(
        &self,
        fh: u64,
        offset: u64,
        buf: &'b mut [u8],
        for_mapping: bool,
    ) -> Option<Result<&'b [u8]>> {
        let read = self.handle(fh).and_then(|handle| {
            if for_mapping {
                self.page_wanted(&handle);
            }
            self.try_read(&handle, offset, buf)
        });
        Some(read.transpose()?.map(|len| &buf[..len]))
    }

    /// May wait, as [`read`](Self::read) may.
    pub fn read_to_vec(&self, fh: u64, offset: u64, size: usize) -> Result<Vec<u8>> {
        let handle = self.handle(fh)?;
        let mut bytes = vec![0; size];
        let len = self.read(&handle, offset, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    pub fn write_at_once(
        &self,
        fh: u64,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Option<Result<Written>> {
        let handle = match self.handle(fh) {
            Ok(handle) => handle,
            Err(e) => return Some(Err(e)),
        };
        let appends = mode.append && self.finds_end(&handle);
        let absorbed =
            !mode.durable && !appends && self.try_write(&handle, offset, data, mode.kill_setid);
        absorbed.then(|| Ok(written(&handle, offset, data)))
    }

    /// May wait, as [`write`](Self::write) and [`append`](Self::append) may.
    pub fn write_in_mode(
        &self,
        fh: u64,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Written> {
        let handle = self.handle(fh)?;
        match mode.append && self.finds_end(&handle) {
            true => self.append(&handle, data, mode.kill_setid, mode.durable)?,
            false => self.write(&handle, offset, data, mode.kill_setid, mode.durable)?,
        }
        Ok(written(&handle, offset, data))
    }

    /// The fast path: true when the bytes are in the log. Never waits, allocates or logs; the caller calls
    /// `write` if this returns false.
    pub fn try_write(&self, handle: &Handle, offset: u64, data: &[u8], kill_setid: bool) -> bool {
        self.absorbs_at_once(handle, kill_setid)
            && may_have(handle, offset, data.len())
            && !self.may_be_unchanged(handle, offset, data)
            && handle.file.try_write(handle.fh, offset, data).is_ok()
    }

    /// True if nothing but the log itself can make a write wait.
    pub(super) fn absorbs_at_once(&self, handle: &Handle, kill_setid: bool) -> bool {
        let lack = if kill_setid {
            NO_CAPS | NO_SETID
        } else {
            NO_CAPS
        };
        handle.inode.note_written(lack);
        self.absorbs(handle)
            && !handle.coherent
            && handle.inode.lacks(lack)
            && self.write_delay(handle).is_zero()
    }

    /// Writes all of `data`. May wait for overlapping requests, a full store, or the backing. `durable` is
    /// for handles that were opened with O_DSYNC or O_SYNC.
    pub fn write(
        &self,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        kill_setid: bool,
        durable: bool,
    ) -> Result<()> {
        if !handle.writable {
            return Err(FsError::BadHandle(handle.fh));
        }
        if !may_have(handle, offset, data.len()) {
            return Err(std::io::Error::from_raw_os_error(libc::EFBIG).into());
        }
        self.strip_privileges(&handle.inode, kill_setid)?;
        if let Some(others) = self.turns(handle) {
            let range = ByteRange::new(offset, offset + data.len() as u64);
            let (inode, file) = (&handle.inode, &handle.file);
            let _turn = self.take_turn(others, inode, file, range, LockKind::Exclusive)?;
            self.absorb(handle, offset, data)?;
            self.publish(&handle.file)?;
        } else if self.may_be_unchanged(handle, offset, data) {
            self.absorb_changes(handle, offset, data)?;
        } else if self.absorbs(handle) {
            self.absorb(handle, offset, data)?;
        } else {
            self.write_through(handle, offset, data)?;
        }
        if durable {
            self.fsync(handle.fh, true)?;
        }
        Ok(())
    }

    /// Writes to the canonical file. Published data lies over it, and must be drained into it first.
    pub(super) fn write_through(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        let mut patience = Patience::new(self.patience(&handle.file));
        loop {
            if handle.file.has_published() {
                self.drain_published(&handle.file)?;
            }
            match handle.file.write_through(&handle.canonical, offset, data) {
                Err(StoreError::NotAlone) => patience.pause()?,
                other => return Ok(other?),
            }
        }
    }

    pub(super) fn absorbs(&self, handle: &Handle) -> bool {
        handle.absorbs && handle.writable && handle.passthrough.is_none()
    }

    pub(super) fn absorb(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.absorb_by(handle, || handle.file.write(handle.fh, offset, data))?;
        match written {
            Some(()) => Ok(()),
            None => self.write_through(handle, offset, data),
        }
    }

    /// Calls `write` while the file has a dirty period, and begins one if necessary. `None` if
    /// the store accepts nothing.
    pub(super) fn absorb_by<T>(
        &self,
        handle: &Handle,
        write: impl Fn() -> layout_index::Result<T>,
    ) -> Result<Option<T>> {
        let delay = self.write_delay(handle);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let mut patience = Patience::new(self.patience(&handle.file));
        loop {
            match write() {
                Ok(done) => return Ok(Some(done)),
                // This is the first write, or the drain has just finished: begin a dirty period.
                Err(StoreError::Clean) => match self.begin(handle) {
                    Ok(()) => patience.is_left()?,
                    Err(FsError::Store(StoreError::Busy | StoreError::Clean)) => {
                        patience.pause()?
                    }
                    Err(FsError::Store(StoreError::Full | StoreError::Failed { .. })) => {
                        return Ok(None);
                    }
                    Err(e) => return Err(e),
                },
                Err(StoreError::Busy) => patience.pause()?,
                Err(StoreError::Full | StoreError::Failed { .. }) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn write_delay(&self, handle: &Handle) -> Duration {
        self.store().write_delay(&handle.file, handle.opener.uid)
    }

    /// Begins a dirty period. The inode is kept first, because the drain may ask for it at once.
    fn begin(&self, handle: &Handle) -> Result<()> {
        let Handle { inode, file, .. } = handle;
        self.inodes.keep_while(&inode.id, || true);
        {
            let exclusive = file.exclusive();
            if !exclusive.is_clean() {
                return Ok(());
            }
            exclusive.begin(self.introduce(inode, handle.canonical.fd(), file)?)?;
        }
        if inode.is_unlinked() {
            file.mark_unlinked()?;
            self.inodes.keep_while(&inode.id, || false);
        }
        Ok(())
    }

    /// Describes the file as it is when its dirty period begins.
    pub(super) fn introduce(
        &self,
        inode: &Inode,
        canonical: BorrowedFd<'_>,
        file: &File,
    ) -> Result<Intro> {
        let fd = inode.fd();
        let stat = sys::stat(canonical)?;
        let shown = file.shown();
        let path = self.backing.relative_path(fd)?.unwrap_or_default();
        let below = Timestamp(stat.mtime.as_nanos());
        Ok(Intro {
            size: shown.map_or(stat.size, |shown| shown.size),
            mtime: shown.map_or(below, |shown| shown.mtime),
            uid: stat.uid,
            gid: stat.gid,
            handle: identity::handle(fd),
            path: path.into_os_string().into_vec(),
        })
    }

    /// Reads only if that needs nothing but the log, or a local copy that has all of the range; after `None`
    /// the caller must call `read`.
    pub fn try_read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<Option<usize>> {
        let waits = handle.coherent || handle.looks;
        if !handle.readable || handle.passthrough.is_some() || waits {
            return Ok(None);
        }
        let range = range_of(offset, buf)?;
        match handle.file.plan_upto(range, FEW_PIECES) {
            Ok(plan) if plan.range.end < range.end.min(plan.size) => Ok(None),
            Ok(plan) if plan.is_local() => {
                let len = plan.range.len() as usize;
                handle.file.read(&plan, &mut buf[..len], None)?;
                Ok(Some(len))
            }
            Ok(_) => Ok(None),
            Err(StoreError::Clean) => Ok(self.try_read_local_copy(handle, offset, buf)?),
            Err(e) => Err(e.into()),
        }
    }

    /// Fills `buf` up to the end of the file and returns how many bytes it read. May wait for the backing.
    pub fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if !handle.readable {
            return Err(FsError::BadHandle(handle.fh));
        }
        let range = range_of(offset, buf)?;
        let (inode, file) = (&handle.inode, &handle.file);
        let _turn = match self.turns(handle) {
            Some(others) => Some(self.take_turn(others, inode, file, range, LockKind::Shared)?),
            None => None,
        };
        if !handle.looks {
            return self.read_range(handle, range, buf);
        }
        self.refresh_for_read(inode, file)?;
        if file.local_copy_size().is_some() {
            self.check_local_copy(file, handle.canonical.fd());
        }
        let reading = Reading::begin(file, range);
        let len = self.read_range(handle, range, buf)?;
        handle
            .recent
            .remember(reading, offset, &buf[..len], range.end);
        Ok(len)
    }

    fn read_range(&self, handle: &Handle, range: ByteRange, buf: &mut [u8]) -> Result<usize> {
        for _ in 0..LOOKS {
            match read_planned(handle, range, buf) {
                Err(StoreError::Clean) => return Ok(self.read_clean(handle, range.start, buf)?),
                // The subfile was drained and removed since the plan was made: a new plan finds the bytes.
                Err(StoreError::Vanished { .. }) => {
                    self.refresh(&handle.inode, &handle.file, Wait::No)?;
                }
                other => return Ok(other?),
            }
        }
        Ok(read_planned(handle, range, buf)?)
    }
}

/// Reads in parts if there are very many pieces: making a plan holds the file's lock, for which event loops wait.
fn read_planned(handle: &Handle, range: ByteRange, buf: &mut [u8]) -> layout_index::Result<usize> {
    let mut done = 0;
    loop {
        let rest = ByteRange::new(range.start + done as u64, range.end);
        let plan = handle.file.plan_upto(rest, PIECES_AT_A_TIME)?;
        let len = plan.range.len() as usize;
        let part = &mut buf[done..done + len];
        handle.file.read(&plan, part, Some(&handle.canonical))?;
        done += len;
        if len == 0 || plan.range.end >= range.end.min(plan.size) {
            return Ok(done);
        }
    }
}

fn written(handle: &Handle, offset: u64, data: &[u8]) -> Written {
    let len = data.len() as u64;
    handle.inode.kernel_size.written(offset.saturating_add(len));
    Written(len)
}

/// True if the backing can have a file of that length.
pub(super) fn may_have(handle: &Handle, offset: u64, len: usize) -> bool {
    ByteRange::at(offset, len as u64).is_some_and(|range| range.end <= handle.largest)
}

fn range_of(offset: u64, buf: &[u8]) -> Result<ByteRange> {
    ByteRange::at(offset, buf.len() as u64)
        .ok_or(FsError::Invalid("the range ends past the largest offset"))
}

/// How long a request repeats an attempt that publications or drains of the same file have prevented.
struct Patience {
    deadline: Instant,
    pause: Duration,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self {
            deadline: Instant::now() + limit,
            pause: FIRST_PAUSE,
        }
    }

    fn is_left(&self) -> Result<()> {
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(FsError::Unsettled),
        }
    }

    fn pause(&mut self) -> Result<()> {
        self.is_left()?;
        executor::sleep(self.pause)?;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
