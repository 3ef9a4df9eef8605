//! A backing that other machines write too: links are swapped in, pipes and devices take familiar names; also
//! reserved names and mount flags.

use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{Drain, TestMount, get, open_rw, put};
use forebay_tests::users::{ALICE, as_user};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs a test on a mount of its own. Files that the test still holds open are closed before unmounting.
fn with(drain: Drain, test: impl FnOnce(&mut TestMount)) {
    let mut mount = TestMount::new(drain);
    mount.set("attr-timeout", "0s");
    mount.start();
    test(&mut mount);
    mount.finish();
}

/// S8.5: a directory in the backing is swapped for a link to somewhere else, again and again,
/// while files below it are written. Nothing ever lands outside.
#[test]
fn links_swapped_under_the_daemon_lead_nowhere() {
    with(Drain::Immediate, |mount| {
        mount.allow_log("drain");
        let outside = mount.root().join("outside");
        fs::create_dir(&outside).expect("mkdir");
        put(outside.join("f"), b"precious");
        fs::create_dir(mount.path("d")).expect("mkdir");
        put(mount.path("d/f"), b"mine");
        // The directory is held open: so the kernel asks the daemon for `f` in it and follows no link itself.
        let dir = File::open(mount.path("d")).expect("open the directory");
        let path = format!("/proc/self/fd/{}/f", dir.as_raw_fd());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (dir, aside) = (mount.canonical("d"), mount.canonical("aside"));
                while !stop.load(Ordering::Relaxed) {
                    fs::rename(&dir, &aside).expect("move aside");
                    symlink(&outside, &dir).expect("put a link there");
                    fs::remove_file(&dir).expect("take it away");
                    fs::rename(&aside, &dir).expect("move back");
                }
            });
            for i in 0..300 {
                // Any error is fine while the tree changes underneath; a wrong place is not.
                let opened = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .custom_flags(libc::O_NOFOLLOW)
                    .open(&path);
                if let Ok(file) = opened {
                    sys::write_all_at(&file, format!("attack {i}").as_bytes(), 0)
                        .unwrap_or_default();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(get(outside.join("f")), b"precious");
        let names: Vec<_> = fs::read_dir(&outside).expect("list").collect();
        assert_eq!(names.len(), 1, "something was made outside the backing");
    });
}

/// S8.5, S6.2: the file itself is replaced by a link before it is drained.
#[test]
fn the_drain_does_not_follow_links() {
    with(Drain::Never, |mount| {
        mount.allow_log("drain");
        mount.allow_log("f");
        let victim = mount.root().join("victim");
        put(&victim, b"precious");
        put(mount.path("f"), vec![1; 100_000]);
        fs::rename(mount.canonical("f"), mount.canonical("moved")).expect("move aside");
        symlink(&victim, mount.canonical("f")).expect("put a link there");
        let out = mount.run([
            "drain".as_ref(),
            mount.mnt().as_os_str(),
            "--timeout=20s".as_ref(),
        ]);
        assert_eq!(get(&victim), b"precious");
        // The data belongs to the file, not to the name: if the file is found by its handle, it is drained there.
        if out.status.success() {
            assert_eq!(get(mount.canonical("moved")), vec![1; 100_000]);
        }
        fs::remove_file(mount.canonical("f")).expect("take the link away");
        fs::rename(mount.canonical("moved"), mount.canonical("f")).expect("move back");
        mount.drain();
        assert_eq!(get(mount.canonical("f")), vec![1; 100_000]);
    });
}

/// S8.6: a FIFO takes the name of a file; the daemon answers all requests as before.
#[test]
fn fifos_do_not_hang_the_daemon() {
    with(Drain::Immediate, |mount| {
        mount.allow_log("drain");
        mount.allow_log("f");
        let file = open_rw(mount.path("f"));
        sys::write_all_at(&file, b"before", 0).expect("write");
        mount.drain();
        drop(file);
        fs::remove_file(mount.canonical("f")).expect("remove");
        sys::mknod(&mount.canonical("f"), libc::S_IFIFO | 0o666, 0).expect("mkfifo");
        // Opening the FIFO through the mount is the kernel's business: without a writer the open must block only the
        // process that opens, and with O_NONBLOCK no process.
        for _ in 0..20 {
            let opened = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(mount.path("f"));
            drop(opened);
            drop(sys::truncate(&mount.path("f"), 0));
            put(mount.path("other"), b"still answering");
            assert_eq!(get(mount.path("other")), b"still answering");
        }
        mount.drain();
    });
}

