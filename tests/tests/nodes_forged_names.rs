//! Hostile names in the shared directory, directories that are links, announcements of nodes that do not exist; and
//! what a user who is not root can do about any of it.
//!
//! As in `nodes_forged.rs`: nothing outside is read or written, no process hangs, and the log says why.

mod nodes_forge;
mod nodes_pair;

use forebay_tests::daemon_log;
use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{Drain, assert_same, get, put, text};
use forebay_tests::users::{ALICE, BOB, as_user};
use forebay_tests::wait::{LONG, wait_until};
use nodes_forge::{SECRET, Scene, census, fifo};
use nodes_pair::{Shared, list, name_of};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

/// Makes the directory to which links lead: it is outside of the backing and has something in it.
fn trap(scene: &Scene) -> PathBuf {
    let trap = scene.a.root().join("trap");
    fs::create_dir(&trap).expect("mkdir");
    put(trap.join("sentinel"), SECRET);
    trap
}

/// The message about a name that is no directory.
const STANDS: &str = "a file or a link stands where its directory";

/// Puts what `make` makes in the place of the file's directory, judges, and puts the directory back.
fn in_its_place(scene: &Scene, what: &str, words: &[&str], make: impl Fn(&Path)) {
    let dir = &scene.dir;
    let aside = dir.with_file_name("aside");
    scene.mark();
    fs::rename(dir, &aside).expect("move aside");
    make(dir);
    scene.judge(what, words);
    match fs::symlink_metadata(dir) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(dir).expect("remove"),
        Ok(_) => fs::remove_file(dir).expect("remove"),
        Err(_) => {}
    }
    fs::rename(&aside, dir).expect("put it back");
}

/// A link, a file, a FIFO or another user's directory is in the place of the directory of a file.
#[test]
fn the_directory_of_a_file_is_something_else() {
    let scene = Scene::new();
    let trap = trap(&scene);
    let before = census(&trap);
    in_its_place(&scene, "a link", &[STANDS], |p| {
        symlink(&trap, p).expect("symlink")
    });
    in_its_place(&scene, "a file", &[STANDS], |p| put(p, b"a file"));
    in_its_place(&scene, "a FIFO", &[STANDS], fifo);
    let (not_ours, bobs) = ("is not the daemon's alone", format!("owner {BOB}"));
    in_its_place(&scene, "Bob's directory", &[not_ours, &bobs], |p| {
        fs::create_dir(p).expect("mkdir");
        chown(p, Some(BOB), Some(BOB)).expect("chown");
    });
    in_its_place(&scene, "everybody's", &[not_ours, "mode 777"], |p| {
        fs::create_dir(p).expect("mkdir");
        fs::set_permissions(p, fs::Permissions::from_mode(0o777)).expect("chmod");
    });
    assert_eq!(census(&trap), before, "something got out");
    scene.touch();
    assert_eq!(scene.read().expect("read"), scene.want);
    scene.finish();
}

/// The same for the directories above, while daemons run and when one starts. Running daemons have these directories
/// open and go on; with each heartbeat they check whether the two that all others need are still the same.
#[test]
fn a_directory_above_is_a_link() {
    let mut scene = Scene::new();
    scene.b.allow_log(STANDS).allow_log("large");
    let trap = trap(&scene);
    let before = census(&trap);
    let shared_dir = scene.shared.shared_dir();
    let own_notes = shared_dir.join("notes").join(scene.shared.id_of("b"));
    let group = scene.dir.parent().expect("a group").to_owned();
    for (dir, running) in [
        (own_notes.clone(), None),
        (shared_dir.join("notes"), None),
        (shared_dir.join("nodes"), None),
        (group, None),
        (
            shared_dir.join("files"),
            Some("files was removed or replaced"),
        ),
        (shared_dir.join("subfiles"), Some(STANDS)),
        (shared_dir.clone(), Some(".forebay was removed or replaced")),
    ] {
        let what = format!("a link at {}", dir.display());
        let aside = dir.with_file_name("aside");
        scene.mark();
        fs::rename(&dir, &aside).expect("move aside");
        symlink(&trap, &dir).expect("symlink");
        if dir.ends_with("subfiles") {
            // A daemon looks at this directory when it has more to publish than fits into a layout.
            put(scene.b.path("large"), vec![7; 100_000]);
        }
        match running {
            Some(says) => scene.judge(&what, &[says]),
            None => scene.judge_harmless(&what),
        }
        // Another node does not use the notes for `b`.
        let says = match dir == own_notes {
            true => String::new(),
            false => format!("{STANDS} {} must be", name_of(&dir)),
        };
        starts_late(&scene, &what, &says);
        fs::remove_file(&dir).expect("remove");
        fs::rename(&aside, &dir).expect("put it back");
        assert_eq!(census(&trap), before, "{what}: something got out");
    }
    scene.touch();
    assert_eq!(scene.read().expect("read"), scene.want);
    let Scene { mut a, mut b, .. } = scene;
    a.kill();
    b.kill();
}

