//! Policies of single files: what rules and attributes do, on real mounts.

mod policy_words;

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put};
use forebay_tests::cluster::Cluster;
use forebay_tests::rng::Rng;
use forebay_tests::wait::{LONG, wait_until};
use forebay_tests::{daemon_log, sys};
use policy_words::{assert_key, set, undrained, unset};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const SIZE: usize = 300_000;

/// Names come and go while they are listed, and so do directories.
fn names_of(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// S10, S10.2: what is made below a directory takes over its attributes, however deep, and keeps them through
/// rename and link; what is made elsewhere does not. With `absorb = off` bytes are below at once.
#[test]
fn absorb_off_by_a_directorys_attribute() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    fs::create_dir_all(bay.path("raw/deep/er")).expect("mkdir");
    set(&bay.path("raw"), "absorb", "off");
    let data = Rng::new(1).bytes(SIZE);

    let through = open_rw(bay.path("raw/deep/er/f"));
    sys::write_all_at(&through, &data, 0).expect("write");
    assert_same("below at once", &get(bay.canonical("raw/deep/er/f")), &data);
    drop(through);
    put(bay.path("other"), &data);
    assert_eq!(
        bay.status().undrained(),
        SIZE as u64,
        "the other is absorbed"
    );
    assert_key(&bay, "raw/deep/er/f", "absorb", "off", "directory raw");
    assert_key(&bay, "other", "absorb", "on", "default");

    // What a file took over stays with it; what is only moved into the directory takes over nothing.
    fs::rename(bay.path("raw/deep/er/f"), bay.path("moved")).expect("rename");
    fs::hard_link(bay.path("moved"), bay.path("linked")).expect("link");
    fs::rename(bay.path("other"), bay.path("raw/other")).expect("rename");
    unset(&bay.path("raw"), "absorb");
    for name in ["moved", "linked"] {
        assert_key(&bay, name, "absorb", "off", "directory raw");
        let again = open_rw(bay.path(name));
        sys::write_all_at(&again, b"again", 5).expect("write");
        assert_same("below", &get(bay.canonical("moved"))[5..10], b"again");
        sys::write_all_at(&again, &data[5..10], 5).expect("write");
    }
    assert_key(&bay, "raw/other", "absorb", "on", "default");
    put(bay.path("raw/new"), &data);
    assert_key(&bay, "raw/new", "absorb", "on", "default");
    assert_eq!(bay.status().undrained(), 2 * SIZE as u64);

    // The record is nobody's to see, and a copy with attributes is a new file.
    let seen = sys::list_xattr(&bay.path("moved")).expect("list");
    assert!(seen.is_empty(), "{seen:?}");
    bay.umount();
    for name in ["moved", "linked", "raw/other", "raw/new"] {
        assert_same(name, &get(bay.canonical(name)), &data);
    }
    bay.finish();
}

/// S10.1, S4.5: a rule decides when matching files drain; all others do as the mount says.
#[test]
fn drain_on_close_by_rule() {
    let mut bay = Bay::new(Drain::Never);
    bay.rules(&["match = \"ckpt/**/*.h5\"\ndrain = \"on-close\""]);
    bay.start();
    fs::create_dir_all(bay.path("ckpt/a")).expect("mkdir");
    let data = Rng::new(2).bytes(SIZE);
    put(bay.path("ckpt/a/x.txt"), &data);
    let file = open_rw(bay.path("ckpt/a/x.h5"));
    sys::write_all_at(&file, &data, 0).expect("write");
    assert_eq!(
        undrained(&bay, "ckpt/a/x.h5"),
        SIZE as u64,
        "not while open"
    );
    drop(file);
    wait_until("it drains when closed", LONG, || {
        (undrained(&bay, "ckpt/a/x.h5") == 0).then_some(())
    });
    assert_same("canonical", &get(bay.canonical("ckpt/a/x.h5")), &data);
    assert_eq!(undrained(&bay, "ckpt/a/x.txt"), SIZE as u64);
    assert_key(&bay, "ckpt/a/x.h5", "drain", "on-close", "rule 1 line 3");
    assert_key(&bay, "ckpt/a/x.txt", "drain", "never", "config");
    // By the path at the open: the file is another to the rule now.
    fs::rename(bay.path("ckpt/a/x.h5"), bay.path("ckpt/a/y")).expect("rename");
    put(bay.path("ckpt/a/y"), &data);
    assert_eq!(undrained(&bay, "ckpt/a/y"), SIZE as u64);
    bay.finish();
}