/// S8.6: the name of undrained data is a FIFO now; the drain neither hangs nor writes into it.
#[test]
fn the_drain_does_not_open_fifos() {
    with(Drain::Never, |mount| {
        mount.allow_log("drain");
        mount.allow_log("f");
        put(mount.path("f"), vec![1; 100_000]);
        fs::remove_file(mount.canonical("f")).expect("remove");
        sys::mknod(&mount.canonical("f"), libc::S_IFIFO | 0o666, 0).expect("mkfifo");
        let drain = [
            "drain".as_ref(),
            mount.mnt().as_os_str(),
            "--timeout=5s".as_ref(),
        ];
        mount.run(drain);
        put(mount.path("g"), b"fine");
        assert_eq!(get(mount.path("g")), b"fine");
        fs::remove_file(mount.canonical("f")).expect("remove");
        mount.kill();
    });
}

/// S8.6, S8.10: device nodes do not open through the mount, and the daemon does not open them.
#[test]
fn devices_do_not_open() {
    with(Drain::Immediate, |mount| {
        let node = mount.canonical("zero");
        sys::mknod(&node, libc::S_IFCHR | 0o666, libc::makedev(1, 5)).expect("mknod");
        let opened = File::open(mount.path("zero"));
        assert_eq!(
            errno(opened, "open a device on a nodev mount"),
            libc::EACCES
        );
        let flags = nix::sys::statvfs::statvfs(mount.mnt())
            .expect("statfs")
            .flags();
        assert!(flags.contains(nix::sys::statvfs::FsFlags::ST_NOSUID));
        assert!(flags.contains(nix::sys::statvfs::FsFlags::ST_NODEV));
    });
}

/// S8.7: the shared directory does not exist for the mount's users, not even for root.
#[test]
fn reserved_names() {
    with(Drain::Never, |mount| {
        fs::create_dir_all(mount.canonical(".forebay")).expect("mkdir");
        put(mount.canonical(".forebay/x"), b"internal");
        let path = mount.path(".forebay");
        let listed = fs::read_dir(mount.mnt()).expect("list");
        assert_eq!(listed.count(), 0, "it must not be listed");
        assert_eq!(errno(fs::metadata(&path), "stat"), libc::ENOENT);
        assert_eq!(
            errno(File::open(path.join("x")), "open below"),
            libc::ENOENT
        );
        put(mount.path("f"), b"x");
        fs::create_dir(mount.path("d")).expect("mkdir");
        let refused = |what: &str, e: i32| {
            let fine = [
                libc::EPERM,
                libc::EACCES,
                libc::EEXIST,
                libc::ENOENT,
                libc::EINVAL,
            ];
            assert!(fine.contains(&e), "{what}: errno {e}");
        };
        refused("create", errno(File::create(&path), "create"));
        refused("mkdir", errno(fs::create_dir(&path), "mkdir"));
        refused("symlink", errno(symlink("f", &path), "symlink"));
        refused("link", errno(fs::hard_link(mount.path("f"), &path), "link"));
        refused(
            "rename onto",
            errno(fs::rename(mount.path("d"), &path), "rename"),
        );
        refused(
            "rename from",
            errno(fs::rename(&path, mount.path("stolen")), "rename"),
        );
        refused("rmdir", errno(fs::remove_dir(&path), "rmdir"));
        refused(
            "mknod",
            errno(sys::mknod(&path, libc::S_IFIFO | 0o600, 0), "mknod"),
        );
        let key = "user.forebay.internal.x";
        let set = sys::set_xattr(&mount.path("f"), key, b"1", 0);
        refused("set attribute", errno(set, "setxattr"));
        sys::set_xattr(&mount.canonical("f"), key, b"1", 0).expect("set it below");
        assert!(sys::list_xattr(&mount.path("f")).expect("list").is_empty());
        errno(sys::get_xattr(&mount.path("f"), key), "read it");
        assert_eq!(get(mount.canonical(".forebay/x")), b"internal");
    });
}

