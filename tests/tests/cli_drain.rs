//! Unmounting, draining, looking and recovering: what each exit code means.

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put, text};
use forebay_tests::cli::{BUSY, NO_DAEMON, OK, STILL_DIRTY, assert_refused, code, str};
use forebay_tests::status::Status;
use forebay_tests::wait::{LONG, wait_until};
use forebay_tests::{sys, wait};
use nix::sys::signal::Signal;
use std::fs;
use std::process::{Command, Output};

/// S4.2: --keep leaves the data in the store, and the next mount serves it.
#[test]
fn umount_keep_then_mount_again() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), vec![7; 300_000]);
    bay.umount_with(&["--keep"]);
    assert!(fs::metadata(bay.canonical("f")).expect("stat").len() < 300_000);
    bay.start();
    assert_same("served from the store", &get(bay.path("f")), &[7; 300_000]);
    assert_eq!(bay.status().undrained(), 300_000);
    bay.umount();
    assert_same("canonical", &get(bay.canonical("f")), &[7; 300_000]);
    bay.finish();
}

/// What `forebay umount` says of a mount that a process holds. The search for holders has two seconds,
/// which may be too little on a busy machine: then it is asked again.
fn umount_held(bay: &Bay, pid: u32) -> Output {
    let mut tries = 0;
    loop {
        let out = bay.run(["umount", str(bay.mnt())]);
        tries += 1;
        let named = text(&out).contains(&pid.to_string());
        if named || code(&out) != BUSY || tries == 10 {
            return out;
        }
    }
}

/// S8.12: a busy mount stays, and the message names who holds it.
#[test]
fn umount_of_a_busy_mount_names_the_holder() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), b"x");
    let mut holder = Command::new("sleep")
        .arg("600")
        .current_dir(bay.mnt())
        .spawn()
        .expect("sleep");
    let out = umount_held(&bay, holder.id());
    let pid = holder.id().to_string();
    holder.kill().expect("kill the holder");
    holder.wait().expect("wait for the holder");
    let said = text(&out);
    assert_eq!(code(&out), BUSY, "{said}");
    assert!(said.contains(&pid) && said.contains("sleep"), "{said}");
    assert_eq!(get(bay.path("f")), b"x", "it goes on");
    bay.finish();
}

/// S8.12: looking for holders does not wait for file systems that hang.
#[test]
fn umount_does_not_hang_with_another_file_system() {
    let (mut bay, mut other) = (Bay::new(Drain::Never), Bay::new(Drain::Never));
    bay.start();
    other.start();
    put(other.path("f"), b"x");
    let open = fs::File::open(other.path("f")).expect("open");
    let mut sleeps = [
        Command::new("sleep").arg("600").stdin(open).spawn(),
        Command::new("sleep")
            .arg("600")
            .current_dir(bay.mnt())
            .spawn(),
    ]
    .map(|spawned| spawned.expect("sleep"));
    other.signal(Signal::SIGSTOP);
    let out = umount_held(&bay, sleeps[1].id());
    other.signal(Signal::SIGCONT);
    for sleep in &mut sleeps {
        sleep.kill().expect("kill the holder");
        sleep.wait().expect("wait for the holder");
    }
    let said = text(&out);
    assert_eq!(code(&out), BUSY, "{said}");
    assert!(said.contains(&sleeps[1].id().to_string()), "{said}");
    other.finish();
    bay.finish();
}

/// S4.2: SIGTERM does what umount does.
#[test]
fn sigterm_drains() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), vec![9; 500_000]);
    bay.signal(Signal::SIGTERM);
    assert_eq!(bay.wait_for_exit(), Some(0));
    assert!(!sys::is_mounted(bay.mnt()));
    assert_same("canonical", &get(bay.canonical("f")), &[9; 500_000]);
    bay.finish();
}

/// S4.2: a second SIGTERM does not wait for a drain that takes too long.
#[test]
fn a_second_sigterm_keeps() {
    let mut bay = Bay::new(Drain::Never);
    bay.set("drain-rate", "64KiB");
    bay.start();
    put(bay.path("f"), vec![9; 20 << 20]);
    bay.signal(Signal::SIGTERM);
    wait_until("the daemon says that it drains", LONG, || {
        bay.log().contains("SIGTERM").then_some(())
    });
    bay.signal(Signal::SIGTERM);
    bay.wait_for_exit();
    assert!(!sys::is_mounted(bay.mnt()));
    bay.set("drain-rate", "0");
    bay.start();
    assert_same("kept", &get(bay.path("f")), &vec![9; 20 << 20]);
    bay.finish();
}

/// S5.4: status from the store alone, and it says so.
#[test]
fn status_without_a_daemon() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), vec![7; 300_000]);
    bay.kill();
    let out = bay.run(["status", "--store", str(bay.store()), "--json"]);
    let status = Status::parse(&out);
    assert_eq!(status.undrained(), 300_000);
    assert_eq!(status.files(), [("f".into(), 300_000)]);
    let out = bay.run(["status", "--store", str(bay.store())]);
    let said = text(&out);
    assert!(said.contains("no daemon"), "it must say so: {said}");
    // By the mount point as well, which the dead daemon's entry still names.
    let said = text(&bay.run(["status", str(bay.mnt())]));
    assert!(said.contains("no daemon"), "it must say so: {said}");
    bay.start();
    assert_same("unharmed", &get(bay.path("f")), &[7; 300_000]);
    bay.finish();
}

