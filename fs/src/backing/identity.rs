//! The identity of a file, whatever its names are: inode number, birth time and generation; and the
//! handle that finds it again.
//!
//! A birth time is not enough: inode numbers are reused at once, and several files may be created within one
//! tick of the clock. The file handle contains the inode's generation, so it is mixed in, but only where a
//! file keeps its handle: an identity must be the same after a restart.

use super::sys::{self, Stat};
use layout_index::FileId;
use std::io;
use std::os::fd::BorrowedFd;

/// How far the file handles of a file system can be relied on (`name_to_handle_at(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handles {
    /// Handles are made from what is on the local disk: ESTALE means that the file is gone.
    Local,
    /// A file keeps one handle as long as it exists, but ESTALE may have other reasons (a server that does
    /// not answer, an inode that is not cached).
    Remote,
    /// A FUSE server may give the same file another handle after a restart.
    Volatile,
}

impl Handles {
    /// The kind of handles of the file system that `fd` is on.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::of_kind(sys::fs_kind(fd)?))
    }

    fn of_kind(kind: i64) -> Self {
        match kind {
            // ext2, ext3 and ext4 share this number.
            libc::EXT4_SUPER_MAGIC
            | libc::XFS_SUPER_MAGIC
            | libc::BTRFS_SUPER_MAGIC
            | libc::TMPFS_MAGIC => Handles::Local,
            libc::FUSE_SUPER_MAGIC => Handles::Volatile,
            _ => Handles::Remote,
        }
    }
}

/// The identity of the file that `fd` stands for.
fn file_id(fd: BorrowedFd<'_>, stat: &Stat, handles: Handles) -> FileId {
    let born = stat.btime.map_or(0, |time| time.as_nanos());
    let generation = match handles {
        Handles::Volatile => vec![],
        Handles::Local | Handles::Remote => handle(fd),
    };
    let birth = if generation.is_empty() {
        born
    } else {
        hash(&[&born.to_le_bytes()[..], &generation].concat())
    };
    FileId {
        ino: stat.ino,
        birth,
    }
}

/// The handle as the log stores it: type, then bytes. Empty where the backing has no handles.
pub fn handle(fd: BorrowedFd<'_>) -> Vec<u8> {
    match sys::name_to_handle(fd) {
        Ok((kind, bytes)) => encode(kind, &bytes),
        Err(_) => vec![],
    }
}

fn encode(kind: i32, bytes: &[u8]) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

/// The inverse of `handle`; `None` if the handle is empty or truncated.
pub fn decode(handle: &[u8]) -> Option<(i32, &[u8])> {
    let (kind, bytes) = handle.split_first_chunk::<4>()?;
    (!bytes.is_empty()).then_some((i32::from_le_bytes(*kind), bytes))
}

/// FNV-1a: the value is stored, so it must not change between versions.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Attributes and identity of a looked-up entry, read once.
#[derive(Clone, Copy, Debug)]
pub struct Identified {
    pub stat: Stat,
    pub id: FileId,
}

pub fn identify(fd: BorrowedFd<'_>, handles: Handles) -> io::Result<Identified> {
    let stat = sys::stat(fd)?;
    Ok(Identified {
        id: file_id(fd, &stat, handles),
        stat,
    })
}

#[cfg(test)]
mod tests;
