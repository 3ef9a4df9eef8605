//! Maps node numbers to nodes, and counts the references to each. One lock protects all of it: every change
//! is a few map operations, and the data path does not use the table.

use super::Inode;
use super::shares::{Limits, Shares};
use crate::backing::identity::Identified;
use crate::types::ROOT;
use layout_index::FileId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Numbers from here on are given to files whose own number is taken: 1, which FUSE needs for the root, or a
/// number that the backing reused although it was held.
const SPARE: u64 = 1 << 62;

/// The kernel is asked to forget files at most this often, unless many were looked up since.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What a lookup waits when nearly no descriptor is left for its user.
const LONGEST_DELAY: Duration = Duration::from_millis(40);

pub struct InodeTable {
    inner: Mutex<Inner>,
}

struct Inner {
    nodes: HashMap<u64, Entry>,
    by_id: HashMap<FileId, u64>,
    spare: u64,
    /// Number of handles of all nodes together: each has a descriptor of its own.
    handles: usize,
    /// Descriptors of handles and nodes, by user.
    shares: Shares,
    limits: Limits,
    /// Files can be opened by handle, so undrained data need not keep a descriptor that is needed elsewhere.
    reopens: bool,
    /// Counts lookups: a smaller number is older.
    clock: u64,
    /// When the kernel was last asked to forget files (of one user, or of all), and how many
    /// descriptors were in use then.
    asked: HashMap<Option<u32>, (Instant, usize)>,
}

/// Where a file was found. The kernel drops what it knows of an entry when told its parent and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub parent: u64,
    pub name: CString,
}

/// Why no handle can be had.
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
    /// The file has undrained data: the drain will need the descriptor.
    dirty: bool,
    /// Where the last lookup found it.
    place: Option<Place>,
    used: u64,
    /// The user that looked it up first: its descriptor counts in that user's share.
    uid: u32,
}

impl Entry {
    fn is_unused(&self, keep_dirty: bool) -> bool {
        let kept = self.dirty && keep_dirty;
        self.lookups == 0 && self.handles == 0 && !kept && self.inode.node != ROOT
    }

    /// True if only the kernel's cache keeps the entry.
    fn is_idle(&self, keep_dirty: bool) -> bool {
        let kept = self.dirty && keep_dirty;
        self.handles == 0 && !kept && !self.inode.is_dir() && self.place.is_some()
    }
}

impl Inner {
    fn in_use(&self) -> usize {
        self.nodes.len() + self.handles
    }

    /// True if the user may have one more descriptor for a purpose that may use `most`.
    fn allows(&self, uid: u32, most: usize) -> bool {
        let users = self.limits.users;
        self.shares.allow(uid, self.in_use(), most, users)
    }

    /// True if dirty files keep their descriptors. While there are enough descriptors, a dirty file keeps its
    /// own: then it is found at once, and its name is known after a rename. Without it a file is opened by
    /// its handle, or else by the path that it had, and searched for if it was renamed. So where files cannot
    /// be opened by handle, they keep their descriptors for longer.
    fn keeps_dirty(&self) -> bool {
        let share = if self.reopens { 8 } else { 4 };
        self.in_use() < self.limits.nodes / share
    }

    /// Returns whose descriptors are short (this user's, or everyone's), how many of them are in use, and to
    /// how many that should be reduced.
    fn shortage(&self, uid: u32) -> Option<(Option<u32>, usize, usize)> {
        let (all, most) = (self.in_use(), self.limits.nodes);
        let own = self.shares.held_by(uid);
        let share = self.shares.most(uid, all, self.limits.users);
        match share {
            _ if all >= most - most / 4 => Some((None, all, most / 2)),
            Some(share) if own >= share / 2 && own > 0 => Some((Some(uid), own, share / 4)),
            _ => None,
        }
    }

    /// Removes and returns the node if nothing refers to it.
    fn reap(&mut self, node: u64) -> Option<Arc<Inode>> {
        let keep_dirty = self.keeps_dirty();
        if !self.nodes.get(&node)?.is_unused(keep_dirty) {
            return None;
        }
        let entry = self.nodes.remove(&node)?;
        self.by_id.remove(&entry.inode.id);
        self.shares.remove(entry.uid);
        Some(entry.inode)
    }
}

