//! A disk that does what it is told and records every call, in order.
//!
//! Copies of the index: before each event the recorder checks the index's directory, and copies it when RocksDB has
//! changed it since the last event. So each copy has the number of the first event that happened after it. Whether a
//! power failure just before that event finds the old index or the new one is unknown, and both are tried.

use layout_index::{Disk, DiskFile, RealDisk};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub type Inode = usize;

/// One call that changed something or made something durable. Paths are below the root.
#[derive(Clone, Debug)]
pub enum Event {
    CreateDir {
        path: PathBuf,
    },
    Create {
        path: PathBuf,
        inode: Inode,
    },
    Write {
        inode: Inode,
        offset: u64,
        data: Arc<[u8]>,
    },
    Allocate {
        inode: Inode,
        mode: i32,
        offset: u64,
        len: u64,
    },
    SetLen {
        inode: Inode,
        len: u64,
    },
    Sync {
        inode: Inode,
    },
    Remove {
        path: PathBuf,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    SyncDir {
        path: PathBuf,
    },
}

/// The index as it was on the disk from event `from` on, and just before it.
#[derive(Clone, Debug)]
pub struct IndexCopy {
    pub from: usize,
    pub path: PathBuf,
}

#[derive(Debug, Default)]
struct Tape {
    events: Vec<Event>,
    names: HashMap<PathBuf, Inode>,
    inodes: usize,
    indexes: Vec<IndexCopy>,
    index_seen: Vec<(PathBuf, u64)>,
}

/// Records what happens below `root`; copies of `root/store/index` go to `copies`.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    copies: PathBuf,
    tape: Mutex<Tape>,
}

/// Everything that was recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    pub events: Vec<Event>,
    pub indexes: Vec<IndexCopy>,
}

impl Recorder {
    pub fn new(root: &Path, copies: &Path) -> Recorder {
        Recorder(Arc::new(Inner {
            root: root.into(),
            copies: copies.into(),
            tape: Mutex::default(),
        }))
    }

    /// Returns how many events there were: the time, as histories count it.
    pub fn now(&self) -> usize {
        let mut tape = self.0.tape.lock();
        self.0.look_at_index(&mut tape);
        tape.events.len()
    }

    pub fn finish(&self) -> Recording {
        let tape = self.0.tape.lock();
        Recording {
            events: tape.events.clone(),
            indexes: tape.indexes.clone(),
        }
    }
}

impl Inner {
    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root)
            .unwrap_or_else(|_| panic!("{} is outside the recorded tree", path.display()))
            .to_path_buf()
    }

    /// Does `call`, and records the event if it succeeded.
    fn record<T>(
        &self,
        call: impl FnOnce() -> io::Result<T>,
        event: impl FnOnce(&mut Tape) -> Event,
    ) -> io::Result<T> {
        let mut tape = self.tape.lock();
        self.look_at_index(&mut tape);
        let done = call()?;
        let event = event(&mut tape);
        tape.events.push(event);
        Ok(done)
    }

    fn look_at_index(&self, tape: &mut Tape) {
        let index = self.root.join("store/index");
        let Some(mut seen) = listing(&index) else {
            return;
        };
        if seen == tape.index_seen {
            return;
        }
        let copy = self.copies.join(format!("{:06}", tape.indexes.len()));
        // RocksDB tidies up in the background: a copy counts only if nothing changed while it was made.
        for attempt in 0.. {
            assert!(attempt < 1000, "the index does not come to rest");
            if copy_index(&index, &copy).is_ok() {
                let after = listing(&index);
                if after.as_ref() == Some(&seen) {
                    break;
                }
                seen = after.unwrap_or_default();
            } else {
                seen = listing(&index).unwrap_or_default();
            }
            fs::remove_dir_all(&copy).expect("remove a half copy of the index");
        }
        tape.index_seen = seen;
        tape.indexes.push(IndexCopy {
            from: tape.events.len(),
            path: copy,
        });
    }
}

