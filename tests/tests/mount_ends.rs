//! How a mount ends that no command of Forebay has ended: its daemon was killed, or another program has
//! unmounted it. Every exit code means what `--help` says, and the next command mends the rest.
//!
//! Checks S4.2, S4.7, S4.9, S5.4 and S6.4.

use forebay_tests::bay::{Bay, Drain, assert_same, get, put, text};
use forebay_tests::cli::{FAILED, NO_DAEMON, OK, STILL_DIRTY, assert_refused, code, str};
use forebay_tests::status::Status;
use forebay_tests::sys;
use forebay_tests::wait::{LONG, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::process::Output;

const LEFT: &str = "another program has unmounted";

/// What a crash leaves: the daemon is gone, and its mount is there and answers nothing.
fn crash(bay: &mut Bay) {
    bay.signal(Signal::SIGKILL);
    bay.wait_for_exit();
    assert!(sys::is_mounted(bay.mnt()));
}

fn umount(bay: &Bay, options: &[&str]) -> Output {
    let mut args = vec!["umount", str(bay.mnt())];
    args.extend(options);
    bay.run(args)
}

/// S4.9, S5.4: umount of a dead daemon's mount looks into the store; status of it is no success.
#[test]
fn exit_codes_of_a_mount_whose_daemon_died() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), vec![7; 300_000]);
    put(bay.path("g"), vec![7; 1000]);
    crash(&mut bay);
    for args in [vec!["status", str(bay.mnt())], vec!["status"]] {
        let out = bay.run(args);
        assert_eq!(code(&out), NO_DAEMON, "{}", text(&out));
        assert!(text(&out).contains("no daemon"), "{}", text(&out));
        assert!(text(&out).contains("in 2 files"), "{}", text(&out));
    }
    let file = bay.path("f");
    for args in [
        ["drain", str(bay.mnt())],
        ["drain", str(&file)],
        ["layout", str(&file)],
        ["explain", str(&file)],
        ["prefetch", str(&file)],
        ["probe", str(bay.mnt())],
    ] {
        let out = bay.run(args);
        assert_eq!(code(&out), NO_DAEMON, "{args:?}: {}", text(&out));
    }
    let out = bay.run(["status", "--store", str(bay.store()), "--json"]);
    assert_eq!(Status::parse(&out).undrained(), 301_000);
    let out = umount(&bay, &[]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(text(&out).contains("in 2 files stay"), "{}", text(&out));
    assert!(!sys::is_mounted(bay.mnt()), "it is taken away all the same");

    bay.start();
    assert_same("served", &get(bay.path("f")), &[7; 300_000]);
    crash(&mut bay);
    let out = umount(&bay, &["--keep"]);
    assert_eq!(code(&out), OK, "told to leave it: {}", text(&out));
    assert!(!sys::is_mounted(bay.mnt()));

    bay.start();
    bay.drain();
    // Removed while it was open: nothing is left of it that ever has to be drained.
    let removed = fs::File::create(bay.path("removed")).expect("create");
    sys::write_all_at(&removed, &[1; 5000], 0).expect("write");
    fs::remove_file(bay.path("removed")).expect("unlink");
    crash(&mut bay);
    drop(removed);
    let out = umount(&bay, &[]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(
        text(&out).contains("everything is drained"),
        "{}",
        text(&out)
    );
    bay.finish();
}

/// S4.9: what cannot be known is not claimed.
#[test]
fn umount_of_a_dead_mount_whose_store_is_gone_fails() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), vec![7; 300_000]);
    crash(&mut bay);
    let away = bay.root().join("away");
    fs::rename(bay.store(), &away).expect("rename");
    let out = umount(&bay, &[]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    assert!(text(&out).contains(str(bay.store())), "{}", text(&out));
    assert!(!sys::is_mounted(bay.mnt()), "it is taken away all the same");
    fs::rename(&away, bay.store()).expect("rename");
    bay.start();
    bay.finish();
}

