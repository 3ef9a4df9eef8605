//! Who holds what here, and the descriptions it is held with.
//!
//! One mutex for the table, held for map operations only: a flush on an event loop asks it. Each
//! owner's description has a mutex of its own, held during the system calls on it, so that what is
//! noted in the table is in the order of the calls. Order: description, table, inodes.
//!
//! An owner is in the table while it holds something or somebody uses it (waits for a lock with
//! it): taking it out earlier would give one owner two descriptions, which exclude each other.
//! It counts as a handle of its node for as long, in the share of the user who asked.

use super::held::{Held, Piece};
use crate::backing::ofd::{self, LockKind, Span};
use crate::backing::{Creds, sys};
use crate::errno::{FsError, Result};
use crate::inode::Inode;
use crate::ops::Overlay;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct LockTable {
    files: Mutex<HashMap<u64, FileLocks>>,
}

#[derive(Default)]
struct FileLocks {
    owners: HashMap<u64, Slot>,
    /// Somebody here gave something up.
    freed: Arc<Condvar>,
    waiting: u32,
}

#[derive(Default)]
struct Slot {
    description: Arc<Mutex<Description>>,
    held: Held,
    users: usize,
    /// Whose share its descriptor counts in: of the one who asked first.
    uid: u32,
}

impl LockTable {
    pub fn has(&self, node: u64) -> bool {
        self.files.lock().contains_key(&node)
    }

    /// Something is held that was taken through `fh`.
    pub fn is_held_through(&self, node: u64, fh: u64) -> bool {
        let files = self.files.lock();
        let mut slots = files.get(&node).into_iter().flat_map(|f| f.owners.values());
        slots.any(|slot| slot.held.through(fh).next().is_some())
    }

    /// Owners that hold something taken through `fh`.
    pub fn through(&self, node: u64, fh: u64) -> Vec<(u64, Vec<Span>)> {
        let files = self.files.lock();
        let Some(file) = files.get(&node) else {
            return vec![];
        };
        let of = |slot: &Slot| -> Vec<Span> { slot.held.through(fh).collect() };
        let owners = file.owners.iter().map(|(owner, slot)| (*owner, of(slot)));
        owners.filter(|(_, spans)| !spans.is_empty()).collect()
    }

    /// What the owner itself holds first within `span`.
    pub fn own(&self, node: u64, owner: u64, span: Span) -> Option<Piece> {
        let files = self.files.lock();
        let slot = files.get(&node)?.owners.get(&owner)?;
        slot.held.within(span).next()
    }

    /// What another owner of this node holds that keeps `owner` from `kind` over `span`.
    pub fn in_the_way(&self, node: u64, owner: u64, kind: LockKind, span: Span) -> Option<Piece> {
        in_the_way(self.files.lock().get(&node)?, owner, kind, span).next()
    }

    /// Handles through which other owners of this node hold what keeps `owner` from `kind`.
    pub fn handles_in_the_way(
        &self,
        node: u64,
        owner: u64,
        kind: LockKind,
        span: Span,
    ) -> Vec<u64> {
        let files = self.files.lock();
        let file = files.get(&node).into_iter();
        let pieces = file.flat_map(|file| in_the_way(file, owner, kind, span));
        pieces.map(|piece| piece.fh).collect()
    }

    #[cfg(test)]
    pub fn owners(&self) -> usize {
        self.files.lock().values().map(|f| f.owners.len()).sum()
    }

    #[cfg(test)]
    pub fn users(&self) -> usize {
        let files = self.files.lock();
        let slots = files.values().flat_map(|f| f.owners.values());
        slots.map(|slot| slot.users).sum()
    }
}

fn in_the_way(
    file: &FileLocks,
    owner: u64,
    kind: LockKind,
    span: Span,
) -> impl Iterator<Item = Piece> + '_ {
    let others = file
        .owners
        .iter()
        .filter(move |(other, _)| **other != owner);
    others
        .flat_map(move |(_, slot)| slot.held.within(span))
        .filter(move |piece| piece.kind.excludes(kind))
}

/// The open file description that an owner's locks are on.
#[derive(Default)]
pub struct Description(Option<OwnedFd>);

impl Description {
    fn open(&mut self, inode: &Inode) -> io::Result<BorrowedFd<'_>> {
        let fd = match self.0.take() {
            Some(fd) => fd,
            None => open_for_locks(inode)?,
        };
        let fd: &OwnedFd = self.0.insert(fd);
        Ok(fd.as_fd())
    }
}

/// For reading and writing, whatever the asker opened it for: an exclusive lock needs it. As the
/// daemon; as the file's owner where the daemon may not.
fn open_for_locks(inode: &Inode) -> io::Result<OwnedFd> {
    let stat = sys::stat(inode.fd())?;
    let owner = Creds::owner(stat.uid, stat.gid);
    let as_owner = |flags| {
        let _as_owner = owner.enter()?;
        sys::reopen(inode.fd(), flags)
    };
    let open = |flags| sys::reopen(inode.fd(), flags).or_else(|_| as_owner(flags));
    open(libc::O_RDWR).or_else(|_| open(libc::O_RDONLY))
}

/// One owner of locks on one file, being used: it stays in the table for as long as this lives.
pub struct User<'a> {
    overlay: &'a Overlay,
    inode: Arc<Inode>,
    owner: u64,
    description: Arc<Mutex<Description>>,
    freed: Arc<Condvar>,
    waits: bool,
}

