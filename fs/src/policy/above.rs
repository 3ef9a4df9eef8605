//! What directories above a new file say, and to whom.

use super::Attributes;
use crate::backing::sys::Stat;
use layout_index::FilePolicy;
use layout_index::policy::Key;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A directory with attributes.
#[derive(Clone, Debug)]
pub struct Above {
    policy: FilePolicy,
    dir: String,
    owner: u32,
    /// Nobody but the owner can set its attributes.
    guarded: bool,
}

impl Above {
    pub fn new(policy: FilePolicy, dir: String, stat: &Stat) -> Above {
        Above {
            policy,
            dir,
            owner: stat.uid,
            guarded: is_guarded(stat.mode),
        }
    }

    /// Its owner's files follow it, and everybody's follow root.
    fn counts_for(&self, uid: u32) -> bool {
        self.owner == uid || self.owner == 0 && self.guarded
    }
}

/// Whoever may write a directory may set its attributes, unless it is sticky.
fn is_guarded(mode: u32) -> bool {
    mode & (libc::S_IWGRP | libc::S_IWOTH) == 0 || mode & libc::S_ISVTX != 0
}

/// What a new file of `uid` takes over from these, nearest first.
pub fn inherit(above: &[Above], uid: u32) -> Attributes {
    let mut attributes = Attributes::default();
    for dir in above.iter().filter(|dir| dir.counts_for(uid)) {
        for key in Key::ALL {
            attributes.inherit(key, &dir.policy, &dir.dir);
        }
    }
    attributes
}

/// What was found at and above a directory, nearest first, and when.
#[derive(Clone, Debug)]
pub struct Climbed {
    pub at: Instant,
    /// How many changes of directories' attributes this node had seen then.
    pub changes: u64,
    pub above: Arc<[Above]>,
}

impl Climbed {
    pub fn is_fresh(&self, changes: u64, most: Duration) -> bool {
        self.changes == changes && self.at.elapsed() < most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn above(text: &str, dir: &str, owner: u32, mode: u32) -> Above {
        let mut policy = FilePolicy::default();
        policy.set(Key::Drain, text).unwrap();
        Above {
            policy,
            dir: dir.into(),
            owner,
            guarded: is_guarded(mode),
        }
    }

    /// S10.4: nobody's directory decides about somebody else's files.
    #[test]
    fn a_directory_counts_for_its_owner_and_roots_for_all() {
        let dirs = [
            above("never", "a/b/c", 2, 0o777),
            above("on-close", "a/b", 0, 0o777),
            above("immediate", "a", 0, 0o1777),
        ];
        let of = |uid| {
            let found = inherit(&dirs, uid);
            (
                found.inherited.text(Key::Drain).unwrap(),
                found.from(Key::Drain).to_owned(),
            )
        };
        assert_eq!(of(2), ("never".to_owned(), "a/b/c".to_owned()));
        assert_eq!(of(0), ("on-close".to_owned(), "a/b".to_owned()));
        // Somebody else's, and one of root's that anybody can change: neither counts.
        assert_eq!(of(3), ("immediate".to_owned(), "a".to_owned()));
    }
}
