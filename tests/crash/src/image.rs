//! The disk as a crash may leave it after the first so many events.
//!
//! | image | file contents | names |
//! |---|---|---|
//! | `Synced` | what a completed sync of the file covered | what a completed sync of the directory covered |
//! | `Torn` | that, and by chance each 4 KiB page of later writes | that, and by chance later creations and removals |
//! | `Killed` | everything | everything |
//!
//! Preallocated room that was not synced may be there or not, and reads as zeros.

use crate::recorder::{Event, Inode, copy_index};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    Synced,
    Torn,
    Killed,
}

#[derive(Clone, Debug, Default)]
struct Body {
    durable: Vec<u8>,
    current: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, data: Arc<[u8]> },
    Len(u64),
    Allocate { mode: i32, offset: u64, len: u64 },
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write { offset, data } => put(bytes, *offset, data),
            Change::Len(len) => bytes.resize(*len as usize, 0),
            Change::Allocate { mode, offset, len } => {
                let end = (offset + len) as usize;
                if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && bytes.len() < end {
                    bytes.resize(end, 0);
                }
                if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
                    let end = end.min(bytes.len());
                    bytes[(*offset as usize).min(end)..end].fill(0);
                }
            }
        }
    }

    /// Like `apply`, but only by chance: with probability `luck`, and for a write page by page.
    fn apply_torn(&self, bytes: &mut Vec<u8>, rng: &mut StdRng, luck: f64) {
        let Change::Write { offset, data } = self else {
            if rng.random_bool(luck) {
                self.apply(bytes);
            }
            return;
        };
        let mut at = *offset;
        let mut rest = &data[..];
        while !rest.is_empty() {
            let n = rest.len().min((PAGE - at % PAGE) as usize);
            if rng.random_bool(luck) {
                put(bytes, at, &rest[..n]);
            }
            at += n as u64;
            rest = &rest[n..];
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + data.len());
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(data);
}

/// The target of a name; directories are names too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Dir,
    File(Inode),
}

type Names = BTreeMap<PathBuf, Node>;

/// Names that appeared (`Some`) or disappeared (`None`) in one call.
type NameChange = Vec<(PathBuf, Option<Node>)>;

/// The state of the disk, moved on event by event.
#[derive(Clone, Debug, Default)]
pub struct Simulation {
    bodies: Vec<Body>,
    durable: Names,
    current: Names,
    pending: Vec<NameChange>,
}

impl Simulation {
    pub fn advance(&mut self, event: &Event) {
        match event {
            Event::CreateDir { path } => self.rename(vec![(path.clone(), Some(Node::Dir))]),
            Event::Create { path, inode } => {
                assert_eq!(*inode, self.bodies.len(), "inodes are numbered in order");
                self.bodies.push(Body::default());
                self.rename(vec![(path.clone(), Some(Node::File(*inode)))]);
            }
            Event::Remove { path } => self.rename(vec![(path.clone(), None)]),
            Event::Rename { from, to } => {
                let node = self.current.get(from).copied();
                self.rename(vec![(from.clone(), None), (to.clone(), node)]);
            }
            Event::SyncDir { path } => self.sync_dir(path),
            Event::Write {
                inode,
                offset,
                data,
            } => {
                self.change(
                    *inode,
                    Change::Write {
                        offset: *offset,
                        data: data.clone(),
                    },
                );
            }
            Event::SetLen { inode, len } => self.change(*inode, Change::Len(*len)),
            Event::Allocate {
                inode,
                mode,
                offset,
                len,
            } => {
                let change = Change::Allocate {
                    mode: *mode,
                    offset: *offset,
                    len: *len,
                };
                self.change(*inode, change);
            }
            Event::Sync { inode } => {
                let body = &mut self.bodies[*inode];
                for change in std::mem::take(&mut body.pending) {
                    change.apply(&mut body.durable);
                }
            }
        }
    }

    fn change(&mut self, inode: Inode, change: Change) {
        let body = &mut self.bodies[inode];
        change.apply(&mut body.current);
        body.pending.push(change);
    }

    fn rename(&mut self, change: NameChange) {
        apply_names(&mut self.current, &change);
        self.pending.push(change);
    }

    fn sync_dir(&mut self, dir: &Path) {
        let durable = &mut self.durable;
        self.pending.retain(|change| {
            let here = change.iter().all(|(path, _)| path.parent() == Some(dir));
            if here {
                apply_names(durable, change);
            }
            !here
        });
    }

    /// Lays the image out below `root`, which must not exist, with `index` as the index.
    pub fn build(
        &self,
        loss: Loss,
        rng: &mut StdRng,
        index: Option<&Path>,
        root: &Path,
    ) -> io::Result<()> {
        let luck = [0.1, 0.5, 0.9][rng.random_range(0..3)];
        let names = match loss {
            Loss::Killed => self.current.clone(),
            Loss::Synced => self.durable.clone(),
            Loss::Torn => {
                let mut names = self.durable.clone();
                for change in &self.pending {
                    if rng.random_bool(luck) {
                        apply_names(&mut names, change);
                    }
                }
                names
            }
        };
        let make = |dir: &Path| {
            fs::DirBuilder::new()
                .mode(0o700)
                .recursive(true)
                .create(dir)
        };
        make(root)?;
        let mut made = BTreeSet::from([PathBuf::new()]);
        for (path, node) in &names {
            // A name does not exist if its directory does not.
            if !path.parent().is_some_and(|p| made.contains(p)) {
                continue;
            }
            match node {
                Node::Dir => {
                    make(&root.join(path))?;
                    made.insert(path.clone());
                }
                Node::File(inode) => {
                    let bytes = self.bodies[*inode].bytes(loss, rng, luck);
                    write_sparse(&root.join(path), &bytes)?;
                }
            }
        }
        if let Some(index) = index {
            let store = root.join("store");
            make(&store)?;
            copy_index(index, &store.join("index"))?;
        }
        Ok(())
    }
}

impl Body {
    fn bytes(&self, loss: Loss, rng: &mut StdRng, luck: f64) -> std::borrow::Cow<'_, [u8]> {
        match loss {
            Loss::Killed => self.current.as_slice().into(),
            Loss::Synced => self.durable.as_slice().into(),
            Loss::Torn => {
                let mut bytes = self.durable.clone();
                for change in &self.pending {
                    change.apply_torn(&mut bytes, rng, luck);
                }
                bytes.into()
            }
        }
    }
}

fn apply_names(names: &mut Names, change: &NameChange) {
    for (path, node) in change {
        match node {
            Some(node) => names.insert(path.clone(), *node),
            None => names.remove(path),
        };
    }
}

fn write_sparse(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let zeros = [0u8; 4096];
    let mut end = bytes.len();
    while end >= zeros.len() && bytes[end - zeros.len()..end] == zeros {
        end -= zeros.len();
    }
    file.write_all(&bytes[..end])?;
    file.set_len(bytes.len() as u64)
}
