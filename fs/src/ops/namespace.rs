//! Names, which are in the backing and nowhere else.
//!
//! Removing the last name of a file with undrained data cancels that data, but only after the last handle and
//! the kernel's last lookup are gone: until then an open that was under way when the name was removed may
//! still arrive, and must find the bytes.

use super::removals::Removal;
use super::{EntryAt, Overlay, Unreferenced};
use crate::backing::canonical::seems_gone;
use crate::backing::creds::with_umask;
use crate::backing::identity::Identified;
use crate::backing::{Creds, sys};
use crate::errno::{FsError, Result};
use crate::inode::Inode;
use crate::types::{Caller, Entry, Name};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Maximum number of nested directories, all of them removed and made again, that `successor` goes through.
const DEEPEST: usize = 64;

/// An entry that is about to lose a name.
struct Victim<'a> {
    fd: OwnedFd,
    it: Identified,
    removal: Removal<'a>,
}

impl Overlay {
    pub fn lookup(&self, caller: &Caller, parent: u64, name: &OsStr) -> Result<Entry> {
        match name.as_bytes() {
            b"." => return self.lookup_self(parent, caller.uid),
            b".." => return self.lookup_parent(parent, caller.uid),
            _ => {}
        }
        let name = Name::parse(name)?;
        if name.is_reserved() {
            return Err(FsError::NotFound);
        }
        let dir = self.directory(parent)?;
        let creds = Creds::of(caller);
        let found = {
            let _as_caller = creds.enter()?;
            sys::open_path(dir.fd(), name.as_c())
        };
        let found = match found {
            Err(e) if seems_gone(&e) && self.is_gone_elsewhere(&dir) => {
                let dir = self.successor(&creds, &dir, 0)?;
                let _as_caller = creds.enter()?;
                sys::open_path(dir.as_fd(), name.as_c())?
            }
            other => other?,
        };
        Ok(self.admit(found, &dir, name.as_c(), caller.uid)?.1)
    }

    /// Another node has removed this directory: returns the directory that has its name now. A lookup then
    /// answers with what is in that directory. ESTALE would instead fail calls that make a name: the kernel
    /// looks for a directory again if a change fails, but not if the lookup before it fails.
    fn successor(&self, creds: &Creds, gone: &Inode, depth: usize) -> Result<OwnedFd> {
        let place = self.inodes.place_of(gone.node).ok_or(FsError::NotFound)?;
        let parent = self.inode(place.parent)?;
        if depth > DEEPEST {
            return Err(FsError::NotFound);
        }
        let above = match self.is_gone_elsewhere(&parent) {
            true => Some(self.successor(creds, &parent, depth + 1)?),
            false => None,
        };
        let _as_caller = creds.enter()?;
        let above = above.as_ref().map_or(parent.fd(), |fd| fd.as_fd());
        let found = sys::open_path(above, &place.name)?;
        match sys::stat(found.as_fd())?.is_dir() {
            true => Ok(found),
            false => Err(FsError::NotFound),
        }
    }

    /// Makes the name as the caller, and looks it up.
    fn make(
        &self,
        at: EntryAt,
        make: impl FnOnce(&Inode, &CStr) -> io::Result<()>,
    ) -> Result<Entry> {
        let EntryAt { dir, name, creds } = at;
        self.need_room(creds.uid)?;
        let made = {
            let _as_caller = creds.enter()?;
            make(&dir, name.as_c()).and_then(|()| sys::open_path(dir.fd(), name.as_c()))
        };
        let made = self.answer_in(&dir, made)?;
        Ok(self.admit(made, &dir, name.as_c(), creds.uid)?.1)
    }

    pub fn mkdir(
        &self,
        caller: &Caller,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
    ) -> Result<Entry> {
        self.make(self.entry_at(caller, parent, name)?, |dir, name| {
            with_umask(umask, mode & 0o7777, |mode| {
                sys::mkdir(dir.fd(), name, mode)
            })
        })
    }

    /// Makes regular files, FIFOs, sockets and devices with the caller's rights. The daemon never opens the
    /// last three kinds; the kernel does, on the mount.
    #[allow(clippy::too_many_arguments)]
    pub fn mknod(
        &self,
        caller: &Caller,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u64,
    ) -> Result<Entry> {
        let at = self.entry_at(caller, parent, name)?;
        let (dir, uid) = (at.dir.clone(), at.creds.uid);
        let entry = self.make(at, |dir, name| {
            with_umask(umask, mode, |mode| sys::mknod(dir.fd(), name, mode, rdev))
        })?;
        if let Some(inode) = self.inodes.get(entry.attr.ino).filter(|i| i.is_file()) {
            self.inherit(&dir, inode.fd(), uid);
        }
        Ok(entry)
    }

    pub fn symlink(
        &self,
        caller: &Caller,
        parent: u64,
        name: &OsStr,
        target: &[u8],
    ) -> Result<Entry> {
        let target = CString::new(target)
            .map_err(|_| FsError::Invalid("a link's target must not hold a zero byte"))?;
        self.make(self.entry_at(caller, parent, name)?, |dir, name| {
            sys::symlink(&target, dir.fd(), name)
        })
    }

    pub fn readlink(&self, caller: &Caller, node: u64) -> Result<Vec<u8>> {
        let inode = self.inode(node)?;
        let creds = Creds::of(caller);
        let _as_caller = creds.enter()?;
        Ok(sys::readlink(inode.fd())?)
    }

    pub fn link(&self, caller: &Caller, node: u64, parent: u64, name: &OsStr) -> Result<Entry> {
        let inode = self.inode(node)?;
        self.make(self.entry_at(caller, parent, name)?, |dir, name| {
            let file = Some((inode.id, inode.fd()));
            self.bytes_untouched(file, || sys::link(inode.fd(), dir.fd(), name))
        })
    }

