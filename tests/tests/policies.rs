//! Policies of single files: the effects of rules and attributes, on real mounts.

mod policy_words;

use forebay_tests::cluster::Cluster;
use forebay_tests::rng::Rng;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put};
use forebay_tests::wait::{LONG, wait_until};
use forebay_tests::{daemon_log, sys};
use policy_words::{assert_key, set, undrained, unset};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const SIZE: usize = 300_000;

/// Lists the names in a directory. Names come and go while they are listed, and so do directories.
fn names_of(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// S10, S10.2: a file that is made below a directory takes over its attributes, however deep, and keeps them through
/// rename and link; a file that is made elsewhere does not. With `absorb = off` bytes are below at once.
#[test]
fn absorb_off_by_a_directorys_attribute() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    fs::create_dir_all(mount.path("raw/deep/er")).expect("mkdir");
    set(&mount.path("raw"), "absorb", "off");
    let data = Rng::new(1).bytes(SIZE);

    let through = open_rw(mount.path("raw/deep/er/f"));
    sys::write_all_at(&through, &data, 0).expect("write");
    assert_same(
        "below at once",
        &get(mount.canonical("raw/deep/er/f")),
        &data,
    );
    drop(through);
    put(mount.path("other"), &data);
    assert_eq!(
        mount.status().undrained(),
        SIZE as u64,
        "the other is absorbed"
    );
    assert_key(&mount, "raw/deep/er/f", "absorb", "off", "directory raw");
    assert_key(&mount, "other", "absorb", "on", "default");

    // A file keeps what it took over; a file that is only moved into the directory takes over nothing.
    fs::rename(mount.path("raw/deep/er/f"), mount.path("moved")).expect("rename");
    fs::hard_link(mount.path("moved"), mount.path("linked")).expect("link");
    fs::rename(mount.path("other"), mount.path("raw/other")).expect("rename");
    unset(&mount.path("raw"), "absorb");
    for name in ["moved", "linked"] {
        assert_key(&mount, name, "absorb", "off", "directory raw");
        let again = open_rw(mount.path(name));
        sys::write_all_at(&again, b"again", 5).expect("write");
        assert_same("below", &get(mount.canonical("moved"))[5..10], b"again");
        sys::write_all_at(&again, &data[5..10], 5).expect("write");
    }
    assert_key(&mount, "raw/other", "absorb", "on", "default");
    put(mount.path("raw/new"), &data);
    assert_key(&mount, "raw/new", "absorb", "on", "default");
    assert_eq!(mount.status().undrained(), 2 * SIZE as u64);

    // No user can see the record of what a file took over, and a copy with attributes is a new file.
    let seen = sys::list_xattr(&mount.path("moved")).expect("list");
    assert!(seen.is_empty(), "{seen:?}");
    mount.umount();
    for name in ["moved", "linked", "raw/other", "raw/new"] {
        assert_same(name, &get(mount.canonical(name)), &data);
    }
    mount.finish();
}

/// S10.1, S4.5: a rule decides when matching files drain; all others do as the mount says.
#[test]
fn drain_on_close_by_rule() {
    let mut mount = TestMount::new(Drain::Never);
    mount.rules(&["match = \"ckpt/**/*.h5\"\ndrain = \"on-close\""]);
    mount.start();
    fs::create_dir_all(mount.path("ckpt/a")).expect("mkdir");
    let data = Rng::new(2).bytes(SIZE);
    put(mount.path("ckpt/a/x.txt"), &data);
    let file = open_rw(mount.path("ckpt/a/x.h5"));
    sys::write_all_at(&file, &data, 0).expect("write");
    assert_eq!(
        undrained(&mount, "ckpt/a/x.h5"),
        SIZE as u64,
        "not while open"
    );
    drop(file);
    wait_until("it drains when closed", LONG, || {
        (undrained(&mount, "ckpt/a/x.h5") == 0).then_some(())
    });
    assert_same("canonical", &get(mount.canonical("ckpt/a/x.h5")), &data);
    assert_eq!(undrained(&mount, "ckpt/a/x.txt"), SIZE as u64);
    assert_key(&mount, "ckpt/a/x.h5", "drain", "on-close", "rule 1 line 3");
    assert_key(&mount, "ckpt/a/x.txt", "drain", "never", "config");
    // The rule goes by the path at the open: it does not match the file under its new name.
    fs::rename(mount.path("ckpt/a/x.h5"), mount.path("ckpt/a/y")).expect("rename");
    put(mount.path("ckpt/a/y"), &data);
    assert_eq!(undrained(&mount, "ckpt/a/y"), SIZE as u64);
    mount.finish();
}

