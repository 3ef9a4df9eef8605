//! OSTs that are directories: one mount of each target, as with several local disks, one MooseFS
//! or NFS mount for each server, or the embedded default.
//!
//! Files go to `.forebay/subfiles` below the directory, which is made when it is first needed,
//! for the daemon's user only. The directory itself must be there: a missing one is a target that
//! is not mounted, and making it would fill the disk below.

use super::{Ost, OstError, Provider};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PLACE: [&str; 2] = [".forebay", "subfiles"];

#[derive(Debug)]
pub struct Directories {
    paths: Vec<PathBuf>,
}

impl Directories {
    pub fn new(paths: Vec<PathBuf>) -> Directories {
        Directories { paths }
    }

    /// The directory for files on `ost`, made if it is missing.
    fn place(&self, ost: &Ost) -> io::Result<OwnedFd> {
        let path = self
            .paths
            .get(ost.index as usize)
            .ok_or(Errno::ENOENT)?
            .as_path();
        let top = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = nix::fcntl::open(path, top, Mode::empty())?;
        for name in PLACE {
            match mkdirat(&dir, name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(e) => return Err(e.into()),
            }
            dir = beneath(dir.as_fd(), name, top, Mode::empty())?;
        }
        Ok(dir)
    }
}

/// Opens one component without following anything out of `dir`.
pub(crate) fn beneath(
    dir: BorrowedFd<'_>,
    name: &str,
    flags: OFlag,
    mode: Mode,
) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW)
        .mode(mode)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        );
    openat2(dir, Path::new(name), how)
}

/// Opens a regular file with one name for reading and writing. What it is, is looked at before it
/// is opened: opening a FIFO or a device can wait or act.
pub(super) fn open_plain(dir: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let seen = File::from(beneath(dir, name, OFlag::O_PATH, Mode::empty())?);
    let meta = seen.metadata()?;
    if !meta.is_file() || meta.nlink() != 1 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file with one name, so it is none of ours",
        ));
    }
    let file = File::from(beneath(dir, name, OFlag::O_RDWR, Mode::empty())?);
    let opened = file.metadata()?;
    if (opened.dev(), opened.ino()) != (meta.dev(), meta.ino()) {
        return Err(Errno::ESTALE.into());
    }
    Ok(file)
}

pub(crate) fn names_in(dir: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let mut listing = nix::dir::Dir::from_fd(beneath(dir, ".", flags, Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in listing.iter() {
        // Ours are plain ASCII; what is not UTF-8 is none of ours.
        match entry?.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push(name.to_owned()),
        }
    }
    Ok(names)
}

impl Provider for Directories {
    fn kind(&self) -> &'static str {
        "directories"
    }

    fn osts(&self) -> Result<Vec<Ost>, OstError> {
        let ost = |(n, path): (usize, &PathBuf)| Ost {
            index: n as u32,
            name: path.display().to_string(),
        };
        Ok(self.paths.iter().enumerate().map(ost).collect())
    }

    fn create(&self, ost: &Ost, name: &str, direct: bool) -> Result<File, OstError> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
        let flags = if direct {
            flags | OFlag::O_DIRECT
        } else {
            flags
        };
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        self.place(ost)
            .and_then(|dir| Ok(beneath(dir.as_fd(), name, flags, mode)?))
            .map(File::from)
            .map_err(|e| OstError::new(ost, "making a file", e))
    }

    fn open(&self, ost: &Ost, name: &str) -> Result<File, OstError> {
        self.place(ost)
            .and_then(|dir| open_plain(dir.as_fd(), name))
            .map_err(|e| OstError::new(ost, "opening a file", e))
    }

    fn list(&self, ost: &Ost) -> Result<Vec<String>, OstError> {
        self.place(ost)
            .and_then(|dir| names_in(dir.as_fd()))
            .map_err(|e| OstError::new(ost, "listing its files", e))
    }

    fn remove(&self, ost: &Ost, name: &str) -> Result<(), OstError> {
        let removed = self.place(ost).and_then(|dir| {
            match unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => Ok(()),
                Err(e) => Err(e.into()),
            }
        });
        removed.map_err(|e| OstError::new(ost, "removing a file", e))
    }
}
