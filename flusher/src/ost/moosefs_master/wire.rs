//! The master's packets as bytes. All functions are pure, and arbitrary bytes never make them
//! panic.
//!
//! Numbers are big-endian. A packet is its kind and its length, four bytes each, then its body. An
//! answer's kind is the question's plus one. The formats are those of the published
//! `MFSCommunication.h` of versions 3.0.75 and later.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(u32);

pub const SCLASS_CREATE: Kind = Kind(350);
pub const SCLASS_LIST: Kind = Kind(360);
pub const FUSE_REGISTER: Kind = Kind(400);
pub const FUSE_CHECK: Kind = Kind(440);
pub const FUSE_SETSCLASS: Kind = Kind(448);
pub const CSERV_LIST: Kind = Kind(500);

impl Kind {
    pub fn answer(self) -> u32 {
        self.0 + 1
    }
}

/// Tells the master that a tool on this mount asks.
const TOOL: &[u8; 64] = b"DjI1GAQDULI5d2YjA26ypc3ovkhjvhciTQVx3CS4nYgtBoUcsljiVpsErJENHaw0";
const REGISTER_TOOLS: u8 = 4;
/// The version whose formats are used here: 3.0.117, with the last number doubled as on the wire.
const SPOKEN: [u8; 4] = [0, 3, 0, 234];
const BY_NAME: u8 = 0xff;
const SET_ONE: u8 = 0;
const STRICT: u8 = 2;
/// Number of alternatives in one label expression.
const ALTERNATIVES: usize = 4;
/// The most copies that a class can ask for.
const MOST_COPIES: u8 = 9;
/// A file of 2^57 bytes, the largest there is, has this many chunks of 64 MiB.
const MOST_CHUNKS: u64 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

type Result<T> = std::result::Result<T, Malformed>;
const SHORT: Malformed = Malformed("it ends too early");

/// Error numbers of MooseFS, which differ from those of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    pub const OK: Status = Status(0);
    pub const EPERM: Status = Status(1);
    pub const EACCES: Status = Status(4);
    pub const NOT_ADMIN: Status = Status(49);
    pub const CLASS_EXISTS: Status = Status(50);

    /// Returns the system's number for errors that say what to do about a target.
    pub fn errno(self) -> Option<i32> {
        match self.0 {
            21 => Some(libc::ENOSPC),
            33 => Some(libc::EROFS),
            34 => Some(libc::EDQUOT),
            _ => None,
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self.0 {
            0 => "no error",
            1 => "operation not permitted",
            3 => "no such file",
            4 => "permission denied",
            6 => "invalid argument, or no such storage class",
            12 => "no chunkserver is connected",
            13 => "no such chunk",
            21 => "no space left",
            33 => "read-only file system",
            34 => "quota exceeded",
            35 => "the session is not known",
            49 => "only administrators may do that",
            50 => "the storage class exists",
            51 => "there are too many storage classes",
            other => return write!(f, "MooseFS error {other}"),
        };
        f.write_str(text)
    }
}

pub fn packet(kind: Kind, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).expect("questions are short");
    [&kind.0.to_be_bytes(), &len.to_be_bytes(), body].concat()
}

/// Returns kind and length of what follows.
pub fn header(bytes: &[u8; 8]) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = *bytes;
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn address(&mut self) -> Result<SocketAddrV4> {
        let ip = Ipv4Addr::from(self.array::<4>()?);
        Ok(SocketAddrV4::new(ip, self.u16()?))
    }

    /// Reads a length byte and that many bytes.
    fn name(&mut self) -> Result<String> {
        let len = self.u8()?;
        let bytes = self.take(len.into())?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    out.push(u8::try_from(name.len()).expect("our names are short"));
    out.extend(name.as_bytes());
}

/// Parses an answer that is a status and nothing else.
pub fn status(body: &[u8]) -> Result<Status> {
    match body {
        [status] => Ok(Status(*status)),
        _ => Err(Malformed("a status is one byte")),
    }
}

pub fn register(session: u32) -> Vec<u8> {
    let tail = [&[REGISTER_TOOLS][..], &session.to_be_bytes(), &SPOKEN];
    [&TOOL[..], &tail.concat()].concat()
}

