//! Keys and values of the index as bytes. Keys sort by file, then by offset. See `docs/FORMAT.md`.

use super::FileRow;
use crate::error::{Result, StoreError};
use crate::extent::{Extent, Place, SubUnit, Unit};
use crate::types::{FileNo, Seq};

pub const CHECKPOINT: &[u8] = b"c";
pub const FILE: u8 = b'f';
pub const EXTENT: u8 = b'x';

const VALUE_LEN: usize = 37;

pub fn file_key(no: FileNo) -> [u8; 9] {
    let mut key = [FILE; 9];
    key[1..].copy_from_slice(&no.0.to_be_bytes());
    key
}

pub fn decode_file_key(key: &[u8]) -> Option<FileNo> {
    let (&FILE, no) = key.split_first()? else {
        return None;
    };
    Some(FileNo(u64::from_be_bytes(no.try_into().ok()?)))
}

pub fn extent_key(no: FileNo, start: u64) -> [u8; 17] {
    let mut key = [EXTENT; 17];
    key[1..9].copy_from_slice(&no.0.to_be_bytes());
    key[9..].copy_from_slice(&start.to_be_bytes());
    key
}

pub fn decode_extent_key(key: &[u8]) -> Option<(FileNo, u64)> {
    let (&EXTENT, rest) = key.split_first()? else {
        return None;
    };
    let rest: &[u8; 16] = rest.try_into().ok()?;
    let (no, start) = rest.split_at(8);
    let number = |b: &[u8]| b.iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
    Some((FileNo(number(no)), number(start)))
}

pub fn encode_extent(extent: &Extent) -> [u8; VALUE_LEN] {
    let mut v = [0; VALUE_LEN];
    v[0..8].copy_from_slice(&extent.end.to_le_bytes());
    v[8..16].copy_from_slice(&extent.seq.0.to_le_bytes());
    match extent.place {
        Place::Log { unit, skip } => {
            v[16] = 1;
            words(
                &mut v,
                [unit.segment, unit.offset, unit.len, unit.crc, skip],
            );
        }
        Place::Zero => v[16] = 2,
        Place::Canonical => v[16] = 3,
        Place::Subfile { unit, skip } => {
            v[16] = 4;
            words(&mut v, [unit.subfile, unit.block, unit.len, unit.crc, skip]);
        }
    }
    v
}

fn words(v: &mut [u8; VALUE_LEN], words: [u32; 5]) {
    for (place, word) in v[17..].chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

pub fn decode_extent(no: FileNo, value: &[u8]) -> Result<Extent> {
    let bad = || {
        StoreError::Unusable(format!(
            "the extent index holds a damaged extent of file number {}; run `forebay recover` with --dry-run to see what can be read",
            no.0
        ))
    };
    let v: &[u8; VALUE_LEN] = value.try_into().map_err(|_| bad())?;
    let word = |at: usize| u32::from_le_bytes([v[at], v[at + 1], v[at + 2], v[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let place = match v[16] {
        1 => Place::Log {
            unit: Unit {
                segment: word(17),
                offset: word(21),
                len: word(25),
                crc: word(29),
            },
            skip: word(33),
        },
        2 => Place::Zero,
        3 => Place::Canonical,
        4 => Place::Subfile {
            unit: SubUnit {
                subfile: word(17),
                block: word(21),
                len: word(25),
                crc: word(29),
            },
            skip: word(33),
        },
        _ => return Err(bad()),
    };
    Ok(Extent {
        end: long(0),
        seq: Seq(long(8)),
        place,
    })
}

pub fn encode_row(row: &FileRow) -> Result<Vec<u8>> {
    serde_json::to_vec(row).map_err(|e| StoreError::Unusable(format!("file {}: {e}", row.id)))
}

pub fn decode_row(no: FileNo, value: &[u8]) -> Result<FileRow> {
    serde_json::from_slice(value).map_err(|e| {
        StoreError::Unusable(format!(
            "the extent index holds a damaged row for file number {}: {e}",
            no.0
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_and_keys_round_trip() {
        let unit = Unit {
            segment: 1,
            offset: 2,
            len: 3,
            crc: 0xffff_fffe,
        };
        let sub = SubUnit {
            subfile: 6,
            block: u32::MAX,
            len: 7,
            crc: 8,
        };
        for place in [
            Place::Log { unit, skip: 5 },
            Place::Zero,
            Place::Canonical,
            Place::Subfile { unit: sub, skip: 9 },
        ] {
            let extent = Extent {
                end: u64::MAX - 1,
                seq: Seq(1 << 50),
                place,
            };
            assert_eq!(
                decode_extent(FileNo(1), &encode_extent(&extent)).unwrap(),
                extent
            );
        }
        assert_eq!(
            decode_extent_key(&extent_key(FileNo(9), 1 << 40)),
            Some((FileNo(9), 1 << 40))
        );
        assert_eq!(decode_file_key(&file_key(FileNo(9))), Some(FileNo(9)));
        assert!(decode_extent(FileNo(1), &[0; 36]).is_err());
        assert!(decode_extent(FileNo(1), &[0; 37]).is_err());
    }
}
