//! What the drain and a prefetch do to copies.

use super::copy::{Copy, Phase};
use super::version::{TICK, Version};
use super::{Evict, LocalCopies, NoRoom};
use crate::disk::DiskFile;
use crate::types::{ByteRange, FileId, Timestamp};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

impl LocalCopies {
    /// The canonical file was cut to at most `size`.
    pub(crate) fn cut(&self, id: FileId, size: u64) {
        if let Some(copy) = self.get(id) {
            copy.cut(size);
        }
    }

    pub(crate) fn filling(&self, id: FileId) -> Option<Arc<Copy>> {
        let filling = |c: &Arc<Copy>| matches!(c.state.lock().phase, Phase::Filling { .. });
        self.get(id).filter(filling)
    }

    /// Drops the copy that the drain is filling; the drain goes on without one.
    pub fn forget_filling(&self, id: FileId) {
        if let Some(copy) = self.filling(id) {
            self.remove(&copy);
        }
    }

    /// Takes the copy out of use because a dirty period begins. Its bytes are still right where the
    /// dirty period does not change them, so the drain may go on with the copy if the canonical
    /// file is of its version by then.
    pub(crate) fn period_begins(&self, id: FileId) {
        let Some(copy) = self.get(id) else {
            return;
        };
        let mut state = copy.state.lock();
        if let Phase::Valid(version) = state.phase {
            state.phase = Phase::Filling { at: Some(version) };
            state.renewed = false;
        }
    }

    /// Returns a copy for the drain to fill. Goes on with the existing one if nothing has happened
    /// to the canonical file since: its version `now` is the one noted then; or none was noted, and
    /// no other node writes the file (`alone`). Waits for the store's disk.
    pub fn fill(&self, id: FileId, now: Option<Version>, alone: bool) -> Option<Arc<Copy>> {
        if let Some(copy) = self.get(id) {
            let phase = copy.state.lock().phase;
            let same = match phase {
                Phase::Filling { at: None } => alone,
                Phase::Filling { at } => at == now,
                Phase::Valid(_) | Phase::Dead => false,
            };
            if same {
                match copy.unsave() {
                    Ok(()) => return Some(copy),
                    Err(error) => copy.fail("going on with", &error),
                }
            }
        }
        self.create(id, Phase::Filling { at: None })
    }

    /// As [`LocalCopies::fill`], but always with a new, empty copy.
    pub fn fill_anew(&self, id: FileId) -> Option<Arc<Copy>> {
        self.create(id, Phase::Filling { at: None })
    }

    /// The drain stops for now. `at` is the version of the canonical file, if it is known.
    pub fn pause(&self, copy: &Arc<Copy>, at: Option<Version>) {
        let mut state = copy.state.lock();
        if let Phase::Filling { at: last } = &mut state.phase {
            *last = at;
        }
    }

    /// Notes that what was filled is of this version. The copy is not read before a sync point has
    /// found that version too.
    pub fn complete(&self, copy: &Arc<Copy>, version: Option<Version>) {
        let Some(version) = version else {
            return self.remove(copy);
        };
        copy.cut(version.size);
        let empty = {
            let mut state = copy.state.lock();
            if let Phase::Filling { .. } = state.phase {
                state.phase = Phase::Valid(version);
                state.used = Instant::now();
                state.checked = false;
            }
            state.cover.bytes() == 0
        };
        if empty {
            self.remove(copy);
        }
    }

    /// Adds bytes that the canonical file has. Returns false when the copy is dead.
    pub fn put(
        &self,
        copy: &Arc<Copy>,
        bufs: &[IoSlice<'_>],
        offset: u64,
        evict: Evict,
    ) -> std::result::Result<bool, NoRoom> {
        copy.put(bufs, offset, |bytes| self.make_room(copy, bytes, evict))
    }

    /// Adds zeros that the canonical file has.
    pub fn put_zeros(&self, copy: &Arc<Copy>, range: ByteRange) {
        copy.zero(range);
    }

    /// Takes a range out of the copy, because another node may write the canonical file there.
    pub fn put_unknown(&self, copy: &Arc<Copy>, range: ByteRange) {
        copy.lose(range);
    }

    /// Takes everything from `size` on out of the copy, because the canonical file was cut there or
    /// made longer.
    pub fn put_size(&self, copy: &Arc<Copy>, size: u64) {
        copy.cut(size);
    }
}

/// Returns the version of a canonical file that no process may change at this moment, if every
/// later change will show in it. Waits for a tick of the clock.
pub fn version_after_change(canonical: &dyn DiskFile) -> Option<Version> {
    std::thread::sleep(TICK);
    let version = canonical.version().ok()?;
    version.is_final(TICK, Timestamp::now()).then_some(version)
}
