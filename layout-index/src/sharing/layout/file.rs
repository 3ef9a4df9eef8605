//! A layout file: a header that says which layout it is, then batches.

use super::batch::Batch;
use super::bytes::{Reader, put_u32, put_u64};
use super::codec::{self, Decoded};
use crate::checksum;
use crate::types::{FileId, NodeId};
use std::sync::Arc;

pub const HEADER_LEN: usize = 192;
/// The part of the header that says which layout it is.
const IDENTITY: std::ops::Range<usize> = 12..48;
/// The longest file handle, with the four bytes of its type.
pub const MAX_HANDLE: usize = 132;
const MAGIC: &[u8; 8] = b"FBLAYOUT";
const VERSION: u32 = 1;

/// Identifies a layout: layout `generation` of a node for a file. It is in the header and in every
/// checksum, so that a layout that was copied elsewhere, or a part of one, is refused there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayoutId {
    pub file: FileId,
    pub node: NodeId,
    pub generation: u32,
}

impl LayoutId {
    /// Encodes the header. `handle` is the canonical file's, as in the store, for programs that
    /// have to find the file without a mount; a handle that is too long is left out.
    pub fn header(&self, handle: &[u8]) -> [u8; HEADER_LEN] {
        let handle = if handle.len() > MAX_HANDLE {
            &[]
        } else {
            handle
        };
        let mut bytes = Vec::with_capacity(HEADER_LEN);
        bytes.extend_from_slice(MAGIC);
        put_u32(&mut bytes, 0);
        put_u32(&mut bytes, VERSION);
        put_u64(&mut bytes, self.node.0);
        put_u64(&mut bytes, self.file.ino);
        put_u64(&mut bytes, self.file.birth);
        put_u32(&mut bytes, self.generation);
        put_u32(&mut bytes, handle.len() as u32);
        bytes.extend_from_slice(handle);
        bytes.resize(HEADER_LEN, 0);
        let crc = checksum::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        let mut header = [0; HEADER_LEN];
        header.copy_from_slice(&bytes);
        header
    }

    /// Checksum of those header fields only that identify the layout.
    pub(super) fn salt(&self) -> u32 {
        checksum::crc32c(&self.header(&[])[IDENTITY.start..IDENTITY.end - 4])
    }

    /// Checks a header, and returns the canonical file's handle.
    fn check<'a>(&self, header: &'a [u8]) -> Result<&'a [u8], String> {
        if !header.starts_with(MAGIC) {
            return Err("is not a layout".into());
        }
        let mut r = Reader::new(&header[8..]);
        let (crc, version) = (r.u32()?, r.u32()?);
        if crc != checksum::crc32c(&header[12..]) {
            return Err("has a header that does not match its checksum".into());
        }
        if version != VERSION {
            return Err(format!(
                "has version {version}; this forebay reads version {VERSION}"
            ));
        }
        let node = NodeId(r.u64()?);
        let file = FileId {
            ino: r.u64()?,
            birth: r.u64()?,
        };
        let generation = r.u32()?;
        let len = r.u32()? as usize;
        let found = LayoutId {
            file,
            node,
            generation,
        };
        if found == *self {
            if len > MAX_HANDLE {
                return Err("has a file handle that is too long".into());
            }
            return r.take(len);
        }
        Err(format!(
            "is layout {generation:x} of node {node} for file {file}, and lies where layout {:x} of node {} for file {} should be",
            self.generation, self.node, self.file
        ))
    }
}

/// What follows the batches that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Complete,
    /// The beginning of a batch: an append that is under way, or one that died.
    Incomplete,
    /// The bytes at byte `at` of the file are no batch, and nothing after them can be found. `why`
    /// is the end of a sentence that begins with the file's name. On file systems that show appends
    /// of other nodes in part, the last batch may look like this while it is written.
    Damaged { at: u64, why: String },
}

#[derive(Debug)]
pub struct Parsed {
    /// The canonical file's handle, if the header was read and has one.
    pub handle: Vec<u8>,
    /// Each batch with the offset where it ends in the file.
    pub batches: Vec<(u64, Arc<Batch>)>,
    pub tail: Tail,
}

impl Parsed {
    /// Where the next read begins.
    pub fn end(&self, offset: u64) -> u64 {
        self.batches.last().map_or(offset, |(end, _)| *end)
    }

    /// Returns what is wrong with a layout that was sealed at `seal` and read from `offset` up to
    /// there. A node seals where its last batch ends: a seal elsewhere would hide half of a batch,
    /// or hide that something is missing.
    pub fn against_seal(&self, offset: u64, seal: u64) -> Option<String> {
        let end = self.end(offset);
        let whole = end >= seal && self.tail == Tail::Complete;
        (!whole).then(|| no_batch_ends_at(seal))
    }
}

pub(crate) fn no_batch_ends_at(seal: u64) -> String {
    format!("is sealed at byte {seal}, where none of its batches ends")
}

/// Describes a layout of `len` bytes whose tail stays [`Tail::Incomplete`].
pub(crate) fn ends_within(len: u64) -> String {
    let part = match len < HEADER_LEN as u64 {
        true => "its header",
        false => "a batch",
    };
    format!("ends within {part} at byte {len}")
}

/// Parses the batches in `bytes`, which begin at byte `offset` of layout `id`: 0, or the end of a
/// batch.
pub fn parse(bytes: &[u8], offset: u64, id: &LayoutId) -> Parsed {
    let mut parsed = Parsed {
        handle: Vec::new(),
        batches: Vec::new(),
        tail: Tail::Complete,
    };
    let mut at = 0;
    if offset == 0 {
        let Some(header) = bytes.get(..HEADER_LEN) else {
            parsed.tail = Tail::Incomplete;
            return parsed;
        };
        match id.check(header) {
            Ok(handle) => parsed.handle = handle.to_vec(),
            Err(why) => {
                parsed.tail = Tail::Damaged { at: 0, why };
                return parsed;
            }
        }
        at = HEADER_LEN;
    }
    while at < bytes.len() {
        match codec::decode(&bytes[at..], id) {
            Decoded::Batch(batch, len) => {
                at += len;
                let end = offset.saturating_add(at as u64);
                parsed.batches.push((end, batch));
            }
            Decoded::Incomplete => {
                parsed.tail = Tail::Incomplete;
                break;
            }
            Decoded::Damaged(why) => {
                let at = offset.saturating_add(at as u64);
                let why = format!("has a batch at byte {at} that {why}");
                parsed.tail = Tail::Damaged { at, why };
                break;
            }
        }
    }
    parsed
}

#[cfg(test)]
mod tests;
