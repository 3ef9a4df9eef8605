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
//! An append that is late goes on after its caller has stopped waiting. Until it has come back its
//! file must not be removed, and nothing more is sent to a target that does not answer. Nothing of
//! this is durable: after a start no write is under way, and the targets of layouts are not known.
//!
//! *Killed while a write is late*: a temporary name is left, which the node that tidies the file
//! removes. A layout is sealed already, or the data that was to be appended is still in the store,
//! and no caller was told that it is published.
//!
//! Reads wait as long as the file system does: the layouts, plans and bases of other nodes exist in
//! one place only.

use super::names::{Name, Owner};
use crate::Placement;
use crate::beneath::{beneath, remove_from};
use crate::types::FileId;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};

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

/// Layouts of this node that are being written to, and whether each is to be removed afterwards.
type OngoingWrites = Arc<Mutex<HashMap<Layout, Arc<AtomicBool>>>>;

/// A layout of this node: the file, and the number of the layout.
type Layout = (FileId, u32);

pub(super) struct OngoingWrite {
    all: OngoingWrites,
    layout: Layout,
    unwanted: Arc<AtomicBool>,
}

impl Drop for OngoingWrite {
    fn drop(&mut self) {
        self.all.lock().remove(&self.layout);
    }
}

/// Writes the bytes of this node's files in the shared directory. Callers see to it that a layout has
/// at most one ongoing write at any moment, and that its file is not removed before that comes back.
pub struct FileWriter {
    me: Owner,
    /// Puts new files on targets, so that waiting for writes to them is bounded.
    placement: OnceLock<Arc<dyn Placement>>,
    waiters: Waiters,
    ongoing: OngoingWrites,
    /// Storage targets of the layouts that this process has created, where known.
    places: Mutex<HashMap<Layout, u32>>,
}

impl FileWriter {
    pub(super) fn new(me: Owner) -> FileWriter {
        FileWriter {
            me,
            placement: OnceLock::new(),
            waiters: Waiters::default(),
            ongoing: OngoingWrites::default(),
            places: Mutex::default(),
        }
    }

    pub(super) fn set_placement(&self, placement: Option<Arc<dyn Placement>>) {
        if let Some(placement) = placement {
            self.placement.get_or_init(|| placement);
        }
    }

    /// Creates a file of this node on a chosen target, and returns that target if it is known.
    fn create_on_target(&self, dir: BorrowedFd<'_>, name: &str) -> io::Result<(File, Option<u32>)> {
        let Some(placement) = self.placement.get() else {
            return Ok((create_file(dir, name, 0)?, None));
        };
        let file = create_file(dir, name, placement.create_flags())?;
        let place = placement.place_on_one(file.as_fd());
        Ok((file, place))
    }

    /// Creates a layout of this node, and remembers its target.
    pub(super) fn create_layout(
        &self,
        dir: BorrowedFd<'_>,
        name: &str,
        layout: Layout,
    ) -> io::Result<File> {
        let (file, place) = self.create_on_target(dir, name)?;
        self.places
            .lock()
            .extend(place.map(|place| (layout, place)));
        Ok(file)
    }

    /// Appends to a layout of this node, which is open for writing, and syncs it.
    pub(super) fn append(
        &self,
        dir: BorrowedFd<'_>,
        open: File,
        layout: Layout,
        offset: u64,
        bytes: &Arc<[u8]>,
        patience: Patience,
    ) -> io::Result<()> {
        crate::calls::note("write");
        crate::calls::note("sync");
        let place = self.places.lock().get(&layout).copied();
        let bytes = bytes.clone();
        let writing = self.begin_write(layout);
        let late = self.after_late_append(dir, offset, &writing)?;
        let append = move || {
            let written = open.write_all_at(&bytes, offset);
            let synced = written.and_then(|()| open.sync_data());
            drop(writing);
            synced
        };
        let appended = self.run_with_deadline(place, patience, append, late)?;
        appended.ok_or_else(|| self.deadline_error())
    }

