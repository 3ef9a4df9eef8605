//! How many descriptors each user may use. One user must not take the descriptors of all: a user gets one
//! more while more are free than the user has (one user alone gets half of them, two users a third each, and
//! so on), so that a user without any finds one, whatever other users do. All users together leave an eighth
//! to root, which could not inspect the mount otherwise.

use std::collections::HashMap;

/// Limits of the number of descriptors, by purpose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// New nodes are refused when nodes and handles together have this many descriptors.
    pub nodes: usize,
    /// New handles are refused when nodes and handles together have this many descriptors.
    pub handles: usize,
    /// Number of descriptors that users share, for whatever purpose: handles must not take those that root needs
    /// for nodes.
    pub users: usize,
}

impl Limits {
    /// `descriptors` is how many the process may have open. Some are reserved for the store, the drain and
    /// files that a request opens for a moment.
    pub fn for_process(descriptors: usize) -> Self {
        let kept = (descriptors / 2).min(4096);
        let nodes = descriptors - kept;
        Self {
            nodes,
            handles: descriptors - kept / 2,
            users: nodes - nodes / 8,
        }
    }
}

/// Descriptors in use, by user: for nodes that the user looked up first, for handles that the user opened,
/// and for locks that the user asked for.
#[derive(Default)]
pub(super) struct Shares(HashMap<u32, usize>);

impl Shares {
    pub fn held_by(&self, uid: u32) -> usize {
        self.0.get(&uid).copied().unwrap_or(0)
    }

    /// How many descriptors the user may have while other users keep theirs, if `in_use` of `users` are
    /// taken. `None` for root and for the daemon's own user, which may have all.
    pub fn most(&self, uid: u32, in_use: usize, users: usize) -> Option<usize> {
        if is_trusted(uid) {
            return None;
        }
        let others = in_use.saturating_sub(self.held_by(uid));
        Some(users.saturating_sub(others).div_ceil(2))
    }

    /// True if the user may have one more when `in_use` are taken: of `most` for this purpose, and of
    /// `users` that all users share.
    pub fn allow(&self, uid: u32, in_use: usize, most: usize, users: usize) -> bool {
        let share = self.most(uid, in_use, users);
        in_use < most && share.is_none_or(|share| self.held_by(uid) < share)
    }

    pub fn add(&mut self, uid: u32) {
        *self.0.entry(uid).or_default() += 1;
    }

    pub fn remove(&mut self, uid: u32) {
        if let Some(count) = self.0.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&uid);
            }
        }
    }
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::getuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives `uid` as many descriptors as it can have.
    fn fill(shares: &mut Shares, uid: u32, in_use: &mut usize, most: usize, users: usize) {
        while shares.allow(uid, *in_use, most, users) {
            shares.add(uid);
            *in_use += 1;
        }
    }

    /// S8.14: a user without descriptors gets one, and root has some left.
    #[test]
    fn users_leave_room_for_others_and_all_leave_some_for_root() {
        let mut shares = Shares::default();
        let mut in_use = 0;
        for (uid, want) in [(1000, 350), (1001, 175), (1002, 88)] {
            fill(&mut shares, uid, &mut in_use, 800, 700);
            assert_eq!(shares.held_by(uid), want);
        }
        assert!(shares.allow(0, in_use, 800, 700));
        // Now the users take descriptors in turns, one each.
        let mut shares = Shares::default();
        let mut in_use = 0;
        let users = [1000, 1001, 1002, 1003, 1004, 1005];
        while let Some(uid) = users
            .iter()
            .filter(|uid| shares.allow(**uid, in_use, 800, 700))
            .min_by_key(|uid| shares.held_by(**uid))
        {
            shares.add(*uid);
            in_use += 1;
        }
        for uid in users {
            assert_eq!(shares.held_by(uid), 100, "of seven parts");
        }
        assert!(shares.allow(1006, in_use, 800, 700), "one more finds one");
        fill(&mut shares, 0, &mut in_use, 800, 700);
        assert_eq!(in_use, 800, "root may have the rest");
        assert!(!shares.allow(0, in_use, 800, 700));
        assert!(!shares.allow(1006, in_use, 800, 700));
    }

    /// S8.14: what users open and lock leaves root the descriptors that it needs to look at
    /// files, however few there are.
    #[test]
    fn handles_leave_nodes_to_root() {
        for descriptors in [64, 1024, 8192, 20_000, 1 << 20] {
            let limits = Limits::for_process(descriptors);
            let mut shares = Shares::default();
            let mut in_use = 0;
            for uid in 1000..1100 {
                fill(&mut shares, uid, &mut in_use, limits.handles, limits.users);
            }
            let left = limits.nodes - in_use;
            assert!(left >= limits.nodes / 8, "{left} of {limits:?}");
            assert!(shares.allow(0, in_use, limits.nodes, limits.users));
        }
    }
}