/// A chunkserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: SocketAddrV4,
    /// The master's number for it, which it keeps when its address changes.
    pub id: u16,
    pub connected: bool,
    pub maintenance: bool,
    /// Bit 0 is `A`. Zero while the chunkserver is away.
    pub labels: u32,
    pub used: u64,
    /// Zero until the master has heard of its disks: nothing can be written there before.
    pub total: u64,
    pub chunks: u32,
    pub errors: u32,
    pub load: u32,
    /// The master gives it no new chunks: it is overloaded, rebalancing, or has only just come
    /// back.
    pub busy: bool,
}

impl Target {
    pub fn has_label(&self, label: char) -> bool {
        bit(label).is_some_and(|bit| self.labels & bit != 0)
    }

    /// Returns a label that no other of `all` has: pinning to it means this target and nothing
    /// else.
    pub fn own_label(&self, all: &[Target]) -> Option<char> {
        ('A'..='Z').find(|label| self.owns_label(*label, all))
    }

    pub fn owns_label(&self, label: char, all: &[Target]) -> bool {
        let mut others = all.iter().filter(|other| other.id != self.id);
        self.has_label(label) && !others.any(|other| other.has_label(label))
    }
}

fn bit(label: char) -> Option<u32> {
    label
        .is_ascii_uppercase()
        .then(|| 1 << (label as u32 - 'A' as u32))
}

pub fn targets(body: &[u8]) -> Result<Vec<Target>> {
    const RECORD: usize = 69;
    const AWAY: u8 = 1;
    const MAINTENANCE: u8 = 2;
    if !body.len().is_multiple_of(RECORD) {
        return Err(Malformed(
            "a chunkserver's record has another length than 69 bytes",
        ));
    }
    let target = |record| {
        let mut from = Reader(record);
        let [flags, _version @ ..] = from.array::<4>()?;
        let (address, id) = (from.address()?, from.u16()?);
        let (used, total, chunks) = (from.u64()?, from.u64()?, from.u32()?);
        // The same three numbers for the disks that are marked for removal.
        from.take(8 + 8 + 4)?;
        let (errors, load, grace) = (from.u32()?, from.u32()?, from.u32()?);
        Ok(Target {
            address,
            id,
            connected: flags & AWAY == 0,
            maintenance: flags & MAINTENANCE != 0,
            labels: from.u32()?,
            used,
            total,
            chunks,
            errors,
            load,
            busy: grace != 0,
        })
    };
    body.chunks_exact(RECORD).map(target).collect()
}

/// One label expression: alternatives, each a mask of labels that must all be there.
type Expression = [u32; ALTERNATIVES];

/// How a storage class places chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    admin_only: bool,
    mode: u8,
    archive_after: u16,
    create: Vec<Expression>,
    keep: Vec<Expression>,
    archive: Vec<Expression>,
}

impl Class {
    /// A class with one copy where `label` is, and never elsewhere. `None` if `label` is not a
    /// label.
    pub fn pinned_to(label: char) -> Option<Class> {
        let one = vec![[bit(label)?, 0, 0, 0]];
        Some(Class {
            admin_only: false,
            mode: STRICT,
            archive_after: 0,
            create: one.clone(),
            keep: one.clone(),
            archive: one,
        })
    }

    /// True if files of both classes end up in the same places.
    pub fn places_like(&self, other: &Class) -> bool {
        let archives = |class: &Class| (class.archive_after > 0).then(|| class.archive.clone());
        self.mode == other.mode
            && self.create == other.create
            && self.keep == other.keep
            && archives(self) == archives(other)
    }

    fn parse(from: &mut Reader<'_>) -> Result<Class> {
        let (admin_only, mode, archive_after) = (from.u8()? != 0, from.u8()?, from.u16()?);
        let counts = from.array::<3>()?;
        if counts.iter().any(|n| !(1..=MOST_COPIES).contains(n)) {
            return Err(Malformed("a storage class has one to nine copies"));
        }
        let mut expressions = |count: u8| {
            let one = |_| -> Result<Expression> {
                let mut masks = [0; ALTERNATIVES];
                for mask in &mut masks {
                    *mask = from.u32()?;
                }
                Ok(masks)
            };
            (0..count).map(one).collect::<Result<Vec<_>>>()
        };
        let [create, keep, archive] = counts;
        Ok(Class {
            admin_only,
            mode,
            archive_after,
            create: expressions(create)?,
            keep: expressions(keep)?,
            archive: expressions(archive)?,
        })
    }

