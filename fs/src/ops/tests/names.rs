use super::*;
use std::os::unix::fs::MetadataExt;

fn list(w: &World, plus: bool) -> Vec<String> {
    let fh = w.fs.opendir(&me(), ROOT).unwrap();
    let mut names = vec![];
    let mut at = 0;
    // List one entry at a time, so that every offset is used.
    loop {
        let mut seen = None;
        if plus {
            w.fs.readdirplus(&me(), fh, at, &mut |e, found| {
                if seen.is_some() {
                    return true;
                }
                let dots = matches!(e.name.to_bytes(), b"." | b"..");
                assert_eq!(found.is_none(), dots);
                seen = Some(e.clone());
                false
            })
        } else {
            w.fs.readdir(&me(), fh, at, &mut |e| {
                if seen.is_some() {
                    return true;
                }
                seen = Some(e.clone());
                false
            })
        }
        .unwrap();
        let Some(entry) = seen else { break };
        at = entry.next;
        names.push(entry.name.into_string().unwrap());
    }
    w.fs.releasedir(fh).unwrap();
    names.sort();
    names
}

#[test]
fn listings_are_complete_and_hide_our_own() {
    let w = world();
    std::fs::create_dir(w.path(".forebay")).unwrap();
    for i in 0..300 {
        std::fs::write(w.path(&format!("f{i:03}")), "").unwrap();
    }
    for plus in [false, true] {
        let names = list(&w, plus);
        assert_eq!(names.len(), 302, "plus {plus}");
        assert!(!names.contains(&".forebay".into()));
    }
    assert_eq!(w.fs.known_inodes(), 301);
}

#[test]
fn reserved_names_do_not_exist() {
    let w = world();
    std::fs::create_dir(w.path(".forebay")).unwrap();
    std::fs::write(w.path("f"), "").unwrap();
    let c = me();
    let name = os(".forebay");
    assert_eq!(w.lookup(".forebay").unwrap_err().errno(), libc::ENOENT);
    let node = w.lookup("f").unwrap().attr.ino;
    let errors = [
        w.fs.mkdir(&c, ROOT, name, 0o755, 0).map(drop),
        w.fs.mknod(&c, ROOT, name, libc::S_IFREG, 0, 0).map(drop),
        w.fs.symlink(&c, ROOT, name, b"x").map(drop),
        w.fs.link(&c, node, ROOT, name).map(drop),
        w.fs.unlink(&c, ROOT, name),
        w.fs.rmdir(&c, ROOT, name),
        w.fs.rename(&c, ROOT, name, ROOT, os("x"), 0),
        w.fs.rename(&c, ROOT, os("f"), ROOT, name, 0),
        w.fs.create(&c, ROOT, name, 0o644, 0, RDWR, None).map(drop),
    ];
    for (i, e) in errors.into_iter().enumerate() {
        assert_eq!(e.unwrap_err().errno(), libc::EPERM, "case {i}");
    }
}

#[test]
fn internal_attributes_do_not_exist() {
    let w = world();
    std::fs::write(w.path("f"), "").unwrap();
    let node = w.lookup("f").unwrap().attr.ino;
    let c = me();
    let name = os("user.forebay.internal.x");
    let set = |n: &str| w.fs.setxattr(&c, node, os(n), b"v", 0);
    assert_eq!(
        set("user.forebay.internal.x").unwrap_err().errno(),
        libc::EPERM
    );
    assert_eq!(
        w.fs.getxattr(&c, node, name, 10).unwrap_err().errno(),
        libc::ENODATA
    );
    assert_eq!(
        w.fs.removexattr(&c, node, name).unwrap_err().errno(),
        libc::EPERM
    );
    match set("user.mine") {
        Err(e) if e.errno() == libc::EOPNOTSUPP => return,
        other => other.unwrap(),
    }
    assert_eq!(
        w.fs.getxattr(&c, node, os("user.mine"), 10).unwrap(),
        Xattr::Value(b"v".to_vec())
    );
    let Xattr::Value(names) = w.fs.listxattr(&c, node, 1000).unwrap() else {
        panic!("asked for names");
    };
    assert!(names.windows(9).any(|n| n == b"user.mine"));
    assert_eq!(
        w.fs.listxattr(&c, node, 2).unwrap_err().errno(),
        libc::ERANGE
    );
}