impl Overlay {
    pub(super) fn lock_user(&self, inode: &Arc<Inode>, owner: u64, uid: u32) -> Result<User<'_>> {
        let mut files = self.locks.table.files.lock();
        let known = files
            .get(&inode.node)
            .is_some_and(|file| file.owners.contains_key(&owner));
        if !known {
            self.need_handle(inode.node, uid).map_err(|e| match e {
                FsError::TooManyFiles => FsError::NoLocks,
                e => e,
            })?;
        }
        let file = files.entry(inode.node).or_default();
        let new = Slot {
            uid,
            ..Slot::default()
        };
        let slot = file.owners.entry(owner).or_insert(new);
        slot.users += 1;
        Ok(User {
            overlay: self,
            inode: inode.clone(),
            owner,
            description: slot.description.clone(),
            freed: file.freed.clone(),
            waits: false,
        })
    }

    /// `None` when the owner holds nothing.
    pub(super) fn known_lock_user(&self, inode: &Arc<Inode>, owner: u64) -> Option<User<'_>> {
        let mut files = self.locks.table.files.lock();
        let file = files.get_mut(&inode.node)?;
        let slot = file.owners.get_mut(&owner)?;
        slot.users += 1;
        Some(User {
            overlay: self,
            inode: inode.clone(),
            owner,
            description: slot.description.clone(),
            freed: file.freed.clone(),
            waits: false,
        })
    }
}

/// What was held over each part of a range.
pub type Before = Vec<(Span, Option<Piece>)>;

type Files<'a> = MutexGuard<'a, HashMap<u64, FileLocks>>;

impl User<'_> {
    fn files(&self) -> Files<'_> {
        self.overlay.locks.table.files.lock()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Slot) -> T) -> T {
        let mut files = self.files();
        let file = files.entry(self.inode.node).or_default();
        change(file.owners.entry(self.owner).or_default())
    }

    pub fn holds(&self, span: Span, kinds: &[LockKind]) -> bool {
        self.change(|slot| slot.held.within(span).any(|p| kinds.contains(&p.kind)))
    }

    /// Takes `piece` if nobody is in the way, and says what was held there before.
    pub fn take(&self, piece: Piece) -> io::Result<Option<Before>> {
        let mut description = self.description.lock();
        let fd = description.open(&self.inode)?;
        if !ofd::set(fd, Some(piece.kind), piece.span)? {
            return Ok(None);
        }
        let before = self.change(|slot| {
            let before = slot.held.cover(piece.span);
            slot.held.insert(piece);
            before
        });
        self.freed.notify_all();
        Ok(Some(before))
    }

    /// Back to what was held before a `take`. Only ever gives up, so nobody can be in the way.
    pub fn restore(&self, before: &Before) -> io::Result<()> {
        before.iter().try_for_each(|(span, piece)| match piece {
            None => self.give_up(*span),
            Some(piece) => self.take(*piece).map(drop),
        })
    }

    pub fn give_up(&self, span: Span) -> io::Result<()> {
        let description = self.description.lock();
        if let Some(fd) = &description.0 {
            ofd::set(fd.as_fd(), None, span)?;
        }
        self.change(|slot| slot.held.remove(span));
        self.freed.notify_all();
        Ok(())
    }

    /// For an owner that will not ask again: nothing stays locked, whatever the backing says.
    pub fn drop_all(&self, spans: &[Span]) -> io::Result<()> {
        let dropped = spans.iter().try_for_each(|span| self.give_up(*span));
        if dropped.is_err() {
            // The locks go with the description.
            let mut description = self.description.lock();
            description.0 = None;
            self.change(|slot| slot.held.remove(Span::ALL));
            self.freed.notify_all();
        }
        dropped
    }

    pub fn found_in_backing(&self, kind: LockKind, span: Span) -> io::Result<Option<ofd::Found>> {
        let mut description = self.description.lock();
        ofd::get(description.open(&self.inode)?, kind, span)
    }

    /// Counts as waiting from here on.
    pub fn wait_from_now(&mut self) {
        self.waits = true;
        if let Some(file) = self.files().get_mut(&self.inode.node) {
            file.waiting += 1;
        }
    }

    /// How many wait for this file.
    pub fn waiting(&self) -> u32 {
        self.files().get(&self.inode.node).map_or(0, |f| f.waiting)
    }

    /// Waits until nobody of this node is in the way, and no longer than `limit`. False when
    /// somebody still is.
    pub fn wait_here(&self, kind: LockKind, span: Span, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut files = self.files();
        loop {
            let file = files.get(&self.inode.node);
            let mut pieces = file
                .into_iter()
                .flat_map(|f| in_the_way(f, self.owner, kind, span));
            if pieces.next().is_none() {
                return true;
            }
            drop(pieces);
            if self.freed.wait_until(&mut files, deadline).timed_out() {
                return false;
            }
        }
    }

    /// Until something is given up here, and no longer than `limit`.
    pub fn pause(&self, limit: Duration) {
        self.freed.wait_for(&mut self.files(), limit);
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        let gone = {
            let mut files = self.files();
            let Entry::Occupied(mut file) = files.entry(self.inode.node) else {
                return;
            };
            file.get_mut().waiting -= u32::from(self.waits);
            let Entry::Occupied(mut slot) = file.get_mut().owners.entry(self.owner) else {
                return;
            };
            slot.get_mut().users -= 1;
            let is_gone = slot.get().users == 0 && slot.get().held.is_empty();
            let gone = is_gone.then(|| slot.remove());
            if file.get().owners.is_empty() {
                file.remove();
            }
            gone
        };
        if let Some(gone) = gone {
            self.description.lock().0 = None;
            self.overlay.handle_gone(&self.inode, gone.uid);
        }
    }
}
