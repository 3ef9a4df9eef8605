//! Lustre's striping without Lustre's headers: `lov_user_md` versions 1 and 3 as bytes, the numbers
//! of the calls that take them, and the list of OSTs as a client shows it.
//!
//! Everything is as published in `lustre_user.h`; the offsets are those that Lustre itself asserts
//! (`wiretest.c`). The structures are packed and in the host's byte order, which is little-endian
//! on every machine that Lustre clients run on today. A structure in the other order is refused
//! because of its magic number.
//!
//! # Placing a file
//!
//! Create it with [`O_LOV_DELAY_CREATE`], then give [`LL_IOC_LOV_SETSTRIPE`] the bytes of
//! [`Placement::encode`]. The call also *writes* the resulting striping into the same memory, as
//! many bytes as the request had: pass memory that may be written. [`LL_IOC_LOV_GETSTRIPE`] fills a
//! buffer with the striping; [`MAX_LAYOUT`] bytes hold any plain one. The attribute
//! [`XATTR_LUSTRE_LOV`] takes and gives the same bytes.
//!
//! Bytes from a file system are input from outside: [`Layout::decode`] checks every bound.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file system type that `statfs` returns for Lustre.
pub const LL_SUPER_MAGIC: i64 = 0x0BD0_0BD0;

/// `O_NOCTTY | FASYNC`: create the file without objects, its striping is set later. Older headers
/// add the bit 0100000000 for clients before 2.4; for the kernel that bit means something else.
pub const O_LOV_DELAY_CREATE: i32 = libc::O_NOCTTY | libc::O_ASYNC;

/// `_IOW('f', 154, long)`
pub const LL_IOC_LOV_SETSTRIPE: u64 = iow(154);
/// `_IOW('f', 155, long)`, although it reads.
pub const LL_IOC_LOV_GETSTRIPE: u64 = iow(155);

pub const XATTR_LUSTRE_LOV: &str = "lustre.lov";

pub const LOV_USER_MAGIC_V1: u32 = 0x0BD1_0BD0;
pub const LOV_USER_MAGIC_V3: u32 = 0x0BD3_0BD0;
/// A version 3 request whose objects name the OSTs to use.
pub const LOV_USER_MAGIC_SPECIFIC: u32 = 0x0BD5_0BD0;
pub const LOV_USER_MAGIC_COMP_V1: u32 = 0x0BD6_0BD0;
pub const LOV_USER_MAGIC_FOREIGN: u32 = 0x0BD7_0BD0;
pub const LOV_USER_MAGIC_SEL: u32 = 0x0BD8_0BD0;

pub const LOV_PATTERN_RAID0: u32 = 0x001;
pub const LOV_PATTERN_MDT: u32 = 0x100;
pub const LOV_PATTERN_OVERSTRIPING: u32 = 0x200;
pub const LOV_PATTERN_F_RELEASED: u32 = 0x8000_0000;

/// Longest name of a pool, without the NUL that ends it.
pub const LOV_MAXPOOLNAME: usize = 15;
pub const LOV_MIN_STRIPE_SIZE: u32 = 1 << 16;
pub const LOV_MAX_STRIPE_COUNT: u16 = 2000;
/// As a stripe count: all OSTs.
pub const LOV_ALL_STRIPES: u16 = 0xffff;
/// As the first OST: wherever the file system likes.
pub const LOV_OFFSET_DEFAULT: u16 = 0xffff;

const HEADER_V1: usize = 32;
const HEADER_V3: usize = 48;
const OBJECT: usize = 24;
/// In newer versions counts from here on mean "all", and no objects follow.
const LOV_ALL_STRIPES_WIDE: u16 = 0xffe0;

pub const MAX_LAYOUT: usize = HEADER_V3 + LOV_MAX_STRIPE_COUNT as usize * OBJECT;

/// `_IOW('f', number, long)` on a 64-bit machine.
const fn iow(number: u64) -> u64 {
    const WRITE: u64 = 1;
    (WRITE << 30) | ((size_of::<libc::c_long>() as u64) << 16) | ((b'f' as u64) << 8) | number
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the Lustre layout ends after {0} bytes, too early for what it says it holds")]
    Short(usize),
    #[error(
        "the file has a composite Lustre layout (PFL or mirrored), which is not supported: \
             give its directory a plain one (lfs setstripe -c COUNT DIR)"
    )]
    Composite,
    #[error("the file's data is not on Lustre OSTs (a foreign layout)")]
    Foreign,
    #[error("{0:#010x} is not the magic number of a Lustre layout")]
    BadMagic(u32),
    #[error("the Lustre layout's pattern {0:#x} is not plain striping over OSTs")]
    BadPattern(u32),
    #[error("the Lustre pool name is longer than {LOV_MAXPOOLNAME} bytes or has a NUL in it")]
    BadPool,
    #[error("a Lustre stripe size is a multiple of {LOV_MIN_STRIPE_SIZE} bytes, and {0} is not")]
    BadStripeSize(u32),
    #[error("a Lustre file has 1 to {LOV_MAX_STRIPE_COUNT} stripes, not {0}")]
    BadStripeCount(usize),
    #[error("OST {0} cannot be a Lustre stripe's start: that number has a meaning of its own")]
    BadOst(u32),
    #[error("line {line} of the OST list is not 'INDEX: NAME ACTIVE': {text:?}")]
    BadOstLine { line: usize, text: String },
}

