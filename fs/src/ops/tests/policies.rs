//! Policies without a mount: what an open reads, and what a new file takes over.

use super::*;
use crate::backing::sys;
use layout_index::policy::{Drain, Key};
use std::os::unix::fs::PermissionsExt;

fn set(world: &World, node: u64, key: &str, value: &str) -> Result<()> {
    let name = format!("user.forebay.{key}");
    world
        .fs
        .setxattr(&me(), node, os(&name), value.as_bytes(), 0)
}

fn mkdir(world: &World, parent: u64, name: &str) -> u64 {
    let made = world.fs.mkdir(&me(), parent, os(name), 0o755, 0o022);
    made.unwrap().attr.ino
}

fn create_in(world: &World, dir: u64, name: &str) -> (u64, u64) {
    let flags = RDWR | libc::O_CREAT;
    let made = world
        .fs
        .create(&me(), dir, os(name), 0o644, 0o022, flags, None);
    let (entry, opened) = made.unwrap();
    (entry.attr.ino, opened.fh)
}

/// Sets an attribute as another node would, or a user without a mount.
fn set_below(world: &World, file: &str, key: &str, value: &str) {
    let name = std::ffi::CString::new(format!("user.forebay.{key}")).unwrap();
    let file = std::fs::File::open(world.path(file)).unwrap();
    sys::setxattr(file.as_fd(), &name, value.as_bytes(), 0).unwrap();
}

/// Makes the file's attributes look as if they had been listed a day later, when the file had long been unchanged.
fn a_day_later(world: &World, node: u64) {
    let inode = world.fs.inode(node).unwrap();
    // Later changes of the file must at least not be within the same clock tick.
    let ctime = |fd: std::os::fd::BorrowedFd<'_>| sys::glance(fd).unwrap().ctime;
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let now = tempfile::tempfile_in(world.path("")).unwrap();
        if ctime(now.as_fd()) != ctime(inode.fd()) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "the clock stands");
    }
    inode.learned.lock().as_mut().unwrap().at.0 += 86_400_000_000_000;
}

/// How often attributes are listed during `act`.
fn lists(act: impl FnOnce()) -> usize {
    let before = sys::LISTED.get();
    act();
    sys::LISTED.get() - before
}

/// S10.5: a change counts at once for everything that reads the file's policy, and for
/// writes from the next open on.
#[test]
fn an_attribute_counts_at_once_and_absorb_from_the_next_open() {
    let world = world();
    let (node, fh) = world.create("f");
    world.write(fh, 0, b"absorbed");
    let file = world.store_file(node);
    assert!(file.has_policy() && file.policy().is_empty());
    set(&world, node, "drain", "never").unwrap();
    set(&world, node, "absorb", "off").unwrap();
    assert_eq!(file.policy().drain, Some(Drain::Never));
    world.write(fh, 0, b"Absorbed");
    assert!(world.canonical("f").is_empty(), "this handle absorbs");
    let again = world.open(node, RDWR);
    world.write(again, 8, b" and through");
    assert_eq!(&world.canonical("f")[8..], b" and through");
    assert_eq!(world.read(fh, 0, 100), b"Absorbed and through");
    for key in ["drain", "absorb"] {
        let name = format!("user.forebay.{key}");
        world.fs.removexattr(&me(), node, os(&name)).unwrap();
    }
    assert!(file.policy().is_empty());
    world.drain(&file);
    assert_eq!(world.canonical("f"), b"Absorbed and through");
}

