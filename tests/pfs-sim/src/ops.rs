//! The file system without FUSE: implements each call on the tree and the cluster.

use crate::Errno;
use crate::cluster::Cluster;
use crate::data::Open;
use crate::locks::Client;
use crate::node::{Body, FileBody, Node};
use crate::tree::{Entry, ROOT, Tree};
use crate::virtual_files;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Files opened with this bit get their objects later: by `lustre.lov`, or with the first byte. It
/// is the part of Lustre's O_LOV_DELAY_CREATE that FUSE passes on.
pub const DELAY_CREATE: i32 = libc::O_ASYNC;

/// What counts as a client, that is, as the holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Clients {
    /// Each mount point is a client, as on a real machine
    Mount,
    /// Each process that opens a file is a client
    Process,
    /// Each open file is a client
    Handle,
}

/// The caller of an operation: its mount, its user and group, and its thread.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub mount: usize,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

pub enum Handle {
    File {
        node: Arc<Node>,
        open: Open,
    },
    /// FIFOs and the like. The kernel does their I/O; the handle exists here only to be closed.
    Other {
        node: Arc<Node>,
    },
    /// Content of a file below `.pfs-sim` at the time when it was opened.
    Virtual {
        ino: u64,
        content: Vec<u8>,
    },
}

/// Attributes that `setattr` changes, except the size.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewAttrs {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<SystemTime>,
    pub mtime: Option<SystemTime>,
}

/// Number, place in the listing, mode, name.
pub type Listing = (u64, u64, u32, OsString);

/// Space of all OSTs in sum, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    pub capacity: u64,
    pub free: u64,
    pub files: u64,
}

pub struct Pfs {
    pub cluster: Arc<Cluster>,
    pub tree: RwLock<Tree>,
    pub clients: Clients,
    handles: RwLock<HashMap<u64, Arc<Handle>>>,
    next_handle: AtomicU64,
    /// Outcome of the last control command.
    pub outcome: Mutex<String>,
}

impl Pfs {
    pub fn new(cluster: Arc<Cluster>, clients: Clients, mounts: usize) -> Self {
        Self {
            cluster,
            tree: RwLock::new(Tree::new(mounts)),
            clients,
            handles: RwLock::default(),
            next_handle: AtomicU64::new(1),
            outcome: Mutex::new("ok\n".into()),
        }
    }

    pub fn node(&self, ino: u64) -> Result<Arc<Node>, Errno> {
        self.tree.read().node(ino)
    }

    /// Returns the node like `node`. With `forgets_removed` a node that has no name and is not open
    /// gives ESTALE.
    pub fn known_node(&self, ino: u64) -> Result<Arc<Node>, Errno> {
        let node = self.node(ino)?;
        let gone = {
            let attrs = node.attrs.lock();
            attrs.nlink == 0 && attrs.opens == 0
        };
        match gone && self.cluster.common.forgets_removed {
            true => Err(Errno::ESTALE),
            false => Ok(node),
        }
    }

    pub fn handle(&self, fh: u64) -> Result<Arc<Handle>, Errno> {
        self.handles.read().get(&fh).cloned().ok_or(Errno::EBADF)
    }

