//! The locks that are held on this node, by file and owner, and the descriptions with which they are held.
//!
//! One mutex protects the table. It is locked for map operations only, because a flush on an event loop uses
//! it. Each owner's description has a mutex of its own, which is locked during system calls on it, so that
//! the table is changed in the order of the calls. Lock order: description, table, inodes.
//!
//! An owner is in the table while it holds something or a request uses it (waits for a lock with it): if it
//! were removed earlier, one owner could get two descriptions, which exclude each other. For as long it
//! counts as a handle of its node, in the share of the requesting user.

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
    /// Signalled when the locks of an owner of this node change.
    freed: Arc<Condvar>,
    waiting: u32,
}

#[derive(Default)]
struct Slot {
    description: Arc<Mutex<Description>>,
    held: Held,
    users: usize,
    /// The user in whose share the descriptor counts: the first one that requested a lock for this owner.
    uid: u32,
}

impl LockTable {
    pub fn has(&self, node: u64) -> bool {
        self.files.lock().contains_key(&node)
    }

    /// True if a lock is held that was taken through `fh`.
    pub fn is_held_through(&self, node: u64, fh: u64) -> bool {
        let files = self.files.lock();
        let mut slots = files.get(&node).into_iter().flat_map(|f| f.owners.values());
        slots.any(|slot| slot.held.spans_of_handle(fh).next().is_some())
    }

    /// The owners that hold locks taken through `fh`, with the ranges.
    pub fn locks_of_handle(&self, node: u64, fh: u64) -> Vec<(u64, Vec<Span>)> {
        let files = self.files.lock();
        let Some(file) = files.get(&node) else {
            return vec![];
        };
        let of = |slot: &Slot| -> Vec<Span> { slot.held.spans_of_handle(fh).collect() };
        let owners = file.owners.iter().map(|(owner, slot)| (*owner, of(slot)));
        owners.filter(|(_, spans)| !spans.is_empty()).collect()
    }

    /// The first lock within `span` that the owner itself holds.
    pub fn own(&self, node: u64, owner: u64, span: Span) -> Option<Piece> {
        let files = self.files.lock();
        let slot = files.get(&node)?.owners.get(&owner)?;
        slot.held.within(span).next()
    }

    /// A lock of another owner of this node that keeps `owner` from taking `kind` over `span`.
    pub fn in_the_way(&self, node: u64, owner: u64, kind: LockKind, span: Span) -> Option<Piece> {
        in_the_way(self.files.lock().get(&node)?, owner, kind, span).next()
    }

    /// The handles through which other owners of this node hold locks that keep `owner` from taking `kind`.
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

/// The open file description that holds an owner's locks.
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

/// Opens the file for reading and writing, however the requesting process has opened it: an exclusive lock
/// needs that. Opens it as the daemon, or as the file's owner where the daemon may not.
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

/// A reference to one owner of locks on one file: the owner stays in the table for as long as this exists.
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

    /// `None` if the owner is not in the table: it holds no lock, and no request uses it.
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

/// The locks that were held before over each part of a range.
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

    /// Takes `piece` and returns what was held there before; `None` if another owner has a conflicting lock.
    pub fn try_lock(&self, piece: Piece) -> io::Result<Option<Before>> {
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

    /// Restores what was held before a `take`. This only gives locks up, so it cannot conflict with another owner.
    pub fn restore(&self, before: &Before) -> io::Result<()> {
        before.iter().try_for_each(|(span, piece)| match piece {
            None => self.give_up(*span),
            Some(piece) => self.try_lock(*piece).map(drop),
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

    /// For an owner that will not try again: nothing stays locked, whatever the backing returns.
    pub fn drop_all(&self, spans: &[Span]) -> io::Result<()> {
        let dropped = spans.iter().try_for_each(|span| self.give_up(*span));
        if dropped.is_err() {
            // Closing the description gives up its locks.
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

    /// From here on this reference counts as waiting.
    pub fn wait_from_now(&mut self) {
        self.waits = true;
        if let Some(file) = self.files().get_mut(&self.inode.node) {
            file.waiting += 1;
        }
    }

    /// Number of requests that wait for this file.
    pub fn waiting(&self) -> u32 {
        self.files().get(&self.inode.node).map_or(0, |f| f.waiting)
    }

    /// Waits until no owner of this node has a conflicting lock, for at most `limit`. False if one still has.
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

    /// Waits until locks on the file change on this node, for at most `limit`.
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
