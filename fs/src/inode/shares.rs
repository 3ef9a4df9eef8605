//! Whose descriptors are in use. One user must not take those of all: each has at most half of them, all
//! users together leave an eighth to root, which could not inspect the mount otherwise.

use std::collections::HashMap;

/// How many descriptors there are for what.
pub(super) struct Limits {
    /// No new node when nodes and handles together have this many descriptors.
    pub nodes: usize,
    /// No new handle either.
    pub handles: usize,
}

impl Limits {
    /// `descriptors` is all that the process may have open. Some are left for the store, the
    /// drain and whatever a request opens for a moment.
    pub fn of(descriptors: usize) -> Self {
        let kept = (descriptors / 2).min(4096);
        Self {
            nodes: descriptors - kept,
            handles: descriptors - kept / 2,
        }
    }
}

/// Descriptors in use, by user: of nodes that the user looked up first, and of handles that the user
/// opened.
#[derive(Default)]
pub(super) struct Shares(HashMap<u32, usize>);

impl Shares {
    pub fn of(&self, uid: u32) -> usize {
        self.0.get(&uid).copied().unwrap_or(0)
    }

    /// How many of `most` one user may have. Root, and a user whose own daemon this is, may have all.
    pub fn most(uid: u32, most: usize) -> usize {
        if is_trusted(uid) { most } else { most / 2 }
    }

    /// The user may have one more when `in_use` of `most` are taken.
    pub fn allow(&self, uid: u32, in_use: usize, most: usize) -> bool {
        let for_all = if is_trusted(uid) {
            most
        } else {
            most - most / 8
        };
        in_use < for_all && self.of(uid) < Self::most(uid, most)
    }

    pub fn take(&mut self, uid: u32) {
        *self.0.entry(uid).or_default() += 1;
    }

    pub fn give(&mut self, uid: u32) {
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

    #[test]
    fn one_user_leaves_room_for_others_and_all_leave_some_for_root() {
        let mut shares = Shares::default();
        let mut in_use = 0;
        for uid in [1000, 1001, 1002] {
            while shares.allow(uid, in_use, 800) {
                shares.take(uid);
                in_use += 1;
            }
        }
        assert_eq!(shares.of(1000), 400);
        assert_eq!(shares.of(1001), 300);
        assert_eq!(shares.of(1002), 0);
        assert!(shares.allow(0, in_use, 800), "root has some left");
        shares.give(1000);
        assert!(shares.allow(1002, in_use - 1, 800));
        assert!(!shares.allow(0, 800, 800));
    }
}
