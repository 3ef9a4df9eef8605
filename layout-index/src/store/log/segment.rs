//! One segment: a data file (payload, back to back) and a record file, both preallocated.
//!
//! Payload is written before the record that names it. So after a kill, a record in the page cache
//! implies that its payload is there too. After a power failure nothing orders the two files except
//! [`Segment::sync`], so replay checks the payload checksums of records that no `Synced` record
//! covers. New segments are new files, so old bytes are never seen through a reused one.

use super::record::{RECORD_LEN, Record};
use crate::checksum;
use crate::disk::{Disk, DiskFile};
use crate::error::{Result, StoreError};
use crate::extent::Unit;
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of the record file for a data file of `segment` bytes: enough for writes of 512 bytes on
/// average. A segment is full when either file is.
pub fn records_len(segment: u64) -> u64 {
    (segment / 8).max(64 * RECORD_LEN as u64)
}

#[derive(Debug)]
pub struct Segment {
    pub id: u32,
    pub salt: u32,
    path: PathBuf,
    data: Arc<dyn DiskFile>,
    records: Arc<dyn DiskFile>,
    /// Bytes on disk, counted against the store's capacity.
    footprint: AtomicU64,
    /// Payload bytes that some extent still needs.
    live: AtomicU64,
    /// Where the payload ends.
    written: AtomicU64,
    /// Record bytes appended, and how many of them are durable.
    end: AtomicU64,
    synced: Mutex<u64>,
    sealed: AtomicBool,
}

impl Segment {
    /// Creates a segment with room for `size` bytes of payload and `records_size` bytes of records.
    pub fn create(
        disk: &dyn Disk,
        dir: &Path,
        id: u32,
        salt: u32,
        size: u64,
        records_size: u64,
    ) -> Result<Segment> {
        let path = data_path(dir, id);
        let make = |path: &Path, len: u64| -> Result<Arc<dyn DiskFile>> {
            let file = disk
                .create(path)
                .map_err(|e| StoreError::io("create", path, e))?;
            file.allocate(0, 0, len)
                .map_err(|e| StoreError::io("allocate", path, e))?;
            Ok(file)
        };
        let record_path = record_path(dir, id);
        let files =
            make(&path, size).and_then(|data| Ok((data, make(&record_path, records_size)?)));
        let (data, records) = match files {
            Ok(files) => files,
            Err(error) => {
                // A segment with only one file would be taken for an empty one. A leftover costs
                // only space and is removed at the next start.
                for path in [&path, &record_path] {
                    if let Err(e) = disk.remove(path)
                        && e.kind() != io::ErrorKind::NotFound
                    {
                        tracing::warn!(path = %path.display(), error = %e, "could not remove");
                    }
                }
                return Err(error);
            }
        };
        Ok(Segment {
            id,
            salt,
            path,
            data,
            records,
            footprint: AtomicU64::new(size + records_size),
            live: AtomicU64::new(0),
            written: AtomicU64::new(0),
            end: AtomicU64::new(0),
            synced: Mutex::new(0),
            sealed: AtomicBool::new(false),
        })
    }