/// S10.5: the drain knows a file's policy by the file, not by the processes that have it open: also after a kill,
/// when no process has opened it since. And the drain learns of a change at once.
#[test]
fn a_policy_survives_a_restart() {
    let mut mount = TestMount::new(Drain::Immediate);
    mount.rules(&["match = \"**/*.keep\"\ndrain = \"never\""]);
    mount.start();
    fs::create_dir(mount.path("d")).expect("mkdir");
    set(&mount.path("d"), "drain", "never");
    let data = Rng::new(3).bytes(SIZE);
    put(mount.path("by.keep"), &data);
    put(mount.path("d/inherited"), &data);
    put(mount.path("own"), "");
    set(&mount.path("own"), "drain", "never");
    put(mount.path("own"), &data);
    // A file that was written later and has no policy is drained, so the drain had time for the others.
    let kept = ["by.keep", "d/inherited", "own"];
    let only_kept = |mount: &TestMount, other: &str| {
        put(mount.path(other), &data);
        wait_until("a file without a policy drains", LONG, || {
            (undrained(mount, other) == 0).then_some(())
        });
        for name in kept {
            assert_eq!(undrained(mount, name), SIZE as u64, "{name}");
        }
    };
    only_kept(&mount, "before");
    mount.kill();
    mount.start();
    only_kept(&mount, "after");

    set(&mount.path("own"), "drain", "immediate");
    set(&mount.path("d/inherited"), "drain", "on-close");
    for name in ["own", "d/inherited"] {
        wait_until("it drains as soon as it may", LONG, || {
            (undrained(&mount, name) == 0).then_some(())
        });
    }
    assert_eq!(undrained(&mount, "by.keep"), SIZE as u64);
    // Without the rule nothing holds the file back at the next start.
    mount.kill();
    mount.rules(&[]).start();
    wait_until("the rule is gone", LONG, || {
        (undrained(&mount, "by.keep") == 0).then_some(())
    });
    for name in kept {
        assert_same(name, &get(mount.canonical(name)), &data);
    }
    mount.finish();
}

/// S10.4: `drain = never` is only a wish; a store that fills up drains the file all the same.
#[test]
fn a_full_store_drains_over_never() {
    let mut mount = TestMount::new(Drain::Immediate);
    mount.set("store-size", "64MiB").set("segment-size", "4MiB");
    mount.set_number("user-share", 1.0);
    mount.start();
    fs::create_dir(mount.path("d")).expect("mkdir");
    set(&mount.path("d"), "drain", "never");
    const MIB: usize = 1 << 20;
    let data = Rng::new(4).bytes(30 * MIB);
    put(mount.path("d/a"), &data);
    assert_eq!(
        undrained(&mount, "d/a"),
        data.len() as u64,
        "below the watermark"
    );
    put(mount.path("d/b"), &data);
    wait_until("the store makes room", LONG, || {
        let status = mount.status();
        let (used, high) = ("/store/used", "/store/high_watermark");
        (status.number(used) < status.number(high)).then_some(())
    });
    for name in ["d/a", "d/b"] {
        assert_same(name, &get(mount.path(name)), &data);
    }
    mount.umount();
    for name in ["d/a", "d/b"] {
        assert_same(name, &get(mount.canonical(name)), &data);
    }
    mount.finish();
}

/// S10.1, S9.7: each file may have its own `subfiles` setting.
#[test]
fn subfiles_by_attribute() {
    let mut mount = TestMount::new(Drain::Never);
    mount
        .with_osts(2)
        .set("subfiles", "never")
        .set("nodes", "one");
    mount.start();
    let data = Rng::new(5).bytes(3 << 20);
    put(mount.path("straight"), &data);
    mount.drain();
    assert_eq!(mount.status().number("/bytes/subfiled"), 0);
    put(mount.path("around"), "");
    set(&mount.path("around"), "subfiles", "always");
    put(mount.path("around"), &data);
    mount.drain();
    assert_eq!(mount.status().number("/bytes/subfiled"), data.len() as u64);
    for name in ["straight", "around"] {
        assert_same(name, &get(mount.canonical(name)), &data);
    }
    mount.finish();
}

const LIMIT: Duration = Duration::from_secs(240);

