//! Who may set policies, whose files they count for, and what `forebay explain` tells whom.

mod policy_words;

use forebay_tests::bay::{Bay, Drain, put, text};
use forebay_tests::cli::{DENIED, NO_DAEMON, USAGE, assert_refused, str};
use forebay_tests::sys::{self, errno};
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
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), "x");
    fs::create_dir(bay.path("d")).expect("mkdir");
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
            let path = bay.path(at);
            let set = sys::set_xattr(&path, &format!("user.forebay.{name}"), value, 0);
            assert_eq!(errno(set, "set"), libc::EINVAL, "{name} on {at}");
        }
        let log = bay.log();
        let told = |line: &&str| words.iter().all(|word| line.contains(word));
        assert!(log.lines().any(|line| told(&line)), "{words:?} in\n{log}");
    }
    let seen = sys::list_xattr(&bay.path("f")).expect("list");
    assert!(seen.is_empty(), "{seen:?}");
    let inside = sys::set_xattr(
        &bay.path("f"),
        "user.forebay.internal.inherited",
        b"drain=never .",
        0,
    );
    assert_eq!(errno(inside, "set"), libc::EPERM);
    set(&bay.path("f"), "drain", "on-close");
    policy_words::unset(&bay.path("f"), "drain");
    assert_key(&bay, "f", "drain", "never", "config");
    bay.finish();
}

/// S10.4: only the owner sets attributes, also where others may write; and only the owner's files
/// follow a directory's, except root's that nobody else can change.
#[test]
fn a_policy_is_for_ones_own_files() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    let make = |name: &str, owner: u32, mode: u32| {
        fs::create_dir(bay.path(name)).expect("mkdir");
        chown(bay.path(name), Some(owner), Some(owner)).expect("chown");
        chmod(&bay.path(name), mode);
    };
    make("alices", ALICE, 0o777);
    make("sticky", 0, 0o1777);
    make("open", 0, 0o777);
    let file = bay.path("alices/f");
    as_user(ALICE, &[], || put(&file, "x"));
    chmod(&file, 0o666);
    for path in [bay.path("alices"), file.clone()] {
        let by_bob = as_user(BOB, &[], || {
            sys::set_xattr(&path, "user.forebay.drain", b"never", 0)
        });
        assert_eq!(errno(by_bob, "set"), libc::EPERM, "{}", path.display());
        as_user(ALICE, &[], || set(&path, "drain", "immediate"));
        let by_bob = as_user(BOB, &[], || sys::remove_xattr(&path, "user.forebay.drain"));
        assert_eq!(errno(by_bob, "remove"), libc::EPERM);
    }
    set(&bay.path("sticky"), "drain", "on-close");
    set(&bay.path("open"), "drain", "on-close");
    for (uid, name) in [(ALICE, "a"), (BOB, "b")] {
        for dir in ["alices", "sticky", "open"] {
            let path = bay.path(dir).join(name);
            as_user(uid, &[], || put(&path, "y"));
        }
    }
    assert_key(&bay, "alices/a", "drain", "immediate", "directory alices");
    assert_key(&bay, "alices/b", "drain", "never", "config");
    for name in ["a", "b"] {
        assert_key(
            &bay,
            &format!("sticky/{name}"),
            "drain",
            "on-close",
            "directory sticky",
        );
        assert_key(&bay, &format!("open/{name}"), "drain", "never", "config");
    }
    // A file that its owner may not write takes over all the same.
    let path = bay.path("alices/readonly");
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
        &bay,
        "alices/readonly",
        "drain",
        "immediate",
        "directory alices",
    );
    bay.finish();
}

/// S8.8: how a file is treated is its owner's and root's to know.
#[test]
fn explain_is_for_the_owner() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    let path = bay.path("f");
    as_user(ALICE, &[], || put(&path, "x"));
    let ask = |uid: u32| {
        let mut command = bay.forebay(["explain", str(&path)]);
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
    let dir = bay.run(["explain", str(bay.mnt())]);
    assert_refused(&dir, Some(USAGE), &["not a regular file"]);
    bay.finish();
}

/// S10.1: the order, seen from outside: each who speaks is silenced by the next one.
#[test]
fn explain_says_who_decided() {
    let mut bay = Bay::new(Drain::Never);
    bay.rules(&[
        "match = \"elsewhere/**\"\ndrain = \"immediate\"",
        "match = \"**/f\"\ndrain = \"on-close\"\nvisibility-timeout = \"5s\"",
    ]);
    bay.start();
    fs::create_dir(bay.path("d")).expect("mkdir");
    put(bay.path("plain"), "x");
    assert_key(&bay, "plain", "absorb", "on", "default");
    assert_key(&bay, "plain", "drain", "never", "config");
    put(bay.path("d/f"), "x");
    assert_key(&bay, "d/f", "drain", "on-close", "rule 2 line 6");
    assert_key(&bay, "d/f", "visibility-timeout", "5s", "rule 2 line 6");
    fs::remove_file(bay.path("d/f")).expect("unlink");
    set(&bay.path("d"), "drain", "immediate");
    put(bay.path("d/f"), "x");
    assert_key(&bay, "d/f", "drain", "immediate", "directory d");
    set(&bay.path("d/f"), "drain", "never");
    assert_key(&bay, "d/f", "drain", "never", "file");
    bay.umount();

    // Without a daemon the same comes from the backing and the configuration file.
    let config = bay.root().join("forebay.toml");
    let (below, backing) = (bay.canonical("d/f"), bay.backing().to_owned());
    let more = ["--config", str(&config), "--backing", str(&backing)];
    let alone = explain(&bay, &below, &more);
    assert_eq!(alone["asked"], "files");
    assert_eq!(key(&alone, "drain"), ("never".into(), "file".into()));
    let timeout = ("5s".into(), "rule 2 line 6".into());
    assert_eq!(key(&alone, "visibility-timeout"), timeout);
    let lost = bay.run(["explain", str(&below), "--config", str(&config)]);
    assert_refused(&lost, Some(USAGE), &["--backing"]);

    bay.arg("--drain").arg("on-close");
    bay.start();
    assert_key(&bay, "d/f", "drain", "on-close", "command-line");
    bay.finish();
}

/// S8.12: a rule that cannot be kept stops the mount, with the line.
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
        let mut bay = Bay::new(Drain::Never);
        bay.rules(&[rule]);
        let out = bay.mount_command().output().expect("start forebay");
        assert_refused(&out, Some(USAGE), words);
        let gone = bay.run(["explain", "/nonexistent/file"]);
        assert!(!gone.status.success(), "{}", text(&gone));
        assert_ne!(gone.status.code(), Some(NO_DAEMON));
    }
}
