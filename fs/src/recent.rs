//! What a handle has read last, until it is written back.
//!
//! One window of the file for each handle: reads that follow each other without a gap make it
//! longer (the kernel cuts a request of 16 MiB into pieces), any other begins it anew. It knows the
//! bytes that were read, and where the read was to end if the file ended before.

use layout_index::{ByteRange, File, Watch};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The most that one handle remembers: twice the buffer with which MPI libraries read, change and
/// write back.
const MOST: usize = 32 << 20;

/// The most that all handles of the process remember together. Who comes after that remembers
/// nothing, and what it writes back counts as written.
const MOST_OF_ALL: u64 = 256 << 20;

/// Up to this many runs of a write are told apart byte for byte. Bytes that have nothing to do with
/// those before them make a run for each 256 by chance: that is within it.
fn exact(len: usize) -> usize {
    32 + len / 64
}

/// Bytes that are compared at once.
const STEP: usize = 256;

/// Of a write with more runs, stretches between two of them that are shorter than this count as
/// changed: they are where numbers that were all computed anew are equal by chance. (The exponents
/// of a million numbers would be a million records.)
const WORD: usize = 8;

static REMEMBERED: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
pub struct Recent {
    /// There is a window. Writers of handles that never read look at this and nothing else.
    any: AtomicBool,
    window: Mutex<Option<Window>>,
}

struct Window {
    start: u64,
    bytes: Vec<u8>,
    /// Where the last read was to end: after the bytes, if the file ended before.
    asked: u64,
    watch: Watch,
    sync_points: u64,
    size: Remembered,
}

/// Counts bytes that are remembered.
struct Remembered(u64);

impl Remembered {
    fn take(&mut self, bytes: u64) -> bool {
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

/// A read that has begun.
pub struct Reading {
    watch: Watch,
    sync_points: u64,
}

impl Reading {
    /// Before the read looks at anything.
    pub fn begin(file: &Arc<File>, range: ByteRange) -> Reading {
        Reading {
            watch: file.watch(range),
            sync_points: file.sync_points(),
        }
    }
}

/// How a write differs from what was read.
pub struct Changes<'a> {
    /// Parts of the write; all between them is as it was read. `None` if a sync point has come
    /// between the read and the write.
    pub runs: Option<Vec<Range<usize>>>,
    /// The write goes on after where the file ended for the read.
    pub past_the_end: bool,
    pub watch: &'a Watch,
}

impl Recent {
    pub fn keep(&self, reading: Reading, offset: u64, bytes: &[u8], asked: u64) {
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

    /// A write of this range may be one of what was read last. Never waits.
    pub fn may_cover(&self, range: ByteRange) -> bool {
        let covers = |w: &Window| w.covers(range);
        self.any.load(Ordering::Acquire)
            && match self.window.try_lock() {
                Some(window) => window.as_ref().is_some_and(covers),
                None => true,
            }
    }

    /// Calls `write` if this range was read last; and forgets that with the end of it.
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
        if bytes.len() > MOST || !size.take(bytes.len() as u64) {
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

    /// False if there is no room for more.
    fn go_on(&mut self, reading: Reading, bytes: &[u8], asked: u64) -> bool {
        if !self.size.take(bytes.len() as u64) {
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

    /// Byte for byte: what lies between two changed bytes may be another node's. After the end of
    /// the file zeros are as good as nothing.
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

/// Adds the runs of `data` that differ from `known`, or from zeros beyond it; `data` begins at `base`.
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