/// Starts a node, which must log `says` and then mount or fail. Ends the node.
fn starts_late(scene: &Scene, what: &str, says: &str) {
    let late = scene.shared.node("late", Drain::Never);
    let log = late.root().join("late.log");
    let out = File::create(&log).expect("make a log");
    let mut command = late.mount_command();
    command
        .arg("--foreground")
        .stdout(out.try_clone().expect("share the log"))
        .stderr(out);
    sys::die_with_parent(&mut command);
    let mut child = command.spawn().expect("start forebay");
    let said = || daemon_log::read(&log).contains(says);
    let ended = wait_until("it ends, or mounts and speaks", LONG, || {
        let ended = child.try_wait().expect("ask after the daemon");
        (ended.is_some() || sys::is_mounted(late.mnt()) && said()).then_some(ended)
    });
    match ended {
        Some(status) => assert!(!status.success(), "{what}: it ended well without a mount"),
        None => {
            child.kill().expect("kill");
            sys::force_detach(late.mnt()).expect("detach");
            child.wait().expect("wait");
        }
    }
    let log = daemon_log::read(&log);
    assert!(log.contains(says), "{what}: not {says:?} but {log}");
}

/// An announcement of a node that does not exist: an open of the file fails within the timeout, and nothing else is
/// held up.
#[test]
fn announcements_of_unknown_nodes() {
    let scene = Scene::new();
    for (name, text) in [
        ("i.0123456789abcdef.00000001.0", "0123456789abcdef.00000001"),
        ("i.ffffffffffffffff.ffffffff.ffffffffffffffff", "x"),
        ("i.0000000000000000.00000000.0", "../../../../etc/passwd"),
    ] {
        let at = scene.dir.join(name);
        symlink(text, &at).expect("symlink");
        scene.touch();
        let e = scene.read().expect_err("no node fulfils that announcement");
        assert_ne!(e.raw_os_error(), Some(libc::ENOENT), "the file is there");
        let id = name.split('.').nth(1).expect("an id");
        scene.judge(name, &[id, "has closed it and not published"]);
        fs::remove_file(&at).expect("remove");
        scene.restore(name);
    }
    scene.finish();
}

/// An announcement of a node whose directory for notes is a link and whose record is damaged: the daemon that waits
/// logs the first, and a command that looks at nodes reports the second.
#[test]
fn announcements_of_damaged_nodes() {
    let scene = Scene::new();
    let trap = trap(&scene);
    let before = census(&trap);
    let shared_dir = scene.shared.shared_dir();
    let id = "0123456789abcdef";
    let announcement = scene.dir.join(format!("i.{id}.00000001.0"));
    symlink("x", &announcement).expect("symlink");
    symlink(&trap, shared_dir.join("notes").join(id)).expect("symlink");
    let record = shared_dir.join("nodes").join(id);
    let notes = format!("{STANDS} {id} must be");
    let judge = |what: &str| {
        scene.judge(what, &["asking for", &notes]);
        let state = scene.state_of(id);
        assert!(state.contains("is damaged"), "{what}: {state}");
    };
    for bytes in [
        &b""[..],
        b"\xff\xfe",
        b"version = 1\nname = \"x\\u001b[2J\"\nrun = \"1\"\nlease_ms = 1000\n",
        b"version = 1\nname = \"x\"\nrun = \"00000001\"\nlease_ms = 18446744073709551615\n",
    ] {
        scene.mark();
        put(&record, bytes);
        scene.touch();
        judge("a damaged record");
        assert!(scene.read().is_err(), "no node fulfils that announcement");
    }
    fs::remove_file(&record).expect("remove");
    scene.mark();
    symlink(scene.secret.as_path(), &record).expect("symlink");
    judge("a record that is a link");
    assert_eq!(census(&trap), before, "something got out");
    for left in [record, announcement, shared_dir.join("notes").join(id)] {
        fs::remove_file(left).expect("remove");
    }
    scene.restore("a damaged node");
    assert!(!scene.b.log().contains("\u{1b}[2J"), "the log of b");
    scene.finish();
}

