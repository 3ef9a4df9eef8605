//! Files by handle: `open_by_handle_at` on the mount, and servers that export it.
//!
//! The kernel makes handles from node numbers and generations. While it knows the node it sends no request.
//! For a node that it has forgotten it looks up the name ".", and to connect a directory "..". The number
//! alone finds nothing in the backing, so the backing's own handles of the most recently forgotten nodes are
//! remembered. The caller has CAP_DAC_READ_SEARCH: the kernel sends these names for no other caller.
//!
//! # Crash behaviour
//! Nothing is stored: the next mount has other handles.

use super::Overlay;
use crate::backing::{creds, identity, sys};
use crate::errno::{FsError, Result};
use crate::inode::Inode;
use crate::types::{Entry, ROOT};
use layout_index::FileId;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How many nodes are remembered, at about 150 bytes each.
const MOST: usize = 1 << 16;

/// How long a node that is being let go may be neither known nor remembered.
const LETTING_GO: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Forgotten(Mutex<Nodes>);

#[derive(Default)]
struct Nodes {
    known: HashMap<u64, Node>,
    /// Node numbers, the oldest first.
    order: VecDeque<u64>,
}

#[derive(Clone)]
struct Node {
    id: FileId,
    handle: Vec<u8>,
}

impl Overlay {
    /// True if handles of the mount's files lead to them for as long as the mount lives.
    pub fn exports(&self) -> bool {
        self.backing.reopens()
    }
}

impl Forgotten {
    /// Must be called when nothing refers to the node any more. Only root can use handles, so a daemon of
    /// another user remembers none.
    pub(super) fn remember(&self, inode: &Inode) {
        if inode.is_unlinked() || !creds::switches() {
            return;
        }
        let handle = identity::handle(inode.fd());
        if handle.is_empty() {
            return;
        }
        let id = inode.id;
        let mut nodes = self.0.lock();
        if nodes
            .known
            .insert(inode.node, Node { id, handle })
            .is_some()
        {
            return;
        }
        nodes.order.push_back(inode.node);
        if nodes.order.len() > MOST
            && let Some(oldest) = nodes.order.pop_front()
        {
            nodes.known.remove(&oldest);
        }
    }

    fn get(&self, node: u64) -> Option<Node> {
        self.0.lock().known.get(&node).cloned()
    }
}

impl Overlay {
    /// Looks up the node itself, which the kernel may have forgotten.
    pub(super) fn lookup_self(&self, node: u64, uid: u32) -> Result<Entry> {
        let fd = self.find_node(node)?.ok_or(FsError::Stale(node))?;
        let entry = self.admit_at(fd, None, uid)?.1;
        // Its number may belong to another file by now.
        if node != ROOT && entry.attr.ino != node {
            self.undo_lookup(entry.attr.ino);
            return Err(FsError::Stale(node));
        }
        Ok(entry)
    }

    /// A node is let go on another thread, so it may be about to be remembered: waits for that.
    fn find_node(&self, node: u64) -> Result<Option<OwnedFd>> {
        let deadline = Instant::now() + LETTING_GO;
        loop {
            if let Some(inode) = self.inodes.get(node) {
                return Ok(Some(inode.fd().try_clone_to_owned()?));
            }
            if let Some(Node { id, handle }) = self.forgotten.get(node) {
                return Ok(self.backing.by_known_handle(id, &handle)?);
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Looks up the parent directory, which must be beneath the backing's root: directories can be moved.
    pub(super) fn lookup_parent(&self, node: u64, uid: u32) -> Result<Entry> {
        let dir = self.directory(node)?;
        let above: OwnedFd = match node {
            ROOT => dir.fd().try_clone_to_owned()?,
            _ => sys::open_parent(dir.fd())?,
        };
        if self.backing.relative_path(above.as_fd())?.is_none() {
            return Err(FsError::Stale(node));
        }
        let (inode, mut entry) = self.admit_at(above, None, uid)?;
        if inode.node == ROOT {
            // The number by which the kernel knows the root; users see another one.
            entry.attr.ino = ROOT;
        }
        Ok(entry)
    }
}
