//! Opening and closing files.
//!
//! # Passthrough or direct I/O
//! The kernel allows an inode either passthrough handles or others, never both at once, so the first open
//! decides under the inode's lock and the rest follow until all are closed:
//!
//! - **Passthrough**: a clean file opened for reading (or for anything, when nothing is absorbed). The kernel
//!   reads and writes the canonical file itself. While such handles are open, a writer gets one too: its
//!   writes are correct, just not absorbed. A reader that has closed may still be counted, as the kernel does
//!   not wait for releases; so a writer waits a moment for them first.
//! - **Direct**: everything else, readers included, and files that have a local copy (`local_copy.rs`). The
//!   kernel's page cache is bypassed: with it, a read that was under way while another process wrote could
//!   leave the old bytes in the cache after the write was acknowledged, and one cached reader would make the
//!   kernel serialise all writers of the file. Shared mmap still works (the kernel keeps pages for it, writes
//!   them back through the mapping's own handle, and drops them when a direct write overwrites them).
//!
//! A file can become dirty only through a direct handle, so it never does while the kernel itself
//! reads the canonical file.
//!
//! # Rights
//! The canonical file is opened as the caller, so the backing has agreed to each open. A write-only open
//! tries read-write first: write-through and sparse seeks then work on every handle.

use super::pages::NO_HANDLE;
use super::policy::Said;
use super::{EntryAt, Overlay, Unreferenced};
use crate::backing::creds::{CAP_SYS_ADMIN, with_umask};
use crate::backing::{AsUser, Creds, sys};
use crate::errno::{FsError, Result};
use crate::handle::{DirHandle, DirStream, Handle};
use crate::inode::{Inode, IoMode, Registered};
use crate::recent::Recent;
use crate::types::{Caller, Entry};
use layout_index::policy::Absorb;
use layout_index::{File, Wait};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a writer waits for passthrough handles that may be closed already.
const FOR_RELEASES: Duration = Duration::from_millis(20);

/// The kernel opens a program to run it, for which execute permission is enough.
const FMODE_EXEC: i32 = 0x20;

/// The transport's way to register a file with the kernel for passthrough.
pub trait Registrar {
    fn register(&self, fd: BorrowedFd<'_>) -> io::Result<Registered>;
}

/// An open file, as the transport has to report it to the kernel.
pub struct Opened {
    pub fh: u64,
    pub passthrough: Option<Registered>,
    /// The kernel sends the reads and writes of this handle here, even if the file is in passthrough.
    pub sends_requests: bool,
}

impl Overlay {
    pub fn open(
        &self,
        caller: &Caller,
        node: u64,
        flags: i32,
        registrar: Option<&dyn Registrar>,
    ) -> Result<Opened> {
        if self.only_drops_pages(caller) {
            return Ok(Opened {
                fh: NO_HANDLE,
                passthrough: None,
                sends_requests: true,
            });
        }
        let inode = self.inode(node)?;
        if !inode.is_file() {
            return Err(if inode.is_dir() {
                FsError::IsDirectory
            } else {
                FsError::Invalid("only regular files are opened here")
            });
        }
        let creds = Creds::of(caller);
        let canonical = open_canonical(&inode, &creds, flags)?;
        let said = Said::Below(self.still_named(caller, &inode, canonical.as_fd())?);
        self.finish_open(caller, inode, canonical, creds, flags, registrar, said)
    }

