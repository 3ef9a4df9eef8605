//! What comes into canonical files while no program writes them: that is the drain's work.
//!
//! Between the sync point that ends a turn at a file and the next operation on it nobody changes the file,
//! and what went past a store was below before its call returned. So a byte that becomes right below
//! in between was drained.

use super::world::World;
use crate::bay::get;

impl World {
    /// A turn at the file is over.
    pub(super) fn rest(&mut self, id: usize) {
        self.wake(id);
        if let Some(below) = self.below(id) {
            self.resting.insert(id, below);
        }
    }

    /// Something is about to happen to the file.
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