impl InodeTable {
    /// `descriptors` is how many files the process may have open.
    pub fn new(root: OwnedFd, it: &Identified, descriptors: usize, reopens: bool) -> Self {
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
                uid: 0,
            },
        );
        Self {
            inner: Mutex::new(Inner {
                nodes,
                by_id,
                spare: SPARE,
                handles: 0,
                shares: Shares::default(),
                limits: Limits::for_process(descriptors),
                reopens,
                clock: 0,
                asked: HashMap::new(),
            }),
        }
    }

    pub fn set_descriptors(&self, descriptors: usize) {
        self.inner.lock().limits = Limits::for_process(descriptors);
    }

    /// True if a new node of this user would be accepted now.
    pub fn has_room(&self, uid: u32) -> bool {
        let inner = self.inner.lock();
        inner.allows(uid, inner.limits.nodes)
    }

    pub fn get(&self, node: u64) -> Option<Arc<Inode>> {
        let inner = self.inner.lock();
        inner.nodes.get(&node).map(|e| e.inode.clone())
    }

    /// Where the last lookup found the node.
    pub fn place_of(&self, node: u64) -> Option<Place> {
        self.inner.lock().nodes.get(&node)?.place.clone()
    }

    pub fn get_by_id(&self, id: &FileId) -> Option<Arc<Inode>> {
        let inner = self.inner.lock();
        let node = inner.by_id.get(id)?;
        inner.nodes.get(node).map(|e| e.inode.clone())
    }

    /// Counts one more lookup of the file that `fd` stands for. A known file keeps its node, and `fd` is
    /// closed; for an unknown file `None` means that there is no room for this user.
    pub fn remember(
        &self,
        fd: OwnedFd,
        it: &Identified,
        place: impl Into<Option<Place>>,
        uid: u32,
    ) -> Option<Arc<Inode>> {
        let place = place.into();
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let used = inner.clock;
        if let Some(node) = inner.by_id.get(&it.id).copied()
            && let Some(entry) = inner.nodes.get_mut(&node)
        {
            entry.lookups += 1;
            entry.used = used;
            entry.place = place.or(entry.place.take());
            return Some(entry.inode.clone());
        }
        if !inner.allows(uid, inner.limits.nodes) {
            return None;
        }
        inner.shares.add(uid);
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
                place,
                used,
                uid,
            },
        );
        Some(inode)
    }

    /// Files that the kernel should forget, if three quarters of the descriptors are in use, or half of those
    /// that this user may have. They are the files (of all users, or of this one) that were not looked up for
    /// the longest time and that only the kernel's cache keeps, enough of them to get to one half, or to a
    /// quarter. Empty otherwise, and if the kernel was asked a moment ago.
    pub fn idle_files(&self, uid: u32) -> Vec<Place> {
        let (mut idle, surplus) = {
            let mut inner = self.inner.lock();
            let Some((whose, in_use, down_to)) = inner.shortage(uid) else {
                inner.asked.clear();
                return vec![];
            };
            let now = Instant::now();
            let recently = inner.asked.get(&whose).is_some_and(|(then, before)| {
                now.duration_since(*then) < ASK_AGAIN && in_use < before + down_to / 8
            });
            if recently {
                return vec![];
            }
            inner.asked.insert(whose, (now, in_use));
            let keep_dirty = inner.keeps_dirty();
            let idle: Vec<(u64, u64)> = inner
                .nodes
                .iter()
                .filter(|(_, e)| e.is_idle(keep_dirty) && whose.is_none_or(|uid| e.uid == uid))
                .map(|(node, e)| (e.used, *node))
                .collect();
            (idle, in_use - down_to)
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

    /// How long a lookup by this user is held back while descriptors are short: nothing until seven eighths are in use,
    /// then the more the fewer are left. A walk finds files faster than the kernel lets go of those that it was
    /// asked for, which it can do only between two lookups in their directory.
    pub fn lookup_delay(&self, uid: u32) -> Duration {
        let inner = self.inner.lock();
        let (all, most) = (inner.in_use(), inner.limits.nodes);
        let share = inner.shares.most(uid, all, inner.limits.users);
        let of_user = share.map_or(0.0, |share| scarcity(inner.shares.held_by(uid), share));
        LONGEST_DELAY.mul_f64(scarcity(all, most).max(of_user).powi(2))
    }

    /// The kernel gives back `count` lookups. Returns the node if that was the last reference.
    pub fn forget(&self, node: u64, count: u64) -> Option<Arc<Inode>> {
        let mut inner = self.inner.lock();
        let entry = inner.nodes.get_mut(&node)?;
        entry.lookups = entry.lookups.saturating_sub(count);
        inner.reap(node)
    }

    pub fn add_handle(&self, node: u64, uid: u32) -> Result<(), NoHandle> {
        let mut inner = self.inner.lock();
        let allowed = inner.allows(uid, inner.limits.handles);
        let entry = inner.nodes.get_mut(&node).ok_or(NoHandle::Unknown)?;
        if !allowed {
            return Err(NoHandle::Full);
        }
        entry.handles += 1;
        inner.handles += 1;
        inner.shares.add(uid);
        Ok(())
    }

    /// Removes and returns dirty files that only their undrained data keeps, if descriptors are short.
    pub fn spare_dirty(&self) -> Vec<Arc<Inode>> {
        let mut inner = self.inner.lock();
        if inner.keeps_dirty() {
            return vec![];
        }
        let spare: Vec<u64> = inner
            .nodes
            .iter()
            .filter(|(_, e)| e.is_unused(false))
            .map(|(node, _)| *node)
            .collect();
        spare.iter().filter_map(|node| inner.reap(*node)).collect()
    }

    /// True if a process of this node has the file open.
    pub fn is_open(&self, node: u64) -> bool {
        let inner = self.inner.lock();
        inner
            .nodes
            .get(&node)
            .is_some_and(|entry| entry.handles > 0)
    }

    /// Returns the node if this was the last reference.
    pub fn remove_handle(&self, node: u64, uid: u32) -> Option<Arc<Inode>> {
        let mut inner = self.inner.lock();
        let entry = inner.nodes.get_mut(&node)?;
        if entry.handles > 0 {
            entry.handles -= 1;
            if entry.handles == 0 {
                entry.inode.keep_attributes();
            }
            inner.handles -= 1;
            inner.shares.remove(uid);
        }
        inner.reap(node)
    }

    /// Keeps the node while `is_dirty` is true, and returns it if this was the last reference. `is_dirty`
    /// is called under the lock, so that a file that becomes dirty again meanwhile is not let go by a
    /// caller that saw it clean.
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

/// 0 while less than seven eighths of `most` are in use, 1 when all are.
fn scarcity(in_use: usize, most: usize) -> f64 {
    let used = in_use as f64 / most.max(1) as f64;
    (8.0 * used - 7.0).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests;