/// S10.5: the drain knows a file's policy by the file, not by who has it open: also after a kill, when
/// nobody has opened it since. And it hears of a change at once.
#[test]
fn a_policy_survives_a_restart() {
    let mut bay = Bay::new(Drain::Immediate);
    bay.rules(&["match = \"**/*.keep\"\ndrain = \"never\""]);
    bay.start();
    fs::create_dir(bay.path("d")).expect("mkdir");
    set(&bay.path("d"), "drain", "never");
    let data = Rng::new(3).bytes(SIZE);
    put(bay.path("by.keep"), &data);
    put(bay.path("d/inherited"), &data);
    put(bay.path("own"), "");
    set(&bay.path("own"), "drain", "never");
    put(bay.path("own"), &data);
    // What was written later and has no policy is drained, so the others had their time.
    let kept = ["by.keep", "d/inherited", "own"];
    let only_kept = |bay: &Bay, other: &str| {
        put(bay.path(other), &data);
        wait_until("a file without a policy drains", LONG, || {
            (undrained(bay, other) == 0).then_some(())
        });
        for name in kept {
            assert_eq!(undrained(bay, name), SIZE as u64, "{name}");
        }
    };
    only_kept(&bay, "before");
    bay.kill();
    bay.start();
    only_kept(&bay, "after");

    set(&bay.path("own"), "drain", "immediate");
    set(&bay.path("d/inherited"), "drain", "on-close");
    for name in ["own", "d/inherited"] {
        wait_until("it drains as soon as it may", LONG, || {
            (undrained(&bay, name) == 0).then_some(())
        });
    }
    assert_eq!(undrained(&bay, "by.keep"), SIZE as u64);
    // Without the rule the next start has nothing that keeps it.
    bay.kill();
    bay.rules(&[]).start();
    wait_until("the rule is gone", LONG, || {
        (undrained(&bay, "by.keep") == 0).then_some(())
    });
    for name in kept {
        assert_same(name, &get(bay.canonical(name)), &data);
    }
    bay.finish();
}

/// S10.4: `drain = never` is a wish; a store that fills up drains over it.
#[test]
fn a_full_store_drains_over_never() {
    let mut bay = Bay::new(Drain::Immediate);
    bay.set("store-size", "64MiB").set("segment-size", "4MiB");
    bay.set_number("user-share", 1.0);
    bay.start();
    fs::create_dir(bay.path("d")).expect("mkdir");
    set(&bay.path("d"), "drain", "never");
    const MIB: usize = 1 << 20;
    let data = Rng::new(4).bytes(30 * MIB);
    put(bay.path("d/a"), &data);
    assert_eq!(
        undrained(&bay, "d/a"),
        data.len() as u64,
        "below the watermark"
    );
    put(bay.path("d/b"), &data);
    wait_until("the store makes room", LONG, || {
        let status = bay.status();
        let (used, high) = ("/store/used", "/store/high_watermark");
        (status.number(used) < status.number(high)).then_some(())
    });
    for name in ["d/a", "d/b"] {
        assert_same(name, &get(bay.path(name)), &data);
    }
    bay.umount();
    for name in ["d/a", "d/b"] {
        assert_same(name, &get(bay.canonical(name)), &data);
    }
    bay.finish();
}

/// S10.1, S9.7: which way the data takes is each file's own.
#[test]
fn subfiles_by_attribute() {
    let mut bay = Bay::new(Drain::Never);
    bay.with_osts(2)
        .set("subfiles", "never")
        .set("nodes", "one");
    bay.start();
    let data = Rng::new(5).bytes(3 << 20);
    put(bay.path("straight"), &data);
    bay.drain();
    assert_eq!(bay.status().number("/bytes/subfiled"), 0);
    put(bay.path("around"), "");
    set(&bay.path("around"), "subfiles", "always");
    put(bay.path("around"), &data);
    bay.drain();
    assert_eq!(bay.status().number("/bytes/subfiled"), data.len() as u64);
    for name in ["straight", "around"] {
        assert_same(name, &get(bay.canonical(name)), &data);
    }
    bay.finish();
}

const LIMIT: Duration = Duration::from_secs(240);

