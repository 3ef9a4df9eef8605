//! The 64-byte record. Everything that the log says, except payload, is said in records.
//!
//! Records and payload live in two files of one segment. Because the size is fixed, a damaged
//! record costs only itself, and users' bytes can never be taken for a record. Byte table:
//! `docs/FORMAT.md`.

use crate::checksum;
use crate::extent::{Extent, Place, SubUnit, UNIT_MAX, Unit};
use crate::types::{FileNo, Seq, Timestamp};

pub const RECORD_LEN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Payload for a range of a file.
    Write = 1,
    /// A dirty period begins; the payload is its introduction.
    Intro = 2,
    /// The file's size became `offset`.
    Truncate = 3,
    /// The range reads as zeros; `arg` 1 lets it grow the file.
    Zero = 4,
    /// An explicit modification time.
    Mtime = 5,
    /// Records up to `arg` within the range are in the canonical file or published, synced.
    Drained = 6,
    /// The range was written to the canonical file directly.
    Through = 7,
    /// The canonical file was cut at `arg` and synced, or that cut was published, and the growth to
    /// `offset` with it. `time` is one more than the lowest cut that came since and is still to be
    /// done, or 0.
    Trimmed = 8,
    /// Everything is in the canonical file or published: the dirty period ends.
    Clean = 9,
    /// The last name is gone.
    Unlinked = 10,
    /// All undrained data was dropped: the dirty period ends.
    Discard = 11,
    /// Segment `file` is durable up to `arg` bytes of records, and so is the payload of these.
    Synced = 12,
    /// Payload that compaction moved here; not a write by the user.
    Moved = 13,
    /// A subfile was made for this dirty period; the payload says where.
    Subfile = 14,
    /// The range's newest bytes are in a subfile, synced: `sub` says where.
    Subfiled = 15,
    /// Nothing is in subfile `arg` any more: it may be removed.
    SubfileGone = 16,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::*;
        let all = [
            Write,
            Intro,
            Truncate,
            Zero,
            Mtime,
            Drained,
            Through,
            Trimmed,
            Clean,
            Unlinked,
            Discard,
            Synced,
            Moved,
            Subfile,
            Subfiled,
            SubfileGone,
        ];
        all.into_iter().find(|k| *k as u8 == byte)
    }

    /// True if the payload is users' data.
    pub fn is_data(self) -> bool {
        matches!(self, Kind::Write | Kind::Moved)
    }

    pub fn has_payload(self) -> bool {
        matches!(
            self,
            Kind::Write | Kind::Intro | Kind::Moved | Kind::Subfile
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub kind: Kind,
    pub seq: Seq,
    pub file: FileNo,
    pub offset: u64,
    pub len: u64,
    pub time: Timestamp,
    /// The meaning depends on the kind; 0 for kinds with payload.
    pub arg: u64,
    pub payload: Payload,
    /// Used by `Subfiled` only.
    pub sub: SubPlace,
}

/// A place that is `skip` bytes into a unit of a subfile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubPlace {
    pub unit: SubUnit,
    pub skip: u32,
}

/// Where a record's payload is: the last `len` bytes of a unit that began `back` bytes earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    pub offset: u32,
    pub back: u32,
    /// crc32c of the unit from its start to the end of this payload.
    pub crc: u32,
}

impl Record {
    pub fn control(kind: Kind, file: FileNo) -> Record {
        Record {
            kind,
            seq: Seq(0),
            file,
            offset: 0,
            len: 0,
            time: Timestamp(0),
            arg: 0,
            payload: Payload::default(),
            sub: SubPlace::default(),
        }
    }

    /// The unit in `segment` that holds this record's payload, as far as it had grown.
    pub fn unit(&self, segment: u32) -> Unit {
        Unit {
            segment,
            offset: self.payload.offset - self.payload.back,
            len: self.payload.back + self.len as u32,
            crc: self.payload.crc,
        }
    }

    /// For `Trimmed`: the cut that is still to be done.
    pub fn still_to_cut(&self) -> u64 {
        self.time.0.checked_sub(1).unwrap_or(u64::MAX)
    }

    /// The extent that a write makes.
    pub fn extent(&self, segment: u32) -> Extent {
        Extent {
            end: self.offset + self.len,
            seq: self.seq,
            place: Place::Log {
                unit: self.unit(segment),
                skip: self.payload.back,
            },
        }
    }

    /// The extent that `Subfiled` makes.
    pub fn sub_extent(&self) -> Extent {
        Extent {
            end: self.offset + self.len,
            seq: self.seq,
            place: Place::Subfile {
                unit: self.sub.unit,
                skip: self.sub.skip,
            },
        }
    }