/// S8.10: an ioctl that is not known is ENOTTY, and so is a terminal ioctl, which would tell of the daemon's
/// surroundings.
#[test]
fn unknown_ioctls() {
    with(Drain::Never, |mount| {
        let file = open_rw(mount.path("f"));
        for request in [0x5401, 0xdead_beef_u64] {
            let mut space = [0u8; 4096];
            // SAFETY: the buffer is larger than what either request could read or write.
            let rc = unsafe { libc::ioctl(file.as_raw_fd(), request as _, space.as_mut_ptr()) };
            assert_eq!(rc, -1);
            let e = std::io::Error::last_os_error();
            assert_eq!(e.raw_os_error(), Some(libc::ENOTTY), "ioctl {request:x}");
        }
    });
}

/// S8.11: an ordinary user can mount through fusermount3, and no other user can use the mount.
#[test]
fn an_ordinary_user_mounts() {
    forebay_tests::prereq::user_mounting();
    let mount = TestMount::new(Drain::Immediate);
    let user = nix::unistd::User::from_name("nobody")
        .expect("look up")
        .expect("nobody exists");
    let uid = user.uid.as_raw();
    let root = mount.root().join("user");
    fs::create_dir(&root).expect("mkdir");
    for name in ["mnt", "backing", "run"] {
        fs::create_dir(root.join(name)).expect("mkdir");
        std::os::unix::fs::chown(root.join(name), Some(uid), Some(uid)).expect("chown");
    }
    fs::set_permissions(root.join("run"), fs::Permissions::from_mode(0o700)).expect("chmod");
    std::os::unix::fs::chown(&root, Some(uid), Some(uid)).expect("chown");
    let program = root.join("forebay");
    sys::copy_program(&forebay_tests::prereq::forebay(), &program).expect("copy the program");
    let command = |args: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(args).current_dir(&root);
        command.env("XDG_RUNTIME_DIR", root.join("run"));
        command.env("HOME", &root);
        as_user(uid, &[], || command.output().expect("start forebay"))
    };
    let out = command(&["mount", "mnt", "--store", "store", "--backing", "backing"]);
    let said = forebay_tests::test_mount::text(&out);
    assert!(out.status.success(), "mount as an ordinary user: {said}");
    let result = std::panic::catch_unwind(|| {
        as_user(uid, &[], || {
            put(root.join("mnt/f"), vec![3; 100_000]);
            assert_eq!(get(root.join("mnt/f")), vec![3; 100_000]);
        });
        as_user(ALICE, &[], || {
            errno(fs::read_dir(root.join("mnt")), "another user looks in");
        });
        let out = command(&["umount", "mnt"]);
        let said = forebay_tests::test_mount::text(&out);
        assert!(out.status.success(), "umount as an ordinary user: {said}");
        assert_eq!(get(root.join("backing/f")), vec![3; 100_000]);
    });
    if let Err(panic) = result {
        sys::detach(&root.join("mnt")).expect("detach");
        std::panic::resume_unwind(panic);
    }
    forebay_tests::wait_until("the mount is gone", Duration::from_secs(30), || {
        (!sys::is_mounted(&root.join("mnt"))).then_some(())
    });
}

/// S8.11: a user without rights cannot get setuid or device files by asking the daemon for them.
#[test]
fn an_ordinary_user_cannot_ask_for_suid() {
    let mount = TestMount::new(Drain::Immediate);
    for name in ["m", "b"] {
        fs::create_dir(mount.root().join(name)).expect("mkdir");
        std::os::unix::fs::chown(mount.root().join(name), Some(ALICE), Some(ALICE)).expect("chown");
    }
    let mut command = std::process::Command::new(forebay_tests::prereq::forebay());
    command.current_dir(mount.root());
    command.args([
        "mount",
        "m",
        "--backing",
        "b",
        "--store",
        "s",
        "-o",
        "suid,dev",
    ]);
    let out = as_user(ALICE, &[], || command.output().expect("start forebay"));
    assert_eq!(
        out.status.code(),
        Some(2),
        "{}",
        forebay_tests::test_mount::text(&out)
    );
    assert!(!sys::is_mounted(&mount.root().join("m")));
}
