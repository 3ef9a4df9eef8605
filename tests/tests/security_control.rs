//! The control socket, used by users who are not root; and one user who wants the whole store.

use forebay_tests::cli::DENIED;
use forebay_tests::status::Status;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, get, open_rw, put, text};
use forebay_tests::users::{ALICE, BOB, as_user};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

/// Runs a test on a mount of its own. Files that the test still holds open are closed before unmounting.
fn with(test: impl FnOnce(&mut TestMount)) {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.start();
    test(&mut test_mount);
    test_mount.finish();
}

fn ask(test_mount: &TestMount, uid: u32, args: &[&str]) -> Output {
    let mut command = test_mount.forebay(args);
    as_user(uid, &[], || command.output().expect("start forebay"))
}

fn put_as(uid: u32, path: &Path, data: &[u8]) {
    as_user(uid, &[], || put(path, data));
}

/// S8.8: every user may ask for status; names are shown to their owner and to root.
#[test]
fn status_names_only_ones_own_files() {
    with(|test_mount| {
        put_as(ALICE, &test_mount.path("alices-plan"), &[1; 50_000]);
        put_as(BOB, &test_mount.path("bobs-diary"), &[2; 30_000]);
        let mount = test_mount.mnt().to_str().expect("plain text");
        let seen = |uid: u32| text(&ask(test_mount, uid, &["status", mount, "--json"]));
        let (alice, bob) = (seen(ALICE), seen(BOB));
        assert!(
            alice.contains("alices-plan") && !alice.contains("bobs-diary"),
            "{alice}"
        );
        assert!(
            bob.contains("bobs-diary") && !bob.contains("alices-plan"),
            "{bob}"
        );
        let root = test_mount.status();
        let names: Vec<String> = root.files().into_iter().map(|(name, _)| name).collect();
        assert!(names.contains(&"alices-plan".into()) && names.contains(&"bobs-diary".into()));
        // Totals are no secret.
        let status = Status::parse(&ask(test_mount, ALICE, &["status", mount, "--json"]));
        assert_eq!(status.undrained(), 80_000);
    });
}

/// S8.8: a user can drain the user's own files and no others.
#[test]
fn drain_is_for_the_owner() {
    with(|test_mount| {
        put_as(ALICE, &test_mount.path("f"), &[1; 50_000]);
        let path = test_mount.path("f");
        let path = path.to_str().expect("plain text");
        let out = ask(test_mount, BOB, &["drain", path, "--wait"]);
        assert_eq!(out.status.code(), Some(DENIED), "{}", text(&out));
        assert_eq!(
            test_mount.status().undrained(),
            50_000,
            "bob drained nothing"
        );
        let out = ask(test_mount, ALICE, &["drain", path, "--wait"]);
        assert!(out.status.success(), "{}", text(&out));
        assert_eq!(get(test_mount.canonical("f")), [1; 50_000]);
    });
}

/// S8.8: a directory drained by bob leaves alice's files alone.
#[test]
fn draining_a_directory_leaves_others_files() {
    with(|test_mount| {
        put_as(ALICE, &test_mount.path("a"), &[1; 40_000]);
        put_as(BOB, &test_mount.path("b"), &[2; 30_000]);
        let mount = test_mount.mnt().to_str().expect("plain text");
        ask(
            test_mount,
            BOB,
            &["drain", mount, "--wait", "--timeout", "30s"],
        );
        let left: Vec<String> = test_mount
            .status()
            .files()
            .into_iter()
            .map(|f| f.0)
            .collect();
        assert_eq!(left, ["a"]);
    });
}

/// S8.8: only root may unmount.
#[test]
fn umount_is_for_root() {
    with(|test_mount| {
        let mount = test_mount.mnt().to_str().expect("plain text");
        for extra in [&[][..], &["--keep"][..]] {
            let mut args = vec!["umount", mount];
            args.extend(extra);
            let out = ask(test_mount, ALICE, &args);
            assert_eq!(out.status.code(), Some(DENIED), "{}", text(&out));
        }
        assert!(sys::is_mounted(test_mount.mnt()));
        put(test_mount.path("f"), b"still here");
    });
}

/// S8.8: the layout of a file is not shown to a user who may not read the file.
#[test]
fn layout_is_for_readers() {
    with(|test_mount| {
        put_as(ALICE, &test_mount.path("f"), &[1; 40_000]);
        fs::set_permissions(test_mount.path("f"), fs::Permissions::from_mode(0o600))
            .expect("chmod");
        let path = test_mount.path("f");
        let path = path.to_str().expect("plain text");
        let out = ask(test_mount, BOB, &["layout", path, "--json"]);
        assert!(!out.status.success(), "{}", text(&out));
        let out = ask(test_mount, ALICE, &["layout", path, "--json"]);
        assert!(out.status.success(), "{}", text(&out));
    });
}

/// S8.8: `recover` reads the store itself, which only the store's owner can.
#[test]
fn recover_is_for_the_stores_owner() {
    with(|test_mount| {
        put_as(ALICE, &test_mount.path("f"), &[1; 40_000]);
        test_mount.umount_with(&["--keep"]);
        let (store, backing) = (
            test_mount.store().to_owned(),
            test_mount.backing().to_owned(),
        );
        let args = [
            "recover",
            "--store",
            store.to_str().expect("plain text"),
            "--backing",
            backing.to_str().expect("plain text"),
        ];
        let out = ask(test_mount, BOB, &args);
        assert!(!out.status.success(), "{}", text(&out));
        assert!(fs::metadata(test_mount.canonical("f")).expect("stat").len() < 40_000);
    });
}

/// S7.5: alice writes without end; bob's write is still absorbed.
#[test]
fn one_user_does_not_get_the_whole_store() {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.set("store-size", "128MiB");
    test_mount.set("segment-size", "4MiB");
    test_mount.set_number("user-share", 0.4);
    test_mount.set_number("high-watermark", 0.9);
    // The drain must not make room during the test.
    test_mount.set("drain-rate", "64KiB");
    test_mount.start();
    as_user(ALICE, &[], || {
        let file = open_rw(test_mount.path("big"));
        for i in 0..96u64 {
            sys::write_all_at(&file, &[1; 1 << 20], i << 20).expect("write");
        }
    });
    let status = test_mount.status();
    let share = 128 * 4 / 10;
    let held = status.undrained() >> 20;
    assert!(
        held <= share,
        "alice holds {held} MiB, her share is {share} MiB"
    );
    assert!(held >= share / 2, "alice holds only {held} MiB of {share}");
    let before = test_mount.status().undrained();
    put_as(BOB, &test_mount.path("bobs"), &[2; 1 << 20]);
    let grown = test_mount.status().undrained() - before.min(test_mount.status().undrained());
    assert!(
        grown >= 1 << 19,
        "bob's write was not absorbed ({grown} bytes)"
    );
    as_user(ALICE, &[], || {
        assert_eq!(
            get(test_mount.path("big")),
            vec![1; 96 << 20],
            "what went through counts too"
        );
    });
    test_mount.kill();
}
