//! The place of one OST's files: `.forebay/subfiles` below a directory. For file systems with many
//! OSTs below one directory there is one more directory below that for each OST.
//!
//! # Why nothing here takes a path
//!
//! Users and other machines also use the directory: [`layout_index::beneath`] says what follows
//! from that.
//!
//! # Owners of the directories
//!
//! The owner of one of the directories can take a file away or put another in its place. So the
//! directories are made for the daemon's user alone, and a file is made only if all of them have
//! the owner that the file got (which need not be this process's user: a server may map root to
//! another user).

use layout_index::beneath::{
    STEP, beneath, component, entries, open_plain, remove_from, step_down, step_into, sync,
};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, fstatat};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const TOP: &str = ".forebay";
const SUBFILES: &str = "subfiles";

#[derive(Debug)]
pub struct Place {
    top: Arc<OwnedFd>,
    /// Names of the directories below `.forebay`.
    steps: Vec<String>,
}

/// A directory on the way, with the attributes that decide whether files are safe in it.
struct Step {
    name: String,
    uid: u32,
    mode: u32,
}

impl Place {
    /// The place below the directory `top`, which must have been opened before anything is mounted
    /// over it.
    pub fn new(top: Arc<OwnedFd>) -> Place {
        Place {
            top,
            steps: vec![SUBFILES.to_owned()],
        }
    }

    /// A place in a directory of the OST's own.
    pub fn with_own(top: Arc<OwnedFd>, own: impl ToString) -> Place {
        let mut place = Place::new(top);
        place.steps.push(own.to_string());
        place
    }

    pub fn is_below(&self, top: &Arc<OwnedFd>) -> bool {
        Arc::ptr_eq(&self.top, top)
    }

    fn steps(&self) -> impl Iterator<Item = &str> {
        std::iter::once(TOP).chain(self.steps.iter().map(String::as_str))
    }

    /// Makes a new file of mode 0600, open for reading and writing, whose name is durable. Makes
    /// missing directories.
    pub fn create(&self, name: &str, flags: i32) -> io::Result<File> {
        let (file, dir) = self.make(name, flags)?;
        // A file that is synced but has no name after a power failure would be lost all the same.
        if let Err(e) = sync(dir.as_fd()) {
            drop(file);
            remove_from(dir.as_fd(), name)?;
            return Err(e);
        }
        Ok(file)
    }

    /// The same, with a name that a power failure may remove. Also returns the file's directory.
    pub fn make(&self, name: &str, flags: i32) -> io::Result<(File, OwnedFd)> {
        let name = component(name)?;
        let mut dir: Option<OwnedFd> = None;
        let mut passed = Vec::new();
        for step in self.steps() {
            let at = dir.as_ref().map_or(self.top.as_fd(), |dir| dir.as_fd());
            let next = step_into(at, step, STEP).map_err(|e| explained(at, e))?;
            let next = File::from(next);
            let meta = next.metadata()?;
            passed.push(Step {
                name: step.to_owned(),
                uid: meta.uid(),
                mode: meta.mode() & 0o7777,
            });
            dir = Some(next.into());
        }
        let dir = dir.as_ref().map_or(self.top.as_fd(), |dir| dir.as_fd());
        let flags = OFlag::O_RDWR
            | OFlag::O_CREAT
            | OFlag::O_EXCL
            | OFlag::from_bits_retain(flags & !libc::O_ACCMODE);
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = match beneath(dir, name, flags, mode) {
            Ok(file) => File::from(file),
            Err(e) => {
                // If there is no O_DIRECT, open(2) finds that out after it made the file.
                if e == Errno::EINVAL {
                    remove_from(dir, name)?;
                }
                return Err(explained(dir, e.into()));
            }
        };
        if let Err(e) = check_owner(&file, &passed) {
            drop(file);
            remove_from(dir, name)?;
            return Err(e);
        }
        Ok((file, dir.try_clone_to_owned()?))
    }

    /// Opens a regular file with one name for reading and writing. ENOENT if it is not there.
    pub fn open(&self, name: &str) -> io::Result<File> {
        let name = component(name)?;
        let dir = self.find()?.ok_or(Errno::ENOENT)?;
        open_plain(dir.as_fd(), name, OFlag::O_RDWR, None)
    }

    /// Returns when the file was last written.
    pub fn modified(&self, name: &str) -> io::Result<SystemTime> {
        let name = component(name)?;
        let dir = self.find()?.ok_or(Errno::ENOENT)?;
        let stat = fstatat(dir.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
        Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    pub fn list(&self) -> io::Result<Vec<String>> {
        match self.find()? {
            Some(dir) => names_in(dir.as_fd()),
            None => Ok(Vec::new()),
        }
    }

    /// Removes a file. A file that is not there is no error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let name = component(name)?;
        match self.find()? {
            Some(dir) => remove_from(dir.as_fd(), name),
            None => Ok(()),
        }
    }

    /// Opens the directory of the files. `None` if no file has been made yet.
    pub fn find(&self) -> io::Result<Option<OwnedFd>> {
        let mut dir = self.top.try_clone()?;
        for step in self.steps() {
            match step_down(dir.as_fd(), step, STEP)? {
                Some(next) => dir = next,
                None => return Ok(None),
            }
        }
        Ok(Some(dir))
    }
}

/// Explains why nothing can be made in `dir`, with the path of the directory if the sentence needs
/// it: the name of an OST of Lustre or MooseFS does not show one.
fn explained(dir: BorrowedFd<'_>, error: io::Error) -> io::Error {
    let Some(number) = error.raw_os_error() else {
        return error;
    };
    match number {
        libc::EACCES | libc::EPERM => {
            let who = match nix::unistd::geteuid() {
                root if root.is_root() => "root (or whom the server takes it for)".to_owned(),
                user => format!("user {user}"),
            };
            io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{}: {who} may not write in {}: change its owner or mode",
                    Errno::from_raw(number).desc(),
                    name_of(dir)
                ),
            )
        }
        // With the error number this would mean a file that was drained.
        libc::ENOENT => io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "the directory {} was removed while it was in use: make it again, and mount again",
                name_of(dir)
            ),
        ),
        _ => error,
    }
}

/// True if a file could not be made because the directory is no longer there.
pub fn was_removed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound && error.raw_os_error().is_none()
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

/// Lists names without those of directories: another provider may have its own directories below
/// the same one.
fn names_in(dir: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let entries = entries(dir)?.into_iter();
    Ok(entries.filter(|e| !e.is_dir).map(|e| e.name).collect())
}

/// Returns a path for an error message about an open directory.
pub fn name_of(dir: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).map_or_else(
        |_| "the directory".to_owned(),
        |path| {
            let path = path.display().to_string();
            // The kernel adds this to the path of a directory that was removed.
            path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned()
        },
    )
}

#[cfg(test)]
mod tests;