/// Names that no node gives stay where they are and have no other effect. Those in the directory of a file are
/// reported; elsewhere a name that is not the name of a node, a note or a file is passed over.
#[test]
fn strange_names_are_left_alone() {
    let scene = Scene::new();
    let shared_dir = scene.shared.shared_dir();
    let own_notes = shared_dir.join("notes").join(scene.shared.id_of("b"));
    let long = "l.".to_owned() + &"0".repeat(253);
    let names: Vec<&[u8]> = vec![
        b"\xff\xfe\xfd",
        b"new\nline",
        b"\x1b[31mred",
        b"l.0.0",
        b"l.0123456789abcdef.00000001",
        b"l.0123456789ABCDEF.1",
        b"c.",
        b"c.zz",
        b"d.1.1",
        b"f.1.1.1.1.1",
        b"b.0x1",
        b"i.1.2.3",
        b"t.0123456789abcdef.zz",
        b"...",
        b" ",
        long.as_bytes(),
    ];
    for dir in [
        &scene.dir,
        &own_notes,
        &shared_dir.join("nodes"),
        &shared_dir.join("files"),
    ] {
        for name in &names {
            put(dir.join(OsStr::from_bytes(name)), b"strange");
        }
        scene.touch();
        scene.judge_harmless("strange names");
        for name in &names {
            let path = dir.join(OsStr::from_bytes(name));
            assert_eq!(get(&path), b"strange", "{}", path.display());
        }
    }
    let problems = scene.problems();
    // A name that is not text cannot be one of ours, and is not read.
    for name in names
        .iter()
        .filter_map(|name| std::str::from_utf8(name).ok())
    {
        let says = format!("{name:?} is no name that a node gives");
        assert!(problems.contains(&says), "{says}: {problems}");
    }
    // A drain leaves the names alone as well.
    scene.b.drain();
    for dir in [
        &scene.dir,
        &own_notes,
        &shared_dir.join("nodes"),
        &shared_dir.join("files"),
    ] {
        for name in &names {
            let path = dir.join(OsStr::from_bytes(name));
            assert_eq!(get(&path), b"strange", "{}", path.display());
            fs::remove_file(path).expect("remove");
        }
    }
    scene.finish();
}

/// Terms that cannot be: the largest number, and things that are no links.
#[test]
fn terms_that_cannot_be() {
    let scene = Scene::new();
    let live = format!("{}.00000000", scene.node);
    type Make<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Make<'_>); 4] = [
        ("c.ffffffffffffffff", &|p| {
            symlink(&live, p).expect("symlink")
        }),
        ("c.7", &|p| put(p, b"a file")),
        ("c.8", &fifo),
        ("c.9", &|p| symlink("nobody", p).expect("symlink")),
    ];
    for (name, make) in cases {
        let path = scene.dir.join(name);
        scene.mark();
        make(&path);
        scene.touch();
        match name {
            // A daemon that wants to drain the file logs this.
            "c.ffffffffffffffff" => scene.judge(name, &[name, "no term can follow it"]),
            _ => scene.judge_by_status(name, &format!("{name:?} is no name that a node gives")),
        }
        if fs::symlink_metadata(&path).is_ok() {
            fs::remove_file(&path).expect("remove");
        }
        scene.touch();
        assert_eq!(scene.read().expect("read"), scene.want, "after {name}");
    }
    scene.finish();
}

