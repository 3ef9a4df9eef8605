//! The bytes that a handle has read last, kept until they are written back.
//!
//! There is one window of the file for each handle. Reads that follow each other without a gap extend it (the
//! kernel cuts a request of 16 MiB into pieces); any other read starts a new window. The window has the bytes
//! that were read, and the offset where the read was to end in case the file ended before.

use layout_index::{ByteRange, File, Watch};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of bytes that one handle remembers: twice the buffer with which MPI libraries read, change
/// and write back.
const MOST: usize = 32 << 20;

/// Maximum number of bytes that all handles of the process remember together. A handle that would exceed this
/// remembers nothing, and all that it writes back counts as written.
const MOST_OF_ALL: u64 = 256 << 20;

/// Up to this many runs of a write are told apart byte by byte. Data that has nothing to do with the data
/// before it gives one run per 256 bytes by chance, which is within this limit.
fn exact(len: usize) -> usize {
    32 + len / 64
}

/// Number of bytes that are compared at once.
const STEP: usize = 256;

/// In a write with more runs than that, a gap between two runs that is shorter than this counts as changed:
/// such gaps are where recomputed numbers are equal to the old ones by chance. (Otherwise the equal exponents
/// of a million numbers would split the write into a million records.)
const WORD: usize = 8;

static REMEMBERED: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
pub struct Recent {
    /// True if there is a window. Writers through handles that never read look at this flag and nothing else.
    any: AtomicBool,
    window: Mutex<Option<Window>>,
}

struct Window {
    start: u64,
    bytes: Vec<u8>,
    /// Offset where the last read was to end: beyond the bytes if the file ended before.
    asked: u64,
    watch: Watch,
    sync_points: u64,
    size: Remembered,
}

/// Counts the remembered bytes of a window in the total of the process.
struct Remembered(u64);

impl Remembered {
    fn try_add(&mut self, bytes: u64) -> bool {
        let before = REMEMBERED.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > MOST_OF_ALL {
            REMEMBERED.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.0 += bytes;
        true
    }
}

impl Drop for Remembered {
    fn drop(&mut self) {
        REMEMBERED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A read that is under way.
pub struct Reading {
    watch: Watch,
    sync_points: u64,
}

impl Reading {
    /// Must be called before the read looks at any data.
    pub fn begin(file: &Arc<File>, range: ByteRange) -> Reading {
        Reading {
            watch: file.watch(range),
            sync_points: file.sync_points(),
        }
    }
}

/// How a write differs from what was read.
pub struct Changes<'a> {
    /// The parts of the write that differ from what was read; everything between them is unchanged. `None` if
    /// there was a sync point between the read and the write.
    pub runs: Option<Vec<Range<usize>>>,
    /// The write extends beyond where the file ended for the read.
    pub past_the_end: bool,
    pub watch: &'a Watch,
}

impl Recent {
    pub fn remember(&self, reading: Reading, offset: u64, bytes: &[u8], asked: u64) {
        let mut window = self.window.lock();
        let kept = match &mut *window {
            Some(last) if last.is_followed_by(&reading, offset, bytes) => {
                last.go_on(reading, bytes, asked)
            }
            _ => {
                *window = Window::new(reading, offset, bytes, asked);
                window.is_some()
            }
        };
        if !kept {
            *window = None;
        }
        self.any.store(kept, Ordering::Release);
    }

    /// True if a write of this range may lie within what was read last. Never waits.
    pub fn may_cover(&self, range: ByteRange) -> bool {
        let covers = |w: &Window| w.covers(range);
        self.any.load(Ordering::Acquire)
            && match self.window.try_lock() {
                Some(window) => window.as_ref().is_some_and(covers),
                None => true,
            }
    }

    /// Calls `write` if this range was read last. A write that reaches the end of the window discards the window.
    pub fn changed<T>(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        write: impl FnOnce(Changes<'_>) -> T,
    ) -> Option<T> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut window = self.window.lock();
        let range = ByteRange::at(offset, data.len() as u64)?;
        let last = window.as_ref().filter(|last| last.covers(range))?;
        let written = write(Changes {
            runs: (last.sync_points == file.sync_points()).then(|| last.runs(offset, data)),
            past_the_end: range.end > last.end(),
            watch: &last.watch,
        });
        if range.end >= last.asked {
            *window = None;
            self.any.store(false, Ordering::Release);
        }
        Some(written)
    }
}

impl Window {
    fn new(reading: Reading, offset: u64, bytes: &[u8], asked: u64) -> Option<Window> {
        let mut size = Remembered(0);
        if bytes.len() > MOST || !size.try_add(bytes.len() as u64) {
            return None;
        }
        Some(Window {
            start: offset,
            bytes: bytes.to_vec(),
            asked,
            watch: reading.watch,
            sync_points: reading.sync_points,
            size,
        })
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn is_followed_by(&self, reading: &Reading, offset: u64, bytes: &[u8]) -> bool {
        offset == self.end()
            && reading.sync_points == self.sync_points
            && self.bytes.len() + bytes.len() <= MOST
    }

    /// False if there is no room for more bytes.
    fn go_on(&mut self, reading: Reading, bytes: &[u8], asked: u64) -> bool {
        if !self.size.try_add(bytes.len() as u64) {
            return false;
        }
        self.watch.join(reading.watch);
        self.bytes.extend_from_slice(bytes);
        self.asked = self.asked.max(asked);
        true
    }

    fn covers(&self, range: ByteRange) -> bool {
        self.start <= range.start && range.start < self.asked && range.end <= self.asked
    }

    /// Compares byte by byte, because the bytes between two changed bytes may belong to another node. Beyond
    /// the end of the file zeros count as unchanged.
    fn runs(&self, offset: u64, data: &[u8]) -> Vec<Range<usize>> {
        let skip = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        let known = self.bytes.get(skip..).unwrap_or(&[]);
        let mut runs = Vec::new();
        for (i, part) in data.chunks(STEP).enumerate() {
            let base = i * STEP;
            let known = known.get(base..).unwrap_or(&[]);
            let known = &known[..known.len().min(part.len())];
            differences(part, known, base, &mut runs);
        }
        if runs.len() > exact(data.len()) {
            runs.dedup_by(|next, last| {
                let close = next.start - last.end < WORD;
                if close {
                    last.end = next.end;
                }
                close
            });
        }
        runs
    }
}

/// Appends the runs of `data` that differ from `known`, or from zeros beyond the end of `known`. `base` is
/// added to their positions.
fn differences(data: &[u8], known: &[u8], base: usize, runs: &mut Vec<Range<usize>>) {
    if data == known {
        return;
    }
    for (i, byte) in data.iter().enumerate() {
        if *byte == known.get(i).copied().unwrap_or(0) {
            continue;
        }
        let at = base + i;
        match runs.last_mut() {
            Some(last) if last.end == at => last.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
}

#[cfg(test)]
mod tests;
