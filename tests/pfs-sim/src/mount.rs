//! Makes mount points, serves them and takes them down.
//!
//! The mount is made here and not by fuser, whose own unmount can leave a busy mount behind.

use crate::fuse::Adapter;
use crate::ops::Pfs;
use fuser::{Config, Session, SessionACL};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DEVICE: &str = "/dev/fuse";
const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";

/// As what it shows itself.
#[derive(Debug, Clone, clap::Args)]
pub struct Look {
    /// Be mounted as another file system: its name after "fuse."
    #[arg(long, default_value = "pfs-sim")]
    pub subtype: String,
    /// Refuse shared mappings, as file systems do that keep nothing in the page cache
    #[arg(long)]
    pub no_mmap: bool,
}

/// A mounted session that does not answer yet.
pub struct Mounted {
    pub session: Session<Adapter>,
    pub mountpoint: PathBuf,
}

pub fn mount(
    pfs: &Arc<Pfs>,
    index: usize,
    mountpoint: &Path,
    threads: usize,
    max_request: u32,
    look: &Look,
) -> io::Result<Mounted> {
    let mountpoint = mountpoint.canonicalize()?;
    let device = open_device()?;
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    nix::mount::mount(
        Some("pfs-sim"),
        &mountpoint,
        Some(format!("fuse.{}", look.subtype).as_str()),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        Some(data.as_str()),
    )?;
    let adapter = Adapter {
        pfs: pfs.clone(),
        mount: index,
        max_request,
        maps: !look.no_mmap,
    };
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    config.clone_fd = true;
    match Session::from_fd(adapter, device, SessionACL::All, config) {
        Ok(session) => Ok(Mounted {
            session,
            mountpoint,
        }),
        Err(e) => {
            unmount(&mountpoint)?;
            Err(e)
        }
    }
}

fn open_device() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE);
    device
        .map(OwnedFd::from)
        .map_err(|e| io::Error::new(e.kind(), format!("{DEVICE}: {e}; try `modprobe fuse`")))
}

/// Detaches the mount from the tree at once, even if it is dead or in use. Succeeds if there is
/// none.
pub fn unmount(mountpoint: &Path) -> io::Result<()> {
    match nix::mount::umount2(mountpoint, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Raises the machine's limit on the size of FUSE requests while this value lives. The kernel reads
/// the limit only when something is mounted, so it is restored right afterwards; a lock prevents
/// two simulators that start together from restoring each other's value.
pub struct BigRequests {
    /// Dropped, and with it released, after the limit was restored.
    _lock: Flock<File>,
    before: String,
}

impl BigRequests {
    /// Returns `None` if the limit is high enough, or if an older kernel has a fixed limit.
    pub fn allow(bytes: u32) -> io::Result<Option<Self>> {
        let file = match File::open(PAGES_LIMIT) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| e)?;
        let before = std::fs::read_to_string(PAGES_LIMIT)?;
        let wanted = bytes.div_ceil(4096);
        if before.trim().parse::<u32>().is_ok_and(|now| now >= wanted) {
            return Ok(None);
        }
        std::fs::write(PAGES_LIMIT, wanted.to_string())?;
        let _lock = lock;
        Ok(Some(Self { _lock, before }))
    }
}

impl Drop for BigRequests {
    fn drop(&mut self) {
        if let Err(e) = std::fs::write(PAGES_LIMIT, &self.before) {
            eprintln!("pfs-sim: {PAGES_LIMIT} stays raised: {e}");
        }
    }
}
