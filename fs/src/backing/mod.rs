//! The backing: the directory of the parallel file system that is overlaid.
//!
//! Its root is opened before anything is mounted over it. Everything else is reached from there, one
//! component at a time, beneath it, through no links and on no other mount. FIFOs and devices are only looked
//! at with `O_PATH`; they are never opened.

pub mod canonical;
pub mod creds;
pub mod dirent;
pub mod identity;
mod largest;
pub mod ofd;
pub mod sys;

pub use canonical::AsUser;
pub use creds::Creds;
pub use largest::Largest;

use crate::types::StatFs;
use identity::{Handles, Identified};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The backing, held by a descriptor of its root.
#[derive(Debug)]
pub struct Backing {
    root: OwnedFd,
    /// The root once more, for opening by handle, which does not take an `O_PATH` descriptor; `None` where
    /// the daemon may not read the root.
    mount: Option<OwnedFd>,
    dev: u64,
    handles: Handles,
    identity: Identified,
    path: PathBuf,
}

impl Backing {
    /// Opens the directory `path`, which may be mounted over afterwards.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let open = |flags| {
            File::options()
                .read(true)
                .custom_flags(flags | libc::O_DIRECTORY)
                .open(&path)
                .map(OwnedFd::from)
        };
        let root = open(libc::O_PATH)?;
        let handles = Handles::of(root.as_fd())?;
        let identity = identity::identify(root.as_fd(), handles)?;
        let mount = match open(0) {
            Ok(fd) => Some(fd),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => None,
            Err(e) => return Err(e),
        };
        Ok(Self {
            dev: identity.stat.dev,
            root,
            mount,
            handles,
            identity,
            path,
        })
    }

    /// True if files can be opened by their handles, whatever has become of their names.
    pub fn reopens(&self) -> bool {
        let of_root = || identity::handle(self.root());
        self.handles != Handles::Volatile
            && self.mount.is_some()
            && creds::switches()
            && identity::decode(&of_root()).is_some()
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    pub fn root_identity(&self) -> Identified {
        self.identity
    }

    /// The attributes and identity of the entry of this backing that `fd` stands for.
    pub fn identify(&self, fd: BorrowedFd<'_>) -> io::Result<Identified> {
        identity::identify(fd, self.handles)
    }

    /// True for the backing's own file system. Only that is used, because inode numbers are unique on it.
    pub fn is_here(&self, dev: u64) -> bool {
        self.dev == dev
    }

    /// The path of the backing when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn statfs(&self) -> io::Result<StatFs> {
        sys::statfs(self.root())
    }

    /// The path of `fd` below the root, or `None` when it has no name there any more.
    pub fn relative_path(&self, fd: BorrowedFd<'_>) -> io::Result<Option<PathBuf>> {
        self.path_if(sys::glance(fd)?.nlink > 0, fd)
    }

    /// Like `relative_path`, but only from what this machine knows: a file system that hangs is not asked.
    pub fn known_path(&self, fd: BorrowedFd<'_>) -> io::Result<Option<PathBuf>> {
        self.path_if(sys::known_links(fd)? > 0, fd)
    }

    fn path_if(&self, named: bool, fd: BorrowedFd<'_>) -> io::Result<Option<PathBuf>> {
        if !named {
            return Ok(None);
        }
        let root = sys::path_of(self.root())?;
        let path = sys::path_of(fd)?;
        Ok(strip_root(&root, &path).map(|p| PathBuf::from(std::ffi::OsString::from_vec(p))))
    }
}

fn strip_root(root: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let root = Path::new(std::ffi::OsStr::from_bytes(root));
    let rest = path.strip_prefix(root).ok()?;
    Some(rest.as_os_str().as_bytes().to_vec())
}