    /// Opens a segment that an earlier daemon wrote. It is never appended to.
    pub fn open(disk: &dyn Disk, dir: &Path, id: u32, salt: u32) -> Result<Segment> {
        let path = data_path(dir, id);
        let record_path = record_path(dir, id);
        let data = match disk.open(&path) {
            // A power failure interrupted the segment's creation or removal, or the file was
            // deleted by hand. Every use of its payload finds that it does not match its checksum.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Arc::new(Missing),
            other => other.map_err(|e| StoreError::io("open", &path, e))?,
        };
        let records = disk
            .open(&record_path)
            .map_err(|e| StoreError::io("open", &record_path, e))?;
        let data_len = data.size().map_err(|e| StoreError::io("stat", &path, e))?;
        let len = records
            .size()
            .map_err(|e| StoreError::io("stat", &record_path, e))?;
        Ok(Segment {
            id,
            salt,
            path,
            data,
            records,
            footprint: AtomicU64::new(data_len + len),
            live: AtomicU64::new(0),
            written: AtomicU64::new(data_len),
            end: AtomicU64::new(len),
            synced: Mutex::new(0),
            sealed: AtomicBool::new(true),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write_payload(&self, data: &[u8], offset: u64) -> Result<()> {
        self.data
            .write_at(&[IoSlice::new(data)], offset)
            .map_err(|e| StoreError::io("write", &self.path, e))?;
        self.written
            .store(offset + data.len() as u64, Ordering::Release);
        Ok(())
    }

    pub fn write_records(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.records
            .write_at(&[IoSlice::new(bytes)], offset)
            .map_err(|e| StoreError::io("write record", &self.path, e))?;
        self.end
            .store(offset + bytes.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Reads a whole unit and checks it. Returns `None` when it does not match its checksum.
    pub fn read_unit(&self, unit: &Unit, buf: &mut Vec<u8>) -> Result<Option<()>> {
        buf.resize(unit.len as usize, 0);
        let n = self
            .data
            .read_at(buf, u64::from(unit.offset))
            .map_err(|e| StoreError::io("read", &self.path, e))?;
        Ok((n == buf.len() && checksum::crc32c(buf) == unit.crc).then_some(()))
    }

    /// Reads payload bytes unchecked, for a checksum that is computed piece by piece.
    pub fn read_payload(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.data
            .read_at(buf, offset)
            .map_err(|e| StoreError::io("read", &self.path, e))
    }

    /// Reads records from byte `from` on. Returns fewer bytes than asked for at the end.
    pub fn read_records(&self, buf: &mut [u8], from: u64) -> Result<usize> {
        self.records
            .read_at(buf, from)
            .map_err(|e| StoreError::io("read records", &self.path, e))
    }

    /// Makes everything appended so far durable. Returns how many record bytes that is, or `None`
    /// if it already was. Concurrent callers share one pair of syncs.
    pub fn sync(&self) -> Result<Option<u64>> {
        let wanted = self.end.load(Ordering::Acquire);
        let mut synced = self.synced.lock();
        if *synced >= wanted {
            return Ok(None);
        }
        let upto = self.end.load(Ordering::Acquire);
        self.data
            .sync()
            .map_err(|e| StoreError::io("sync", &self.path, e))?;
        self.records
            .sync()
            .map_err(|e| StoreError::io("sync records", &self.path, e))?;
        *synced = upto;
        Ok(Some(upto))
    }

    pub fn is_synced(&self) -> bool {
        *self.synced.lock() >= self.end.load(Ordering::Acquire)
    }

    /// Sets how much of a segment that an earlier daemon left is in use. Called by recovery.
    pub fn found(&self, data_end: u64, records_end: u64) {
        self.written.store(data_end, Ordering::Relaxed);
        self.end.store(records_end, Ordering::Release);
    }

    /// Gives back preallocated room that will not be used and returns how much that was. Nothing is
    /// appended afterwards. If the daemon is killed between the two cuts, nothing is lost: what is
    /// cut off holds no record and no payload of one.
    pub fn seal(&self) -> Result<u64> {
        let data_end = self.written.load(Ordering::Acquire);
        let records_end = self.end.load(Ordering::Acquire);
        self.sealed.store(true, Ordering::Release);
        if self.footprint() <= data_end + records_end {
            return Ok(0);
        }
        self.data
            .set_len(data_end)
            .map_err(|e| StoreError::io("shorten", &self.path, e))?;
        self.records
            .set_len(records_end)
            .map_err(|e| StoreError::io("shorten records of", &self.path, e))?;
        let now = data_end + records_end;
        Ok(self
            .footprint
            .swap(now, Ordering::Relaxed)
            .saturating_sub(now))
    }

    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    pub fn remove(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        // Records go first: data without records is a leftover that the next start removes, but
        // records without data would be replayed although their payload is gone.
        let records = record_path(dir, self.id);
        for path in [&records, &self.path] {
            match disk.remove(path) {
                // An earlier attempt got this far.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(|e| StoreError::io("remove", path, e))?,
            }
        }
        Ok(())
    }

    pub fn footprint(&self) -> u64 {
        self.footprint.load(Ordering::Relaxed)
    }

    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub fn add_live(&self, bytes: u64) {
        self.live.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn sub_live(&self, bytes: u64) {
        let before = self.live.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(
            before >= bytes,
            "segment {} has fewer live bytes than freed",
            self.id
        );
    }
}

pub fn data_path(dir: &Path, id: u32) -> PathBuf {
    dir.join(format!("{id:08x}.data"))
}

pub fn record_path(dir: &Path, id: u32) -> PathBuf {
    dir.join(format!("{id:08x}.records"))
}

/// Stands for a data file that is not there.
#[derive(Debug)]
struct Missing;

impl DiskFile for Missing {
    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn write_at(&self, _bufs: &[IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// A missing file needs no sync. The records that survived are synced by themselves.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn allocate(&self, _mode: i32, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn set_mtime(&self, _mtime: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Walks the records of a segment in order. Slots that hold no valid record are yielded as
/// `Err(position)` when a valid one follows, and end the walk otherwise.
pub struct Records<'a> {
    segment: &'a Segment,
    buf: Vec<u8>,
    /// Position of `buf` in the record file, and of the next slot in `buf`.
    base: u64,
    at: usize,
    bad: Vec<u64>,
    ready: Option<(u64, Record)>,
    ended: bool,
}

const BATCH: usize = 1024 * RECORD_LEN;

impl<'a> Records<'a> {
    pub fn new(segment: &'a Segment) -> Records<'a> {
        Records {
            segment,
            buf: Vec::new(),
            base: 0,
            at: 0,
            bad: Vec::new(),
            ready: None,
            ended: false,
        }
    }

    /// After the walk, the position after the last valid record.
    pub fn tail(&self) -> u64 {
        self.bad
            .first()
            .copied()
            .unwrap_or(self.base + self.buf.len() as u64)
    }

    fn refill(&mut self) -> Result<bool> {
        self.base += self.buf.len() as u64;
        self.buf.resize(BATCH, 0);
        let n = self.segment.read_records(&mut self.buf, self.base)?;
        self.buf.truncate(n - n % RECORD_LEN);
        self.at = 0;
        Ok(!self.buf.is_empty())
    }

    /// The next record and its position, or the position of a damaged slot before one.
    pub fn advance(&mut self) -> Result<Option<Result<(u64, Record), u64>>> {
        if let Some(found) = self.ready.take() {
            if let Some(position) = self.bad.pop() {
                self.ready = Some(found);
                return Ok(Some(Err(position)));
            }
            return Ok(Some(Ok(found)));
        }
        while !self.ended {
            if self.at >= self.buf.len() && !self.refill()? {
                break;
            }
            let position = self.base + self.at as u64;
            let slot: &[u8; RECORD_LEN] = self.buf[self.at..self.at + RECORD_LEN]
                .try_into()
                .expect("a slot is 64 bytes");
            self.at += RECORD_LEN;
            match Record::decode(slot, self.segment.salt) {
                Some(record) => {
                    self.bad.reverse();
                    self.ready = Some((position, record));
                    return self.advance();
                }
                None => self.bad.push(position),
            }
        }
        self.ended = true;
        Ok(None)
    }
}
