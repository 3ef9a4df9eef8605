//! Attributes: those of the backing, overlaid with what the store knows of a dirty file.
//!
//! Reading the attributes of a held descriptor needs no permission, so it is done without becoming the
//! caller. Changes are made as the caller, with one exception: when the kernel clears setuid or setgid bits
//! because a file was written or cut, it sends a chmod in the name of the writer, which need not own the
//! file. Such a chmod only clears bits, and is done as the owner.

use super::Overlay;
use crate::backing::canonical::seems_gone;
use crate::backing::sys::{self, Stat};
use crate::backing::{AsUser, Creds};
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::{Inode, NO_CAPS, NO_SETID};
use crate::types::{Attr, Caller, ROOT, SetAttr, SetTime, StatFs, Time};
use layout_index::policy::Absorb;
use layout_index::{DirtyStat, DiskFile, Exclusive, File, StoreError, Timestamp, Wait};
use std::io;
use std::sync::Arc;

/// Every file system supports files of this size.
const FAR: u64 = 1 << 40;

impl Overlay {
    pub fn getattr(&self, node: u64) -> Result<Attr> {
        self.attr(&*self.inode(node)?)
    }

    /// The drain may finish between a check of the backing and one of the store, and then neither shows what
    /// it wrote. So the store is checked before and after the backing, and if a dirty period has ended in
    /// between, the backing is read again.
    fn attr(&self, inode: &Inode) -> Result<Attr> {
        let _file = self.published(inode)?;
        loop {
            let was_dirty = self.dirty_stat(inode).is_some();
            let stat = self.strip_shown(inode, sys::stat(inode.fd())?)?;
            match self.dirty_stat(inode) {
                None if was_dirty => {}
                dirty => return Ok(shown(inode, &stat, dirty)),
            }
        }
    }

    /// Like `attr`, for a file that was identified by `stat` just now. The store was not checked before that,
    /// so the backing is asked again if a dirty period may have ended since: the store has an object for the
    /// file although it is clean (the drain may hold it), or the drain has finished some file (`drained`).
    pub(super) fn attr_of_found(&self, inode: &Inode, stat: &Stat, drained: bool) -> Result<Attr> {
        if !inode.is_file() {
            return Ok(combine(inode, stat, None));
        }
        let _file = self.published(inode)?;
        let stat = self.strip_shown(inode, *stat)?;
        match self.store().lookup(inode.id).map(|file| file.shown()) {
            None if !drained => Ok(shown(inode, &stat, None)),
            Some(Some(dirty)) => Ok(shown(inode, &stat, Some(dirty))),
            None | Some(None) => self.attr(inode),
        }
    }

    fn dirty_stat(&self, inode: &Inode) -> Option<DirtyStat> {
        if !inode.is_file() {
            return None;
        }
        self.store().lookup(inode.id)?.shown()
    }

    /// Refreshes a file that the store knows or that has something in the shared directory, so that its size is
    /// right although it may not be open here. The caller holds the result while it computes the attributes.
    fn published(&self, inode: &Inode) -> Result<Option<Arc<File>>> {
        let Some(others) = self.others.as_ref().filter(|_| inode.is_file()) else {
            return Ok(None);
        };
        let known = self.store().lookup(inode.id);
        let token = others.peers.shared_dir().change_token(inode.id);
        let there = token.map_err(|source| StoreError::SharedDir {
            file: inode.id,
            op: "looking at",
            source,
        })?;
        if known.is_none() && there.is_none() {
            return Ok(None);
        }
        let file = known.unwrap_or_else(|| self.store().file(inode.id));
        self.refresh(inode, &file, Wait::No)?;
        Ok(Some(file))
    }

    /// Subfiles belong to the owner of their file, and other nodes refuse subfiles of another owner. So
    /// before a file gets another owner, the data in its subfiles is moved to the canonical file.
    fn drain_published_for(&self, inode: &Inode, uid: u32) -> Result<()> {
        let others = self.others.as_ref().filter(|_| inode.is_file());
        if others.is_none() || sys::stat(inode.fd())?.uid == uid {
            return Ok(());
        }
        let file = self.store().file(inode.id);
        self.refresh(inode, &file, Wait::ForOthers)?;
        self.drain_published(&file)
    }

