//! A disk on which one call fails, or every call from one on.

use layout_index::{Disk, DiskFile, RealDisk};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What a failing write leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    Nothing,
    /// The first half of the bytes.
    Half,
    /// All of it, although it says that it failed.
    All,
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub errno: i32,
    /// Every call from then on fails, as on a disk that died.
    pub for_good: bool,
    pub leaves: Leaves,
}

/// Counts calls and decides which fail. Shared by a disk and all its files.
#[derive(Debug)]
pub struct Faults {
    fault: Fault,
    calls: AtomicUsize,
    /// The number of the call that fails; calls are numbered from zero.
    at: AtomicUsize,
    hits: AtomicUsize,
    /// A sync failed since somebody asked.
    sync_failed: AtomicBool,
}

impl Faults {
    pub fn new(fault: Fault, at: usize) -> Arc<Faults> {
        Arc::new(Faults {
            fault,
            calls: AtomicUsize::new(0),
            at: AtomicUsize::new(at),
            hits: AtomicUsize::new(0),
            sync_failed: AtomicBool::new(false),
        })
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    pub fn take_sync_failed(&self) -> bool {
        self.sync_failed.swap(false, Ordering::SeqCst)
    }

    /// Numbers calls anew from zero; call `at` fails.
    pub fn fail_at(&self, at: usize) {
        self.calls.store(0, Ordering::SeqCst);
        self.at.store(at, Ordering::SeqCst);
    }

    /// No call fails any more.
    pub fn heal(&self) {
        self.at.store(usize::MAX, Ordering::SeqCst);
    }

    fn next(&self) -> io::Result<()> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let at = self.at.load(Ordering::SeqCst);
        if call == at || (self.fault.for_good && call > at) {
            self.hits.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::from_raw_os_error(self.fault.errno));
        }
        Ok(())
    }

    fn next_sync(&self) -> io::Result<()> {
        self.next()
            .inspect_err(|_| self.sync_failed.store(true, Ordering::SeqCst))
    }
}

#[derive(Clone, Debug)]
pub struct FaultDisk(pub Arc<Faults>);

#[derive(Debug)]
pub struct FaultFile {
    pub faults: Arc<Faults>,
    pub real: Arc<dyn DiskFile>,
}

impl FaultDisk {
    fn wrap(&self, real: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(FaultFile {
            faults: self.0.clone(),
            real,
        })
    }
}

impl Disk for FaultDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.0.next()?;
        Ok(self.wrap(RealDisk.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.0.next()?;
        Ok(self.wrap(RealDisk.open(path)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.next()?;
        RealDisk.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.next()?;
        RealDisk.rename(from, to)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.next()?;
        RealDisk.create_dir(path)
    }

    fn sync_dir(&self, _path: &Path) -> io::Result<()> {
        self.0.next_sync()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        self.0.next()?;
        RealDisk.list(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.0.next()?;
        RealDisk.free_bytes(path)
    }
}

impl DiskFile for FaultFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let Err(error) = self.faults.next() else {
            return self.real.write_at(bufs, offset);
        };
        let bytes: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        let left = match self.faults.fault.leaves {
            Leaves::Nothing => 0,
            Leaves::Half => bytes.len() / 2,
            Leaves::All => bytes.len(),
        };
        self.real
            .write_at(&[IoSlice::new(&bytes[..left])], offset)?;
        Err(error)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.faults.next()?;
        self.real.read_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.next_sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.next()?;
        self.real.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        self.faults.next()?;
        self.real.size()
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        self.faults.next()?;
        self.real.allocate(mode, offset, len)
    }

    fn set_mtime(&self, mtime: u64) -> io::Result<()> {
        self.faults.next()?;
        self.real.set_mtime(mtime)
    }
}
