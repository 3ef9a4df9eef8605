//! Mounting again: over what a dead daemon left, what is mounted already, with a store that was elsewhere
//! before, and with a copy of one that is in use.

use forebay_tests::bay::{Bay, Drain, get, put, text};
use forebay_tests::cli::{OK, USAGE, assert_refused, code, str};
use forebay_tests::sys;
use nix::sys::signal::Signal;
use pfs_sim::Sim;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// S6.7: nothing has to be cleared away after `kill -9`: the next mount takes the place.
#[test]
fn a_dead_mount_is_taken_over() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), b"absorbed");
    bay.signal(Signal::SIGKILL);
    assert_eq!(bay.wait_for_exit(), None, "killed");
    assert!(sys::is_mounted(bay.mnt()), "the dead mount is still there");
    bay.start();
    assert_eq!(get(bay.path("f")), b"absorbed");
    assert!(bay.log().contains("was taken away"), "{}", bay.log());
    bay.umount();
    assert!(!sys::is_mounted(bay.mnt()), "one mount was there");
    assert_eq!(get(bay.canonical("f")), b"absorbed");
    bay.finish();
}

/// S6.7: mounting twice is no error, if it is the same; else the difference is named.
#[test]
fn what_is_mounted_already_is_said_to_be() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), b"stays");
    let out = bay.mount_command().output().expect("start forebay");
    assert_eq!(code(&out), OK, "{}", text(&out));
    let said = text(&out);
    let pid = bay.pid().to_string();
    assert!(said.contains("already") && said.contains(&pid), "{said}");
    let other = bay.root().join("store2");
    for (args, word) in [
        (["--drain", "on-close"], "other settings"),
        (["--attr-timeout", "3s"], "other settings"),
        (["--foreground", "--foreground"], "--foreground"),
    ] {
        let args = &args[..if args[0] == args[1] { 1 } else { 2 }];
        let out = bay.mount_command().args(args).output();
        assert_refused(&out.expect("start forebay"), None, &["already", word]);
    }
    let (mnt, backing) = (str(bay.mnt()), str(bay.backing()));
    let args = ["mount", mnt, "--store", str(&other), "--backing", backing];
    assert_refused(&bay.run(args), None, &["already", str(bay.store())]);
    assert!(!other.join("FOREBAY").exists(), "nothing was made");
    assert_eq!(get(bay.path("f")), b"stays");
    bay.finish();
}

fn mount(bay: &Bay, store: &Path, backing: &Path) -> Command {
    let mut command = bay.forebay(["mount"]);
    command.arg(bay.mnt());
    command.arg("--store").arg(store);
    command.arg("--backing").arg(backing);
    command.args(["--drain", "never"]);
    command
}

/// S6.4: a mount that fails does not decide whose a new store is.
#[test]
fn a_failed_mount_does_not_bind_a_new_store() {
    let mut bay = Bay::new(Drain::Never);
    let broken = bay.root().join("broken");
    fs::create_dir(&broken).expect("mkdir");
    put(broken.join(".forebay"), b"in the way");
    let out = mount(&bay, bay.store(), &broken).output().expect("start");
    assert_refused(&out, None, &["share"]);
    assert!(bay.store().join("FOREBAY").exists(), "the store was made");
    bay.start();
    put(bay.path("f"), b"new");
    bay.umount();
    assert_eq!(get(bay.canonical("f")), b"new");
    bay.finish();
}

