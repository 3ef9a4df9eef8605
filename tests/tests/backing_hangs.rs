//! While the whole file system below hangs, the commands still answer, a kill ends the daemon, and the mount point
//! can be freed.
//!
//! The backing is a simulated parallel file system. Either its process is stopped, so that requests to it wait in
//! the kernel, or its OST hangs, so that nothing that waits for it can be killed. Checks S4.8.

use forebay_tests::cli::{BUSY, FAILED, OK, STILL_DIRTY, code, str};
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, put, text};
use forebay_tests::wait::{LONG, in_background, wait_until, within};
use forebay_tests::{prereq, sys};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pfs_sim::{Change, Failure, Sim};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// The limit for "within seconds" on a busy machine. It can be generous: a command that hangs never returns.
const SECONDS: Duration = Duration::from_secs(30);

/// The fields are dropped in this order, after `Drop` has woken the backing.
struct Rig {
    test_mount: TestMount,
    sim: Sim,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(drain: Drain, nodes: &str) -> Rig {
        prereq::mounting();
        let dir = tempfile::tempdir().expect("a directory");
        let mount = dir.path().join("pfs");
        fs::create_dir(&mount).expect("mkdir");
        let sim = Sim::builder()
            .osts(1)
            .bandwidth("200M")
            .latency("0")
            .lock_cost("0")
            .program(prereq::helper("pfs-sim"))
            .start(&[&mount])
            .expect("start pfs-sim");
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&mount, all).expect("open the PFS to all");
        let mut test_mount = TestMount::new(drain);
        test_mount.set("nodes", nodes).set("ost-provider", "none");
        test_mount
            .set("ost-deadline", "3s")
            .set("attr-timeout", "0s");
        test_mount.set_backing(&mount);
        // Log lines of the drain and the lease about a file system that does not answer.
        for said in [
            "has not",
            "did not stop in time",
            "lease",
            "does not answer",
        ] {
            test_mount.allow_log(said);
        }
        Rig {
            test_mount,
            sim,
            _dir: dir,
        }
    }

    /// Stops pfs-sim and returns when all its threads are stopped: a request that one took before that could not be
    /// killed.
    fn hang(&self) {
        self.send(Signal::SIGSTOP);
        wait_until("pfs-sim is stopped", LONG, || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.sim.pid())).expect("threads");
            let stopped = tasks.flatten().all(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ")
                    .is_none_or(|(_, rest)| rest.starts_with('T'))
            });
            stopped.then_some(())
        });
    }

    fn wake(&self) {
        self.send(Signal::SIGCONT);
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.sim.pid() as i32), signal).expect("signal pfs-sim");
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = self.test_mount.forebay(args);
        let out = in_background(move || command.output().expect("start forebay"));
        within(&format!("forebay {}", args.join(" ")), SECONDS, out)
    }

    /// Starts a job that looks up a name in the mount that the kernel does not know, and so hangs.
    fn job(&self) -> Receiver<bool> {
        let path = self.test_mount.path("not there");
        let job = in_background(move || fs::metadata(path).is_ok());
        self.until_it_waits();
        job
    }

    /// Waits until a thread of the daemon waits for the backing, which is a FUSE file system as well.
    fn until_it_waits(&self) {
        wait_until("the daemon waits for its backing", LONG, || {
            let tasks =
                fs::read_dir(format!("/proc/{}/task", self.test_mount.pid())).expect("threads");
            let waits = tasks.flatten().any(|task| {
                let wchan = fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
                wchan.contains("request_wait_answer")
            });
            waits.then_some(())
        });
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.wake();
        if let Err(e) = self.sim.set_all(Change::default().fail(Failure::None)) {
            eprintln!("mend pfs-sim: {e}");
        }
    }
}

forebay_tests::with_one_node_and_many!(
    status_and_umount_keep_answer_while_the_backing_hangs,
    two_signals_free_those_who_wait_for_the_backing,
    a_daemon_that_cannot_end_does_not_keep_the_mount_point,
);

