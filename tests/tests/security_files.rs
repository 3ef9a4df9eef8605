//! S8 with two unprivileged users beside root, on one mount: no user gets at another user's data, and the rules
//! about directories and mode bits hold although data takes another way.

mod nodes_pair;

use forebay_tests::cli::{FAILED, code};
use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use forebay_tests::users::{ALICE, BOB, TEAM, as_user};
use nodes_pair::{MIB, Shared};
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

/// Runs a test on a mount of its own. Files that the test still holds open are closed before unmounting.
fn with(drain: Drain, test: impl FnOnce(&mut TestMount)) {
    let mut mount = TestMount::new(drain);
    mount.start();
    test(&mut mount);
    mount.finish();
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("stat").mode() & 0o7777
}

fn create_as(uid: u32, path: &Path, mode: u32, data: &[u8]) {
    as_user(uid, &[], || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        let file = options.open(path).expect("create");
        sys::write_all_at(&file, data, 0).expect("write");
    });
}

/// S8.1: a file with mode 0600 is private, while its bytes are in the log and when they are drained.
#[test]
fn private_files_stay_private() {
    with(Drain::Never, |mount| {
        create_as(ALICE, &mount.path("secret"), 0o600, b"alice's own");
        for _ in 0..2 {
            as_user(BOB, &[], || {
                let path = mount.path("secret");
                assert_eq!(errno(File::open(&path), "bob reads"), libc::EACCES);
                let write = OpenOptions::new().write(true).open(&path);
                assert_eq!(errno(write, "bob writes"), libc::EACCES);
                assert_eq!(
                    errno(sys::truncate(&path, 0), "bob truncates"),
                    libc::EACCES
                );
                let list = sys::set_xattr(&path, "user.x", b"1", 0);
                assert_eq!(errno(list, "bob sets an attribute"), libc::EACCES);
            });
            as_user(ALICE, &[], || {
                assert_eq!(get(mount.path("secret")), b"alice's own")
            });
            mount.drain();
        }
        let meta = fs::metadata(mount.canonical("secret")).expect("stat");
        assert_eq!(
            (meta.uid(), meta.gid()),
            (ALICE, ALICE),
            "created as the caller"
        );
    });
}

/// S8.1: rights through supplementary groups count, although FUSE requests do not carry these groups.
#[test]
fn supplementary_groups_count() {
    with(Drain::Never, |mount| {
        put(mount.path("team"), b"shared");
        chown(mount.path("team"), Some(0), Some(TEAM)).expect("chown");
        chmod(&mount.path("team"), 0o660);
        fs::create_dir(mount.path("dir")).expect("mkdir");
        chown(mount.path("dir"), Some(0), Some(TEAM)).expect("chown");
        chmod(&mount.path("dir"), 0o770);
        as_user(ALICE, &[TEAM], || {
            assert_eq!(get(mount.path("team")), b"shared");
            put(mount.path("team"), b"changed");
            put(mount.path("dir/new"), b"x");
            chown(mount.path("dir/new"), None, Some(TEAM)).expect("give to a group of one's own");
        });
        as_user(BOB, &[], || {
            assert_eq!(
                errno(File::open(mount.path("team")), "bob reads"),
                libc::EACCES
            );
            let create = File::create(mount.path("dir/bob"));
            assert_eq!(errno(create, "bob creates"), libc::EACCES);
        });
        assert_eq!(get(mount.path("team")), b"changed");
    });
}

/// S8.2: the store holds all users' bytes and is closed to all users.
#[test]
fn the_store_is_closed() {
    with(Drain::Never, |mount| {
        create_as(ALICE, &mount.path("secret"), 0o600, &[7; 100_000]);
        assert_eq!(mode(mount.store()) & 0o077, 0, "mode of the store");
        let mut checked = 0;
        let mut todo = vec![mount.store().to_owned()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(dir).expect("list the store") {
                let path = entry.expect("entry").path();
                if path.is_dir() {
                    todo.push(path.clone());
                }
                as_user(BOB, &[], || {
                    errno(File::open(&path), &format!("bob opens {}", path.display()))
                });
                checked += 1;
            }
        }
        assert!(checked > 0, "the store has files");
    });
}

/// S8.3: in a sticky directory only the owner removes or renames.
#[test]
fn sticky_directories() {
    with(Drain::Never, |mount| {
        fs::create_dir(mount.path("tmp")).expect("mkdir");
        chmod(&mount.path("tmp"), 0o1777);
        create_as(ALICE, &mount.path("tmp/a"), 0o666, b"alice");
        as_user(BOB, &[], || {
            let path = mount.path("tmp/a");
            assert_eq!(errno(fs::remove_file(&path), "bob removes"), libc::EPERM);
            let renamed = fs::rename(&path, mount.path("tmp/b"));
            assert_eq!(errno(renamed, "bob renames"), libc::EPERM);
            put(mount.path("tmp/bob"), b"bob");
            let over = fs::rename(mount.path("tmp/bob"), &path);
            assert_eq!(errno(over, "bob renames over it"), libc::EPERM);
            let exchange = sys::rename_flags(&mount.path("tmp/bob"), &path, libc::RENAME_EXCHANGE);
            assert_eq!(errno(exchange, "bob exchanges"), libc::EPERM);
        });
        as_user(ALICE, &[], || {
            fs::remove_file(mount.path("tmp/a")).expect("alice removes")
        });
    });
}

