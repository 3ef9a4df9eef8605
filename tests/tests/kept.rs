//! Local copies on one node, over a simulated parallel file system that counts what is read from it.
//!
//! Checks S11 and its parts. Changes of the file are in `kept_changes.rs`, several nodes in `kept_nodes.rs`.

mod kept_rig;

use forebay_tests::cli::{FAILED, code, str};
use forebay_tests::rng::{Rng, seed};
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use forebay_tests::users::{ALICE, BOB, as_user};
use kept_rig::nodes_pair::{MIB, list, until};
use kept_rig::{bytes_read, files, kept, node, prefetch, reads_here, sim};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;

/// S11, S11.2: prefetched files are read from the node's own disk, also by the next daemon.
#[test]
fn after_a_prefetch_nothing_is_read_below() {
    let shared = sim();
    let (a, b) = (Rng::new(1).bytes(5 * MIB + 7), Rng::new(2).bytes(100));
    fs::create_dir_all(shared.canonical("d/e")).expect("mkdir");
    put(shared.canonical("d/a"), &a);
    put(shared.canonical("d/e/b"), &b);
    put(shared.canonical("d/empty"), b"");
    let mut mount = node(&shared, Drain::Never);
    mount.start();
    let before = bytes_read(&shared);
    let report = prefetch(&mount, &mount.path("d"));
    let size = (a.len() + b.len()) as u64;
    assert_eq!(report["files"], 3, "{report:#}");
    assert_eq!(report["read"], size, "{report:#}");
    assert_eq!(bytes_read(&shared) - before, size);
    assert_eq!(kept(&mount), (2, size));
    let again = prefetch(&mount, &mount.path("d"));
    assert_eq!((&again["files"], &again["read"]), (&3.into(), &0.into()));
    for end in ["", "umount", "kill"] {
        match end {
            "umount" => mount.umount(),
            "kill" => mount.kill(),
            _ => {}
        }
        if !end.is_empty() {
            mount.start();
        }
        reads_here(&shared, &mount, "d/a", &a);
        reads_here(&shared, &mount, "d/e/b", &b);
    }
    mount.finish();
}

/// S11.2: with `keep = true` drained files are read from this node, whichever way they were drained.
#[test]
fn what_was_drained_is_read_here() {
    for (nodes, synced) in [("one", false), ("many", false), ("many", true)] {
        let shared = sim();
        let mut mount = node(&shared, Drain::OnClose);
        mount.set("nodes", nodes).arg("--keep");
        mount.start();
        let data = Rng::new(3).bytes(6 * MIB + 1234);
        let file = open_rw(mount.path("f"));
        for (n, part) in data.chunks(47_008).enumerate() {
            sys::write_all_at(&file, part, n as u64 * 47_008).expect("write");
        }
        if synced {
            // This publishes the file, so that a round drains it.
            file.sync_all().expect("fsync");
        }
        drop(file);
        mount.drain();
        assert_same("canonical", &get(shared.canonical("f")), &data);
        reads_here(&shared, &mount, "f", &data);
        assert_eq!(kept(&mount), (1, data.len() as u64), "{nodes} {synced}");
        until("the copy is saved", || files(&mount, "sidecars") == 1);
        mount.kill();
        mount.start();
        reads_here(&shared, &mount, "f", &data);
        fs::rename(mount.path("f"), mount.path("g")).expect("rename");
        reads_here(&shared, &mount, "g", &data);
        mount.umount();
        mount.start();
        reads_here(&shared, &mount, "g", &data);
        fs::remove_file(mount.path("g")).expect("remove");
        until("the copy is gone", || files(&mount, "all") == 0);
        mount.finish();
    }
}

