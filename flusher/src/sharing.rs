//! Who writes which file: what `subfiles = auto` goes by.
//!
//! A node that drains a file says so with an empty file of its own in the shared directory,
//! `.forebay/files/<ab>/<fid>/<node>.<store>`, and looks whether another one is there. It first
//! says, then looks: of two nodes that come at the same time at least one sees the other.
//!
//! *Killed in between, or before the end of the life*: the name stays, and other nodes go on making
//! subfiles that they could do without, until the next start of this store removes it.

use crate::ost::{beneath, entries};
use layout_index::FileId;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const PLACE: [&str; 2] = [".forebay", "files"];

#[derive(Debug)]
pub(crate) struct Sharing {
    backing: OwnedFd,
    /// Of this node, in every file's directory.
    name: String,
    announced: Mutex<HashSet<FileId>>,
}

impl Sharing {
    pub fn new(backing: OwnedFd, node: &str, store: &str) -> Sharing {
        Sharing {
            backing,
            name: format!("{node}.{store}"),
            announced: Mutex::default(),
        }
    }

    /// Says that this node writes the file. True when another one does too.
    pub fn announce(&self, id: FileId) -> io::Result<bool> {
        self.announced.lock().insert(id);
        let mut dir = None;
        let [group, fid] = names_of(id);
        for name in PLACE.into_iter().chain([group.as_str(), fid.as_str()]) {
            let parent = dir.as_ref().map_or(self.backing.as_fd(), AsFd::as_fd);
            match mkdirat(parent, name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(e) => return Err(e.into()),
            }
            dir = Some(open_dir(parent, name)?);
        }
        let Some(dir) = dir else { return Ok(false) };
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT;
        drop(beneath(
            dir.as_fd(),
            &self.name,
            flags,
            Mode::S_IRUSR | Mode::S_IWUSR,
        )?);
        Ok(entries(dir.as_fd())?.iter().any(|e| e.name != self.name))
    }

    /// This node does not write the file any more. Nothing to do where it never said so.
    pub fn retract(&self, id: FileId) -> io::Result<()> {
        if !self.announced.lock().remove(&id) {
            return Ok(());
        }
        let [group, fid] = names_of(id);
        let group = match self
            .files()
            .and_then(|files| open_dir(files.as_fd(), &group))
        {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        self.remove_from(group.as_fd(), &fid)
    }

    /// Takes back what an earlier daemon of this store said of files that are not dirty now.
    pub fn retract_all_but(&self, dirty: &[FileId]) -> io::Result<()> {
        let files = match self.files() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let keep: Vec<String> = dirty.iter().map(|id| id.to_string()).collect();
        for group in entries(files.as_fd())? {
            let group = open_dir(files.as_fd(), &group.name)?;
            for fid in entries(group.as_fd())? {
                if !keep.contains(&fid.name) {
                    self.remove_from(group.as_fd(), &fid.name)?;
                }
            }
        }
        Ok(())
    }

    fn files(&self) -> io::Result<OwnedFd> {
        let top = open_dir(self.backing.as_fd(), PLACE[0])?;
        open_dir(top.as_fd(), PLACE[1])
    }

    fn remove_from(&self, group: BorrowedFd<'_>, fid: &str) -> io::Result<()> {
        let dir = match open_dir(group, fid) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        match unlinkat(&dir, self.name.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(e) => return Err(e.into()),
        }
        // The last one to go takes the directory along.
        match unlinkat(group, fid, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

fn names_of(id: FileId) -> [String; 2] {
    [
        format!("{:02x}", (id.ino ^ id.birth) & 0xff),
        id.to_string(),
    ]
}

fn open_dir(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    Ok(beneath(dir, name, flags, Mode::empty())?)
}
