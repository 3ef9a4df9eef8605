//! Tests of `umount`, `drain`, `status`, `recover` and `layout`: what each exit code means.

use forebay_tests::cli::{BUSY, NO_DAEMON, OK, STILL_DIRTY, assert_refused, code, str};
use forebay_tests::status::Status;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use forebay_tests::wait::{LONG, wait_until};
use forebay_tests::{sys, wait};
use nix::sys::signal::Signal;
use std::fs;
use std::process::{Command, Output};

/// S4.2: --keep leaves the data in the store, and the next mount serves it.
#[test]
fn umount_keep_then_mount_again() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), vec![7; 300_000]);
    mount.umount_with(&["--keep"]);
    assert!(fs::metadata(mount.canonical("f")).expect("stat").len() < 300_000);
    mount.start();
    assert_same(
        "served from the store",
        &get(mount.path("f")),
        &[7; 300_000],
    );
    assert_eq!(mount.status().undrained(), 300_000);
    mount.umount();
    assert_same("canonical", &get(mount.canonical("f")), &[7; 300_000]);
    mount.finish();
}

/// Runs `forebay umount` on a mount that the process `pid` holds, and returns its output. The search for holders
/// ends after two seconds, which may be too little on a busy machine: then the command is run again.
fn umount_held(mount: &TestMount, pid: u32) -> Output {
    let mut tries = 0;
    loop {
        let out = mount.run(["umount", str(mount.mnt())]);
        tries += 1;
        let named = text(&out).contains(&pid.to_string());
        if named || code(&out) != BUSY || tries == 10 {
            return out;
        }
    }
}

/// S8.12: a busy mount stays, and the message names the process that holds it.
#[test]
fn umount_of_a_busy_mount_names_the_holder() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), b"x");
    let mut holder = Command::new("sleep")
        .arg("600")
        .current_dir(mount.mnt())
        .spawn()
        .expect("sleep");
    let out = umount_held(&mount, holder.id());
    let pid = holder.id().to_string();
    holder.kill().expect("kill the holder");
    holder.wait().expect("wait for the holder");
    let said = text(&out);
    assert_eq!(code(&out), BUSY, "{said}");
    assert!(said.contains(&pid) && said.contains("sleep"), "{said}");
    assert_eq!(get(mount.path("f")), b"x", "it goes on");
    mount.finish();
}

/// S8.12: the search for holders does not wait for other file systems that hang.
#[test]
fn umount_does_not_hang_with_another_file_system() {
    let (mut mount, mut other) = (TestMount::new(Drain::Never), TestMount::new(Drain::Never));
    mount.start();
    other.start();
    put(other.path("f"), b"x");
    let open = fs::File::open(other.path("f")).expect("open");
    let mut sleeps = [
        Command::new("sleep").arg("600").stdin(open).spawn(),
        Command::new("sleep")
            .arg("600")
            .current_dir(mount.mnt())
            .spawn(),
    ]
    .map(|spawned| spawned.expect("sleep"));
    other.signal(Signal::SIGSTOP);
    let out = umount_held(&mount, sleeps[1].id());
    other.signal(Signal::SIGCONT);
    for sleep in &mut sleeps {
        sleep.kill().expect("kill the holder");
        sleep.wait().expect("wait for the holder");
    }
    let said = text(&out);
    assert_eq!(code(&out), BUSY, "{said}");
    assert!(said.contains(&sleeps[1].id().to_string()), "{said}");
    other.finish();
    mount.finish();
}

/// S4.2: SIGTERM does what umount does.
#[test]
fn sigterm_drains() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), vec![9; 500_000]);
    mount.signal(Signal::SIGTERM);
    assert_eq!(mount.wait_for_exit(), Some(0));
    assert!(!sys::is_mounted(mount.mnt()));
    assert_same("canonical", &get(mount.canonical("f")), &[9; 500_000]);
    mount.finish();
}

/// S4.2: a second SIGTERM does not wait for a drain that takes too long.
#[test]
fn a_second_sigterm_keeps() {
    let mut mount = TestMount::new(Drain::Never);
    mount.set("drain-rate", "64KiB");
    mount.start();
    put(mount.path("f"), vec![9; 20 << 20]);
    mount.signal(Signal::SIGTERM);
    wait_until("the daemon says that it drains", LONG, || {
        mount.log().contains("SIGTERM").then_some(())
    });
    mount.signal(Signal::SIGTERM);
    mount.wait_for_exit();
    assert!(!sys::is_mounted(mount.mnt()));
    mount.set("drain-rate", "0");
    mount.start();
    assert_same("kept", &get(mount.path("f")), &vec![9; 20 << 20]);
    mount.finish();
}

/// S5.4: without a daemon `status` reads only the store, and says so.
#[test]
fn status_without_a_daemon() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), vec![7; 300_000]);
    mount.kill();
    let out = mount.run(["status", "--store", str(mount.store()), "--json"]);
    let status = Status::parse(&out);
    assert_eq!(status.undrained(), 300_000);
    assert_eq!(status.files(), [("f".into(), 300_000)]);
    let out = mount.run(["status", "--store", str(mount.store())]);
    let said = text(&out);
    assert!(said.contains("no daemon"), "it must say so: {said}");
    // The mount point leads to the store as well: the dead daemon's entry still names it.
    let said = text(&mount.run(["status", str(mount.mnt())]));
    assert!(said.contains("no daemon"), "it must say so: {said}");
    mount.start();
    assert_same("unharmed", &get(mount.path("f")), &[7; 300_000]);
    mount.finish();
}

