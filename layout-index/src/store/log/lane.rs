//! One lane: the segment it appends to and where in it.

use super::record::{Kind, Payload, RECORD_LEN, Record, SubPlace};
use super::segment::{Segment, records_len};
use super::{Log, Room, Write};
use crate::checksum;
use crate::error::{Result, StoreError};
use crate::extent::UNIT_MAX;
use crate::types::{FileNo, Seq};
use std::sync::Arc;

/// Maximum number of records written with one call: eight units make the largest request that the
/// kernel sends.
const GROUP: usize = 8;

#[derive(Debug, Default)]
pub struct Lane {
    segment: Option<Arc<Segment>>,
    /// If `segment` is a spare one, the bytes of payload that it has room for. Spare segments take
    /// no users' data.
    spare: Option<u64>,
    data_at: u64,
    records_at: u64,
    chain: Option<Chain>,
    /// Segments that are sealed but perhaps not durable yet.
    sealed_unsynced: Vec<Arc<Segment>>,
}

/// The unit that ends at `Lane::data_at`, which the next record may extend.
#[derive(Clone, Copy, Debug)]
struct Chain {
    file: FileNo,
    file_end: u64,
    unit_len: u32,
    crc: u32,
}

impl Lane {
    pub fn append(
        &mut self,
        log: &Log,
        write: Write<'_>,
        mut placed: impl FnMut(&Segment, &Record),
    ) -> Result<()> {
        let mut rest = write.data;
        let mut offset = write.offset;
        while !rest.is_empty() {
            let segment = self.ready(log, rest.len().min(UNIT_MAX as usize) as u64, write.room)?;
            let room = self.spare.unwrap_or(log.space.segment_size()) - self.data_at;
            let slots =
                (records_len(log.space.segment_size()) - self.records_at) as usize / RECORD_LEN;
            let mut take = rest.len().min(GROUP * UNIT_MAX as usize);
            if take as u64 > room {
                take = (room as usize / UNIT_MAX as usize).max(1) * UNIT_MAX as usize;
            }
            take = take.min(rest.len()).min(slots * UNIT_MAX as usize);
            let (now, later) = rest.split_at(take);
            self.append_group(
                log,
                &segment,
                Write {
                    offset,
                    data: now,
                    ..write
                },
                &mut placed,
            )
            .inspect_err(|_| self.give_up(log))?;
            offset += take as u64;
            rest = later;
        }
        Ok(())
    }

    fn append_group(
        &mut self,
        log: &Log,
        segment: &Arc<Segment>,
        write: Write<'_>,
        placed: &mut impl FnMut(&Segment, &Record),
    ) -> Result<()> {
        segment.write_payload(write.data, self.data_at)?;
        let count = write.data.len().div_ceil(UNIT_MAX as usize);
        let first = log.take_seq(count as u64);
        let mut bytes = [0u8; GROUP * RECORD_LEN];
        let mut records = [Record::control(write.kind, write.file); GROUP];
        let mut chain = self.chain;
        let mut data_at = self.data_at;
        for (n, chunk) in write.data.chunks(UNIT_MAX as usize).enumerate() {
            let file_at = write.offset + (n * UNIT_MAX as usize) as u64;
            let len = chunk.len() as u32;
            let unit = match chain {
                Some(c)
                    if c.file == write.file
                        && c.file_end == file_at
                        && c.unit_len + len <= UNIT_MAX
                        && write.kind.is_data() =>
                {
                    Chain {
                        file_end: file_at + u64::from(len),
                        unit_len: c.unit_len + len,
                        crc: checksum::append(c.crc, chunk),
                        ..c
                    }
                }
                _ => Chain {
                    file: write.file,
                    file_end: file_at + u64::from(len),
                    unit_len: len,
                    crc: checksum::crc32c(chunk),
                },
            };
            let record = Record {
                kind: write.kind,
                seq: Seq(first + n as u64),
                file: write.file,
                offset: file_at,
                len: u64::from(len),
                time: write.time,
                arg: 0,
                payload: Payload {
                    offset: data_at as u32,
                    back: unit.unit_len - len,
                    crc: unit.crc,
                },
                sub: SubPlace::default(),
            };
            bytes[n * RECORD_LEN..][..RECORD_LEN].copy_from_slice(&record.encode(segment.salt));
            records[n] = record;
            chain = write.kind.is_data().then_some(unit);
            data_at += u64::from(len);
        }
        segment.write_records(&bytes[..count * RECORD_LEN], self.records_at)?;
        self.chain = chain;
        self.data_at = data_at;
        self.records_at += (count * RECORD_LEN) as u64;
        for record in &records[..count] {
            placed(segment, record);
        }
        Ok(())
    }