    /// `salt` ties the record to its store and segment.
    pub fn encode(&self, salt: u32) -> [u8; RECORD_LEN] {
        let mut b = [0u8; RECORD_LEN];
        b[4] = self.kind as u8;
        b[8..16].copy_from_slice(&self.seq.0.to_le_bytes());
        b[16..24].copy_from_slice(&self.file.0.to_le_bytes());
        b[24..32].copy_from_slice(&self.offset.to_le_bytes());
        b[32..40].copy_from_slice(&self.len.to_le_bytes());
        b[40..48].copy_from_slice(&self.time.0.to_le_bytes());
        if self.kind == Kind::Subfiled {
            let SubPlace { unit, skip } = self.sub;
            let words = [unit.block, unit.len, unit.subfile, skip, unit.crc];
            for (place, word) in b[40..60].chunks_exact_mut(4).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        } else if self.kind.has_payload() {
            b[48..52].copy_from_slice(&self.payload.offset.to_le_bytes());
            b[52..56].copy_from_slice(&self.payload.back.to_le_bytes());
            b[56..60].copy_from_slice(&self.payload.crc.to_le_bytes());
        } else {
            b[48..56].copy_from_slice(&self.arg.to_le_bytes());
        }
        let crc = checksum::append(salt, &b[4..]);
        b[0..4].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Returns `None` when these bytes are not a record of this store and segment, or do not make
    /// sense.
    pub fn decode(b: &[u8; RECORD_LEN], salt: u32) -> Option<Record> {
        let u32_at = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if u32_at(0) != checksum::append(salt, &b[4..]) {
            return None;
        }
        let kind = Kind::from_byte(b[4])?;
        let mut record = Record {
            kind,
            seq: Seq(u64_at(8)),
            file: FileNo(u64_at(16)),
            offset: u64_at(24),
            len: u64_at(32),
            time: Timestamp(u64_at(40)),
            arg: 0,
            payload: Payload::default(),
            sub: SubPlace::default(),
        };
        record.offset.checked_add(record.len)?;
        if kind == Kind::Subfiled {
            record.time = Timestamp(0);
            let unit = SubUnit {
                block: u32_at(40),
                len: u32_at(44),
                subfile: u32_at(48),
                crc: u32_at(56),
            };
            let skip = u32_at(52);
            let within = u64::from(skip).checked_add(record.len)? <= u64::from(unit.len);
            if record.len == 0 || !within || unit.len > UNIT_MAX {
                return None;
            }
            record.sub = SubPlace { unit, skip };
        } else if kind.has_payload() {
            record.payload = Payload {
                offset: u32_at(48),
                back: u32_at(52),
                crc: u32_at(56),
            };
            let len = u32::try_from(record.len).ok()?;
            record.payload.offset.checked_sub(record.payload.back)?;
            record.payload.offset.checked_add(len)?;
            record.payload.back.checked_add(len)?;
        } else {
            record.arg = u64_at(48);
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Record {
        Record {
            kind: Kind::Write,
            seq: Seq(7),
            file: FileNo(3),
            offset: 1 << 40,
            len: 4096,
            time: Timestamp(123),
            arg: 0,
            payload: Payload {
                offset: 8192,
                back: 4096,
                crc: 0xdead_beef,
            },
            sub: SubPlace::default(),
        }
    }

    fn subfiled() -> Record {
        Record {
            offset: 1 << 40,
            len: 300,
            sub: SubPlace {
                unit: SubUnit {
                    subfile: 7,
                    block: u32::MAX,
                    len: 400,
                    crc: 0xdead_beef,
                },
                skip: 100,
            },
            ..Record::control(Kind::Subfiled, FileNo(3))
        }
    }

    #[test]
    fn round_trip() {
        let write = sample();
        assert_eq!(Record::decode(&write.encode(9), 9), Some(write));
        let drained = Record {
            arg: 99,
            len: u64::MAX / 2,
            ..Record::control(Kind::Drained, FileNo(1))
        };
        assert_eq!(Record::decode(&drained.encode(9), 9), Some(drained));
        assert_eq!(Record::decode(&subfiled().encode(9), 9), Some(subfiled()));
    }

    #[test]
    fn a_piece_that_sticks_out_of_its_unit_is_refused() {
        let mut record = subfiled();
        record.len += 1;
        assert_eq!(Record::decode(&record.encode(9), 9), None);
        record.sub.unit.len = u32::MAX;
        assert_eq!(Record::decode(&record.encode(9), 9), None);
    }

    #[test]
    fn a_record_of_another_segment_is_refused() {
        assert_eq!(Record::decode(&sample().encode(9), 10), None);
        assert_eq!(Record::decode(&[0; RECORD_LEN], 9), None);
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(bit in 0usize..RECORD_LEN * 8) {
            let mut bytes = sample().encode(9);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Record::decode(&bytes, 9), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::array::uniform32(any::<u8>()), salt: u32) {
            let mut b = [0u8; RECORD_LEN];
            b[..32].copy_from_slice(&bytes);
            b[32..].copy_from_slice(&bytes);
            let crc = checksum::append(salt, &b[4..]);
            b[0..4].copy_from_slice(&crc.to_le_bytes());
            if let Some(record) = Record::decode(&b, salt)
                && record.kind.has_payload() {
                    record.unit(1);
                }
        }
    }
}
