//! Canonical files: opened and written as a user, and found again without a mount.
//!
//! The drain and recovery know a file by its identity. They look for it by its handle, then at the
//! path that it had, then in the whole backing. Whatever they find must be a regular file with that
//! identity before it is opened.
//!
//! A file is reported as gone only when that is certain, because its data is then dropped:
//!
//! - A stale handle is proof only on file systems that make handles from what is on their own disk, and only
//!   if the path can be looked up as well: `open_by_handle_at` also returns ESTALE if the disk cannot be
//!   read. On other file systems a stale handle proves nothing.
//! - Otherwise the whole backing is searched twice. A search that met a directory it could not read is an
//!   error; a search during which something moved away does not count.
//! - A handle that leads to another file is an error.

use super::creds::{self, Creds, Guard};
use super::identity::{self, Handles, Identified};
use super::sys::{self, Stat};
use super::{Backing, dirent};
use crate::types::RESERVED_NAME;
use layout_index::{Canonical, CanonicalFiles, DiskFile, File, FileId, Intro, RealFile, Version};
use std::ffi::{CString, OsString};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

/// A canonical file that is changed with a user's identity: quotas and reserved blocks count against that
/// user, and nothing is written that the user could not write.
#[derive(Debug)]
pub struct AsUser {
    file: RealFile,
    creds: Creds,
    keep: u64,
}

impl AsUser {
    /// For a caller's own writes: setuid and setgid bits are cleared as by any write.
    pub fn caller(fd: OwnedFd, creds: Creds) -> Self {
        Self {
            file: fd.into(),
            creds,
            keep: 0,
        }
    }

    /// For the drain. The bits were cleared when the data was absorbed; bits that were set again
    /// since then are intended.
    pub fn drain(fd: OwnedFd, creds: Creds) -> Self {
        Self {
            file: fd.into(),
            creds,
            keep: creds::CAP_FSETID,
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.0.as_fd()
    }

    /// Syncs data and attributes, unlike `DiskFile::sync`.
    pub fn sync_all(&self) -> io::Result<()> {
        self.file.0.sync_all()
    }

    fn enter(&self) -> io::Result<Guard> {
        self.creds.enter_keeping(self.keep)
    }
}

impl DiskFile for AsUser {
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let _as_user = self.enter()?;
        self.file.write_at(bufs, offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let _as_user = self.enter()?;
        self.file.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let _as_user = self.enter()?;
        self.file.allocate(mode, offset, len)
    }

    fn set_mtime(&self, mtime: u64) -> io::Result<()> {
        match self.enter().and_then(|_as_user| self.file.set_mtime(mtime)) {
            // The file's owner has changed since it was opened. The time is still right for the file, so the
            // daemon sets it with its own identity.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => self.file.set_mtime(mtime),
            other => other,
        }
    }

    fn version(&self) -> io::Result<Version> {
        self.file.version()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.fd()
    }
}

/// Number of searches that may fail because the backing changes. After that it is an error.
const SEARCHES: usize = 6;

/// How often opening a handle is tried again while its inode is being made, once a millisecond.
const MAKING: usize = 200;

/// The backing without a mount, for `forebay recover` and `forebay drain --adopt`.
impl CanonicalFiles for Backing {
    fn open_canonical(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        self.open_canonical(file.id(), &file.hint())
    }

