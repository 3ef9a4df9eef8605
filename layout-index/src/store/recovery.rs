//! Brings memory back to what the log says: rows and extents from the index, then every record
//! after its checkpoint, in order.
//!
//! | daemon killed … | what recovery finds |
//! |---|---|
//! | between payload and record | nothing: the write was not acknowledged |
//! | between record and reply | the write |
//! | between `Drained` and the next checkpoint | the extents, from index or log; `Drained` removes them |
//! | during a merge | older or newer rows; replay from the older checkpoint ends in the same state |
//! | while unused room is given back | the same records: only what lies behind the last of them is cut off |
//! | power lost | records that no `Synced` record covers count only if their payload matches |
//!
//! A damaged record in the durable part of the log is reported; its write is lost. Damaged payload
//! there is found when it is read: its bytes stay unreadable (`Checksum`) rather than show what was
//! there before.

use crate::checksum;
use crate::error::{Result, StoreError};
use crate::store::file::{DirtyPeriod, Drained, File, IntroPayload, row_of};
use crate::store::file_of;
use crate::store::index::SubfileRow;
use crate::store::log::record::{Kind, Record};
use crate::store::log::segment::{Records, Segment};
use crate::store::state::{Gone, StoreState};
use crate::store::subfile::Subfile;
use crate::types::{ByteRange, FileNo, Seq};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// Records replayed from the log because the index did not have them yet.
    pub replayed: u64,
    /// Records at the unsynced end of the log that a power failure tore. They are dropped, since no
    /// sync ever covered them.
    pub torn: u64,
    /// One sentence for each part of the log that was durable and is damaged or missing now.
    pub damaged: Vec<String>,
    pub files: usize,
    pub undrained: u64,
    pub seconds: f64,
}

struct Replay<'a> {
    state: &'a Arc<StoreState>,
    files: HashMap<FileNo, Arc<File>>,
    /// How far each segment is known to be durable, in bytes of records.
    durable: HashMap<u32, u64>,
    report: RecoveryReport,
}

