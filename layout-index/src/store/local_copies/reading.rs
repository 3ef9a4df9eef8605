//! Checks whether a copy is of the canonical file's version, and reads it.

use super::LocalCopies;
use super::copy::{Copy, Phase};
use super::version::Version;
use crate::disk::DiskFile;
use crate::types::{ByteRange, FileId, Timestamp};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl LocalCopies {
    /// Returns whether the copy of a settled file may be read. Called at a sync point. The
    /// canonical file is asked for its version only if there is a copy.
    pub(crate) fn check(&self, id: FileId, ask: impl FnOnce() -> io::Result<Version>) -> bool {
        let Some(copy) = self.get(id).filter(|c| c.version().is_some()) else {
            return false;
        };
        // If the canonical file cannot be asked, the error shows when the file is read.
        if !ask().is_ok_and(|now| copy.version() == Some(now)) {
            self.remove(&copy);
            return false;
        }
        let mut state = copy.state.lock();
        state.checked = true;
        state.used = Instant::now();
        true
    }

    pub(crate) fn readable_size(&self, id: FileId) -> Option<u64> {
        let nothing = ByteRange::new(0, 0);
        Some(self.get(id)?.readable(nothing)?.0)
    }

    /// Takes over a new version after an operation that changes the canonical file's times and not
    /// its bytes: from `before` to `after`. If the modification time is the same, no other process
    /// wrote the file in between; but that is certain only if that time is older than a tick.
    pub fn renew(&self, id: FileId, before: Version, after: Version) {
        let same = (before.size, before.mtime) == (after.size, after.mtime);
        if !same || !after.is_final(Duration::ZERO, Timestamp::now()) {
            return;
        }
        let Some(copy) = self.get(id) else {
            return;
        };
        let mut state = copy.state.lock();
        if state.phase == Phase::Valid(before) {
            state.phase = Phase::Valid(after);
            state.saved = None;
            state.renewed = true;
        }
    }

    /// Writes the sidecars of copies that were renewed.
    pub(crate) fn save_renewed(&self) {
        if self.is_empty() {
            return;
        }
        let renewed = |c: &&Arc<Copy>| c.state.lock().renewed;
        let copies: Vec<_> = self
            .copies
            .lock()
            .values()
            .filter(renewed)
            .cloned()
            .collect();
        copies.iter().for_each(|copy| self.save(copy));
    }

    /// Reads what the copy has of a settled file, and the rest from the canonical file. Returns
    /// `None` if the caller must read all of it there. Without `canonical` nothing is read unless
    /// the copy has all of it.
    pub(crate) fn read(
        &self,
        id: FileId,
        buf: &mut [u8],
        offset: u64,
        canonical: Option<&dyn DiskFile>,
    ) -> io::Result<Option<usize>> {
        let Some(copy) = self.get(id) else {
            return Ok(None);
        };
        let Some(range) = ByteRange::at(offset, buf.len() as u64) else {
            return Ok(None);
        };
        let Some((size, pieces)) = copy.readable(range) else {
            return Ok(None);
        };
        let Some(range) = range.intersect(&ByteRange::new(0, size)) else {
            return Ok(None);
        };
        let has: u64 = pieces.iter().map(ByteRange::len).sum();
        if has == 0 || canonical.is_none() && has < range.len() {
            return Ok(None);
        }
        let mut at = range.start;
        for piece in pieces
            .into_iter()
            .chain([ByteRange::new(range.end, range.end)])
        {
            let place = |r: ByteRange| (r.start - offset) as usize..(r.end - offset) as usize;
            if at < piece.start
                && let Some(canonical) = canonical
            {
                let gap = place(ByteRange::new(at, piece.start));
                let n = canonical.read_at(&mut buf[gap.clone()], at)?;
                if n < gap.len() {
                    return Ok(Some(gap.start + n));
                }
            }
            at = piece.end;
            if piece.is_empty() {
                continue;
            }
            if let Err(error) = copy.read(&mut buf[place(piece)], piece.start) {
                copy.fail("reading", &error);
                return Ok(None);
            }
        }
        Ok(Some(range.len() as usize))
    }
}
