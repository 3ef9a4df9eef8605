//! The expected content of a file, and the operations that led to it.

use crate::sys;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Number of operations that a failure shows.
const SHOWN: usize = 160;

/// Tolerance for times, in nanoseconds: a backing may date a change by a clock that ticks, and a store by one
/// that does not.
const TICK: i64 = 20_000_000;

/// Number of holes that a check looks at.
const HOLES: usize = 12;

#[derive(Clone, Debug, Default)]
pub struct Content {
    pub data: Vec<u8>,
    /// As the last writer saw it.
    pub mtime: i64,
    pub links: u64,
    history: VecDeque<String>,
}

impl Content {
    /// An empty file with one name.
    pub fn new() -> Self {
        Self {
            links: 1,
            ..Self::default()
        }
    }

    pub fn note(&mut self, what: String) {
        if self.history.len() == SHOWN {
            self.history.pop_front();
        }
        self.history.push_back(what);
    }

    pub fn history(&self) -> String {
        let lines: Vec<&str> = self.history.iter().map(String::as_str).collect();
        lines.join("\n  ")
    }

    pub fn size(&self) -> u64 {
        self.data.len() as u64
    }

    /// Writes `bytes` at `at`. A write of no bytes does not make the file longer.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (at, end) = (at as usize, at as usize + bytes.len());
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[at..end].copy_from_slice(bytes);
    }

    pub fn cut(&mut self, size: u64) {
        self.data.resize(size as usize, 0);
    }

    /// Zeroes a range without making the file longer.
    pub fn punch(&mut self, at: u64, len: u64) {
        let end = (at + len).min(self.size()) as usize;
        if (at as usize) < end {
            self.data[at as usize..end].fill(0);
        }
    }

    pub fn slice(&self, at: u64, len: u64) -> &[u8] {
        let end = (at + len).min(self.size()) as usize;
        self.data.get(at as usize..end).unwrap_or(&[])
    }

    /// Notes a new mtime. It must not go back, and may only change with a change of the file.
    pub fn dated(&mut self, mtime: i64, changed: bool) -> Result<(), String> {
        let old = std::mem::replace(&mut self.mtime, mtime);
        if !changed && old != mtime {
            return Err(format!("mtime {mtime} without a change since {old}"));
        }
        if mtime < old - TICK {
            return Err(format!("mtime {mtime} is before the last one, {old}"));
        }
        Ok(())
    }

    /// Compares what was read at `at` with the part of the `len` bytes there that exists.
    pub fn compare(&self, at: u64, len: u64, got: &[u8]) -> Result<(), String> {
        let want = self.slice(at, len);
        if got == want {
            return Ok(());
        }
        let both = got.len().min(want.len());
        let first = (0..both).find(|i| got[*i] != want[*i]).unwrap_or(both);
        let wrong = (first..both).filter(|i| got[*i] != want[*i]).count();
        let show = |bytes: &[u8]| format!("{:02x?}", &bytes[first..bytes.len().min(first + 12)]);
        Err(format!(
            "read {} of {} bytes at {at}; first difference at {}: got {}, expected {}; {wrong} bytes differ",
            got.len(),
            want.len(),
            at + first as u64,
            show(got),
            show(want),
        ))
    }

    /// Checks the whole file through an open handle.
    pub fn check(&self, file: &File) -> Result<(), String> {
        let meta = file.metadata().map_err(|e| format!("stat: {e}"))?;
        let len = self.size().max(meta.len()) + 1;
        let got = sys::read_at(file, 0, len as usize).map_err(|e| format!("read: {e}"))?;
        self.compare(0, len, &got)?;
        if meta.len() != self.size() {
            return Err(format!("size {}, expected {}", meta.len(), self.size()));
        }
        let end = sys::seek(file, 0, libc::SEEK_END).map_err(|e| format!("seek: {e}"))?;
        if end != Some(self.size()) {
            return Err(format!("its end is {end:?}, expected {}", self.size()));
        }
        self.check_blocks(file, &meta)?;
        if sys::mtime(&meta) != self.mtime {
            let (got, want) = (sys::mtime(&meta), self.mtime);
            return Err(format!("mtime {got}, expected {want}"));
        }
        if meta.nlink() != self.links {
            let (got, want) = (meta.nlink(), self.links);
            return Err(format!("{got} links, expected {want}"));
        }
        Ok(())
    }

    /// Checks that tools that leave out holes lose no data: there are blocks for all of the data, and no hole
    /// has data in it.
    fn check_blocks(&self, file: &File, meta: &std::fs::Metadata) -> Result<(), String> {
        let data = self.data.iter().filter(|byte| **byte != 0).count() as u64;
        let allocated = meta.blocks() * 512;
        if allocated < data {
            return Err(format!("{allocated} bytes in blocks, {data} of data"));
        }
        let mut at = 0;
        for _ in 0..HOLES {
            let seek = |from, whence| {
                sys::seek(file, from, whence).map_err(|e| format!("seek from {from}: {e}"))
            };
            let next = seek(at, libc::SEEK_DATA)?.unwrap_or(self.size());
            let hole = self.slice(at, next.saturating_sub(at));
            if let Some(i) = hole.iter().position(|byte| *byte != 0) {
                return Err(format!("a hole from {at} to {next} has data at byte {i}"));
            }
            if next >= self.size() {
                break;
            }
            at = seek(next, libc::SEEK_HOLE)?.unwrap_or(self.size());
        }
        Ok(())
    }

    /// Opens the file, which is a sync point, and checks all of it.
    pub fn check_at(&self, path: &Path, writable: bool) -> Result<(), String> {
        let file = OpenOptions::new().read(true).write(writable).open(path);
        let file = file.map_err(|e| format!("open {}: {e}", path.display()))?;
        let checked = self.check(&file);
        sys::close(file).map_err(|e| format!("close {}: {e}", path.display()))?;
        checked.map_err(|e| format!("{}: {e}", path.display()))
    }
}