    #[allow(clippy::too_many_arguments)]
    pub fn create(
        &self,
        caller: &Caller,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        registrar: Option<&dyn Registrar>,
    ) -> Result<(Entry, Opened)> {
        let EntryAt { dir, name, creds } = self.entry_at(caller, parent, name)?;
        self.need_room(caller.uid)?;
        let made = {
            let _as_caller = creds.enter()?;
            let placement = self.placement.as_deref();
            let chosen_later = placement.map_or(0, |placement| placement.create_flags());
            with_umask(umask, mode & 0o7777, |mode| {
                let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_NOFOLLOW;
                sys::open_beneath(dir.fd(), name.as_c(), flags | chosen_later, mode)
            })
            .inspect(|made| {
                if let Some(placement) = placement {
                    placement.stripe(made.as_fd());
                }
            })
        };
        let (inode, entry, canonical, said) = match made {
            Ok(fd) => {
                let said = Said::Made(self.inherit(&dir, fd.as_fd(), creds.uid));
                let path = sys::reopen(fd.as_fd(), libc::O_PATH)?;
                let (inode, entry) = self.admit(path, &dir, name.as_c(), caller.uid)?;
                (inode, entry, fd, said)
            }
            // Another process has made the file meanwhile, which the caller allows.
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) && flags & libc::O_EXCL == 0 => {
                let found = {
                    let _as_caller = creds.enter()?;
                    sys::open_path(dir.fd(), name.as_c())?
                };
                let (inode, entry) = self.admit(found, &dir, name.as_c(), caller.uid)?;
                let opened = if inode.is_file() {
                    open_canonical(&inode, &creds, flags)
                } else {
                    Err(FsError::Invalid("only regular files are opened here"))
                };
                let looked = opened.and_then(|fd| {
                    let ctime = self.still_named(caller, &inode, fd.as_fd())?;
                    Ok((fd, Said::Below(ctime)))
                });
                let (canonical, said) = looked.inspect_err(|_| self.undo_lookup(inode.node))?;
                (inode, entry, canonical, said)
            }
            Err(e) => {
                return self.answer_in(&dir, Err(e)).inspect_err(|e| {
                    if matches!(e, FsError::Stale(_)) {
                        self.refused.for_name(caller.pid);
                    }
                });
            }
        };
        // A new file is empty and has the requested mode: there is nothing to cut or strip.
        let flags = match said {
            Said::Made(_) => flags & !libc::O_TRUNC,
            _ => flags,
        };
        let node = inode.node;
        let opened = self
            .finish_open(caller, inode, canonical, creds, flags, registrar, said)
            .inspect_err(|_| self.undo_lookup(node))?;
        Ok((entry, opened))
    }

