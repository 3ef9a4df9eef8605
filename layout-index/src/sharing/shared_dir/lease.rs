//! This node's lease: for how long no other node can take this one for dead.
//!
//! No two clocks are compared: a node knows when it began its last successful heartbeat, and other
//! nodes know how long they have seen the same heartbeat, each by its own clock, which also counts
//! sleep. Nothing here makes a system call on a file.
//!
//! # A lost lease does not come back
//!
//! A heartbeat can be under way for any length of time. If it arrives after half of the lease has
//! passed since the previous one, other nodes may have seen the old heartbeat for a whole lease and
//! taken this node for dead. From then on the node is alive again, but what it held is gone: a
//! [`Tenure`] is a period in which that cannot have happened, and nothing that was taken in an
//! older tenure may be used.

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Upper limit of the lease: how long other nodes wait for a node that may be dead.
pub(super) const LONGEST_LEASE: Duration = Duration::from_secs(3600);

/// Returns the time since some fixed moment, by a clock that goes on while the machine sleeps.
pub(super) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

pub(super) fn boottime() -> Clock {
    Arc::new(|| {
        // This fails for unknown clocks only, and this clock is older than `openat2`.
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
    })
}

/// A period without any moment at which other nodes could have taken this node for dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure(u64);

/// The last heartbeat of this node.
#[derive(Debug, Default)]
struct LastHeartbeat {
    /// When the last successful heartbeat began.
    began: Option<Duration>,
    tenure: u64,
}

pub(super) struct Lease {
    length: Duration,
    clock: Clock,
    last: Mutex<LastHeartbeat>,
}

impl Lease {
    pub fn new(length: Duration, clock: Clock) -> Lease {
        let last = Mutex::default();
        Lease {
            length,
            clock,
            last,
        }
    }

    pub fn length(&self) -> Duration {
        self.length
    }

    pub fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Extends the lease after a heartbeat that succeeded. A heartbeat that succeeds too late begins a
    /// new tenure: what was held before stays lost.
    pub fn extend(&self, began: Duration) {
        let now = self.now();
        let mut last = self.last.lock();
        if !last.began.is_some_and(|began| self.is_recent(began, now)) {
            last.tenure += 1;
        }
        last.began = Some(began);
    }

    /// Ends the lease at once, because this node leaves.
    pub fn end(&self) {
        self.last.lock().began = None;
    }

    fn is_recent(&self, began: Duration, now: Duration) -> bool {
        now.saturating_sub(began) < self.length / 2
    }

    /// The present tenure, or `None` if the lease does not hold.
    pub fn tenure(&self) -> Option<Tenure> {
        let last = self.last.lock();
        let is_held = self.is_recent(last.began?, self.now());
        is_held.then_some(Tenure(last.tenure))
    }

    /// While this is true, no other node can take this node for dead: less than half of the lease has
    /// passed since the last successful heartbeat began.
    pub fn is_held(&self) -> bool {
        self.tenure().is_some()
    }

    /// Whether the lease holds and has held without a break since `tenure`. Must be checked before
    /// every write to a canonical file.
    pub fn is_held_since(&self, tenure: Tenure) -> bool {
        self.tenure() == Some(tenure)
    }

    pub fn require(&self) -> io::Result<Tenure> {
        self.tenure().ok_or_else(lease_lapsed)
    }
}

pub(super) fn lease_lapsed() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "this node's lease in the shared directory has lapsed: others may have taken over",
    )
}
