//! The attributes that an open has read from a file, for later opens.
//!
//! Setting or removing an attribute changes the file's ctime, so attributes are not listed again while the
//! ctime is the same. This is the backing's own ctime, not the one that is shown (`inode/changed.rs`). Other
//! changes of the ctime (by the drain, or a chmod) cost another list and nothing more.
//!
//! # When a ctime proves something
//! A change that comes after the list should lead to another ctime, but it may not: a clock has ticks (whole
//! seconds on Lustre and MooseFS), and the clocks of two machines do not agree. A list may also be older than
//! the ctime: MooseFS's client caches lists for half a minute. So a ctime counts only if it was at least
//! [`OLD`] in the past when the attributes were listed; until then each open lists them.

use super::Attributes;
use crate::types::Time;
use layout_index::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// More than clock ticks, differences between clocks, and caches of clients amount to together.
const OLD: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Learned {
    pub attributes: Arc<Attributes>,
    /// The file's ctime, read before its attributes were listed.
    pub ctime: Time,
    /// When the attributes were listed, by this node's clock.
    pub at: Timestamp,
}

impl Learned {
    /// The attributes of the file if its ctime is `ctime` now; `None` if they must be listed again.
    pub fn at_ctime(&self, ctime: Time) -> Option<Arc<Attributes>> {
        let age = self.at.0.saturating_sub(self.ctime.as_nanos());
        let is_old = u128::from(age) >= OLD.as_nanos();
        (is_old && self.ctime == ctime).then(|| self.attributes.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGED: Time = Time { sec: 1000, nsec: 0 };

    /// True if an open of a file with this ctime needs no list, if the last list was made in second `listed`.
    fn is_known(listed: u64, ctime: Time) -> bool {
        let learned = Learned {
            attributes: Arc::default(),
            ctime: CHANGED,
            at: Timestamp(listed * 1_000_000_000),
        };
        learned.at_ctime(ctime).is_some()
    }

    /// S10.2: one that another node set "counts from its next open on". A file that was changed just now may
    /// be changed again without another ctime, and a ctime in the future proves nothing.
    #[test]
    fn only_an_old_time_proves_that_nothing_has_changed() {
        assert!(is_known(1060, CHANGED));
        for listed in [900, 1000, 1001, 1059] {
            assert!(!is_known(listed, CHANGED), "{listed}");
        }
        let moved = Time { nsec: 1, ..CHANGED };
        assert!(!is_known(5000, moved));
    }
}
