//! The control socket, asked by people who are not root; and one user who wants the whole store.

use forebay_tests::bay::{Bay, Drain, get, open_rw, put, text};
use forebay_tests::cli::DENIED;
use forebay_tests::status::Status;
use forebay_tests::sys;
use forebay_tests::users::{ALICE, BOB, as_user};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

/// A mounted bay for one test; whatever the test still holds open is closed before unmounting.
fn with(test: impl FnOnce(&mut Bay)) {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    test(&mut bay);
    bay.finish();
}

fn ask(bay: &Bay, uid: u32, args: &[&str]) -> Output {
    let mut command = bay.forebay(args);
    as_user(uid, &[], || command.output().expect("start forebay"))
}

fn put_as(uid: u32, path: &Path, data: &[u8]) {
    as_user(uid, &[], || put(path, data));
}

/// S8.8: everyone may ask for status; names are shown to their owner and to root.
#[test]
fn status_names_only_ones_own_files() {
    with(|bay| {
        put_as(ALICE, &bay.path("alices-plan"), &[1; 50_000]);
        put_as(BOB, &bay.path("bobs-diary"), &[2; 30_000]);
        let mount = bay.mnt().to_str().expect("plain text");
        let seen = |uid: u32| text(&ask(bay, uid, &["status", mount, "--json"]));
        let (alice, bob) = (seen(ALICE), seen(BOB));
        assert!(
            alice.contains("alices-plan") && !alice.contains("bobs-diary"),
            "{alice}"
        );
        assert!(
            bob.contains("bobs-diary") && !bob.contains("alices-plan"),
            "{bob}"
        );
        let root = bay.status();
        let names: Vec<String> = root.files().into_iter().map(|(name, _)| name).collect();
        assert!(names.contains(&"alices-plan".into()) && names.contains(&"bobs-diary".into()));
        // Totals are no secret.
        let status = Status::parse(&ask(bay, ALICE, &["status", mount, "--json"]));
        assert_eq!(status.undrained(), 80_000);
    });
}

/// S8.8: one drains one's own and nobody else's.
#[test]
fn drain_is_for_the_owner() {
    with(|bay| {
        put_as(ALICE, &bay.path("f"), &[1; 50_000]);
        let path = bay.path("f");
        let path = path.to_str().expect("plain text");
        let out = ask(bay, BOB, &["drain", path, "--wait"]);
        assert_eq!(out.status.code(), Some(DENIED), "{}", text(&out));
        assert_eq!(bay.status().undrained(), 50_000, "bob drained nothing");
        let out = ask(bay, ALICE, &["drain", path, "--wait"]);
        assert!(out.status.success(), "{}", text(&out));
        assert_eq!(get(bay.canonical("f")), [1; 50_000]);
    });
}

/// S8.8: a directory drained by bob leaves alice's files alone.
#[test]
fn draining_a_directory_leaves_others_files() {
    with(|bay| {
        put_as(ALICE, &bay.path("a"), &[1; 40_000]);
        put_as(BOB, &bay.path("b"), &[2; 30_000]);
        let mount = bay.mnt().to_str().expect("plain text");
        ask(bay, BOB, &["drain", mount, "--wait", "--timeout", "30s"]);
        let left: Vec<String> = bay.status().files().into_iter().map(|f| f.0).collect();
        assert_eq!(left, ["a"]);
    });
}

/// S8.8: unmounting is root's.
#[test]
fn umount_is_for_root() {
    with(|bay| {
        let mount = bay.mnt().to_str().expect("plain text");
        for extra in [&[][..], &["--keep"][..]] {
            let mut args = vec!["umount", mount];
            args.extend(extra);
            let out = ask(bay, ALICE, &args);
            assert_eq!(out.status.code(), Some(DENIED), "{}", text(&out));
        }
        assert!(sys::is_mounted(bay.mnt()));
        put(bay.path("f"), b"still here");
    });
}

/// S8.8: the layout of a file that one may not read is not shown.
#[test]
fn layout_is_for_readers() {
    with(|bay| {
        put_as(ALICE, &bay.path("f"), &[1; 40_000]);
        fs::set_permissions(bay.path("f"), fs::Permissions::from_mode(0o600)).expect("chmod");
        let path = bay.path("f");
        let path = path.to_str().expect("plain text");
        let out = ask(bay, BOB, &["layout", path, "--json"]);
        assert!(!out.status.success(), "{}", text(&out));
        let out = ask(bay, ALICE, &["layout", path, "--json"]);
        assert!(out.status.success(), "{}", text(&out));
    });
}

/// S8.8: recover reads the store itself, which only its owner can.
#[test]
fn recover_is_for_the_stores_owner() {
    with(|bay| {
        put_as(ALICE, &bay.path("f"), &[1; 40_000]);
        bay.umount_with(&["--keep"]);
        let (store, backing) = (bay.store().to_owned(), bay.backing().to_owned());
        let args = [
            "recover",
            "--store",
            store.to_str().expect("plain text"),
            "--backing",
            backing.to_str().expect("plain text"),
        ];
        let out = ask(bay, BOB, &args);
        assert!(!out.status.success(), "{}", text(&out));
        assert!(fs::metadata(bay.canonical("f")).expect("stat").len() < 40_000);
    });
}

/// S7.5: alice writes without end; bob's write is still absorbed.
#[test]
fn one_user_does_not_get_the_whole_store() {
    let mut bay = Bay::new(Drain::Never);
    bay.set("store-size", "128MiB");
    bay.set("segment-size", "4MiB");
    bay.set_number("user-share", 0.4);
    bay.set_number("high-watermark", 0.9);
    // The drain must not make room while we look.
    bay.set("drain-rate", "64KiB");
    bay.start();
    as_user(ALICE, &[], || {
        let file = open_rw(bay.path("big"));
        for i in 0..96u64 {
            sys::write_all_at(&file, &[1; 1 << 20], i << 20).expect("write");
        }
    });
    let status = bay.status();
    let share = 128 * 4 / 10;
    let held = status.undrained() >> 20;
    assert!(
        held <= share,
        "alice holds {held} MiB, her share is {share} MiB"
    );
    assert!(held >= share / 2, "alice holds only {held} MiB of {share}");
    let before = bay.status().undrained();
    put_as(BOB, &bay.path("bobs"), &[2; 1 << 20]);
    let grown = bay.status().undrained() - before.min(bay.status().undrained());
    assert!(
        grown >= 1 << 19,
        "bob's write was not absorbed ({grown} bytes)"
    );
    as_user(ALICE, &[], || {
        assert_eq!(
            get(bay.path("big")),
            vec![1; 96 << 20],
            "what went through counts too"
        );
    });
    bay.kill();
}
