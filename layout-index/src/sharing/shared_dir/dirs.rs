//! From a file to its directory, `files/<ab>/<fid>`.
//!
//! Directories come and go: the node that drained the last bytes of a file removes its directory,
//! and the next node that puts something there makes it again. A descriptor of a removed directory
//! is useless, and the file system says so (ENOENT, ESTALE); then the present directory is opened,
//! or made. So nothing can get into a directory that was removed.
//!
//! *Killed after a directory was made*: it is empty, and the next node that drains the file removes
//! it.

use super::names::{Listing, Name, Owner, group_of, names_of};
use super::roots::{Roots, check_ours};
use super::sys;
use crate::beneath::{
    DIRECTORY, beneath, component, entries, entries_of, remove_from, step_down, step_into,
};
use crate::types::FileId;
use nix::errno::Errno;
use nix::sys::stat::Mode;
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

    /// Like [`Dirs::in_dir`] for a directory that is there. `None` if it, or what `act` looks for in
    /// it, is missing.
    pub fn in_present_dir<T>(
        &self,
        file: FileId,
        act: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        match self.in_dir(file, false, act) {
            Err(e) if is_missing(&e) => Ok(None),
            done => done,
        }
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

    /// `None` if the file has no directory.
    pub fn list(&self, file: FileId) -> io::Result<Option<Listing>> {
        let Some(dir) = self.open(file, false)? else {
            return Ok(None);
        };
        match list_open(dir) {
            Err(e) if is_missing(&e) => Ok(None),
            listed => listed.map(Some),
        }
    }

    pub fn remove_names(
        &self,
        file: FileId,
        names: impl IntoIterator<Item = Name>,
    ) -> io::Result<()> {
        let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
        if names.is_empty() {
            return Ok(());
        }
        // A held descriptor cannot be used: in a directory that was removed, every name is missing.
        let Some(group) = self.group(file, false)? else {
            return Ok(());
        };
        let [_, fid] = names_of(file);
        let Some(dir) = step_down(group.as_fd(), &fid, DIRECTORY)? else {
            return Ok(());
        };
        for name in names {
            let removed = remove_from(dir.as_fd(), component(&name)?);
            removed.map_err(|e| error_in_file(file, &name, e))?;
        }
        Ok(())
    }

    /// All files that have a directory.
    pub fn list_files(&self) -> io::Result<Vec<FileId>> {
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

/// Lists a file's directory, which is open, by an open file description of its own.
pub(super) fn list_dir(dir: BorrowedFd<'_>) -> io::Result<Listing> {
    list_open(beneath(dir, ".", DIRECTORY, Mode::empty())?)
}

fn list_open(dir: OwnedFd) -> io::Result<Listing> {
    let mut listing = Listing::default();
    let mut signed = Vec::new();
    for entry in entries_of(dir.try_clone()?)? {
        match entry.name.parse() {
            Ok(name @ (Name::Term(_) | Name::Seal(..))) => signed.push((name, entry.name)),
            Ok(name) => listing.add(name),
            Err(_) => listing.strange.push(entry.name),
        }
    }
    for (name, text) in signed {
        let owner = match sys::read_link(dir.as_fd(), &text) {
            Ok(Some(owner)) => owner.parse::<Owner>().ok(),
            Ok(None) => continue,
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => None,
            Err(e) => return Err(e),
        };
        match (name, owner) {
            (Name::Term(term), Some(owner)) => drop(listing.terms.insert(term, owner)),
            // Only the node that writes a layout may say where it ends.
            (Name::Seal(id, ..), Some(owner)) if owner.id == id => listing.add(name),
            _ => listing.strange.push(text),
        }
    }
    Ok(listing)
}

pub(super) fn is_missing(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error().map(Errno::from_raw),
        Some(Errno::ENOENT | Errno::ESTALE)
    )
}

/// Adds the name to an error that means that something else stands in its place. Errors of the file
/// system itself are returned unchanged, because callers tell them apart by their number.
pub(super) fn error_in_file(file: FileId, name: &str, e: io::Error) -> io::Error {
    let in_the_way = matches!(
        e.raw_os_error(),
        None | Some(libc::EISDIR | libc::ENOTDIR | libc::ELOOP)
    );
    if !in_the_way || e.kind() == io::ErrorKind::TimedOut {
        return e;
    }
    let [ab, fid] = names_of(file);
    let advice = match e.raw_os_error() {
        Some(_) => ": remove it",
        None => "",
    };
    io::Error::new(
        e.kind(),
        format!("files/{ab}/{fid}/{name} in the shared directory: {e}{advice}"),
    )
}
