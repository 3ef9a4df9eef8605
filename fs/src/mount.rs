//! Mounting and unmounting.
//!
//! The mount is made here rather than by fuser, because fuser's own unmount can detach a busy mount without
//! reporting it. Root mounts directly; other users mount through `fusermount3`, which opens the device and
//! sends it over a socket. If a mount does not start, it is unmounted again before the error is returned.

mod connection;
mod helper;
mod pages;
mod unmount;

pub use connection::abort_connection;
pub use pages::PageDropper;
pub use unmount::{UnmountError, Unmounter};

use crate::fuse::Adapter;
use crate::inode::Place;
use crate::ops::{Invalidate, LetGo};
use crate::requests::Requests;
use fuser::{Config, INodeNo, Notifier, Session, SessionACL};
use nix::mount::MsFlags;
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const DEVICE: &str = "/dev/fuse";

#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Users other than the daemon's user may use the mount.
    pub allow_other: bool,
    pub read_only: bool,
    /// Honour setuid bits (off: `nosuid`).
    pub suid: bool,
    /// Honour device files (off: `nodev`).
    pub dev: bool,
    /// The source that the mount table shows.
    pub fsname: String,
    /// Number of event loops; 0 chooses it by the number of processors.
    pub threads: usize,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            allow_other: nix::unistd::geteuid().is_root(),
            read_only: false,
            suid: false,
            dev: false,
            fsname: "forebay".into(),
            threads: 0,
        }
    }
}

/// A mount that answers requests. Dropping this value leaves it mounted.
pub struct Mounted {
    session: JoinHandle<io::Result<()>>,
    unmounter: Unmounter,
}

impl Mounted {
    /// Returns when the file system has been unmounted, by this process or another one.
    pub fn wait(self) -> io::Result<()> {
        self.session
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the FUSE session's thread panicked")))
    }

    pub fn is_finished(&self) -> bool {
        self.session.is_finished()
    }

    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }
}

/// Mounts the file system on `mountpoint`, which may be the backing itself, and returns when the mount answers requests.
/// Without `pages`, a mapping that stays mapped shows what other nodes publish only after the file is opened again.
pub fn mount(
    requests: Arc<Requests>,
    mountpoint: &Path,
    options: &MountOptions,
    pages: Option<PageDropper>,
) -> io::Result<Mounted> {
    let mountpoint = mountpoint.canonicalize()?;
    let root = nix::unistd::geteuid().is_root();
    let device = if root {
        mount_as_root(&mountpoint, options)?
    } else {
        helper::mount(&mountpoint, options)?
    };
    let unmounter = Unmounter::find(&mountpoint, root)?;
    start(requests, device, options, &unmounter, pages).inspect_err(|_| {
        if let Err(error) = unmounter.unmount(true) {
            tracing::error!(%error, "a mount that did not start could not be taken down");
        }
    })
}

fn mount_as_root(mountpoint: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let device = open_device()?;
    let mut flags = MsFlags::empty();
    flags.set(MsFlags::MS_NOSUID, !options.suid);
    flags.set(MsFlags::MS_NODEV, !options.dev);
    flags.set(MsFlags::MS_RDONLY, options.read_only);
    let mut data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions",
        device.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    nix::mount::mount(
        Some(options.fsname.as_str()),
        mountpoint,
        Some("fuse.forebay"),
        flags,
        Some(data.as_str()),
    )?;
    Ok(device)
}

fn open_device() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE);
    device.map(OwnedFd::from).map_err(|e| {
        let hint = match e.kind() {
            io::ErrorKind::NotFound => "load the kernel module with `modprobe fuse`",
            _ => "the daemon needs read and write access to it",
        };
        io::Error::new(e.kind(), format!("{DEVICE}: {e}; {hint}"))
    })
}

fn start(
    requests: Arc<Requests>,
    device: OwnedFd,
    options: &MountOptions,
    unmounter: &Unmounter,
    pages: Option<PageDropper>,
) -> io::Result<Mounted> {
    let acl = if options.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    let mut config = Config::default();
    config.acl = acl;
    config.n_threads = Some(threads(options));
    // Each event loop opens the device for itself, which an ordinary user may not be allowed to do.
    config.clone_fd = open_device().is_ok();
    let session = Session::from_fd(Adapter::new(requests.clone()), device, acl, config)?;

    let notifier = Arc::new(Mutex::new(Some(session.notifier())));
    let overlay = requests.overlay();
    overlay.on_invalidate(invalidator(notifier.clone()));
    overlay.on_let_go(releaser(&requests, notifier.clone()));
    if let Some(pages) = pages {
        overlay.on_stale_pages(Box::new(pages.attach(unmounter.device())?));
    }
    let session = std::thread::Builder::new()
        .name("fuse-session".into())
        .spawn(move || {
            let ended = session.run();
            requests.end();
            // The notifier holds the device open. Once it is dropped the kernel knows that no
            // process answers requests.
            notifier.lock().take();
            ended
        })?;
    // The handshake is done and the event loops run: requests are answered from here on. This process itself never
    // makes a request to the mount: a daemon that is killed while it waits for its own answer could not end.
    Ok(Mounted {
        session,
        unmounter: unmounter.clone(),
    })
}

type SharedNotifier = Arc<Mutex<Option<Notifier>>>;

fn invalidator(notifier: SharedNotifier) -> Invalidate {
    Box::new(move |node| {
        let notifier = notifier.lock().clone();
        // A negative offset leaves cached pages alone and drops only the attributes.
        if let Some(notifier) = notifier
            && let Err(error) = notifier.inval_inode(INodeNo(node), -1, 0)
        {
            tracing::debug!(node, %error, "cached attributes stay until they lapse");
        }
    })
}

/// Makes the kernel drop directory entries, after which it forgets the files. For each entry the kernel takes
/// the lock of the parent directory, which a process that waits for an answer about an entry there holds. So
/// this runs on a thread that answers no request, one batch at a time, and with none of our locks held.
fn releaser(requests: &Arc<Requests>, notifier: SharedNotifier) -> LetGo {
    let busy = Arc::new(AtomicBool::new(false));
    // The overlay keeps what is made here, and `requests` keep the overlay.
    let requests = Arc::downgrade(requests);
    Box::new(move |files| {
        let Some(requests) = requests.upgrade() else {
            return;
        };
        if busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let (busy, notifier) = (busy.clone(), notifier.clone());
        requests.background(move |_| {
            for Place { parent, name } in files {
                let Some(notifier) = notifier.lock().clone() else {
                    break;
                };
                let name = OsStr::from_bytes(name.to_bytes());
                if let Err(error) = notifier.inval_entry(INodeNo(parent), name) {
                    tracing::debug!(parent, %error, "the kernel keeps an entry");
                }
            }
            busy.store(false, Ordering::Release);
        });
    })
}

fn threads(options: &MountOptions) -> usize {
    match options.threads {
        0 => std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4)),
        n => n,
    }
}
