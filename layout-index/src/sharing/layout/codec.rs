//! Encoding of one batch. `docs/FORMAT.md` has the byte tables.
//!
//! Units are encoded in runs (units of equal length, one after the other in a subfile), in which
//! each unit costs only its checksum. A strip is encoded as its difference from the strip before. A
//! million irregular extents take a few bytes each, and a regular pattern of a million extents
//! takes one strip.

use super::batch::{self, Batch, Bytes, Head, Strip, SubfileRef, Tables, Unit};
use super::build::BuildError;
use super::bytes::{self, MAX_OFFSET, Reader, Refused, put_signed, put_u32, put_u64, put_varint};
use super::file::LayoutId;
use crate::checksum;
use crate::extent::UNIT_MAX;
use crate::types::{Epoch, FileNo, Seq, Timestamp};
use std::sync::Arc;

/// Maximum length of an encoded batch. A reader holds a whole batch in memory, and several times
/// that when it is decoded.
pub const MAX_BATCH: usize = 32 << 20;

/// Length, checksum of the rest, checksum of those two fields.
const FRAME: usize = 12;
/// Length of the frame and of the fields between it and the tables.
pub(super) const FIXED: usize = FRAME + 72;
const VERSION: u16 = 1;
const HAS_CUT: u16 = 1;

const SUBFILE_MIN: u64 = 9;
const UNIT_MIN: u64 = 4;
const STRIP_MIN: u64 = 2;

/// What some bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A batch, and its length in bytes.
    Batch(Arc<Batch>, usize),
    /// The beginning of a batch.
    Incomplete,
    /// Why this cannot be a batch.
    Damaged(String),
}

const INLINE: u8 = 1;
const ZERO: u8 = 2;
const KIND: u8 = 3;
/// A count and a stride follow.
const MANY: u8 = 1 << 2;
/// The strip's bytes follow those of the last strip of its kind, so no place follows.
const GOES_ON: u8 = 1 << 3;
/// Begins before the end of the last strip.
const BACK: u8 = 1 << 4;
/// As long as the last strip.
const SAME: u8 = 1 << 5;
const TAG: u8 = (1 << 6) - 1;

/// State that a strip is encoded against: the strips before it.
#[derive(Default)]
pub(super) struct StripCodec {
    end: u64,
    len: u64,
    stream: u64,
    inline: u64,
}

impl StripCodec {
    /// `stream` is where the bytes of a strip in units begin in the stream of all units.
    pub fn put(&mut self, out: &mut Vec<u8>, strip: &Strip, stream: u64) {
        let (kind, goes_on) = match strip.bytes {
            Bytes::Units { .. } => (0, stream == self.stream),
            Bytes::Inline { at } => (INLINE, u64::from(at) == self.inline),
            Bytes::Zero => (ZERO, true),
        };
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let tag = kind
            | flag(strip.count > 1, MANY)
            | flag(goes_on, GOES_ON)
            | flag(strip.start < self.end, BACK)
            | flag(strip.len == self.len, SAME);
        out.push(tag);
        put_varint(out, strip.start.abs_diff(self.end));
        if tag & SAME == 0 {
            put_varint(out, strip.len);
        }
        if tag & MANY != 0 {
            put_varint(out, strip.count);
            put_varint(out, strip.stride);
        }
        match strip.bytes {
            _ if goes_on => {}
            Bytes::Units { first, skip } => {
                put_varint(out, first.into());
                put_varint(out, skip.into());
            }
            Bytes::Inline { at } => put_varint(out, at.into()),
            Bytes::Zero => {}
        }
        self.follow(strip, stream);
    }

    fn follow(&mut self, strip: &Strip, stream: u64) {
        self.end = strip.end();
        self.len = strip.len;
        match strip.bytes {
            Bytes::Units { .. } => self.stream = stream + strip.total(),
            Bytes::Inline { at } => self.inline = u64::from(at) + strip.total(),
            Bytes::Zero => {}
        }
    }