/// S8.3: a file that is made in a setgid directory belongs to the directory's group.
#[test]
fn setgid_directories() {
    with(Drain::Never, |mount| {
        fs::create_dir(mount.path("project")).expect("mkdir");
        chown(mount.path("project"), Some(0), Some(TEAM)).expect("chown");
        chmod(&mount.path("project"), 0o2777);
        as_user(ALICE, &[TEAM], || {
            put(mount.path("project/f"), b"x");
            fs::create_dir(mount.path("project/d")).expect("mkdir");
        });
        let file = fs::metadata(mount.path("project/f")).expect("stat");
        assert_eq!((file.uid(), file.gid()), (ALICE, TEAM));
        let dir = fs::metadata(mount.path("project/d")).expect("stat");
        assert_eq!(dir.gid(), TEAM);
        assert_eq!(dir.mode() & 0o2000, 0o2000, "the bit is handed down");
        // A setgid program for a group that the user is not in loses the bit.
        as_user(BOB, &[], || {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o2775);
            options.open(mount.path("project/g")).expect("create");
        });
        assert_eq!(mode(&mount.path("project/g")) & 0o2000, 0);
    });
}

/// S8.4: setuid and setgid go when another user writes or truncates the file, or when the file changes its group.
#[test]
fn setuid_is_stripped() {
    for drain in [Drain::Never, Drain::Immediate] {
        with(drain, |mount| {
            let path = mount.path("program");
            let arm = || {
                put(&path, vec![1; 20_000]);
                chown(&path, Some(ALICE), Some(ALICE)).expect("chown");
                chmod(&path, 0o6777);
                assert_eq!(mode(&path), 0o6777);
            };
            arm();
            as_user(BOB, &[], || {
                let file = OpenOptions::new().write(true).open(&path).expect("open");
                sys::write_all_at(&file, b"evil", 0).expect("write");
            });
            assert_eq!(mode(&path), 0o777, "{drain:?}: after a write");
            assert_eq!(
                mode(&mount.canonical("program")),
                0o777,
                "{drain:?}: in the backing"
            );
            arm();
            as_user(BOB, &[], || sys::truncate(&path, 10).expect("truncate"));
            assert_eq!(mode(&path), 0o777, "{drain:?}: after a truncate");
            arm();
            as_user(BOB, &[], || {
                let file = OpenOptions::new().write(true).open(&path).expect("open");
                sys::fallocate(&file, sys::PUNCH, 0, 100).expect("punch");
            });
            assert_eq!(mode(&path), 0o777, "{drain:?}: after punching a hole");
            arm();
            as_user(ALICE, &[TEAM], || {
                chown(&path, None, Some(TEAM)).expect("chgrp")
            });
            assert_eq!(
                mode(&path) & 0o6000,
                0,
                "{drain:?}: after a change of group"
            );
            arm();
            mount.drain();
            assert_eq!(
                mode(&mount.canonical("program")),
                0o6777,
                "{drain:?}: root keeps them"
            );
        });
    }
}

/// S8.4, S1.15: a new file has the mode that was asked for, also if the open would have cut it had it been there.
#[test]
fn a_new_file_keeps_its_bits() {
    for nodes in ["one", "many"] {
        let mut mount = TestMount::new(Drain::Never);
        mount.set("nodes", nodes);
        mount.start();
        let make = |uid| {
            as_user(uid, &[], || {
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(true).mode(0o6777);
                drop(options.open(mount.path("program")).expect("create"));
            });
            assert_eq!(
                mode(&mount.path("program")),
                mode(&mount.canonical("program"))
            );
            mode(&mount.path("program"))
        };
        assert_eq!(make(ALICE), 0o6755, "with the umask, nodes = {nodes}");
        chmod(&mount.path("program"), 0o6777);
        assert_eq!(make(BOB), 0o777, "now it is cut");
        mount.finish();
    }
}

/// S8.4: a write removes file capabilities.
#[test]
fn capabilities_are_stripped() {
    with(Drain::Never, |mount| {
        let path = mount.path("program");
        put(&path, vec![1; 20_000]);
        chmod(&path, 0o777);
        // Version 2, with CAP_NET_RAW permitted and effective.
        let mut cap = Vec::new();
        for word in [0x0200_0001u32, 1 << 13, 0, 0, 0] {
            cap.extend(word.to_le_bytes());
        }
        sys::set_xattr(&path, "security.capability", &cap, 0).expect("setcap");
        assert!(sys::get_xattr(&path, "security.capability").is_ok());
        as_user(BOB, &[], || {
            let file = OpenOptions::new().write(true).open(&path).expect("open");
            sys::write_all_at(&file, b"evil", 0).expect("write");
        });
        let after = sys::get_xattr(&mount.canonical("program"), "security.capability");
        assert_eq!(errno(after, "read the capability"), libc::ENODATA);
    });
}