pub(crate) fn recover(state: &Arc<StoreState>) -> Result<RecoveryReport> {
    let began = Instant::now();
    let mut replay = Replay {
        state,
        files: HashMap::new(),
        durable: HashMap::new(),
        report: RecoveryReport::default(),
    };
    let checkpoint = state.index.checkpoint()?;
    state.log.resume_after(checkpoint);
    replay.load_index()?;
    replay.run(checkpoint)?;
    let mut report = replay.report;
    state.behind.store(report.replayed > 0, Ordering::Relaxed);
    report.files = replay.files.len();
    report.undrained = state.undrained.load(Ordering::Relaxed);
    report.seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

/// Drops the data of files whose last name was gone before the crash; they have no handle any more
/// either. On a full disk they stay until the next start: nothing reads or drains them.
pub(crate) fn drop_unlinked(state: &Arc<StoreState>) -> Result<()> {
    for file in state.all_files().iter().filter(|file| file.is_unlinked()) {
        match file.discard() {
            Ok(()) | Err(StoreError::Full) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Replay<'_> {
    fn load_index(&mut self) -> Result<()> {
        for (no, row) in self.state.index.files()? {
            let file = file_of(self.state, row.id);
            let mut period =
                DirtyPeriod::new(no, row.clone(), self.state.tally(no, row.id, row.uid));
            period.row_changed = false;
            for row in row.subfiles {
                self.state.subfiles.add(Arc::new(Subfile::new(row)));
            }
            file.install(period);
            self.files.insert(no, file);
        }
        let (files, state) = (&self.files, self.state);
        let mut missing: HashMap<u32, u64> = HashMap::new();
        state.index.for_each_extent(|no, start, extent| {
            let Some(file) = files.get(&no) else { return };
            let inner = file.inner();
            let Some(period) = &inner.period else { return };
            period.tally.cold.fetch_add(1, Ordering::Relaxed);
            state.took(&period.tally, start, &extent);
            if let Some((segment, bytes)) = extent.payload(start) {
                match state.log.segment(segment) {
                    Some(segment) => segment.add_live(bytes),
                    None => *missing.entry(segment).or_default() += bytes,
                }
            }
        })?;
        self.report
            .damaged
            .extend(missing.into_iter().map(|(segment, bytes)| {
                format!("segment {segment} is missing and the index counts on {bytes} bytes of it")
            }));
        Ok(())
    }

    fn run(&mut self, checkpoint: Seq) -> Result<()> {
        let segments = self.state.log.segments();
        let mut tails = Vec::new();
        let mut ends = Vec::new();
        for segment in &segments {
            let (newest, end) = self.survey(segment)?;
            self.state.log.resume_after(newest);
            if newest > checkpoint {
                tails.push(segment);
            }
            ends.push(end);
        }
        for (segment, end) in segments.iter().zip(ends) {
            // A segment in which something is damaged stays as it was found.
            if let Some((data, records)) = end.filter(|(_, r)| !self.is_durable(segment, *r)) {
                segment.found(data, records);
            }
        }
        self.state
            .log
            .inherit(tails.iter().map(|s| Arc::clone(s)).collect());
        let mut readers: Vec<Reader<'_>> = tails.iter().map(|s| Reader::new(s)).collect();
        let mut heap = BinaryHeap::new();
        for (n, reader) in readers.iter_mut().enumerate() {
            if let Some(seq) = self.next_of(reader, checkpoint)? {
                heap.push(Reverse((seq, n)));
            }
        }
        while let Some(Reverse((_, n))) = heap.pop() {
            let reader = &mut readers[n];
            if let Some((position, record)) = reader.pending.take() {
                self.apply(reader, position, record)?;
            }
            if let Some(seq) = self.next_of(reader, checkpoint)? {
                heap.push(Reverse((seq, n)));
            }
        }
        Ok(())
    }

    /// First pass over a segment. Returns its newest number, and where payload and records end if
    /// there is no gap among them. Notes what its `Synced` records cover.
    fn survey(&mut self, segment: &Segment) -> Result<(Seq, Option<(u64, u64)>)> {
        let mut newest = Seq(0);
        let mut data_end = 0;
        let mut whole = true;
        let mut records = Records::new(segment);
        while let Some(found) = records.advance()? {
            let Ok((_, record)) = found else {
                whole = false;
                continue;
            };
            newest = newest.max(record.seq);
            if record.kind.has_payload() {
                data_end = data_end.max(u64::from(record.payload.offset) + record.len);
            }
            if record.kind == Kind::Synced {
                let upto = self.durable.entry(record.file.0 as u32).or_default();
                *upto = (*upto).max(record.arg);
            }
        }
        Ok((newest, whole.then(|| (data_end, records.tail()))))
    }

    /// Puts the segment's next record after the checkpoint into `pending` and returns its number.
    fn next_of(&mut self, reader: &mut Reader<'_>, checkpoint: Seq) -> Result<Option<Seq>> {
        while let Some(found) = reader.records.advance()? {
            match found {
                Ok((_, record)) if record.seq <= checkpoint => {}
                Ok((position, record)) => {
                    reader.pending = Some((position, record));
                    return Ok(Some(record.seq));
                }
                Err(position) => {
                    if self.is_durable(reader.segment, position) {
                        self.report.damaged.push(format!(
                            "segment {} record at {position}: unreadable; the write it stood for is lost",
                            reader.segment.id
                        ));
                    } else {
                        self.report.torn += 1;
                    }
                }
            }
        }
        let tail = reader.records.tail();
        if self.is_durable(reader.segment, tail) {
            self.report.damaged.push(format!(
                "segment {} records from {tail} on: unreadable; the writes they stood for are lost",
                reader.segment.id
            ));
        }
        Ok(None)
    }

    fn is_durable(&self, segment: &Segment, position: u64) -> bool {
        self.durable
            .get(&segment.id)
            .is_some_and(|upto| position < *upto)
    }

    fn apply(&mut self, reader: &mut Reader<'_>, position: u64, record: Record) -> Result<()> {
        let segment = reader.segment;
        if record.kind.has_payload()
            && !self.is_durable(segment, position)
            && !reader.payload_matches(&record)?
        {
            self.report.torn += 1;
            return Ok(());
        }
        self.report.replayed += 1;
        let state = self.state;
        if record.kind == Kind::Intro {
            return self.introduce(segment, &record);
        }
        if record.kind == Kind::Synced {
            return Ok(());
        }
        if record.kind == Kind::Subfile {
            return self.find_subfile(segment, &record);
        }
        if let Some(no) = subfile_no(&record) {
            // Also for dirty periods that have ended: numbers are not used twice.
            state.subfiles.next.fetch_max(no + 1, Ordering::Relaxed);
        }
        // If there was no introduction, the index already had the end of this dirty period.
        let Some(file) = self.files.get(&record.file).cloned() else {
            return Ok(());
        };
        let range = ByteRange {
            start: record.offset,
            end: record.offset + record.len,
        };
        if record.kind == Kind::Drained {
            return file
                .forget_drained(Drained {
                    range,
                    upto: Seq(record.arg),
                })
                .map(|_| ());
        }
        let mut inner = file.inner();
        let Some(period) = &mut inner.period else {
            return Ok(());
        };
        match record.kind {
            Kind::Write | Kind::Moved => {
                segment.add_live(record.len);
                let time = (record.kind == Kind::Write).then_some(record.time);
                period.put(state, record.offset, record.extent(segment.id), time);
            }
            Kind::Truncate => period.truncate(state, record.offset, record.seq, record.time),
            Kind::Zero => period.zero(state, range, record.arg == 1, record.seq, record.time),
            Kind::Mtime => period.set_mtime(record.time),
            Kind::Through => period.written_through(state, range, record.seq, record.time),
            Kind::Trimmed => period.trimmed(record.arg, record.offset, record.still_to_cut()),
            Kind::Unlinked => period.unlink(),
            Kind::Clean | Kind::Discard => {
                drop(inner);
                let pin = file.end_period(Gone::Elsewhere);
                self.files.remove(&record.file);
                drop(pin);
            }
            // A power failure may lose the record that names the subfile and leave this one. Then
            // the log still has the bytes, because it was not synced since.
            Kind::Subfiled if !period.has_subfile(record.sub.unit.subfile) => {
                self.report.torn += 1;
            }
            Kind::Subfiled => period.put(state, record.offset, record.sub_extent(), None),
            Kind::SubfileGone => period.drop_subfile(state, record.arg as u32),
            Kind::Intro | Kind::Drained | Kind::Synced | Kind::Subfile => {}
        }
        Ok(())
    }

    fn find_subfile(&mut self, segment: &Segment, record: &Record) -> Result<()> {
        match (payload_of::<SubfileRow>(segment, record)?, self.files.get(&record.file)) {
            (Ok(row), file) => {
                let next = &self.state.subfiles.next;
                next.fetch_max(row.no + 1, Ordering::Relaxed);
                if let Some(file) = file {
                    file.found_subfile(row);
                }
            }
            (Err(why), Some(file)) => self.report.damaged.push(format!(
                "segment {}: a subfile of file {} is unreadable ({why}); what is only in it cannot be read",
                segment.id,
                file.id()
            )),
            (Err(_), None) => {}
        }
        Ok(())
    }

    fn introduce(&mut self, segment: &Segment, record: &Record) -> Result<()> {
        let payload = match payload_of::<IntroPayload>(segment, record)? {
            Ok(payload) => payload,
            Err(why) => {
                self.report.damaged.push(format!(
                    "segment {}: the introduction of file number {} is unreadable ({why}); its writes are lost",
                    segment.id, record.file.0
                ));
                return Ok(());
            }
        };
        if self.files.contains_key(&record.file) {
            return Ok(());
        }
        let file = file_of(self.state, payload.id);
        // A dirty period begins only after the one before has ended. So that one has ended even if
        // a power failure lost the record of it.
        if let Some(older) = file.period_no() {
            self.files.remove(&older);
            drop(file.end_period(Gone::Elsewhere));
        }
        let row = row_of(&payload);
        let tally = self.state.tally(record.file, row.id, row.uid);
        file.install(DirtyPeriod::new(record.file, row, tally));
        self.files.insert(record.file, file);
        Ok(())
    }
}

fn subfile_no(record: &Record) -> Option<u32> {
    match record.kind {
        Kind::Subfiled => Some(record.sub.unit.subfile),
        Kind::SubfileGone => Some(record.arg as u32),
        _ => None,
    }
}

/// Decodes a record's payload, which is JSON, or says why it cannot.
fn payload_of<T: serde::de::DeserializeOwned>(
    segment: &Segment,
    record: &Record,
) -> Result<std::result::Result<T, String>> {
    let mut bytes = Vec::new();
    Ok(
        match segment.read_unit(&record.unit(segment.id), &mut bytes)? {
            Some(()) => serde_json::from_slice(&bytes).map_err(|e| e.to_string()),
            None => Err("it does not match its checksum".to_string()),
        },
    )
}

struct Reader<'a> {
    segment: &'a Arc<Segment>,
    records: Records<'a>,
    pending: Option<(u64, Record)>,
    /// The last payload that matched: where it ended and the checksum of its unit so far.
    verified: Option<(u32, u32)>,
    buf: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn new(segment: &'a Arc<Segment>) -> Reader<'a> {
        Reader {
            segment,
            records: Records::new(segment),
            pending: None,
            verified: None,
            buf: Vec::new(),
        }
    }

    /// Checks a payload against its record, continuing from the previous payload if both share a
    /// unit.
    fn payload_matches(&mut self, record: &Record) -> Result<bool> {
        let (start, seed) = match self.verified {
            Some((end, crc)) if record.payload.back > 0 && end == record.payload.offset => {
                (record.payload.offset, crc)
            }
            _ => (record.payload.offset - record.payload.back, 0),
        };
        let end = record.payload.offset + record.len as u32;
        self.buf.resize((end - start) as usize, 0);
        let n = self.segment.read_payload(&mut self.buf, u64::from(start))?;
        let good = n == self.buf.len() && checksum::append(seed, &self.buf) == record.payload.crc;
        self.verified = good.then_some((end, record.payload.crc));
        Ok(good)
    }
}