    /// `ends` are the ends of the units; `inline` is the number of inline bytes in the batch.
    fn get(&mut self, r: &mut Reader, ends: &[u64], inline: u64) -> Result<Strip, Refused> {
        let tag = r.u8()?;
        if tag & !TAG != 0 {
            return Err(format!("has a strip of an unknown kind, {tag:#x}"));
        }
        let delta = r.varint()?;
        let start = match tag & BACK {
            0 => self.end.checked_add(delta),
            _ => self.end.checked_sub(delta),
        };
        let len = match tag & SAME {
            0 => r.varint()?,
            _ => self.len,
        };
        let (count, stride) = match tag & MANY {
            0 => (1, 0),
            _ => (r.varint()?, r.varint()?),
        };
        if len == 0 || count == 0 || count > 1 && stride < len {
            return Err("has a strip of overlapping or empty pieces".into());
        }
        let end = || {
            (count - 1)
                .checked_mul(stride)?
                .checked_add(start?)?
                .checked_add(len)
        };
        let (Some(start), Some(_)) = (start, end().filter(|end| *end <= MAX_OFFSET)) else {
            return Err("has a strip beyond the largest offset".into());
        };
        let total = len.checked_mul(count).filter(|total| *total <= MAX_OFFSET);
        let total = total.ok_or("has a strip of more bytes than a file can have")?;
        let mut stream = self.stream;
        let bytes = match tag & KIND {
            0 => {
                if tag & GOES_ON == 0 {
                    let (first, skip) = (r.varint_u32()?, r.varint_u32()?);
                    let begins = (first as usize)
                        .checked_sub(1)
                        .map_or(Some(&0), |b| ends.get(b));
                    let unit = begins.zip(ends.get(first as usize));
                    let unit = unit.filter(|(begin, end)| u64::from(skip) < *end - *begin);
                    let (begin, _) = unit.ok_or("has a strip that begins outside of its units")?;
                    stream = begin + u64::from(skip);
                }
                if stream + total > ends.last().copied().unwrap_or(0) {
                    return Err("has a strip that runs past its units".into());
                }
                let (first, skip) = batch::locate(ends, stream);
                Bytes::Units {
                    first: first as u32,
                    skip: skip as u32,
                }
            }
            INLINE => {
                let at = match tag & GOES_ON {
                    0 => r.varint()?,
                    _ => self.inline,
                };
                if at.checked_add(total).is_none_or(|end| end > inline) {
                    return Err("has a strip that runs past its bytes".into());
                }
                Bytes::Inline { at: at as u32 }
            }
            ZERO => Bytes::Zero,
            _ => return Err("has a strip of an unknown kind".into()),
        };
        let mut strip = Strip {
            start,
            len,
            stride,
            count,
            bytes,
        };
        self.follow(&strip, stream);
        if count > 1 && stride == len {
            strip = Strip {
                len: total,
                stride: 0,
                count: 1,
                ..strip
            };
        }
        if strip.count == 1 {
            strip.stride = 0;
        }
        Ok(strip)
    }
}

/// True if `next` can be one more unit of a run that ends with `last`.
pub(super) fn goes_on(last: &Unit, next: &Unit) -> bool {
    let behind = last.block.checked_add(last.blocks());
    next.subfile == last.subfile && next.len == last.len && Some(next.block) == behind
}

/// The block after the last of `units`, where the next unit is likely to begin.
pub(super) fn behind(units: &[Unit]) -> u64 {
    let last = units.last();
    last.map_or(0, |unit| u64::from(unit.block) + u64::from(unit.blocks()))
}

pub(super) fn put_run(out: &mut Vec<u8>, behind: u64, first: &Unit, count: u64) {
    put_varint(out, first.subfile.into());
    put_signed(out, i64::from(first.block) - behind as i64);
    put_varint(out, first.len.into());
    put_varint(out, count);
}

fn put_units(out: &mut Vec<u8>, units: &[Unit]) -> u32 {
    let (mut runs, mut done) = (0, 0);
    for run in units.chunk_by(goes_on) {
        put_run(out, behind(&units[..done]), &run[0], run.len() as u64);
        run.iter().for_each(|unit| put_u32(out, unit.crc));
        runs += 1;
        done += run.len();
    }
    runs
}