    pub fn unlink(&self, caller: &Caller, parent: u64, name: &OsStr) -> Result<()> {
        self.remove(self.entry_at(caller, parent, name)?, 0)
    }

    pub fn rmdir(&self, caller: &Caller, parent: u64, name: &OsStr) -> Result<()> {
        self.remove(self.entry_at(caller, parent, name)?, libc::AT_REMOVEDIR)
    }

    fn remove(&self, at: EntryAt, flags: i32) -> Result<()> {
        let EntryAt { dir, name, creds } = at;
        let (victim, removed) = {
            let _as_caller = creds.enter()?;
            let victim = self.victim(&dir, &name)?;
            (victim, sys::unlink(dir.fd(), name.as_c(), flags))
        };
        self.answer_in(&dir, removed)?;
        self.name_gone(victim);
        Ok(())
    }

    /// `flags` are those of renameat2(2); the backing decides which it supports.
    #[allow(clippy::too_many_arguments)]
    pub fn rename(
        &self,
        caller: &Caller,
        parent: u64,
        name: &OsStr,
        newparent: u64,
        newname: &OsStr,
        flags: u32,
    ) -> Result<()> {
        let from = self.entry_at(caller, parent, name)?;
        let to_name = Name::parse(newname)?.allowed()?;
        let to = self.directory(newparent)?;
        let (victim, renamed) = {
            let _as_caller = from.creds.enter()?;
            let replaces = flags & (libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) == 0;
            let victim = if replaces {
                self.victim(&to, &to_name)?
            } else {
                None
            };
            let moved = match self.store.local_copies().is_empty() {
                true => None,
                false => self.victim(&from.dir, &from.name)?,
            };
            let moved = moved.as_ref().map(|v| (v.it.id, v.fd.as_fd()));
            let renamed = self.bytes_untouched(moved, || {
                sys::rename(
                    from.dir.fd(),
                    from.name.as_c(),
                    to.fd(),
                    to_name.as_c(),
                    flags,
                )
            });
            (victim, renamed)
        };
        let renamed = self.answer_in(&from.dir, renamed);
        renamed.map_err(|e| match e.errno() {
            libc::ENOENT if self.is_gone_elsewhere(&to) => FsError::Stale(to.node),
            _ => e,
        })?;
        self.name_gone(victim);
        Ok(())
    }

    /// Converts the backing's answer about a name in `dir`. The kernel may still have the name of a directory
    /// cached that another node has removed and made again: ESTALE makes it look for the new one.
    pub(super) fn answer_in<T>(&self, dir: &Inode, answer: io::Result<T>) -> Result<T> {
        match answer {
            Err(e) if seems_gone(&e) && self.is_gone_elsewhere(dir) => {
                Err(FsError::Stale(dir.node))
            }
            other => Ok(other?),
        }
    }

    /// True if the directory has no name any more, and this node has not removed it.
    pub(super) fn is_gone_elsewhere(&self, dir: &Inode) -> bool {
        if self.others.is_none() {
            return false;
        }
        let links = match sys::glance(dir.fd()) {
            Ok(seen) => seen.nlink,
            Err(e) if seems_gone(&e) => 0,
            Err(_) => return false,
        };
        self.removed_elsewhere(dir, links)
    }

    /// A name of `victim` was removed. If it was the last, the file's undrained data is not drained. The
    /// name is gone whatever happens here, so the caller gets no error: the drain will find the file
    /// gone and then drop the data.
    fn name_gone(&self, victim: Option<Victim<'_>>) {
        let Some(Victim { fd, it, removal }) = victim else {
            return;
        };
        let was_last = match sys::stat(fd.as_fd()) {
            Ok(stat) => stat.nlink == 0,
            // Some file systems return this for a file without a name, although this daemon has it open. If
            // the file had another name, the drain finds out whether that is gone too.
            Err(e) if seems_gone(&e) => it.stat.is_dir() || it.stat.nlink == 1,
            Err(error) => {
                tracing::debug!(file = %it.id, %error, "a removed file cannot be looked at");
                false
            }
        };
        if !was_last {
            return;
        }
        let inode = self.inodes.get_by_id(&it.id);
        if let Some(inode) = &inode {
            inode.set_unlinked();
        }
        drop(removal);
        if !it.stat.is_file() {
            return;
        }
        self.store().local_copies().forget(it.id);
        let Some(file) = self.store().lookup(it.id) else {
            return;
        };
        // What is published stays readable through open handles, too.
        file.set_nameless(true);
        if let Err(error) = file.mark_unlinked() {
            tracing::error!(file = %it.id, %error, "a removal could not be recorded");
        }
        // Without the dirty mark the last reference decides; it may have gone meanwhile.
        match self.inodes.keep_while(&it.id, || false) {
            Some(last) => self.let_go(Unreferenced(last)),
            None if inode.is_none() => self.drop_data(it.id),
            None => {}
        }
    }

    /// Opens and identifies the entry that is about to lose a name, if it is a regular file or a directory.
    fn victim(&self, dir: &Inode, name: &Name) -> Result<Option<Victim<'_>>> {
        let fd = match sys::open_path(dir.fd(), name.as_c()) {
            Ok(fd) => fd,
            // There is no such entry, or it is a mount point: the operation itself returns the error for that.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EXDEV)) => {
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        };
        let it = self.backing.identify(fd.as_fd())?;
        let counts = it.stat.is_file() || it.stat.is_dir();
        let removal = self.removals.begin(it.id);
        Ok(counts.then_some(Victim { fd, it, removal }))
    }
}