/// S4.2, S4.8: while a job waits in the mount, `umount --keep` reports that the mount is busy; two signals cut the
/// job off, take the mount away and leave the data in the store.
fn two_signals_free_those_who_wait_for_the_backing(nodes: &str) {
    let mut rig = Rig::new(Drain::Never, nodes);
    rig.test_mount
        .allow_log("the mount is in use and is cut off all the same");
    rig.test_mount.start();
    put(rig.test_mount.path("f"), vec![7; 300_000]);
    let mnt = rig.test_mount.mnt().to_owned();
    // This process holds the mount by its working directory.
    let cwd = Command::new("sleep").arg("600").current_dir(&mnt).spawn();
    let mut cwd = cwd.expect("start sleep");
    rig.hang();
    let job = rig.job();
    let out = rig.run(&["umount", str(&mnt), "--keep"]);
    assert_eq!(code(&out), BUSY, "{}", text(&out));
    for n in 1..=2 {
        rig.test_mount.signal(Signal::SIGTERM);
        wait_until("the signal is heard", LONG, || {
            let heard = rig.test_mount.log().matches("told to unmount").count();
            (heard == n).then_some(())
        });
    }
    assert!(!within("the job is cut off", SECONDS, job));
    wait_until("the mount is gone", SECONDS, || {
        (!sys::is_mounted(&mnt)).then_some(())
    });
    cwd.kill().expect("kill");
    cwd.wait().expect("wait");
    rig.wake();
    assert_eq!(
        rig.test_mount.wait_for_exit(),
        Some(0),
        "the daemon's exit code"
    );
    rig.test_mount.start();
    assert_same("kept", &get(rig.test_mount.path("f")), &[7; 300_000]);
    rig.test_mount.umount();
}