fn get_units(r: &mut Reader, runs: u32, count: u32, subfiles: u32) -> Result<Vec<Unit>, Refused> {
    let mut units: Vec<Unit> = Vec::with_capacity(count as usize);
    for _ in 0..runs {
        let (subfile, distance) = (r.varint_u32()?, r.signed()?);
        let block = distance.checked_add(behind(&units) as i64);
        let block = block.and_then(|block| u32::try_from(block).ok());
        let mut unit = Unit {
            subfile,
            block: block.ok_or("has a unit beyond what a subfile can hold")?,
            len: r.varint_u32()?,
            crc: 0,
        };
        let in_run = r.varint_u32()?;
        if unit.subfile >= subfiles {
            return Err("has a unit in a subfile that it does not name".into());
        }
        if unit.len == 0 || unit.len > UNIT_MAX {
            return Err(format!("has a unit of {} bytes", unit.len));
        }
        let end = u64::from(unit.block) + u64::from(in_run) * u64::from(unit.blocks());
        if end > 1 << 32 {
            return Err("has a unit beyond what a subfile can hold".into());
        }
        if in_run == 0 || units.len() + in_run as usize > count as usize {
            return Err("has another number of units than it says".into());
        }
        for _ in 0..in_run {
            unit.crc = r.u32()?;
            units.push(unit);
            unit.block = unit.block.wrapping_add(unit.blocks());
        }
    }
    if units.len() != count as usize {
        return Err("has another number of units than it says".into());
    }
    Ok(units)
}

fn get_subfiles(r: &mut Reader, count: u32) -> Result<Vec<SubfileRef>, Refused> {
    let mut subfiles = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (run, no, len) = (r.u32()?, r.u32()?, r.u8()?);
        let ost = std::str::from_utf8(r.take(len.into())?);
        let ost = ost.map_err(|_| "names a storage target that is not UTF-8")?;
        if !batch::is_target(ost) {
            return Err("names a storage target that cannot be shown".into());
        }
        subfiles.push(SubfileRef {
            run,
            no,
            ost: ost.into(),
        });
    }
    Ok(subfiles)
}

impl Batch {
    /// Encodes the batch for layout `id`. Refused if the result is longer than [`MAX_BATCH`].
    pub fn encode(&self, id: &LayoutId) -> Result<Vec<u8>, BuildError> {
        let head = &self.head;
        // A reader would refuse such a batch, and with it everything that this node publishes
        // afterwards.
        if head.epoch.0 > MAX_OFFSET {
            return Err(BuildError::Epoch);
        }
        let mut out = vec![0; FRAME];
        out.extend_from_slice(&VERSION.to_le_bytes());
        let flags = if head.cut.is_some() { HAS_CUT } else { 0 };
        out.extend_from_slice(&flags.to_le_bytes());
        put_u64(&mut out, head.epoch.0);
        put_u64(&mut out, head.period.0);
        put_u64(&mut out, head.upto.0);
        put_u64(&mut out, head.cut.unwrap_or(0));
        put_u64(&mut out, head.grown.max(self.data_end()));
        put_u64(&mut out, head.mtime.0);
        put_u32(&mut out, self.subfiles().len() as u32);
        let runs_at = out.len();
        put_u32(&mut out, 0);
        put_u32(&mut out, self.units().len() as u32);
        put_u32(&mut out, self.strips().len() as u32);
        put_u32(&mut out, self.inline().len() as u32);
        debug_assert_eq!(out.len(), FIXED);
        for subfile in self.subfiles() {
            put_u32(&mut out, subfile.run);
            put_u32(&mut out, subfile.no);
            out.push(subfile.ost.len() as u8);
            out.extend_from_slice(subfile.ost.as_bytes());
        }
        let runs = put_units(&mut out, self.units());
        out[runs_at..runs_at + 4].copy_from_slice(&runs.to_le_bytes());
        let mut codec = StripCodec::default();
        for strip in self.strips() {
            let stream = match strip.bytes {
                Bytes::Units { first, skip } => self.stream(first, skip),
                _ => 0,
            };
            codec.put(&mut out, strip, stream);
        }
        out.extend_from_slice(self.inline());
        if out.len() > MAX_BATCH {
            return Err(BuildError::Full);
        }
        seal(&mut out, id.salt());
        Ok(out)
    }
}

