//! Files, directories and links, apart from their names.

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

/// What `stat` shows and more.
#[derive(Clone, Debug)]
pub struct Attrs {
    /// With the file type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub atime: SystemTime,
    pub mtime: SystemTime,
    pub ctime: SystemTime,
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
    /// How many handles there are.
    pub opens: u64,
    /// How often the kernel was told of it, per mount.
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

    /// Its content changed.
    pub fn changed(&mut self) {
        let now = SystemTime::now();
        self.mtime = now;
        self.ctime = now;
    }
}

/// What a regular file has beyond attributes.
#[derive(Debug, Default)]
pub struct FileBody {
    pub ino: u64,
    size: AtomicU64,
    /// Pages of all its objects.
    pub pages: AtomicU64,
    /// Set once, with the first object; before that a wish that was made for it.
    placement: Mutex<Placement>,
    /// Held for reading by reads and writes, for writing by what moves the end of the file or frees
    /// pages: nothing may write behind an end that is being cut.
    pub gate: RwLock<()>,
    pub tally: Mutex<Tally>,
    /// Of a write that was acknowledged before it failed.
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

    /// The gate must be held for writing.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    pub fn layout(&self) -> Option<Arc<Layout>> {
        self.placement.lock().layout.clone()
    }

    /// The layout, made now by `place` if the file has none yet.
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

    /// Gives a file without objects the layout that `place` makes of `wish`. False if it has one.
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
    /// The layout that new files in it get.
    Dir(Mutex<Wish>),
    File(Arc<FileBody>),
    Link(PathBuf),
    /// FIFOs, sockets, devices: only a name and attributes.
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

    /// What a directory hands down; nothing for the rest.
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

    /// In units of 512 bytes.
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
