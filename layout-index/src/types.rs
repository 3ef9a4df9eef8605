//! The basic types of the store: the identity of a file, ranges of its bytes, and the order of
//! events.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The canonical file's identity: inode number and birth, so that renames and hard links cost
/// nothing and a reused inode number is not mistaken for the file that had it before.
///
/// `birth` is a hash of the birth time and the file handle, which holds the inode's generation. If
/// the backing has no handles, or none that last, it is the birth time in nanoseconds since the
/// epoch, or zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    pub ino: u64,
    pub birth: u64,
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}", self.ino, self.birth)
    }
}

/// Refuses a name that [`fmt::Display`] would not write, so that every file has one name.
impl FromStr for FileId {
    type Err = NotAName;

    fn from_str(name: &str) -> Result<Self, NotAName> {
        let (ino, birth) = name.split_once('.').ok_or(NotAName)?;
        let number = |text| u64::from_str_radix(text, 16).map_err(|_| NotAName);
        let id = FileId {
            ino: number(ino)?,
            birth: number(birth)?,
        };
        (id.to_string() == name).then_some(id).ok_or(NotAName)
    }
}

/// A name in the shared directory that no node gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no node of Forebay gives such a name")]
pub struct NotAName;

/// Identity of a node: 64 random bits, made with its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Identifies one dirty period of a file within one store: from the file's first absorbed write
/// until it is clean again. Never reused, so an old record cannot be taken for one of a newer
/// period.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct FileNo(pub u64);

/// Orders what different nodes published of one file: a node uses 1 + the largest epoch that it has
/// seen of that file.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// Position of a record in the store's history. For any one byte of a file, a higher number is
/// newer: [`crate::ranges::RangeSet`] makes the order of numbers the order of effects.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Seq(pub u64);

/// Nanoseconds since 1970. Times before that are clamped to zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub fn now() -> Self {
        // The coarse clock costs a few nanoseconds; file times have no use for a finer one.
        let t = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME_COARSE)
            .unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
        Self(t.tv_sec().max(0) as u64 * 1_000_000_000 + t.tv_nsec() as u64)
    }
}

/// A half-open range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    pub start: u64,
    pub end: u64,
}

impl ByteRange {
    /// All bytes that a file can have.
    pub const ALL: ByteRange = ByteRange {
        start: 0,
        end: u64::MAX,
    };

    pub fn new(start: u64, end: u64) -> Self {
        debug_assert!(start <= end, "range {start}..{end} is backwards");
        Self { start, end }
    }

    /// `None` if the range would pass the end of the number space.
    pub fn at(start: u64, len: u64) -> Option<Self> {
        Some(Self {
            start,
            end: start.checked_add(len)?,
        })
    }

    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    pub fn overlaps(&self, other: &ByteRange) -> bool {
        self.start < other.end && other.start < self.end
    }

    pub fn intersect(&self, other: &ByteRange) -> Option<ByteRange> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(ByteRange { start, end })
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