/// Where to place a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The default of the directory or the file system.
    Default,
    /// One stripe on this OST: a subfile.
    OneOst { ost: u16, stripe_size: u32 },
    /// This many stripes, on OSTs that the file system chooses.
    Striped {
        stripe_size: u32,
        stripe_count: u16,
        pool: Option<String>,
    },
    /// One stripe on each of these OSTs, in this order. Lustre accepts it from version 2.8 on.
    Osts { stripe_size: u32, osts: Vec<u32> },
}

impl Placement {
    /// Returns the bytes that [`LL_IOC_LOV_SETSTRIPE`] and [`XATTR_LUSTRE_LOV`] take.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        match self {
            Placement::Default => Ok(fields(LOV_USER_MAGIC_V1, 0, 0, LOV_OFFSET_DEFAULT)),
            Placement::OneOst { ost, stripe_size } => {
                if *ost >= LOV_ALL_STRIPES_WIDE {
                    return Err(Error::BadOst((*ost).into()));
                }
                header(LOV_USER_MAGIC_V1, *stripe_size, 1, *ost, None)
            }
            Placement::Striped {
                stripe_size,
                stripe_count,
                pool,
            } => {
                let magic = match pool {
                    None => LOV_USER_MAGIC_V1,
                    Some(_) => LOV_USER_MAGIC_V3,
                };
                let count = usize::from(*stripe_count);
                let start = LOV_OFFSET_DEFAULT;
                header(magic, *stripe_size, count, start, pool.as_deref())
            }
            Placement::Osts { stripe_size, osts } => {
                let start = osts.first().copied().unwrap_or(0);
                let start = u16::try_from(start).map_err(|_| Error::BadOst(start))?;
                let (magic, count) = (LOV_USER_MAGIC_SPECIFIC, osts.len());
                let mut out = header(magic, *stripe_size, count, start, Some(""))?;
                for ost in osts {
                    out.extend([0; 20]);
                    out.extend(ost.to_le_bytes());
                }
                Ok(out)
            }
        }
    }
}

fn header(
    magic: u32,
    stripe_size: u32,
    stripe_count: usize,
    start: u16,
    pool: Option<&str>,
) -> Result<Vec<u8>, Error> {
    if stripe_size == 0 || !stripe_size.is_multiple_of(LOV_MIN_STRIPE_SIZE) {
        return Err(Error::BadStripeSize(stripe_size));
    }
    let count = u16::try_from(stripe_count)
        .ok()
        .filter(|count| (1..=LOV_MAX_STRIPE_COUNT).contains(count) || *count == LOV_ALL_STRIPES)
        .ok_or(Error::BadStripeCount(stripe_count))?;
    let mut out = fields(magic, stripe_size, count, start);
    if let Some(pool) = pool {
        if pool.len() > LOV_MAXPOOLNAME || pool.contains('\0') {
            return Err(Error::BadPool);
        }
        let mut name = [0; LOV_MAXPOOLNAME + 1];
        name[..pool.len()].copy_from_slice(pool.as_bytes());
        out.extend(name);
    }
    Ok(out)
}

/// Zero as size or count means the default.
fn fields(magic: u32, stripe_size: u32, count: u16, start: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_V3);
    out.extend(magic.to_le_bytes());
    out.extend(LOV_PATTERN_RAID0.to_le_bytes());
    out.extend([0; 16]);
    out.extend(stripe_size.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(start.to_le_bytes());
    out
}

/// One object of a file, on one OST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub id: u64,
    pub seq: u64,
    pub generation: u32,
    pub ost: u32,
}

/// Where the data of a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub pattern: u32,
    /// Object and sequence of the file on the metadata server.
    pub id: u64,
    pub seq: u64,
    pub stripe_size: u32,
    /// [`LOV_ALL_STRIPES`] is possible in a directory's default.
    pub stripe_count: u16,
    /// Changes when the striping does. In a directory's default: the first OST.
    pub generation: u16,
    pub pool: Option<String>,
    /// Empty in a directory's default; a file's striping has `stripe_count` of them.
    pub objects: Vec<Object>,
}

impl Layout {
    /// Decodes a file's striping, from [`LL_IOC_LOV_GETSTRIPE`] or [`XATTR_LUSTRE_LOV`]. Bytes
    /// after it are ignored: a buffer is as long as the longest possible striping.
    pub fn decode(bytes: &[u8]) -> Result<Layout, Error> {
        let (mut layout, rest) = decode_header(bytes)?;
        let count = usize::from(layout.stripe_count);
        if count > usize::from(LOV_MAX_STRIPE_COUNT) {
            return Err(Error::BadStripeCount(count));
        }
        let object = |bytes| {
            Some(Object {
                id: u64_at(bytes, 0)?,
                seq: u64_at(bytes, 8)?,
                generation: u32_at(bytes, 16)?,
                ost: u32_at(bytes, 20)?,
            })
        };
        layout.objects = rest
            .get(..count * OBJECT)
            .and_then(|objects| objects.chunks_exact(OBJECT).map(object).collect())
            .ok_or(Error::Short(bytes.len()))?;
        Ok(layout)
    }