/// S4.1: the exit codes of `drain` for a path that is drained, for one that is still dirty, for one without a
/// daemon, and for one that does not exist.
#[test]
fn drain_exit_codes() {
    let mut mount = TestMount::new(Drain::Never);
    mount.set("drain-rate", "256KiB");
    mount.start();
    put(mount.path("small"), vec![1; 1000]);
    let small = mount.path("small");
    let out = mount.run(["drain", str(&small), "--wait"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(get(mount.canonical("small")), [1; 1000]);
    put(mount.path("large"), vec![2; 16 << 20]);
    let large = mount.path("large");
    let out = mount.run(["drain", str(&large)]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    let out = mount.run(["drain", str(&large), "--timeout", "200ms"]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    let out = mount.run(["drain", str(mount.root()), "--wait"]);
    assert_refused(&out, Some(NO_DAEMON), &[]);
    let out = mount.run(["drain", str(&mount.path("none")), "--wait"]);
    assert_refused(&out, None, &["none"]);
    mount.kill();
    mount.set("drain-rate", "0");
    mount.start();
    mount.finish();
}

/// S4.1, S4.4: a directory drains what is below it; superseded bytes do not count.
#[test]
fn drain_of_a_directory() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    fs::create_dir_all(mount.path("a/b")).expect("mkdir");
    put(mount.path("a/b/f"), vec![1; 50_000]);
    put(mount.path("outside"), vec![2; 60_000]);
    let dir = mount.path("a");
    let out = mount.run(["drain", str(&dir), "--wait", "--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("drained", &get(mount.canonical("a/b/f")), &[1; 50_000]);
    assert_eq!(mount.status().undrained(), 60_000, "the rest stays");
    for _ in 0..10 {
        put(mount.path("outside"), vec![3; 60_000]);
    }
    assert_eq!(
        mount.status().undrained(),
        60_000,
        "only the newest bytes count"
    );
    fs::remove_file(mount.path("outside")).expect("unlink");
    wait_until("removed data is dropped", wait::LONG, || {
        (mount.status().undrained() == 0).then_some(())
    });
    mount.finish();
}

/// S4.1: the drain of a directory covers the files that are below it now, even if nothing has looked them up since
/// the start.
#[test]
fn drain_of_a_directory_that_was_renamed_after_a_restart() {
    let mut mount = TestMount::new(Drain::Never);
    mount.set("drain-rate", "1MiB");
    mount.start();
    for dir in ["d/below", "other"] {
        fs::create_dir_all(mount.path(dir)).expect("mkdir");
    }
    put(mount.path("d/below/f"), vec![1; 4 << 20]);
    put(mount.path("other/g"), vec![2; 60_000]);
    mount.umount_with(&["--keep"]);
    mount.start();
    fs::rename(mount.path("d"), mount.path("e")).expect("rename");
    let dir = mount.path("e");
    let out = mount.run(["drain", str(&dir)]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    let out = mount.run(["drain", str(&dir), "--wait"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let below = mount.canonical("e/below/f");
    assert_same("drained", &get(below), &vec![1; 4 << 20]);
    assert_eq!(mount.status().undrained(), 60_000, "the rest stays");
    mount.finish();
}

/// S5.5: `recover` drains a store whose daemon is gone; `--dry-run` changes nothing.
#[test]
fn recover() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), vec![4; 300_000]);
    put(mount.path("g"), vec![5; 10]);
    mount.kill();
    let base = [
        "recover",
        "--store",
        str(mount.store()),
        "--backing",
        str(mount.backing()),
    ];
    let dry = mount.run(base.iter().copied().chain(["--dry-run", "--json"]));
    assert_eq!(code(&dry), OK, "{}", text(&dry));
    assert!(fs::metadata(mount.canonical("f")).expect("stat").len() < 300_000);
    let out = mount.run(base);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("f", &get(mount.canonical("f")), &[4; 300_000]);
    assert_same("g", &get(mount.canonical("g")), &[5; 10]);
    let out = mount.run(["status", "--store", str(mount.store()), "--json"]);
    assert_eq!(Status::parse(&out).undrained(), 0);
    mount.finish();
}

/// S6.4: `recover` does not touch a store that is in use.
#[test]
fn recover_of_a_mounted_store_is_refused() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    put(mount.path("f"), b"x");
    let out = mount.run([
        "recover",
        "--store",
        str(mount.store()),
        "--backing",
        str(mount.backing()),
    ]);
    assert_refused(&out, None, &[str(mount.store())]);
    assert_eq!(get(mount.path("f")), b"x");
    mount.finish();
}

/// S1.2, S1.10: `layout` tells data in the log from data in the canonical file.
#[test]
fn layout_of_a_file() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    let file = open_rw(mount.path("f"));
    sys::write_all_at(&file, &[1; 1 << 20], 0).expect("write");
    mount.drain();
    sys::write_all_at(&file, &[2; 1 << 20], 4 << 20).expect("write");
    let path = mount.path("f");
    let out = mount.run(["layout", str(&path), "--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let json = text(&out).to_lowercase();
    assert!(json.contains("log") && json.contains("canonical"), "{json}");
    let out = mount.run(["layout", str(&path)]);
    let said = text(&out).to_lowercase();
    assert!(said.contains("log") && said.contains("canonical"), "{said}");
    drop(file);
    mount.finish();
}
