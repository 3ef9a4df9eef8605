//! The bytes of one object on one OST, and the map of its existing pages.
//!
//! Data is kept in memory or, if the simulator was given a directory, in a sparse file. The map of
//! pages is in memory in both cases: it decides capacity, holes and read-modify-writes.

use crate::block::{BLOCK, Block};
use crate::locks::LockTable;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The unit of space.
pub const PAGE: u64 = 4096;
const CHUNK: u64 = BLOCK as u64;

/// 64 KiB of an object.
#[derive(Debug, Default)]
struct Chunk {
    /// One bit for each page that exists.
    pages: u16,
    /// `None` while all of it is zero, and always if the data is in a file.
    data: Option<Block>,
}

/// Returns the bits of the pages that `start..end` touches; both are within one chunk.
fn mask(start: u64, end: u64) -> u16 {
    let (first, last) = (start / PAGE, end.div_ceil(PAGE));
    (((1u32 << (last - first)) - 1) << first) as u16
}

/// Returns the bits of the pages that `start..end` covers completely.
fn inner_mask(start: u64, end: u64) -> u16 {
    let (first, last) = (start.div_ceil(PAGE), end / PAGE);
    if first < last {
        mask(first * PAGE, last * PAGE)
    } else {
        0
    }
}

/// Cuts `start..end` at chunk boundaries: yields each chunk's number and the range within it.
fn chunks(start: u64, end: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let numbers = start / CHUNK..if end > start {
        (end - 1) / CHUNK + 1
    } else {
        0
    };
    numbers.map(move |number| {
        let base = number * CHUNK;
        (number, start.max(base) - base, (end - base).min(CHUNK))
    })
}

#[derive(Debug, Default)]
pub struct Object {
    chunks: BTreeMap<u64, Chunk>,
    pub locks: LockTable,
    /// The file with the data, if it is not in memory.
    path: Option<PathBuf>,
}

