use super::*;
use crate::backing::identity::{self, Handles};
use std::os::fd::AsFd;

fn node(ino: u64, birth: u64) -> (OwnedFd, Identified) {
    let fd = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let mut it = identity::identify(fd.as_fd(), Handles::Remote).unwrap();
    it.id = FileId { ino, birth };
    (fd, it)
}

fn table() -> InodeTable {
    let (fd, it) = node(500, 1);
    InodeTable::new(fd, &it, 1000, false)
}

fn place(name: &str) -> Place {
    Place {
        parent: ROOT,
        name: CString::new(name).unwrap(),
    }
}

fn remember(table: &InodeTable, ino: u64, birth: u64) -> Arc<Inode> {
    let (fd, it) = node(ino, birth);
    let place = place(&ino.to_string());
    table.remember(fd, &it, place, 0).expect("there is room")
}

#[test]
fn numbers_are_the_backings_own() {
    let t = table();
    assert_eq!(remember(&t, 7, 1).node, 7);
    assert_eq!(t.get(ROOT).unwrap().id.ino, 500);
    // Number 1 belongs to the root.
    let one = remember(&t, 1, 1);
    assert!(one.node > SPARE);
    assert_eq!(remember(&t, 1, 1).node, one.node);
}

#[test]
fn one_object_for_one_file() {
    let t = table();
    let a = remember(&t, 7, 1);
    let b = remember(&t, 7, 1);
    assert!(Arc::ptr_eq(&a, &b));
    assert!(t.forget(7, 1).is_none());
    assert!(t.forget(7, 1).is_some());
    assert!(t.get(7).is_none());
    assert!(t.get_by_id(&a.id).is_none());
}

#[test]
fn a_reused_number_gets_another_node() {
    let t = table();
    let old = remember(&t, 7, 1);
    let new = remember(&t, 7, 2);
    assert_ne!(old.node, new.node);
    assert_ne!(old.generation(), new.generation());
    assert!(t.forget(old.node, 1).is_some());
    assert!(Arc::ptr_eq(&t.get(new.node).unwrap(), &new));
}

#[test]
fn handles_and_dirt_keep_a_node() {
    let t = table();
    let a = remember(&t, 7, 1);
    t.add_handle(7, 0).unwrap();
    assert!(t.forget(7, 1).is_none());
    assert!(t.keep_while(&a.id, || true).is_none());
    assert!(t.remove_handle(7, 0).is_none());
    // The file is looked up again while dirty, and is still the same object.
    assert!(Arc::ptr_eq(&remember(&t, 7, 1), &a));
    assert!(t.forget(7, 1).is_none());
    assert!(t.keep_while(&a.id, || true).is_none());
    assert!(t.keep_while(&a.id, || false).is_some());
    assert_eq!(t.len(), 1);
    assert_eq!(t.add_handle(7, 0), Err(NoHandle::Unknown));
}

#[test]
fn the_root_stays() {
    let t = table();
    assert!(t.forget(ROOT, 100).is_none());
    assert!(t.get(ROOT).is_some());
}

#[test]
fn a_privilege_check_that_was_overtaken_does_not_count() {
    let t = table();
    let a = remember(&t, 7, 1);
    let seen = a.privilege_changes();
    a.note_lack(super::super::NO_SETID, seen);
    assert!(a.lacks(super::super::NO_SETID));
    a.privileges_may_have_changed();
    assert!(!a.lacks(super::super::NO_SETID));
    a.note_lack(super::super::NO_SETID, seen);
    assert!(!a.lacks(super::super::NO_SETID));
}

#[test]
fn the_last_descriptors_are_not_for_nodes() {
    let t = table();
    t.set_descriptors(20);
    for ino in 10..19 {
        remember(&t, ino, 1);
    }
    assert!(!t.has_room(0));
    let (fd, it) = node(30, 1);
    assert!(t.remember(fd, &it, place("30"), 0).is_none());
    // A known file costs no descriptor, and some are left for handles.
    remember(&t, 10, 1);
    for _ in 0..5 {
        t.add_handle(10, 0).unwrap();
    }
    assert_eq!(t.add_handle(10, 0), Err(NoHandle::Full));
    assert!(t.remove_handle(10, 0).is_none());
    t.add_handle(10, 0).unwrap();
    for _ in 0..5 {
        assert!(t.remove_handle(10, 0).is_none());
    }
    assert!(t.forget(11, 1).is_some());
    assert!(t.has_room(0));
    remember(&t, 30, 1);
}

#[test]
fn idle_files_are_the_oldest_that_nothing_holds() {
    let t = table();
    t.set_descriptors(32);
    for ino in 10..20 {
        remember(&t, ino, 1);
    }
    assert_eq!(t.idle_files(0), []);
    // An undrained file is found again without its descriptor, so it does not keep it where descriptors are short.
    let dirty = t.get(13).unwrap().id;
    t.keep_while(&dirty, || true);
    t.add_handle(12, 0).unwrap();
    remember(&t, 10, 1);
    // Twelve of sixteen descriptors are in use: four too many.
    assert_eq!(t.len() + 1, 12);
    let mut idle = t.idle_files(0);
    idle.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(idle, ["11", "13", "14", "15"].map(place));
    // The kernel was asked just now.
    assert_eq!(t.idle_files(0), []);
    remember(&t, 20, 1);
    assert!(!t.idle_files(0).is_empty());
}

/// S8.14: a walk slows down before it has all descriptors, and nothing slows down before that.
#[test]
fn lookups_are_held_back_when_descriptors_run_out() {
    let t = table();
    let most = Limits::for_process(1000).nodes as u64;
    let delay_at = |t: &InodeTable, from: u64, in_use: u64| {
        for ino in from..in_use {
            remember(t, 1000 + ino, 1);
        }
        t.lookup_delay(0)
    };
    assert_eq!(delay_at(&t, 1, most * 7 / 8), Duration::ZERO);
    let some = delay_at(&t, most * 7 / 8, most * 15 / 16);
    let full = delay_at(&t, most * 15 / 16, most);
    assert!(Duration::ZERO < some && some < full, "{some:?}, {full:?}");
    assert_eq!(full, LONGEST_DELAY);
}