    /// Returns what is to be done when an append comes back after its caller has stopped waiting
    /// for it.
    pub(super) fn after_late_append(
        &self,
        dir: BorrowedFd<'_>,
        offset: u64,
        writing: &OngoingWrite,
    ) -> io::Result<impl FnOnce() + Send + 'static> {
        let dir = dir.try_clone_to_owned()?;
        let (unwanted, (_, number)) = (writing.unwanted.clone(), writing.layout);
        let names = [
            Name::Layout(self.me.id, number).to_string(),
            Name::Seal(self.me.id, number, offset).to_string(),
        ];
        Ok(move || {
            // A layout with earlier batches is removed when those are drained; it is removed here
            // if that happened while the append was under way.
            if offset == 0 || unwanted.load(Ordering::Acquire) {
                remove_late(dir, &names);
            }
        })
    }

    /// Writes a synced temporary file with these bytes, on some target that accepts them. `last` is
    /// the patience of the last attempt.
    pub(super) fn write_temporary(
        &self,
        dir: BorrowedFd<'_>,
        bytes: &Arc<[u8]>,
        last: Patience,
    ) -> io::Result<(String, File)> {
        let mut attempt = 1;
        loop {
            let name = temporary_name(self.me);
            let (file, place) = self.create_on_target(dir, &name)?;
            let (mut open, bytes) = (file.try_clone()?, bytes.clone());
            let (there, late) = (dir.try_clone_to_owned()?, [name.clone()]);
            let patience = match Patience::for_attempt(attempt) {
                Patience::Forever => last,
                patience => patience,
            };
            let put = self.run_with_deadline(
                place,
                patience,
                move || {
                    open.write_all(&bytes)?;
                    open.sync_all()
                },
                move || remove_late(there, &late),
            );
            let e = match put {
                Ok(Some(())) => return Ok((name, file)),
                Ok(None) => self.deadline_error(),
                Err(e) => {
                    remove_from(dir, &name)?;
                    e
                }
            };
            if attempt == WRITE_ATTEMPTS {
                return Err(e);
            }
            tracing::debug!("{e}; it is written elsewhere");
            attempt += 1;
        }
    }

    pub(super) fn begin_write(&self, layout: Layout) -> OngoingWrite {
        let (all, unwanted) = (self.ongoing.clone(), Arc::default());
        all.lock().insert(layout, Arc::clone(&unwanted));
        OngoingWrite {
            all,
            layout,
            unwanted,
        }
    }

    /// Whether an append to this layout of this node is still under way, although no caller waits
    /// for it any more.
    pub fn is_being_written(&self, file: FileId, number: u32) -> bool {
        self.ongoing.lock().contains_key(&(file, number))
    }

    /// Whether a layout of this node can be appended to, as far as is known.
    pub fn accepts_appends(&self, file: FileId, number: u32) -> bool {
        let place = self.places.lock().get(&(file, number)).copied();
        let (Some(place), Some(placement)) = (place, self.placement.get()) else {
            return true;
        };
        placement.answers(place)
    }

    /// This sealed layout is not needed any more: if an append to it is still under way, the layout
    /// and its seal are removed when that comes back. Returns false if no append is under way.
    pub fn leave_to_writer(&self, file: FileId, number: u32) -> bool {
        let writing = self.ongoing.lock();
        let Some(unwanted) = writing.get(&(file, number)) else {
            return false;
        };
        unwanted.store(true, Ordering::Release);
        self.forget_place(file, number);
        true
    }

    /// The layout is gone.
    pub(super) fn forget_place(&self, file: FileId, number: u32) {
        self.places.lock().remove(&(file, number));
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
        let placement = self.placement.get();
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
    fn deadline_error(&self) -> io::Error {
        let deadline = self.placement.get().map(|it| it.deadline());
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "writing to the shared directory has not come back for {:?}",
                deadline.unwrap_or_default()
            ),
        )
    }
}

/// A temporary name that cannot be guessed beforehand, and that tells which run made it.
pub(super) fn temporary_name(me: Owner) -> String {
    let number = u64::from(me.run) << 32 | u64::from(rand::random::<u32>());
    Name::Temporary(me.id, number).to_string()
}

pub(super) fn create_file(dir: BorrowedFd<'_>, name: &str, flags: i32) -> io::Result<File> {
    let flags = OFlag::from_bits_retain(flags) | OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    Ok(File::from(beneath(dir, name, flags, mode)?))
}

/// Removes files whose write came too late.
fn remove_late(dir: OwnedFd, names: &[String]) {
    for name in names {
        if let Err(error) = remove_from(dir.as_fd(), name) {
            tracing::warn!(%error, "{name} was written too late and stays in the shared directory");
        }
    }
}
