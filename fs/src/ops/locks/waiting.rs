//! Waits for a lock, on a thread that has nothing else to do.
//!
//! The backing is asked repeatedly instead of being left to wait: a thread that sleeps in the backing could
//! not be woken when the requesting process is killed. While an owner of this node has a conflicting lock the
//! backing is not asked at all; an owner that gives up a lock here wakes the waiters.

use super::held::Piece;
use super::table::User;
use super::{LockRequest, Overlay};
use crate::backing::ofd::LockKind;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::requests::executor;
use std::time::Duration;

/// Pause between two attempts in the backing: doubled each time, from the first to the last of these.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LAST_PAUSE: Duration = Duration::from_millis(5);
/// This many waiters of a file may ask at that rate; if there are more, each asks less often.
const AT_FULL_RATE: u32 = 8;
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

impl Overlay {
    /// Waits until the lock is granted.
    pub(in crate::ops) fn wait_for(&self, ask: &LockRequest) -> Result<()> {
        let handle = self.handle(ask.fh)?;
        let Some(piece) = ask.piece()? else {
            return self.set_lock(ask);
        };
        let mut user = self.lock_user(&handle.inode, ask.owner, ask.caller.uid)?;
        user.wait_from_now();
        self.wait_as(&handle, &user, piece)
    }

    fn wait_as(&self, handle: &Handle, user: &User<'_>, piece: Piece) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        loop {
            if !executor::may_keep_waiting_for_lock() {
                return Err(FsError::Interrupted);
            }
            if !user.wait_here(piece.kind, piece.span, executor::check_interval()) {
                pause = FIRST_PAUSE;
                continue;
            }
            if self.take_lock(handle, user, piece)? {
                return Ok(());
            }
            user.pause(pause);
            let share = user.waiting().div_ceil(AT_FULL_RATE);
            let longest = LAST_PAUSE.saturating_mul(share).min(LONGEST_PAUSE);
            pause = (pause * 2).min(longest);
        }
    }
}

impl LockRequest {
    pub(super) fn piece_of(&self, kind: LockKind) -> Result<Piece> {
        Ok(Piece {
            span: self.span()?,
            kind,
            pid: self.pid,
            fh: self.fh,
        })
    }
}