    fn put(&self, out: &mut Vec<u8>) {
        let lists = [&self.create, &self.keep, &self.archive];
        out.extend([u8::from(self.admin_only), self.mode]);
        out.extend(self.archive_after.to_be_bytes());
        out.extend(lists.map(|list| u8::try_from(list.len()).expect("one to nine copies")));
        for mask in lists.into_iter().flatten().flatten() {
            out.extend(mask.to_be_bytes());
        }
    }
}

pub fn class_create(name: &str, class: &Class) -> Vec<u8> {
    const FORMAT: u8 = 0;
    let mut out = Vec::new();
    put_name(&mut out, name);
    out.push(FORMAT);
    class.put(&mut out);
    out
}

/// Asks for names and definitions.
pub fn class_list() -> Vec<u8> {
    vec![1]
}

pub fn classes(body: &[u8]) -> Result<BTreeMap<String, Class>> {
    let mut from = Reader(body);
    let mut found = BTreeMap::new();
    while !from.0.is_empty() {
        found.insert(from.name()?, Class::parse(&mut from)?);
    }
    Ok(found)
}

pub fn set_class(inode: u32, uid: u32, class: &str) -> Vec<u8> {
    let mut out = [inode.to_be_bytes(), uid.to_be_bytes()].concat();
    out.extend([BY_NAME, SET_ONE]);
    put_name(&mut out, class);
    out
}

/// Returns whether the one file has the class now; the inner error is that of the master.
pub fn class_set(body: &[u8]) -> Result<std::result::Result<bool, Status>> {
    if let [status] = body {
        return Ok(Err(Status(*status)));
    }
    let mut from = Reader(body);
    let (changed, had_it, _not_permitted) = (from.u32()?, from.u32()?, from.u32()?);
    Ok(Ok(changed.saturating_add(had_it) == 1))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    Valid,
    MarkedForRemoval,
    WrongVersion,
    WrongVersionMarkedForRemoval,
    Invalid,
    Unknown(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkCopy {
    pub address: SocketAddrV4,
    pub state: CopyState,
}

/// A part of 64 MiB of a file that has data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Which of the file's chunks it is: 0 is the first.
    pub index: u32,
    pub id: u64,
    pub version: u32,
    pub copies: Vec<ChunkCopy>,
}

impl Chunk {
    /// True if there is a valid copy on this chunkserver, and none elsewhere.
    pub fn is_only_on(&self, address: SocketAddrV4) -> bool {
        let mut valid = (self.copies.iter().filter(|c| c.state == CopyState::Valid)).peekable();
        valid.peek().is_some() && valid.all(|copy| copy.address == address)
    }
}

/// Asks how many chunks a file has, or about one of them.
pub fn check(inode: u32, index: Option<u32>) -> Vec<u8> {
    let mut out = inode.to_be_bytes().to_vec();
    out.extend(index.into_iter().flat_map(u32::to_be_bytes));
    out
}

/// Parses an answer that counts chunks by their number of copies, and those without data.
pub fn chunk_count(body: &[u8]) -> Result<std::result::Result<u32, Status>> {
    const COUNTS: usize = 12;
    if let [status] = body {
        return Ok(Err(Status(*status)));
    }
    if body.len() != COUNTS * 4 {
        return Err(Malformed("a file's chunks are counted in twelve numbers"));
    }
    let mut from = Reader(body);
    let mut sum = 0;
    for _ in 0..COUNTS {
        sum += u64::from(from.u32()?);
    }
    if sum > MOST_CHUNKS {
        return Err(Malformed("more chunks than the largest file has"));
    }
    Ok(Ok(sum as u32))
}

/// Parses an answer about one chunk. `None` for a chunk without data.
pub fn chunk(body: &[u8], index: u32) -> Result<std::result::Result<Option<Chunk>, Status>> {
    if let [status] = body {
        return Ok(Err(Status(*status)));
    }
    let mut from = Reader(body);
    let (id, version) = (from.u64()?, from.u32()?);
    let mut copies = Vec::new();
    while !from.0.is_empty() {
        let address = from.address()?;
        let state = match from.u8()? {
            0 => CopyState::Valid,
            1 => CopyState::MarkedForRemoval,
            2 => CopyState::WrongVersion,
            3 => CopyState::WrongVersionMarkedForRemoval,
            4 => CopyState::Invalid,
            other => CopyState::Unknown(other),
        };
        copies.push(ChunkCopy { address, state });
    }
    let chunk = Chunk {
        index,
        id,
        version,
        copies,
    };
    Ok(Ok((id != 0 || version != 0).then_some(chunk)))
}
