use super::*;
use crate::backing::identity;
use std::os::fd::AsFd;

fn node(ino: u64, birth: u64) -> (OwnedFd, Identified) {
    let fd = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let mut it = identity::identify(fd.as_fd()).unwrap();
    it.id = FileId { ino, birth };
    (fd, it)
}

fn table() -> InodeTable {
    let (fd, it) = node(500, 1);
    InodeTable::new(fd, &it)
}

fn remember(table: &InodeTable, ino: u64, birth: u64) -> Arc<Inode> {
    let (fd, it) = node(ino, birth);
    table.remember(fd, &it)
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
    assert!(t.add_handle(7));
    assert!(t.forget(7, 1).is_none());
    assert!(t.keep_while(&a.id, || true).is_none());
    assert!(t.remove_handle(7).is_none());
    // Looked up again while dirty: still the same object.
    assert!(Arc::ptr_eq(&remember(&t, 7, 1), &a));
    assert!(t.forget(7, 1).is_none());
    assert!(t.keep_while(&a.id, || true).is_none());
    assert!(t.keep_while(&a.id, || false).is_some());
    assert_eq!(t.len(), 1);
    assert!(!t.add_handle(7));
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