/// S8.1: no user can give files away, and only the owner changes modes.
#[test]
fn owners_and_modes_belong_to_the_owner() {
    with(Drain::Never, |mount| {
        create_as(ALICE, &mount.path("f"), 0o666, b"x");
        as_user(BOB, &[], || {
            let path = mount.path("f");
            let permissions = Permissions::from_mode(0o777);
            let done = fs::set_permissions(&path, permissions);
            assert_eq!(errno(done, "bob's chmod"), libc::EPERM);
            let done = chown(&path, Some(BOB), None);
            assert_eq!(errno(done, "bob's chown"), libc::EPERM);
            let done = sys::set_times(&path, 1, 1);
            assert_eq!(errno(done, "bob's utimensat"), libc::EPERM);
        });
        as_user(ALICE, &[], || {
            let done = chown(mount.path("f"), Some(BOB), None);
            assert_eq!(errno(done, "alice gives it away"), libc::EPERM);
        });
    });
}

/// S8.1: some attributes are for root only.
#[test]
fn privileged_attributes() {
    with(Drain::Never, |mount| {
        create_as(ALICE, &mount.path("f"), 0o600, b"x");
        sys::set_xattr(&mount.path("f"), "trusted.note", b"root's", 0).expect("root may");
        as_user(ALICE, &[], || {
            let path = mount.path("f");
            let read = sys::get_xattr(&path, "trusted.note");
            let e = errno(read, "alice reads trusted.note");
            assert!(e == libc::ENODATA || e == libc::EPERM, "errno {e}");
            let names = sys::list_xattr(&path).expect("list");
            assert!(!names.contains(&"trusted.note".to_owned()), "{names:?}");
            let set = sys::set_xattr(&path, "trusted.x", b"1", 0);
            assert_eq!(errno(set, "alice sets trusted.x"), libc::EPERM);
            let set = sys::set_xattr(&path, "security.capability", b"1", 0);
            let e = errno(set, "alice sets a capability");
            assert!(e == libc::EPERM || e == libc::EINVAL, "errno {e}");
        });
    });
}

/// S8.9: the drain and `recover` act as the owner of the file, never as root. Space that the file system below
/// reserves for root is not used for Alice's data. The failure is reported, nothing is lost, and with room the data
/// is drained.
#[test]
fn the_drain_writes_as_the_owner() {
    for nodes in ["one", "many"] {
        let shared = Shared::with_reserve(64 * MIB as u64, 40);
        let mut mount = shared.node("n", Drain::Never);
        mount.set("nodes", nodes).allow_log("No space left");
        mount.start();
        let want = vec![5u8; 8 * MIB];
        create_as(ALICE, &mount.path("f"), 0o600, &want);
        let filler = shared.fill(2 * want.len() as u64);
        let path = mount.path("f");
        let out = mount.run(["drain".as_ref(), path.as_os_str(), "--timeout=60s".as_ref()]);
        assert_eq!(code(&out), FAILED, "{nodes}: {}", text(&out));
        assert!(text(&out).contains("No space left"), "{}", text(&out));
        assert_same("nothing is lost", &get(&path), &want);
        fs::remove_file(&filler).expect("make room");
        mount.drain();
        assert_same("canonical", &get(shared.canonical("f")), &want);
        let meta = fs::metadata(shared.canonical("f")).expect("stat");
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (ALICE, 0o600));
        mount.finish();
    }
}

/// S8.9: a file that its owner cannot reach is drained all the same.
#[test]
fn the_drain_reaches_what_its_owner_does_not() {
    with(Drain::Never, |mount| {
        fs::create_dir(mount.path("closed")).expect("mkdir");
        chmod(&mount.path("closed"), 0o777);
        create_as(ALICE, &mount.path("closed/f"), 0o600, &[5; 200_000]);
        chmod(&mount.path("closed"), 0o700);
        mount.drain();
        let meta = fs::metadata(mount.canonical("closed/f")).expect("stat");
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (ALICE, 0o600));
        assert_same(
            "canonical",
            &get(mount.canonical("closed/f")),
            &[5; 200_000],
        );
    });
}

/// S8.9, S8.4: a handle outlives the right to open, as on any file system, and read-only files drain.
#[test]
fn data_written_before_the_mode_changed_still_drains() {
    with(Drain::Never, |mount| {
        as_user(ALICE, &[], || {
            let file = open_rw(mount.path("f"));
            sys::write_all_at(&file, &[1; 50_000], 0).expect("write");
            chmod(&mount.path("f"), 0o400);
            sys::write_all_at(&file, &[2; 50_000], 50_000).expect("write through the handle");
        });
        mount.drain();
        let mut want = vec![1; 50_000];
        want.resize(100_000, 2);
        assert_same("canonical", &get(mount.canonical("f")), &want);
        assert_eq!(mode(&mount.canonical("f")), 0o400);
    });
}