/// Fills in the frame.
pub(super) fn seal(batch: &mut [u8], salt: u32) {
    let len = batch.len() as u32;
    batch[0..4].copy_from_slice(&len.to_le_bytes());
    let crc = checksum::append(salt, &batch[FRAME..]);
    batch[4..8].copy_from_slice(&crc.to_le_bytes());
    let crc = checksum::append(salt, &batch[..8]);
    batch[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the batch at the front of `bytes`, which follow the header or another batch of layout
/// `id`.
pub fn decode(bytes: &[u8], id: &LayoutId) -> Decoded {
    let salt = id.salt();
    let mut r = Reader::new(bytes);
    let (Ok(len), Ok(crc), Ok(frame_crc)) = (r.u32(), r.u32(), r.u32()) else {
        return Decoded::Incomplete;
    };
    let len = len as usize;
    if frame_crc != checksum::append(salt, &bytes[..8]) {
        // After a power failure, or seen from another node, a file can have its new length before
        // its new bytes.
        if bytes.iter().all(|byte| *byte == 0) {
            return Decoded::Incomplete;
        }
        return Decoded::Damaged("is not what was written, or not of this layout".into());
    }
    if !(FIXED..=MAX_BATCH).contains(&len) {
        return Decoded::Damaged(format!("says that it is {len} bytes long"));
    }
    let Some(body) = bytes.get(FRAME..len) else {
        return Decoded::Incomplete;
    };
    if crc != checksum::append(salt, body) {
        return Decoded::Damaged("does not match its checksum".into());
    }
    match decode_body(body) {
        Ok(batch) => Decoded::Batch(Arc::new(batch), len),
        Err(why) => Decoded::Damaged(why),
    }
}

fn decode_body(body: &[u8]) -> Result<Batch, Refused> {
    let mut r = Reader::new(body);
    let version = r.u16()?;
    if version != VERSION {
        return Err(format!(
            "has version {version}; this forebay reads version {VERSION}"
        ));
    }
    let flags = r.u16()?;
    if flags & !HAS_CUT != 0 {
        return Err(format!("has unknown flags, {flags:#x}"));
    }
    let (epoch, period, upto) = (Epoch(r.u64()?), FileNo(r.u64()?), Seq(r.u64()?));
    let cut = bytes::offset(r.u64()?, "cut")?;
    let head = Head {
        epoch,
        period,
        upto,
        cut: (flags & HAS_CUT != 0).then_some(cut),
        grown: bytes::offset(r.u64()?, "size")?,
        mtime: Timestamp(r.u64()?),
    };
    if epoch.0 > MAX_OFFSET {
        return Err("has an epoch that leaves no room for others".into());
    }
    let [subfiles, runs, units, strips, inline] =
        [r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?];
    let least = [
        u64::from(subfiles) * SUBFILE_MIN,
        u64::from(units) * UNIT_MIN,
        u64::from(runs) * UNIT_MIN,
        u64::from(strips) * STRIP_MIN,
        u64::from(inline),
    ];
    if least.iter().sum::<u64>() > r.left() as u64 {
        return Err("says that it has more than there is".into());
    }
    let mut tables = Tables {
        subfiles: get_subfiles(&mut r, subfiles)?,
        units: get_units(&mut r, runs, units, subfiles)?,
        ..Tables::default()
    };
    let ends = batch::unit_ends(&tables.units);
    tables.strips = Vec::with_capacity(strips as usize);
    let mut codec = StripCodec::default();
    for _ in 0..strips {
        let strip = codec.get(&mut r, &ends, inline.into())?;
        tables.strips.push(strip);
    }
    tables.inline = r.take(inline as usize)?.to_vec();
    r.end()?;
    if batch::data_end(&tables.strips) > head.grown {
        return Err("has bytes beyond the size that it says".into());
    }
    Ok(Batch::new(head, tables, ends))
}

#[cfg(test)]
mod tests;
