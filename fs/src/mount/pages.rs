//! Makes the kernel drop the pages that it keeps for mappings of a file.
//!
//! # Why another process does it
//! A thread that drops a page waits until the page is not being read any more, and cannot be killed while it
//! waits. The read waits for this daemon. If the daemon dropped pages itself and were killed meanwhile, it
//! could not end before the read had its answer, and the read would get no answer before the daemon has
//! ended. So a small separate process does it, forked before there are threads. It holds neither the FUSE
//! device nor a file of the mount: if the daemon is killed, the kernel ends all requests, and with them the
//! wait of that process. The process ends when the daemon's end of their socket is closed.
//!
//! # How
//! The helper opens the file and closes it again: the kernel drops all pages of a file when it is opened, unless
//! the answer to the open tells it to keep them, which no answer here does. Pages that were changed through a
//! mapping are written before they are dropped. The file is opened by the handle that the kernel itself would make
//! of its node, so that neither renames nor removal matter; this takes `CAP_DAC_READ_SEARCH`, the only one of
//! root's rights that the helper keeps. It answers before it closes the file: on older kernels (6.12) a close waits
//! for an fsync that is under way, and an fsync may be what waits for the answer.
//!
//! Where only the size that the kernel knows is out of date, the helper asks for the file's attributes through an
//! `O_PATH` descriptor. Such a descriptor opens nothing, so it is allowed beside handles of any kind.
//!
//! # Crash behaviour
//! Nothing is stored. If the helper is gone, requests that need it get an error: pages that are older than a
//! sync point must not be taken for new ones.

use crate::backing::{creds, sys};
use crate::inode::Inode;
use crate::ops::PageDrop;
use crate::requests::executor;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// The kernel's `FILEID_INO64_GEN`, the type of FUSE's file handles.
const NODE_AND_GENERATION: i32 = 0x81;

/// How long the helper may take: it waits for pages that are being read, and writes those that were changed.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time between two checks whether the caller of a waiting request is still there.
const WAIT_STEP: Duration = Duration::from_millis(20);

type Answers = HashMap<u64, SyncSender<i32>>;

/// The task of the helper for a file.
#[derive(Clone, Copy)]
enum Errand {
    DropPages = 0,
    AskSize = 1,
}

/// The daemon's side.
pub struct PageDropper {
    helper: Pid,
    socket: OwnedFd,
    last: AtomicU64,
    /// The requests that wait for an answer, by number; `None` once the helper is gone.
    answers: Mutex<Option<Answers>>,
}

impl PageDropper {
    /// Forks the helper of a mount that will be at `mountpoint`. Must be called while the process
    /// has one thread.
    pub fn start(mountpoint: &Path) -> io::Result<Self> {
        let mountpoint = mountpoint.canonicalize()?;
        let (ours, theirs) = pair()?;
        // SAFETY: no other thread exists yet (the caller guarantees it), so the child may
        // continue as an ordinary process.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let ended = detach(theirs).and_then(|()| serve(mountpoint));
                // SAFETY: ends the process; takes any number and touches no memory.
                unsafe { libc::_exit(i32::from(ended.is_err())) }
            }
            ForkResult::Parent { child } => Ok(Self {
                helper: child,
                socket: ours,
                last: AtomicU64::new(0),
                answers: Mutex::new(Some(HashMap::new())),
            }),
        }
    }

    /// Starts to listen to the helper's answers. `device` is the device number of the mounted file system.
    pub(super) fn attach(self, device: u64) -> io::Result<Attached> {
        let dropper = Arc::new(self);
        let listener = dropper.clone();
        std::thread::Builder::new()
            .name("forebay-pages".into())
            .spawn(move || listener.listen())?;
        Ok(Attached {
            dropper,
            device,
            asked: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
        })
    }

    fn listen(&self) {
        let ended = loop {
            let (id, errno) = match receive(self.socket.as_fd()) {
                Ok(Some([id, errno])) => (id, errno as i32),
                ended => break ended.map(|_| ()),
            };
            let asker = self.with_answers(|answers| answers.remove(&id));
            // The send fails if the request has given up waiting.
            if let Ok(Some(asker)) = asker
                && asker.try_send(errno).is_err()
            {
                tracing::debug!(id, "the caller of these pages is gone");
            }
        };
        tracing::error!(
            ?ended,
            "the process that drops the pages of mapped files is gone: locks and fsyncs of \
             mapped files fail until the next mount"
        );
        *self.answers.lock() = None;
        if let Err(error) = waitpid(self.helper, None) {
            tracing::debug!(%error, "the helper had already been reaped");
        }
    }

    fn with_answers<T>(&self, with: impl FnOnce(&mut Answers) -> T) -> io::Result<T> {
        let gone = || io::Error::other("the process that drops pages is gone");
        let mut answers = self.answers.lock();
        Ok(with(answers.as_mut().ok_or_else(gone)?))
    }
}

