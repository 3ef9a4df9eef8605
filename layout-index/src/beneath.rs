//! Opening, listing and removing below a held directory, without following anything out of it.
//!
//! The directories are shared with users and with other machines, and the daemon may have mounted
//! itself over them. So nothing here takes a path: every call starts from a descriptor that was
//! opened before, goes one component at a time, and follows no link. An object is checked before it
//! is opened: opening a FIFO or a device can block or have side effects.

use crate::calls;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A directory with more names than this is not one of ours.
const MOST_ENTRIES: usize = 1 << 20;

/// Flags for a directory that is only passed through, which needs no right to read it.
pub const STEP: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY);
/// Flags for a directory that is to be listed or synced.
pub const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);

/// Checks a name that is to be one component: names come from other nodes' records, too.
pub fn component(name: &str) -> io::Result<&str> {
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is no name for a file"),
        ));
    }
    Ok(name)
}

/// Opens one component without following anything out of `dir`.
pub fn beneath(dir: BorrowedFd<'_>, name: &str, flags: OFlag, mode: Mode) -> nix::Result<OwnedFd> {
    calls::note("open");
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

/// Opens a directory in `dir`. `None` if it is missing.
pub fn step_down(dir: BorrowedFd<'_>, step: &str, flags: OFlag) -> io::Result<Option<OwnedFd>> {
    match beneath(dir, step, flags, Mode::empty()) {
        Ok(next) => Ok(Some(next)),
        Err(Errno::ENOENT) => Ok(None),
        Err(Errno::ENOTDIR | Errno::ELOOP) => Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            format!("a file or a link stands where its directory {step} must be: remove it"),
        )),
        Err(e) => Err(e.into()),
    }
}

/// Like [`step_down`], but makes the directory if it is missing, for this user only, and makes its
/// name durable.
pub fn step_into(dir: BorrowedFd<'_>, step: &str, flags: OFlag) -> io::Result<OwnedFd> {
    if let Some(next) = step_down(dir, step, flags)? {
        return Ok(next);
    }
    calls::note("mkdir");
    match mkdirat(dir, step, Mode::S_IRWXU) {
        Ok(()) => sync(dir)?,
        Err(Errno::EEXIST) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(step_down(dir, step, flags)?.ok_or(Errno::ENOENT)?)
}

/// Opens a regular file with one name, and with this owner if one is given.
pub fn open_plain(
    dir: BorrowedFd<'_>,
    name: &str,
    flags: OFlag,
    owner: Option<u32>,
) -> io::Result<File> {
    open_seen(dir, name, flags, owner).map(|(file, _)| file)
}

/// Like [`open_plain`], and also returns the metadata of the open file.
pub fn open_seen(
    dir: BorrowedFd<'_>,
    name: &str,
    flags: OFlag,
    owner: Option<u32>,
) -> io::Result<(File, Metadata)> {
    let none_of_ours = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file with one name, so it is none of ours: remove it",
        )
    };
    let seen = match beneath(dir, name, OFlag::O_PATH, Mode::empty()) {
        Err(Errno::ELOOP) => return Err(none_of_ours()),
        seen => File::from(seen?),
    };
    calls::note("stat");
    let meta = seen.metadata()?;
    // It was removed between the two calls, which is no forgery.
    if meta.nlink() == 0 {
        return Err(Errno::ENOENT.into());
    }
    if !meta.is_file() || meta.nlink() != 1 {
        return Err(none_of_ours());
    }
    if let Some(owner) = owner.filter(|owner| *owner != meta.uid()) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "it belongs to user {} instead of {owner}: remove it",
                meta.uid()
            ),
        ));
    }
    let file = File::from(beneath(dir, name, flags, Mode::empty())?);
    calls::note("stat");
    let opened = file.metadata()?;
    if (opened.dev(), opened.ino()) != (meta.dev(), meta.ino()) {
        return Err(Errno::ESTALE.into());
    }
    Ok((file, opened))
}

/// Makes names in `dir` durable, if the directory can be synced at all.
pub fn sync(dir: BorrowedFd<'_>) -> io::Result<()> {
    let dir = match beneath(dir, ".", DIRECTORY, Mode::empty()) {
        // The daemon may only pass through this directory, so durability is up to its owner.
        Err(Errno::EACCES) => return Ok(()),
        other => other?,
    };
    sync_open(dir.as_fd())
}

/// Like [`sync`], for a directory that is open for reading.
pub fn sync_open(dir: BorrowedFd<'_>) -> io::Result<()> {
    calls::note("sync");
    match nix::unistd::fsync(dir) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOTSUP) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[derive(Debug)]
pub struct Entry {
    pub name: String,
    pub is_dir: bool,
}

pub fn entries(dir: BorrowedFd<'_>) -> io::Result<Vec<Entry>> {
    entries_of(beneath(dir, ".", DIRECTORY, Mode::empty())?)
}

/// Like [`entries`], for a directory that was opened only for this.
pub fn entries_of(dir: OwnedFd) -> io::Result<Vec<Entry>> {
    calls::note("list");
    let mut listing = nix::dir::Dir::from_fd(dir)?;
    let mut found = Vec::new();
    for entry in listing.iter() {
        let entry = entry?;
        // Our names are plain ASCII; a name that is not UTF-8 is not one of ours.
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(_) if found.len() == MOST_ENTRIES => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("a directory has more than {MOST_ENTRIES} names: none of ours does"),
                ));
            }
            Ok(name) => found.push(Entry {
                name: name.to_owned(),
                is_dir: entry.file_type() == Some(nix::dir::Type::Directory),
            }),
        }
    }
    Ok(found)
}

/// Removes a name; it is no error if it is missing.
pub fn remove_from(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    calls::note("unlink");
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
