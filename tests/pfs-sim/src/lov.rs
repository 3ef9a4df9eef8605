//! Lustre's user layout structure (`lov_user_md`), versions 1 and 3, as bytes.
//!
//! Little-endian and packed; the same bytes go through the extended attribute `lustre.lov`:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic: version 1, version 3, or "specific" (version 3 with a list of OSTs) |
//! | 4 | 4 | pattern: 0 (default) or 1 (RAID-0) |
//! | 8 | 16 | object id and sequence of the file; ignored when set |
//! | 24 | 4 | stripe size, 0 for the default |
//! | 28 | 2 | stripe count, 0 for the default, 0xffff for all |
//! | 30 | 2 | set: first OST, 0xffff for any; get: layout generation |
//! | 32 | 16 | version 3 only: name of the pool, NUL-padded |
//! | 32 or 48 | 24 each | objects: id (8), sequence (8), generation (4), OST index (4) |

use crate::Errno;
use crate::layout::{ANY, Layout, Wish};

pub const NAME: &str = "lustre.lov";
pub const MAGIC_V1: u32 = 0x0bd1_0bd0;
pub const MAGIC_V3: u32 = 0x0bd3_0bd0;
pub const MAGIC_SPECIFIC: u32 = 0x0bd5_0bd0;

const RAID0: u32 = 1;
const HEADER_V1: usize = 32;
const HEADER_V3: usize = 48;
const OBJECT: usize = 24;

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Errno> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map(|b| u16::from_le_bytes(*b)).ok_or(Errno::EINVAL)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Errno> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map(|b| u32::from_le_bytes(*b)).ok_or(Errno::EINVAL)
}

/// Parses the striping that a caller requests.
pub fn parse(bytes: &[u8]) -> Result<Wish, Errno> {
    let magic = u32_at(bytes, 0)?;
    let header = match magic {
        MAGIC_V1 => HEADER_V1,
        MAGIC_V3 | MAGIC_SPECIFIC => HEADER_V3,
        _ => return Err(Errno::EINVAL),
    };
    let pattern = u32_at(bytes, 4)?;
    if bytes.len() < header || !matches!(pattern, 0 | RAID0) {
        return Err(Errno::EINVAL);
    }
    let (size, count, start) = (u32_at(bytes, 24)?, u16_at(bytes, 28)?, u16_at(bytes, 30)?);
    let pool = if magic == MAGIC_V1 {
        None
    } else {
        let name = bytes.get(HEADER_V1..).and_then(|rest| rest.first_chunk());
        Some(*name.ok_or(Errno::EINVAL)?)
    };
    let osts = if magic == MAGIC_SPECIFIC {
        let list = (0..usize::from(count))
            .map(|i| u32_at(bytes, header + i * OBJECT + 20).map(|ost| ost as usize));
        Some(list.collect::<Result<Vec<_>, _>>()?)
    } else {
        None
    };
    let first = (start != ANY).then_some(usize::from(start));
    Ok(Wish {
        stripe_size: (size != 0).then_some(u64::from(size)),
        stripe_count: (count != 0).then_some(count),
        start: first.filter(|_| osts.is_none()),
        osts,
        pool,
    })
}

fn header(pool: Option<[u8; 16]>, id: u64, size: u64, count: u16, last: u16) -> Vec<u8> {
    let magic = if pool.is_some() { MAGIC_V3 } else { MAGIC_V1 };
    let mut out = Vec::with_capacity(HEADER_V3);
    out.extend(magic.to_le_bytes());
    out.extend(RAID0.to_le_bytes());
    out.extend(id.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.extend((size as u32).to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(last.to_le_bytes());
    out.extend(pool.iter().flatten());
    out
}

/// Encodes the layout of the file `ino`, with its objects.
pub fn of_file(ino: u64, layout: &Layout) -> Vec<u8> {
    let count = layout.osts.len() as u16;
    let mut out = header(layout.pool, ino, layout.stripe_size, count, 0);
    for ost in &layout.osts {
        out.extend(ino.to_le_bytes());
        out.extend(0u64.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend((*ost as u32).to_le_bytes());
    }
    out
}

/// Encodes a request or a directory's default, which have no objects.
pub fn of_wish(wish: &Wish) -> Vec<u8> {
    if let Some(osts) = &wish.osts {
        let pool = Some(wish.pool.unwrap_or_default());
        let size = wish.stripe_size.unwrap_or(0);
        let mut out = header(pool, 0, size, osts.len() as u16, ANY);
        out[..4].copy_from_slice(&MAGIC_SPECIFIC.to_le_bytes());
        for ost in osts {
            out.extend([0; 20]);
            out.extend((*ost as u32).to_le_bytes());
        }
        return out;
    }
    header(
        wish.pool,
        0,
        wish.stripe_size.unwrap_or(0),
        wish.stripe_count.unwrap_or(0),
        wish.start.map_or(ANY, |start| start as u16),
    )
}

/// Parses the layout of a file as `lustre.lov` shows it, for tests that read it back.
pub fn parse_file(bytes: &[u8]) -> Result<Layout, Errno> {
    let wish = parse(bytes)?;
    let header = if wish.pool.is_some() {
        HEADER_V3
    } else {
        HEADER_V1
    };
    let count = usize::from(wish.stripe_count.ok_or(Errno::EINVAL)?);
    let osts = (0..count).map(|i| u32_at(bytes, header + i * OBJECT + 20).map(|o| o as usize));
    Ok(Layout {
        stripe_size: wish.stripe_size.ok_or(Errno::EINVAL)?,
        osts: osts.collect::<Result<_, _>>()?,
        pool: wish.pool,
    })
}

#[cfg(test)]
mod tests;