/// S6.4: after a clean recover a store may go elsewhere, with nothing of what it had; else it may not.
#[test]
fn a_recovered_store_can_be_used_for_another_backing() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), vec![7; 300_000]);
    bay.umount_with(&["--keep"]);
    let first = bay.backing().to_owned();
    let second = bay.root().join("backing2");
    fs::create_dir(&second).expect("mkdir");
    let out = mount(&bay, bay.store(), &second).output().expect("start");
    assert_refused(&out, None, &[str(&first), "forebay recover"]);
    let store = bay.store().to_owned();
    let recover = ["recover", "--store", str(&store), "--backing", str(&first)];
    let out = bay.run(recover);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("any backing"), "{}", text(&out));
    assert_eq!(get(first.join("f")), vec![7; 300_000]);

    bay.set_backing(&second).start();
    assert!(!bay.path("f").exists(), "it is of the other backing");
    put(bay.path("g"), vec![8; 300_000]);
    assert_eq!(bay.status().0["bytes"]["undrained"], 300_000);
    bay.kill();
    bay.start();
    assert_eq!(get(bay.path("g")), vec![8; 300_000]);
    bay.umount();
    assert_eq!(get(second.join("g")), vec![8; 300_000]);
    // Unmounting is no release: what was mounted here is expected here.
    let out = mount(&bay, bay.store(), &first).output().expect("start");
    assert_refused(&out, None, &[str(&second)]);
    bay.finish();
}

/// S8.12: a size that cannot be is refused before anything is made.
#[test]
fn a_store_size_that_makes_no_sense_is_refused() {
    let bay = Bay::new(Drain::Never);
    for (size, word) in [
        ("1", "too small"),
        ("1MiB", "too small"),
        ("9000TiB", "disk"),
    ] {
        let out = bay.mount_command().args(["--store-size", size]).output();
        let out = out.expect("start forebay");
        assert_refused(&out, Some(USAGE), &["store-size", word]);
        assert!(!bay.store().exists(), "nothing was made");
    }
}

/// S8.2: an empty directory of one's own is closed rather than refused.
#[test]
fn an_empty_store_is_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let mut bay = Bay::new(Drain::Never);
    fs::create_dir(bay.store()).expect("mkdir");
    fs::set_permissions(bay.store(), fs::Permissions::from_mode(0o755)).expect("chmod");
    bay.start();
    let mode = fs::metadata(bay.store())
        .expect("stat")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    bay.finish();
}

fn copy(from: &Path, to: &Path) {
    let out = Command::new("cp").arg("-a").arg(from).arg(to).output();
    let out = out.expect("start cp");
    assert!(out.status.success(), "cp: {}", text(&out));
}

/// S6.6: a copy of a store that is in use is refused, and the original does not notice.
#[test]
fn a_copy_of_a_live_store_is_refused() {
    let mut bay = Bay::new(Drain::Never);
    bay.set("lease", "2s").start();
    put(bay.path("f"), vec![1; 200_000]);
    let (store2, mnt2) = (bay.root().join("copy"), bay.root().join("mnt2"));
    copy(bay.store(), &store2);
    fs::create_dir(&mnt2).expect("mkdir");
    let mut command = bay.forebay(["mount", str(&mnt2), "--lease", "2s"]);
    command.arg("--store").arg(&store2);
    command.arg("--backing").arg(bay.backing());
    let out = command.output().expect("start forebay");
    assert_refused(&out, None, &[str(&store2), "copy", "unmount"]);
    assert!(!sys::is_mounted(&mnt2));
    let recover = [
        "recover",
        "--store",
        str(&store2),
        "--backing",
        str(bay.backing()),
    ];
    assert_refused(&bay.run(recover), None, &[str(&store2), "copy"]);
    put(bay.path("g"), vec![2; 200_000]);
    bay.drain();
    assert_eq!(get(bay.canonical("f")), vec![1; 200_000]);
    assert_eq!(get(bay.canonical("g")), vec![2; 200_000]);
    bay.finish();
}

