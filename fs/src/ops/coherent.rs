//! `absorb = coherent`: every read sees the last write that was answered on any node.
//!
//! A write holds a lock over its range on all nodes until it is published; a read holds a shared one
//! while it looks. So reads and writes that overlap take turns, and each sees everything that was
//! answered before it: sequential consistency, at the price of a publication for each write.
//!
//! The locks are the daemon's own ([`layout_index::commons`]) and in nobody's way; waiting for one
//! is done in short steps, on a thread that may wait.

use super::{Overlay, nodes::Others};
use crate::backing::ofd::{self, LockKind, Span};
use crate::errno::Result;
use crate::handle::Handle;
use layout_index::{ByteRange, Wait};
use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

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
        handle: &Handle,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<File> {
        let file = others.peers.commons().lock_file(handle.inode.id)?;
        let span = Span {
            first: range.start.min(ofd::LAST),
            last: range.end.saturating_sub(1).clamp(range.start, ofd::LAST),
        };
        let mut pause = SHORTEST;
        while !ofd::set(file.as_fd(), Some(kind), span)? {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
        self.refresh(&handle.inode, &handle.file, Wait::ForOthers)?;
        Ok(file)
    }
}
