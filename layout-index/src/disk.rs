//! The lowest layer: every byte that the store or the drain writes goes through these two traits,
//! so that tests can fail any single call or keep only what was synced.
//!
//! Callers never see short writes: `write_at` writes everything or fails.

use crate::store::local_copies::{Moment, Version};
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory tree that the store lives in.
pub trait Disk: Send + Sync + Debug {
    /// Creates a file that must not exist yet, for reading and writing.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, removals and renames in `path` durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// A descriptor of the directory for [`Disk::sync_held`]; `None` if syncing needs none.
    fn hold_dir(&self, _path: &Path) -> io::Result<Option<File>> {
        Ok(None)
    }
    /// Like [`Disk::sync_dir`], with the result of [`Disk::hold_dir`]. Opens nothing if that was a
    /// descriptor: the sync must not fail because the process, or the machine, has too many files
    /// open.
    fn sync_held(&self, path: &Path, _held: Option<&File>) -> io::Result<()> {
        self.sync_dir(path)
    }
    /// Names in a directory, in no order.
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>>;
    /// Free bytes for an ordinary user on the file system that holds `path`.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// An open file: a log segment, or a canonical file that the drain writes.
pub trait DiskFile: Send + Sync + Debug {
    /// Writes all of `bufs`, one after the other, from `offset` on.
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Reads until `buf` is full or the file ends; returns the number of bytes.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Makes the file's bytes and size durable.
    fn sync(&self) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn size(&self) -> io::Result<u64>;
    /// `fallocate(2)` with `mode`.
    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()>;
    /// Sets the modification time, in nanoseconds since 1970, and leaves the access time.
    fn set_mtime(&self, mtime: u64) -> io::Result<()>;
    /// Whether the file still has a name: one without a name is gone when its last descriptor is
    /// closed.
    fn has_name(&self) -> io::Result<bool> {
        Ok(true)
    }
    /// Returns what distinguishes one state of the file from another. Without it no local copies of
    /// the file are kept.
    fn version(&self) -> io::Result<Version> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Descriptor for calls that only some file systems have. `None` if there is no descriptor.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The machine's own file systems.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

/// Like [`RealDisk`], for inspection only: opens nothing for writing and follows no link. An open
/// never waits, and anything but a regular file is refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct LookingDisk;

/// A file of the machine's own file systems.
#[derive(Debug)]
pub struct RealFile(pub File);

impl From<OwnedFd> for RealFile {
    fn from(fd: OwnedFd) -> Self {
        RealFile(File::from(fd))
    }
}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::DirBuilder::new().mode(0o700).create(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn hold_dir(&self, path: &Path) -> io::Result<Option<File>> {
        File::open(path).map(Some)
    }

    fn sync_held(&self, path: &Path, held: Option<&File>) -> io::Result<()> {
        match held {
            Some(dir) => dir.sync_all(),
            None => self.sync_dir(path),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        std::fs::read_dir(path)?
            .map(|entry| entry.map(|e| e.file_name().into()))
            .collect()
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let stat = nix::sys::statvfs::statvfs(path)?;
        Ok(stat.blocks_available() * stat.fragment_size())
    }
}

impl Disk for LookingDisk {
    fn create(&self, _: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok(Arc::new(RealFile(file)))
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        RealDisk.list(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        RealDisk.free_bytes(path)
    }
}

impl DiskFile for RealFile {
    fn write_at(&self, bufs: &[IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let written = retry(|| nix::sys::uio::pwritev(&self.0, bufs, offset as libc::off_t))?;
        if written == total {
            return Ok(());
        }
        // Rare: the kernel wrote less than it was given. Write the rest buffer by buffer.
        offset += written as u64;
        let mut skip = written;
        for buf in bufs {
            let start = skip.min(buf.len());
            skip -= start;
            self.0.write_all_at(&buf[start..], offset)?;
            offset += (buf.len() - start) as u64;
        }
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let flags = nix::fcntl::FallocateFlags::from_bits_retain(mode);
        retry(|| nix::fcntl::fallocate(&self.0, flags, offset as libc::off_t, len as libc::off_t))
    }

    fn set_mtime(&self, mtime: u64) -> io::Result<()> {
        let time = libc::timespec {
            tv_sec: (mtime / 1_000_000_000) as libc::time_t,
            tv_nsec: (mtime % 1_000_000_000) as libc::c_long,
        };
        let keep = libc::timespec {
            tv_sec: 0,
            tv_nsec: libc::UTIME_OMIT,
        };
        // SAFETY: the descriptor is open for as long as `self`, and the array is two timespecs as
        // futimens(2) wants them. nix's futimens has no UTIME_OMIT.
        let rc = unsafe { libc::futimens(self.0.as_raw_fd(), [keep, time].as_ptr()) };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn has_name(&self) -> io::Result<bool> {
        // SAFETY: `statx` has only integer fields, so any bytes are valid.
        let mut found: libc::statx = unsafe { std::mem::zeroed() };
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
        // SAFETY: the descriptor is open for as long as `self`, the path is an empty C string and
        // `found` is valid for writes. Only the link count is requested: the size of a striped file
        // is known to its targets only.
        let rc = unsafe {
            libc::statx(
                self.0.as_raw_fd(),
                c"".as_ptr(),
                flags,
                libc::STATX_NLINK,
                &mut found,
            )
        };
        match rc {
            0 => Ok(found.stx_nlink > 0),
            _ => match io::Error::last_os_error() {
                // Returned by file systems that do not keep a removed file for processes that have
                // it open.
                e if matches!(e.raw_os_error(), Some(libc::ESTALE | libc::ENOENT)) => Ok(false),
                e => Err(e),
            },
        }
    }

    fn version(&self) -> io::Result<Version> {
        let meta = self.0.metadata()?;
        let moment = |sec, nsec| Moment {
            sec,
            nsec: u32::try_from(nsec).unwrap_or(0),
        };
        Ok(Version {
            size: meta.len(),
            mtime: moment(meta.mtime(), meta.mtime_nsec()),
            ctime: moment(meta.ctime(), meta.ctime_nsec()),
        })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(nix::errno::Errno::EINTR) => {}
            other => return other.map_err(io::Error::from),
        }
    }
}
