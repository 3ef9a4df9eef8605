//! Copies of the mount in other mount namespaces, which any user can make and keep.
//!
//! An ordinary user's `unshare -Urm sleep` has a copy of every mount of the machine, which a `umount` in the first
//! namespace does not reach. Checks S4.6: the copy holds up neither `forebay umount`, nor signals, nor the next
//! mount.

use forebay_tests::bystander::Bystander;
use forebay_tests::cli::{OK, code, str};
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, put, text};
use forebay_tests::users::{ALICE, as_user};
use forebay_tests::wait::{LONG, in_background, wait_until, within};
use nix::sys::signal::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The limit for cutting a copy off on a busy machine (the session first has 2 s to end by itself).
const SOON: Duration = Duration::from_secs(20);

/// Number of programs that write in a copy of the mount.
const WRITERS: usize = 8;

const CUT_OFF: &str = "another mount namespace has a copy of the mount";

/// A process of ALICE's in a user and mount namespace of its own, which has a copy of the mount.
struct Copy(Child);

impl Copy {
    fn of(test_mount: &TestMount) -> Copy {
        let child = as_user(ALICE, &[], || {
            Command::new("unshare")
                .args(["-Urm", "sleep", "600"])
                .current_dir("/")
                .stdin(Stdio::null())
                .spawn()
        });
        let copy = Copy(child.expect("start unshare (util-linux)"));
        let line = format!(" {} ", str(test_mount.mnt()));
        let own = fs::read_link("/proc/self/ns/mnt").expect("own namespace");
        wait_until("the namespace has a copy of the mount", LONG, || {
            let seen = fs::read_link(copy.proc("ns/mnt")).is_ok_and(|ns| ns != own);
            let table = fs::read_to_string(copy.proc("mountinfo")).unwrap_or_default();
            (seen && table.contains(&line)).then_some(())
        });
        copy
    }

    fn proc(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.0.id())
    }

    /// Returns the path of the same file in the copy of the mount.
    fn path(&self, test_mount: &TestMount, name: &str) -> String {
        self.proc(&format!("root{}", str(&test_mount.path(name))))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let ended = self.0.kill().and_then(|()| self.0.wait());
        if let Err(e) = ended {
            eprintln!("end the namespace: {e}");
        }
    }
}

fn with_data() -> TestMount {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.allow_log(CUT_OFF);
    test_mount.start();
    put(test_mount.path("f"), vec![7; 300_000]);
    test_mount
}

/// S4.6: `forebay umount` returns, everything is drained, the copy is cut off, and the store is free.
#[test]
fn umount_returns_while_another_namespace_has_a_copy() {
    let mut test_mount = with_data();
    let bystander = Bystander::beside(&test_mount);
    let copy = Copy::of(&test_mount);
    let seen = copy.path(&test_mount, "f");
    bystander.is_not_disturbed(3);
    bystander.was_not_disturbed();
    assert_eq!(get(&seen).len(), 300_000, "the copy shows the mount");

    let mut umount = test_mount.forebay(["umount", str(test_mount.mnt())]);
    let out = in_background(move || umount.output().expect("start forebay"));
    let out = within("forebay umount", SOON, out);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(
        test_mount.wait_for_exit(),
        Some(0),
        "the daemon's exit code"
    );
    assert!(!sys::is_mounted(test_mount.mnt()));
    assert_same("canonical", &get(test_mount.canonical("f")), &[7; 300_000]);
    assert_eq!(
        test_mount.log().matches(CUT_OFF).count(),
        1,
        "{}",
        test_mount.log()
    );
    let error = fs::metadata(&seen).expect_err("the copy is cut off");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");

    test_mount.start();
    assert_same("the next mount", &get(test_mount.path("f")), &[7; 300_000]);
    drop(copy);
    test_mount.finish();
}

