//! Files that all workers write at once, each in its own blocks, as the ranks of an N-to-1 job do.
//!
//! The expected content is a plain file outside the mount that gets the same calls. Blocks are an odd number
//! of bytes long, so that neighbouring blocks share pages and stripes.

use crate::rng::Rng;
use crate::sys;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The transfer size of IO500's "hard" runs.
pub const BLOCK: u64 = 47008;
const BLOCKS_PER_WORKER: u64 = 24;

pub struct SharedFile {
    path: PathBuf,
    file: File,
    expected: File,
    worker: u64,
    workers: u64,
}

impl SharedFile {
    pub fn open(path: &Path, expected: &Path, worker: u64, workers: u64) -> io::Result<Self> {
        Ok(Self {
            path: path.into(),
            file: open(path)?,
            expected: open(expected)?,
            worker,
            workers,
        })
    }

    /// Does one operation on the worker's own blocks. Returns what it did, for the history.
    pub fn step(&mut self, rng: &mut Rng) -> Result<String, String> {
        let what = rng.below(100);
        let done = match what {
            0..50 => self.write(rng),
            50..60 => self.burst(rng),
            60..80 => self.read(rng),
            80..86 => self.zero(rng),
            86..92 => self.file.sync_all().map(|()| "fsync".into()),
            92..96 => self.file.sync_data().map(|()| "fdatasync".into()),
            _ => self.reopen(),
        };
        let name = self.path.display();
        done.map_err(|e| format!("{name}: {e}"))
            .map(|did| format!("{name}: {did}"))
    }

    /// Chooses a piece of one of the worker's blocks.
    fn piece(&self, rng: &mut Rng) -> (u64, u64) {
        let block = rng.below(BLOCKS_PER_WORKER) * self.workers + self.worker;
        let start = rng.below(BLOCK);
        let len = rng.size(BLOCK - start);
        (block * BLOCK + start, len)
    }

    fn put(&self, data: &[u8], at: u64) -> io::Result<()> {
        sys::write_all_at(&self.file, data, at)?;
        sys::write_all_at(&self.expected, data, at)
    }

    fn write(&self, rng: &mut Rng) -> io::Result<String> {
        let (at, len) = self.piece(rng);
        self.put(&rng.bytes(len as usize), at)?;
        Ok(format!("write {len} at {at}"))
    }

    /// Writes several whole blocks in a row, strided: the pattern that Forebay is made for.
    fn burst(&self, rng: &mut Rng) -> io::Result<String> {
        let first = rng.below(BLOCKS_PER_WORKER - 4);
        for i in first..first + 4 {
            let at = (i * self.workers + self.worker) * BLOCK;
            self.put(&rng.bytes(BLOCK as usize), at)?;
        }
        Ok(format!("burst from block {first}"))
    }

    fn read(&self, rng: &mut Rng) -> io::Result<String> {
        let (at, len) = self.piece(rng);
        // Another worker may grow the file at any moment, so the end of the file is not fixed: bytes that
        // both files have must be equal, and beyond these only zeros are allowed.
        let got = sys::read_at(&self.file, at, len as usize)?;
        let want = sys::read_at(&self.expected, at, len as usize)?;
        let both = got.len().min(want.len());
        if got[..both] != want[..both] || got[both..].iter().chain(&want[both..]).any(|b| *b != 0) {
            let first = (0..both).find(|i| got[*i] != want[*i]).unwrap_or(both);
            return Err(io::Error::other(format!(
                "read {len} at {at} differs at {}",
                at + first as u64
            )));
        }
        Ok(format!("read {len} at {at}"))
    }

    fn zero(&self, rng: &mut Rng) -> io::Result<String> {
        let (at, len) = self.piece(rng);
        let mode = *rng.pick(&[
            sys::PUNCH,
            libc::FALLOC_FL_ZERO_RANGE,
            libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
        ]);
        sys::fallocate(&self.file, mode, at, len)?;
        sys::fallocate(&self.expected, mode, at, len)?;
        Ok(format!("fallocate mode {mode} {len} at {at}"))
    }

    fn reopen(&mut self) -> io::Result<String> {
        self.file = open(&self.path)?;
        Ok("reopen".into())
    }

    /// Compares the whole file. Must be called only while no worker changes it.
    pub fn compare(&self) -> Result<(), String> {
        let read = |file: &File| -> io::Result<Vec<u8>> {
            let len = file.metadata()?.len();
            sys::read_at(file, 0, len as usize)
        };
        let name = self.path.display();
        let got = read(&self.file).map_err(|e| format!("{name}: {e}"))?;
        let want = read(&self.expected).map_err(|e| format!("{name}: {e}"))?;
        if got.len() != want.len() {
            return Err(format!(
                "{name} is {} bytes long, expected {}",
                got.len(),
                want.len()
            ));
        }
        match (0..got.len()).find(|i| got[*i] != want[*i]) {
            Some(i) => Err(format!(
                "{name} differs at {i} (block {} of worker {})",
                i as u64 / BLOCK,
                i as u64 / BLOCK % self.workers
            )),
            None => Ok(()),
        }
    }

    /// Cuts or grows the file. Must be called only while no other worker uses it.
    pub fn resize(&self, rng: &mut Rng) -> Result<(), String> {
        let size = rng.below(BLOCKS_PER_WORKER * self.workers * BLOCK);
        let both = || -> io::Result<()> {
            self.file.set_len(size)?;
            self.expected.set_len(size)
        };
        both().map_err(|e| format!("{}: truncate to {size}: {e}", self.path.display()))
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}
