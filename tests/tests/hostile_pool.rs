//! One user tries to stop the mount for all users: by requests that compute for long, and by requests that wait.
//!
//! The attacks come from ALICE. Meanwhile BOB ([`Bystander`]) creates, writes, reads, stats and asks for `status`,
//! and each of these calls is answered within a second.

use forebay_tests::bystander::Bystander;
use forebay_tests::cluster::Cluster;
use forebay_tests::locks::{How, lock};
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, open_rw, put};
use forebay_tests::users::{ALICE, as_user};
use forebay_tests::wait::{LONG, wait_until};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

/// The limit within which a request is answered, and a killed process is gone.
const SOON: Duration = Duration::from_secs(10);

/// More requests than there are working slots for all users together.
const MANY: usize = 600;

fn of_alice(mount: &TestMount) -> PathBuf {
    let dir = mount.path("alice");
    fs::create_dir_all(&dir).expect("mkdir for alice");
    chown(&dir, Some(ALICE), Some(ALICE)).expect("chown alice's directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    dir
}

/// A file system that is unmounted when this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Mounts a tmpfs: a backing without a largest file size of its own.
    fn tmpfs(dir: &Path) -> Self {
        Self::new(&["-t", "tmpfs", "-o", "size=512m,mode=0777"], dir)
    }

    /// Mounts fusectl, in which the kernel shows its FUSE connections.
    fn fusectl(dir: &Path) -> Self {
        Self::new(&["-t", "fusectl"], dir)
    }

    fn new(kind: &[&str], dir: &Path) -> Self {
        let made = Command::new("mount")
            .args(kind)
            .arg("none")
            .arg(dir)
            .status();
        assert!(made.is_ok_and(|status| status.success()), "mount {kind:?}");
        Self(dir.into())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(e) = sys::detach(&self.0) {
            eprintln!("umount -l {}: {e}", self.0.display());
        }
    }
}

/// Calls of ALICE's that are under way at the same time, each on a thread of its own. They end at the latest when
/// the daemon does.
struct Calls {
    left: Arc<AtomicUsize>,
}

impl Calls {
    fn start(count: usize, call: impl Fn(usize) + Send + Sync + 'static) -> Self {
        let left = Arc::new(AtomicUsize::new(count));
        let counted = left.clone();
        std::thread::spawn(move || {
            as_user(ALICE, &[], || {
                std::thread::scope(|scope| {
                    for n in 0..count {
                        let (left, call) = (&counted, &call);
                        scope.spawn(move || {
                            call(n);
                            left.fetch_sub(1, Ordering::AcqRel);
                        });
                    }
                });
            });
        });
        Self { left }
    }

    fn are_answered(&self) {
        wait_until("the calls are answered", LONG, || {
            (self.left.load(Ordering::Acquire) == 0).then_some(())
        });
    }
}

/// S8.16: a search for data costs as much as the file has extents, not as much as the file is long.
#[test]
fn searches_in_endless_files_stop_no_other_user() {
    let mut mount = TestMount::with_limit(Drain::Never, LIMIT);
    let _backing = Mounted::tmpfs(mount.backing());
    mount.start();
    let dir = of_alice(&mount);
    let bystander = Bystander::beside(&mount);
    bystander.is_not_disturbed(2);
    let files = as_user(ALICE, &[], || {
        let file = |n: usize| {
            let file = open_rw(dir.join(format!("f{n}")));
            file.write_all_at(b"x", 0).expect("write");
            file.set_len(i64::MAX as u64).expect("make it endless");
            file
        };
        (0..8).map(file).collect::<Vec<File>>()
    });
    let began = Instant::now();
    let searches = Calls::start(MANY, move |n| {
        let file = &files[n % files.len()];
        let found = sys::seek(file, 4096, libc::SEEK_DATA).expect("seek");
        assert_eq!(found, None, "there is no data");
        let hole = sys::seek(file, 0, libc::SEEK_HOLE).expect("seek");
        assert!(hole.is_some_and(|at| at <= 4096), "{hole:?}");
    });
    bystander.is_not_disturbed(3);
    searches.are_answered();
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    bystander.was_not_disturbed();
    mount.umount_with(&["--keep"]);
}

