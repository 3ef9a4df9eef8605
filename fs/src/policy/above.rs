//! The policies that directories above a new file set, and whose files they apply to.

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
    /// True if only the owner can set the directory's attributes.
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

    /// A directory's attributes apply to files of its owner; those of a guarded directory of
    /// root apply to all files.
    fn counts_for(&self, uid: u32) -> bool {
        self.owner == uid || self.owner == 0 && self.guarded
    }
}

/// A user who may write a directory may also set its attributes, unless the directory is sticky.
fn is_guarded(mode: u32) -> bool {
    mode & (libc::S_IWGRP | libc::S_IWOTH) == 0 || mode & libc::S_ISVTX != 0
}

/// The attributes that a new file of `uid` takes over from these directories, nearest first.
pub fn inherit(above: &[Above], uid: u32) -> Attributes {
    let mut attributes = Attributes::default();
    for dir in above.iter().filter(|dir| dir.counts_for(uid)) {
        for key in Key::ALL {
            attributes.inherit(key, &dir.policy, &dir.dir);
        }
    }
    attributes
}

/// The directories with attributes at and above a directory, nearest first, and when they were looked up.
#[derive(Clone, Debug)]
pub struct Climbed {
    pub at: Instant,
    /// How many changes of directories' attributes this node had seen by then.
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

    /// S10.4: no user's directory decides about another user's files.
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
        // The directory of another user does not count, nor does one of root's that anybody can change.
        assert_eq!(of(3), ("immediate".to_owned(), "a".to_owned()));
    }
}