/// Other nodes may read this file's data, and the store has forgotten it.
fn publish(bay: &Bay, name: &str, len: usize) {
    let file = fs::File::create(bay.path(name)).expect("create");
    sys::write_all_at(&file, &vec![5; len], 0).expect("write");
    file.sync_all().expect("fsync");
    sys::close(file).expect("close");
}

/// S4.9, S5.4: what was published is in a subfile and not in the canonical file, whatever the store says.
#[test]
fn published_data_is_not_drained() {
    const LEN: usize = 3_000_000;
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    publish(&bay, "f", LEN);
    let out = umount(&bay, &["--keep"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(
        text(&out).contains("2.86 MiB in 1 file stay"),
        "{}",
        text(&out)
    );
    assert_eq!(bay.wait_for_exit(), Some(0), "the daemon's exit code");

    bay.start();
    let live = bay.status();
    assert_eq!(live.undrained(), LEN as u64, "right after the start");
    assert_eq!(live.files(), [("f".to_owned(), LEN as u64)]);
    crash(&mut bay);
    let args = [["status", str(bay.mnt())], ["status", "--store"]];
    for (args, want) in args.iter().zip([NO_DAEMON, OK]) {
        let mut args = args.to_vec();
        args.extend((want == OK).then_some(str(bay.store())));
        args.push("--json");
        let out = bay.run(&args);
        assert_eq!(code(&out), want, "{}", text(&out));
        let status = Status(serde_json::from_slice(&out.stdout).expect("JSON"));
        assert_eq!(status.undrained(), LEN as u64);
        assert_eq!(status.files(), [("f".to_owned(), LEN as u64)]);
    }
    let out = umount(&bay, &[]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(
        text(&out).contains("2.86 MiB in 1 file stay"),
        "{}",
        text(&out)
    );
    assert!(get(bay.canonical("f")).is_empty(), "it was not drained");

    // With the backing out of reach the store alone does not say.
    bay.start();
    crash(&mut bay);
    let away = bay.root().join("away");
    fs::rename(bay.backing(), &away).expect("rename");
    let out = bay.run(["status", "--store", str(bay.store())]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    assert!(text(&out).contains("cannot be known"), "{}", text(&out));
    let out = umount(&bay, &[]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    assert!(text(&out).contains("cannot be known"), "{}", text(&out));
    fs::rename(&away, bay.backing()).expect("rename");

    bay.start();
    bay.drain();
    crash(&mut bay);
    let out = umount(&bay, &[]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("canonical", &get(bay.canonical("f")), &vec![5; LEN]);
    bay.start();
    bay.finish();
}

/// S4.9: the mount of a dead daemon may have been taken away by another program: the rest is as ever.
#[test]
fn the_entry_of_a_dead_daemon_goes_without_its_mount() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), vec![7; 300_000]);
    bay.kill();
    assert_eq!(code(&bay.run(["status"])), NO_DAEMON);
    let out = umount(&bay, &[]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(
        text(&out).contains("293 KiB in 1 file stay"),
        "{}",
        text(&out)
    );
    let out = bay.run(["status"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let out = umount(&bay, &[]);
    assert_eq!(code(&out), NO_DAEMON, "{}", text(&out));
    bay.start();
    bay.finish();
}

/// A bay with so much undrained data that another program, `umount(8)`, has unmounted.
fn left(rate: &str, bytes: usize) -> Bay {
    let mut bay = Bay::new(Drain::Never);
    bay.allow_log(LEFT).set("drain-rate", rate);
    bay.start();
    put(bay.path("f"), vec![9; bytes]);
    sys::plain_umount(bay.mnt());
    wait_until("status shows that it is unmounted", LONG, || {
        (bay.status().at("/mounted") == false).then_some(())
    });
    bay
}

/// S4.7: after a plain umount the daemon drains what is left, says so once, and ends.
#[test]
fn after_a_plain_umount_the_daemon_drains_and_ends() {
    let mut bay = left("2MiB", 4 << 20);
    let out = bay.run(["status", str(bay.mnt())]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(
        text(&out).contains("not mounted any more"),
        "{}",
        text(&out)
    );
    assert!(bay.status().undrained() > 0);
    assert_eq!(bay.wait_for_exit(), Some(0), "the daemon's exit code");
    assert_same("canonical", &get(bay.canonical("f")), &vec![9; 4 << 20]);
    let warned: Vec<_> = bay
        .log()
        .lines()
        .filter(|l| l.contains("WARN"))
        .map(str::to_owned)
        .collect();
    assert!(
        matches!(&warned[..], [one] if one.contains(LEFT)),
        "{warned:?}"
    );
    let out = umount(&bay, &[]);
    assert_eq!(code(&out), NO_DAEMON, "{}", text(&out));
    bay.finish();
}

/// S4.7: with nothing undrained there is nothing to warn of.
#[test]
fn a_plain_umount_of_a_drained_mount_is_quiet() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), vec![9; 100_000]);
    bay.drain();
    sys::plain_umount(bay.mnt());
    assert_eq!(bay.wait_for_exit(), Some(0), "the daemon's exit code");
    bay.finish();
}

/// S4.7: the next mount of the store does not wait for a drain that takes minutes.
#[test]
fn the_next_mount_takes_over_at_once() {
    let mut bay = left("64KiB", 20 << 20);
    bay.set("drain-rate", "0");
    let out = bay.mount_command().output().expect("start forebay");
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("handed it over"), "{}", text(&out));
    assert_eq!(bay.wait_for_exit(), Some(0), "the first daemon's exit code");
    assert!(sys::is_mounted(bay.mnt()));
    let status = bay.status();
    assert_eq!(status.at("/mounted"), true);
    assert!(status.undrained() > 0, "it was not drained before");
    assert_same("served", &get(bay.path("f")), &vec![9; 20 << 20]);
    // In the background, it has its own log.
    bay.umount();
    assert_same("canonical", &get(bay.canonical("f")), &vec![9; 20 << 20]);
    let log = fs::read_to_string(bay.store().join("forebay.log")).expect("read the log");
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    bay.finish();
}

/// S4.7: also in the moment after the unmount, which the daemon has not seen then.
#[test]
fn a_mount_right_after_a_plain_umount_takes_over() {
    let mut bay = Bay::new(Drain::Never);
    bay.allow_log(LEFT).set("drain-rate", "64KiB");
    for round in 0..5 {
        bay.start();
        put(bay.path("f"), vec![round; 2 << 20]);
        let mut command = bay.mount_command();
        sys::plain_umount(bay.mnt());
        let out = command.output().expect("start forebay");
        assert_eq!(code(&out), OK, "round {round}: {}", text(&out));
        assert_eq!(bay.wait_for_exit(), Some(0), "the first daemon's exit code");
        assert_same("served", &get(bay.path("f")), &vec![round; 2 << 20]);
        let out = umount(&bay, &["--keep"]);
        assert_eq!(code(&out), OK, "round {round}: {}", text(&out));
    }
    bay.set("drain-rate", "0").start();
    bay.finish();
}

/// S4.7, S6.4: a mount that is refused the store does not end the drain of what is in it.
#[test]
fn a_mount_that_is_refused_leaves_the_drain_alone() {
    let mut bay = left("64KiB", 2 << 20);
    let other = bay.root().join("backing2");
    fs::create_dir(&other).expect("mkdir");
    for (backing, node, word) in [
        (other.as_path(), None, str(bay.backing())),
        (bay.backing(), Some("other-node"), "other-node"),
    ] {
        let mut command = bay.forebay(["mount", str(bay.mnt()), "--store", str(bay.store())]);
        command.arg("--backing").arg(backing);
        command.args(node.map(|node| ["--node", node]).into_iter().flatten());
        let out = command.output().expect("start forebay");
        assert_refused(&out, Some(FAILED), &[str(bay.store()), word]);
        let status = bay.status();
        assert_eq!(status.pid(), u64::from(bay.pid()));
        assert_eq!(status.at("/mounted"), false);
    }
    let out = umount(&bay, &["--keep"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(bay.wait_for_exit(), Some(0), "the daemon's exit code");
    bay.set("drain-rate", "0").start();
    bay.finish();
}

/// S4.6: when umount has returned, the next mount finds the store free, also its index.
#[test]
fn a_store_is_free_when_umount_returns() {
    let bay = Bay::new(Drain::Never);
    for round in 0..10 {
        let out = bay.mount_command().output().expect("start forebay");
        assert_eq!(code(&out), OK, "round {round}: {}", text(&out));
        put(bay.path("f"), vec![round; 1000]);
        let out = umount(&bay, &[]);
        assert_eq!(code(&out), OK, "round {round}: {}", text(&out));
    }
    assert_eq!(get(bay.canonical("f")), [9; 1000]);
}

/// S4.7: another store does not take over: the sentence says what is going on, and what to do.
#[test]
fn a_mount_with_another_store_waits_for_the_drain() {
    let mut bay = left("64KiB", 1 << 20);
    let other = bay.root().join("store2");
    let out = bay.run([
        "mount",
        str(bay.mnt()),
        "--store",
        str(&other),
        "--backing",
        str(bay.backing()),
    ]);
    assert_refused(&out, Some(FAILED), &[str(bay.store()), "--keep"]);
    let out = umount(&bay, &["--keep"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(bay.wait_for_exit(), Some(0), "the daemon's exit code");
    bay.set("drain-rate", "0").start();
    bay.finish();
}

/// S4.2, S4.7: umount, umount --keep and signals mean the same to a daemon without its mount.
#[test]
fn a_daemon_without_its_mount_is_told_to_end() {
    let mut bay = left("64KiB", 20 << 20);
    let out = umount(&bay, &["--timeout", "200ms"]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(
        text(&out).contains("not mounted any more"),
        "{}",
        text(&out)
    );
    let out = umount(&bay, &["--keep"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("stay undrained"), "{}", text(&out));
    assert_eq!(bay.wait_for_exit(), Some(0), "the daemon's exit code");
    bay.start();
    assert_same("kept", &get(bay.path("f")), &vec![9; 20 << 20]);

    // As at a shutdown: umount, then SIGTERM, and again when that takes too long.
    sys::plain_umount(bay.mnt());
    for n in 1..=2 {
        bay.signal(Signal::SIGTERM);
        wait_until("the signal is heard", LONG, || {
            (bay.log().matches("told to unmount").count() == n).then_some(())
        });
    }
    assert_eq!(bay.wait_for_exit(), Some(0), "the daemon's exit code");
    bay.set("drain-rate", "0").start();
    assert_same("kept", &get(bay.path("f")), &vec![9; 20 << 20]);
    bay.finish();
}

/// S4.2: SIGHUP opens the log again, in the foreground and in the background, and unmounts nothing.
#[test]
fn sighup_opens_the_log_again() {
    const TOLD: &str = "told to open the log again";
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    bay.signal(Signal::SIGHUP);
    wait_until("the signal is heard", LONG, || {
        bay.log().contains(TOLD).then_some(())
    });
    put(bay.path("f"), b"still mounted");
    bay.umount();

    let log = bay.root().join("own.log");
    bay.arg("--log-file").arg(str(&log));
    bay.start();
    rotated(&log, bay.pid());
    assert_eq!(get(bay.path("f")), b"still mounted");
    assert!(
        !bay.log().contains(&format!("{TOLD}\n")),
        "on standard error"
    );
    bay.umount();

    let out = bay.mount_command().output().expect("start forebay");
    assert_eq!(code(&out), OK, "{}", text(&out));
    rotated(&log, bay.status().pid() as u32);
    assert_eq!(get(bay.path("f")), b"still mounted");
    bay.finish();

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
