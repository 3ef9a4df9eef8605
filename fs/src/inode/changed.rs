//! The ctime of a file as programs see it.
//!
//! The drain writes the canonical file long after the program did, and the backing counts that as a change. A
//! program that compares the ctime before and after it reads a file (as tar does) would then find the file changed
//! while it was read. So a ctime that was shown for a dirty file stays as long as all other attributes that are
//! shown stay the same, until the canonical file changes again after the drain has finished with it.
//!
//! This is kept with the inode and not in the store: after a restart the backing's ctime is shown, which
//! is later, never earlier.

use crate::types::{Attr, Time};
use parking_lot::Mutex;

#[derive(Debug, Default)]
pub struct Changed(Mutex<Option<Shown>>);

#[derive(Debug)]
struct Shown {
    attr: Attr,
    /// The backing's own ctime when the file was first seen clean.
    clean: Option<Time>,
}

impl Changed {
    /// Returns `attr` with the ctime that was shown before, if no other attribute has changed. `backing` is
    /// the canonical file's ctime.
    pub fn steady(&self, attr: Attr, backing: Time, is_dirty: bool) -> Attr {
        let mut shown = self.0.lock();
        let Some(before) = shown
            .as_mut()
            .filter(|before| before.stands(&attr, backing))
        else {
            *shown = is_dirty.then_some(Shown { attr, clean: None });
            return attr;
        };
        if !is_dirty {
            before.clean = Some(backing);
        }
        Attr {
            ctime: before.attr.ctime,
            ..attr
        }
    }

    /// Must be called when the file was changed through this mount.
    pub fn forget(&self) {
        *self.0.lock() = None;
    }
}

impl Shown {
    fn stands(&self, now: &Attr, backing: Time) -> bool {
        let of = |a: &Attr| (a.size, a.mtime, a.mode, a.nlink, a.uid, a.gid);
        of(&self.attr) == of(now) && self.clean.is_none_or(|clean| clean == backing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(size: u64, ctime: u64) -> Attr {
        Attr {
            ino: 1,
            size,
            blocks: 0,
            atime: Time::from_nanos(0),
            mtime: Time::from_nanos(7),
            ctime: Time::from_nanos(ctime),
            mode: libc::S_IFREG | 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        }
    }

    fn shown(changed: &Changed, size: u64, ctime: u64, is_dirty: bool) -> u64 {
        let attr = at(size, ctime);
        changed.steady(attr, attr.ctime, is_dirty).ctime.as_nanos()
    }

    #[test]
    fn the_drain_is_no_change() {
        let changed = Changed::default();
        assert_eq!(shown(&changed, 5, 10, true), 10);
        assert_eq!(shown(&changed, 5, 11, true), 10, "while it drains");
        assert_eq!(shown(&changed, 5, 12, false), 10, "when it is drained");
        assert_eq!(shown(&changed, 5, 12, false), 10);
    }

    #[test]
    fn changes_show() {
        let changed = Changed::default();
        shown(&changed, 5, 10, true);
        assert_eq!(shown(&changed, 6, 20, true), 20, "written");
        shown(&changed, 6, 21, false);
        assert_eq!(
            shown(&changed, 6, 30, false),
            30,
            "by another program, once clean"
        );
        assert_eq!(
            shown(&changed, 6, 31, false),
            31,
            "a clean file is the backing's"
        );
        shown(&changed, 6, 40, true);
        changed.forget();
        assert_eq!(shown(&changed, 6, 50, true), 50, "chmod, say");
    }
}
