//! The cold layer of the extent index, in RocksDB.
//!
//! RocksDB's own write-ahead log is off: the segment log plays that part. Every checkpoint ends
//! with a batch that stores its number, the sequence number up to which the log is reflected here.
//! If the daemon is killed at any moment, the database falls back to its last flush, whose
//! checkpoint is at or before everything else in it, and replay continues from there. Replaying a
//! record whose effect is already here ends in the same state, because records are replayed in
//! order.
//!
//! The index is never ahead of the data: callers sync the log before they hand a merge in, so that
//! even a flush that RocksDB starts by itself refers only to durable payload.
//!
//! # A full disk
//! Other programs may fill the disk that the store is on. A flush or a compaction then fails;
//! RocksDB keeps what it has in memory, refuses batches with the same error, and resumes by itself
//! (it checks the free space every five seconds). That is [`StoreError::Full`] here: the caller
//! makes the same call again later, and nothing that was written is lost. Every other error of a
//! write is permanent. RocksDB has no information log: Debian's build of it aborts the process at
//! the second line that does not fit.

pub mod codec;
mod merge;

use crate::error::{Result, StoreError};
use crate::extent::Extent;
use crate::types::{ByteRange, FileId, FileNo, Seq, Timestamp};
use codec::{decode_extent, extent_key, file_key};
pub use merge::{Change, Merged};
use rocksdb::{DB, DBRawIterator, FlushOptions, Options, ReadOptions, WriteBatch, WriteOptions};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::Path;

/// What the index keeps of a dirty period besides its extents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRow {
    pub id: FileId,
    pub uid: u32,
    pub gid: u32,
    pub handle: Vec<u8>,
    pub path: Vec<u8>,
    pub size: u64,
    pub mtime: Timestamp,
    /// Canonical bytes from here on must not be shown: the drain has yet to do a truncate.
    pub limit: u64,
    /// The file is at least this long, wherever its bytes end: because of a truncate, an allocation
    /// or zeros at its end that are neither drained nor published.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub grown: u64,
    /// Cuts that are neither drained nor published, each with its record's number. A cut goes when
    /// a later one is at or below it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shapes: Vec<(Seq, u64)>,
    /// The last record that cut, grew or zeroed the file.
    #[serde(default)]
    pub shaped: Seq,
    pub unlinked: bool,
    /// Subfiles with bytes of this dirty period that the log need not have any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subfiles: Vec<SubfileRow>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A subfile, as the log and the index know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubfileRow {
    /// Its number in this store. A number that neither a row nor a record in the log names any more
    /// may be used again; `name` is not.
    pub no: u32,
    /// The target's number and name when the subfile was made. The name is used to find the target
    /// again.
    pub ost: u32,
    pub ost_name: String,
    /// Name of the subfile on that target.
    pub name: String,
    /// Its owner. A file of that name with another owner is not this subfile.
    pub uid: u32,
}

#[derive(Debug)]
pub struct Index {
    db: DB,
}

impl Index {
    /// `memory` bounds RocksDB's share: block cache, write buffers, table readers.
    pub fn open(dir: &Path, memory: u64) -> Result<Index> {
        Ok(Index {
            db: DB::open(&options(memory), dir)?,
        })
    }

    /// Opens the index of a store that a daemon may be using.
    pub fn open_read_only(dir: &Path) -> Result<Index> {
        let mut options = options(32 << 20);
        options.create_if_missing(false);
        Ok(Index {
            db: DB::open_for_read_only(&options, dir, false)?,
        })
    }

    pub fn checkpoint(&self) -> Result<Seq> {
        let bytes = self.db.get(codec::CHECKPOINT)?;
        Ok(Seq(bytes
            .and_then(|b| Some(u64::from_le_bytes(b.try_into().ok()?)))
            .unwrap_or(0)))
    }

    /// All dirty periods that the index knows.
    pub fn files(&self) -> Result<Vec<(FileNo, FileRow)>> {
        let mut iter = self.db.raw_iterator();
        let mut files = Vec::new();
        iter.seek([codec::FILE]);
        while let Some((key, value)) = iter.item() {
            let Some(no) = codec::decode_file_key(key) else {
                break;
            };
            files.push((no, codec::decode_row(no, value)?));
            iter.next();
        }
        iter.status()?;
        Ok(files)
    }

    /// Calls `f` with every extent of every file, for accounting when the store is opened.
    pub fn for_each_extent(&self, mut f: impl FnMut(FileNo, u64, Extent)) -> Result<()> {
        let mut read = ReadOptions::default();
        read.fill_cache(false);
        let mut iter = self.db.raw_iterator_opt(read);
        iter.seek([codec::EXTENT]);
        while let Some((key, value)) = iter.item() {
            let Some((no, start)) = codec::decode_extent_key(key) else {
                break;
            };
            f(no, start, decode_extent(no, value)?);
            iter.next();
        }
        iter.status()?;
        Ok(())
    }

    /// The parts of a file's extents within `range`, in order.
    pub fn extents(&self, no: FileNo, range: ByteRange) -> Result<Vec<(u64, Extent)>> {
        Ok(self.extents_upto(no, range, usize::MAX)?.0)
    }

