//! Plans and bases: how much of each layout a round writes to the canonical file, and how much the
//! canonical file has. They appear whole, by rename, and never change.

use super::bytes::{self, MAX_OFFSET, Reader, Refused, put_u32, put_u64};
use crate::checksum;
use crate::types::{Epoch, FileId, NodeId, Timestamp};
use std::collections::BTreeMap;

/// Maximum number of domains in a plan: each needs a claim and a mark in the file's directory.
pub const MAX_DOMAINS: u32 = 1 << 16;

const VERSION: u32 = 1;
const PLAN: &[u8; 8] = b"FBPLAN\0\0";
const BASE: &[u8; 8] = b"FBBASE\0\0";
/// Magic, checksum, version, file.
const FRONT: usize = 32;
const ENTRY: usize = 20;

/// How many bytes of each layout are covered, by node and generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Covered(pub BTreeMap<(NodeId, u32), u64>);

impl Covered {
    pub fn upto(&self, node: NodeId, generation: u32) -> u64 {
        self.0.get(&(node, generation)).copied().unwrap_or(0)
    }

    /// Whether everything in `other` is covered, too.
    pub fn includes(&self, other: &Covered) -> bool {
        let mut layouts = other.0.iter();
        layouts.all(|((node, generation), upto)| self.upto(*node, *generation) >= *upto)
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_u32(out, self.0.len() as u32);
        for ((node, generation), upto) in &self.0 {
            put_u64(out, node.0);
            put_u32(out, *generation);
            put_u64(out, *upto);
        }
    }

    /// Decodes the last field of a plan or base: nothing may follow it.
    fn get(r: &mut Reader) -> Result<Covered, Refused> {
        let count = r.u32()? as usize;
        if r.left() != count.saturating_mul(ENTRY) {
            return Err("has another number of layouts than it says".into());
        }
        let mut covered = BTreeMap::new();
        for _ in 0..count {
            let key = (NodeId(r.u64()?), r.u32()?);
            let upto = bytes::offset(r.u64()?, "length of a layout")?;
            if covered
                .last_key_value()
                .is_some_and(|(last, _)| *last >= key)
            {
                return Err("has layouts that are not in order".into());
            }
            covered.insert(key, upto);
        }
        Ok(Covered(covered))
    }
}

/// What a round writes, and how it is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub term: u64,
    pub covered: Covered,
    /// Size of a unit of the canonical file; unit *u* is in domain *u* mod `domains`.
    pub unit: u64,
    pub domains: u32,
    pub size: u64,
    pub mtime: Timestamp,
    /// The largest epoch of everything that is covered.
    pub epoch: Epoch,
    /// Where the canonical file was cut; `u64::MAX` if it was not.
    pub limit: u64,
}

/// What the canonical file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    pub term: u64,
    pub covered: Covered,
    pub epoch: Epoch,
}

fn begin(magic: &[u8; 8], file: FileId) -> Vec<u8> {
    let mut out = magic.to_vec();
    put_u32(&mut out, 0);
    put_u32(&mut out, VERSION);
    put_u64(&mut out, file.ino);
    put_u64(&mut out, file.birth);
    out
}

fn seal(mut out: Vec<u8>) -> Vec<u8> {
    let crc = checksum::append(checksum::crc32c(&out[..8]), &out[12..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Checks the front of a whole file, and returns a reader for the fields after it.
fn open<'a>(bytes: &'a [u8], magic: &[u8; 8], file: FileId) -> Result<Reader<'a>, Refused> {
    if bytes.len() < FRONT {
        return Err(format!("is only {} bytes long", bytes.len()));
    }
    let mut r = Reader::new(bytes);
    let found = r.take(8)?;
    if found != magic {
        return Err("begins with other bytes than a file of its name".into());
    }
    let (crc, version) = (r.u32()?, r.u32()?);
    if crc != checksum::append(checksum::crc32c(found), &bytes[12..]) {
        return Err("does not match its checksum".into());
    }
    if version != VERSION {
        return Err(format!(
            "has version {version}; this forebay reads version {VERSION}"
        ));
    }
    let of = FileId {
        ino: r.u64()?,
        birth: r.u64()?,
    };
    if of != file {
        return Err(format!(
            "is of file {of}, and lies where one of file {file} should be"
        ));
    }
    Ok(r)
}

fn epoch(r: &mut Reader) -> Result<Epoch, Refused> {
    match r.u64()? {
        epoch if epoch <= MAX_OFFSET => Ok(Epoch(epoch)),
        _ => Err("has an epoch that leaves no room for others".into()),
    }
}

impl Plan {
    pub fn encode(&self, file: FileId) -> Vec<u8> {
        let mut out = begin(PLAN, file);
        put_u64(&mut out, self.term);
        put_u64(&mut out, self.epoch.0);
        put_u64(&mut out, self.unit);
        put_u64(&mut out, self.size);
        put_u64(&mut out, self.limit);
        put_u64(&mut out, self.mtime.0);
        put_u32(&mut out, self.domains);
        self.covered.put(&mut out);
        seal(out)
    }

    /// The error is the end of a sentence that begins with the plan's name.
    pub fn decode(bytes: &[u8], file: FileId) -> Result<Plan, String> {
        let mut r = open(bytes, PLAN, file)?;
        let term = r.u64()?;
        let epoch = epoch(&mut r)?;
        let unit = bytes::offset(r.u64()?, "unit")?;
        let size = bytes::offset(r.u64()?, "size")?;
        let limit = r.u64()?;
        let mtime = Timestamp(r.u64()?);
        let domains = r.u32()?;
        if unit == 0 || !(1..=MAX_DOMAINS).contains(&domains) {
            return Err(format!("has {domains} domains with units of {unit} bytes"));
        }
        if limit != u64::MAX {
            bytes::offset(limit, "limit")?;
        }
        Ok(Plan {
            term,
            covered: Covered::get(&mut r)?,
            unit,
            domains,
            size,
            mtime,
            epoch,
            limit,
        })
    }
}

impl Base {
    pub fn encode(&self, file: FileId) -> Vec<u8> {
        let mut out = begin(BASE, file);
        put_u64(&mut out, self.term);
        put_u64(&mut out, self.epoch.0);
        put_u32(&mut out, 0);
        self.covered.put(&mut out);
        seal(out)
    }

    /// The error is the end of a sentence that begins with the base's name.
    pub fn decode(bytes: &[u8], file: FileId) -> Result<Base, String> {
        let mut r = open(bytes, BASE, file)?;
        let term = r.u64()?;
        let epoch = epoch(&mut r)?;
        r.zero_u32()?;
        Ok(Base {
            term,
            covered: Covered::get(&mut r)?,
            epoch,
        })
    }
}

#[cfg(test)]
mod tests;