    /// Changes of size and time are made while no write is under way and no dirty period can begin or end:
    /// the drain sets both when it finishes, and would undo a change that it does not know of.
    pub fn setattr(
        &self,
        caller: &Caller,
        node: u64,
        fh: Option<u64>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let inode = self.inode(node)?;
        let creds = Creds::of(caller);
        if set.size.is_some() && !inode.is_file() {
            return Err(if inode.is_dir() {
                FsError::IsDirectory
            } else {
                FsError::Invalid("only regular files have a size to set")
            });
        }
        if let Some(uid) = set.uid {
            self.drain_published_for(&inode, uid)?;
        }
        if inode.is_file() && (set.size.is_some() || set.mtime.is_some()) {
            let file = self.store().file(inode.id);
            // A change of size by name is an open, a change and a close in one, so it waits for what was announced.
            let wait = match fh.is_none() && set.size.is_some() {
                true => Wait::ForOthers,
                false => Wait::No,
            };
            self.refresh(&inode, &file, wait)?;
            let coherent = set.size.is_some() && self.is_coherent(fh, &file);
            let turn = self.turn_of_all(&inode, &file, coherent)?;
            let exclusive = file.exclusive();
            let before = file.stat().map(|stat| stat.size);
            set_owner_and_mode(&inode, &creds, set)?;
            if let Some(size) = set.size {
                self.set_size(&inode, &exclusive, &creds, fh, size)?;
            }
            set_times(&inode, &creds, set)?;
            if let Some(mtime) = set.mtime {
                self.date(&inode, &exclusive, mtime)?;
            }
            drop(exclusive);
            if set.size == Some(0) || turn.is_some() {
                self.publish(&file)?;
            } else if fh.is_none() || set.mtime.is_some() {
                self.changed(&inode, &file)?;
            } else if set.size != before && fh.is_some_and(|fh| self.looks(fh)) {
                self.tell_size(&inode, &file)?;
            }
        } else {
            self.bytes_untouched(Some((inode.id, inode.fd())), || {
                set_owner_and_mode(&inode, &creds, set)?;
                set_times(&inode, &creds, set)
            })?;
        }
        inode.changed.forget();
        self.attr(&inode)
    }

    /// Decided by the handle, or if there is none by the file's current policy.
    fn is_coherent(&self, fh: Option<u64>, file: &File) -> bool {
        match fh.and_then(|fh| self.handles.get(&fh)) {
            Some(handle) => handle.coherent,
            None => self.absorb_of(file) == Absorb::Coherent,
        }
    }

    fn looks(&self, fh: u64) -> bool {
        self.handles.get(&fh).is_some_and(|handle| handle.looks)
    }

    fn set_size(
        &self,
        inode: &Inode,
        exclusive: &Exclusive<'_>,
        creds: &Creds,
        fh: Option<u64>,
        size: u64,
    ) -> Result<()> {
        // The kernel clears privileges itself only if it knows of them.
        let strip = || self.strip(inode, NO_CAPS | if creds.uid != 0 { NO_SETID } else { 0 });
        if let Some(fh) = fh {
            let handle = self.handle(fh)?;
            if handle.writable {
                strip()?;
                self.begin_to_resize(&handle, exclusive, size)?;
                return self.truncate_held(inode, exclusive, &handle.canonical, size);
            }
        }
        // The file is opened even if it is dirty: the backing decides whether the caller may write it.
        let fd = {
            let _as_caller = creds.enter()?;
            sys::reopen(inode.fd(), libc::O_WRONLY)?
        };
        strip()?;
        let canonical = AsUser::caller(fd, creds.clone());
        self.truncate_held(inode, exclusive, &canonical, size)
    }