/// A [`PageDropper`] that knows its mount.
pub(super) struct Attached {
    dropper: Arc<PageDropper>,
    device: u64,
    /// Number of requests that the helper is working on.
    asked: AtomicUsize,
    /// The process may not open files by handle here, most likely because it runs in a container.
    refused: AtomicBool,
}

impl PageDrop for Attached {
    fn drop_pages(&self, inode: &Inode) -> io::Result<()> {
        self.send(Errand::DropPages, inode)
    }

    fn ask_size(&self, inode: &Inode) -> io::Result<()> {
        self.send(Errand::AskSize, inode)
    }

    fn is_dropper(&self, thread: u32) -> bool {
        self.asked.load(Ordering::Acquire) > 0
            && Path::new(&format!("/proc/{}/task/{thread}", self.dropper.helper)).exists()
    }
}

impl Attached {
    fn send(&self, errand: Errand, inode: &Inode) -> io::Result<()> {
        if self.refused.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.asked.fetch_add(1, Ordering::AcqRel);
        let dropped = self.ask(errand, inode.node, inode.generation());
        self.asked.fetch_sub(1, Ordering::AcqRel);
        match dropped {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                if !self.refused.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "the daemon may not open files by handle (CAP_DAC_READ_SEARCH): files that \
                         stay mapped show what other nodes write when they are opened again"
                    );
                }
                Ok(())
            }
            other => other,
        }
    }

    fn ask(&self, errand: Errand, node: u64, generation: u64) -> io::Result<()> {
        let (sender, answer) = sync_channel(1);
        let id = self.dropper.last.fetch_add(1, Ordering::Relaxed);
        self.dropper
            .with_answers(|answers| answers.insert(id, sender))?;
        let ask = [id, self.device, node, generation, errand as u64];
        // The message is not sent to a helper whose socket is full: it does not even listen.
        let told = tell(self.dropper.socket.as_fd(), ask, MsgFlags::MSG_DONTWAIT);
        let answered = told.and_then(|()| wait_for(&answer));
        match answered {
            Ok(0) => Ok(()),
            Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
            Err(e) => {
                self.dropper.with_answers(|answers| answers.remove(&id))?;
                Err(e)
            }
        }
    }
}