#[test]
fn special_files_are_made_and_never_opened() {
    let w = world();
    let mode = libc::S_IFIFO | 0o600;
    let entry = w.fs.mknod(&me(), ROOT, os("p"), mode, 0, 0).unwrap();
    assert_eq!(entry.attr.mode & libc::S_IFMT, libc::S_IFIFO);
    let node = entry.attr.ino;
    assert!(w.fs.open(&me(), node, RDWR, None).is_err());
    let e =
        w.fs.create(&me(), ROOT, os("p"), 0o600, 0, RDWR | libc::O_CREAT, None);
    assert!(e.is_err());
    let link = w.fs.symlink(&me(), ROOT, os("l"), b"/etc/passwd").unwrap();
    assert_eq!(w.fs.readlink(&me(), link.attr.ino).unwrap(), b"/etc/passwd");
    assert!(
        w.fs.open(&me(), link.attr.ino, libc::O_RDONLY, None)
            .is_err()
    );
}

#[test]
fn removed_data_goes_with_the_last_reference() {
    let w = world();
    let (node, fh) = w.create("f");
    w.write(fh, 0, b"secret");
    let file = w.store_file(node);
    w.fs.unlink(&me(), ROOT, os("f")).unwrap();
    assert!(file.is_unlinked());
    assert_eq!(w.read(fh, 0, 10), b"secret");
    w.write(fh, 6, b"!");
    assert_eq!(w.read(fh, 0, 10), b"secret!");
    assert!(w.fs.forget(node, 1).is_none());
    w.fs.release(fh).unwrap();
    assert!(file.is_clean());
    assert_eq!(w.fs.store.totals().undrained, 0);
    assert!(w.fs.inode(node).is_err());
}

/// S1.5: while this node removes a file, the file has no name and is not marked as removed. The drain must not take it
/// for one that another node has removed: it would drop bytes that are still read here.
#[test]
fn a_removal_that_is_under_way_is_this_nodes() {
    let w = world();
    let (node, _fh) = w.create("f");
    let inode = w.fs.inode(node).unwrap();
    let removal = w.fs.removals.begin(inode.id);
    assert!(!w.fs.lost_its_name(&inode, 0));
    drop(removal);
    assert!(w.fs.lost_its_name(&inode, 0), "removed elsewhere");
    w.fs.unlink(&me(), ROOT, os("f")).unwrap();
    assert!(!w.fs.lost_its_name(&inode, 0), "noted");
    assert!(!w.fs.removals.contains(&inode.id));
}

/// S1.5: a job of the drain that meets a removed file, after its last close, does not keep it.
#[test]
fn removed_data_goes_although_the_drain_had_a_job_for_it() {
    let w = world();
    let (node, fh) = w.create("f");
    w.write(fh, 0, b"secret");
    let file = w.store_file(node);
    w.fs.unlink(&me(), ROOT, os("f")).unwrap();
    w.fs.release(fh).unwrap();
    w.fs.file_clean(file.id());
    let gone = w.fs.forget(node, 1).expect("the last reference");
    w.fs.let_go(gone);
    assert_eq!(w.fs.store.totals().undrained, 0);
}

#[test]
fn an_open_that_was_under_way_finds_the_bytes() {
    let w = world();
    let (node, fh) = w.create("f");
    w.write(fh, 0, b"bytes");
    w.fs.release(fh).unwrap();
    w.fs.unlink(&me(), ROOT, os("f")).unwrap();
    let late = w.open(node, libc::O_RDONLY);
    assert_eq!(w.read(late, 0, 10), b"bytes");
    w.fs.release(late).unwrap();
    let gone = w.fs.forget(node, 1).expect("the last reference");
    assert!(w.fs.store.totals().undrained > 0);
    w.fs.let_go(gone);
    assert_eq!(w.fs.store.totals().undrained, 0);
}