    /// A job that sets the size of its file is about to write it, or has done so. The size goes to the log as
    /// the bytes do, and the backing gets it from the drain. (On a parallel file system it would take a lock
    /// away from every writer.) If the store accepts nothing, or the backing may refuse such a size, the size
    /// of the canonical file is set at once.
    fn begin_to_resize(&self, handle: &Handle, exclusive: &Exclusive<'_>, size: u64) -> Result<()> {
        let Handle { inode, file, .. } = handle;
        if !exclusive.is_clean() || !self.absorbs(handle) || inode.is_unlinked() || size > FAR {
            return Ok(());
        }
        self.inodes.keep_while(&inode.id, || true);
        match exclusive.begin(self.introduce(inode, handle.canonical.fd(), file)?) {
            Err(StoreError::Full | StoreError::Busy | StoreError::Failed { .. }) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Cuts or extends the file. If it is emptied, other nodes see that when this returns.
    pub(super) fn truncate(
        &self,
        inode: &Inode,
        file: &Arc<File>,
        canonical: &AsUser,
        size: u64,
    ) -> Result<()> {
        self.truncate_held(inode, &file.exclusive(), canonical, size)?;
        if size == 0 {
            self.publish(file)?;
        }
        Ok(())
    }

    /// Truncates in the log if the file is dirty, or if something is published that must be cut as well.
    fn truncate_held(
        &self,
        inode: &Inode,
        exclusive: &Exclusive<'_>,
        canonical: &AsUser,
        size: u64,
    ) -> Result<()> {
        if size > 0 && size > self.largest.of(canonical.fd()) {
            return Err(io::Error::from_raw_os_error(libc::EFBIG).into());
        }
        self.begin_over_published(inode, exclusive)?;
        match exclusive.truncate(size, Timestamp::now()) {
            Err(StoreError::Clean) => {
                let cuts = sys::stat(canonical.fd())?.size > size;
                let set = canonical.set_len(size);
                exclusive.file().forget_local_copy();
                set?;
                if self.others.is_some() {
                    if cuts {
                        canonical.sync_all()?;
                    }
                    exclusive.cut_synced();
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Records the time in the log if the file is dirty, or if something is published, which has a time of its own.
    /// Records the time that was asked for, because the drain may be changing what the backing shows.
    fn date(&self, inode: &Inode, exclusive: &Exclusive<'_>, mtime: SetTime) -> Result<()> {
        self.begin_over_published(inode, exclusive)?;
        let mtime = match mtime {
            SetTime::Now => Timestamp::now(),
            SetTime::At(time) => Timestamp(time.as_nanos()),
        };
        match exclusive.set_mtime(mtime) {
            Err(StoreError::Clean) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Published data lies over the canonical file, so a change begins a dirty period over that.
    pub(super) fn begin_over_published(
        &self,
        inode: &Inode,
        exclusive: &Exclusive<'_>,
    ) -> Result<()> {
        if exclusive.is_clean() && !exclusive.file().is_settled() {
            self.inodes.keep_while(&inode.id, || true);
            exclusive.begin_for_change(self.introduce(inode, inode.fd(), exclusive.file())?)?;
        }
        Ok(())
    }

    /// Clears what a write must not leave set: setuid and setgid if `kill_setid` (the writer has no right to
    /// keep them), file capabilities always. Remembers that none are left; privileges that another node sets
    /// after that are cleared by `strip_after_writes`.
    pub(super) fn strip_privileges(&self, inode: &Inode, kill_setid: bool) -> Result<()> {
        let wanted = NO_CAPS | if kill_setid { NO_SETID } else { 0 };
        inode.note_written(wanted);
        if inode.lacks(wanted) {
            return Ok(());
        }
        self.strip(inode, wanted)
    }

    /// Clears privileges that another node (or a program in the backing) has set before writes of this node.
    /// Called before the bytes of these writes can be read anywhere else, and at each close; privileges that
    /// are set after that are intended.
    pub(super) fn strip_after_writes(&self, inode: &Inode) -> Result<()> {
        let written = inode.take_written();
        if written == 0 {
            return Ok(());
        }
        match self.strip(inode, written) {
            Err(FsError::Io(e)) if seems_gone(&e) => Ok(()),
            other => other.inspect_err(|_| inode.note_written(written)),
        }
    }

    /// Such privileges are not shown here either together with the written bytes: clears them, and returns
    /// the attributes after that.
    fn strip_shown(&self, inode: &Inode, stat: Stat) -> Result<Stat> {
        if !inode.is_written() || without_setid(stat.mode).is_none() {
            return Ok(stat);
        }
        self.strip_after_writes(inode)?;
        Ok(sys::stat(inode.fd())?)
    }

    fn strip(&self, inode: &Inode, wanted: u8) -> Result<()> {
        let seen = inode.privilege_changes();
        let stat = sys::stat(inode.fd())?;
        let owner = Creds::owner(stat.uid, stat.gid);
        let mut changed = false;
        if wanted & NO_SETID != 0
            && let Some(mode) = without_setid(stat.mode)
        {
            let _as_owner = owner.enter()?;
            sys::chmod(inode.fd(), mode)?;
            changed = true;
        }
        // An ordinary user's daemon cannot remove capabilities; its write to the canonical file does.
        if crate::backing::creds::switches()
            && sys::getxattr(inode.fd(), CAPABILITY, &mut []).is_ok()
        {
            sys::removexattr(inode.fd(), CAPABILITY)?;
            changed = true;
        }
        inode.note_lack(wanted, seen);
        if changed && let Some(invalidate) = self.invalidate.get() {
            invalidate(inode.node);
        }
        Ok(())
    }

    /// The kernel sends this only where it does not check permissions itself.
    pub fn access(&self, caller: &Caller, node: u64, mask: i32) -> Result<()> {
        let inode = self.inode(node)?;
        let creds = Creds::of(caller);
        let _as_caller = creds.enter()?;
        Ok(sys::access(inode.fd(), mask)?)
    }

    pub fn statfs(&self) -> Result<StatFs> {
        Ok(self.backing.statfs()?)
    }
}

pub(super) const CAPABILITY: &std::ffi::CStr = c"security.capability";

fn set_owner_and_mode(inode: &Inode, creds: &Creds, set: &SetAttr) -> Result<()> {
    if set.uid.is_some() || set.gid.is_some() {
        {
            let _as_caller = creds.enter()?;
            sys::chown(inode.fd(), set.uid, set.gid)?;
        }
        inode.privileges_may_have_changed();
    }
    if let Some(mode) = set.mode {
        chmod(inode, creds, mode)?;
        inode.privileges_may_have_changed();
        // All writes of this node up to now came before this chmod.
        inode.take_written();
    }
    Ok(())
}

/// Sets the times in the backing, which decides whether the caller may.
fn set_times(inode: &Inode, creds: &Creds, set: &SetAttr) -> Result<()> {
    if set.atime.is_none() && set.mtime.is_none() {
        return Ok(());
    }
    let _as_caller = creds.enter()?;
    sys::utimens(inode.fd(), [timespec(set.atime), timespec(set.mtime)])?;
    Ok(())
}

fn chmod(inode: &Inode, creds: &Creds, mode: u32) -> Result<()> {
    let tried = {
        let _as_caller = creds.enter()?;
        sys::chmod(inode.fd(), mode)
    };
    match tried {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            let stat = sys::stat(inode.fd())?;
            let taken = (stat.mode & 0o7777) ^ (mode & 0o7777);
            let only_setid = taken & !(libc::S_ISUID | libc::S_ISGID) == 0;
            if taken == 0 || !only_setid || mode & taken != 0 {
                return Err(e.into());
            }
            let owner = Creds::owner(stat.uid, stat.gid);
            let _as_owner = owner.enter()?;
            Ok(sys::chmod(inode.fd(), mode)?)
        }
        other => Ok(other?),
    }
}

/// The mode without setuid and (on group-executable files) setgid; `None` if neither is set.
fn without_setid(mode: u32) -> Option<u32> {
    let mut drop = mode & libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 {
        drop |= mode & libc::S_ISGID;
    }
    (drop != 0).then_some(mode & !drop & 0o7777)
}

fn timespec(time: Option<SetTime>) -> libc::timespec {
    let (tv_sec, tv_nsec) = match time {
        None => (0, libc::UTIME_OMIT),
        Some(SetTime::Now) => (0, libc::UTIME_NOW),
        Some(SetTime::At(t)) => (t.sec, t.nsec.into()),
    };
    libc::timespec { tv_sec, tv_nsec }
}

fn shown(inode: &Inode, stat: &Stat, dirty: Option<DirtyStat>) -> Attr {
    let is_dirty = dirty.is_some();
    let attr = combine(inode, stat, dirty);
    inode.kernel_size.told(attr.size);
    inode.changed.steady(attr, stat.ctime, is_dirty)
}

fn combine(inode: &Inode, stat: &Stat, dirty: Option<DirtyStat>) -> Attr {
    let ino = if inode.node == ROOT {
        stat.ino
    } else {
        inode.node
    };
    let mut attr = Attr {
        ino,
        size: stat.size,
        blocks: stat.blocks,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        mode: stat.mode,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        blksize: stat.blksize,
    };
    if let Some(dirty) = dirty {
        overlay_dirty(&mut attr, &dirty);
    }
    attr
}

/// Replaces size and times by those of the store. Blocks are what the file will take once it is drained: at
/// least what it takes now, and at most all of it.
fn overlay_dirty(attr: &mut Attr, dirty: &DirtyStat) {
    let whole = dirty.size.div_ceil(4096) * 8;
    let with_log = attr.blocks + dirty.undrained.div_ceil(512);
    attr.blocks = attr.blocks.max(with_log.min(whole));
    attr.size = dirty.size;
    let mtime = Time::from_nanos(dirty.mtime.0);
    if mtime != attr.mtime {
        // The file was written since the backing's time was last set. (If the times are equal, the time was
        // set by utimens, whose ctime is the backing's own.)
        attr.ctime = attr.ctime.max(mtime);
        attr.mtime = mtime;
    }
}

#[cfg(test)]
mod tests;
