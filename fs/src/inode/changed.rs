//! The time of a file's last change (ctime), as programs see it.
//!
//! The drain writes the canonical file long after the program did, and the backing notes that as
//! a change. A program that looks before and after it reads the file (tar does) would find it changed
//! under its hands. So a time that was shown for a dirty file stays as long as all else that
//! is shown of it does, until the canonical file changes once more after the drain was done with it.
//!
//! Kept with the inode and not in the store: after a restart the backing's time is shown, which is
//! later, never earlier.

use crate::types::{Attr, Time};
use parking_lot::Mutex;

#[derive(Debug, Default)]
pub struct Changed(Mutex<Option<Shown>>);

#[derive(Debug)]
struct Shown {
    attr: Attr,
    /// The backing's own time, when the file was first seen clean.
    clean: Option<Time>,
}

impl Changed {
    /// `attr` with the time that was shown before, if nothing else has changed. `backing` is the
    /// canonical file's.
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

    /// Somebody changed the file through this mount.
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
            "by somebody else, once clean"
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
