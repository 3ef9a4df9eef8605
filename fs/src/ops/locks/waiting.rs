//! Waiting for a lock, on a thread of its own.
//!
//! The backing is asked again and again rather than left to wait: a thread that sleeps in the
//! backing could not be called back when the asker is killed. As long as an owner of this node is
//! in the way the backing is not asked at all; whoever gives something up here wakes the others.

use super::held::Piece;
use super::table::User;
use super::{LockRequest, Overlay};
use crate::asker::Asker;
use crate::backing::ofd::LockKind;
use crate::errno::{FsError, Result};
use crate::handle::Handle;
use crate::places::Origin;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Threads that wait at most. A user gets one more while more are left than the user has, as in [`crate::places`].
const MOST: usize = 4096;
const STACK: usize = 256 << 10;

/// Between two questions to the backing: doubled each time, from the one to the other.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LAST_PAUSE: Duration = Duration::from_millis(5);
/// So many waiters of a file may ask at that rate; if there are more, each asks less often.
const AT_FULL_RATE: u32 = 8;
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Between two looks at the asker's signals, and with very many waiters.
const LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_millis(500);

#[derive(Default)]
pub struct Waiters {
    by_user: Mutex<(usize, HashMap<u32, usize>)>,
    ended: AtomicBool,
}

impl Waiters {
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// The session has ended: no answer is heard any more.
    pub fn have_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub fn count(&self) -> usize {
        self.by_user.lock().0
    }

    fn admit(&self, uid: u32) -> bool {
        let mut counts = self.by_user.lock();
        let (all, of_users) = &mut *counts;
        let of_user = of_users.entry(uid).or_default();
        if *of_user >= MOST - *all {
            return false;
        }
        *of_user += 1;
        *all += 1;
        true
    }

    fn gone(&self, uid: u32) {
        let mut counts = self.by_user.lock();
        let (all, of_users) = &mut *counts;
        *all -= 1;
        if let Some(of_user) = of_users.get_mut(&uid) {
            *of_user -= 1;
            if *of_user == 0 {
                of_users.remove(&uid);
            }
        }
    }

    fn look_every(&self) -> Duration {
        let times = u32::try_from(self.count() / 64).unwrap_or(u32::MAX).max(1);
        LOOK.saturating_mul(times).min(LONGEST_LOOK)
    }
}

type Done<T> = Box<dyn FnOnce(Result<T>) + Send>;

impl Overlay {
    /// Waits until the lock is there and calls `done`, on a thread of its own; here, and with an
    /// error, when there are too many of those.
    pub fn wait_lock(self: &Arc<Self>, ask: LockRequest, done: Done<()>) {
        self.wait_apart(ask, move |fs| fs.wait_for(&ask), done);
    }

    /// The same for the answer of `wait`, which `ask` has to wait for.
    pub fn wait_apart<T: Send + 'static>(
        self: &Arc<Self>,
        ask: LockRequest,
        wait: impl FnOnce(&Overlay) -> Result<T> + Send + 'static,
        done: Done<T>,
    ) {
        let waiters = &self.locks.waiters;
        if !waiters.admit(ask.asker.uid) {
            return done(Err(FsError::NoLocks));
        }
        // A thread that could not be started would take `done` with it.
        let (give, given) = mpsc::channel::<Done<T>>();
        let overlay = self.clone();
        let started = std::thread::Builder::new()
            .name("lock-wait".into())
            .stack_size(STACK)
            .spawn(move || {
                let origin = Origin {
                    uid: ask.asker.uid,
                    tid: ask.asker.pid,
                };
                let waited = overlay.places.run_here(origin, || wait(&overlay));
                overlay.locks.waiters.gone(ask.asker.uid);
                if let Ok(done) = given.recv() {
                    done(waited);
                }
            });
        match started {
            Ok(_) => {
                if let Err(mpsc::SendError(done)) = give.send(done) {
                    done(Err(FsError::NoLocks));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "no thread to wait for a lock with");
                waiters.gone(ask.asker.uid);
                done(Err(FsError::NoLocks));
            }
        }
    }

    fn wait_for(&self, ask: &LockRequest) -> Result<()> {
        let handle = self.handle(ask.fh)?;
        let Some(piece) = ask.piece()? else {
            return self.set_lock(ask);
        };
        let mut user = self.lock_user(&handle.inode, ask.owner, ask.asker.uid)?;
        user.wait_from_now();
        self.wait_as(&handle, &user, piece, Asker::new(ask.asker.pid))
    }

    fn wait_as(
        &self,
        handle: &Handle,
        user: &User<'_>,
        piece: Piece,
        mut asker: Asker,
    ) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        let mut looked = Instant::now();
        loop {
            if self.locks.waiters.have_ended() {
                return Err(FsError::Interrupted);
            }
            let look_every = self.locks.waiters.look_every();
            if looked.elapsed() >= look_every {
                if asker.is_interrupted() {
                    return Err(FsError::Interrupted);
                }
                looked = Instant::now();
            }
            if !user.wait_here(piece.kind, piece.span, look_every) {
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
