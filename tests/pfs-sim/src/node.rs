//! Files, directories and links, without their names.

use crate::Errno;
use crate::layout::{Layout, Wish};
use crate::tally::Tally;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// The attributes that `stat` shows, and more.
#[derive(Clone, Debug)]
pub struct Attrs {
    /// Permissions and file type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub atime: SystemTime,
    pub mtime: SystemTime,
    pub ctime: SystemTime,
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
    /// Number of open handles.
    pub opens: u64,
    /// The kernel's lookup count of this node, per mount.
    pub lookups: Vec<u64>,
}

impl Attrs {
    pub fn new(mode: u32, uid: u32, gid: u32, mounts: usize) -> Self {
        let now = SystemTime::now();
        Self {
            mode,
            uid,
            gid,
            nlink: 1,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            xattrs: BTreeMap::new(),
            opens: 0,
            lookups: vec![0; mounts],
        }
    }

    /// Notes that the content changed.
    pub fn changed(&mut self) {
        let now = SystemTime::now();
        self.mtime = now;
        self.ctime = now;
    }
}

/// State of a regular file beyond its attributes.
#[derive(Debug, Default)]
pub struct FileBody {
    pub ino: u64,
    size: AtomicU64,
    /// Pages of all its objects.
    pub pages: AtomicU64,
    /// The layout is set once, with the first object; before that there is only the requested
    /// striping.
    placement: Mutex<Placement>,
    /// Held for reading by reads and writes, and for writing by calls that move the end of the file
    /// or free pages: nothing may write behind an end that is being cut.
    pub gate: RwLock<()>,
    pub tally: Mutex<Tally>,
    /// Error of a write that was acknowledged before it failed.
    pub late_error: Mutex<Option<Errno>>,
}

#[derive(Debug, Default)]
struct Placement {
    wish: Wish,
    layout: Option<Arc<Layout>>,
}

impl FileBody {
    pub fn new(ino: u64, wish: Wish) -> Self {
        let layout = None;
        Self {
            ino,
            placement: Mutex::new(Placement { wish, layout }),
            ..Self::default()
        }
    }

    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub fn grow(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// Sets the size. The gate must be held for writing.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    pub fn layout(&self) -> Option<Arc<Layout>> {
        self.placement.lock().layout.clone()
    }

    /// Returns the layout; if the file has none yet, makes it with `place`.
    pub fn layout_or(
        &self,
        place: impl FnOnce(&Wish) -> Result<Layout, Errno>,
    ) -> Result<Arc<Layout>, Errno> {
        let mut placement = self.placement.lock();
        if let Some(layout) = &placement.layout {
            return Ok(layout.clone());
        }
        let layout = Arc::new(place(&placement.wish)?);
        placement.layout = Some(layout.clone());
        Ok(layout)
    }

    /// Gives a file without objects the layout that `place` makes of `wish`. Returns false if it
    /// has one.
    pub fn set_layout(
        &self,
        wish: &Wish,
        place: impl FnOnce(&Wish) -> Result<Layout, Errno>,
    ) -> Result<bool, Errno> {
        let mut placement = self.placement.lock();
        let layout = place(&wish.or(&placement.wish))?;
        if placement.layout.is_some() {
            return Ok(false);
        }
        placement.layout = Some(Arc::new(layout));
        Ok(true)
    }
}

#[derive(Debug)]
pub enum Body {
    /// The striping for new files in the directory.
    Dir(Mutex<Wish>),
    File(Arc<FileBody>),
    Link(PathBuf),
    /// FIFOs, sockets and devices, which have only a name and attributes.
    Special,
}

#[derive(Debug)]
pub struct Node {
    pub ino: u64,
    pub attrs: Mutex<Attrs>,
    pub body: Body,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    pub fn file(&self) -> Option<&Arc<FileBody>> {
        match &self.body {
            Body::File(file) => Some(file),
            _ => None,
        }
    }

    /// Returns the striping that a directory passes on to new entries; empty for other nodes.
    pub fn wish(&self) -> Wish {
        match &self.body {
            Body::Dir(wish) => wish.lock().clone(),
            _ => Wish::default(),
        }
    }

    pub fn size(&self) -> u64 {
        match &self.body {
            Body::Dir(_) => 4096,
            Body::File(file) => file.size(),
            Body::Link(target) => target.as_os_str().len() as u64,
            Body::Special => 0,
        }
    }

    /// Returns the space in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        match &self.body {
            Body::Dir(_) => 8,
            Body::File(file) => file.pages.load(Ordering::Acquire) * 8,
            Body::Link(_) | Body::Special => 0,
        }
    }

    pub fn told(&self, mount: usize) {
        self.attrs.lock().lookups[mount] += 1;
    }
}