/// A user who is not root sees nothing of the shared directory through the mount and cannot get into it below, and
/// the same names in the user's own directories mean nothing.
#[test]
fn other_users_get_nothing_by_it() {
    let scene = Scene::new();
    let below = scene.shared.shared_dir();
    for mnt in [scene.a.mnt(), scene.b.mnt()] {
        as_user(BOB, &[], || {
            let names: Vec<String> = list(mnt).iter().map(|p| name_of(p)).collect();
            assert!(!names.contains(&".forebay".to_owned()), "{names:?}");
            let inside = mnt.join(".forebay");
            assert_eq!(errno(fs::metadata(&inside), "stat"), libc::ENOENT);
            assert!(fs::create_dir(&inside).is_err(), "mkdir .forebay");
            assert!(symlink("x", &inside).is_err(), "symlink .forebay");
            assert!(File::create(inside.join("x")).is_err());
            let moved = fs::rename(mnt, &inside);
            assert!(moved.is_err(), "rename to .forebay");
        });
    }
    as_user(BOB, &[], || {
        assert_eq!(errno(fs::read_dir(&below), "list"), libc::EACCES);
        for at in [
            below.join("files/x"),
            below.join("notes/x"),
            below.join("subfiles/x"),
        ] {
            assert_eq!(errno(File::create(&at), "create"), libc::EACCES);
        }
        let moved = fs::rename(&below, below.with_file_name("moved"));
        // The backing of this test is open to all and has no sticky bit: then the directory can be renamed, which
        // the daemons notice. Its content stays closed.
        if moved.is_ok() {
            fs::rename(below.with_file_name("moved"), &below).expect("put it back");
        }
        // Bob's own tree has the same shape.
        let own = scene.shared.backing().join("bobs-own");
        fs::create_dir(&own).expect("mkdir");
        let fid = scene.dir.strip_prefix(&below).expect("below");
        fs::create_dir_all(own.join(".forebay").join(fid)).expect("mkdir");
        put(
            own.join(".forebay")
                .join(fid)
                .join("i.0123456789abcdef.00000001.0"),
            b"",
        );
    });
    assert_eq!(scene.read().expect("read"), scene.want);
    let path = scene.b.path("alices");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    as_user(BOB, &[], || {
        assert_eq!(errno(File::open(&path), "open"), libc::EACCES);
    });
    // Bob cannot forge an announcement in the shared directory, and the one in Bob's own tree is not read.
    scene.judge_harmless("in the end");
    scene.finish();
}

/// Any user who may write to the backing's root can make `.forebay` first. A daemon trusts nothing that is not its
/// own, and says so.
#[test]
fn a_shared_directory_that_somebody_else_made_first() {
    for kind in ["Bob's", "a link", "open to all"] {
        let shared = Shared::plain();
        let at = shared.shared_dir();
        let trap = shared.backing().join("trap");
        as_user(BOB, &[], || {
            fs::create_dir(&trap).expect("mkdir");
            match kind {
                "a link" => symlink(&trap, &at).expect("symlink"),
                _ => fs::create_dir(&at).expect("mkdir"),
            }
        });
        if kind == "open to all" {
            chown(&at, Some(0), Some(0)).expect("chown");
            fs::set_permissions(&at, fs::Permissions::from_mode(0o777)).expect("chmod");
        }
        let mount = shared.node("n", Drain::Never);
        let out = mount.mount_command().arg("--foreground").output();
        let out = out.expect("start forebay");
        assert!(!out.status.success(), "{kind}: it went through");
        let said = text(&out);
        assert!(said.contains(".forebay"), "{kind}: {said}");
        assert!(!sys::is_mounted(mount.mnt()), "{kind}");
        assert_eq!(list(&trap), Vec::<PathBuf>::new(), "{kind}");
    }
}

/// Alice's file stays hers while its bytes are on their way through subfiles: no other user can read these.
#[test]
fn subfiles_are_not_for_others() {
    let scene = Scene::new();
    let large = vec![7u8; 3 << 20];
    let path = scene.a.path("large");
    as_user(ALICE, &[], || put(&path, &large));
    let subfiles = scene.shared.subfiles();
    assert!(!subfiles.is_empty(), "published in subfiles");
    as_user(BOB, &[], || {
        for path in &subfiles {
            assert_eq!(errno(File::open(path), "open"), libc::EACCES);
        }
    });
    scene.finish();
}

/// A subfile that belongs to another user than its file is refused. So a file that gets another owner has nothing in
/// subfiles any more: it stays readable on every node.
#[test]
fn a_file_that_gets_another_owner_stays_readable() {
    let scene = Scene::new();
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n % 253) as u8).collect();
    let path = scene.a.path("large");
    as_user(ALICE, &[], || put(&path, &large));
    assert!(!scene.shared.subfiles().is_empty(), "published in subfiles");
    chown(&path, Some(BOB), Some(BOB)).expect("chown");
    for mount in [&scene.b, &scene.a] {
        let path = mount.path("large");
        let got = as_user(BOB, &[], || get(path));
        assert_same("after the chown", &got, &large);
    }
    assert_same("canonical", &get(scene.shared.canonical("large")), &large);
    scene.finish();
}
