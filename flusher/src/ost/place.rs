//! Where the files of one OST are: `.forebay/subfiles` below a directory, and for file systems
//! with many OSTs below one directory another step, one for each OST.
//!
//! # Why nothing here takes a path
//!
//! The directory is shared with users and with other machines, and the daemon may have mounted
//! itself over it. So everything starts from a descriptor that was opened before, goes one
//! component at a time, and follows no link. What was found is looked at before it is opened.
//!
//! # Whose directories
//!
//! Whoever owns one of the directories can take a file away or put another in its place. They are
//! made for the daemon's user alone, and a file is made only where all of them have the owner
//! that the file got (which need not be this process's user: a server may map root to another).

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const TOP: &str = ".forebay";
const SUBFILES: &str = "subfiles";
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY);

#[derive(Debug)]
pub struct Place<'a> {
    top: BorrowedFd<'a>,
    /// Below `.forebay`.
    steps: Vec<String>,
}

/// A directory on the way, with what decides whether files are safe in it.
struct Step {
    name: String,
    uid: u32,
    mode: u32,
}

impl<'a> Place<'a> {
    pub fn new(top: BorrowedFd<'a>) -> Place<'a> {
        Place::at(top, [SUBFILES])
    }

    /// In a directory of the OST's own.
    pub fn with_own(top: BorrowedFd<'a>, own: impl ToString) -> Place<'a> {
        Place::at(top, [SUBFILES, &own.to_string()])
    }

    /// Anywhere below `.forebay`.
    pub fn at<'s>(top: BorrowedFd<'a>, steps: impl IntoIterator<Item = &'s str>) -> Place<'a> {
        Place {
            top,
            steps: steps.into_iter().map(str::to_owned).collect(),
        }
    }

    fn steps(&self) -> impl Iterator<Item = &str> {
        std::iter::once(TOP).chain(self.steps.iter().map(String::as_str))
    }

    /// A new file of mode 0600, open for reading and writing, whose name is durable. Directories
    /// that are missing are made.
    pub fn create(&self, name: &str, flags: i32) -> io::Result<File> {
        let (file, dir) = self.make(name, flags)?;
        // A file that is synced and has no name after a power failure would be lost all the same.
        if let Err(e) = sync(dir.as_fd()) {
            drop(file);
            remove_from(dir.as_fd(), name)?;
            return Err(e);
        }
        Ok(file)
    }

    /// The same, with a name that a power failure may take; and its directory.
    pub fn make(&self, name: &str, flags: i32) -> io::Result<(File, OwnedFd)> {
        let name = component(name)?;
        let mut dir: Option<OwnedFd> = None;
        let mut passed = Vec::new();
        for step in self.steps() {
            let at = dir.as_ref().map_or(self.top, |dir| dir.as_fd());
            let next = match step_down(at, step)? {
                Some(next) => next,
                None => {
                    match mkdirat(at, step, Mode::S_IRWXU) {
                        Ok(()) => sync(at)?,
                        Err(Errno::EEXIST) => {}
                        Err(e) => return Err(e.into()),
                    }
                    step_down(at, step)?.ok_or(Errno::ENOENT)?
                }
            };
            let next = File::from(next);
            let meta = next.metadata()?;
            passed.push(Step {
                name: step.to_owned(),
                uid: meta.uid(),
                mode: meta.mode() & 0o7777,
            });
            dir = Some(next.into());
        }
        let dir = dir.as_ref().map_or(self.top, |dir| dir.as_fd());
        let flags = OFlag::O_RDWR
            | OFlag::O_CREAT
            | OFlag::O_EXCL
            | OFlag::from_bits_retain(flags & !libc::O_ACCMODE);
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = match beneath(dir, name, flags, mode) {
            Ok(file) => File::from(file),
            Err(e) => {
                // Without O_DIRECT there, open(2) finds that out after it made the file.
                if e == Errno::EINVAL {
                    remove_from(dir, name)?;
                }
                return Err(e.into());
            }
        };
        if let Err(e) = check_owner(&file, &passed) {
            drop(file);
            remove_from(dir, name)?;
            return Err(e);
        }
        Ok((file, dir.try_clone_to_owned()?))
    }

    /// Opens a regular file with one name for reading and writing. ENOENT where it is not there.
    pub fn open(&self, name: &str) -> io::Result<File> {
        let name = component(name)?;
        let dir = self.find()?.ok_or(Errno::ENOENT)?;
        open_plain(dir.as_fd(), name)
    }

    pub fn list(&self) -> io::Result<Vec<String>> {
        match self.find()? {
            Some(dir) => names_in(dir.as_fd()),
            None => Ok(Vec::new()),
        }
    }

    /// One that is not there is no error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let name = component(name)?;
        match self.find()? {
            Some(dir) => remove_from(dir.as_fd(), name),
            None => Ok(()),
        }
    }

    /// `None` where no file was made yet.
    pub fn find(&self) -> io::Result<Option<OwnedFd>> {
        let mut dir = self.top.try_clone_to_owned()?;
        for step in self.steps() {
            match step_down(dir.as_fd(), step)? {
                Some(next) => dir = next,
                None => return Ok(None),
            }
        }
        Ok(Some(dir))
    }
}

/// `None` where it is missing.
fn step_down(dir: BorrowedFd<'_>, step: &str) -> io::Result<Option<OwnedFd>> {
    match beneath(dir, step, DIRECTORY, Mode::empty()) {
        Ok(next) => Ok(Some(next)),
        Err(Errno::ENOENT) => Ok(None),
        Err(Errno::ENOTDIR | Errno::ELOOP) => Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            format!("a file or a link stands where its directory {step} must be: remove it"),
        )),
        Err(e) => Err(e.into()),
    }
}