/// S10.2: attributes are in the backing, so all nodes treat a file alike: here, two that never close and
/// see each other's writes because of an attribute that one of them set.
#[test]
fn nodes_agree() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.set("attr-timeout", "0s");
    cluster.start();
    let (a, b) = (cluster.bay(0), cluster.bay(1));
    fs::create_dir(a.path("d")).expect("mkdir");
    set(&a.path("d"), "absorb", "coherent");
    put(b.path("d/f"), [0; 64]);
    for bay in [a, b] {
        assert_key(bay, "d/f", "absorb", "coherent", "directory d");
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
    for bay in [a, b] {
        assert_key(bay, "d/f", "drain", "on-close", "file");
    }
    cluster.drain();
    assert_same(
        "canonical",
        &get(cluster.canonical("d/f"))[8..16],
        &39u64.to_le_bytes(),
    );
    cluster.finish();
}

/// S10.1, S2.3: `close = publish` for some files and `fsync = local` for others; what is neither is announced by
/// its close and published by its fsync.
///
/// Tests beside this one start programs, which close copies of our descriptors: a close may come at any
/// time, so no file here is both published by closes and expected not to be.
#[test]
fn close_and_fsync_of_single_files() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.rules(&[
        "match = \"pub/*\"\nclose = \"publish\"",
        "match = \"local/*\"\nfsync = \"local\"",
    ]);
    cluster.start();
    let bay = cluster.bay(0);
    for dir in ["pub", "local"] {
        fs::create_dir(bay.path(dir)).expect("mkdir");
    }
    let data = Rng::new(6).bytes(SIZE);
    // A close that leaves something to do says so in the shared directory, by a name that begins with i.
    let shared = bay.backing().join(".forebay/files");
    let promises = || {
        let groups = names_of(&shared);
        let dirs = groups.iter().flat_map(|group| {
            let dir = shared.join(group);
            names_of(&dir).into_iter().map(move |file| dir.join(file))
        });
        let names = dirs.flat_map(|dir| names_of(&dir));
        names.filter(|name| name.starts_with("i.")).count()
    };
    let subfiles = || names_of(&bay.backing().join(".forebay/subfiles")).len();

    put(bay.path("pub/f"), &data);
    assert_eq!(promises(), 0, "close = publish leaves nothing to do");
    let published = subfiles();
    assert!(published > 0, "close = publish has told");
    put(bay.path("other"), &data);
    assert!(promises() > 0, "close = defer announces");
    assert_eq!(subfiles(), published, "close = defer only announces");

    let local = open_rw(bay.path("local/f"));
    sys::write_all_at(&local, &data, 0).expect("write");
    local.sync_all().expect("fsync");
    assert_eq!(subfiles(), published, "fsync = local tells nobody");
    let told = open_rw(bay.path("told"));
    sys::write_all_at(&told, &data, 0).expect("write");
    told.sync_all().expect("fsync");
    assert!(subfiles() > published, "fsync = publish has told");
    drop((local, told));
    for name in ["pub/f", "other", "local/f", "told"] {
        assert_same(name, &get(cluster.bay(1).path(name)), &data);
    }
    cluster.drain();
    cluster.finish();
}

/// S10.3: what the mount never had the chance to refuse is told once, and then as if it were not there.
#[test]
fn nonsense_in_the_backing_is_told_once() {
    let mut bay = Bay::new(Drain::Never);
    bay.set("attr-timeout", "0s");
    bay.start();
    fs::create_dir(bay.path("d")).expect("mkdir");
    put(bay.path("d/f"), "x");
    bay.drain();
    let below = bay.canonical("d/f");
    sys::set_xattr(&below, "user.forebay.drain", b"tomorrow", 0).expect("set");
    sys::set_xattr(&below, "user.forebay.store", b"/etc", 0).expect("set");
    sys::set_xattr(&below, "user.forebay.absorb", b"off", 0).expect("set");
    sys::set_xattr(&bay.canonical("d"), "user.forebay.keep", b"\xff", 0).expect("set");
    for _ in 0..3 {
        assert_same("read", &get(bay.path("d/f")), b"x");
        put(bay.path("d/new"), "y");
        fs::remove_file(bay.path("d/new")).expect("unlink");
    }
    let explained = policy_words::explain(&bay, &bay.path("d/f"), &[]);
    assert_eq!(explained["ignored"].as_array().expect("ignored").len(), 2);
    assert_key(&bay, "d/f", "drain", "never", "config");
    assert_key(&bay, "d/f", "absorb", "off", "file");
    let log = daemon_log::read(&bay.log_file());
    for word in ["tomorrow", "\"store\"", "keep has a value"] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(word)).collect();
        assert_eq!(lines.len(), 1, "{word} in {lines:#?}");
        assert!(lines[0].contains("ignored"), "{}", lines[0]);
    }
    bay.finish();
}