/// S5.1, S6.6: the same store begins at once after `kill -9`, also under another name; one that was moved
/// to another disk begins when the lease of the dead daemon is over.
#[test]
fn a_store_that_was_killed_or_moved_begins_again() {
    let mut bay = Bay::new(Drain::Never);
    // Longer than a start takes on a busy machine.
    bay.set("lease", "60s").start();
    put(bay.path("f"), b"first");
    let since = Instant::now();
    bay.kill();
    bay.start();
    assert_eq!(get(bay.path("f")), b"first");
    bay.kill();
    let renamed = bay.root().join("renamed");
    fs::rename(bay.store(), &renamed).expect("rename");
    bay.set_store(&renamed).set("lease", "1s").start();
    assert_eq!(get(bay.path("f")), b"first");
    assert!(since.elapsed() < Duration::from_secs(50), "it did not wait");
    put(bay.path("g"), b"second");
    bay.kill();
    let moved = bay.root().join("moved");
    copy(&renamed, &moved);
    fs::remove_dir_all(&renamed).expect("remove");
    bay.set_store(&moved).start();
    assert_eq!(get(bay.path("f")), b"first");
    assert_eq!(get(bay.path("g")), b"second");
    bay.umount();
    // In good order there is nothing to wait for.
    bay.set("lease", "60s");
    let since = Instant::now();
    copy(&moved, &renamed);
    bay.set_store(&renamed).start();
    assert!(since.elapsed() < Duration::from_secs(50), "it did not wait");
    bay.finish();
}

/// A second node over the same backing, with its own store and these options.
fn second(bay: &Bay, options: &[&str]) -> std::process::Output {
    let mnt2 = bay.root().join("mnt2");
    fs::create_dir_all(&mnt2).expect("mkdir");
    let mut command = bay.forebay(["mount", str(&mnt2), "--node", "second", "--lease", "2s"]);
    command.arg("--store").arg(bay.root().join("store2"));
    command.arg("--backing").arg(bay.backing());
    command.args(["--probe", "off"]).args(options);
    command.output().expect("start forebay")
}

/// S9.10: nodes that name other targets, or in another order, are told apart when they mount.
#[test]
fn other_targets_than_those_of_living_nodes_are_refused() {
    let mut bay = Bay::new(Drain::Immediate);
    bay.with_osts(2).set("lease", "2s").start();
    let (a, b) = (bay.root().join("ost0"), bay.root().join("ost1"));
    for options in [
        vec!["--ost", str(&b), "--ost", str(&a)],
        vec!["--ost", str(&a)],
        vec![],
    ] {
        let out = second(&bay, &options);
        assert_refused(&out, None, &["targets", str(&a), "same order"]);
    }
    let same = ["--ost", str(&a), "--ost", str(&b)];
    let out = second(&bay, &same);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let mnt2 = bay.root().join("mnt2");
    put(mnt2.join("f"), vec![5; 500_000]);
    assert_eq!(get(bay.path("f")), vec![5; 500_000]);
    let out = bay.run(["umount", str(&mnt2)]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    bay.umount();
    // A node that has left does not count.
    let out = second(&bay, &["--ost", str(&b)]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let out = bay.run(["umount", str(&mnt2)]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    bay.finish();
}

/// S2.17: a backing whose clients do not see each other's data is named when it is mounted, once, with what
/// mends it; one that was mended is not.
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
        let mut bay = Bay::new(Drain::Immediate);
        let pfs = bay.root().join("pfs");
        fs::create_dir(&pfs).expect("mkdir");
        let mut builder = Sim::builder().program(&program).osts(1);
        builder = builder.option("subtype", subtype);
        if !maps {
            builder = builder.flag("no-mmap");
        }
        let _sim = builder.start(&[&pfs]).expect("start the simulator");
        bay.set_backing(&pfs);
        let out = bay.mount_command().output().expect("start forebay");
        assert_eq!(code(&out), OK, "{}", text(&out));
        let said = String::from_utf8_lossy(&out.stderr);
        let log = fs::read_to_string(bay.store().join("forebay.log")).expect("read the log");
        match word {
            Some(word) => {
                assert_eq!(said.matches(word).count(), 1, "{subtype}: {said}");
                assert_eq!(log.matches(word).count(), 1, "{subtype}: {log}");
            }
            None => assert!(said.is_empty(), "{subtype} {maps}: {said}"),
        }
        let out = bay.run(["umount", str(bay.mnt())]);
        assert_eq!(code(&out), OK, "{}", text(&out));
    }
}