    /// The first `most` of these extents, and where the next one begins.
    pub fn extents_upto(
        &self,
        no: FileNo,
        range: ByteRange,
        most: usize,
    ) -> Result<(Vec<(u64, Extent)>, u64)> {
        let mut found = Vec::new();
        let mut upto = u64::MAX;
        walk(self.db.raw_iterator(), no, range, |start, extent| {
            if found.len() == most {
                upto = start;
                return ControlFlow::Break(());
            }
            found.push((start, extent));
            ControlFlow::Continue(())
        })?;
        Ok((found, upto))
    }

    /// Where the first extent that ends after `from` begins, but not before `from`.
    pub fn first_extent(&self, no: FileNo, from: u64) -> Result<Option<u64>> {
        let mut iter = self.db.raw_iterator();
        iter.seek_for_prev(extent_key(no, from));
        for _ in 0..2 {
            if let Some((key, value)) = iter.item()
                && let Some((n, start)) = codec::decode_extent_key(key)
                && n == no
                && decode_extent(no, value)?.end > from
            {
                return Ok(Some(start.max(from)));
            }
            iter.status()?;
            iter.seek(extent_key(no, from));
        }
        Ok(None)
    }

    /// Where the last extent of a dirty period ends; 0 if it has none.
    pub fn last_end(&self, no: FileNo) -> Result<u64> {
        let mut iter = self.db.raw_iterator();
        iter.seek_for_prev(extent_key(no, u64::MAX));
        let mut end = 0;
        if let Some((key, value)) = iter.item()
            && codec::decode_extent_key(key).is_some_and(|(n, _)| n == no)
        {
            end = decode_extent(no, value)?.end;
        }
        iter.status()?;
        Ok(end)
    }

    /// Makes the checkpoint and everything written before it durable.
    pub fn commit(&self, checkpoint: Seq) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(codec::CHECKPOINT, checkpoint.0.to_le_bytes());
        self.write(batch)?;
        let mut flush = FlushOptions::default();
        flush.set_wait(true);
        self.db.flush_opt(&flush).map_err(full_or_failed)
    }

    pub fn put_file(&self, no: FileNo, row: &FileRow) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(file_key(no), codec::encode_row(row)?);
        self.write(batch)
    }

    /// Removes a dirty period that has ended and calls `gone` with each extent that it still had.
    /// On `Full` nothing was removed and `gone` was not called.
    pub fn remove_file(&self, no: FileNo, mut gone: impl FnMut(u64, Extent)) -> Result<()> {
        // An iterator sees what was there when it was made.
        let before = self.db.raw_iterator();
        let mut batch = WriteBatch::default();
        batch.delete_range(extent_key(no, 0), extent_key(FileNo(no.0 + 1), 0));
        batch.delete(file_key(no));
        self.write(batch)?;
        walk(before, no, ByteRange::ALL, |start, extent| {
            gone(start, extent);
            ControlFlow::Continue(())
        })
    }

    fn write(&self, batch: WriteBatch) -> Result<()> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.db.write_opt(batch, &options).map_err(full_or_failed)
    }
}

/// RocksDB tells the kind of an I/O error only in its message.
fn full_or_failed(error: rocksdb::Error) -> StoreError {
    if error.to_string().contains("No space left on device") {
        StoreError::Full
    } else {
        StoreError::Index(error)
    }
}

/// Calls `f` with the parts of a file's extents within `range`, in order, until `f` breaks.
fn walk(
    mut iter: DBRawIterator<'_>,
    no: FileNo,
    range: ByteRange,
    mut f: impl FnMut(u64, Extent) -> ControlFlow<()>,
) -> Result<()> {
    iter.seek_for_prev(extent_key(no, range.start));
    let before = iter
        .key()
        .and_then(codec::decode_extent_key)
        .is_some_and(|(n, _)| n == no);
    if !before {
        iter.status()?;
        iter.seek(extent_key(no, range.start));
    }
    while let Some((key, value)) = iter.item() {
        match codec::decode_extent_key(key) {
            Some((n, start)) if n == no && start < range.end => {
                if let Some((start, extent)) = decode_extent(no, value)?.cut(start, range)
                    && f(start, extent).is_break()
                {
                    return Ok(());
                }
            }
            _ => break,
        }
        iter.next();
    }
    Ok(iter.status()?)
}

fn options(memory: u64) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(rocksdb::DBCompressionType::None);
    options.set_write_buffer_size((memory / 4) as usize);
    options.set_max_write_buffer_number(2);
    options.set_max_open_files(128);
    options.set_max_background_jobs(2);
    // RocksDB logs nothing at the level `Fatal`, so its log stays empty.
    options.set_log_level(rocksdb::LogLevel::Fatal);
    let mut table = rocksdb::BlockBasedOptions::default();
    table.set_block_cache(&rocksdb::Cache::new_lru_cache((memory / 2) as usize));
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(false);
    options.set_block_based_table_factory(&table);
    options
}