/// S8.16, for what `status` and `forebay layout` count: the published bytes of an endless file.
#[test]
fn reports_about_endless_files_stop_no_other_user() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    let _backing = Mounted::tmpfs(cluster.mount(0).backing());
    cluster.start();
    let dir = of_alice(cluster.mount(0));
    let bystander = Bystander::beside(cluster.mount(0));
    let path = dir.join("endless");
    let file = as_user(ALICE, &[], || {
        let file = open_rw(&path);
        file.write_all_at(b"x", 0).expect("write");
        file.set_len(i64::MAX as u64).expect("make it endless");
        file.sync_all().expect("publish");
        file.write_all_at(b"y", 1 << 40).expect("write");
        file
    });
    bystander.is_not_disturbed(3);
    let began = Instant::now();
    let mut layout = cluster.mount(0).forebay(["layout"]);
    let out = layout.arg(&path).output().expect("forebay layout");
    assert!(out.status.success(), "{out:?}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    bystander.was_not_disturbed();
    drop(file);
    as_user(ALICE, &[], || fs::remove_file(&path).expect("unlink"));
    cluster.finish();
}

/// Processes of ALICE's that open a file.
struct Openers(Vec<Child>);

impl Openers {
    fn start(count: usize, path: &Path) -> Self {
        let open = |_| {
            Command::new("head")
                .args(["-c", "1"])
                .arg(path)
                .uid(ALICE)
                .gid(ALICE)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("start head")
        };
        Self((0..count).map(open).collect())
    }

    /// Returns how many of the processes wait in the open.
    fn waiting(&self) -> usize {
        let waits = |child: &&Child| {
            let wchan = fs::read_to_string(format!("/proc/{}/wchan", child.id()));
            wchan.is_ok_and(|at| at.contains("request_wait_answer") || at.contains("fuse"))
        };
        self.0.iter().filter(waits).count()
    }

    fn kill(mut self, within: Duration) {
        for child in &mut self.0 {
            child.kill().expect("kill");
        }
        let began = Instant::now();
        let mut left = self.0.len();
        while left > 0 && began.elapsed() < within {
            self.0
                .retain_mut(|child| child.try_wait().expect("ask after it").is_none());
            left = self.0.len();
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(
            left, 0,
            "{left} killed processes are there after {within:?}"
        );
    }
}

impl Drop for Openers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The processes are not waited for: one that hangs ends when its mount is taken away.
            if let Err(e) = child.kill() {
                eprintln!("end a process: {e}");
            }
        }
    }
}

/// Starts two nodes. The second one announces `alice/late` and is stopped before it has published.
fn announced_by_a_stopped_node() -> (Cluster, PathBuf) {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.start();
    let dir = of_alice(cluster.mount(0));
    let there = cluster.mount(1).path("alice/late");
    wait_until("the other node knows the directory", LONG, || {
        as_user(ALICE, &[], || File::create(&there).is_ok()).then_some(())
    });
    as_user(ALICE, &[], || put(&there, [7; 1 << 20]));
    cluster.mount(1).signal(Signal::SIGSTOP);
    (cluster, dir.join("late"))
}

/// S8.17: requests that wait for other nodes have slots of their own, and a request that waits for another node
/// ends when its process is killed.
#[test]
fn opens_that_wait_for_a_stopped_node_stop_no_other_user() {
    let (cluster, late) = announced_by_a_stopped_node();
    let bystander = Bystander::beside(cluster.mount(0));
    bystander.is_not_disturbed(2);
    let openers = Openers::start(MANY, &late);
    wait_until("they wait", LONG, || {
        (openers.waiting() >= MANY * 9 / 10).then_some(())
    });
    bystander.is_not_disturbed(5);
    openers.kill(SOON);
    bystander.was_not_disturbed();
    cluster.mount(1).signal(Signal::SIGCONT);
    let read = as_user(ALICE, &[], || fs::read(&late).expect("read"));
    assert_eq!(read, [7; 1 << 20]);
    cluster.finish();
}

