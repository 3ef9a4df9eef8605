//! Requests of other users. These tests need root; an ordinary user's daemon has only one caller.

use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

const ALICE: Caller = Caller {
    uid: 4001,
    gid: 4001,
    pid: 0,
};
const BOB: Caller = Caller {
    uid: 4002,
    gid: 4002,
    pid: 0,
};

fn shared_world() -> World {
    assert!(
        nix::unistd::geteuid().is_root(),
        "run as root: these tests act as two users"
    );
    let w = world();
    std::fs::set_permissions(&w.backing, PermissionsExt::from_mode(0o1777)).unwrap();
    w
}

fn mode(w: &World, name: &str) -> u32 {
    w.path(name).metadata().unwrap().mode() & 0o7777
}

#[test]
fn files_belong_to_who_made_them() {
    let w = shared_world();
    let (entry, _) =
        w.fs.create(&ALICE, ROOT, os("a"), 0o666, 0o027, RDWR, None)
            .unwrap();
    assert_eq!((entry.attr.uid, entry.attr.gid), (4001, 4001));
    assert_eq!(mode(&w, "a"), 0o640);
    w.fs.mkdir(&ALICE, ROOT, os("d"), 0o777, 0o077).unwrap();
    assert_eq!(mode(&w, "d"), 0o700);
}

#[test]
fn the_backing_refuses_strangers() {
    let w = shared_world();
    let (entry, opened) =
        w.fs.create(&ALICE, ROOT, os("a"), 0o600, 0, RDWR, None)
            .unwrap();
    let node = entry.attr.ino;
    w.write(opened.fh, 0, b"private");
    let refused = |e: Result<()>, errno| assert_eq!(e.unwrap_err().errno(), errno);
    refused(
        w.fs.open(&BOB, node, libc::O_RDONLY, None).map(drop),
        libc::EACCES,
    );
    refused(
        w.fs.open(&BOB, node, RDWR | libc::O_TRUNC, None).map(drop),
        libc::EACCES,
    );
    let set = |set: SetAttr| w.fs.setattr(&BOB, node, None, &set).map(drop);
    refused(
        set(SetAttr {
            size: Some(0),
            ..SetAttr::default()
        }),
        libc::EACCES,
    );
    refused(
        set(SetAttr {
            mode: Some(0o777),
            ..SetAttr::default()
        }),
        libc::EPERM,
    );
    refused(
        set(SetAttr {
            uid: Some(4002),
            ..SetAttr::default()
        }),
        libc::EPERM,
    );
    // The directory is sticky.
    refused(w.fs.unlink(&BOB, ROOT, os("a")), libc::EPERM);
    refused(
        w.fs.rename(&BOB, ROOT, os("a"), ROOT, os("b"), 0),
        libc::EPERM,
    );
    refused(w.fs.access(&BOB, node, libc::R_OK), libc::EACCES);
    assert_eq!(w.read(opened.fh, 0, 10), b"private");
}

#[test]
fn a_write_takes_setuid_away_and_root_keeps_it() {
    let w = shared_world();
    std::fs::write(w.path("s"), "x").unwrap();
    let set = || {
        chown(w.path("s"), Some(4001), Some(4001)).unwrap();
        std::fs::set_permissions(w.path("s"), PermissionsExt::from_mode(0o6777)).unwrap();
    };
    set();
    let node = w.lookup("s").unwrap().attr.ino;
    let fh = w.fs.open(&BOB, node, RDWR, None).unwrap().fh;
    let handle = w.fs.handle(fh).unwrap();
    w.fs.write(&handle, 0, b"r", false, false).unwrap();
    assert_eq!(mode(&w, "s"), 0o6777);
    w.fs.write(&handle, 0, b"y", true, false).unwrap();
    assert_eq!(mode(&w, "s"), 0o777);
    assert!(w.fs.try_write(&handle, 1, b"z", true));
    // Setuid is set again through the mount: the next write checks again.
    let again = SetAttr {
        mode: Some(0o4777),
        ..SetAttr::default()
    };
    w.fs.setattr(&ALICE, node, None, &again).unwrap();
    assert!(!w.fs.try_write(&handle, 1, b"z", true));
    w.fs.write(&handle, 1, b"z", true, false).unwrap();
    assert_eq!(mode(&w, "s"), 0o777);
    set();
    w.fs.open(&BOB, node, RDWR | libc::O_TRUNC, None).unwrap();
    assert_eq!(mode(&w, "s"), 0o777);
}

