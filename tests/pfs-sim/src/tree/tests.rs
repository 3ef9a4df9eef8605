use super::*;
use crate::layout::Wish;
use crate::node::FileBody;

const DIR: u32 = libc::S_IFDIR | 0o755;
const FILE: u32 = libc::S_IFREG | 0o644;

fn os(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn mkdir(tree: &mut Tree, parent: u64, name: &str) -> u64 {
    let body = |_| Body::Dir(Mutex::default());
    let node = tree.create(parent, os(name), DIR, (0, 0), body);
    node.expect("mkdir").ino
}

fn touch(tree: &mut Tree, parent: u64, name: &str) -> u64 {
    let body = |ino| Body::File(Arc::new(FileBody::new(ino, Wish::default())));
    let node = tree.create(parent, os(name), FILE, (7, 8), body);
    node.expect("create").ino
}

fn nlink(tree: &Tree, ino: u64) -> u32 {
    tree.node(ino).expect("node").attrs.lock().nlink
}

fn names(tree: &Tree, ino: u64, after: u64) -> Vec<String> {
    let list = tree.list(ino, after).expect("list");
    let names = list.into_iter().map(|e| e.name);
    names.map(|n| n.to_string_lossy().into_owned()).collect()
}

#[test]
fn links_are_counted() {
    let mut tree = Tree::new(1);
    let a = mkdir(&mut tree, ROOT, "a");
    let f = touch(&mut tree, a, "f");
    assert_eq!(
        (nlink(&tree, ROOT), nlink(&tree, a), nlink(&tree, f)),
        (3, 2, 1)
    );
    tree.link(f, ROOT, os("g")).expect("link");
    assert_eq!(nlink(&tree, f), 2);
    tree.unlink(a, os("f"), false).expect("unlink");
    assert_eq!(nlink(&tree, f), 1);
    tree.unlink(ROOT, os("a"), true).expect("rmdir");
    assert_eq!(nlink(&tree, ROOT), 2);
    let late = tree.create(a, os("late"), FILE, (0, 0), |_| Body::Special);
    assert_eq!(late.err(), Some(Errno::ENOENT), "the directory is gone");
}

#[test]
fn wrong_kinds_are_refused() {
    let mut tree = Tree::new(1);
    let a = mkdir(&mut tree, ROOT, "a");
    touch(&mut tree, a, "f");
    assert_eq!(tree.unlink(ROOT, os("a"), false).err(), Some(Errno::EISDIR));
    assert_eq!(
        tree.unlink(ROOT, os("a"), true).err(),
        Some(Errno::ENOTEMPTY)
    );
    assert_eq!(tree.unlink(a, os("f"), true).err(), Some(Errno::ENOTDIR));
    assert_eq!(tree.unlink(a, os("x"), false).err(), Some(Errno::ENOENT));
    assert_eq!(tree.link(a, ROOT, os("b")).err(), Some(Errno::EPERM));
    let twice = tree.create(a, os("f"), FILE, (0, 0), |_| Body::Special);
    assert_eq!(twice.err(), Some(Errno::EEXIST));
    let long = "n".repeat(256);
    let sought = tree.lookup(a, os(&long));
    assert_eq!(sought.err(), Some(Errno::ENAMETOOLONG));
    let long = tree.create(a, os(&long), FILE, (0, 0), |_| Body::Special);
    assert_eq!(long.err(), Some(Errno::ENAMETOOLONG));
}

#[test]
fn renames() {
    let mut tree = Tree::new(1);
    let a = mkdir(&mut tree, ROOT, "a");
    let b = mkdir(&mut tree, a, "b");
    let f = touch(&mut tree, a, "f");
    let g = touch(&mut tree, b, "g");
    let loop_ = tree.rename((ROOT, os("a")), (b, os("x")), false);
    assert_eq!(loop_.err(), Some(Errno::EINVAL));
    let kept = tree.rename((a, os("f")), (b, os("g")), true);
    assert_eq!(kept.err(), Some(Errno::EEXIST));
    let gone = tree
        .rename((a, os("f")), (b, os("g")), false)
        .expect("rename");
    assert_eq!(gone.map(|node| node.ino), Some(g));
    assert_eq!(tree.lookup(b, os("g")).expect("moved").ino, f);
    tree.rename((a, os("b")), (ROOT, os("b")), false)
        .expect("move a directory");
    assert_eq!((nlink(&tree, ROOT), nlink(&tree, a)), (4, 2));
    assert_eq!(tree.lookup(b, os("..")).expect("parent").ino, ROOT);
    tree.exchange((ROOT, os("a")), (b, os("g")))
        .expect("exchange");
    assert_eq!(tree.lookup(ROOT, os("a")).expect("file").ino, f);
    assert_eq!((nlink(&tree, ROOT), nlink(&tree, b)), (3, 3));
    assert_eq!(tree.paths().get(&f).map(String::as_str), Some("a"));
}

/// A listing in parts shows every entry once although other entries are added and removed in
/// between.
#[test]
fn listings_go_on_where_they_were() {
    let mut tree = Tree::new(1);
    for i in 0..10 {
        touch(&mut tree, ROOT, &format!("f{i}"));
    }
    let first = tree.list(ROOT, 0).expect("list");
    let place = first[6].place;
    assert_eq!(first[6].name, "f4");
    for i in 0..5 {
        tree.unlink(ROOT, os(&format!("f{i}")), false)
            .expect("unlink");
    }
    assert_eq!(names(&tree, ROOT, place), ["f5", "f6", "f7", "f8", "f9"]);
    assert_eq!(names(&tree, ROOT, 1)[0], "..");
}

#[test]
fn groups_follow_the_directory() {
    let mut tree = Tree::new(1);
    let d = mkdir(&mut tree, ROOT, "d");
    {
        let node = tree.node(d).expect("node");
        let mut attrs = node.attrs.lock();
        attrs.gid = 42;
        attrs.mode |= libc::S_ISGID;
    }
    let f = touch(&mut tree, d, "f");
    let sub = mkdir(&mut tree, d, "sub");
    assert_eq!(tree.node(f).expect("node").attrs.lock().gid, 42);
    let sub = tree.node(sub).expect("node");
    assert_ne!(sub.attrs.lock().mode & libc::S_ISGID, 0);
}

#[test]
fn nodes_live_as_long_as_somebody_knows_them() {
    let mut tree = Tree::new(2);
    let f = touch(&mut tree, ROOT, "f");
    let node = tree.node(f).expect("node");
    node.told(1);
    tree.unlink(ROOT, os("f"), false).expect("unlink");
    tree.reap(f);
    assert!(tree.node(f).is_ok(), "a mount knows it");
    node.attrs.lock().lookups[1] = 0;
    tree.reap(f);
    assert_eq!(tree.node(f).err(), Some(Errno::ESTALE));
}
