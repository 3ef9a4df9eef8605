//! Which users may set policies, whose files the policies count for, and which users `forebay explain` answers.

mod policy_words;

use forebay_tests::cli::{DENIED, NO_DAEMON, USAGE, assert_refused, str};
use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{Drain, TestMount, put, text};
use forebay_tests::users::{ALICE, BOB, as_user};
use policy_words::{assert_key, explain, key, set};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

/// S10.3: a name or value that makes no sense is EINVAL, and the log says why and what there is.
#[test]
fn nonsense_is_refused() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), "x");
    fs::create_dir(mount.path("d")).expect("mkdir");
    for (name, value, words) in [
        (
            "drain",
            &b"tomorrow"[..],
            &["tomorrow", "immediate, on-close or never"][..],
        ),
        ("absorb", b"", &["absorb", "on, off or coherent"]),
        (
            "close",
            b"publish\n",
            &["publish\\n", "defer, defer-next or publish"],
        ),
        ("keep", b"\xff\xfe", &["keep", "true, false"]),
        ("fsync", &[b'x'; 5000], &["fsync", "publish, local"]),
        ("stripe", b"1MiB", &["\"stripe\"", "absorb, drain, close"]),
        ("drain.x", b"never", &["\"drain.x\""]),
        (
            "visibility-timeout",
            b"1s",
            &["visibility-timeout", "configuration file"],
        ),
    ] {
        for at in ["f", "d"] {
            let path = mount.path(at);
            let set = sys::set_xattr(&path, &format!("user.forebay.{name}"), value, 0);
            assert_eq!(errno(set, "set"), libc::EINVAL, "{name} on {at}");
        }
        let log = mount.log();
        let told = |line: &&str| words.iter().all(|word| line.contains(word));
        assert!(log.lines().any(|line| told(&line)), "{words:?} in\n{log}");
    }
    let seen = sys::list_xattr(&mount.path("f")).expect("list");
    assert!(seen.is_empty(), "{seen:?}");
    let inside = sys::set_xattr(
        &mount.path("f"),
        "user.forebay.internal.inherited",
        b"drain=never .",
        0,
    );
    assert_eq!(errno(inside, "set"), libc::EPERM);
    set(&mount.path("f"), "drain", "on-close");
    policy_words::unset(&mount.path("f"), "drain");
    assert_key(&mount, "f", "drain", "never", "config");
    mount.finish();
}

/// S10.4: only the owner sets attributes, also where others may write. A directory's attributes count only for its
/// owner's files; those of a directory of root's count for all users' files, unless a user other than root can set
/// them.
#[test]
fn a_policy_is_for_ones_own_files() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    let make = |name: &str, owner: u32, mode: u32| {
        fs::create_dir(mount.path(name)).expect("mkdir");
        chown(mount.path(name), Some(owner), Some(owner)).expect("chown");
        chmod(&mount.path(name), mode);
    };
    make("alices", ALICE, 0o777);
    make("sticky", 0, 0o1777);
    make("open", 0, 0o777);
    let file = mount.path("alices/f");
    as_user(ALICE, &[], || put(&file, "x"));
    chmod(&file, 0o666);
    for path in [mount.path("alices"), file.clone()] {
        let by_bob = as_user(BOB, &[], || {
            sys::set_xattr(&path, "user.forebay.drain", b"never", 0)
        });
        assert_eq!(errno(by_bob, "set"), libc::EPERM, "{}", path.display());
        as_user(ALICE, &[], || set(&path, "drain", "immediate"));
        let by_bob = as_user(BOB, &[], || sys::remove_xattr(&path, "user.forebay.drain"));
        assert_eq!(errno(by_bob, "remove"), libc::EPERM);
    }
    set(&mount.path("sticky"), "drain", "on-close");
    set(&mount.path("open"), "drain", "on-close");
    for (uid, name) in [(ALICE, "a"), (BOB, "b")] {
        for dir in ["alices", "sticky", "open"] {
            let path = mount.path(dir).join(name);
            as_user(uid, &[], || put(&path, "y"));
        }
    }
    assert_key(&mount, "alices/a", "drain", "immediate", "directory alices");
    assert_key(&mount, "alices/b", "drain", "never", "config");
    for name in ["a", "b"] {
        assert_key(
            &mount,
            &format!("sticky/{name}"),
            "drain",
            "on-close",
            "directory sticky",
        );
        assert_key(&mount, &format!("open/{name}"), "drain", "never", "config");
    }
    // A file that its owner may not write takes over the attributes all the same.
    let path = mount.path("alices/readonly");
    as_user(ALICE, &[], || {
        let options = {
            use std::os::unix::fs::OpenOptionsExt;
            let mut options = fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o444);
            options
        };
        drop(options.open(&path).expect("create"));
    });
    assert_key(
        &mount,
        "alices/readonly",
        "drain",
        "immediate",
        "directory alices",
    );
    mount.finish();
}

