//! The directories that everything in the shared directory is in. Most are opened once, checked, and
//! held; those of locks are opened and checked for each call.
//!
//! A directory is used only if it belongs to the user that owns the daemon's own files and no other
//! user may write to it.

use super::names::{Name, Owner};
use super::sys::{self, NameStat};
use super::writer::{create_file, temporary_name};
use crate::beneath::{DIRECTORY, entries, remove_from, step_down, step_into};
use nix::errno::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

pub(super) const TOP: &str = ".forebay";
pub(super) const NODES: &str = "nodes";
pub(super) const NOTES: &str = "notes";
pub(super) const FILES: &str = "files";

pub(super) struct Roots {
    backing: OwnedFd,
    top: OwnedFd,
    pub nodes: OwnedFd,
    pub notes: OwnedFd,
    /// `None` if the shared directory is open for inspection: then there is no node that joins.
    pub my_notes: Option<OwnedFd>,
    pub files: OwnedFd,
    /// Owner of everything in the shared directory.
    pub uid: u32,
}

impl Roots {
    /// Opens the directories for a node, and makes those that are missing.
    pub fn make(backing: OwnedFd, me: Owner) -> io::Result<Roots> {
        let make = |dir: BorrowedFd<'_>, name: &str| step_into(dir, name, DIRECTORY).map(Some);
        let mut roots = Roots::open(backing, make)?.ok_or(Errno::ENOENT)?;
        roots.my_notes = make(roots.notes.as_fd(), &me.id.to_string())?;
        roots.uid = uid_of_new_files(roots.nodes.as_fd(), me)?;
        roots.checked()
    }

    /// Opens the directories for inspection. `None` if one is missing.
    pub fn find(backing: OwnedFd) -> io::Result<Option<Roots>> {
        let find = |dir: BorrowedFd<'_>, name: &str| step_down(dir, name, DIRECTORY);
        let Some(roots) = Roots::open(backing, find)? else {
            return Ok(None);
        };
        let me = nix::unistd::geteuid();
        if !me.is_root() && roots.uid != me.as_raw() {
            return Err(not_ours(TOP, roots.uid, 0o700, me.as_raw()));
        }
        roots.checked().map(Some)
    }

    fn open(
        backing: OwnedFd,
        step: impl Fn(BorrowedFd<'_>, &str) -> io::Result<Option<OwnedFd>>,
    ) -> io::Result<Option<Roots>> {
        let Some(top) = step(backing.as_fd(), TOP)? else {
            return Ok(None);
        };
        let below = |name| step(top.as_fd(), name);
        let (Some(nodes), Some(notes), Some(files)) = (below(NODES)?, below(NOTES)?, below(FILES)?)
        else {
            return Ok(None);
        };
        Ok(Some(Roots {
            uid: nix::sys::stat::fstat(&top)?.st_uid,
            backing,
            top,
            nodes,
            notes,
            my_notes: None,
            files,
        }))
    }

    fn checked(self) -> io::Result<Roots> {
        check_ours(&self.top, TOP, self.uid)?;
        check_ours(&self.nodes, NODES, self.uid)?;
        check_ours(&self.notes, NOTES, self.uid)?;
        if let Some(my_notes) = &self.my_notes {
            check_ours(my_notes, "notes of this node", self.uid)?;
        }
        check_ours(&self.files, FILES, self.uid)?;
        Ok(self)
    }

    /// Opens another directory beside these. `None` if it is missing.
    pub fn find_dir(&self, name: &str) -> io::Result<Option<OwnedFd>> {
        let dir = step_down(self.top.as_fd(), name, DIRECTORY)?;
        if let Some(dir) = &dir {
            check_ours(dir, name, self.uid)?;
        }
        Ok(dir)
    }

    /// Like [`Roots::find_dir`], but makes the directory if it is missing.
    pub fn make_dir(&self, name: &str) -> io::Result<OwnedFd> {
        let dir = step_into(self.top.as_fd(), name, DIRECTORY)?;
        check_ours(&dir, name, self.uid)?;
        Ok(dir)
    }

    /// Checks that the held directories still have their names: in a replaced directory only this
    /// daemon would see what it writes.
    pub fn check_not_replaced(&self) -> io::Result<()> {
        for (parent, name, held) in [
            (&self.backing, TOP, &self.top),
            (&self.top, FILES, &self.files),
        ] {
            let now = sys::stat_name(parent.as_fd(), name)?;
            let held = sys::stat_name(held.as_fd(), ".")?;
            if now.map(NameStat::identity) != held.map(NameStat::identity) {
                return Err(io::Error::new(
                    io::ErrorKind::StaleNetworkFileHandle,
                    format!(
                        "the shared directory {name} was removed or replaced while this daemon \
                         used it: start it again"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Returns the owner of files that this process creates in `dir`: a server may map root to another
/// user. Also removes temporary names that an earlier daemon of this node left there.
fn uid_of_new_files(dir: BorrowedFd<'_>, me: Owner) -> io::Result<u32> {
    for entry in entries(dir)? {
        if matches!(entry.name.parse(), Ok(Name::Temporary(id, _)) if id == me.id) {
            remove_from(dir, &entry.name)?;
        }
    }
    let name = temporary_name(me);
    let file = create_file(dir, &name, 0)?;
    let uid = file.metadata().map(|meta| meta.uid());
    remove_from(dir, &name)?;
    uid
}

/// A directory that other users can change cannot be trusted.
pub(super) fn check_ours(dir: &OwnedFd, name: &str, uid: u32) -> io::Result<()> {
    crate::calls::note("stat");
    let stat = nix::sys::stat::fstat(dir)?;
    if stat.st_uid != uid || stat.st_mode & 0o022 != 0 {
        return Err(not_ours(name, stat.st_uid, stat.st_mode & 0o7777, uid));
    }
    Ok(())
}

pub(super) fn not_ours(name: &str, owner: u32, mode: u32, uid: u32) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "the shared directory {name} (owner {owner}, mode {mode:o}) is not the daemon's \
             alone: chown it to user {uid} and chmod it 700, or remove it"
        ),
    )
}