#[test]
fn a_file_written_after_its_removal_is_not_drained() {
    let w = world();
    let (node, fh) = w.create("f");
    w.fs.unlink(&me(), ROOT, os("f")).unwrap();
    w.write(fh, 0, b"temporary");
    assert!(w.store_file(node).is_unlinked());
    assert_eq!(w.read(fh, 0, 20), b"temporary");
}

#[test]
fn renaming_over_a_dirty_file_cancels_it_and_keeps_the_other() {
    let w = world();
    let (a, fa) = w.create("a");
    let (b, fb) = w.create("b");
    w.write(fa, 0, b"from a");
    w.write(fb, 0, b"from b");
    w.fs.rename(&me(), ROOT, os("a"), ROOT, os("b"), 0).unwrap();
    assert_eq!(w.read(fb, 0, 10), b"from b");
    assert!(w.store_file(b).is_unlinked());
    assert!(!w.store_file(a).is_unlinked());
    assert_eq!(w.lookup("b").unwrap().attr.ino, a);
    w.drain(&w.store_file(a));
    assert_eq!(w.canonical("b"), b"from a");
    let e =
        w.fs.rename(&me(), ROOT, os("x"), ROOT, os("b"), libc::RENAME_NOREPLACE);
    assert_eq!(e.unwrap_err().errno(), libc::ENOENT);
}

#[test]
fn exchanged_files_keep_their_data() {
    let w = world();
    let (a, fa) = w.create("a");
    let (b, fb) = w.create("b");
    w.write(fa, 0, b"A");
    w.write(fb, 0, b"B");
    w.fs.rename(&me(), ROOT, os("a"), ROOT, os("b"), libc::RENAME_EXCHANGE)
        .unwrap();
    w.drain(&w.store_file(a));
    w.drain(&w.store_file(b));
    assert_eq!(
        (w.canonical("a"), w.canonical("b")),
        (b"B".into(), b"A".into())
    );
}

#[test]
fn a_hard_link_keeps_the_data_alive() {
    let w = world();
    let (node, fh) = w.create("a");
    w.write(fh, 0, b"both");
    let entry = w.fs.link(&me(), node, ROOT, os("b")).unwrap();
    assert_eq!((entry.attr.ino, entry.attr.nlink), (node, 2));
    w.fs.unlink(&me(), ROOT, os("a")).unwrap();
    w.fs.release(fh).unwrap();
    let file = w.store_file(node);
    assert!(!file.is_unlinked());
    w.drain(&file);
    assert_eq!(w.canonical("b"), b"both");
}

#[test]
fn a_dirty_file_is_found_after_forgetting_and_renaming() {
    let w = world();
    let (node, fh) = w.create("a");
    w.write(fh, 0, b"data");
    let file = w.store_file(node);
    w.fs.release(fh).unwrap();
    assert!(w.fs.forget(node, 1).is_none());
    std::fs::create_dir(w.path("deep")).unwrap();
    std::fs::rename(w.path("a"), w.path("deep/b")).unwrap();
    assert_eq!(w.fs.path_of(file.id()), Some(PathBuf::from("deep/b")));
    w.drain(&file);
    assert_eq!(w.canonical("deep/b"), b"data");
    assert_eq!(w.fs.known_inodes(), 1);
}

#[test]
fn node_numbers_are_inode_numbers() {
    let w = world();
    std::fs::write(w.path("f"), "").unwrap();
    let attr = w.lookup("f").unwrap().attr;
    assert_eq!(attr.ino, std::fs::metadata(w.path("f")).unwrap().ino());
    assert_eq!(
        w.fs.getattr(ROOT).unwrap().ino,
        w.backing.metadata().unwrap().ino()
    );
    assert_eq!(w.fs.getattr(99).unwrap_err().errno(), libc::ESTALE);
}

#[test]
fn forgetting_frees_nothing() {
    let w = world();
    let (node, fh) = w.create("f");
    w.fs.release(fh).unwrap();
    let inode = Arc::downgrade(&w.fs.inode(node).unwrap());
    let gone = w.fs.forget(node, 1).expect("the last reference");
    assert_eq!(inode.strong_count(), 1);
    w.fs.let_go(gone);
    assert_eq!(inode.strong_count(), 0);
}
