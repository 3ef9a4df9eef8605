//! Locks that hold across nodes: those of fcntl and flock, held as locks of the canonical file.
//!
//! # Consistency
//! Each owner of locks on a file has an open file description of the canonical file of its own, and the
//! daemon takes the backing's locks on that. So everything excludes each other that does so in the backing:
//! owners on this node, on other nodes, and programs that do not use the overlay. The daemon also notes the
//! locks, to name their holders and to give them up; the backing decides.
//!
//! Requests do not say whether they are from flock or fcntl. Both kinds are in one space, as on NFS
//! (docs/decisions/0009-locks-across-nodes.md).
//!
//! # Giving locks up
//! - An unlock gives up a range, which may be part of a held lock.
//! - A flush comes with each close, before it returns, and names the owner of the closing process: all locks
//!   of this owner on the file are given up, as POSIX requires.
//! - A release comes when the last copy of an open file is closed. All locks that were taken through it are given
//!   up, whatever their owner: flock and open-file-description locks belong to the open file, and any other owner
//!   has flushed before. The owner's number is not used, because the kernel may have given it to a new open file
//!   already: releases are late. An attempt that finds such a lock still held waits for the release (`closing`).
//!
//! If the caller dies while its lock is granted, the lock is granted all the same, and is given up by the flush or
//! release that follows. These cannot overtake the answer, because the process that waits for the answer holds the
//! file open. If the handle is gone for another reason (the connection was cut), the lock is given up at once.
//!
//! # Crash behaviour
//! Locks are not recorded. They end with the daemon's descriptors, also when the daemon is killed. The locks
//! of a node that dies are treated as the backing treats those of a dead client.
//!
//! # Threads
//! Everything here may wait for the backing, except [`Overlay::has_locks`]. What would wait for another owner's
//! lock is returned as [`Attempt::Wait`], for a thread that may wait without end.

mod closing;
mod held;
mod table;
mod waiting;

use super::Overlay;
use crate::backing::ofd::{self, LockKind, Span};
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::types::Caller;
use closing::Closing;
use held::Piece;
use std::sync::Arc;
use table::{LockTable, User};

const BOTH: [LockKind; 2] = [LockKind::Shared, LockKind::Exclusive];

#[derive(Default)]
pub(super) struct Locks {
    table: LockTable,
    closing: Arc<Closing>,
    #[cfg(test)]
    pub(super) told: super::tests::locks::Told,
}

/// The outcome of a request that may have to wait for another owner's lock.
pub enum Attempt<T> {
    Done(Result<T>),
    /// Waits, and returns the outcome.
    Wait(LockWait<T>),
}

pub type LockWait<T> = Box<dyn FnOnce(&Overlay) -> Result<T> + Send>;

/// A request of fcntl or flock.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    pub fh: u64,
    /// The owner of the locks: a process, or an open file. Unique on this mount.
    pub owner: u64,
    /// First and last byte; the largest possible offset stands for the end of the file, wherever that will be.
    pub first: u64,
    pub last: u64,
    /// `None` unlocks.
    pub kind: Option<LockKind>,
    /// The number of the process that is shown to others.
    pub pid: u32,
    /// The user and the thread that wait for the answer.
    pub caller: Caller,
}

impl LockRequest {
    fn span(&self) -> Result<Span> {
        Span::new(self.first, self.last).ok_or(FsError::Invalid("no such range to lock"))
    }

    fn piece(&self) -> Result<Option<Piece>> {
        self.kind.map(|kind| self.piece_of(kind)).transpose()
    }
}

/// A lock that conflicts with a requested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub first: u64,
    pub last: u64,
    pub kind: LockKind,
    /// 0 if the holder is not on this node, or not known.
    pub pid: u32,
}

impl Overlay {
    /// Called when a lock was taken and before the request is answered. If it fails, the lock is given up and
    /// the error is the answer.
    fn lock_taken(&self, handle: &Handle) -> Result<()> {
        #[cfg(test)]
        self.locks.told.taken(handle)?;
        self.refresh_handle(handle)
    }

    /// Called before a lock is given up, as a whole or in part, or becomes a shared one. The lock is given up
    /// even if this fails; the error is then the answer. May wait for the backing.
    fn lock_going(&self, handle: &Handle) -> Result<()> {
        #[cfg(test)]
        self.locks.told.going(handle)?;
        self.publish(&handle.file)
    }

    /// True if a process of this node has locks on the file of this handle, or is about to. Never waits.
    pub fn has_locks(&self, fh: u64) -> bool {
        let handle = self.handles.get(&fh).map(|h| h.inode.node);
        handle.is_some_and(|node| self.locks.table.has(node))
    }

    /// Returns a lock that keeps the owner from taking the requested one; if no kind is given, a
    /// lock of the owner itself.
    pub fn find_lock(&self, ask: LockRequest) -> Attempt<Option<Conflict>> {
        match self.get_lock(&ask) {
            Ok(Some(_)) if ask.kind.is_some() => {
                self.try_after_closes(ask, Self::get_lock, |found| matches!(found, Ok(Some(_))))
            }
            found => Attempt::Done(found),
        }
    }

