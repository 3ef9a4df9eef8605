//! Which copies are dropped when there is no room.

use super::copy::Copy;
use super::{Evict, LocalCopies, NoRoom};
use std::sync::Arc;
use std::time::Instant;

impl LocalCopies {
    pub(super) fn make_room(
        &self,
        copy: &Arc<Copy>,
        bytes: u64,
        evict: Evict,
    ) -> std::result::Result<(), NoRoom> {
        while !self.home.space.reserve_copied(bytes) {
            let before = match evict {
                Evict::Oldest => None,
                Evict::UnusedSince(time) => Some(time),
            };
            let oldest = self.oldest(Some(copy), before).ok_or(NoRoom)?;
            self.remove(&oldest);
        }
        Ok(())
    }

    fn oldest(&self, but: Option<&Arc<Copy>>, before: Option<Instant>) -> Option<Arc<Copy>> {
        let copies = self.copies.lock();
        let used = |c: &Arc<Copy>| c.state.lock().used;
        copies
            .values()
            .filter(|c| !but.is_some_and(|but| Arc::ptr_eq(c, but)))
            .filter(|c| before.is_none_or(|time| used(c) < time))
            .min_by_key(|c| used(c))
            .cloned()
    }

    /// Drops copies until the log has the room that it needs.
    pub(super) fn give_way(&self) {
        while self.home.space.is_short() {
            let Some(oldest) = self.oldest(None, None) else {
                return;
            };
            tracing::debug!(file = %oldest.id, "the log needs its room: a local copy is dropped");
            self.remove(&oldest);
        }
    }
}