/// S10.2: a file takes over attributes of the directories above it, the nearest first, when it is made and
/// not later; also if mknod makes it.
#[test]
fn new_files_take_over_what_is_above_them() {
    let world = world();
    let a = mkdir(&world, ROOT, "a");
    let b = mkdir(&world, a, "b");
    let (before, _) = create_in(&world, b, "before");
    set(&world, a, "drain", "never").unwrap();
    set(&world, a, "keep", "true").unwrap();
    set(&world, b, "drain", "on-close").unwrap();
    let (after, _) = create_in(&world, b, "after");
    let made = world
        .fs
        .mknod(&me(), b, os("made"), libc::S_IFREG | 0o644, 0o022, 0)
        .unwrap();
    let made_open = world.open(made.attr.ino, RDWR);
    assert!(world.fs.handle(made_open).is_ok());
    assert!(world.store_file(before).policy().is_empty());
    for node in [after, made.attr.ino] {
        let policy = world.store_file(node).policy();
        assert_eq!(policy.drain, Some(Drain::OnClose));
        assert_eq!(policy.keep, Some(true));
    }
    // The policy is the same in another directory, under another name, and for a caller that only knows the file.
    world
        .fs
        .rename(&me(), b, os("after"), ROOT, os("moved"), 0)
        .unwrap();
    let file = world.store_file(after);
    let found = world.fs.policy_of(&file).unwrap();
    assert_eq!(found, file.policy());
    let explained = world.fs.explain(after).unwrap().unwrap();
    let of = |key: Key| explained.decisions.iter().find(|d| d.key == key).unwrap();
    let source = |dir: &str| crate::policy::Source::Directory(dir.to_owned());
    assert_eq!(of(Key::Drain).source, source("a/b"));
    assert_eq!(of(Key::Keep).source, source("a"));
    assert_eq!(of(Key::Close).source, crate::policy::Source::Default);
}

/// S10.3: such an attribute is refused, and nothing is left of it.
#[test]
fn nonsense_is_refused() {
    let world = world();
    let (node, _) = world.create("f");
    for (key, value) in [("drain", "later"), ("colour", "red"), ("", "x")] {
        let refused = set(&world, node, key, value).unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL, "{key}");
    }
    let inside = set(&world, node, "internal.inherited", "drain=never x");
    assert_eq!(inside.unwrap_err().errno(), libc::EPERM);
    assert!(world.store_file(node).policy().is_empty());
    let names = world.fs.listxattr(&me(), node, 0).unwrap();
    assert_eq!(names, Xattr::Length(0));
}

/// S10.2: "one that another node set on a file counts from its next open on"; also when the opens before and
/// after it are within the same second.
#[test]
fn what_is_set_elsewhere_counts_from_the_next_open() {
    let world = world();
    let (node, writer) = world.create("f");
    // After this write the ctime that is shown is not the backing's (S1.3).
    world.write(writer, 0, b"undrained");
    let drain = || {
        let fh = world.open(node, libc::O_RDONLY);
        let policy = world.store_file(node).policy();
        world.fs.release(fh).unwrap();
        policy.drain
    };
    assert_eq!(drain(), None);
    set_below(&world, "f", "drain", "never");
    assert_eq!(drain(), Some(Drain::Never));
    set_below(&world, "f", "drain", "on-close");
    assert_eq!(drain(), Some(Drain::OnClose));
    a_day_later(&world, node);
    assert_eq!(drain(), Some(Drain::OnClose));
    set_below(&world, "f", "drain", "never");
    assert_eq!(drain(), Some(Drain::Never));
}

/// S10.2: an attribute "counts from its next open on", and only files that may have changed pay for that with a
/// list (`docs/BENCHMARKS.md`).
#[test]
fn the_attributes_of_an_unchanged_file_are_not_listed_again() {
    let world = world();
    for (file, keep) in [("without", None), ("with", Some(true))] {
        std::fs::write(world.path(file), "x").unwrap();
        if keep.is_some() {
            set_below(&world, file, "keep", "true");
        }
        let node = world.lookup(file).unwrap().attr.ino;
        let open = || {
            lists(|| {
                let fh = world.open(node, libc::O_RDONLY);
                assert_eq!(world.store_file(node).policy().keep, keep);
                world.fs.release(fh).unwrap();
            })
        };
        assert_eq!(open(), 1, "{file}: never opened here");
        assert_eq!(open(), 1, "{file}: changed just now");
        a_day_later(&world, node);
        assert_eq!(open(), 0, "{file}: not changed since");
        assert_eq!(open(), 0, "{file}: nor now");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(world.path(file), mode).unwrap();
        assert_eq!(open(), 1, "{file}: changed, whatever it was");
    }
}
