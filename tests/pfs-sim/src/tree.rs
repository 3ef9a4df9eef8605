//! The namespace: the entries of each directory. All mount points share one tree.
//!
//! The caller holds the tree's lock for the whole operation; attributes have their own lock, which
//! is taken after it. The kernel checks permissions (`default_permissions`).

use crate::Errno;
use crate::node::{Attrs, Body, Node};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::SystemTime;

pub const ROOT: u64 = 1;
const LONGEST_NAME: usize = 255;

#[derive(Debug)]
struct Dir {
    parent: u64,
    /// Inode number, and the entry's place in listings.
    entries: BTreeMap<OsString, (u64, u64)>,
    /// Names by place, so that a listing can continue where it was although entries were added and
    /// removed.
    order: BTreeMap<u64, OsString>,
    next_place: u64,
}

impl Dir {
    fn new(parent: u64) -> Self {
        Self {
            parent,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            // Places 1 and 2 are "." and "..".
            next_place: 3,
        }
    }

    fn insert(&mut self, name: &OsStr, ino: u64) {
        self.remove(name);
        self.entries.insert(name.into(), (ino, self.next_place));
        self.order.insert(self.next_place, name.into());
        self.next_place += 1;
    }

    fn remove(&mut self, name: &OsStr) -> Option<u64> {
        let (ino, place) = self.entries.remove(name)?;
        self.order.remove(&place);
        Some(ino)
    }
}

pub struct Tree {
    nodes: HashMap<u64, Arc<Node>>,
    dirs: HashMap<u64, Dir>,
    next_ino: u64,
    mounts: usize,
}

/// One entry of a listing.
pub struct Entry {
    pub node: Arc<Node>,
    /// The place after which the listing continues.
    pub place: u64,
    pub name: OsString,
}

impl Tree {
    pub fn new(mounts: usize) -> Self {
        let mut attrs = Attrs::new(libc::S_IFDIR | 0o1777, 0, 0, mounts);
        attrs.nlink = 2;
        let root = Node {
            ino: ROOT,
            attrs: Mutex::new(attrs),
            body: Body::Dir(Mutex::default()),
        };
        Self {
            nodes: HashMap::from([(ROOT, Arc::new(root))]),
            dirs: HashMap::from([(ROOT, Dir::new(ROOT))]),
            next_ino: ROOT + 1,
            mounts,
        }
    }

