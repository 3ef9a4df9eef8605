//! Who a file is, whatever its names: inode and birth time, and the handle that finds it again.

use super::sys::{self, Stat};
use layout_index::FileId;
use std::io;
use std::os::fd::BorrowedFd;

/// The identity of what `fd` stands for. Where the backing keeps no birth time, the file handle
/// stands in: it holds the inode's generation, so a reused inode number still differs.
pub fn file_id(fd: BorrowedFd<'_>, stat: &Stat) -> FileId {
    let birth = match stat.btime {
        Some(time) if time.as_nanos() != 0 => time.as_nanos(),
        _ => match sys::name_to_handle(fd) {
            Ok((kind, bytes)) => hash(&encode(kind, &bytes)),
            Err(_) => 0,
        },
    };
    FileId {
        ino: stat.ino,
        birth,
    }
}

/// The handle as the log keeps it: type, then bytes. Empty where the backing has none.
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

/// The opposite of `handle`; `None` for an empty or cut one.
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

/// What is known of a looked-up entry, read once.
#[derive(Clone, Copy, Debug)]
pub struct Identified {
    pub stat: Stat,
    pub id: FileId,
}

pub fn identify(fd: BorrowedFd<'_>) -> io::Result<Identified> {
    let stat = sys::stat(fd)?;
    Ok(Identified {
        id: file_id(fd, &stat),
        stat,
    })
}

#[cfg(test)]
mod tests;