/// S8.17, and the turns of S2.9: a read that waits for a turn which another node has and does not give up ends when
/// its process is killed, and otherwise with ETIMEDOUT after `visibility-timeout`.
#[test]
fn waits_for_a_turn_end() {
    let mut mount = TestMount::with_limit(Drain::Never, LIMIT);
    // Only ALICE's files are coherent: a coherent file of another user in the same group would wait for its turn as
    // well.
    mount
        .rules(&["match = \"alice/**\"\nabsorb = \"coherent\""])
        .set("visibility-timeout", "20s");
    mount.start();
    let dir = of_alice(&mount);
    let path = dir.join("f");
    as_user(ALICE, &[], || put(&path, [1; 4096]));
    let bystander = Bystander::beside(&mount);
    bystander.is_not_disturbed(1);
    // A node that stopped within its turn holds the lock of the file's group. The test takes the locks of all
    // groups.
    let locks = mount.canonical(".forebay/locks");
    let entries = fs::read_dir(locks).expect("list the locks");
    let held: Vec<File> = entries
        .map(|entry| open_rw(entry.expect("list the locks").path()))
        .collect();
    for file in &held {
        lock(file, How::Ofd).expect("take another node's turn");
    }
    let readers = Openers::start(3, &path);
    wait_until("they wait", LONG, || (readers.waiting() == 3).then_some(()));
    bystander.is_not_disturbed(3);
    readers.kill(SOON);
    let began = Instant::now();
    let read = as_user(ALICE, &[], || fs::read(&path));
    assert_eq!(sys::errno(read, "read without a turn"), libc::ETIMEDOUT);
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    bystander.was_not_disturbed();
    drop(held);
    let read = as_user(ALICE, &[], || fs::read(&path).expect("read"));
    assert_eq!(read, [1; 4096]);
    mount.finish();
}

/// S8.17: requests for which programs do not wait stay unanswered while they wait for a slot, and the kernel holds
/// back those of all users when there are too many. The daemon sets the highest limit, so that none is held back
/// before it has to be.
#[test]
fn the_kernel_keeps_no_requests_back() {
    let mut mount = TestMount::with_limit(Drain::Never, LIMIT);
    mount.start();
    let device = fs::metadata(mount.mnt()).expect("stat the mount").dev();
    let connections = mount.root().join("connections");
    fs::create_dir(&connections).expect("mkdir");
    let fusectl = Mounted::fusectl(&connections);
    let limit = connections.join(format!("{}/max_background", libc::minor(device)));
    let limit = fs::read_to_string(limit).expect("ask for the limit");
    assert_eq!(limit.trim(), u16::MAX.to_string());
    drop(fusectl);
    mount.finish();
}

/// S8.16: a read does not cost one call for each piece in which the file was written. A file of single bytes,
/// written backwards, has the most pieces that a user can make.
#[test]
fn readers_of_single_bytes_stop_no_other_user() {
    const BYTES: u64 = 40_000;
    const READERS: usize = 24;
    let mut mount = TestMount::with_limit(Drain::Never, LIMIT);
    mount.start();
    let path = of_alice(&mount).join("backwards");
    let bytes: Vec<u8> = (0..BYTES).map(|n| (n % 251) as u8).collect();
    as_user(ALICE, &[], || {
        let file = open_rw(&path);
        for at in (0..BYTES).rev() {
            file.write_all_at(&bytes[at as usize..][..1], at)
                .expect("write");
        }
    });
    let bystander = Bystander::beside(&mount);
    let done = Arc::new(AtomicUsize::new(0));
    let reads = done.clone();
    let readers = Calls::start(READERS, move |_| {
        while reads.load(Ordering::Acquire) == 0 {
            assert_eq!(fs::read(&path).expect("read"), bytes);
        }
    });
    bystander.is_not_disturbed(10);
    done.store(1, Ordering::Release);
    readers.are_answered();
    bystander.was_not_disturbed();
    mount.umount_with(&["--keep"]);
}
