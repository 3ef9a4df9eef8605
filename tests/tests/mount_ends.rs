//! How a mount ends that no command of Forebay has ended: its daemon was killed, or another program has unmounted
//! it. Every exit code means what `--help` says, and the next command repairs the rest.
//!
//! Checks S4.2, S4.7, S4.9, S5.4 and S6.4.

use forebay_tests::cli::{FAILED, NO_DAEMON, OK, STILL_DIRTY, assert_refused, code, str};
use forebay_tests::status::Status;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, put, text};
use forebay_tests::wait::{LONG, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::process::Output;

const LEFT: &str = "another program has unmounted";

/// Leaves what a crash leaves: the daemon is gone, and its mount is still there and answers nothing.
fn crash(mount: &mut TestMount) {
    mount.signal(Signal::SIGKILL);
    mount.wait_for_exit();
    assert!(sys::is_mounted(mount.mnt()));
}

fn umount(mount: &TestMount, options: &[&str]) -> Output {
    let mut args = vec!["umount", str(mount.mnt())];
    args.extend(options);
    mount.run(args)
}

/// S4.9, S5.4: umount of a dead daemon's mount looks into the store; status of that mount has a failure exit code.
#[test]
fn exit_codes_of_a_mount_whose_daemon_died() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), vec![7; 300_000]);
    put(mount.path("g"), vec![7; 1000]);
    crash(&mut mount);
    for args in [vec!["status", str(mount.mnt())], vec!["status"]] {
        let out = mount.run(args);
        assert_eq!(code(&out), NO_DAEMON, "{}", text(&out));
        assert!(text(&out).contains("no daemon"), "{}", text(&out));
        assert!(text(&out).contains("in 2 files"), "{}", text(&out));
    }
    let file = mount.path("f");
    for args in [
        ["drain", str(mount.mnt())],
        ["drain", str(&file)],
        ["layout", str(&file)],
        ["explain", str(&file)],
        ["prefetch", str(&file)],
        ["probe", str(mount.mnt())],
    ] {
        let out = mount.run(args);
        assert_eq!(code(&out), NO_DAEMON, "{args:?}: {}", text(&out));
    }
    let out = mount.run(["status", "--store", str(mount.store()), "--json"]);
    assert_eq!(Status::parse(&out).undrained(), 301_000);
    let out = umount(&mount, &[]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(text(&out).contains("in 2 files stay"), "{}", text(&out));
    assert!(
        !sys::is_mounted(mount.mnt()),
        "it is taken away all the same"
    );

    mount.start();
    assert_same("served", &get(mount.path("f")), &[7; 300_000]);
    crash(&mut mount);
    let out = umount(&mount, &["--keep"]);
    assert_eq!(code(&out), OK, "told to leave it: {}", text(&out));
    assert!(!sys::is_mounted(mount.mnt()));

    mount.start();
    mount.drain();
    // This file was removed while it was open: nothing of it ever has to be drained.
    let removed = fs::File::create(mount.path("removed")).expect("create");
    sys::write_all_at(&removed, &[1; 5000], 0).expect("write");
    fs::remove_file(mount.path("removed")).expect("unlink");
    crash(&mut mount);
    drop(removed);
    let out = umount(&mount, &[]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(
        text(&out).contains("everything is drained"),
        "{}",
        text(&out)
    );
    mount.finish();
}

/// S4.9: umount claims nothing that it cannot know.
#[test]
fn umount_of_a_dead_mount_whose_store_is_gone_fails() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), vec![7; 300_000]);
    crash(&mut mount);
    let away = mount.root().join("away");
    fs::rename(mount.store(), &away).expect("rename");
    let out = umount(&mount, &[]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    assert!(text(&out).contains(str(mount.store())), "{}", text(&out));
    assert!(
        !sys::is_mounted(mount.mnt()),
        "it is taken away all the same"
    );
    fs::rename(&away, mount.store()).expect("rename");
    mount.start();
    mount.finish();
}