/// Returns false for RocksDB's own log and lock, which say nothing about its contents.
fn is_content(name: &Path) -> bool {
    name.to_str()
        .is_some_and(|n| !n.starts_with("LOG") && n != "LOCK")
}

fn listing(dir: &Path) -> Option<Vec<(PathBuf, u64)>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).ok()? {
        let entry = entry.ok()?;
        let name = PathBuf::from(entry.file_name());
        if is_content(&name) {
            // A file that was removed after it was listed does not count.
            let Ok(meta) = entry.metadata() else { continue };
            names.push((name, meta.len()));
        }
    }
    names.sort();
    // A database that is just being made does not count yet.
    names
        .iter()
        .any(|(n, _)| n.as_os_str() == "CURRENT")
        .then_some(names)
}

/// Copies the index. Tables never change once written and are linked; the rest is copied.
pub fn copy_index(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = PathBuf::from(entry.file_name());
        if !is_content(&name) {
            continue;
        }
        if name.extension().is_some_and(|e| e == "sst") {
            fs::hard_link(entry.path(), to.join(name))?;
        } else {
            fs::copy(entry.path(), to.join(name))?;
        }
    }
    Ok(())
}

#[derive(Debug)]
struct RecordedFile {
    inner: Arc<Inner>,
    inode: Inode,
    real: Arc<dyn DiskFile>,
}

impl Disk for Recorder {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut made = 0;
        let real = self.0.record(
            || RealDisk.create(path),
            |tape| {
                made = tape.inodes;
                tape.inodes += 1;
                let path = self.0.relative(path);
                tape.names.insert(path.clone(), made);
                Event::Create { path, inode: made }
            },
        )?;
        Ok(Arc::new(RecordedFile {
            inner: self.0.clone(),
            inode: made,
            real,
        }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let real = RealDisk.open(path)?;
        let tape = self.0.tape.lock();
        let inode = tape.names[&self.0.relative(path)];
        Ok(Arc::new(RecordedFile {
            inner: self.0.clone(),
            inode,
            real,
        }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.record(
            || RealDisk.remove(path),
            |tape| {
                let path = self.0.relative(path);
                tape.names.remove(&path);
                Event::Remove { path }
            },
        )
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.record(
            || RealDisk.rename(from, to),
            |tape| {
                let (from, to) = (self.0.relative(from), self.0.relative(to));
                let inode = tape.names.remove(&from).expect("a renamed file has a name");
                tape.names.insert(to.clone(), inode);
                Event::Rename { from, to }
            },
        )
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.record(
            || RealDisk.create_dir(path),
            |_| Event::CreateDir {
                path: self.0.relative(path),
            },
        )
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // The parent of the tree is not part of the image.
        if path.starts_with(&self.0.root) {
            self.0.record(
                || Ok(()),
                |_| Event::SyncDir {
                    path: self.0.relative(path),
                },
            )?;
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        RealDisk.list(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        RealDisk.free_bytes(path)
    }
}

impl DiskFile for RecordedFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.inner.record(
            || self.real.write_at(bufs, offset),
            |_| {
                let data: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
                Event::Write {
                    inode: self.inode,
                    offset,
                    data: data.into(),
                }
            },
        )
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.real.read_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        // The sync is recorded and not done: the image is built from the records.
        self.inner
            .record(|| Ok(()), |_| Event::Sync { inode: self.inode })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.record(
            || self.real.set_len(len),
            |_| Event::SetLen {
                inode: self.inode,
                len,
            },
        )
    }

    fn size(&self) -> io::Result<u64> {
        self.real.size()
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        self.inner.record(
            || self.real.allocate(mode, offset, len),
            |_| Event::Allocate {
                inode: self.inode,
                mode,
                offset,
                len,
            },
        )
    }

    fn set_mtime(&self, mtime: u64) -> io::Result<()> {
        self.real.set_mtime(mtime)
    }
}