    pub fn node(&self, ino: u64) -> Result<Arc<Node>, Errno> {
        self.nodes.get(&ino).cloned().ok_or(Errno::ESTALE)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    fn dir(&self, ino: u64) -> Result<&Dir, Errno> {
        self.dirs.get(&ino).ok_or(Errno::ENOTDIR)
    }

    fn dir_mut(&mut self, ino: u64) -> Result<&mut Dir, Errno> {
        self.dirs.get_mut(&ino).ok_or(Errno::ENOTDIR)
    }

    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<Arc<Node>, Errno> {
        let dir = self.dir(parent)?;
        if name.len() > LONGEST_NAME {
            return Err(Errno::ENAMETOOLONG);
        }
        if name == "." {
            return self.node(parent);
        }
        if name == ".." {
            return self.node(dir.parent);
        }
        let (ino, _) = dir.entries.get(name).ok_or(Errno::ENOENT)?;
        self.node(*ino)
    }

    /// Checks that a new name can be made in a directory that still exists.
    fn vacant(&self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        if name.len() > LONGEST_NAME {
            return Err(Errno::ENAMETOOLONG);
        }
        let dir = self.dir(parent)?;
        if dir.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        match self.node(parent)?.attrs.lock().nlink {
            0 => Err(Errno::ENOENT),
            _ => Ok(()),
        }
    }

    /// Creates a node; `body` gets its number. The group follows a set-group-id directory.
    pub fn create(
        &mut self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        owner: (u32, u32),
        body: impl FnOnce(u64) -> Body,
    ) -> Result<Arc<Node>, Errno> {
        self.vacant(parent, name)?;
        let above = self.node(parent)?;
        let (mut mode, mut gid) = (mode, owner.1);
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        {
            let above = above.attrs.lock();
            if above.mode & libc::S_ISGID != 0 {
                gid = above.gid;
                mode |= if is_dir { libc::S_ISGID } else { 0 };
            }
        }
        let ino = self.next_ino;
        self.next_ino += 1;
        let mut attrs = Attrs::new(mode, owner.0, gid, self.mounts);
        if is_dir {
            attrs.nlink = 2;
            self.dirs.insert(ino, Dir::new(parent));
            above.attrs.lock().nlink += 1;
        }
        let node = Arc::new(Node {
            ino,
            attrs: Mutex::new(attrs),
            body: body(ino),
        });
        self.nodes.insert(ino, node.clone());
        self.dir_mut(parent)?.insert(name, ino);
        above.attrs.lock().changed();
        Ok(node)
    }

    pub fn link(&mut self, ino: u64, parent: u64, name: &OsStr) -> Result<Arc<Node>, Errno> {
        let node = self.node(ino)?;
        if node.is_dir() {
            return Err(Errno::EPERM);
        }
        self.vacant(parent, name)?;
        {
            let mut attrs = node.attrs.lock();
            if attrs.nlink == 0 {
                return Err(Errno::ENOENT);
            }
            attrs.nlink += 1;
            attrs.ctime = SystemTime::now();
        }
        self.dir_mut(parent)?.insert(name, ino);
        self.node(parent)?.attrs.lock().changed();
        Ok(node)
    }

    /// Removes a name and returns the node that it named.
    pub fn unlink(&mut self, parent: u64, name: &OsStr, dir: bool) -> Result<Arc<Node>, Errno> {
        let node = self.lookup(parent, name)?;
        match (dir, node.is_dir()) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) => self.must_be_empty(node.ino)?,
            (false, false) => {}
        }
        self.dir_mut(parent)?.remove(name);
        self.node(parent)?.attrs.lock().changed();
        self.lost_a_name(&node, parent)?;
        Ok(node)
    }

    fn must_be_empty(&self, ino: u64) -> Result<(), Errno> {
        if self.dir(ino)?.entries.is_empty() {
            Ok(())
        } else {
            Err(Errno::ENOTEMPTY)
        }
    }

    fn lost_a_name(&mut self, node: &Node, parent: u64) -> Result<(), Errno> {
        let mut attrs = node.attrs.lock();
        attrs.ctime = SystemTime::now();
        if node.is_dir() {
            attrs.nlink = 0;
            drop(attrs);
            self.node(parent)?.attrs.lock().nlink -= 1;
        } else {
            attrs.nlink -= 1;
        }
        Ok(())
    }

    /// Returns whether `below` is `ino` or is somewhere beneath it.
    fn contains(&self, ino: u64, below: u64) -> Result<bool, Errno> {
        let mut at = below;
        loop {
            if at == ino {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            at = self.dir(at)?.parent;
        }
    }

    /// Renames an entry; returns the node that lost its name by it, if there is one.
    pub fn rename(
        &mut self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        no_replace: bool,
    ) -> Result<Option<Arc<Node>>, Errno> {
        let node = self.lookup(from.0, from.1)?;
        if node.is_dir() && self.contains(node.ino, to.0)? {
            return Err(Errno::EINVAL);
        }
        let old = match self.vacant(to.0, to.1) {
            Ok(()) => None,
            Err(Errno::EEXIST) if no_replace => return Err(Errno::EEXIST),
            Err(Errno::EEXIST) => Some(self.lookup(to.0, to.1)?),
            Err(e) => return Err(e),
        };
        if let Some(old) = &old {
            if old.ino == node.ino {
                return Ok(None);
            }
            match (node.is_dir(), old.is_dir()) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) => self.must_be_empty(old.ino)?,
                (false, false) => {}
            }
            self.dir_mut(to.0)?.remove(to.1);
            self.lost_a_name(old, to.0)?;
        }
        self.dir_mut(from.0)?.remove(from.1);
        self.dir_mut(to.0)?.insert(to.1, node.ino);
        self.moved(&node, from.0, to.0)?;
        Ok(old)
    }

    /// Exchanges two names; both must exist.
    pub fn exchange(&mut self, a: (u64, &OsStr), b: (u64, &OsStr)) -> Result<(), Errno> {
        let (first, second) = (self.lookup(a.0, a.1)?, self.lookup(b.0, b.1)?);
        if (first.is_dir() && self.contains(first.ino, b.0)?)
            || (second.is_dir() && self.contains(second.ino, a.0)?)
        {
            return Err(Errno::EINVAL);
        }
        self.dir_mut(a.0)?.insert(a.1, second.ino);
        self.dir_mut(b.0)?.insert(b.1, first.ino);
        self.moved(&first, a.0, b.0)?;
        self.moved(&second, b.0, a.0)
    }

    fn moved(&mut self, node: &Node, from: u64, to: u64) -> Result<(), Errno> {
        if node.is_dir() && from != to {
            self.dir_mut(node.ino)?.parent = to;
            self.node(from)?.attrs.lock().nlink -= 1;
            self.node(to)?.attrs.lock().nlink += 1;
        }
        self.node(from)?.attrs.lock().changed();
        self.node(to)?.attrs.lock().changed();
        node.attrs.lock().ctime = SystemTime::now();
        Ok(())
    }

    /// Returns the entries after place `after`.
    pub fn list(&self, ino: u64, after: u64) -> Result<Vec<Entry>, Errno> {
        let dir = self.dir(ino)?;
        let mut list = Vec::new();
        for (place, name, ino) in [(1, ".", ino), (2, "..", dir.parent)] {
            if place > after {
                let node = self.node(ino)?;
                let name = name.into();
                list.push(Entry { node, place, name });
            }
        }
        for (place, name) in dir.order.range(after.max(2) + 1..) {
            if let Some((ino, _)) = dir.entries.get(name) {
                let (node, name) = (self.node(*ino)?, name.clone());
                let place = *place;
                list.push(Entry { node, place, name });
            }
        }
        Ok(list)
    }

    /// Forgets a node that has no name and no handle and that no kernel knows.
    pub fn reap(&mut self, ino: u64) {
        let Some(node) = self.nodes.get(&ino) else {
            return;
        };
        let attrs = node.attrs.lock();
        let known = attrs.lookups.iter().any(|count| *count > 0);
        let gone = attrs.nlink == 0 && attrs.opens == 0 && !known && ino != ROOT;
        drop(attrs);
        if gone {
            self.nodes.remove(&ino);
            self.dirs.remove(&ino);
        }
    }

    /// Returns one path from the root for every file that has a name.
    pub fn paths(&self) -> HashMap<u64, String> {
        let mut found = HashMap::new();
        let mut todo = vec![(ROOT, String::new())];
        while let Some((ino, path)) = todo.pop() {
            let Some(dir) = self.dirs.get(&ino) else {
                continue;
            };
            for (name, (child, _)) in &dir.entries {
                let below = match path.as_str() {
                    "" => name.to_string_lossy().into_owned(),
                    path => format!("{path}/{}", name.to_string_lossy()),
                };
                if self.dirs.contains_key(child) {
                    todo.push((*child, below));
                } else {
                    found.insert(*child, below);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