#[test]
fn the_kernel_may_take_setuid_away_in_a_writers_name() {
    let w = shared_world();
    std::fs::write(w.path("s"), "x").unwrap();
    chown(w.path("s"), Some(4001), Some(4001)).unwrap();
    std::fs::set_permissions(w.path("s"), PermissionsExt::from_mode(0o4666)).unwrap();
    let node = w.lookup("s").unwrap().attr.ino;
    let chmod = |mode| {
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        w.fs.setattr(&BOB, node, None, &set).map(drop)
    };
    chmod(libc::S_IFREG | 0o666).unwrap();
    assert_eq!(mode(&w, "s"), 0o666);
    // Clearing setuid is the only change that is allowed: neither setting bits nor changing other bits is.
    assert_eq!(chmod(0o4666).unwrap_err().errno(), libc::EPERM);
    assert_eq!(chmod(0o644).unwrap_err().errno(), libc::EPERM);
    assert_eq!(chmod(0o666).unwrap_err().errno(), libc::EPERM);
}

#[test]
fn a_write_only_file_can_be_written() {
    let w = shared_world();
    std::fs::write(w.path("drop"), "").unwrap();
    std::fs::set_permissions(w.path("drop"), PermissionsExt::from_mode(0o222)).unwrap();
    let node = w.lookup("drop").unwrap().attr.ino;
    let fh = w.fs.open(&BOB, node, libc::O_WRONLY, None).unwrap().fh;
    w.write(fh, 0, b"in");
    w.drain(&w.store_file(node));
    assert_eq!(w.canonical("drop"), b"in");
}

#[test]
fn programs_need_no_read_permission_to_run() {
    let w = shared_world();
    std::fs::write(w.path("run"), "#!").unwrap();
    std::fs::set_permissions(w.path("run"), PermissionsExt::from_mode(0o711)).unwrap();
    let node = w.lookup("run").unwrap().attr.ino;
    let open = |flags| w.fs.open(&BOB, node, flags, None).map(drop);
    assert_eq!(open(libc::O_RDONLY).unwrap_err().errno(), libc::EACCES);
    open(libc::O_RDONLY | 0x20).unwrap();
}

#[test]
fn a_swapped_link_leads_nowhere() {
    let w = shared_world();
    std::fs::create_dir(w.path("d")).unwrap();
    std::fs::write(w.path("d/passwd"), "mine").unwrap();
    let dir = w.lookup("d").unwrap().attr.ino;
    std::fs::rename(w.path("d"), w.path("d2")).unwrap();
    std::os::unix::fs::symlink("/etc", w.path("d")).unwrap();
    // The node still stands for the same directory.
    let entry = w.fs.lookup(&ALICE, dir, os("passwd")).unwrap();
    assert_eq!(entry.attr.size, 4);
    let link = w.lookup("d").unwrap().attr.ino;
    let e = w.fs.lookup(&ALICE, link, os("passwd")).unwrap_err();
    assert_eq!(e.errno(), libc::ENOTDIR);
}

/// Debug builds panic if the store is called while another identity is in force.
#[test]
fn the_store_is_only_called_as_the_daemon() {
    let w = shared_world();
    let (entry, opened) =
        w.fs.create(&ALICE, ROOT, os("a"), 0o644, 0, RDWR, None)
            .unwrap();
    let node = entry.attr.ino;
    w.write(opened.fh, 0, b"bytes");
    w.fs.lookup(&ALICE, ROOT, os("a")).unwrap();
    w.fs.mkdir(&ALICE, ROOT, os("d"), 0o755, 0).unwrap();
    w.fs.symlink(&ALICE, ROOT, os("l"), b"a").unwrap();
    w.fs.link(&ALICE, node, ROOT, os("b")).unwrap();
    let dir = w.fs.opendir(&ALICE, ROOT).unwrap();
    let known = w.fs.known_inodes();
    // The callback accepts no entry, so each lookup is undone, also that of a removed file.
    std::fs::write(w.path("c"), "").unwrap();
    let mut at = 0;
    loop {
        let mut next = None;
        w.fs.readdirplus(&ALICE, dir, at, &mut |e, _| {
            next = Some(e.next);
            true
        })
        .unwrap();
        match next {
            Some(next) => at = next,
            None => break,
        }
    }
    assert_eq!(w.fs.known_inodes(), known);
    let set = SetAttr {
        size: Some(2),
        mtime: Some(crate::types::SetTime::Now),
        ..SetAttr::default()
    };
    w.fs.setattr(&ALICE, node, None, &set).unwrap();
    w.fs.unlink(&ALICE, ROOT, os("a")).unwrap();
    w.fs.rename(&ALICE, ROOT, os("b"), ROOT, os("e"), 0)
        .unwrap();
    w.fs.unlink(&ALICE, ROOT, os("e")).unwrap();
    w.fs.release(opened.fh).unwrap();
    let guard = Creds::of(&ALICE).enter().unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| w.fs.store().totals()));
    drop(guard);
    assert_eq!(caught.is_err(), cfg!(debug_assertions));
}