/// Writes and publishes a file: other nodes may read its data, and the store has forgotten it.
fn publish(mount: &TestMount, name: &str, len: usize) {
    let file = fs::File::create(mount.path(name)).expect("create");
    sys::write_all_at(&file, &vec![5; len], 0).expect("write");
    file.sync_all().expect("fsync");
    sys::close(file).expect("close");
}

/// S4.9, S5.4: published data is in a subfile and not in the canonical file, whatever the store says. It counts as
/// undrained.
#[test]
fn published_data_is_not_drained() {
    const LEN: usize = 3_000_000;
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    publish(&mount, "f", LEN);
    let out = umount(&mount, &["--keep"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(
        text(&out).contains("2.86 MiB in 1 file stay"),
        "{}",
        text(&out)
    );
    assert_eq!(mount.wait_for_exit(), Some(0), "the daemon's exit code");

    mount.start();
    let live = mount.status();
    assert_eq!(live.undrained(), LEN as u64, "right after the start");
    assert_eq!(live.files(), [("f".to_owned(), LEN as u64)]);
    crash(&mut mount);
    let args = [["status", str(mount.mnt())], ["status", "--store"]];
    for (args, want) in args.iter().zip([NO_DAEMON, OK]) {
        let mut args = args.to_vec();
        args.extend((want == OK).then_some(str(mount.store())));
        args.push("--json");
        let out = mount.run(&args);
        assert_eq!(code(&out), want, "{}", text(&out));
        let status = Status(serde_json::from_slice(&out.stdout).expect("JSON"));
        assert_eq!(status.undrained(), LEN as u64);
        assert_eq!(status.files(), [("f".to_owned(), LEN as u64)]);
    }
    let out = umount(&mount, &[]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(
        text(&out).contains("2.86 MiB in 1 file stay"),
        "{}",
        text(&out)
    );
    assert!(get(mount.canonical("f")).is_empty(), "it was not drained");

    // With the backing out of reach, the store alone cannot tell what is undrained.
    mount.start();
    crash(&mut mount);
    let away = mount.root().join("away");
    fs::rename(mount.backing(), &away).expect("rename");
    let out = mount.run(["status", "--store", str(mount.store())]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    assert!(text(&out).contains("cannot be known"), "{}", text(&out));
    let out = umount(&mount, &[]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    assert!(text(&out).contains("cannot be known"), "{}", text(&out));
    fs::rename(&away, mount.backing()).expect("rename");

    mount.start();
    mount.drain();
    crash(&mut mount);
    let out = umount(&mount, &[]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("canonical", &get(mount.canonical("f")), &vec![5; LEN]);
    mount.start();
    mount.finish();
}

/// S4.9: if another program has taken away the mount of a dead daemon, everything else is as usual.
#[test]
fn the_entry_of_a_dead_daemon_goes_without_its_mount() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), vec![7; 300_000]);
    mount.kill();
    assert_eq!(code(&mount.run(["status"])), NO_DAEMON);
    let out = umount(&mount, &[]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(
        text(&out).contains("293 KiB in 1 file stay"),
        "{}",
        text(&out)
    );
    let out = mount.run(["status"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let out = umount(&mount, &[]);
    assert_eq!(code(&out), NO_DAEMON, "{}", text(&out));
    mount.start();
    mount.finish();
}

/// Makes a test mount with so much undrained data, which another program, `umount(8)`, has unmounted.
fn left(rate: &str, bytes: usize) -> TestMount {
    let mut mount = TestMount::new(Drain::Never);
    mount.allow_log(LEFT).set("drain-rate", rate);
    mount.start();
    put(mount.path("f"), vec![9; bytes]);
    sys::plain_umount(mount.mnt());
    wait_until("status shows that it is unmounted", LONG, || {
        (mount.status().at("/mounted") == false).then_some(())
    });
    mount
}

/// S4.7: after a plain umount the daemon drains what is left, says so once, and ends.
#[test]
fn after_a_plain_umount_the_daemon_drains_and_ends() {
    let mut mount = left("2MiB", 4 << 20);
    let out = mount.run(["status", str(mount.mnt())]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(
        text(&out).contains("not mounted any more"),
        "{}",
        text(&out)
    );
    assert!(mount.status().undrained() > 0);
    assert_eq!(mount.wait_for_exit(), Some(0), "the daemon's exit code");
    assert_same("canonical", &get(mount.canonical("f")), &vec![9; 4 << 20]);
    let warned: Vec<_> = mount
        .log()
        .lines()
        .filter(|l| l.contains("WARN"))
        .map(str::to_owned)
        .collect();
    assert!(
        matches!(&warned[..], [one] if one.contains(LEFT)),
        "{warned:?}"
    );
    let out = umount(&mount, &[]);
    assert_eq!(code(&out), NO_DAEMON, "{}", text(&out));
    mount.finish();
}

/// S4.7: with nothing undrained there is nothing to warn of.
#[test]
fn a_plain_umount_of_a_drained_mount_is_quiet() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), vec![9; 100_000]);
    mount.drain();
    sys::plain_umount(mount.mnt());
    assert_eq!(mount.wait_for_exit(), Some(0), "the daemon's exit code");
    mount.finish();
}

/// S4.7: the next mount of the store does not wait for a drain that takes minutes.
#[test]
fn the_next_mount_takes_over_at_once() {
    let mut mount = left("64KiB", 20 << 20);
    mount.set("drain-rate", "0");
    let out = mount.mount_command().output().expect("start forebay");
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("handed it over"), "{}", text(&out));
    assert_eq!(
        mount.wait_for_exit(),
        Some(0),
        "the first daemon's exit code"
    );
    assert!(sys::is_mounted(mount.mnt()));
    let status = mount.status();
    assert_eq!(status.at("/mounted"), true);
    assert!(status.undrained() > 0, "it was not drained before");
    assert_same("served", &get(mount.path("f")), &vec![9; 20 << 20]);
    // The second daemon runs in the background and has its own log.
    mount.umount();
    assert_same("canonical", &get(mount.canonical("f")), &vec![9; 20 << 20]);
    let log = fs::read_to_string(mount.store().join("forebay.log")).expect("read the log");
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    mount.finish();
}

/// S4.7: the next mount also takes over right after the unmount, before the daemon has noticed it.
#[test]
fn a_mount_right_after_a_plain_umount_takes_over() {
    let mut mount = TestMount::new(Drain::Never);
    mount.allow_log(LEFT).set("drain-rate", "64KiB");
    for round in 0..5 {
        mount.start();
        put(mount.path("f"), vec![round; 2 << 20]);
        let mut command = mount.mount_command();
        sys::plain_umount(mount.mnt());
        let out = command.output().expect("start forebay");
        assert_eq!(code(&out), OK, "round {round}: {}", text(&out));
        assert_eq!(
            mount.wait_for_exit(),
            Some(0),
            "the first daemon's exit code"
        );
        assert_same("served", &get(mount.path("f")), &vec![round; 2 << 20]);
        let out = umount(&mount, &["--keep"]);
        assert_eq!(code(&out), OK, "round {round}: {}", text(&out));
    }
    mount.set("drain-rate", "0").start();
    mount.finish();
}

/// S4.7, S6.4: a mount that is refused because of its backing or node does not end the drain of the store.
#[test]
fn a_mount_that_is_refused_leaves_the_drain_alone() {
    let mut mount = left("64KiB", 2 << 20);
    let other = mount.root().join("backing2");
    fs::create_dir(&other).expect("mkdir");
    for (backing, node, word) in [
        (other.as_path(), None, str(mount.backing())),
        (mount.backing(), Some("other-node"), "other-node"),
    ] {
        let mut command = mount.forebay(["mount", str(mount.mnt()), "--store", str(mount.store())]);
        command.arg("--backing").arg(backing);
        command.args(node.map(|node| ["--node", node]).into_iter().flatten());
        let out = command.output().expect("start forebay");
        assert_refused(&out, Some(FAILED), &[str(mount.store()), word]);
        let status = mount.status();
        assert_eq!(status.pid(), u64::from(mount.pid()));
        assert_eq!(status.at("/mounted"), false);
    }
    let out = umount(&mount, &["--keep"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(mount.wait_for_exit(), Some(0), "the daemon's exit code");
    mount.set("drain-rate", "0").start();
    mount.finish();
}

/// S4.6: when umount has returned, the next mount finds the store free, also its index.
#[test]
fn a_store_is_free_when_umount_returns() {
    let mount = TestMount::new(Drain::Never);
    for round in 0..10 {
        let out = mount.mount_command().output().expect("start forebay");
        assert_eq!(code(&out), OK, "round {round}: {}", text(&out));
        put(mount.path("f"), vec![round; 1000]);
        let out = umount(&mount, &[]);
        assert_eq!(code(&out), OK, "round {round}: {}", text(&out));
    }
    assert_eq!(get(mount.canonical("f")), [9; 1000]);
}

/// S4.7: a mount with another store does not take over: the message says what is going on, and what to do.
#[test]
fn a_mount_with_another_store_waits_for_the_drain() {
    let mut mount = left("64KiB", 1 << 20);
    let other = mount.root().join("store2");
    let out = mount.run([
        "mount",
        str(mount.mnt()),
        "--store",
        str(&other),
        "--backing",
        str(mount.backing()),
    ]);
    assert_refused(&out, Some(FAILED), &[str(mount.store()), "--keep"]);
    let out = umount(&mount, &["--keep"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(mount.wait_for_exit(), Some(0), "the daemon's exit code");
    mount.set("drain-rate", "0").start();
    mount.finish();
}

/// S4.2, S4.7: umount, umount --keep and signals mean the same to a daemon without its mount.
#[test]
fn a_daemon_without_its_mount_is_told_to_end() {
    let mut mount = left("64KiB", 20 << 20);
    let out = umount(&mount, &["--timeout", "200ms"]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(
        text(&out).contains("not mounted any more"),
        "{}",
        text(&out)
    );
    let out = umount(&mount, &["--keep"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("stay undrained"), "{}", text(&out));
    assert_eq!(mount.wait_for_exit(), Some(0), "the daemon's exit code");
    mount.start();
    assert_same("kept", &get(mount.path("f")), &vec![9; 20 << 20]);

    // This is what happens at a shutdown: umount, then SIGTERM, and again when that takes too long.
    sys::plain_umount(mount.mnt());
    for n in 1..=2 {
        mount.signal(Signal::SIGTERM);
        wait_until("the signal is heard", LONG, || {
            (mount.log().matches("told to unmount").count() == n).then_some(())
        });
    }
    assert_eq!(mount.wait_for_exit(), Some(0), "the daemon's exit code");
    mount.set("drain-rate", "0").start();
    assert_same("kept", &get(mount.path("f")), &vec![9; 20 << 20]);
    mount.finish();
}

/// S4.2: SIGHUP opens the log again, in the foreground and in the background, and unmounts nothing.
#[test]
fn sighup_opens_the_log_again() {
    const TOLD: &str = "told to open the log again";
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    mount.signal(Signal::SIGHUP);
    wait_until("the signal is heard", LONG, || {
        mount.log().contains(TOLD).then_some(())
    });
    put(mount.path("f"), b"still mounted");
    mount.umount();

    let log = mount.root().join("own.log");
    mount.arg("--log-file").arg(str(&log));
    mount.start();
    rotated(&log, mount.pid());
    assert_eq!(get(mount.path("f")), b"still mounted");
    assert!(
        !mount.log().contains(&format!("{TOLD}\n")),
        "on standard error"
    );
    mount.umount();

    let out = mount.mount_command().output().expect("start forebay");
    assert_eq!(code(&out), OK, "{}", text(&out));
    rotated(&log, mount.status().pid() as u32);
    assert_eq!(get(mount.path("f")), b"still mounted");
    mount.finish();

    fn rotated(log: &std::path::Path, pid: u32) {
        let old = log.with_extension("1");
        fs::rename(log, &old).expect("rename the log");
        kill(Pid::from_raw(pid as i32), Signal::SIGHUP).expect("signal");
        wait_until("there is a new log", LONG, || {
            let new = fs::read_to_string(log).unwrap_or_default();
            new.contains(TOLD).then_some(())
        });
        assert!(get(&old).len() > 100, "the old one is left alone");
    }
}