    /// As [`Lane::append_control`], but only if the lane has a segment with a free slot.
    pub fn append_control_here(&mut self, log: &Log, record: Record) -> Option<Result<Seq>> {
        let free = self.records_at + RECORD_LEN as u64 <= records_len(log.space.segment_size());
        (self.segment.is_some() && free).then(|| self.append_control(log, record))
    }

    pub fn append_control(&mut self, log: &Log, mut record: Record) -> Result<Seq> {
        let segment = self.ready(log, 0, Room::Control)?;
        record.seq = Seq(log.take_seq(1));
        segment
            .write_records(&record.encode(segment.salt), self.records_at)
            .inspect_err(|_| self.give_up(log))?;
        self.records_at += RECORD_LEN as u64;
        Ok(record.seq)
    }

    /// The segment to append to, with room for at least `data` bytes and one record.
    fn ready(&mut self, log: &Log, data: u64, room: Room) -> Result<Arc<Segment>> {
        let size = log.space.segment_size();
        if let Some(segment) = &self.segment {
            debug_assert!(!segment.is_sealed(), "segment {} may be freed", segment.id);
            let fits = self.data_at + data <= self.spare.unwrap_or(size)
                && (self.spare.is_none() || room == Room::Control)
                && self.records_at + RECORD_LEN as u64 <= records_len(size);
            if fits {
                return Ok(segment.clone());
            }
        }
        // The next segment is made before this one is sealed: without room for another segment,
        // small records still find a place here.
        let (next, spare) = match log.new_segment(room) {
            Ok(next) => (next, None),
            Err(error) if room == Room::Control => match log.take_spare() {
                Some(spare) => (spare, Some(log.spare_size())),
                None => return Err(error),
            },
            Err(error) => return Err(error),
        };
        self.seal(log)?;
        self.spare = spare;
        self.segment = Some(next.clone());
        Ok(next)
    }

    fn seal(&mut self, log: &Log) -> Result<()> {
        let Some(segment) = self.segment.take() else {
            return Ok(());
        };
        self.data_at = 0;
        self.records_at = 0;
        self.chain = None;
        self.sealed_unsynced.push(segment.clone());
        let given_back = segment.seal()?;
        log.space.release(given_back);
        Ok(())
    }

    /// Seals the segment after a failed write, so that nothing more goes into it.
    fn give_up(&mut self, log: &Log) {
        if let Err(error) = self.seal(log) {
            tracing::warn!(%error, "could not shorten a segment after a failed write");
        }
    }

    /// Seals the lane's segment if that holds records but no live payload.
    pub fn retire_if_dead(&mut self, log: &Log) -> Result<()> {
        match &self.segment {
            Some(s) if self.records_at > 0 && s.live() == 0 => self.seal(log),
            _ => Ok(()),
        }
    }

    pub fn unsynced(&self) -> Vec<Arc<Segment>> {
        self.sealed_unsynced
            .iter()
            .chain(&self.segment)
            .cloned()
            .collect()
    }

    /// Stops tracking a sealed segment once it is durable.
    pub fn forget_if_sealed(&mut self, segment: &Segment) {
        if segment.is_sealed() && segment.is_synced() {
            self.sealed_unsynced.retain(|s| s.id != segment.id);
        }
    }

    /// Records in the log that `segment` is durable up to `upto`, so that recovery can tell a torn
    /// tail from damage.
    pub fn note_synced(&mut self, log: &Log, segment: &Arc<Segment>, upto: u64) -> Result<()> {
        self.forget_if_sealed(segment);
        let slots_end = records_len(log.space.segment_size());
        if self.segment.is_none()
            || self.spare.is_some()
            || self.records_at + RECORD_LEN as u64 > slots_end
        {
            // Not worth a new segment, nor the room that spare segments hold for changes. Without
            // the marker recovery only checks more than it must.
            return Ok(());
        }
        let marker = Record {
            arg: upto,
            ..Record::control(Kind::Synced, FileNo(segment.id.into()))
        };
        match self.append_control(log, marker) {
            // Without room the marker is left out, and recovery checks more than it must.
            Err(StoreError::Full) => Ok(()),
            other => other.map(|_| ()),
        }
    }
}
