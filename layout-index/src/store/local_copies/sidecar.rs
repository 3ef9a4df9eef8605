//! The file beside a copy that describes it: which file, which version of it, which bytes.
//!
//! Only the daemon's user has access to the store, but disks lose bytes. So every number is checked
//! before it is used, and a sidecar that is not consistent is refused: the copy goes, and nothing
//! is lost. The format is in `docs/FORMAT.md`.

use super::cover::Cover;
use super::version::{Moment, Version};
use crate::checksum;
use crate::types::{ByteRange, FileId};

const MAGIC: [u8; 8] = *b"FBKEPT01";
const HEADER: usize = 80;
const RANGE: usize = 16;
const CHECKSUM: usize = 4;

/// Maximum number of ranges of one copy.
pub const MOST_RANGES: usize = 256 << 10;
/// The longest that a sidecar can be.
pub const LONGEST: usize = HEADER + MOST_RANGES * RANGE + CHECKSUM;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    pub id: FileId,
    /// Tag of the copy that the sidecar belongs to.
    pub tag: u64,
    pub version: Version,
    pub cover: Cover,
}

impl Sidecar {
    /// `key` is the store's: a sidecar of another store is refused.
    pub fn encode(&self, key: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.cover.count() * RANGE + CHECKSUM);
        out.extend_from_slice(&MAGIC);
        let v = &self.version;
        for n in [self.id.ino, self.id.birth, self.tag, v.size] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for t in [v.mtime, v.ctime] {
            out.extend_from_slice(&t.sec.to_le_bytes());
            out.extend_from_slice(&t.nsec.to_le_bytes());
        }
        out.extend_from_slice(&(self.cover.count() as u64).to_le_bytes());
        out.resize(HEADER, 0);
        for range in self.cover.iter() {
            out.extend_from_slice(&range.start.to_le_bytes());
            out.extend_from_slice(&range.end.to_le_bytes());
        }
        let crc = sum(&out, key);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Returns `None` for anything that [`Sidecar::encode`] does not write.
    pub fn decode(bytes: &[u8], key: u32) -> Option<Sidecar> {
        let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
        if sum(body, key).to_le_bytes() != *crc {
            return None;
        }
        let (header, ranges) = body.split_at_checked(HEADER)?;
        if header[..8] != MAGIC {
            return None;
        }
        let u64_at = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?))
        };
        let moment_at = |at: usize| -> Option<Moment> {
            Some(Moment {
                sec: u64_at(at)? as i64,
                nsec: u32::from_le_bytes(header.get(at + 8..at + 12)?.try_into().ok()?),
            })
        };
        let version = Version {
            size: u64_at(32)?,
            mtime: moment_at(40)?,
            ctime: moment_at(52)?,
        };
        let count = usize::try_from(u64_at(64)?).ok()?;
        if count > MOST_RANGES || ranges.len() != count * RANGE {
            return None;
        }
        let mut cover = Cover::default();
        let mut last = None;
        for pair in ranges.chunks_exact(RANGE) {
            let start = u64::from_le_bytes(pair[..8].try_into().ok()?);
            let end = u64::from_le_bytes(pair[8..].try_into().ok()?);
            if start >= end || end > version.size || last.is_some_and(|last| start <= last) {
                return None;
            }
            last = Some(end);
            cover.insert(ByteRange::new(start, end));
        }
        Some(Sidecar {
            id: FileId {
                ino: u64_at(8)?,
                birth: u64_at(16)?,
            },
            tag: u64_at(24)?,
            version,
            cover,
        })
    }
}

fn sum(body: &[u8], key: u32) -> u32 {
    checksum::append(checksum::crc32c(&key.to_le_bytes()), body)
}

#[cfg(test)]
mod tests;