    fn stat_canonical(&self, file: &File) -> io::Result<Canonical> {
        match self.find(file.id(), &file.hint())? {
            Some(fd) => Ok(sys::stat(fd.as_fd())?.into()),
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    fn file_clean(&self, _: FileId) {}
}

impl From<Stat> for Canonical {
    fn from(stat: Stat) -> Self {
        Canonical {
            size: stat.size,
            uid: stat.uid,
        }
    }
}

impl Backing {
    /// Finds and opens the canonical file of `id` for the drain; `None` when it is certainly gone.
    pub fn open_canonical(
        &self,
        id: FileId,
        intro: &Intro,
    ) -> io::Result<Option<Arc<dyn DiskFile>>> {
        match self.find_canonical(id, intro)? {
            Some(fd) => open_as_owner(fd.as_fd()).map(Some),
            None => Ok(None),
        }
    }

    /// Finds the canonical file without opening it.
    pub fn find(&self, id: FileId, intro: &Intro) -> io::Result<Option<OwnedFd>> {
        self.find_canonical(id, intro)
    }

    /// The current path of the file below the root, if it follows from the path of its first write or from
    /// its handle. Nothing is searched: `None` if these do not lead to it.
    pub fn place_of(&self, id: FileId, intro: &Intro) -> io::Result<Option<PathBuf>> {
        let hint = PathBuf::from(OsString::from_vec(intro.path.clone()));
        if let Some(path) = self.confirm(id, Some(hint))? {
            return Ok(Some(path));
        }
        let ByHandle::Found(fd) = self.by_handle(id, &intro.handle)? else {
            return Ok(None);
        };
        self.confirm(id, self.known_path(fd.as_fd())?)
    }

    /// Returns the path if it leads to this file. A path that the kernel knows may be from before a rename on
    /// another node; for a file that was opened by its handle the kernel may know none.
    pub fn confirm(&self, id: FileId, path: Option<PathBuf>) -> io::Result<Option<PathBuf>> {
        let Some(path) = path else { return Ok(None) };
        match self.by_path(id, path.as_os_str().as_bytes())? {
            ByPath::Found(_) => Ok(Some(path)),
            ByPath::NotThere | ByPath::Unknown => Ok(None),
        }
    }

    fn find_canonical(&self, id: FileId, intro: &Intro) -> io::Result<Option<OwnedFd>> {
        let mut misses = 0;
        for _ in 0..SEARCHES {
            let stale = match self.by_handle(id, &intro.handle)? {
                ByHandle::Found(fd) => return Ok(Some(fd)),
                ByHandle::Stale => true,
                ByHandle::Unknown => false,
            };
            match self.by_path(id, &intro.path)? {
                ByPath::Found(fd) => return Ok(Some(fd)),
                ByPath::NotThere if stale && self.handles == Handles::Local => return Ok(None),
                ByPath::NotThere | ByPath::Unknown => {}
            }
            match self.by_scan(id)? {
                Scanned::Found(fd) => return Ok(Some(fd)),
                Scanned::NotThere => misses += 1,
                Scanned::Changed => misses = 0,
            }
            if misses == 2 {
                return Ok(None);
            }
        }
        Err(io::Error::other(
            "the backing changes while it is searched, so nothing can be said of the file",
        ))
    }

    fn by_handle(&self, id: FileId, handle: &[u8]) -> io::Result<ByHandle> {
        let (Some(mount), Some((kind, bytes))) = (&self.mount, identity::decode(handle)) else {
            return Ok(ByHandle::Unknown);
        };
        if !creds::switches() {
            return Ok(ByHandle::Unknown);
        }
        match open_handle(mount.as_fd(), kind, bytes) {
            Ok(fd) if !self.is_there(fd.as_fd())? => Ok(ByHandle::Stale),
            Ok(fd) if self.is_it(fd.as_fd(), id)? => Ok(ByHandle::Found(fd)),
            // Its inode may belong to another file by now.
            Ok(_) if self.handles == Handles::Volatile => Ok(ByHandle::Unknown),
            Ok(_) => Err(io::Error::other(format!(
                "the handle of file {id} leads to another file"
            ))),
            Err(e) => match e.raw_os_error() {
                Some(libc::ESTALE) => Ok(ByHandle::Stale),
                // The capability is missing, there are no handles here, or the handle is of
                // another kind of file system.
                Some(libc::EPERM | libc::EOPNOTSUPP | libc::EINVAL | libc::ENOENT) => {
                    Ok(ByHandle::Unknown)
                }
                _ => Err(e),
            },
        }
    }

    /// The file or directory with this handle, if it is still there.
    pub fn by_known_handle(&self, id: FileId, handle: &[u8]) -> io::Result<Option<OwnedFd>> {
        let (Some(mount), Some((kind, bytes))) = (&self.mount, identity::decode(handle)) else {
            return Ok(None);
        };
        let fd = match open_handle(mount.as_fd(), kind, bytes) {
            Err(e) if e.raw_os_error() == Some(libc::ESTALE) => return Ok(None),
            opened => opened?,
        };
        let Identified { stat, id: found } = self.identify(fd.as_fd())?;
        Ok((found == id && stat.nlink > 0).then_some(fd))
    }

    fn by_path(&self, id: FileId, path: &[u8]) -> io::Result<ByPath> {
        if path.is_empty() {
            return Ok(ByPath::NotThere);
        }
        let mut at: Option<OwnedFd> = None;
        for part in path.split(|b| *b == b'/') {
            let Ok(name) = CString::new(part) else {
                return Ok(ByPath::NotThere);
            };
            let dir = at.as_ref().map_or(self.root(), |fd| fd.as_fd());
            at = match sys::open_path(dir, &name) {
                Ok(fd) => Some(fd),
                Err(e) if passed_over(&e) => return Ok(ByPath::NotThere),
                // A hint that leads nowhere is no error; the scan decides.
                Err(_) => return Ok(ByPath::Unknown),
            };
        }
        match at {
            Some(fd) if self.is_there(fd.as_fd())? && self.is_it(fd.as_fd(), id)? => {
                Ok(ByPath::Found(fd))
            }
            _ => Ok(ByPath::NotThere),
        }
    }

    /// Searches every directory of the backing, depth first, with one descriptor for each level.
    fn by_scan(&self, id: FileId) -> io::Result<Scanned> {
        let root = sys::reopen(self.root(), libc::O_RDONLY | libc::O_DIRECTORY)?;
        let mut levels = vec![];
        let mut changed = false;
        match self.list(id, root, &mut changed)? {
            Listed::Found(fd) => return Ok(Scanned::Found(fd)),
            Listed::Level(level) => levels.push(level),
        }
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.subdirs.pop() else {
                levels.pop();
                continue;
            };
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let dir = match sys::open_beneath(level.dir.as_fd(), &name, flags, 0) {
                Ok(dir) => dir,
                Err(e) if passed_over(&e) => {
                    changed |= moved_away(&e);
                    continue;
                }
                Err(e) => return Err(e),
            };
            match self.list(id, dir, &mut changed)? {
                Listed::Found(fd) => return Ok(Scanned::Found(fd)),
                Listed::Level(level) => levels.push(level),
            }
        }
        Ok(if changed {
            Scanned::Changed
        } else {
            Scanned::NotThere
        })
    }

    /// Reads one directory to its end, or until the file is found in it.
    fn list(&self, id: FileId, dir: OwnedFd, changed: &mut bool) -> io::Result<Listed> {
        let mut subdirs = vec![];
        let mut buf = vec![0u8; 32 << 10];
        loop {
            let n = sys::getdents(dir.as_fd(), &mut buf)?;
            if n == 0 {
                return Ok(Listed::Level(Level { dir, subdirs }));
            }
            let mut rest = &buf[..n];
            while let Some((entry, len)) = dirent::parse_dirent(rest) {
                rest = &rest[len..];
                let name = entry.name.to_bytes();
                if matches!(name, b"." | b"..") || name == RESERVED_NAME {
                    continue;
                }
                if entry.kind == libc::DT_DIR {
                    subdirs.push(entry.name);
                } else if entry.ino == id.ino || entry.kind == libc::DT_UNKNOWN {
                    let fd = match sys::open_path(dir.as_fd(), &entry.name) {
                        Ok(fd) => fd,
                        Err(e) if passed_over(&e) => {
                            *changed |= moved_away(&e);
                            continue;
                        }
                        Err(e) => return Err(e),
                    };
                    if sys::stat(fd.as_fd())?.is_dir() {
                        subdirs.push(entry.name);
                    } else if self.is_it(fd.as_fd(), id)? {
                        return Ok(Listed::Found(fd));
                    }
                }
            }
        }
    }

    /// False for a file without a name. Where other clients can remove files, this client
    /// may still know such a file.
    fn is_there(&self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        if self.handles == Handles::Local {
            return Ok(true);
        }
        match sys::stat_now(fd) {
            Ok(stat) => Ok(stat.nlink > 0),
            Err(e) if seems_gone(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn is_it(&self, fd: BorrowedFd<'_>, id: FileId) -> io::Result<bool> {
        let Identified { stat, id: found } = self.identify(fd)?;
        Ok(stat.is_file() && found == id)
    }
}

/// True for the errors that some file systems return for a file that another client has removed, because they
/// do not keep it for processes that have it open. They prove nothing: the caller has to search for the file.
pub fn seems_gone(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
}

struct Level {
    dir: OwnedFd,
    subdirs: Vec<CString>,
}

enum Listed {
    Found(OwnedFd),
    Level(Level),
}

/// Opens a file by its handle. Linux returns ENOMEM for a handle whose inode is being made into another file
/// at this moment (`iget_locked` does not distinguish the two cases). That is over in microseconds, a real
/// lack of memory is not, so the call is repeated.
fn open_handle(mount: BorrowedFd<'_>, kind: i32, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut tries = 0;
    loop {
        match sys::open_handle(mount, kind, bytes, libc::O_PATH | libc::O_NOFOLLOW) {
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) && tries < MAKING => {
                tries += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// The entry was removed or renamed meanwhile, or another file system is mounted there.
fn passed_over(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::ENOENT | libc::EXDEV | libc::ENOTDIR | libc::ELOOP)
    )
}

/// For errors that are passed over: the entry may be somewhere else by now, where the search has already been.
fn moved_away(e: &io::Error) -> bool {
    e.raw_os_error() != Some(libc::EXDEV)
}

enum ByHandle {
    Found(OwnedFd),
    Stale,
    Unknown,
}

enum ByPath {
    Found(OwnedFd),
    NotThere,
    Unknown,
}

enum Scanned {
    Found(OwnedFd),
    /// Every directory was read, and none has the file.
    NotThere,
    /// Something moved meanwhile, so the file may have been missed.
    Changed,
}

/// Opens the regular file that `fd` stands for, for reading and writing as its owner. Where the mode denies
/// even the owner (the data was accepted through an earlier open), it is opened with the daemon's own rights;
/// it is written as the owner in any case.
pub fn open_as_owner(fd: BorrowedFd<'_>) -> io::Result<Arc<dyn DiskFile>> {
    let stat = sys::stat(fd)?;
    if !stat.is_file() {
        return Err(io::Error::other("the canonical file is not a regular file"));
    }
    let owner = Creds::owner(stat.uid, stat.gid);
    let opened = {
        let _as_owner = owner.enter()?;
        sys::reopen(fd, libc::O_RDWR)
    };
    let file = match opened {
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => sys::reopen(fd, libc::O_RDWR)?,
        other => other?,
    };
    Ok(Arc::new(AsUser::drain(file, owner)))
}

#[cfg(test)]
mod tests;
