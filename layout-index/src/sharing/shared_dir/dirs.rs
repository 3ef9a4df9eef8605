//! From a file to its directory, `files/<ab>/<fid>`.
//!
//! Directories come and go: the node that drained the last bytes of a file removes its directory,
//! and the next node that puts something there makes it again. A descriptor of a removed directory
//! is useless, and the file system says so (ENOENT, ESTALE); then the present directory is opened,
//! or made. So nothing can get into a directory that was removed.
//!
//! *Killed after a directory was made*: it is empty, and the next node that drains the file removes
//! it.

use super::SharedDir;
use super::names::{group_of, names_of};
use super::roots::{Roots, check_ours};
use crate::beneath::{DIRECTORY, entries, step_down, step_into};
use crate::types::FileId;
use nix::errno::Errno;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// How many descriptors of files' directories are held at most.
const MOST_HELD: usize = 128;

/// How often a directory that another node keeps removing is made again before the call fails.
const TRIES: usize = 64;

pub(super) struct Dirs {
    roots: Arc<Roots>,
    /// Those of the 256 groups that were needed so far. Groups are never removed.
    groups: RwLock<Vec<Option<Arc<OwnedFd>>>>,
    held: Mutex<HashMap<FileId, Arc<OwnedFd>>>,
}

impl Dirs {
    pub fn new(roots: Arc<Roots>) -> Dirs {
        Dirs {
            roots,
            groups: RwLock::new(vec![None; 256]),
            held: Mutex::default(),
        }
    }

    /// `None` if the group is missing and `make` is false.
    pub fn group(&self, file: FileId, make: bool) -> io::Result<Option<Arc<OwnedFd>>> {
        let number = usize::from(group_of(file));
        if let Some(group) = &self.groups.read()[number] {
            return Ok(Some(group.clone()));
        }
        let [name, _] = names_of(file);
        let group = if make {
            step_into(self.roots.files.as_fd(), &name, DIRECTORY)?
        } else {
            match step_down(self.roots.files.as_fd(), &name, DIRECTORY)? {
                Some(group) => group,
                None => return Ok(None),
            }
        };
        check_ours(&group, &format!("files/{name}"), self.roots.uid)?;
        let group = Arc::new(group);
        self.groups.write()[number] = Some(group.clone());
        Ok(Some(group))
    }

    /// Opens the file's present directory, without using a held descriptor.
    pub fn open(&self, file: FileId, make: bool) -> io::Result<Option<OwnedFd>> {
        let Some(group) = self.group(file, make)? else {
            return Ok(None);
        };
        let [ab, fid] = names_of(file);
        let dir = if make {
            match step_into(group.as_fd(), &fid, DIRECTORY) {
                // Made, and at once removed by another node, which took it for a leftover.
                Err(e) if is_missing(&e) => return Ok(None),
                dir => dir?,
            }
        } else {
            match step_down(group.as_fd(), &fid, DIRECTORY)? {
                Some(dir) => dir,
                None => return Ok(None),
            }
        };
        check_ours(&dir, &format!("files/{ab}/{fid}"), self.roots.uid)?;
        Ok(Some(dir))
    }

    pub fn close_held(&self, file: FileId) {
        self.held.lock().remove(&file);
    }

    /// Runs `act` in the directory of a file. `None` if the directory is missing and `make` is
    /// false. If `make` is false and `act` finds something missing in a directory that was just
    /// opened, its error is returned.
    pub fn in_dir<T>(
        &self,
        file: FileId,
        make: bool,
        mut act: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        for _ in 0..TRIES {
            let known = self.held.lock().get(&file).cloned();
            let was_known = known.is_some();
            let dir = match known {
                Some(dir) => dir,
                None => match self.open(file, make)? {
                    Some(dir) => self.keep_open(file, dir),
                    None if make => continue,
                    None => return Ok(None),
                },
            };
            match act(dir.as_fd()) {
                Err(e) if is_missing(&e) => {
                    self.close_held(file);
                    if !was_known && !make {
                        return Err(e);
                    }
                }
                done => return done.map(Some),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("the shared directory of file {file} is removed again and again: try later"),
        ))
    }

    fn keep_open(&self, file: FileId, dir: OwnedFd) -> Arc<OwnedFd> {
        let dir = Arc::new(dir);
        let mut held = self.held.lock();
        if held.len() >= MOST_HELD {
            held.clear();
        }
        held.insert(file, dir.clone());
        dir
    }
}

pub(super) fn is_missing(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error().map(Errno::from_raw),
        Some(Errno::ENOENT | Errno::ESTALE)
    )
}

impl SharedDir {
    /// All files that have a directory. For start, adoption and status only: it lists everything.
    pub fn files(&self) -> io::Result<Vec<FileId>> {
        let mut found = Vec::new();
        for group in entries(self.roots.files.as_fd())? {
            let number = u8::from_str_radix(&group.name, 16);
            if !number.is_ok_and(|number| format!("{number:02x}") == group.name) {
                continue;
            }
            let Some(dir) = step_down(self.roots.files.as_fd(), &group.name, DIRECTORY)? else {
                continue;
            };
            check_ours(&dir, &format!("files/{}", group.name), self.roots.uid)?;
            let ids = entries(dir.as_fd())?.into_iter();
            let ids = ids.filter_map(|entry| entry.name.parse::<FileId>().ok());
            found.extend(ids.filter(|id| names_of(*id)[0] == group.name));
        }
        found.sort_unstable();
        Ok(found)
    }
}
