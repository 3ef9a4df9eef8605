//! `absorb = coherent`: every read sees the last write that was answered on any node.
//!
//! A write holds a lock over its range on all nodes until it is published; a read holds a shared one
//! while it looks. So reads and writes that overlap take turns, and each sees everything that was
//! answered before it: sequential consistency, at the price of a publication for each write. A
//! truncation, an allocation and a hole take the whole file for their turn, and are published within
//! it too.
//!
//! The locks are the daemon's own ([`layout_index::commons`]) and in nobody's way; waiting for one
//! is done in short steps, on a thread that may wait, until `visibility-timeout` is over or the caller is killed.

use super::{Overlay, nodes::Others};
use crate::backing::ofd::{self, LockKind, Span};
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::inode::Inode;
use crate::places;
use layout_index::{ByteRange, Wait};
use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// First and longest pause between two tries.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(5);

impl Overlay {
    /// The other nodes, if reads and writes are to take turns with theirs.
    pub(super) fn turns(&self, handle: &Handle) -> Option<&Others> {
        self.others.as_ref().filter(|_| handle.coherent)
    }

    /// Waits for a lock over `range`; it goes with the file that is returned.
    pub(super) fn take_turn(
        &self,
        others: &Others,
        inode: &Inode,
        file: &layout_index::File,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<File> {
        let lock = others.peers.commons().lock_file(inode.id)?;
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
            places::pause(pause)?;
            pause = (pause * 2).min(LONGEST);
        }
        self.refresh(inode, file, Wait::ForOthers)?;
        Ok(lock)
    }

    /// For what changes the size or makes holes: all of the file, if it is `coherent`. Whoever has
    /// this publishes before it goes.
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