/// S4.1: drained, still dirty, nothing there.
#[test]
fn drain_exit_codes() {
    let mut bay = Bay::new(Drain::Never);
    bay.set("drain-rate", "256KiB");
    bay.start();
    put(bay.path("small"), vec![1; 1000]);
    let small = bay.path("small");
    let out = bay.run(["drain", str(&small), "--wait"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(get(bay.canonical("small")), [1; 1000]);
    put(bay.path("large"), vec![2; 16 << 20]);
    let large = bay.path("large");
    let out = bay.run(["drain", str(&large)]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    let out = bay.run(["drain", str(&large), "--timeout", "200ms"]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    let out = bay.run(["drain", str(bay.root()), "--wait"]);
    assert_refused(&out, Some(NO_DAEMON), &[]);
    let out = bay.run(["drain", str(&bay.path("none")), "--wait"]);
    assert_refused(&out, None, &["none"]);
    bay.kill();
    bay.set("drain-rate", "0");
    bay.start();
    bay.finish();
}

/// S4.1, S4.4: a directory drains what is below it; superseded bytes do not count.
#[test]
fn drain_of_a_directory() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    fs::create_dir_all(bay.path("a/b")).expect("mkdir");
    put(bay.path("a/b/f"), vec![1; 50_000]);
    put(bay.path("outside"), vec![2; 60_000]);
    let dir = bay.path("a");
    let out = bay.run(["drain", str(&dir), "--wait", "--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("drained", &get(bay.canonical("a/b/f")), &[1; 50_000]);
    assert_eq!(bay.status().undrained(), 60_000, "the rest stays");
    for _ in 0..10 {
        put(bay.path("outside"), vec![3; 60_000]);
    }
    assert_eq!(
        bay.status().undrained(),
        60_000,
        "only the newest bytes count"
    );
    fs::remove_file(bay.path("outside")).expect("unlink");
    wait_until("removed data is dropped", wait::LONG, || {
        (bay.status().undrained() == 0).then_some(())
    });
    bay.finish();
}

/// S4.1: what is below a directory is what is there now, also if nothing has looked at it since the start.
#[test]
fn drain_of_a_directory_that_was_renamed_after_a_restart() {
    let mut bay = Bay::new(Drain::Never);
    bay.set("drain-rate", "1MiB");
    bay.start();
    for dir in ["d/below", "other"] {
        fs::create_dir_all(bay.path(dir)).expect("mkdir");
    }
    put(bay.path("d/below/f"), vec![1; 4 << 20]);
    put(bay.path("other/g"), vec![2; 60_000]);
    bay.umount_with(&["--keep"]);
    bay.start();
    fs::rename(bay.path("d"), bay.path("e")).expect("rename");
    let dir = bay.path("e");
    let out = bay.run(["drain", str(&dir)]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    let out = bay.run(["drain", str(&dir), "--wait"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let below = bay.canonical("e/below/f");
    assert_same("drained", &get(below), &vec![1; 4 << 20]);
    assert_eq!(bay.status().undrained(), 60_000, "the rest stays");
    bay.finish();
}

/// S5.5: recover drains a store whose daemon is gone; --dry-run only looks.
#[test]
fn recover() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), vec![4; 300_000]);
    put(bay.path("g"), vec![5; 10]);
    bay.kill();
    let base = [
        "recover",
        "--store",
        str(bay.store()),
        "--backing",
        str(bay.backing()),
    ];
    let dry = bay.run(base.iter().copied().chain(["--dry-run", "--json"]));
    assert_eq!(code(&dry), OK, "{}", text(&dry));
    assert!(fs::metadata(bay.canonical("f")).expect("stat").len() < 300_000);
    let out = bay.run(base);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("f", &get(bay.canonical("f")), &[4; 300_000]);
    assert_same("g", &get(bay.canonical("g")), &[5; 10]);
    let out = bay.run(["status", "--store", str(bay.store()), "--json"]);
    assert_eq!(Status::parse(&out).undrained(), 0);
    bay.finish();
}

/// S6.4: recover keeps its hands off a store in use.
#[test]
fn recover_of_a_mounted_store_is_refused() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), b"x");
    let out = bay.run([
        "recover",
        "--store",
        str(bay.store()),
        "--backing",
        str(bay.backing()),
    ]);
    assert_refused(&out, None, &[str(bay.store())]);
    assert_eq!(get(bay.path("f")), b"x");
    bay.finish();
}

/// S1.2, S1.10: layout tells log, canonical and hole apart.
#[test]
fn layout_of_a_file() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    let file = open_rw(bay.path("f"));
    sys::write_all_at(&file, &[1; 1 << 20], 0).expect("write");
    bay.drain();
    sys::write_all_at(&file, &[2; 1 << 20], 4 << 20).expect("write");
    let path = bay.path("f");
    let out = bay.run(["layout", str(&path), "--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let json = text(&out).to_lowercase();
    assert!(json.contains("log") && json.contains("canonical"), "{json}");
    let out = bay.run(["layout", str(&path)]);
    let said = text(&out).to_lowercase();
    assert!(said.contains("log") && said.contains("canonical"), "{said}");
    drop(file);
    bay.finish();
}
