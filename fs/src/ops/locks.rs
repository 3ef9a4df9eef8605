//! Locks that hold across nodes: fcntl's and flock's, kept as locks of the canonical file.
//!
//! # Consistency
//! Each owner of locks on a file has an open file description of the canonical file of its own,
//! and the daemon takes the backing's locks on that. So whatever the backing lets exclude each
//! other does: owners on this node, on other nodes, and programs that do not use the overlay. What
//! is noted here beside it is for naming holders and for letting go; the backing decides.
//!
//! Requests do not say whether they are flock's or fcntl's. Both are in one space, as on NFS
//! (docs/decisions/0009-locks-across-nodes.md).
//!
//! # Letting go
//! - An unlock gives up a range, which may be part of what is held.
//! - A flush comes with each close, before it returns, and names the closing process's owner: all
//!   that this owner has on the file goes, as POSIX wants it.
//! - A release comes when the last copy of an open file is closed. All that was taken through it
//!   goes, of whatever owner: flock and open-file-description locks are the open file's own, and
//!   any other owner has flushed before. Not by the owner's number: the kernel may have given that
//!   to a new open file already, for releases are late. An attempt that finds such a lock still
//!   held waits for the release (`closing`).
//!
//! A lock that is granted while its asker dies is granted all the same, and goes by the flush or
//! release that follows; these cannot overtake the answer, since whoever waits for it holds the
//! file open. If the handle is gone for another reason (the connection was cut), the lock is given
//! back at once.
//!
//! # Crash behaviour
//! Locks are not recorded. They go with the daemon's descriptors, when it is killed too; a node
//! that dies has what the backing does with its clients' locks.
//!
//! # Threads
//! Everything here may wait for the backing, but for [`Overlay::has_locks`]. Waiting for a lock is
//! done on threads of its own, see `waiting`.

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
use waiting::Waiters;

const BOTH: [LockKind; 2] = [LockKind::Shared, LockKind::Exclusive];

#[derive(Default)]
pub(super) struct Locks {
    table: LockTable,
    waiters: Waiters,
    closing: Arc<Closing>,
    #[cfg(test)]
    pub(super) told: super::tests::locks::Told,
}

/// What fcntl or flock asks.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    pub fh: u64,
    /// Who holds locks: a process, or an open file. Unique on this mount.
    pub owner: u64,
    /// First and last byte; the largest offset there is stands for the end, wherever it will be.
    pub first: u64,
    pub last: u64,
    /// `None` unlocks.
    pub kind: Option<LockKind>,
    /// The process, as others shall see it.
    pub pid: u32,
    /// The thread that waits for the answer.
    pub asker: Caller,
}

impl LockRequest {
    fn span(&self) -> Result<Span> {
        Span::new(self.first, self.last).ok_or(FsError::Invalid("no such range to lock"))
    }

    fn piece(&self) -> Result<Option<Piece>> {
        self.kind.map(|kind| self.piece_of(kind)).transpose()
    }
}

/// A lock that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub first: u64,
    pub last: u64,
    pub kind: LockKind,
    /// 0 when the holder is not on this node, or not known.
    pub pid: u32,
}

impl Overlay {
    /// A lock was taken, and nobody has been told yet. An error gives it back and is the answer.
    fn lock_taken(&self, handle: &Handle) -> Result<()> {
        #[cfg(test)]
        self.locks.told.taken(handle)?;
        self.refresh_handle(handle)
    }

    /// A lock is about to be given up, as a whole or in part, or to become a shared one. It goes
    /// whatever this says; an error is the answer. May wait for the backing.
    fn lock_going(&self, handle: &Handle) -> Result<()> {
        #[cfg(test)]
        self.locks.told.going(handle)?;
        self.publish(&handle.file)
    }

    /// A process of this node has locks on that file (or is about to). Never waits.
    pub fn has_locks(&self, fh: u64) -> bool {
        let handle = self.handles.get(&fh).map(|h| h.inode.node);
        handle.is_some_and(|node| self.locks.table.has(node))
    }

    /// A lock that keeps the owner from what it asks for. Asked for no kind, a lock of its own.
    pub fn get_lock(&self, ask: &LockRequest) -> Result<Option<Conflict>> {
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
            // The handle's own description never has locks: all there are belong to others.
            None => ofd::get(handle.canonical.fd(), kind, span)?,
        };
        Ok(found.map(|found| {
            let common = found.span.and(span).unwrap_or(span);
            let here = self.locks.table.in_the_way(node, ask.owner, kind, common);
            let pid = here.map(|piece| piece.pid).or(found.pid);
            conflict(found.span, found.kind, pid.unwrap_or(0))
        }))
    }

    /// Takes or gives up a lock, or says that another owner is in the way (`FsError::Locked`).
    pub fn set_lock(&self, ask: &LockRequest) -> Result<()> {
        let handle = self.handle(ask.fh)?;
        let Some(piece) = ask.piece()? else {
            return self.unlock(&handle, ask.owner, ask.span()?);
        };
        let user = self.lock_user(&handle.inode, ask.owner, ask.asker.uid)?;
        match self.take_lock(&handle, &user, piece)? {
            true => Ok(()),
            false => Err(FsError::Locked),
        }
    }

    /// False when another owner is in the way.
    fn take_lock(&self, handle: &Handle, user: &User<'_>, piece: Piece) -> Result<bool> {
        let shrinks =
            piece.kind == LockKind::Shared && user.holds(piece.span, &[LockKind::Exclusive]);
        let going = if shrinks {
            self.lock_going(handle)
        } else {
            Ok(())
        };
        let Some(before) = user.take(piece)? else {
            return Ok(false);
        };
        // A release takes the handle away first and looks for its locks then: either it finds this
        // one, or this finds the handle gone.
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

    /// A process closes the file: its locks go, through whichever handle they were taken.
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

    /// The open file is closed, and not in the table of handles any more.
    pub(super) fn drop_locks_of_handle(&self, handle: &Handle) -> Result<()> {
        let owners = self.locks.table.through(handle.inode.node, handle.fh);
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

    /// The session has ended: requests that wait for a lock or for another node give up.
    pub fn end_lock_waits(&self) {
        self.locks.waiters.end();
        self.places.end();
    }

    #[cfg(test)]
    pub(super) fn lock_owners(&self) -> usize {
        self.locks.table.owners()
    }

    #[cfg(test)]
    pub(super) fn lock_users(&self) -> usize {
        self.locks.table.users()
    }

    /// Threads that wait for locks now.
    pub fn lock_waiters(&self) -> usize {
        self.locks.waiters.count()
    }
}
