//! Who writes which file: what `subfiles = auto` goes by.
//!
//! A node that drains a file says so with an empty file of its own in the shared directory,
//! `.forebay/files/<ab>/<fid>/<node>.<store>`, and looks whether another one is there. It first
//! says, then looks: of two nodes that come at the same time at least one sees the other.
//!
//! *Killed in between, or before the end of the life*: the name stays, and other nodes go on making
//! subfiles that they could do without, until the next start of this store removes it.

use crate::ost::Place;
use layout_index::FileId;
use layout_index::beneath::{DIRECTORY, beneath, entries};
use layout_index::commons::names_of;
use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FILES: &str = "files";

/// A file that nobody else wrote a moment ago is looked at again after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Sharing {
    backing: OwnedFd,
    /// Of this node, in every file's directory.
    name: String,
    seen: Mutex<HashMap<FileId, Seen>>,
    told: AtomicBool,
}

/// What is known of a file that this node writes.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// Somebody is looking and has not come back.
    Looking,
    Alone(Instant),
    Shared,
    /// An earlier daemon may have said something.
    Unknown,
}

impl Sharing {
    pub fn new(backing: OwnedFd, node: &str, store: &str) -> Sharing {
        Sharing {
            backing,
            name: format!("{node}.{store}"),
            seen: Mutex::default(),
            told: AtomicBool::new(false),
        }
    }

    /// What is known without asking the file system. `None`: [`Sharing::announce`] must be called,
    /// by whoever got this answer and nobody else.
    pub fn known(&self, id: FileId) -> Option<bool> {
        let mut seen = self.seen.lock();
        match seen.get(&id) {
            Some(Seen::Shared) => Some(true),
            Some(Seen::Alone(at)) if at.elapsed() < LOOK_AGAIN => Some(false),
            // The backing hangs: what can go to an OST should.
            Some(Seen::Looking) => Some(true),
            _ => {
                seen.insert(id, Seen::Looking);
                None
            }
        }
    }

    /// Says that this node writes the file. True when another one does too. Where that cannot be
    /// seen the file counts as this node's alone.
    pub fn announce(&self, id: FileId) -> bool {
        let shared = self.say(id).unwrap_or_else(|error| {
            if !self.told.swap(true, Ordering::Relaxed) {
                tracing::warn!(%error, "who else writes a file cannot be seen; files go straight to the files below");
            }
            false
        });
        let seen = if shared {
            Seen::Shared
        } else {
            Seen::Alone(Instant::now())
        };
        self.seen.lock().insert(id, seen);
        shared
    }

    fn say(&self, id: FileId) -> io::Result<bool> {
        let [group, fid] = names_of(id);
        let place = Place::at(self.backing.as_fd(), [FILES, &group, &fid]);
        let dir = match place.make(&self.name, 0) {
            Ok((_, dir)) => dir,
            // It was said before.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                place.find()?.ok_or(Errno::ENOENT)?
            }
            Err(e) => return Err(e),
        };
        Ok(entries(dir.as_fd())?.iter().any(|e| e.name != self.name))
    }

    /// This node does not write the file any more. Nothing to do where it never said so.
    pub fn retract(&self, id: FileId) -> io::Result<()> {
        if self.seen.lock().remove(&id).is_none() {
            return Ok(());
        }
        let [group, fid] = names_of(id);
        match Place::at(self.backing.as_fd(), [FILES, &group]).find()? {
            Some(group) => self.remove_from(group.as_fd(), &fid),
            None => Ok(()),
        }
    }

    /// Takes back what an earlier daemon of this store said of files that are not dirty now.
    pub fn retract_all_but(&self, dirty: &[FileId]) -> io::Result<()> {
        for id in dirty {
            self.seen.lock().entry(*id).or_insert(Seen::Unknown);
        }
        let Some(files) = Place::at(self.backing.as_fd(), [FILES]).find()? else {
            return Ok(());
        };
        let keep: Vec<String> = dirty.iter().map(|id| id.to_string()).collect();
        for group in entries(files.as_fd())?.iter().filter(|e| e.is_dir) {
            let group = open_dir(files.as_fd(), &group.name)?;
            for fid in entries(group.as_fd())?.iter().filter(|e| e.is_dir) {
                if !keep.contains(&fid.name) {
                    self.remove_from(group.as_fd(), &fid.name)?;
                }
            }
        }
        Ok(())
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

fn open_dir(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    Ok(beneath(dir, name, DIRECTORY, Mode::empty())?)
}