/// S10.2: attributes are in the backing, so all nodes treat a file alike. Here two nodes never close, and see each
/// other's writes because of an attribute that one of them set.
#[test]
fn nodes_agree() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.set("attr-timeout", "0s");
    cluster.start();
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    fs::create_dir(a.path("d")).expect("mkdir");
    set(&a.path("d"), "absorb", "coherent");
    put(b.path("d/f"), [0; 64]);
    for mount in [a, b] {
        assert_key(mount, "d/f", "absorb", "coherent", "directory d");
    }
    let files: Vec<_> = cluster.paths("d/f").iter().map(open_rw).collect();
    for turn in 0..40u64 {
        let (writer, reader) = ((turn % 2) as usize, ((turn + 1) % 2) as usize);
        files[writer]
            .write_all_at(&turn.to_le_bytes(), 8)
            .expect("write");
        let mut got = [0; 8];
        files[reader].read_exact_at(&mut got, 8).expect("read");
        assert_eq!(u64::from_le_bytes(got), turn);
    }
    drop(files);
    set(&b.path("d/f"), "drain", "on-close");
    for mount in [a, b] {
        assert_key(mount, "d/f", "drain", "on-close", "file");
    }
    cluster.drain();
    assert_same(
        "canonical",
        &get(cluster.canonical("d/f"))[8..16],
        &39u64.to_le_bytes(),
    );
    cluster.finish();
}

/// S10.1, S2.3: `close = publish` for some files and `fsync = local` for others; a file with neither is announced by
/// its close and published by its fsync.
///
/// Tests that run beside this one start programs, which close copies of our descriptors. So a close may come at any
/// time, and no file here is both published by closes and expected not to be.
#[test]
fn close_and_fsync_of_single_files() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.rules(&[
        "match = \"pub/*\"\nclose = \"publish\"",
        "match = \"local/*\"\nfsync = \"local\"",
    ]);
    cluster.start();
    let mount = cluster.mount(0);
    for dir in ["pub", "local"] {
        fs::create_dir(mount.path(dir)).expect("mkdir");
    }
    let data = Rng::new(6).bytes(SIZE);
    // A close that leaves data to publish makes an announcement in the shared directory, with a name that begins
    // with i.
    let shared = mount.backing().join(".forebay/files");
    let announcements = || {
        let groups = names_of(&shared);
        let dirs = groups.iter().flat_map(|group| {
            let dir = shared.join(group);
            names_of(&dir).into_iter().map(move |file| dir.join(file))
        });
        let names = dirs.flat_map(|dir| names_of(&dir));
        names.filter(|name| name.starts_with("i.")).count()
    };
    let subfiles = || names_of(&mount.backing().join(".forebay/subfiles")).len();

    put(mount.path("pub/f"), &data);
    assert_eq!(announcements(), 0, "close = publish leaves nothing to do");
    let published = subfiles();
    assert!(published > 0, "close = publish has told");
    put(mount.path("other"), &data);
    assert!(announcements() > 0, "close = defer announces");
    assert_eq!(subfiles(), published, "close = defer only announces");

    let local = open_rw(mount.path("local/f"));
    sys::write_all_at(&local, &data, 0).expect("write");
    local.sync_all().expect("fsync");
    assert_eq!(subfiles(), published, "fsync = local tells no other node");
    let told = open_rw(mount.path("told"));
    sys::write_all_at(&told, &data, 0).expect("write");
    told.sync_all().expect("fsync");
    assert!(subfiles() > published, "fsync = publish has told");
    drop((local, told));
    for name in ["pub/f", "other", "local/f", "told"] {
        assert_same(name, &get(cluster.mount(1).path(name)), &data);
    }
    cluster.drain();
    cluster.finish();
}

/// S10.3: nonsense that the mount never had the chance to refuse is logged once, and is ignored.
#[test]
fn nonsense_in_the_backing_is_told_once() {
    let mut mount = TestMount::new(Drain::Never);
    mount.set("attr-timeout", "0s");
    mount.start();
    fs::create_dir(mount.path("d")).expect("mkdir");
    put(mount.path("d/f"), "x");
    mount.drain();
    let below = mount.canonical("d/f");
    sys::set_xattr(&below, "user.forebay.drain", b"tomorrow", 0).expect("set");
    sys::set_xattr(&below, "user.forebay.store", b"/etc", 0).expect("set");
    sys::set_xattr(&below, "user.forebay.absorb", b"off", 0).expect("set");
    sys::set_xattr(&mount.canonical("d"), "user.forebay.keep", b"\xff", 0).expect("set");
    for _ in 0..3 {
        assert_same("read", &get(mount.path("d/f")), b"x");
        put(mount.path("d/new"), "y");
        fs::remove_file(mount.path("d/new")).expect("unlink");
    }
    let explained = policy_words::explain(&mount, &mount.path("d/f"), &[]);
    assert_eq!(explained["ignored"].as_array().expect("ignored").len(), 2);
    assert_key(&mount, "d/f", "drain", "never", "config");
    assert_key(&mount, "d/f", "absorb", "off", "file");
    let log = daemon_log::read(&mount.log_file());
    for word in ["tomorrow", "\"store\"", "keep has a value"] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(word)).collect();
        assert_eq!(lines.len(), 1, "{word} in {lines:#?}");
        assert!(lines[0].contains("ignored"), "{}", lines[0]);
    }
    mount.finish();
}
