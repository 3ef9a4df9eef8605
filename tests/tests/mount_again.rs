//! Mounting again: over what a dead daemon left, over what is mounted already, with a store that was elsewhere
//! before, and with a copy of a store that is in use.

use forebay_tests::cli::{OK, USAGE, assert_refused, code, str};
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, get, put, text};
use nix::sys::signal::Signal;
use pfs_sim::Sim;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// S6.7: nothing has to be cleared away after `kill -9`: the next mount takes the place of the dead one.
#[test]
fn a_dead_mount_is_taken_over() {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.start();
    put(test_mount.path("f"), b"absorbed");
    test_mount.signal(Signal::SIGKILL);
    assert_eq!(test_mount.wait_for_exit(), None, "killed");
    assert!(
        sys::is_mounted(test_mount.mnt()),
        "the dead mount is still there"
    );
    test_mount.start();
    assert_eq!(get(test_mount.path("f")), b"absorbed");
    assert!(
        test_mount.log().contains("was taken away"),
        "{}",
        test_mount.log()
    );
    test_mount.umount();
    assert!(!sys::is_mounted(test_mount.mnt()), "one mount was there");
    assert_eq!(get(test_mount.canonical("f")), b"absorbed");
    test_mount.finish();
}

/// S6.7: mounting twice is no error if the settings are the same; otherwise the message names the difference.
#[test]
fn what_is_mounted_already_is_said_to_be() {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.start();
    put(test_mount.path("f"), b"stays");
    let out = test_mount.mount_command().output().expect("start forebay");
    assert_eq!(code(&out), OK, "{}", text(&out));
    let said = text(&out);
    let pid = test_mount.pid().to_string();
    assert!(said.contains("already") && said.contains(&pid), "{said}");
    let other = test_mount.root().join("store2");
    for (args, word) in [
        (["--drain", "on-close"], "other settings"),
        (["--attr-timeout", "3s"], "other settings"),
        (["--foreground", "--foreground"], "--foreground"),
    ] {
        let args = &args[..if args[0] == args[1] { 1 } else { 2 }];
        let out = test_mount.mount_command().args(args).output();
        assert_refused(&out.expect("start forebay"), None, &["already", word]);
    }
    let (mnt, backing) = (str(test_mount.mnt()), str(test_mount.backing()));
    let args = ["mount", mnt, "--store", str(&other), "--backing", backing];
    assert_refused(
        &test_mount.run(args),
        None,
        &["already", str(test_mount.store())],
    );
    assert!(!other.join("FOREBAY").exists(), "nothing was made");
    assert_eq!(get(test_mount.path("f")), b"stays");
    test_mount.finish();
}

fn mount(test_mount: &TestMount, store: &Path, backing: &Path) -> Command {
    let mut command = test_mount.forebay(["mount"]);
    command.arg(test_mount.mnt());
    command.arg("--store").arg(store);
    command.arg("--backing").arg(backing);
    command.args(["--drain", "never"]);
    command
}

/// S6.4: a mount that fails does not bind a new store to its backing.
#[test]
fn a_failed_mount_does_not_bind_a_new_store() {
    let mut test_mount = TestMount::new(Drain::Never);
    let broken = test_mount.root().join("broken");
    fs::create_dir(&broken).expect("mkdir");
    put(broken.join(".forebay"), b"in the way");
    let out = mount(&test_mount, test_mount.store(), &broken)
        .output()
        .expect("start");
    assert_refused(&out, None, &["share"]);
    assert!(
        test_mount.store().join("FOREBAY").exists(),
        "the store was made"
    );
    test_mount.start();
    put(test_mount.path("f"), b"new");
    test_mount.umount();
    assert_eq!(get(test_mount.canonical("f")), b"new");
    test_mount.finish();
}