    /// Takes or gives up a lock. If another owner has a conflicting lock, waits for it if `wait` is set, and
    /// otherwise fails with `FsError::Locked`.
    pub fn lock(&self, ask: LockRequest, wait: bool) -> Attempt<()> {
        match self.set_lock(&ask) {
            Err(FsError::Locked) if wait => Attempt::Wait(Box::new(move |fs| fs.wait_for(&ask))),
            Err(FsError::Locked) => self.try_after_closes(ask, Self::set_lock, |answer| {
                matches!(answer, Err(FsError::Locked))
            }),
            answer => Attempt::Done(answer),
        }
    }

    pub(super) fn get_lock(&self, ask: &LockRequest) -> Result<Option<Conflict>> {
        let handle = self.handle(ask.fh)?;
        let (node, span) = (handle.inode.node, ask.span()?);
        let conflict = |span: Span, kind, pid| Conflict {
            first: span.first,
            last: span.last,
            kind,
            pid,
        };
        let Some(kind) = ask.kind else {
            let own = self.locks.table.own(node, ask.owner, span);
            return Ok(own.map(|p| conflict(p.span, p.kind, p.pid)));
        };
        let found = match self.known_lock_user(&handle.inode, ask.owner) {
            Some(user) => user.found_in_backing(kind, span)?,
            // The handle's own description never has locks: every lock that it finds belongs to another owner.
            None => ofd::get(handle.canonical.fd(), kind, span)?,
        };
        Ok(found.map(|found| {
            let common = found.span.and(span).unwrap_or(span);
            let here = self.locks.table.in_the_way(node, ask.owner, kind, common);
            let pid = here.map(|piece| piece.pid).or(found.pid);
            conflict(found.span, found.kind, pid.unwrap_or(0))
        }))
    }

    /// Fails with `FsError::Locked` if another owner has a conflicting lock.
    pub(super) fn set_lock(&self, ask: &LockRequest) -> Result<()> {
        let handle = self.handle(ask.fh)?;
        let Some(piece) = ask.piece()? else {
            return self.unlock(&handle, ask.owner, ask.span()?);
        };
        let user = self.lock_user(&handle.inode, ask.owner, ask.caller.uid)?;
        match self.take_lock(&handle, &user, piece)? {
            true => Ok(()),
            false => Err(FsError::Locked),
        }
    }

    /// False if another owner has a conflicting lock.
    fn take_lock(&self, handle: &Handle, user: &User<'_>, piece: Piece) -> Result<bool> {
        let shrinks =
            piece.kind == LockKind::Shared && user.holds(piece.span, &[LockKind::Exclusive]);
        let going = if shrinks {
            self.lock_going(handle)
        } else {
            Ok(())
        };
        let Some(before) = user.try_lock(piece)? else {
            return Ok(false);
        };
        // A release first removes the handle and then looks for its locks: either the release finds this
        // lock, or this check finds the handle gone.
        if !self.handles.contains_key(&piece.fh) {
            user.drop_all(&[piece.span])?;
            return Err(FsError::BadHandle(piece.fh));
        }
        let taken = self.lock_taken(handle);
        if taken.is_err() {
            user.restore(&before)?;
        }
        taken.and(going).map(|()| true)
    }

    fn unlock(&self, handle: &Handle, owner: u64, span: Span) -> Result<()> {
        let Some(user) = self.known_lock_user(&handle.inode, owner) else {
            return Ok(());
        };
        if !user.holds(span, &BOTH) {
            return Ok(());
        }
        let going = self.lock_going(handle);
        user.give_up(span)?;
        going
    }

    /// Called when a process closes the file: its locks are given up, through whichever handle they were taken.
    pub(super) fn drop_locks_of_owner(&self, handle: &Handle, owner: u64) -> Result<()> {
        let Some(user) = self.known_lock_user(&handle.inode, owner) else {
            return Ok(());
        };
        if !user.holds(Span::ALL, &BOTH) {
            return Ok(());
        }
        let going = self.lock_going(handle);
        user.drop_all(&[Span::ALL])?;
        going
    }

    /// Called when the open file is closed, and removed from the table of handles.
    pub(super) fn drop_locks_of_handle(&self, handle: &Handle) -> Result<()> {
        let owners = self
            .locks
            .table
            .locks_of_handle(handle.inode.node, handle.fh);
        if owners.is_empty() {
            return Ok(());
        }
        let mut first = self.lock_going(handle);
        for (owner, spans) in owners {
            if let Some(user) = self.known_lock_user(&handle.inode, owner) {
                first = first.and(user.drop_all(&spans).map_err(FsError::from));
            }
        }
        first
    }

    #[cfg(test)]
    pub(super) fn lock_owners(&self) -> usize {
        self.locks.table.owners()
    }

    #[cfg(test)]
    pub(super) fn lock_users(&self) -> usize {
        self.locks.table.users()
    }
}
