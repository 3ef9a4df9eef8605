//! The bytes of files in the shared directory: on which storage target they are, and how long
//! writing them may take.
//!
//! Names, links and times are kept by the metadata server, and work whatever becomes of a storage
//! target. Layouts, plans and bases have bytes, which are on a storage target. So new files of
//! these kinds are put on a target that is in use ([`crate::Placement`]), and a node that writes to one
//! waits for a limited time and then writes another file on another target. A late write counts for
//! nothing: by then the file is sealed, or it is removed by the node that wrote it. If several
//! targets do not answer, the file system itself is slow, and the node waits for the last one.
//!
//! *Killed while a write is late*: a temporary name is left, which the node that tidies the file
//! removes. A layout is sealed already, or the data that was to be appended is still in the store,
//! and no caller was told that it is published.
//!
//! Reads wait as long as the file system does: the layouts, plans and bases of other nodes exist in
//! one place only.

use super::{SharedDir, nodes};
use crate::beneath::remove_from;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

/// How many times a write is tried, each time on another target.
pub const WRITE_ATTEMPTS: usize = 4;

/// How long to wait for a write: until the deadline, because another place can be tried, or without
/// a limit, because this is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    UntilDeadline,
    Forever,
}

impl Patience {
    /// Patience of the `attempt`-th attempt, counted from 1.
    pub fn for_attempt(attempt: usize) -> Patience {
        match attempt < WRITE_ATTEMPTS {
            true => Patience::UntilDeadline,
            false => Patience::Forever,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that wait for the file system in place of a caller. A thread that hangs is reused only
/// after its call has come back.
#[derive(Default)]
pub(super) struct Waiters(Arc<Mutex<Vec<Sender<Job>>>>);

impl Waiters {
    fn run(&self, job: Job) -> io::Result<()> {
        let idle = self.0.lock().pop();
        let waiter = match idle {
            Some(waiter) => waiter,
            None => start_waiter()?,
        };
        // The only sender of a waiter is in the list or in the job that the waiter runs, so waiters
        // end with the list.
        let (itself, idle) = (waiter.clone(), Arc::downgrade(&self.0));
        let job: Job = Box::new(move || {
            job();
            if let Some(idle) = idle.upgrade() {
                idle.lock().push(itself);
            }
        });
        waiter.send(job).map_err(|_| waiter_ended())
    }
}

fn start_waiter() -> io::Result<Sender<Job>> {
    let (sender, jobs) = channel::<Job>();
    let thread = std::thread::Builder::new().name("forebay-shared-dir".into());
    thread.spawn(move || jobs.into_iter().for_each(|job| job()))?;
    Ok(sender)
}

fn waiter_ended() -> io::Error {
    io::Error::other("a thread that writes to the shared directory broke off")
}

impl SharedDir {
    /// Creates a file of this node on a chosen target, and returns that target if it is known.
    pub(super) fn create_on_target(
        &self,
        dir: BorrowedFd<'_>,
        name: &str,
    ) -> io::Result<(File, Option<u32>)> {
        let Some(placement) = &self.placement else {
            return Ok((nodes::create_file(dir, name, 0)?, None));
        };
        let file = nodes::create_file(dir, name, placement.create_flags())?;
        let place = placement.place_on_one(file.as_fd());
        Ok((file, place))
    }

    pub(super) fn place_answers(&self, place: u32) -> bool {
        let placement = self.placement.as_ref();
        placement.is_none_or(|placement| placement.answers(place))
    }

    /// Runs `act`, which works on the bytes of a file at `place`. `None` if `act` has not come back
    /// in time: it may still be done later, and `late` is called then. The file must not be removed
    /// before that: the removal would wait for the write, and all callers that need the file's
    /// directory would wait for the removal.
    pub(super) fn run_with_deadline<T: Send + 'static>(
        &self,
        place: Option<u32>,
        patience: Patience,
        act: impl FnOnce() -> io::Result<T> + Send + 'static,
        late: impl FnOnce() + Send + 'static,
    ) -> io::Result<Option<T>> {
        let placement = self.placement.as_ref();
        let Some(placement) = placement.filter(|_| patience == Patience::UntilDeadline) else {
            return act().map(Some);
        };
        let flight = place.map(|place| placement.begin_write(place));
        let (done, answer) = channel();
        // Either the answer is taken or `late` is called: never both, and never neither.
        let waits = Arc::new(Mutex::new(true));
        let awaited = waits.clone();
        self.waiters.run(Box::new(move || {
            let result = act();
            drop(flight);
            let awaited = awaited.lock();
            let heard = *awaited && done.send(result).is_ok();
            drop(awaited);
            if !heard {
                late();
            }
        }))?;
        match answer.recv_timeout(placement.deadline()) {
            Ok(result) => result.map(Some),
            Err(RecvTimeoutError::Timeout) => {
                let mut waits = waits.lock();
                *waits = false;
                answer.try_recv().ok().transpose()
            }
            Err(RecvTimeoutError::Disconnected) => Err(waiter_ended()),
        }
    }

    /// The error for callers that cannot go on without a write that is late.
    pub(super) fn deadline_error(&self) -> io::Error {
        let deadline = self.placement.as_ref().map(|it| it.deadline());
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "writing to the shared directory has not come back for {:?}",
                deadline.unwrap_or_default()
            ),
        )
    }
}

/// Removes files whose write came too late.
pub(super) fn remove_late(dir: OwnedFd, names: &[String]) {
    for name in names {
        if let Err(error) = remove_from(dir.as_fd(), name) {
            tracing::warn!(%error, "{name} was written too late and stays in the shared directory");
        }
    }
}
