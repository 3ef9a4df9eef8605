//! What an open found in a file's attributes, for the opens after it.
//!
//! Setting or removing an attribute moves the file's time of change (ctime), so they are not listed
//! again while that is the same: the backing's own, not the one that is shown (`inode/changed.rs`).
//! Whatever else moves it (the drain, a chmod) costs a list and nothing more.
//!
//! # When a time proves something
//! A change that comes after the list must carry another time. It may not: a clock has ticks (whole
//! seconds on Lustre and MooseFS), and those of two machines do not agree. A list may also be older
//! than the time: MooseFS's client remembers lists for half a minute. So a time counts only if it was
//! [`OLD`] when the attributes were listed; until then each open lists them.

use super::Attributes;
use crate::types::Time;
use layout_index::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// More than ticks, clocks that are set by others, and memories of clients make together.
const OLD: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Learned {
    pub attributes: Arc<Attributes>,
    /// Of the file, asked for before its attributes were listed.
    pub ctime: Time,
    /// When they were listed, by this node's clock.
    pub at: Timestamp,
}

impl Learned {
    /// What the attributes say if the file was last changed at `ctime`; `None` if only a list can tell.
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

    /// Whether an open of a file with time `ctime` goes without a list, if the last one was made in
    /// second `listed`.
    fn is_known(listed: u64, ctime: Time) -> bool {
        let learned = Learned {
            attributes: Arc::default(),
            ctime: CHANGED,
            at: Timestamp(listed * 1_000_000_000),
        };
        learned.at_ctime(ctime).is_some()
    }

    /// S10.2: one that another node set "counts from its next open on". What was changed just now may be
    /// changed again without another time, and a time in the future proves nothing.
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