/// S8.8: only a file's owner and root may know how the file is treated.
#[test]
fn explain_is_for_the_owner() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    let path = mount.path("f");
    as_user(ALICE, &[], || put(&path, "x"));
    let ask = |uid: u32| {
        let mut command = mount.forebay(["explain", str(&path)]);
        as_user(uid, &[], || command.output().expect("start forebay"))
    };
    let alice = ask(ALICE);
    assert!(alice.status.success(), "{}", text(&alice));
    assert!(
        text(&alice).contains("for the whole mount"),
        "{}",
        text(&alice)
    );
    assert_refused(&ask(BOB), Some(DENIED), &["owner"]);
    let dir = mount.run(["explain", str(mount.mnt())]);
    assert_refused(&dir, Some(USAGE), &["not a regular file"]);
    mount.finish();
}

/// S10.1: the order, seen from outside: each source of a value is overruled by the next one.
#[test]
fn explain_says_who_decided() {
    let mut mount = TestMount::new(Drain::Never);
    mount.rules(&[
        "match = \"elsewhere/**\"\ndrain = \"immediate\"",
        "match = \"**/f\"\ndrain = \"on-close\"\nvisibility-timeout = \"5s\"",
    ]);
    mount.start();
    fs::create_dir(mount.path("d")).expect("mkdir");
    put(mount.path("plain"), "x");
    assert_key(&mount, "plain", "absorb", "on", "default");
    assert_key(&mount, "plain", "drain", "never", "config");
    put(mount.path("d/f"), "x");
    assert_key(&mount, "d/f", "drain", "on-close", "rule 2 line 6");
    assert_key(&mount, "d/f", "visibility-timeout", "5s", "rule 2 line 6");
    fs::remove_file(mount.path("d/f")).expect("unlink");
    set(&mount.path("d"), "drain", "immediate");
    put(mount.path("d/f"), "x");
    assert_key(&mount, "d/f", "drain", "immediate", "directory d");
    set(&mount.path("d/f"), "drain", "never");
    assert_key(&mount, "d/f", "drain", "never", "file");
    mount.umount();

    // Without a daemon the same comes from the backing and the configuration file.
    let config = mount.root().join("forebay.toml");
    let (below, backing) = (mount.canonical("d/f"), mount.backing().to_owned());
    let more = ["--config", str(&config), "--backing", str(&backing)];
    let alone = explain(&mount, &below, &more);
    assert_eq!(alone["asked"], "files");
    assert_eq!(key(&alone, "drain"), ("never".into(), "file".into()));
    let timeout = ("5s".into(), "rule 2 line 6".into());
    assert_eq!(key(&alone, "visibility-timeout"), timeout);
    let lost = mount.run(["explain", str(&below), "--config", str(&config)]);
    assert_refused(&lost, Some(USAGE), &["--backing"]);

    mount.arg("--drain").arg("on-close");
    mount.start();
    assert_key(&mount, "d/f", "drain", "on-close", "command-line");
    mount.finish();
}

/// S8.12: an invalid rule stops the mount, and the message names the line.
#[test]
fn wrong_rules_stop_the_mount() {
    for (rule, words) in [
        (
            "match = \"a\"\nstore = \"/s\"",
            &["line 3", "store", "whole mount"][..],
        ),
        ("match = \"../a\"\ndrain = \"never\"", &["line 3", "\"..\""]),
        (
            "match = \"[\"\ndrain = \"never\"",
            &["line 3", "not a glob"],
        ),
    ] {
        let mut mount = TestMount::new(Drain::Never);
        mount.rules(&[rule]);
        let out = mount.mount_command().output().expect("start forebay");
        assert_refused(&out, Some(USAGE), words);
        let gone = mount.run(["explain", "/nonexistent/file"]);
        assert!(!gone.status.success(), "{}", text(&gone));
        assert_ne!(gone.status.code(), Some(NO_DAEMON));
    }
}