impl Object {
    pub fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            ..Self::default()
        }
    }

    fn file(&self) -> io::Result<Option<File>> {
        let Some(path) = &self.path else {
            return Ok(None);
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).map(Some)
    }

    pub fn pages(&self) -> u64 {
        let counts = self
            .chunks
            .values()
            .map(|c| u64::from(c.pages.count_ones()));
        counts.sum()
    }

    /// Returns how many pages would be new if `start..end` were written.
    pub fn missing(&self, start: u64, end: u64) -> u64 {
        chunks(start, end)
            .map(|(number, from, to)| {
                let there = self.chunks.get(&number).map_or(0, |c| c.pages);
                u64::from((mask(from, to) & !there).count_ones())
            })
            .sum()
    }

    /// Returns whether any page of `start..end` exists.
    fn any(&self, start: u64, end: u64) -> bool {
        chunks(start, end).any(|(number, from, to)| {
            let chunk = self.chunks.get(&number);
            chunk.is_some_and(|chunk| chunk.pages & mask(from, to) != 0)
        })
    }

    /// Returns how many blocks of `unit` bytes hold data and would be changed only in part by a
    /// write of `start..end`; these must be read first. At most two.
    pub fn partial_blocks(&self, start: u64, end: u64, unit: u64) -> u64 {
        if unit == 0 || start >= end {
            return 0;
        }
        let (first, last) = (start / unit, (end - 1) / unit);
        let partial = |block: u64| {
            let (from, to) = (block * unit, (block + 1) * unit);
            (start > from || end < to) && self.any(from, to)
        };
        let mut count = u64::from(partial(first));
        if last != first {
            count += u64::from(partial(last));
        }
        count
    }

    /// Creates the pages of `start..end`; returns how many are new.
    pub fn allocate(&mut self, start: u64, end: u64) -> u64 {
        let mut new = 0;
        for (number, from, to) in chunks(start, end) {
            let chunk = self.chunks.entry(number).or_default();
            new += u64::from((mask(from, to) & !chunk.pages).count_ones());
            chunk.pages |= mask(from, to);
        }
        new
    }

    /// Writes `data`; returns how many pages are new.
    pub fn write(&mut self, at: u64, data: &[u8]) -> io::Result<u64> {
        let end = at + data.len() as u64;
        if let Some(file) = self.file()? {
            file.write_all_at(data, at)?;
            return Ok(self.allocate(at, end));
        }
        let new = self.allocate(at, end);
        let mut rest = data;
        for (number, from, to) in chunks(at, end) {
            let (now, later) = rest.split_at((to - from) as usize);
            rest = later;
            let chunk = self.chunks.entry(number).or_default();
            let bytes = chunk
                .data
                .get_or_insert_with(|| Block::take(now.len() < BLOCK));
            bytes[from as usize..to as usize].copy_from_slice(now);
        }
        Ok(new)
    }

    /// Fills `buf` with the object's bytes. `buf` must be zero, because holes are skipped.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = at + buf.len() as u64;
        let file = if self.any(at, end) {
            self.file()?
        } else {
            None
        };
        if let Some(file) = file {
            let mut done = 0;
            while done < buf.len() {
                match file.read_at(&mut buf[done..], at + done as u64)? {
                    0 => break,
                    n => done += n,
                }
            }
            return Ok(());
        }
        let mut rest = buf;
        for (number, from, to) in chunks(at, end) {
            let (now, later) = rest.split_at_mut((to - from) as usize);
            rest = later;
            if let Some(bytes) = self.chunks.get(&number).and_then(|c| c.data.as_ref()) {
                now.copy_from_slice(&bytes[from as usize..to as usize]);
            }
        }
        Ok(())
    }

    /// Makes `start..end` zero and frees the pages that it covers completely; returns how many.
    pub fn punch(&mut self, start: u64, end: u64) -> io::Result<u64> {
        if start >= end {
            return Ok(0);
        }
        if let Some(file) = self.file()? {
            zero(&file, start, end)?;
        }
        let mut freed = 0;
        let touched: Vec<u64> = self
            .chunks
            .range(start / CHUNK..=(end - 1) / CHUNK)
            .map(|(number, _)| *number)
            .collect();
        for number in touched {
            let Some(chunk) = self.chunks.get_mut(&number) else {
                continue;
            };
            let base = number * CHUNK;
            let (from, to) = (start.max(base) - base, (end - base).min(CHUNK));
            let gone = inner_mask(from, to) & chunk.pages;
            freed += u64::from(gone.count_ones());
            chunk.pages &= !gone;
            if let Some(bytes) = &mut chunk.data {
                bytes[from as usize..to as usize].fill(0);
            }
            if chunk.pages == 0 {
                self.chunks.remove(&number);
            }
        }
        Ok(freed)
    }

    /// Cuts the object at `len`; returns how many pages that frees.
    pub fn truncate(&mut self, len: u64) -> io::Result<u64> {
        self.punch(len, u64::MAX)
    }

    /// Returns the first existing byte at or after `at`.
    pub fn next_data(&self, at: u64) -> Option<u64> {
        for (number, chunk) in self.chunks.range(at / CHUNK..) {
            let base = number * CHUNK;
            let first = at.saturating_sub(base) / PAGE;
            let rest = u32::from(chunk.pages) >> first;
            if rest != 0 {
                let page = first + u64::from(rest.trailing_zeros());
                return Some(at.max(base + page * PAGE));
            }
        }
        None
    }

    /// Returns the end of the existing pages at `at`, or `at` itself if the page there does not
    /// exist.
    pub fn data_end(&self, at: u64) -> u64 {
        let mut end = at;
        loop {
            let chunk = self.chunks.get(&(end / CHUNK));
            let page = end % CHUNK / PAGE;
            if chunk.is_none_or(|chunk| chunk.pages & (1 << page) == 0) {
                return end;
            }
            end = (end / PAGE + 1) * PAGE;
        }
    }

    /// Removes the object's file, if there is one.
    pub fn remove(self) -> io::Result<()> {
        match self.path.map(std::fs::remove_file) {
            Some(Err(e)) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

fn zero(file: &File, start: u64, end: u64) -> io::Result<()> {
    let len = file.metadata()?.len();
    if start >= len {
        return Ok(());
    }
    if end >= len {
        return file.set_len(start);
    }
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes a descriptor that lives as long as `file`, and numbers.
    let rc = unsafe { libc::fallocate(file.as_raw_fd(), mode, start as i64, (end - start) as i64) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests;
