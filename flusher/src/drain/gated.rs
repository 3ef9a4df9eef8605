//! A canonical file that is changed only while this node may: the lease is looked at right before
//! each call. Reading and syncing change nothing.

use layout_index::{DiskFile, Version};
use std::io::{self, IoSlice};
use std::sync::Arc;

pub(super) struct Gated {
    file: Arc<dyn DiskFile>,
    may: Box<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for Gated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gated({:?})", self.file)
    }
}

impl Gated {
    pub fn new(file: Arc<dyn DiskFile>, may: impl Fn() -> bool + Send + Sync + 'static) -> Gated {
        Gated {
            file,
            may: Box::new(may),
        }
    }

    fn pass(&self) -> io::Result<()> {
        if (self.may)() {
            return Ok(());
        }
        Err(io::Error::other("this node's lease has run out meanwhile"))
    }
}

impl DiskFile for Gated {
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.pass()?;
        self.file.write_at(bufs, offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.pass()?;
        self.file.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        self.pass()?;
        self.file.allocate(mode, offset, len)
    }

    fn set_mtime(&self, mtime: u64) -> io::Result<()> {
        self.pass()?;
        self.file.set_mtime(mtime)
    }

    fn version(&self) -> io::Result<Version> {
        self.file.version()
    }
}
