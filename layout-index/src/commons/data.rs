//! The bytes of files in the shared directory: on which storage target they lie, and how long
//! writing them may take.
//!
//! Names, links and times are the metadata server's, and work whatever becomes of a storage target.
//! Layouts, plans and bases have bytes, and those are somewhere. So new ones are put on a target
//! that is in use ([`Placing`]), and whoever writes to one waits for so long and then writes another,
//! elsewhere. What is written late counts for nothing: the file is sealed by then, or removed by
//! whoever wrote it. If several places do not answer, it is the file system that is slow, and the last
//! one is waited for.
//!
//! *Killed while something is late*: a temporary name is left, which whoever tidies the file removes; a
//! layout is sealed already, or what was to be appended is still in the store and was not promised.
//!
//! Reading waits for as long as the file system does: what another node says of a file cannot be
//! had elsewhere.

use super::{Commons, nodes};
use crate::beneath::remove_from;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How often something is written, each time elsewhere.
pub const PLACES: usize = 4;

/// Whether there is another place, or this is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    UntilDeadline,
    Forever,
}

impl Patience {
    /// At the `place`-th place, from 1 on.
    pub fn at(place: usize) -> Patience {
        match place < PLACES {
            true => Patience::UntilDeadline,
            false => Patience::Forever,
        }
    }
}

/// Who knows where bytes are taken.
pub trait Placing: Send + Sync {
    /// Flags for the call that makes the file, so that its place can still be chosen.
    fn create_flags(&self) -> i32;
    /// Gives a file without bytes its place: with each call another one, where there are several. `None`
    /// if nobody knows which.
    fn place(&self, file: BorrowedFd<'_>) -> Option<u32>;
    /// Something is on its way to that place, until what this returns is dropped. Who takes too long
    /// over that gets nothing more until it has come back.
    fn begin(&self, place: u32) -> Box<dyn Send>;
    /// Files there can be written to, as far as is known.
    fn answers(&self, place: u32) -> bool;
    /// How long a target has for an answer.
    fn deadline(&self) -> Duration;
}

type Act = Box<dyn FnOnce() + Send>;

/// Threads that wait for the file system in somebody's place. One that hangs is not used again
/// before it has come back.
#[derive(Default)]
pub(super) struct Waiters(Arc<Mutex<Vec<Sender<Act>>>>);

impl Waiters {
    fn hand(&self, act: Act) -> io::Result<()> {
        let idle = self.0.lock().pop();
        let waiter = match idle {
            Some(waiter) => waiter,
            None => start()?,
        };
        // Nobody else has a sender of it: a waiter ends with the list.
        let (itself, idle) = (waiter.clone(), Arc::downgrade(&self.0));
        let act: Act = Box::new(move || {
            act();
            if let Some(idle) = idle.upgrade() {
                idle.lock().push(itself);
            }
        });
        waiter.send(act).map_err(|_| ended())
    }
}

fn start() -> io::Result<Sender<Act>> {
    let (sender, acts) = channel::<Act>();
    let thread = std::thread::Builder::new().name("forebay-commons".into());
    thread.spawn(move || acts.into_iter().for_each(|act| act()))?;
    Ok(sender)
}

fn ended() -> io::Error {
    io::Error::other("a thread that writes to the shared directory broke off")
}

impl Commons {
    /// From now on files are placed, and waiting for them has an end.
    pub fn set_placing(&self, placing: Arc<dyn Placing>) {
        if self.placing.set(placing).is_err() {
            tracing::warn!("files in the shared directory have their places already");
        }
    }

    /// Makes a file of this node's, where it is to be, and says where that is.
    pub(super) fn create(
        &self,
        dir: BorrowedFd<'_>,
        name: &str,
    ) -> io::Result<(File, Option<u32>)> {
        let Some(placing) = self.placing.get() else {
            return Ok((nodes::create(dir, name, 0)?, None));
        };
        let file = nodes::create(dir, name, placing.create_flags())?;
        let place = placing.place(file.as_fd());
        Ok((file, place))
    }

    pub(super) fn answers(&self, place: u32) -> bool {
        let placing = self.placing.get();
        placing.is_none_or(|placing| placing.answers(place))
    }

    /// Does something with the bytes of a file that is at `place`. `None`: it has not come back in time, and may be
    /// done later; `late` follows then. The file must not be removed before: that waits for whoever
    /// writes to it, and makes all wait who need its directory.
    pub(super) fn in_time<T: Send + 'static>(
        &self,
        place: Option<u32>,
        patience: Patience,
        act: impl FnOnce() -> io::Result<T> + Send + 'static,
        late: impl FnOnce() + Send + 'static,
    ) -> io::Result<Option<T>> {
        let placing = self.placing.get();
        let Some(placing) = placing.filter(|_| patience == Patience::UntilDeadline) else {
            return act().map(Some);
        };
        let flight = place.map(|place| placing.begin(place));
        let (done, answer) = channel();
        // Either the answer is taken or `late` is called, never both and never neither.
        let waits = Arc::new(Mutex::new(true));
        let awaited = waits.clone();
        self.waiters.hand(Box::new(move || {
            let result = act();
            drop(flight);
            let awaited = awaited.lock();
            let heard = *awaited && done.send(result).is_ok();
            drop(awaited);
            if !heard {
                late();
            }
        }))?;
        match answer.recv_timeout(placing.deadline()) {
            Ok(result) => result.map(Some),
            Err(RecvTimeoutError::Timeout) => {
                let mut waits = waits.lock();
                *waits = false;
                answer.try_recv().ok().transpose()
            }
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }

    /// For those who cannot go on without it.
    pub(super) fn not_in_time(&self) -> io::Error {
        let deadline = self.placing.get().map(|placing| placing.deadline());
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "writing to the shared directory has not come back for {:?}",
                deadline.unwrap_or_default()
            ),
        )
    }
}

/// Removes what was written too late.
pub(super) fn remove_late(dir: OwnedFd, names: &[String]) {
    for name in names {
        if let Err(error) = remove_from(dir.as_fd(), name) {
            tracing::warn!(%error, "{name} was written too late and stays in the shared directory");
        }
    }
}