/// S11.2: a file is drained, and becomes clean, again and again while it is being written. The local copy has all of
/// it.
#[test]
fn a_slow_writer_is_kept_as_a_whole() {
    for nodes in ["one", "many"] {
        let shared = sim();
        let mut mount = node(&shared, Drain::Immediate);
        mount.set("nodes", nodes).arg("--keep");
        mount.start();
        let data = Rng::new(8).bytes(4 * MIB);
        let file = open_rw(mount.path("f"));
        for (n, part) in data.chunks(MIB).enumerate() {
            sys::write_all_at(&file, part, (n * MIB) as u64).expect("write");
            mount.drain();
        }
        drop(file);
        mount.drain();
        assert_eq!(kept(&mount), (1, 4 * MIB as u64), "nodes = {nodes}");
        reads_here(&shared, &mount, "f", &data);
        // The next daemon writes one byte.
        until("the copy is saved", || files(&mount, "sidecars") == 1);
        mount.kill();
        mount.start();
        let file = open_rw(mount.path("f"));
        sys::write_all_at(&file, b"x", 5).expect("write");
        drop(file);
        mount.drain();
        let mut want = data;
        want[5] = b'x';
        reads_here(&shared, &mount, "f", &want);
        mount.finish();
    }
}

/// S11.4: the log comes first. Local copies are removed, and no write bypasses the store.
#[test]
fn copies_make_room_for_the_log() {
    let shared = sim();
    for n in 0..4 {
        put(
            shared.canonical(&format!("f{n}")),
            Rng::new(n).bytes(8 * MIB),
        );
    }
    let mut mount = node(&shared, Drain::Never);
    mount.set("store-size", "64MiB").set("segment-size", "1MiB");
    mount.set_number("user-share", 1.0);
    mount.start();
    let report = prefetch(&mount, mount.mnt());
    assert_eq!(report["files"], 4, "{report:#}");
    assert_eq!(kept(&mount), (4, 32 * MIB as u64));
    let reader = File::open(mount.path("f0")).expect("open");
    put(mount.path("big"), Rng::new(7).bytes(44 * MIB));
    let status = mount.status();
    assert_eq!(status.number("/bytes/through"), 0, "{:#}", status.0);
    let (files, bytes) = kept(&mount);
    assert!(
        (1..4).contains(&files) && bytes < 20 * MIB as u64,
        "{files} files, {bytes} bytes"
    );
    // The file that was opened last does not lose its copy first, and is read as before.
    reads_here(&shared, &mount, "f0", &Rng::new(0).bytes(8 * MIB));
    drop(reader);
    for n in 1..4 {
        let name = format!("f{n}");
        assert_same(&name, &get(mount.path(&name)), &Rng::new(n).bytes(8 * MIB));
    }
    mount.finish();
}

