//! `absorb = coherent`: every read sees the last write that was acknowledged on any node.
//!
//! A write holds a lock of all nodes over its range until it is published; a read holds a shared lock until
//! it is done. So reads and writes that overlap take turns, and each sees everything that was acknowledged
//! before it: sequential consistency, at the price of a publication for each write. A truncation, an
//! allocation and a hole take the whole file for their turn, and are published within it too.
//!
//! The locks are the daemon's own ([`layout_index::sharing::shared_dir`]) and conflict with no lock of a user. A request waits
//! for one in short steps, on a thread that may wait, until `visibility-timeout` is over or the caller is killed.

use super::{Overlay, nodes::Others};
use crate::backing::ofd::{self, LockKind, Span};
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::Inode;
use crate::requests::executor;
use layout_index::{ByteRange, Wait};
use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// First and longest pause between two attempts.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(5);

impl Overlay {
    /// The other nodes, if reads and writes through this handle take turns with theirs.
    pub(super) fn turns(&self, handle: &Handle) -> Option<&Others> {
        self.others.as_ref().filter(|_| handle.coherent)
    }

    /// Waits for a lock over `range`, then refreshes. The lock ends when the returned file is closed.
    pub(super) fn take_turn(
        &self,
        others: &Others,
        inode: &Inode,
        file: &layout_index::File,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<File> {
        let lock = others.peers.shared_dir().open_lock_file(inode.id)?;
        let span = Span {
            first: range.start.min(ofd::LAST),
            last: range.end.saturating_sub(1).clamp(range.start, ofd::LAST),
        };
        let mut pause = SHORTEST;
        let deadline = Instant::now() + others.patience(file);
        while !ofd::set(lock.as_fd(), Some(kind), span)? {
            if Instant::now() >= deadline {
                return Err(FsError::NoTurn);
            }
            executor::sleep(pause)?;
            pause = (pause * 2).min(LONGEST);
        }
        self.refresh(inode, file, Wait::ForOthers)?;
        Ok(lock)
    }

    /// Takes a turn over the whole file if it is `coherent`, for operations that change its size or make
    /// holes. The caller must publish before it drops the turn.
    pub(super) fn turn_of_all(
        &self,
        inode: &Inode,
        file: &layout_index::File,
        coherent: bool,
    ) -> Result<Option<File>> {
        let Some(others) = self.others.as_ref().filter(|_| coherent) else {
            return Ok(None);
        };
        let turn = self.take_turn(others, inode, file, ByteRange::ALL, LockKind::Exclusive);
        turn.map(Some)
    }
}
