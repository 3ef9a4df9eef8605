//! Single sync points between two nodes: which call waits for which data, and ways on which data bypasses the store.

use forebay_tests::cluster::Cluster;
use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{Drain, assert_same, get, open_rw, put};
use forebay_tests::wait::{LONG, wait_until};
use std::fs::{File, OpenOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

fn pair(drain: Drain, settings: &[(&str, &str)]) -> Cluster {
    let mut cluster = Cluster::new(2, drain, LIMIT);
    for (key, value) in settings {
        cluster.set(key, value);
    }
    cluster.start();
    cluster
}

/// S2.2: after a deferred close on a node that was killed, an open on another node fails in time, and the log names
/// the node; when the node is back, the data is there (S2.7).
#[test]
fn an_announcement_of_a_dead_node() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.set("visibility-timeout", "1s");
    cluster.allow_log("n0");
    cluster.start();
    let path = cluster.mount(0).path("f");
    let data = vec![7u8; 300_000];
    for _ in 0..20 {
        put(&path, &data);
        cluster.mount_mut(0).kill();
        let start = Instant::now();
        let opened = File::open(cluster.mount(1).path("f"));
        let took = start.elapsed();
        let missed = opened.is_err();
        if missed {
            assert_eq!(errno(opened, "open"), libc::ETIMEDOUT);
            // The first second is the timeout, the rest is what a busy machine may add to it.
            assert!(took < Duration::from_secs(1 + 10), "{took:?}");
            assert!(cluster.mount(1).log().contains("n0"), "the node is named");
        }
        cluster.mount_mut(0).start();
        assert_same("on its node", &get(&path), &data);
        let there = wait_until("it is published", LONG, || {
            std::fs::read(cluster.mount(1).path("f")).ok()
        });
        assert_same("on the other node", &there, &data);
        if missed {
            return cluster.finish();
        }
    }
    panic!("twenty closes were published before the daemon could be killed");
}

/// S2.3: published data is read from a node that never comes back.
#[test]
fn what_is_published_survives_its_node() {
    for way in ["close", "fsync"] {
        let close = if way == "close" { "publish" } else { "defer" };
        let mut cluster = pair(
            Drain::Never,
            &[("close", close), ("visibility-timeout", "2s")],
        );
        let file = open_rw(cluster.mount(0).path("f"));
        let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        sys::write_all_at(&file, &data, 0).expect("write");
        match way {
            "close" => sys::close(file).expect("close"),
            _ => {
                file.sync_all().expect("fsync");
                std::mem::forget(file);
            }
        }
        cluster.mount_mut(0).kill();
        assert_same(way, &get(cluster.mount(1).path("f")), &data);
        cluster.mount_mut(0).start();
        cluster.finish();
    }
}

/// S2.7: published data stays in its subfiles when its node was killed and has started again, until it is drained.
#[test]
fn subfiles_outlive_a_restart() {
    let mut cluster = pair(Drain::Never, &[("close", "publish")]);
    let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    put(cluster.mount(0).path("f"), &data);
    cluster.restart(0);
    // The next drain removes everything that is not needed.
    put(cluster.mount(0).path("g"), &data);
    let out = cluster
        .mount(0)
        .run(["drain".as_ref(), cluster.mount(0).path("g").as_os_str()]);
    assert!(matches!(out.status.code(), Some(0 | 3)));
    wait_until("it is drained", LONG, || {
        (get(cluster.canonical("g")) == data).then_some(())
    });
    for path in cluster.paths("f") {
        assert_same(&path.display().to_string(), &get(&path), &data);
    }
    cluster.drain();
    assert_same("canonical", &get(cluster.canonical("f")), &data);
    cluster.finish();
}

/// S2.1: a truncation by name is seen by the next open elsewhere; S2.5: growing shows zeros.
#[test]
fn truncate_by_name() {
    let cluster = pair(Drain::Never, &[]);
    let [here, there] = [0, 1].map(|n| cluster.mount(n).path("f"));
    put(&here, vec![1u8; 10_000]);
    assert_eq!(get(&there).len(), 10_000);
    for size in [5000u64, 20_000, 100, 0, 300] {
        sys::truncate(&there, size).expect("truncate");
        assert_eq!(get(&here).len() as u64, size, "size on the other node");
    }
    sys::truncate(&here, 6000).expect("truncate");
    assert_same("grown", &get(&there), &[0; 6000]);
    cluster.drain();
    assert_same("canonical", &get(cluster.canonical("f")), &[0; 6000]);
    cluster.finish();
}

/// S2.1, S4.3: a time that is set on a file with published data stays.
#[test]
fn a_time_that_is_set() {
    let cluster = pair(Drain::Never, &[("close", "publish")]);
    let [here, there] = [0, 1].map(|n| cluster.mount(n).path("f"));
    let stamp = 1_000_000_000_123_456_789;
    let seen = |path: &std::path::Path| {
        let file = File::open(path).expect("open");
        sys::mtime(&file.metadata().expect("stat"))
    };
    for setter in [&here, &there] {
        put(&here, vec![1u8; 10_000]);
        sys::set_times(setter, stamp, stamp).expect("set the time");
        for path in [&here, &there] {
            assert_eq!(
                seen(path),
                stamp,
                "{} set by {}",
                path.display(),
                setter.display()
            );
        }
    }
    cluster.drain();
    assert_eq!(seen(&cluster.canonical("f")), stamp);
    cluster.finish();
}

