//! Node number to node, and who still refers to it. One lock for all of it: every change is a few
//! map operations, and the data path does not come here.

use super::Inode;
use crate::backing::identity::Identified;
use crate::types::ROOT;
use layout_index::FileId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Numbers from here on are given to files whose own number is taken: 1, which FUSE needs for
/// the root, or a number that the backing reused although it was held.
const SPARE: u64 = 1 << 62;

/// The kernel is asked at most this often to let files go, unless many were looked up since.
const ASK_AGAIN: Duration = Duration::from_secs(1);

pub struct InodeTable {
    inner: Mutex<Inner>,
}

struct Inner {
    nodes: HashMap<u64, Entry>,
    by_id: HashMap<FileId, u64>,
    spare: u64,
    /// Of all nodes together: each has a descriptor of its own.
    handles: usize,
    limits: Limits,
    /// Counts lookups: what is older has a smaller number.
    clock: u64,
    /// When the kernel was last asked to let files go, and how many descriptors were in use.
    asked: Option<(Instant, usize)>,
}

struct Limits {
    /// No new node when nodes and handles together have this many descriptors.
    nodes: usize,
    /// No new handle either.
    handles: usize,
}

impl Limits {
    /// `descriptors` is all that the process may have open. Some are left for the store, the
    /// drain and whatever a request opens for a moment.
    fn of(descriptors: usize) -> Self {
        let kept = (descriptors / 2).min(4096);
        Self {
            nodes: descriptors - kept,
            handles: descriptors - kept / 2,
        }
    }
}

/// Where a file was found: the kernel drops what it knows of it when told parent and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub parent: u64,
    pub name: CString,
}

/// Why there is no handle to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHandle {
    /// The node is not known (any more).
    Unknown,
    /// Too many descriptors are in use.
    Full,
}

struct Entry {
    inode: Arc<Inode>,
    lookups: u64,
    handles: u64,
    /// Undrained data: the drain will want the descriptor.
    dirty: bool,
    /// As of the last lookup.
    place: Option<Place>,
    used: u64,
}

impl Entry {
    fn is_unused(&self) -> bool {
        self.lookups == 0 && self.handles == 0 && !self.dirty && self.inode.node != ROOT
    }
}

impl Inner {
    fn in_use(&self) -> usize {
        self.nodes.len() + self.handles
    }

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
    /// `descriptors` is how many files the process may have open.
    pub fn new(root: OwnedFd, it: &Identified, descriptors: usize) -> Self {
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
                place: None,
                used: 0,
            },
        );
        Self {
            inner: Mutex::new(Inner {
                nodes,
                by_id,
                spare: SPARE,
                handles: 0,
                limits: Limits::of(descriptors),
                clock: 0,
                asked: None,
            }),
        }
    }

    pub fn set_descriptors(&self, descriptors: usize) {
        self.inner.lock().limits = Limits::of(descriptors);
    }

    /// A new node would be taken in now.
    pub fn has_room(&self) -> bool {
        let inner = self.inner.lock();
        inner.in_use() < inner.limits.nodes
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
    /// closed; for an unknown one there may be no room, and `None` says so.
    pub fn remember(&self, fd: OwnedFd, it: &Identified, place: Place) -> Option<Arc<Inode>> {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let used = inner.clock;
        if let Some(node) = inner.by_id.get(&it.id).copied()
            && let Some(entry) = inner.nodes.get_mut(&node)
        {
            entry.lookups += 1;
            entry.used = used;
            entry.place = Some(place);
            return Some(entry.inode.clone());
        }
        if inner.in_use() >= inner.limits.nodes {
            return None;
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
                place: Some(place),
                used,
            },
        );
        Some(inode)
    }

    /// When three quarters of the descriptors are in use: the files that were not looked up for
    /// the longest time and that nothing but the kernel's memory keeps, enough of them to get to
    /// one half. Empty otherwise, and when the kernel was asked a moment ago.
    pub fn idle_files(&self) -> Vec<Place> {
        let (mut idle, surplus) = {
            let mut inner = self.inner.lock();
            let (in_use, most) = (inner.in_use(), inner.limits.nodes);
            if in_use < most - most / 4 {
                inner.asked = None;
                return vec![];
            }
            let now = Instant::now();
            let recently = inner.asked.is_some_and(|(then, before)| {
                now.duration_since(then) < ASK_AGAIN && in_use < before + most / 16
            });
            if recently {
                return vec![];
            }
            inner.asked = Some((now, in_use));
            let idle: Vec<(u64, u64)> = inner
                .nodes
                .iter()
                .filter(|(_, e)| {
                    e.handles == 0 && !e.dirty && !e.inode.is_dir() && e.place.is_some()
                })
                .map(|(node, e)| (e.used, *node))
                .collect();
            (idle, in_use - most / 2)
        };
        if idle.len() > surplus {
            idle.select_nth_unstable(surplus);
            idle.truncate(surplus);
        }
        let inner = self.inner.lock();
        idle.iter()
            .filter_map(|(_, node)| inner.nodes.get(node)?.place.clone())
            .collect()
    }

    /// The kernel gives back `count` lookups. The node comes back when it was the last reference.
    pub fn forget(&self, node: u64, count: u64) -> Option<Arc<Inode>> {
        let mut inner = self.inner.lock();
        let entry = inner.nodes.get_mut(&node)?;
        entry.lookups = entry.lookups.saturating_sub(count);
        inner.reap(node)
    }

    pub fn add_handle(&self, node: u64) -> Result<(), NoHandle> {
        let mut inner = self.inner.lock();
        let full = inner.in_use() >= inner.limits.handles;
        let entry = inner.nodes.get_mut(&node).ok_or(NoHandle::Unknown)?;
        if full {
            return Err(NoHandle::Full);
        }
        entry.handles += 1;
        inner.handles += 1;
        Ok(())
    }

    /// Something on this node has it open.
    pub fn is_open(&self, node: u64) -> bool {
        let inner = self.inner.lock();
        inner
            .nodes
            .get(&node)
            .is_some_and(|entry| entry.handles > 0)
    }

    /// The node comes back when this was the last reference.
    pub fn remove_handle(&self, node: u64) -> Option<Arc<Inode>> {
        let mut inner = self.inner.lock();
        let entry = inner.nodes.get_mut(&node)?;
        if entry.handles > 0 {
            entry.handles -= 1;
            if entry.handles == 0 {
                entry.inode.keep_attributes();
            }
            inner.handles -= 1;
        }
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
