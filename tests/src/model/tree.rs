//! The expected state of one directory of files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Clocks of file systems are coarse: the time of a file may lie this much (in nanoseconds) before the call
/// that changed it.
const GRAIN: i64 = 20_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mtime {
    /// Set by utimensat, to the nanosecond.
    Exact(i64),
    /// Changed by an operation that began at this time.
    Since(i64),
    /// POSIX leaves open whether the last operation counted as a modification.
    Open,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub data: Vec<u8>,
    pub mode: u32,
    pub links: u64,
    pub mtime: Mtime,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

impl Node {
    pub fn new(mode: u32) -> Self {
        Self {
            data: Vec::new(),
            mode,
            links: 1,
            mtime: Mtime::Since(now()),
            xattrs: BTreeMap::new(),
        }
    }

    pub fn size(&self) -> u64 {
        self.data.len() as u64
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if end > self.data.len() {
            self.data.resize(end, 0);
        }
        self.data[start..end].copy_from_slice(bytes);
    }

    pub fn truncate(&mut self, size: u64) {
        self.data.resize(size as usize, 0);
    }

    /// Zeroes the part of the range that exists. If `grow`, grows the file to the end of the range first.
    pub fn zero(&mut self, offset: u64, len: u64, grow: bool) {
        let end = (offset + len) as usize;
        if grow && end > self.data.len() {
            self.data.resize(end, 0);
        }
        let end = end.min(self.data.len());
        if (offset as usize) < end {
            self.data[offset as usize..end].fill(0);
        }
    }

    /// Returns what a read of `len` bytes at `offset` must return.
    pub fn read(&self, offset: u64, len: usize) -> &[u8] {
        let start = (offset as usize).min(self.data.len());
        &self.data[start..(start + len).min(self.data.len())]
    }

    pub fn all_zero(&self, from: u64, to: u64) -> bool {
        let to = (to as usize).min(self.data.len());
        self.data[(from as usize).min(to)..to]
            .iter()
            .all(|byte| *byte == 0)
    }

    /// Compares everything `stat` shows.
    pub fn check(&self, meta: &Metadata) -> Result<(), String> {
        let same = |what: &str, got: u64, want: u64| {
            if got == want {
                Ok(())
            } else {
                Err(format!(
                    "{what} is {got:o} octal ({got}), expected {want:o} ({want})"
                ))
            }
        };
        same("size", meta.len(), self.size())?;
        same(
            "mode",
            u64::from(meta.mode() & 0o7777),
            u64::from(self.mode),
        )?;
        same("link count", meta.nlink(), self.links)?;
        self.check_mtime(crate::sys::mtime(meta))
    }

    fn check_mtime(&self, got: i64) -> Result<(), String> {
        match self.mtime {
            Mtime::Exact(want) if got != want => {
                Err(format!("mtime is {got}, expected exactly {want}"))
            }
            Mtime::Since(want) if got < want - GRAIN => Err(format!(
                "mtime is {got}, but the file was changed later, at {want}"
            )),
            Mtime::Since(_) if got > now() + GRAIN => {
                Err(format!("mtime is {got}, which lies in the future"))
            }
            _ => Ok(()),
        }
    }
}

pub type NodeId = u64;

#[derive(Default)]
pub struct Tree {
    pub names: BTreeMap<String, NodeId>,
    pub nodes: BTreeMap<NodeId, Node>,
    next: NodeId,
}

impl Tree {
    pub fn create(&mut self, name: &str, mode: u32) -> NodeId {
        self.next += 1;
        self.names.insert(name.into(), self.next);
        self.nodes.insert(self.next, Node::new(mode));
        self.next
    }

    pub fn node(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("a node that is in use")
    }

    pub fn link(&mut self, id: NodeId, name: &str) {
        self.node(id).links += 1;
        self.names.insert(name.into(), id);
    }

    pub fn unlink(&mut self, name: &str) {
        let id = self.names.remove(name).expect("a name that exists");
        self.node(id).links -= 1;
    }

    /// Like rename(2): nothing happens if both are names of the same file.
    pub fn rename(&mut self, from: &str, to: &str) {
        let id = self.names[from];
        match self.names.get(to) {
            Some(other) if *other == id => return,
            Some(_) => self.unlink(to),
            None => {}
        }
        self.names.remove(from);
        self.names.insert(to.into(), id);
    }

    /// Forgets files that have neither a name nor a handle.
    pub fn sweep(&mut self, open: &BTreeSet<NodeId>) {
        self.nodes
            .retain(|id, node| node.links > 0 || open.contains(id));
    }
}

pub fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("the clock is past 1970").as_nanos() as i64
}