/// S2.4: a writer on a node with readers writes through to the canonical file; another node that drains neighbouring
/// bytes meanwhile does not undo that.
#[test]
fn a_writer_past_the_store() {
    let cluster = pair(Drain::Immediate, &[]);
    let [here, there] = [0, 1].map(|n| cluster.mount(n).path("f"));
    const PIECES: usize = 4000;
    for round in 0..2u8 {
        put(&here, vec![0u8; PIECES * 16]);
        cluster.drain();
        let open = |path| {
            let opened = OpenOptions::new().write(true).open(path);
            opened.expect("open for writing")
        };
        let reader = File::open(&there).expect("open for reading");
        let (past, absorbed) = (open(&there), open(&here));
        let write = |file: &File, odd: usize| {
            let byte = 1 + odd as u8 + 2 * round;
            for i in (odd..PIECES).step_by(2) {
                sys::write_all_at(file, &[byte; 16], i as u64 * 16).expect("write");
            }
        };
        // The absorbing node writes and drains for as long as the other one writes.
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    write(&absorbed, 0);
                }
            });
            for _ in 0..20 {
                write(&past, 1);
            }
            done.store(true, Ordering::Release);
        });
        for file in [past, absorbed, reader] {
            sys::close(file).expect("close");
        }
        let want: Vec<u8> = (0..PIECES * 16)
            .map(|i| 1 + (i / 16 % 2) as u8 + 2 * round)
            .collect();
        for path in [&here, &there] {
            assert_same(
                &format!("round {round}, {}", path.display()),
                &get(path),
                &want,
            );
        }
        cluster.drain();
        assert_same("canonical", &get(cluster.canonical("f")), &want);
    }
    cluster.finish();
}

/// A layout ends at its seal (decision 0008), for nodes that read it and for its own node at the next start. The
/// bytes behind the seal stand for an append that came late.
#[test]
fn nothing_behind_a_seal_is_seen() {
    let mut cluster = pair(Drain::Never, &[("close", "publish")]);
    let path = cluster.mount(0).path("f");
    let (old, new) = (vec![1u8; 5000], vec![2u8; 5000]);
    put(&path, &old);
    let layout = only_layout(&cluster.mount(0).backing().join(".forebay/files"));
    let end = layout.metadata().expect("a layout").len();
    let file = open_rw(&path);
    sys::write_all_at(&file, &new, 0).expect("write");
    sys::close(file).expect("close");
    assert!(layout.metadata().expect("a layout").len() > end);
    // Node 1 has read the layout before the seal was there, and forgets the bytes behind it, too.
    assert_same("before the seal", &get(cluster.mount(1).path("f")), &new);
    cluster.mount_mut(0).kill();
    let name = layout.file_name().and_then(|name| name.to_str());
    let name = name.and_then(|name| name.strip_prefix('l')).expect("l.…");
    let seal = layout.with_file_name(format!("s{name}.{end:x}"));
    // The node itself makes the seal: the link has the node's id, and any run.
    let id = name.split('.').nth(1).expect("its id");
    std::os::unix::fs::symlink(format!("{id}.00000001"), seal).expect("seal it");
    assert_same("another node", &get(cluster.mount(1).path("f")), &old);
    cluster.mount_mut(0).start();
    assert_same("its own", &get(&path), &old);
    cluster.mount(0).drain();
    assert_same("drained", &get(cluster.mount(0).canonical("f")), &old);
    cluster.finish();
}

fn only_layout(files: &std::path::Path) -> std::path::PathBuf {
    let below = |dir: &std::path::Path| -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(dir).expect("list");
        entries.map(|entry| entry.expect("list").path()).collect()
    };
    let dirs = below(files).into_iter().flat_map(|group| below(&group));
    let names = dirs.flat_map(|dir| below(&dir));
    let is_layout = |path: &std::path::PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("l."))
    };
    let mut layouts = names.filter(is_layout);
    let layout = layouts.next().expect("a layout");
    assert_eq!(layouts.next(), None, "one layout");
    layout
}

/// S2.1: a change that changes nothing (a hole in an empty file) over what is published leaves the time
/// as it was.
#[test]
fn a_time_that_is_published_stays() {
    let cluster = pair(Drain::Never, &[("close", "publish")]);
    let path = cluster.mount(0).path("f");
    put(&path, [1; 5000]);
    // The canonical file's time is as old as this.
    let below = sys::mtime(&cluster.canonical("f").metadata().expect("stat"));
    let published = wait_until("a later time", LONG, || {
        put(&path, "");
        let mtime = sys::mtime(&path.metadata().expect("stat"));
        (mtime > below).then_some(mtime)
    });
    let file = open_rw(&path);
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    sys::fallocate(&file, hole, 0, 5000).expect("punch");
    let mtime = sys::mtime(&file.metadata().expect("stat"));
    assert!(mtime >= published, "{mtime} is before {published}");
    drop(file);
    cluster.finish();
}

/// S4.5: a file that was published and stays open is drained all the same half a second later, without another write
/// or a close.
#[test]
fn a_file_that_was_synced_and_stays_open_is_drained() {
    let cluster = pair(Drain::Immediate, &[]);
    let file = open_rw(cluster.mount(0).path("f"));
    let mut data = vec![0u8; 100_000];
    for turn in 1..=5u8 {
        data.fill(turn);
        sys::write_all_at(&file, &data, 0).expect("write");
        file.sync_all().expect("fsync");
    }
    wait_until("it is in the canonical file", LONG, || {
        (get(cluster.canonical("f")) == data).then_some(())
    });
    drop(file);
    cluster.finish();
}