    /// Takes back a lookup that the kernel will not be told about.
    pub(super) fn undo_lookup(&self, node: u64) {
        if let Some(gone) = self.forget(node, 1) {
            self.let_go(gone);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn finish_open(
        &self,
        caller: &Caller,
        inode: Arc<Inode>,
        canonical: OwnedFd,
        creds: Creds,
        flags: i32,
        registrar: Option<&dyn Registrar>,
        said: Said,
    ) -> Result<Opened> {
        let access = flags & libc::O_ACCMODE;
        let writable = access != libc::O_RDONLY;
        let file = self.store().file(inode.id);
        let canonical = AsUser::caller(canonical, creds);
        if writable || flags & libc::O_TRUNC != 0 {
            inode.privileges_may_have_changed();
        }
        self.learn(&inode, &file, said);
        let absorb = self.absorb_of(&file);
        self.need_handle(inode.node, caller.uid)?;
        let prepared = self.prepare_open(caller, &inode, &file, &canonical, flags);
        prepared.inspect_err(|_| self.handle_gone(&inode, caller.uid))?;
        let fd = canonical.fd();
        let copied = self.check_local_copy(&file, fd);
        let registrar = registrar.filter(|_| !copied);
        let passthrough = self.choose_mode(&inode, &file, fd, writable, absorb, registrar);
        if passthrough.is_some() || absorb == Absorb::Off {
            let settled = self.drain_published(&file);
            settled.inspect_err(|_| self.mode_gone(&inode, caller.uid))?;
        }
        if writable {
            file.add_writer();
        }
        let largest = writable.then(|| self.largest.of(canonical.fd()));
        let fh = self.new_fh();
        let readable = access != libc::O_WRONLY;
        let shared = self.others.is_some() && absorb == Absorb::On && passthrough.is_none();
        let handle = Handle {
            fh,
            inode,
            file,
            canonical,
            readable,
            writable,
            looks: shared && readable && writable,
            recent: Recent::default(),
            passthrough: passthrough.clone(),
            absorbs: absorb != Absorb::Off,
            coherent: absorb == Absorb::Coherent,
            opener: *caller,
            largest: largest.unwrap_or_default(),
            told: AtomicU64::new(0),
        };
        self.handles.insert(fh, Arc::new(handle));
        Ok(Opened {
            fh,
            sends_requests: passthrough.is_none() || self.sends_requests(flags, absorb),
            passthrough,
        })
    }

    /// True for handles whose I/O the kernel cannot do on the canonical file itself: O_DIRECT of any alignment, and
    /// appends whose offset this node has to find. A handle that only writes now may be set to append later.
    fn sends_requests(&self, flags: i32, absorb: Absorb) -> bool {
        let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let appends = writable && (absorb != Absorb::Off || flags & libc::O_APPEND != 0);
        flags & libc::O_DIRECT != 0 || (self.others.is_some() && appends)
    }

    /// Makes visible what other nodes have published, and truncates if requested.
    fn prepare_open(
        &self,
        caller: &Caller,
        inode: &Inode,
        file: &Arc<File>,
        canonical: &AsUser,
        flags: i32,
    ) -> Result<()> {
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            self.wait_for_last(inode, file)?;
        }
        self.refresh(inode, file, Wait::ForOthers)?;
        if flags & libc::O_TRUNC == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY {
            self.size_is_known(caller, inode, file, canonical.fd())?;
        }
        if flags & libc::O_TRUNC != 0 {
            // The kernel leaves this to the file system when it sends O_TRUNC with the open.
            self.strip_privileges(inode, caller.uid != 0)?;
            let _turn = self.turn_of_all(inode, file, self.absorb_of(file) == Absorb::Coherent)?;
            self.truncate(inode, file, canonical, 0)?;
            // The kernel sets its own size to 0 with this open.
            inode.kernel_size.told(0);
        }
        self.refreshed(inode);
        Ok(())
    }

    fn choose_mode(
        &self,
        inode: &Inode,
        file: &File,
        fd: BorrowedFd<'_>,
        writable: bool,
        absorb: Absorb,
        registrar: Option<&dyn Registrar>,
    ) -> Option<Registered> {
        let mut io = inode.io.lock();
        if writable && absorb != Absorb::Off {
            let deadline = Instant::now() + FOR_RELEASES;
            while matches!(*io, IoMode::Passthrough { settled: false, .. }) {
                if inode.io_closed.wait_until(&mut io, deadline).timed_out() {
                    break;
                }
            }
        }
        match &mut *io {
            IoMode::Passthrough {
                handles,
                settled,
                registered,
            } => {
                *handles += 1;
                *settled |= writable;
                return Some(registered.clone());
            }
            IoMode::Direct(count) => {
                *count += 1;
                return None;
            }
            IoMode::Closed => {}
        }
        let wanted = match absorb {
            Absorb::Coherent => false,
            Absorb::On => !writable,
            Absorb::Off => true,
        };
        let wanted = wanted && file.is_settled();
        let registered = match registrar {
            Some(registrar) if wanted => register(registrar, fd),
            _ => None,
        };
        *io = match &registered {
            Some(registered) => IoMode::Passthrough {
                handles: 1,
                settled: writable,
                registered: registered.clone(),
            },
            None => IoMode::Direct(1),
        };
        registered
    }

    /// [`flush`](Self::flush) if it need not wait: there are no locks to give up, and no other nodes to tell about
    /// the close.
    pub fn flush_at_once(&self, fh: u64, owner: u64) -> Option<Result<()>> {
        let waits = self.has_locks(fh) || self.close_waits(fh);
        (!waits).then(|| self.flush(fh, owner))
    }

    /// Called for each `close`, the last moment at which an error of the drain can be reported. Gives up the
    /// locks of the closing process (`owner`). Waits only if there are such locks, or changes to publish.
    pub fn flush(&self, fh: u64, owner: u64) -> Result<()> {
        if fh == NO_HANDLE {
            return Ok(());
        }
        let handle = self.handle(fh)?;
        let closed = self.closed(&handle);
        let unlocked = self.drop_locks_of_owner(&handle, owner);
        let last = self.may_be_last_close(&handle);
        closed.and(unlocked).and(last)?;
        match handle.writable {
            true => report(&handle, false),
            // A program that only reads has lost no data.
            false => Ok(()),
        }
    }

    /// The last close of a handle. The kernel ignores errors of a release. May wait for the backing.
    pub fn release(&self, fh: u64) -> Result<()> {
        if fh == NO_HANDLE {
            return Ok(());
        }
        let (_, handle) = self.handles.remove(&fh).ok_or(FsError::BadHandle(fh))?;
        let unlocked = self.drop_locks_of_handle(&handle);
        if let Err(error) = &unlocked {
            tracing::error!(file = %handle.inode.id, %error, "giving up the locks of a closed file");
        }
        self.release_is_done(fh);
        let inode = handle.inode.clone();
        let file = handle.file.clone();
        let (writable, opener) = (handle.writable, handle.opener.uid);
        // The registration with the kernel ends when the last handle that uses it is dropped.
        drop(handle);
        leave_mode(&inode);
        if writable {
            file.remove_writer();
        }
        self.inodes
            .keep_while(&inode.id, || !file.is_settled() && !inode.is_unlinked());
        self.handle_gone(&inode, opener);
        unlocked
    }

    /// Called when an open fails after its I/O mode was chosen.
    fn mode_gone(&self, inode: &Inode, uid: u32) {
        leave_mode(inode);
        self.handle_gone(inode, uid);
    }

    /// `uid` must be the one that was passed to `need_handle`.
    pub(super) fn handle_gone(&self, inode: &Inode, uid: u32) {
        if let Some(gone) = self.inodes.remove_handle(inode.node, uid) {
            self.let_go(Unreferenced(gone));
        }
    }

    pub fn opendir(&self, caller: &Caller, node: u64) -> Result<u64> {
        if self.only_drops_pages(caller) {
            return Ok(NO_HANDLE);
        }
        let inode = self.directory(node)?;
        let creds = Creds::of(caller);
        let fd = {
            let _as_caller = creds.enter()?;
            sys::reopen(inode.fd(), libc::O_RDONLY | libc::O_DIRECTORY)
        };
        let fd = self.answer_in(&inode, fd)?;
        if self.is_gone_elsewhere(&inode) {
            return Err(FsError::Stale(node));
        }
        self.need_handle(node, caller.uid)?;
        let fh = self.new_fh();
        let handle = DirHandle {
            inode,
            fd,
            stream: Mutex::new(DirStream::default()),
            opener: caller.uid,
        };
        self.dirs.insert(fh, Arc::new(handle));
        Ok(fh)
    }

    pub fn releasedir(&self, fh: u64) -> Result<()> {
        if fh == NO_HANDLE {
            return Ok(());
        }
        let (_, handle) = self.dirs.remove(&fh).ok_or(FsError::BadHandle(fh))?;
        self.handle_gone(&handle.inode, handle.opener);
        Ok(())
    }
}

/// Counts one handle less.
fn leave_mode(inode: &Inode) {
    let mut io = inode.io.lock();
    match &mut *io {
        IoMode::Direct(handles) | IoMode::Passthrough { handles, .. } if *handles > 1 => {
            *handles -= 1;
        }
        _ => {
            *io = IoMode::Closed;
            inode.io_closed.notify_all();
        }
    }
}

/// Returns the error of the drain with this file's data. A close returns it every time, because other
/// processes may close copies of the descriptor before the job closes its own. An fsync returns it once per
/// handle and failure, after which closes of the handle do not return it either.
pub(super) fn report(handle: &Handle, by_fsync: bool) -> Result<()> {
    let told = handle.told.load(Ordering::Acquire);
    let Some((number, error)) = handle.file.error_after(told) else {
        return Ok(());
    };
    if by_fsync {
        handle.told.fetch_max(number, Ordering::AcqRel);
    }
    Err(FsError::Drain {
        errno: error.errno,
        message: error.message,
    })
}

/// Opens the canonical file as the caller, with the access that `flags` ask for.
fn open_canonical(inode: &Inode, creds: &Creds, flags: i32) -> Result<OwnedFd> {
    let access = flags & libc::O_ACCMODE;
    let tried = {
        let _as_caller = creds.enter()?;
        if access == libc::O_RDONLY && flags & libc::O_TRUNC == 0 {
            sys::reopen(inode.fd(), libc::O_RDONLY)
        } else {
            match sys::reopen(inode.fd(), libc::O_RDWR) {
                Err(e) if denied(&e) && access == libc::O_WRONLY => {
                    sys::reopen(inode.fd(), libc::O_WRONLY)
                }
                other => other,
            }
        }
    };
    match tried {
        Err(e) if denied(&e) && access == libc::O_RDONLY && flags & FMODE_EXEC != 0 => {
            let _as_caller = creds.enter()?;
            sys::access(inode.fd(), libc::X_OK)?;
            drop(_as_caller);
            Ok(sys::reopen(inode.fd(), libc::O_RDONLY)?)
        }
        other => Ok(other?),
    }
}

fn denied(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EACCES)
}

/// Registers the file for passthrough. For every handle of the file the kernel will read and write with the
/// identity in force now: the owner's, so that quotas count. The backing has agreed to each open before.
fn register(registrar: &dyn Registrar, fd: BorrowedFd<'_>) -> Option<Registered> {
    let attempt = || {
        let seen = sys::glance(fd)?;
        let owner = Creds::owner(seen.uid, seen.gid);
        let _as_owner = owner.enter_limited_to(CAP_SYS_ADMIN)?;
        registrar.register(fd)
    };
    match attempt() {
        Ok(registered) => Some(registered),
        Err(error) => {
            // Not every backing supports passthrough; reading through the daemon is always right.
            tracing::debug!(%error, "no passthrough for this file");
            None
        }
    }
}