/// S6.4: after a clean `recover` a store may be used for another backing, with nothing of what it had; otherwise it
/// may not.
#[test]
fn a_recovered_store_can_be_used_for_another_backing() {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.start();
    put(test_mount.path("f"), vec![7; 300_000]);
    test_mount.umount_with(&["--keep"]);
    let first = test_mount.backing().to_owned();
    let second = test_mount.root().join("backing2");
    fs::create_dir(&second).expect("mkdir");
    let out = mount(&test_mount, test_mount.store(), &second)
        .output()
        .expect("start");
    assert_refused(&out, None, &[str(&first), "forebay recover"]);
    let store = test_mount.store().to_owned();
    let recover = ["recover", "--store", str(&store), "--backing", str(&first)];
    let out = test_mount.run(recover);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("any backing"), "{}", text(&out));
    assert_eq!(get(first.join("f")), vec![7; 300_000]);

    test_mount.set_backing(&second).start();
    assert!(!test_mount.path("f").exists(), "it is of the other backing");
    put(test_mount.path("g"), vec![8; 300_000]);
    assert_eq!(test_mount.status().0["bytes"]["undrained"], 300_000);
    test_mount.kill();
    test_mount.start();
    assert_eq!(get(test_mount.path("g")), vec![8; 300_000]);
    test_mount.umount();
    assert_eq!(get(second.join("g")), vec![8; 300_000]);
    // Unmounting does not release the store: it still belongs to the backing that was mounted.
    let out = mount(&test_mount, test_mount.store(), &first)
        .output()
        .expect("start");
    assert_refused(&out, None, &[str(&second)]);
    test_mount.finish();
}

/// S8.12: an impossible store size is refused before anything is made.
#[test]
fn a_store_size_that_makes_no_sense_is_refused() {
    let test_mount = TestMount::new(Drain::Never);
    for (size, word) in [
        ("1", "too small"),
        ("1MiB", "too small"),
        ("9000TiB", "disk"),
    ] {
        let out = test_mount
            .mount_command()
            .args(["--store-size", size])
            .output();
        let out = out.expect("start forebay");
        assert_refused(&out, Some(USAGE), &["store-size", word]);
        assert!(!test_mount.store().exists(), "nothing was made");
    }
}

/// S8.2: an empty store directory of the user's own is closed to others rather than refused.
#[test]
fn an_empty_store_is_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let mut test_mount = TestMount::new(Drain::Never);
    fs::create_dir(test_mount.store()).expect("mkdir");
    fs::set_permissions(test_mount.store(), fs::Permissions::from_mode(0o755)).expect("chmod");
    test_mount.start();
    let mode = fs::metadata(test_mount.store())
        .expect("stat")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    test_mount.finish();
}

fn copy(from: &Path, to: &Path) {
    let out = Command::new("cp").arg("-a").arg(from).arg(to).output();
    let out = out.expect("start cp");
    assert!(out.status.success(), "cp: {}", text(&out));
}

/// S6.6: a copy of a store that is in use is refused, and the original does not notice.
#[test]
fn a_copy_of_a_live_store_is_refused() {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.set("lease", "2s").start();
    put(test_mount.path("f"), vec![1; 200_000]);
    let (store2, mnt2) = (
        test_mount.root().join("copy"),
        test_mount.root().join("mnt2"),
    );
    copy(test_mount.store(), &store2);
    fs::create_dir(&mnt2).expect("mkdir");
    let mut command = test_mount.forebay(["mount", str(&mnt2), "--lease", "2s"]);
    command.arg("--store").arg(&store2);
    command.arg("--backing").arg(test_mount.backing());
    let out = command.output().expect("start forebay");
    assert_refused(&out, None, &[str(&store2), "copy", "unmount"]);
    assert!(!sys::is_mounted(&mnt2));
    let recover = [
        "recover",
        "--store",
        str(&store2),
        "--backing",
        str(test_mount.backing()),
    ];
    assert_refused(&test_mount.run(recover), None, &[str(&store2), "copy"]);
    put(test_mount.path("g"), vec![2; 200_000]);
    test_mount.drain();
    assert_eq!(get(test_mount.canonical("f")), vec![1; 200_000]);
    assert_eq!(get(test_mount.canonical("g")), vec![2; 200_000]);
    test_mount.finish();
}

/// S5.1, S6.6: the same store starts at once after `kill -9`, also under another name; a store that was moved to
/// another disk starts when the lease of the dead daemon is over.
#[test]
fn a_store_that_was_killed_or_moved_begins_again() {
    let mut test_mount = TestMount::new(Drain::Never);
    // The lease is longer than a start takes on a busy machine.
    test_mount.set("lease", "60s").start();
    put(test_mount.path("f"), b"first");
    let since = Instant::now();
    test_mount.kill();
    test_mount.start();
    assert_eq!(get(test_mount.path("f")), b"first");
    test_mount.kill();
    let renamed = test_mount.root().join("renamed");
    fs::rename(test_mount.store(), &renamed).expect("rename");
    test_mount.set_store(&renamed).set("lease", "1s").start();
    assert_eq!(get(test_mount.path("f")), b"first");
    assert!(since.elapsed() < Duration::from_secs(50), "it did not wait");
    put(test_mount.path("g"), b"second");
    test_mount.kill();
    let moved = test_mount.root().join("moved");
    copy(&renamed, &moved);
    fs::remove_dir_all(&renamed).expect("remove");
    test_mount.set_store(&moved).start();
    assert_eq!(get(test_mount.path("f")), b"first");
    assert_eq!(get(test_mount.path("g")), b"second");
    test_mount.umount();
    // After a clean unmount there is no lease to wait for.
    test_mount.set("lease", "60s");
    let since = Instant::now();
    copy(&moved, &renamed);
    test_mount.set_store(&renamed).start();
    assert!(since.elapsed() < Duration::from_secs(50), "it did not wait");
    test_mount.finish();
}

