//! Names: they live in the backing, and nowhere else.
//!
//! Removing the last name of a file with undrained data cancels that data, but not before the last
//! handle and the kernel's last lookup are gone: until then an open that was under way when the
//! name went may still arrive, and must find the bytes.

use super::{At, Overlay, Unreferenced};
use crate::backing::creds::with_umask;
use crate::backing::identity::Identified;
use crate::backing::{Creds, sys};
use crate::errno::{FsError, Result};
use crate::inode::Inode;
use crate::types::{Caller, Entry, Name};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

impl Overlay {
    pub fn lookup(&self, caller: &Caller, parent: u64, name: &OsStr) -> Result<Entry> {
        let name = Name::parse(name)?;
        if name.is_reserved() {
            return Err(FsError::NotFound);
        }
        let dir = self.directory(parent)?;
        let creds = Creds::of(caller);
        let found = {
            let _as_caller = creds.enter()?;
            sys::open_path(dir.fd(), name.as_c())?
        };
        Ok(self.admit(found, &dir, name.as_c())?.1)
    }

    /// Makes the name as the caller, and looks it up.
    fn make(&self, at: At, make: impl FnOnce(&Inode, &CStr) -> io::Result<()>) -> Result<Entry> {
        let At { dir, name, creds } = at;
        self.need_room()?;
        let made = {
            let _as_caller = creds.enter()?;
            make(&dir, name.as_c())?;
            sys::open_path(dir.fd(), name.as_c())?
        };
        Ok(self.admit(made, &dir, name.as_c())?.1)
    }

    pub fn mkdir(
        &self,
        caller: &Caller,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
    ) -> Result<Entry> {
        self.make(self.at(caller, parent, name)?, |dir, name| {
            with_umask(umask, mode & 0o7777, |mode| {
                sys::mkdir(dir.fd(), name, mode)
            })
        })
    }

    /// Regular files, FIFOs, sockets and devices, with the caller's rights. The daemon never
    /// opens the last three; the kernel does, on the mount.
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
        let at = self.at(caller, parent, name)?;
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
        self.make(self.at(caller, parent, name)?, |dir, name| {
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
        self.make(self.at(caller, parent, name)?, |dir, name| {
            let file = Some((inode.id, inode.fd()));
            self.bytes_untouched(file, || sys::link(inode.fd(), dir.fd(), name))
        })
    }

    pub fn unlink(&self, caller: &Caller, parent: u64, name: &OsStr) -> Result<()> {
        let At { dir, name, creds } = self.at(caller, parent, name)?;
        let victim = {
            let _as_caller = creds.enter()?;
            let victim = self.victim(&dir, &name)?;
            sys::unlink(dir.fd(), name.as_c(), 0)?;
            victim
        };
        self.name_gone(victim)
    }

    pub fn rmdir(&self, caller: &Caller, parent: u64, name: &OsStr) -> Result<()> {
        let At { dir, name, creds } = self.at(caller, parent, name)?;
        let _as_caller = creds.enter()?;
        Ok(sys::unlink(dir.fd(), name.as_c(), libc::AT_REMOVEDIR)?)
    }

    /// `flags` as renameat2(2) has them; the backing decides which it knows.
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
        let from = self.at(caller, parent, name)?;
        let to_name = Name::parse(newname)?.allowed()?;
        let to = self.directory(newparent)?;
        let victim = {
            let _as_caller = from.creds.enter()?;
            let replaces = flags & (libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) == 0;
            let victim = if replaces {
                self.victim(&to, &to_name)?
            } else {
                None
            };
            let moved = match self.store.kept().is_empty() {
                true => None,
                false => self.victim(&from.dir, &from.name)?,
            };
            let moved = moved.as_ref().map(|(fd, it)| (it.id, fd.as_fd()));
            self.bytes_untouched(moved, || {
                sys::rename(
                    from.dir.fd(),
                    from.name.as_c(),
                    to.fd(),
                    to_name.as_c(),
                    flags,
                )
            })?;
            victim
        };
        self.name_gone(victim)
    }

    /// A name of `victim` was removed. If it was the last, its undrained data is not drained.
    fn name_gone(&self, victim: Option<(OwnedFd, Identified)>) -> Result<()> {
        let Some((fd, it)) = victim else {
            return Ok(());
        };
        if sys::stat(fd.as_fd())?.nlink != 0 {
            return Ok(());
        }
        self.store().kept().forget(it.id);
        let inode = self.inodes.get_by_id(&it.id);
        if let Some(inode) = &inode {
            inode.set_unlinked();
        }
        let Some(file) = self.store().lookup(it.id) else {
            return Ok(());
        };
        if file.is_clean() {
            return Ok(());
        }
        // The name is gone whatever happens next, so a failure here is not the caller's: the drain
        // will find the file gone and drop the data then.
        if let Err(error) = file.mark_unlinked() {
            tracing::error!(file = %it.id, %error, "a removal could not be recorded");
        }
        // Without the dirty mark the last reference decides; it may have gone meanwhile.
        match self.inodes.keep_while(&it.id, || false) {
            Some(last) => self.let_go(Unreferenced(last)),
            None if inode.is_none() => self.drop_data(it.id),
            None => {}
        }
        Ok(())
    }

    /// What is about to lose a name, if that is a regular file.
    fn victim(&self, dir: &Inode, name: &Name) -> Result<Option<(OwnedFd, Identified)>> {
        let fd = match sys::open_path(dir.fd(), name.as_c()) {
            Ok(fd) => fd,
            // Nothing there, or a mount point: the operation itself says what that means.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EXDEV)) => {
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        };
        let it = self.backing.identify(fd.as_fd())?;
        Ok(it.stat.is_file().then_some((fd, it)))
    }
}