fn check_owner(file: &File, passed: &[Step]) -> io::Result<()> {
    let uid = file.metadata()?.uid();
    let Some(step) = passed.iter().find(|s| s.uid != uid || s.mode & 0o022 != 0) else {
        return Ok(());
    };
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "its directory {} (owner {}, mode {:o}) is not the daemon's alone: chown it to user \
             {uid} and chmod it 700, or remove it",
            step.name, step.uid, step.mode
        ),
    ))
}

/// Names come from other nodes' records, too.
fn component(name: &str) -> io::Result<&str> {
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is no name for a file"),
        ));
    }
    Ok(name)
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

/// What it is, is looked at before it is opened: opening a FIFO or a device can wait or act.
fn open_plain(dir: BorrowedFd<'_>, name: &str) -> io::Result<File> {
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

/// Without directories: another provider may have its own below the same one.
/// Makes names in `dir` durable, where a directory can be synced at all.
fn sync(dir: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let dir = match beneath(dir, ".", flags, Mode::empty()) {
        // Its owner's business, where the daemon may only pass through.
        Err(Errno::EACCES) => return Ok(()),
        other => other?,
    };
    match nix::unistd::fsync(dir) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOTSUP) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// The names of what is not a directory.
fn names_in(dir: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let entries = entries(dir)?.into_iter();
    Ok(entries.filter(|e| !e.is_dir).map(|e| e.name).collect())
}

pub(crate) struct Entry {
    pub name: String,
    pub is_dir: bool,
}

pub(crate) fn entries(dir: BorrowedFd<'_>) -> io::Result<Vec<Entry>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let mut listing = nix::dir::Dir::from_fd(beneath(dir, ".", flags, Mode::empty())?)?;
    let mut found = Vec::new();
    for entry in listing.iter() {
        let entry = entry?;
        // Ours are plain ASCII; what is not UTF-8 is none of ours.
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => found.push(Entry {
                name: name.to_owned(),
                is_dir: entry.file_type() == Some(nix::dir::Type::Directory),
            }),
        }
    }
    Ok(found)
}

fn remove_from(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// A path for a sentence about an open directory.
pub fn name_of(dir: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).map_or_else(
        |_| "the directory".to_owned(),
        |path| path.display().to_string(),
    )
}

#[cfg(test)]
mod tests;