/// S11.4: a prefetch for which the store has no room says so, and what is in the store stays.
#[test]
fn a_prefetch_that_does_not_fit_says_so() {
    let shared = sim();
    for n in 0..5 {
        put(
            shared.canonical(&format!("f{n}")),
            Rng::new(n).bytes(16 * MIB),
        );
    }
    let mut mount = node(&shared, Drain::Never);
    mount.set("store-size", "64MiB").set("segment-size", "1MiB");
    mount.start();
    let out = mount.run(["prefetch", str(mount.mnt())]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    let said = text(&out);
    assert!(said.contains("3 files kept on this node"), "{said}");
    assert!(said.contains("the store has no room for"), "{said}");
    assert_eq!(kept(&mount), (3, 48 * MIB as u64));
    reads_here(&shared, &mount, "f1", &Rng::new(1).bytes(16 * MIB));
    mount.finish();
}

/// S11.3: a local copy whose sidecar was tampered with or is missing is removed, and so is what a kill left.
#[test]
fn damaged_sidecars_and_leftovers_are_removed() {
    let shared = sim();
    let data = Rng::new(4).bytes(MIB);
    put(shared.canonical("f"), &data);
    put(shared.canonical("g"), &data);
    let mut mount = node(&shared, Drain::Never);
    mount.start();
    prefetch(&mount, mount.mnt());
    mount.umount();
    let dir = mount.store().join("kept");
    let mut sidecars = list(&dir);
    sidecars.retain(|p| p.extension().is_some_and(|e| e == "ranges"));
    assert_eq!(sidecars.len(), 2);
    let mut bytes = fs::read(&sidecars[0]).expect("read a sidecar");
    bytes[70] ^= 4;
    fs::write(&sidecars[0], bytes).expect("tamper with it");
    fs::remove_file(&sidecars[1]).expect("remove the other");
    fs::write(dir.join("2a.1-00000000000000ff"), "left by a kill").expect("a leftover");
    mount.start();
    assert_eq!(files(&mount, "all"), 0);
    assert_eq!(kept(&mount), (0, 0));
    assert_same("f", &get(mount.path("f")), &data);
    mount.finish();
}

/// S11.3: whenever the daemon is killed during a prefetch or a drain, wrong bytes are never read.
#[test]
fn a_kill_leaves_whole_copies_or_none() {
    let shared = sim();
    let mut mount = node(&shared, Drain::OnClose);
    mount.arg("--keep");
    let mut rng = Rng::new(seed("a_kill_leaves_whole_copies_or_none"));
    let mut fetched = rng.bytes(4 * MIB);
    put(shared.canonical("fetched"), &fetched);
    let mut drained = Vec::new();
    for _ in 0..6 {
        mount.start();
        if !drained.is_empty() {
            assert_same("drained", &get(mount.path("drained")), &drained);
        }
        assert_same("fetched", &get(mount.path("fetched")), &fetched);
        drained = rng.bytes(3 * MIB);
        put(mount.path("drained"), &drained);
        let path = mount.path("fetched");
        let mut child = mount.forebay(["prefetch", str(&path)]);
        let mut child = child
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("start forebay");
        std::thread::sleep(std::time::Duration::from_millis(rng.below(60)));
        mount.kill();
        child.wait().expect("the prefetch ends");
        // The file changes below while no daemon runs.
        fetched = rng.bytes(4 * MIB);
        put(shared.canonical("fetched"), &fetched);
    }
    mount.start();
    mount.drain();
    assert_same("drained", &get(mount.path("drained")), &drained);
    assert_same("fetched", &get(mount.path("fetched")), &fetched);
    mount.finish();
}

/// Sends one message to the daemon's socket, and returns the answer as it comes.
fn raw(mount: &TestMount, request: &str) -> String {
    let sockets = list(&mount.root().join("run"));
    let socket = sockets
        .iter()
        .find(|p| p.extension().is_some_and(|e| e == "sock"));
    let mut stream = UnixStream::connect(socket.expect("a socket")).expect("connect");
    let len = (request.len() as u32).to_le_bytes();
    stream.write_all(&len).expect("send");
    stream.write_all(request.as_bytes()).expect("send");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("receive");
    String::from_utf8_lossy(&answer[4..]).into_owned()
}

/// S11.5: a user fetches and reads only files that the user may read, with or without a local copy.
#[test]
fn rights_are_those_of_the_file() {
    let shared = sim();
    let mut mount = node(&shared, Drain::Immediate);
    mount.start();
    let path = mount.path("secret");
    as_user(ALICE, &[], || {
        put(&path, b"alice's own");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    });
    mount.drain();
    let ask = |uid| {
        let mut command = mount.forebay(["prefetch", str(&path)]);
        as_user(uid, &[], || command.output().expect("start forebay"))
    };
    let out = ask(BOB);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    assert!(text(&out).contains("cannot read"), "{}", text(&out));
    assert_eq!(kept(&mount), (0, 0));
    // Asking the daemon directly does not help: bob has not opened the file.
    let alices = as_user(ALICE, &[], || File::open(&path).expect("open"));
    let said = as_user(BOB, &[], || {
        let ino = fs::metadata(&path).expect("stat").ino();
        raw(
            &mount,
            &format!(r#"{{"prefetch":{{"ino":{ino},"since_ms":0}}}}"#),
        )
    });
    assert!(said.contains("denied"), "{said}");
    drop(alices);
    assert_eq!(kept(&mount), (0, 0));
    let out = ask(ALICE);
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!(kept(&mount), (1, 11));
    as_user(BOB, &[], || assert!(File::open(&path).is_err()));
    as_user(ALICE, &[], || assert_eq!(get(&path), b"alice's own"));
    // An undrained file is left out, and the command says so.
    put(mount.path("dirty"), b"new");
    let file = open_rw(mount.path("dirty"));
    let out = mount.run(["prefetch", str(&mount.path("dirty"))]);
    assert!(out.status.success(), "{}", text(&out));
    assert!(text(&out).contains("is left out"), "{}", text(&out));
    drop(file);
    mount.finish();
}