/// S4.6: a copy that always has something undrained does not keep the mount. Its writes after the drain are not
/// lost: each write is drained, or was never acknowledged.
#[test]
fn a_copy_that_writes_until_it_is_cut_off_loses_nothing() {
    let mut test_mount = with_data();
    let copy = Copy::of(&test_mount);
    // There are so many writers that there is no moment at which everything is drained.
    let writers: Vec<_> = (0..WRITERS)
        .map(|n| {
            let name = format!("log{n}");
            put(test_mount.path(&name), b"");
            let all = fs::Permissions::from_mode(0o666);
            fs::set_permissions(test_mount.path(&name), all).expect("chmod");
            let path = copy.path(&test_mount, &name);
            (name, in_background(move || write_until_cut_off(&path)))
        })
        .collect();
    wait_until("they write", LONG, || {
        let writes = |name| fs::metadata(test_mount.path(name)).expect("stat").len() > 90;
        writers.iter().all(|(name, _)| writes(name)).then_some(())
    });
    test_mount.signal(Signal::SIGTERM);
    assert_eq!(test_mount.wait_for_exit(), Some(0));
    for (name, writer) in writers {
        let answered = within("a writer is cut off", SOON, writer);
        let want: String = (0..answered).map(|n| format!("{n:08}\n")).collect();
        let got = get(test_mount.canonical(name));
        assert!(got.len() >= want.len(), "{} of {}", got.len(), want.len());
        assert_same("canonical", &got[..want.len()], want.as_bytes());
    }
    drop(copy);
}

/// Opens the file, writes a line and closes it, again and again. Returns how many lines were acknowledged.
fn write_until_cut_off(path: &str) -> u64 {
    let mut answered = 0;
    while let Ok(file) = fs::OpenOptions::new().write(true).open(path) {
        let line = format!("{answered:08}\n");
        if sys::write_all_at(&file, line.as_bytes(), answered * 9).is_err() {
            break;
        }
        answered += 1;
    }
    answered
}

/// S4.2, S4.6: signals end the daemon, too; the second signal at once, with the data left in the store.
#[test]
fn signals_end_a_daemon_whose_mount_has_a_copy() {
    for signals in [1, 2] {
        let mut test_mount = with_data();
        if signals == 2 {
            test_mount.signal(Signal::SIGTERM);
            test_mount.wait_for_exit();
            test_mount.set("drain-rate", "64KiB");
            test_mount.start();
            put(test_mount.path("f"), vec![8; 20 << 20]);
        }
        let copy = Copy::of(&test_mount);
        for n in 1..=signals {
            test_mount.signal(Signal::SIGTERM);
            wait_until("the signal is heard", LONG, || {
                let heard = test_mount.log().matches("told to unmount").count();
                (heard >= n + usize::from(signals == 2)).then_some(())
            });
        }
        wait_until("the daemon ends", SOON, || {
            (!alive(&test_mount)).then_some(())
        });
        assert_eq!(test_mount.wait_for_exit(), Some(0));
        assert!(!sys::is_mounted(test_mount.mnt()));
        if signals == 1 {
            assert_same("canonical", &get(test_mount.canonical("f")), &[7; 300_000]);
        } else {
            test_mount.set("drain-rate", "0");
            test_mount.start();
            assert_same("kept", &get(test_mount.path("f")), &vec![8; 20 << 20]);
        }
        drop(copy);
        test_mount.finish();
    }
}

/// S4.6, S4.7: after a plain umount a copy keeps the session, but it holds up neither the drain nor the next mount.
#[test]
fn a_copy_does_not_keep_a_store_that_another_program_has_unmounted() {
    const LEFT: &str = "another program has unmounted";
    let mut test_mount = with_data();
    test_mount.allow_log(LEFT);
    let copy = Copy::of(&test_mount);
    let seen = copy.path(&test_mount, "f");
    sys::plain_umount(test_mount.mnt());
    wait_until("status shows that it is drained", LONG, || {
        let status = test_mount.status();
        (status.at("/mounted") == false && status.undrained() == 0).then_some(())
    });
    assert_same("canonical", &get(test_mount.canonical("f")), &[7; 300_000]);
    assert_eq!(get(&seen).len(), 300_000, "the copy is served");
    let mut mount = test_mount.mount_command();
    let out = in_background(move || mount.output().expect("start forebay"));
    let out = within("the next mount", SOON, out);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(
        test_mount.wait_for_exit(),
        Some(0),
        "the first daemon's exit code"
    );
    let error = fs::metadata(&seen).expect_err("the copy is cut off");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");
    assert_eq!(get(test_mount.path("f")).len(), 300_000);
    drop(copy);
    test_mount.umount();
}

/// Returns false if the daemon has ended, or is a zombie that its parent has not reaped.
fn alive(test_mount: &TestMount) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", test_mount.pid())).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