/// S4.8: commands that need nothing from the backing do not wait for it.
fn status_and_umount_keep_answer_while_the_backing_hangs(nodes: &str) {
    let mut rig = Rig::new(Drain::Never, nodes);
    rig.test_mount.start();
    put(rig.test_mount.path("f"), vec![7; 300_000]);
    let mnt = rig.test_mount.mnt().to_owned();
    rig.hang();
    for args in [&["status", str(&mnt)][..], &["status"]] {
        let out = rig.run(args);
        assert_eq!(code(&out), OK, "{}", text(&out));
        assert!(text(&out).contains("293 KiB in 1 file"), "{}", text(&out));
    }
    let out = rig.run(&["umount", str(&mnt), "--keep"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("stay undrained"), "{}", text(&out));
    assert!(!sys::is_mounted(&mnt));
    // The kernel lets a process end only when its files are closed, and closing them needs an answer from this
    // backing.
    rig.wake();
    assert_eq!(
        rig.test_mount.wait_for_exit(),
        Some(0),
        "the daemon's exit code"
    );
    rig.test_mount.start();
    assert_same("kept", &get(rig.test_mount.path("f")), &[7; 300_000]);
    rig.test_mount.umount();
}

/// S4.8: commands do not wait for a mount point that lies below the hanging file system either. The dead mount stays
/// until that file system answers, and the command says so.
#[test]
fn a_mount_point_below_what_hangs_keeps_no_command() {
    let mut rig = Rig::new(Drain::Never, "one");
    rig.test_mount.allow_log("the dead mount stays");
    let pfs = rig.test_mount.backing().to_owned();
    for dir in ["backing", "mnt"] {
        fs::create_dir(pfs.join(dir)).expect("mkdir");
        fs::set_permissions(pfs.join(dir), fs::Permissions::from_mode(0o777)).expect("chmod");
    }
    rig.test_mount.set_backing(&pfs.join("backing"));
    rig.test_mount.set_mnt(&pfs.join("mnt"));
    rig.test_mount.start();
    put(rig.test_mount.path("f"), vec![7; 300_000]);
    let mnt = rig.test_mount.mnt().to_owned();
    rig.hang();
    let out = rig.run(&["status", str(&mnt)]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("293 KiB in 1 file"), "{}", text(&out));
    let out = rig.run(&["umount", str(&mnt), "--keep"]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    let said = text(&out);
    assert!(
        said.contains("293 KiB in 1 file stay in the store"),
        "{said}"
    );
    assert!(said.contains("the dead mount stays"), "{said}");
    rig.wake();
    assert_eq!(
        rig.test_mount.wait_for_exit(),
        Some(0),
        "the daemon's exit code"
    );
    // The daemon's last attempt to unmount may have succeeded meanwhile.
    if sys::is_mounted(&mnt) {
        sys::detach(&mnt).expect("take the dead mount away");
    }
    rig.test_mount.start();
    assert_same("kept", &get(rig.test_mount.path("f")), &[7; 300_000]);
    rig.test_mount.umount();
}

/// S4.8: the daemon waits for nothing that only the daemon itself could answer, so a kill ends it; then
/// `forebay umount` frees the mount point.
#[test]
fn a_kill_ends_a_daemon_whose_backing_hangs() {
    let mut rig = Rig::new(Drain::Never, "one");
    rig.test_mount.start();
    put(rig.test_mount.path("f"), vec![7; 300_000]);
    // A process that has files of this backing open cannot end while the backing hangs, whatever the process does.
    // The daemon that is started here has none open until it needs one.
    rig.test_mount.umount_with(&["--keep"]);
    rig.test_mount.start();
    let mnt = rig.test_mount.mnt().to_owned();
    rig.hang();
    let job = rig.job();
    // The command makes the daemon search for the processes that hold the mount. The search must not make a request
    // to the daemon's own mount.
    let mut umount = rig
        .test_mount
        .forebay(["umount", str(&mnt), "--timeout", "1s"]);
    let umount = in_background(move || umount.output().expect("start forebay"));
    assert_ne!(code(&within("forebay umount", SECONDS, umount)), OK);
    rig.test_mount.signal(Signal::SIGKILL);
    assert_eq!(rig.test_mount.wait_for_exit(), None, "killed");
    assert!(!within("the job ends with the daemon", SECONDS, job));
    let out = rig.run(&["umount", str(&mnt)]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(!sys::is_mounted(&mnt));
    rig.wake();
    rig.test_mount.start();
    assert_same("kept", &get(rig.test_mount.path("f")), &[7; 300_000]);
    rig.test_mount.umount();
}

/// S4.8: a daemon that was killed but cannot end, because the kernel waits for the backing, counts as dead: a
/// command that waits for it returns, and `forebay umount` frees the mount point.
fn a_daemon_that_cannot_end_does_not_keep_the_mount_point(nodes: &str) {
    let mut rig = Rig::new(Drain::Never, nodes);
    rig.test_mount.start();
    put(rig.test_mount.path("f"), vec![8; 300_000]);
    let mnt = rig.test_mount.mnt().to_owned();
    let fail = |how| {
        rig.sim
            .set_all(Change::default().fail(how))
            .expect("change the OST")
    };
    fail(Failure::Hang);
    // The drain waits for the OST, and cannot be killed there.
    let mut drain = rig.test_mount.forebay(["drain", str(&mnt), "--wait"]);
    let drain = in_background(move || drain.output().expect("start forebay"));
    rig.until_it_waits();
    rig.test_mount.signal(Signal::SIGKILL);
    let out = within("forebay drain ends with the daemon", SECONDS, drain);
    assert_ne!(code(&out), OK, "{}", text(&out));
    let out = rig.run(&["umount", str(&mnt)]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(!sys::is_mounted(&mnt));
    fail(Failure::None);
    assert_eq!(rig.test_mount.wait_for_exit(), None, "killed");
    rig.test_mount.start();
    assert_same("kept", &get(rig.test_mount.path("f")), &[8; 300_000]);
    rig.test_mount.umount();
}
