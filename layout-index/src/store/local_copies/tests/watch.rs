//! A disk that records the order of calls, and fails those that it is told to.

use crate::disk::{Disk, DiskFile, RealDisk};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The recorded calls, and the call that is to fail.
#[derive(Debug, Default)]
pub struct Watch {
    pub calls: Mutex<Vec<String>>,
    pub fails: Mutex<Option<&'static str>>,
}

impl Watch {
    fn note(&self, op: &str, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap().to_string_lossy();
        let kind = match name.rsplit_once('.') {
            Some((_, "ranges")) => "sidecar",
            Some((_, "new")) => "temporary",
            _ if name == "kept" => "directory",
            _ => "data",
        };
        let call = format!("{op} {kind}");
        let fails = self.fails.lock().is_some_and(|f| f == call);
        self.calls.lock().push(call);
        match fails {
            true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            false => Ok(()),
        }
    }
}

#[derive(Debug)]
pub struct Watched(pub Arc<Watch>);

#[derive(Debug)]
struct WatchedFile(Arc<Watch>, PathBuf, Arc<dyn DiskFile>);

impl Disk for Watched {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = RealDisk.create(path)?;
        self.0.note("create", path)?;
        Ok(Arc::new(WatchedFile(self.0.clone(), path.into(), file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = RealDisk.open(path)?;
        Ok(Arc::new(WatchedFile(self.0.clone(), path.into(), file)))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)?;
        self.0.note("remove", path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.note("rename", from)?;
        RealDisk.rename(from, to)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.note("sync", path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        RealDisk.list(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        RealDisk.free_bytes(path)
    }
}

impl DiskFile for WatchedFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.note("write", &self.1)?;
        self.2.write_at(bufs, offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.note("read", &self.1)?;
        self.2.read_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.note("sync", &self.1)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.2.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        self.2.size()
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        self.2.allocate(mode, offset, len)
    }

    fn set_mtime(&self, mtime: u64) -> io::Result<()> {
        self.2.set_mtime(mtime)
    }
}
