//! A disk on which one call fails, or every call from some call on.

use layout_index::{Disk, DiskFile};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The part of its data that a failing write leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    Nothing,
    /// The first half of the bytes.
    Half,
    /// All of the data, although the write says that it failed.
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
    /// Calls that only read are neither counted nor failed.
    changes_only: AtomicBool,
    /// A sync has failed since the last [`Faults::take_sync_failed`].
    sync_failed: AtomicBool,
    sync_hit: AtomicBool,
}

impl Faults {
    pub fn new(fault: Fault, at: usize) -> Arc<Faults> {
        Arc::new(Faults {
            fault,
            calls: AtomicUsize::new(0),
            at: AtomicUsize::new(at),
            hits: AtomicUsize::new(0),
            changes_only: AtomicBool::new(false),
            sync_failed: AtomicBool::new(false),
            sync_hit: AtomicBool::new(false),
        })
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// Returns whether a sync has ever failed.
    pub fn is_sync_hit(&self) -> bool {
        self.sync_hit.load(Ordering::SeqCst)
    }

    pub fn take_sync_failed(&self) -> bool {
        self.sync_failed.swap(false, Ordering::SeqCst)
    }

    /// Numbers calls anew from zero; call `at` fails.
    pub fn fail_at(&self, at: usize) {
        self.calls.store(0, Ordering::SeqCst);
        self.at.store(at, Ordering::SeqCst);
    }

    /// From here on only calls that change something count and fail.
    pub fn changes_only(&self) {
        self.changes_only.store(true, Ordering::SeqCst);
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

    fn next_look(&self) -> io::Result<()> {
        if self.changes_only.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.next()
    }

    fn next_sync(&self) -> io::Result<()> {
        self.next().inspect_err(|_| {
            self.sync_failed.store(true, Ordering::SeqCst);
            self.sync_hit.store(true, Ordering::SeqCst);
        })
    }
}

/// Passes calls that do not fail on to `disk`.
#[derive(Clone, Debug)]
pub struct FaultDisk {
    pub faults: Arc<Faults>,
    pub disk: Arc<dyn Disk>,
}

#[derive(Debug)]
pub struct FaultFile {
    pub faults: Arc<Faults>,
    pub real: Arc<dyn DiskFile>,
}

impl FaultDisk {
    fn wrap(&self, real: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(FaultFile {
            faults: self.faults.clone(),
            real,
        })
    }
}

impl Disk for FaultDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.faults.next()?;
        Ok(self.wrap(self.disk.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.faults.next_look()?;
        Ok(self.wrap(self.disk.open(path)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.next()?;
        self.disk.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.next()?;
        self.disk.rename(from, to)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.faults.next()?;
        self.disk.create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.faults.next_sync()?;
        self.disk.sync_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        self.faults.next_look()?;
        self.disk.list(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.faults.next_look()?;
        self.disk.free_bytes(path)
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
        self.faults.next_look()?;
        self.real.read_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.next_sync()?;
        self.real.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.next()?;
        self.real.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        self.faults.next_look()?;
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