/// Mounts a second node over the same backing, with its own store and these options.
fn second(test_mount: &TestMount, options: &[&str]) -> std::process::Output {
    let mnt2 = test_mount.root().join("mnt2");
    fs::create_dir_all(&mnt2).expect("mkdir");
    let mut command =
        test_mount.forebay(["mount", str(&mnt2), "--node", "second", "--lease", "2s"]);
    command.arg("--store").arg(test_mount.root().join("store2"));
    command.arg("--backing").arg(test_mount.backing());
    command.args(["--probe", "off"]).args(options);
    command.output().expect("start forebay")
}

/// S9.10: nodes that name other targets, or the same ones in another order, are refused when they mount.
#[test]
fn other_targets_than_those_of_living_nodes_are_refused() {
    let mut test_mount = TestMount::new(Drain::Immediate);
    test_mount.with_osts(2).set("lease", "2s").start();
    let (a, b) = (
        test_mount.root().join("ost0"),
        test_mount.root().join("ost1"),
    );
    for options in [
        vec!["--ost", str(&b), "--ost", str(&a)],
        vec!["--ost", str(&a)],
        vec![],
    ] {
        let out = second(&test_mount, &options);
        assert_refused(&out, None, &["targets", str(&a), "same order"]);
    }
    let same = ["--ost", str(&a), "--ost", str(&b)];
    let out = second(&test_mount, &same);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let mnt2 = test_mount.root().join("mnt2");
    put(mnt2.join("f"), vec![5; 500_000]);
    assert_eq!(get(test_mount.path("f")), vec![5; 500_000]);
    let out = test_mount.run(["umount", str(&mnt2)]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    test_mount.umount();
    // A node that has left does not count.
    let out = second(&test_mount, &["--ost", str(&b)]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let out = test_mount.run(["umount", str(&mnt2)]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    test_mount.finish();
}

/// S2.17: a backing whose clients do not see each other's data is named once when it is mounted, with the setting
/// that corrects it; a corrected one is not named.
#[test]
fn a_backing_that_is_not_coherent_is_named() {
    let program = forebay_tests::prereq::helper("pfs-sim");
    for (subtype, maps, word) in [
        ("ceph-fuse", true, Some("fuse_disable_pagecache")),
        ("glusterfs", true, Some("direct-io-mode=enable")),
        ("ceph-fuse", false, None),
        ("glusterfs", false, None),
        ("pfs-sim", true, None),
    ] {
        let mut test_mount = TestMount::new(Drain::Immediate);
        let pfs = test_mount.root().join("pfs");
        fs::create_dir(&pfs).expect("mkdir");
        let mut builder = Sim::builder().program(&program).osts(1);
        builder = builder.option("subtype", subtype);
        if !maps {
            builder = builder.flag("no-mmap");
        }
        let _sim = builder.start(&[&pfs]).expect("start the simulator");
        test_mount.set_backing(&pfs);
        let out = test_mount.mount_command().output().expect("start forebay");
        assert_eq!(code(&out), OK, "{}", text(&out));
        let said = String::from_utf8_lossy(&out.stderr);
        let log = fs::read_to_string(test_mount.store().join("forebay.log")).expect("read the log");
        match word {
            Some(word) => {
                assert_eq!(said.matches(word).count(), 1, "{subtype}: {said}");
                assert_eq!(log.matches(word).count(), 1, "{subtype}: {log}");
            }
            None => assert!(said.is_empty(), "{subtype} {maps}: {said}"),
        }
        let out = test_mount.run(["umount", str(test_mount.mnt())]);
        assert_eq!(code(&out), OK, "{}", text(&out));
    }
}
