//! Reading and writing.
//!
//! # Order of a write
//! Privileges are stripped first, then the bytes go to the log, then the reply: a crash can leave a
//! file without its setuid bit and without the bytes, never the other way round. A clean file's
//! first write begins its dirty life with the canonical file's size at that moment, under
//! `exclusive`, and keeps the inode known from then on, so that the drain finds it.
//!
//! # Reads between writes
//! A handle that reads and writes is how jobs share a file while it is open: MPI libraries open
//! everything so. They count on a read that comes after another node's fsync (and a barrier) seeing
//! what that published, and call nothing that would tell a file system so on the reader's side.
//! So each read through such a handle looks first ([`Handle::looks`]): a stat of the file's place in the
//! shared directory, and one of the canonical file if something of the file is unpublished here.
//! It waits for nothing that is only announced. Handles that only read look when they are opened.
//!
//! # Full or broken store
//! The write goes through to the canonical file, as the opener. The store orders that with what
//! the log holds; the job sees the backing's own errors and no others.

use super::Overlay;
use crate::backing::ofd::LockKind;
use crate::backing::{identity, sys};
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::{Inode, NO_CAPS, NO_SETID};
use crate::places;
use crate::recent::Reading;
use layout_index::{ByteRange, File, Intro, StoreError, Timestamp, Wait};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

/// First and longest pause before something is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// A read of more pieces than this takes its time, and takes it where that holds up no other request.
const FEW_PIECES: usize = 256;
const PIECES_AT_A_TIME: usize = 4096;

/// How often a read is planned again because a subfile went away under it.
const LOOKS: usize = 8;

impl Overlay {
    /// The fast path: true when the bytes are in the log. Never waits, allocates or logs; whatever
    /// is in the way, `write` deals with.
    pub fn try_write(&self, handle: &Handle, offset: u64, data: &[u8], kill_setid: bool) -> bool {
        self.absorbs_at_once(handle, kill_setid)
            && may_have(handle, offset, data.len())
            && !self.may_be_unchanged(handle, offset, data)
            && handle.file.try_write(handle.fh, offset, data).is_ok()
    }

    /// Nothing but the log itself can make a write wait.
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

    /// Writes all of `data`. May wait: for overlapping requests, a full store, the backing.
    /// `durable` is for handles opened with O_DSYNC or O_SYNC.
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

    /// What is published lies over the canonical file, and must be in it first.
    pub(super) fn write_through(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        let mut patience = Patience::new(self.patience(&handle.file));
        loop {
            if !handle.file.published_view().is_empty() {
                self.settle(&handle.file)?;
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

    /// Does `write` to the file while it has a dirty life. `None` if the store takes nothing.
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
                // The first write, or the drain finished just now: begin again.
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

    /// Begins a dirty life. The inode is kept first: the drain may ask for it at once.
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

    /// The file as it is when its dirty life begins.
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

    /// Reads only if that needs nothing but the log; `None` says that `read` must be called.
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
            Err(StoreError::Clean) => Ok(self.try_read_kept(handle, offset, buf)?),
            Err(e) => Err(e.into()),
        }
    }

    /// Fills `buf` up to the end of the file and says how far. May wait for the backing.
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
        match self.refresh(inode, file, Wait::No) {
            // What was seen last is whole, if not the newest.
            Err(FsError::Store(StoreError::Restless(_))) if file.has_looked() => {}
            other => other?,
        }
        if file.kept_size().is_some() {
            self.check_kept(file, handle.canonical.fd());
        }
        let reading = Reading::begin(file, range);
        let len = self.read_range(handle, range, buf)?;
        handle.recent.keep(reading, offset, &buf[..len], range.end);
        Ok(len)
    }

    fn read_range(&self, handle: &Handle, range: ByteRange, buf: &mut [u8]) -> Result<usize> {
        for _ in 0..LOOKS {
            match read_planned(handle, range, buf) {
                Err(StoreError::Clean) => return Ok(self.read_clean(handle, range.start, buf)?),
                // Drained and removed since the plan was made: another plan says where to.
                Err(StoreError::Vanished { .. }) => {
                    self.refresh(&handle.inode, &handle.file, Wait::No)?;
                }
                other => return Ok(other?),
            }
        }
        Ok(read_planned(handle, range, buf)?)
    }
}

/// In parts where there are very many pieces: a plan holds the file's lock, which event loops wait for.
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

/// The file system below can have a file of that length.
pub(super) fn may_have(handle: &Handle, offset: u64, len: usize) -> bool {
    ByteRange::at(offset, len as u64).is_some_and(|range| range.end <= handle.largest)
}

fn range_of(offset: u64, buf: &[u8]) -> Result<ByteRange> {
    ByteRange::at(offset, buf.len() as u64)
        .ok_or(FsError::Invalid("the range ends past the largest offset"))
}

/// How long a request tries again what publications and drains of the same file got in the way of.
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
        places::pause(self.pause)?;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
