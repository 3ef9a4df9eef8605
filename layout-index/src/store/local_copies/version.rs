//! Which state of a canonical file a copy was made of, as `stat` shows it.
//!
//! # Two changes within one tick
//! A file system has clocks of its own. Two changes within one tick of its clock carry the same
//! time, and a `stat` between the two cannot tell the second from the first. So a version counts
//! only if the tick of its last change was over when it was read ([`Version::is_final`]): any later
//! change then carries another time. Where times are whole seconds (Lustre, MooseFS) that takes
//! seconds, elsewhere a timer tick of the kernel.

use crate::types::Timestamp;
use std::time::Duration;

/// A time as `stat` gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    pub sec: i64,
    pub nsec: u32,
}

/// What `stat` says of a canonical file; every change of its bytes changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    pub size: u64,
    pub mtime: Moment,
    pub ctime: Moment,
}

/// Longer than a tick of any Linux timer (10 ms).
pub const TICK: Duration = Duration::from_millis(12);
/// Longer than a second, with a margin for clocks that do not agree.
const WHOLE_SECONDS: Duration = Duration::from_millis(2100);

impl Version {
    /// Two changes that are at least this far apart carry different times here.
    pub fn tick(&self) -> Duration {
        if self.ctime.nsec == 0 {
            WHOLE_SECONDS
        } else {
            TICK
        }
    }

    /// True if any change of the bytes from now on makes another version. `quiet` is how long the
    /// file is known not to have changed.
    pub fn is_final(&self, quiet: Duration, now: Timestamp) -> bool {
        // A change of bytes sets the modification time to the time of that change. So if the
        // modification time is old enough, the tick of the last change is over.
        quiet >= self.tick() || self.mtime.is_older_than(self.tick(), now)
    }

    /// As [`Version::is_final`], for a file that other nodes drain. They set the modification time
    /// to what it was when the bytes were written, so only the change time (ctime) shows the drain.
    pub fn is_final_among_nodes(&self, now: Timestamp) -> bool {
        [self.mtime, self.ctime]
            .iter()
            .all(|time| time.is_older_than(self.tick(), now))
    }
}

impl Moment {
    fn is_older_than(&self, age: Duration, now: Timestamp) -> bool {
        let nanos = i128::from(self.sec) * 1_000_000_000 + i128::from(self.nsec);
        i128::from(now.0) - nanos >= age.as_nanos() as i128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(nsec: u32) -> Version {
        let at = Moment { sec: 100, nsec };
        Version {
            size: 1,
            mtime: at,
            ctime: at,
        }
    }

    fn at(seconds: f64) -> Timestamp {
        Timestamp((seconds * 1e9) as u64)
    }

    #[test]
    fn a_change_within_the_tick_is_not_told_apart() {
        let fine = version(5_000_000);
        assert!(!fine.is_final(Duration::ZERO, at(100.006)));
        assert!(fine.is_final(Duration::from_millis(12), at(100.006)));
        assert!(fine.is_final(Duration::ZERO, at(100.1)));
    }

    #[test]
    fn a_time_that_was_set_back_proves_nothing_among_nodes() {
        let old = Moment { sec: 7, nsec: 1 };
        let drained = Version {
            mtime: old,
            ..version(5_000_000)
        };
        assert!(drained.is_final(Duration::ZERO, at(100.006)));
        assert!(!drained.is_final_among_nodes(at(100.006)));
        assert!(drained.is_final_among_nodes(at(100.1)));
    }

    #[test]
    fn whole_seconds_take_seconds() {
        let coarse = version(0);
        assert!(!coarse.is_final(Duration::from_millis(500), at(101.5)));
        assert!(coarse.is_final(Duration::from_millis(2100), at(101.5)));
        assert!(coarse.is_final(Duration::ZERO, at(102.2)));
    }

    #[test]
    fn a_time_in_the_future_proves_nothing() {
        assert!(!version(1).is_final(Duration::ZERO, at(50.0)));
    }
}
