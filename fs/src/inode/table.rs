//! Node number to node, and who still refers to it. One lock for all of it: every change is a few
//! map operations, and the data path does not come here.

use super::Inode;
use crate::backing::identity::Identified;
use crate::types::ROOT;
use layout_index::FileId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Numbers from here on are given to files whose own number is taken: 1, which FUSE needs for
/// the root, or a number that the backing reused although it was held.
const SPARE: u64 = 1 << 62;

pub struct InodeTable {
    inner: Mutex<Inner>,
}

struct Inner {
    nodes: HashMap<u64, Entry>,
    by_id: HashMap<FileId, u64>,
    spare: u64,
}

struct Entry {
    inode: Arc<Inode>,
    lookups: u64,
    handles: u64,
    /// Undrained data: the drain will want the descriptor.
    dirty: bool,
}

impl Entry {
    fn is_unused(&self) -> bool {
        self.lookups == 0 && self.handles == 0 && !self.dirty && self.inode.node != ROOT
    }
}

impl Inner {
    /// Takes the entry out if nothing refers to it.
    fn reap(&mut self, node: u64) -> Option<Arc<Inode>> {
        if !self.nodes.get(&node)?.is_unused() {
            return None;
        }
        let entry = self.nodes.remove(&node)?;
        self.by_id.remove(&entry.inode.id);
        Some(entry.inode)
    }
}

impl InodeTable {
    pub fn new(root: OwnedFd, it: &Identified) -> Self {
        let root = Arc::new(Inode::new(ROOT, root, it));
        let mut nodes = HashMap::new();
        let by_id = HashMap::from([(root.id, ROOT)]);
        nodes.insert(
            ROOT,
            Entry {
                inode: root,
                lookups: 1,
                handles: 0,
                dirty: false,
            },
        );
        Self {
            inner: Mutex::new(Inner {
                nodes,
                by_id,
                spare: SPARE,
            }),
        }
    }

    pub fn get(&self, node: u64) -> Option<Arc<Inode>> {
        let inner = self.inner.lock();
        inner.nodes.get(&node).map(|e| e.inode.clone())
    }

    pub fn get_by_id(&self, id: &FileId) -> Option<Arc<Inode>> {
        let inner = self.inner.lock();
        let node = inner.by_id.get(id)?;
        inner.nodes.get(node).map(|e| e.inode.clone())
    }

    /// One more lookup of the file that `fd` stands for. A known file keeps its node, and `fd` is
    /// closed.
    pub fn remember(&self, fd: OwnedFd, it: &Identified) -> Arc<Inode> {
        let mut inner = self.inner.lock();
        if let Some(node) = inner.by_id.get(&it.id).copied()
            && let Some(entry) = inner.nodes.get_mut(&node)
        {
            entry.lookups += 1;
            return entry.inode.clone();
        }
        let node = match it.id.ino {
            0 | ROOT => None,
            ino => (ino < SPARE && !inner.nodes.contains_key(&ino)).then_some(ino),
        };
        let node = node.unwrap_or_else(|| {
            inner.spare += 1;
            inner.spare
        });
        let inode = Arc::new(Inode::new(node, fd, it));
        inner.by_id.insert(it.id, node);
        inner.nodes.insert(
            node,
            Entry {
                inode: inode.clone(),
                lookups: 1,
                handles: 0,
                dirty: false,
            },
        );
        inode
    }

    /// The kernel gives back `count` lookups. The node comes back when it was the last reference.
    pub fn forget(&self, node: u64, count: u64) -> Option<Arc<Inode>> {
        let mut inner = self.inner.lock();
        let entry = inner.nodes.get_mut(&node)?;
        entry.lookups = entry.lookups.saturating_sub(count);
        inner.reap(node)
    }

    /// One more handle; false when the node is not known (any more).
    pub fn add_handle(&self, node: u64) -> bool {
        let mut inner = self.inner.lock();
        match inner.nodes.get_mut(&node) {
            Some(entry) => {
                entry.handles += 1;
                true
            }
            None => false,
        }
    }

    /// The node comes back when this was the last reference.
    pub fn remove_handle(&self, node: u64) -> Option<Arc<Inode>> {
        let mut inner = self.inner.lock();
        let entry = inner.nodes.get_mut(&node)?;
        entry.handles = entry.handles.saturating_sub(1);
        inner.reap(node)
    }

    /// Keeps the node while `is_dirty` says so; asked under the lock, so that a file that becomes
    /// dirty again meanwhile is not let go by whoever saw it clean.
    pub fn keep_while(&self, id: &FileId, is_dirty: impl FnOnce() -> bool) -> Option<Arc<Inode>> {
        let mut inner = self.inner.lock();
        let node = *inner.by_id.get(id)?;
        let entry = inner.nodes.get_mut(&node)?;
        entry.dirty = is_dirty();
        inner.reap(node)
    }

    pub fn len(&self) -> usize {
        self.inner.lock().nodes.len()
    }
}

#[cfg(test)]
mod tests;
