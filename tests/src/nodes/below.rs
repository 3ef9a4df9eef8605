//! Counts the bytes that come into canonical files while no program writes these: the work of the drain.
//!
//! Between the sync point that ends a turn at a file and the next operation on the file, no node changes it,
//! and bytes that were written through were in the canonical file before their call returned. So a byte of
//! the canonical file that becomes right in between was drained.

use super::world::World;
use crate::test_mount::get;

impl World {
    /// Must be called when a turn at the file is over.
    pub(super) fn rest(&mut self, id: usize) {
        self.wake(id);
        if let Some(below) = self.below(id) {
            self.resting.insert(id, below);
        }
    }

    /// Must be called before the next operation on the file.
    pub(super) fn wake(&mut self, id: usize) {
        let Some(before) = self.resting.remove(&id) else {
            return;
        };
        let Some(now) = self.below(id) else {
            return;
        };
        let before = before.into_iter().chain(std::iter::repeat(0));
        let bytes = now.iter().zip(before).zip(&self.files[id].data);
        let came = bytes.filter(|((now, before), want)| **now != *before && now == want);
        self.counts.drained += came.count() as u64;
    }

    fn below(&self, id: usize) -> Option<Vec<u8>> {
        let name = self.name_of(id)?;
        Some(get(self.cluster.canonical(name)))
    }
}
