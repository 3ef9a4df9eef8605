//! Directory entries as the kernel hands them out, parsed without trusting a length.

use std::ffi::{CStr, CString};

/// One raw directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirent {
    pub ino: u64,
    pub next: u64,
    /// `DT_*`.
    pub kind: u8,
    pub name: CString,
}

/// Parses the entry at the start of `buf` (as `getdents` filled it) and returns it with its length. `None` if
/// there is no complete entry.
pub fn parse_dirent(buf: &[u8]) -> Option<(Dirent, usize)> {
    let ino = u64::from_ne_bytes(buf.get(0..8)?.try_into().ok()?);
    let next = u64::from_ne_bytes(buf.get(8..16)?.try_into().ok()?);
    let len = usize::from(u16::from_ne_bytes(buf.get(16..18)?.try_into().ok()?));
    let kind = *buf.get(18)?;
    let name = CStr::from_bytes_until_nul(buf.get(19..len)?).ok()?;
    let entry = Dirent {
        ino,
        next,
        kind,
        name: name.to_owned(),
    };
    Some((entry, len))
}

#[cfg(test)]
mod tests;