/// Waits until the helper answers, the caller of the request is killed, or it takes too long.
fn wait_for(answer: &Receiver<i32>) -> io::Result<i32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match answer.recv_timeout(WAIT_STEP) {
            Ok(errno) => return Ok(errno),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {
                if !executor::may_keep_waiting() {
                    return Err(io::Error::from_raw_os_error(libc::EINTR));
                }
            }
            Err(e) => return Err(io::Error::new(io::ErrorKind::TimedOut, e)),
        }
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (unix, whole) = (AddressFamily::Unix, SockType::SeqPacket);
    Ok(socketpair(unix, whole, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Encodes a message between the two processes as native words: both are the same program.
fn encode<const WORDS: usize>(words: [u64; WORDS]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `None` when the other end is closed.
fn receive<const WORDS: usize>(socket: BorrowedFd<'_>) -> io::Result<Option<[u64; WORDS]>> {
    let mut bytes = [0; 64];
    let got = loop {
        match recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            other => break other?,
        }
    };
    let mut words = bytes[..got].chunks_exact(8).map(|word| {
        let mut whole = [0; 8];
        whole.copy_from_slice(word);
        u64::from_ne_bytes(whole)
    });
    let message = std::array::from_fn(|_| words.next().unwrap_or(0));
    Ok((got > 0).then_some(message))
}

fn tell<const WORDS: usize>(
    socket: BorrowedFd<'_>,
    words: [u64; WORDS],
    flags: MsgFlags,
) -> io::Result<()> {
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    send(socket.as_raw_fd(), &encode(words), flags)?;
    Ok(())
}

/// In the helper: closes everything that it has inherited from the daemon except its socket, which becomes standard
/// input. A process that waits for the end of one of the daemon's pipes must not wait for the helper as well.
fn detach(socket: OwnedFd) -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    nix::unistd::dup2_stdin(&socket)?;
    // `close_range` below closes these two with the rest.
    let _ = (null.into_raw_fd(), socket.into_raw_fd());
    // SAFETY: nothing in this process uses a descriptor above the first three from here on.
    if unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    nix::sys::prctl::set_name(c"forebay-pages")?;
    creds::keep_only(creds::CAP_DAC_READ_SEARCH)?;
    std::env::set_current_dir("/")
}

/// In the helper: serves requests until the daemon is gone.
fn serve(mountpoint: PathBuf) -> io::Result<()> {
    let socket = io::stdin();
    let mountpoint = Arc::new(mountpoint);
    while let Some([id, device, node, generation, errand]) = receive(socket.as_fd())? {
        let mountpoint = mountpoint.clone();
        let flags = match errand == Errand::AskSize as u64 {
            true => libc::O_PATH,
            false => libc::O_RDONLY,
        };
        let work = move || match reopen(&mountpoint, device, (node, generation), flags) {
            Ok(opened) => {
                answer(id, 0);
                drop(opened);
            }
            Err(e) => answer(id, e.raw_os_error().unwrap_or(libc::EIO)),
        };
        // Each file has a thread, so that a file whose pages cannot be dropped for a while delays no other file.
        if std::thread::Builder::new().spawn(work).is_err() {
            answer(id, libc::EAGAIN);
        }
    }
    Ok(())
}

fn answer(id: u64, errno: i32) {
    if tell(io::stdin().as_fd(), [id, errno as u64], MsgFlags::empty()).is_err() {
        // The daemon is gone, so there is nothing left to do.
        // SAFETY: ends the process; takes any number and touches no memory.
        unsafe { libc::_exit(0) }
    }
}

/// Opens the file, and makes the kernel ask for its size: a mapping ends where the kernel believes that the
/// file ends. `None` for a file that the kernel does not know, and so has no pages of.
fn reopen(
    mountpoint: &Path,
    device: u64,
    (node, generation): (u64, u64),
    flags: i32,
) -> io::Result<Option<File>> {
    let root = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(mountpoint)?;
    if root.metadata()?.dev() != device {
        // Another file system is mounted over it, or the mount was moved.
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let words = [(node >> 32) as u32, node as u32, generation as u32];
    let handle: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    match sys::open_handle(root.as_fd(), NODE_AND_GENERATION, &handle, flags) {
        Err(e) if e.raw_os_error() == Some(libc::ESTALE) => Ok(None),
        opened => {
            let file = File::from(opened?);
            file.metadata()?;
            Ok(Some(file))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_heard_as_they_were_said() {
        let (one, other) = pair().unwrap();
        let said = [3, 5, 1 << 40 | 7, 0x7fff_ffff];
        tell(one.as_fd(), said, MsgFlags::empty()).unwrap();
        assert_eq!(receive(other.as_fd()).unwrap(), Some(said));
        drop(one);
        assert_eq!(receive::<4>(other.as_fd()).unwrap(), None);
    }
}