    /// Decodes what a directory gives its new files: the same structure without objects.
    pub fn decode_default(bytes: &[u8]) -> Result<Layout, Error> {
        decode_header(bytes).map(|(layout, _)| layout)
    }

    /// Returns the OSTs in the order of the stripes.
    pub fn osts(&self) -> Vec<u32> {
        self.objects.iter().map(|object| object.ost).collect()
    }
}

/// Decodes the header. Also returns the bytes that follow it.
fn decode_header(bytes: &[u8]) -> Result<(Layout, &[u8]), Error> {
    let short = || Error::Short(bytes.len());
    let magic = u32_at(bytes, 0).ok_or_else(short)?;
    let header = match magic {
        LOV_USER_MAGIC_V1 => HEADER_V1,
        LOV_USER_MAGIC_V3 | LOV_USER_MAGIC_SPECIFIC => HEADER_V3,
        LOV_USER_MAGIC_COMP_V1 | LOV_USER_MAGIC_SEL => return Err(Error::Composite),
        LOV_USER_MAGIC_FOREIGN => return Err(Error::Foreign),
        other => return Err(Error::BadMagic(other)),
    };
    let (head, rest) = bytes.split_at_checked(header).ok_or_else(short)?;
    let read = || {
        Some(Layout {
            pattern: u32_at(head, 4)?,
            id: u64_at(head, 8)?,
            seq: u64_at(head, 16)?,
            stripe_size: u32_at(head, 24)?,
            stripe_count: u16_at(head, 28)?,
            generation: u16_at(head, 30)?,
            pool: None,
            objects: Vec::new(),
        })
    };
    let mut layout = read().ok_or_else(short)?;
    let kind = layout.pattern & !LOV_PATTERN_OVERSTRIPING;
    // A default that leaves the pattern open has 0 here.
    if kind != LOV_PATTERN_RAID0 && kind != 0 {
        return Err(Error::BadPattern(layout.pattern));
    }
    let name = &head[HEADER_V1..];
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    let name = std::str::from_utf8(&name[..end]).map_err(|_| Error::BadPool)?;
    layout.pool = (!name.is_empty()).then(|| name.to_owned());
    Ok((layout, rest))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

/// Where clients of different versions have the list of OSTs.
pub const OST_LIST_PLACES: [&str; 3] = [
    "proc/fs/lustre/lov",
    "sys/kernel/debug/lustre/lov",
    "sys/fs/lustre/lov",
];

/// An OST as the client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ost {
    pub index: u32,
    /// `scratch-OST0000_UUID`
    pub uuid: String,
    pub active: bool,
}

/// Parses the text of `target_obd`, from the client's own file or from
/// `lctl get_param lov.FSNAME-*.target_obd`, which puts the parameter's name on a line before.
pub fn parse_osts(text: &str) -> Result<Vec<Ost>, Error> {
    let mut osts = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.ends_with(".target_obd=") {
            continue;
        }
        let parse = || {
            let (index, rest) = line.split_once(": ")?;
            let (uuid, state) = rest.split_once(' ')?;
            Some(Ost {
                index: index.parse().ok()?,
                uuid: uuid.to_owned(),
                active: match state {
                    "ACTIVE" => true,
                    "INACTIVE" => false,
                    _ => return None,
                },
            })
        };
        osts.push(parse().ok_or_else(|| Error::BadOstLine {
            line: number + 1,
            text: line.chars().take(80).collect(),
        })?);
    }
    Ok(osts)
}

/// Finds the lists of OSTs that clients of different versions have, by the name of the file system:
/// one file for each mount of it. `root` is `/`, or another directory in a test.
pub fn ost_lists(root: &Path) -> BTreeMap<String, Vec<PathBuf>> {
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let entries = OST_LIST_PLACES
        .iter()
        // A place that this version does not have, or that only root may read, is skipped.
        .filter_map(|place| std::fs::read_dir(root.join(place)).ok())
        .flat_map(|entries| entries.flatten());
    for entry in entries {
        let name = entry.file_name();
        let path = entry.path().join("target_obd");
        if let Some((fsname, _)) = name.to_string_lossy().rsplit_once("-clilov-")
            && path.is_file()
        {
            found.entry(fsname.to_owned()).or_default().push(path);
        }
    }
    for paths in found.values_mut() {
        paths.sort();
    }
    found
}

/// Returns the lists of one file system.
pub fn ost_list_files(root: &Path, fsname: &str) -> Vec<PathBuf> {
    ost_lists(root).remove(fsname).unwrap_or_default()
}