    /// Returns the open file of a handle.
    pub fn open_file(&self, fh: u64) -> Result<Open, Errno> {
        match &*self.handle(fh)? {
            Handle::File { open, .. } => Ok(open.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// Looks up a name and counts the lookup, because the kernel now knows the node.
    pub fn lookup(&self, mount: usize, parent: u64, name: &OsStr) -> Result<Arc<Node>, Errno> {
        let node = self.tree.read().lookup(parent, name)?;
        node.told(mount);
        Ok(node)
    }

    pub fn forget(&self, mount: usize, ino: u64, count: u64) {
        let Ok(node) = self.node(ino) else {
            return;
        };
        let gone = {
            let mut attrs = node.attrs.lock();
            let left = attrs.lookups[mount].saturating_sub(count);
            attrs.lookups[mount] = left;
            left == 0 && attrs.nlink == 0
        };
        if gone {
            self.tree.write().reap(ino);
        }
    }

    /// Notes that a mount point is gone: its kernel no longer knows any node.
    pub fn unmounted(&self, mount: usize) {
        let mut tree = self.tree.write();
        let known: Vec<Arc<Node>> = tree.nodes().cloned().collect();
        for node in known {
            node.attrs.lock().lookups[mount] = 0;
            tree.reap(node.ino);
        }
    }

    pub fn create_node(
        &self,
        caller: Caller,
        parent: u64,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> Result<Arc<Node>, Errno> {
        let mut tree = self.tree.write();
        let wish = tree.node(parent)?.wish();
        let body = |ino| match mode & libc::S_IFMT {
            libc::S_IFREG => Body::File(Arc::new(FileBody::new(ino, wish))),
            libc::S_IFDIR => Body::Dir(Mutex::new(wish)),
            _ => Body::Special,
        };
        let node = tree.create(parent, name, mode, (caller.uid, caller.gid), body)?;
        node.attrs.lock().rdev = rdev;
        node.told(caller.mount);
        Ok(node)
    }

    pub fn symlink(
        &self,
        caller: Caller,
        parent: u64,
        name: &OsStr,
        target: &Path,
    ) -> Result<Arc<Node>, Errno> {
        let mut tree = self.tree.write();
        let mode = libc::S_IFLNK | 0o777;
        let body = |_| Body::Link(target.to_owned());
        let node = tree.create(parent, name, mode, (caller.uid, caller.gid), body)?;
        node.told(caller.mount);
        Ok(node)
    }

    pub fn link(
        &self,
        mount: usize,
        ino: u64,
        parent: u64,
        name: &OsStr,
    ) -> Result<Arc<Node>, Errno> {
        let node = self.tree.write().link(ino, parent, name)?;
        node.told(mount);
        Ok(node)
    }

    pub fn unlink(&self, parent: u64, name: &OsStr, dir: bool) -> Result<(), Errno> {
        let node = self.tree.write().unlink(parent, name, dir)?;
        self.discard_if_unreachable(&node);
        Ok(())
    }

    pub fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), flags: u32) -> Result<(), Errno> {
        if [from, to].contains(&(ROOT, OsStr::new(virtual_files::NAME))) {
            return Err(Errno::EBUSY);
        }
        let mut tree = self.tree.write();
        let gone = match flags {
            libc::RENAME_EXCHANGE => return tree.exchange(from, to),
            0 | libc::RENAME_NOREPLACE => tree.rename(from, to, flags != 0)?,
            _ => return Err(Errno::EINVAL),
        };
        drop(tree);
        if let Some(gone) = gone {
            self.discard_if_unreachable(&gone);
        }
        Ok(())
    }

    /// Frees the space of a file that has neither a name nor a handle.
    fn discard_if_unreachable(&self, node: &Arc<Node>) {
        let (unreachable, known) = {
            let attrs = node.attrs.lock();
            let known = attrs.lookups.iter().any(|count| *count > 0);
            (attrs.nlink == 0 && attrs.opens == 0, known)
        };
        if !unreachable {
            return;
        }
        if let Some(file) = node.file() {
            self.cluster.discard(file);
        }
        if !known {
            self.tree.write().reap(node.ino);
        }
    }

    /// Returns the entries of a directory after place `after`: number, place, mode, name.
    pub fn directory(&self, ino: u64, after: u64) -> Result<Vec<Listing>, Errno> {
        if let Some(entries) = self.virtual_entries(ino) {
            let listed = entries.into_iter().zip(1..).skip(after as usize);
            return Ok(listed
                .map(|((ino, name), place)| {
                    let mode = virtual_files::mode(ino).unwrap_or(libc::S_IFREG);
                    (ino, place, mode, name.into())
                })
                .collect());
        }
        let entries = self.tree.read().list(ino, after)?;
        Ok(entries
            .into_iter()
            .map(|Entry { node, place, name }| {
                let mode = node.attrs.lock().mode;
                (node.ino, place, mode, name)
            })
            .collect())
    }

    pub fn link_target(&self, ino: u64) -> Result<PathBuf, Errno> {
        match &self.node(ino)?.body {
            Body::Link(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Implements `lseek` to data or to a hole; the kernel does the other kinds itself.
    pub fn seek(&self, fh: u64, offset: i64, whence: i32) -> Result<u64, Errno> {
        let hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return Err(Errno::EINVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        self.cluster.seek(&self.open_file(fh)?.file, offset, hole)
    }

    pub fn space(&self) -> Space {
        let mut space = Space {
            files: self.tree.read().nodes().count() as u64,
            ..Space::default()
        };
        for ost in &self.cluster.osts {
            let state = ost.lock();
            space.capacity += state.settings.capacity;
            space.free += state.free();
        }
        space
    }

    /// Ends the client that a call by name used, if each open file is a client.
    pub fn nameless_call_ended(&self, open: &Open) {
        if self.clients == Clients::Handle {
            self.cluster.forget_client(open);
        }
    }

    pub fn set_attrs(&self, node: &Node, new: &NewAttrs) {
        let mut attrs = node.attrs.lock();
        if let Some(mode) = new.mode {
            attrs.mode = attrs.mode & libc::S_IFMT | mode & !libc::S_IFMT;
        }
        attrs.uid = new.uid.unwrap_or(attrs.uid);
        attrs.gid = new.gid.unwrap_or(attrs.gid);
        attrs.atime = new.atime.unwrap_or(attrs.atime);
        attrs.mtime = new.mtime.unwrap_or(attrs.mtime);
        attrs.ctime = SystemTime::now();
    }

    /// Opens a file, directory, special file or virtual file; returns the number of the handle.
    pub fn open(&self, caller: Caller, ino: u64, flags: i32) -> Result<u64, Errno> {
        let fh = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let handle = if virtual_files::is_virtual(ino) {
            let content = self.virtual_content(ino).ok_or(Errno::ENOENT)?;
            Handle::Virtual { ino, content }
        } else {
            if flags & libc::O_DIRECT != 0 && self.cluster.common.no_direct {
                return Err(Errno::EINVAL);
            }
            let node = self.node(ino)?;
            let opened = self.open_node(caller, &node, flags, fh)?;
            match opened {
                Some(open) => Handle::File { node, open },
                None => Handle::Other { node },
            }
        };
        self.handles.write().insert(fh, Arc::new(handle));
        Ok(fh)
    }

    fn open_node(
        &self,
        caller: Caller,
        node: &Node,
        flags: i32,
        fh: u64,
    ) -> Result<Option<Open>, Errno> {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        if let Some(file) = node.file()
            && writes
            && flags & DELAY_CREATE == 0
        {
            self.cluster.layout(file)?;
        }
        {
            let mut attrs = node.attrs.lock();
            if attrs.nlink == 0 && attrs.opens == 0 {
                return Err(Errno::ENOENT);
            }
            attrs.opens += 1;
        }
        Ok(node.file().map(|file| Open {
            file: file.clone(),
            client: self.client(caller, Some(fh)),
        }))
    }

    /// Returns the client whose locks a call uses; `fh` is `None` for calls by name.
    pub fn client(&self, caller: Caller, fh: Option<u64>) -> Client {
        match (self.clients, fh) {
            (Clients::Mount, _) => caller.mount as u64,
            (Clients::Process, _) => 1 << 62 | u64::from(process(caller.pid)),
            (Clients::Handle, Some(fh)) => 1 << 63 | fh,
            (Clients::Handle, None) => 1 << 63,
        }
    }

    /// Returns the error that a close reports: one that came too late for its write.
    pub fn flush(&self, fh: u64) -> Result<(), Errno> {
        match &*self.handle(fh)? {
            Handle::File { open, .. } => open.file.late_error.lock().take().map_or(Ok(()), Err),
            Handle::Other { .. } | Handle::Virtual { .. } => Ok(()),
        }
    }

    pub fn release(&self, fh: u64) -> Result<(), Errno> {
        let handle = self.handles.write().remove(&fh).ok_or(Errno::EBADF)?;
        let (node, open) = match &*handle {
            Handle::Virtual { .. } => return Ok(()),
            Handle::Other { node } => (node, None),
            Handle::File { node, open } => (node, Some(open)),
        };
        if let Some(open) = open.filter(|_| self.clients == Clients::Handle) {
            self.cluster.forget_client(open);
        }
        node.attrs.lock().opens -= 1;
        self.discard_if_unreachable(node);
        Ok(())
    }
}

/// Returns the process that a thread belongs to; FUSE requests name only the thread.
fn process(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    let status = status.unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let number = line.and_then(|number| number.trim().parse().ok());
    number.unwrap_or(thread)
}
