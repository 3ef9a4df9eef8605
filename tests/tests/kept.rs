//! Kept copies on one node, over a simulated parallel file system that counts what is read of it.
//!
//! Checks S11 and its parts; changes of the file are in `kept_changes.rs`, several nodes in
//! `kept_nodes.rs`.

mod kept_rig;

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put, text};
use forebay_tests::cli::{FAILED, code, str};
use forebay_tests::rng::{Rng, seed};
use forebay_tests::sys;
use forebay_tests::users::{ALICE, BOB, as_user};
use kept_rig::nodes_pair::{MIB, list, until};
use kept_rig::{bytes_read, files, kept, node, prefetch, reads_here, sim};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;

/// S11, S11.2: what was prefetched is read from the node's own disk, also by the next daemon.
#[test]
fn after_a_prefetch_nothing_is_read_below() {
    let shared = sim();
    let (a, b) = (Rng::new(1).bytes(5 * MIB + 7), Rng::new(2).bytes(100));
    fs::create_dir_all(shared.canonical("d/e")).expect("mkdir");
    put(shared.canonical("d/a"), &a);
    put(shared.canonical("d/e/b"), &b);
    put(shared.canonical("d/empty"), b"");
    let mut bay = node(&shared, Drain::Never);
    bay.start();
    let before = bytes_read(&shared);
    let report = prefetch(&bay, &bay.path("d"));
    let size = (a.len() + b.len()) as u64;
    assert_eq!(report["files"], 3, "{report:#}");
    assert_eq!(report["read"], size, "{report:#}");
    assert_eq!(bytes_read(&shared) - before, size);
    assert_eq!(kept(&bay), (2, size));
    let again = prefetch(&bay, &bay.path("d"));
    assert_eq!((&again["files"], &again["read"]), (&3.into(), &0.into()));
    for end in ["", "umount", "kill"] {
        match end {
            "umount" => bay.umount(),
            "kill" => bay.kill(),
            _ => {}
        }
        if !end.is_empty() {
            bay.start();
        }
        reads_here(&shared, &bay, "d/a", &a);
        reads_here(&shared, &bay, "d/e/b", &b);
    }
    bay.finish();
}

/// S11.2: with `keep = true` what was drained is read here, whichever way it was drained.
#[test]
fn what_was_drained_is_read_here() {
    for (nodes, synced) in [("one", false), ("many", false), ("many", true)] {
        let shared = sim();
        let mut bay = node(&shared, Drain::OnClose);
        bay.set("nodes", nodes).arg("--keep");
        bay.start();
        let data = Rng::new(3).bytes(6 * MIB + 1234);
        let file = open_rw(bay.path("f"));
        for (n, part) in data.chunks(47_008).enumerate() {
            sys::write_all_at(&file, part, n as u64 * 47_008).expect("write");
        }
        if synced {
            // Published, so that a round drains it.
            file.sync_all().expect("fsync");
        }
        drop(file);
        bay.drain();
        assert_same("canonical", &get(shared.canonical("f")), &data);
        reads_here(&shared, &bay, "f", &data);
        assert_eq!(kept(&bay), (1, data.len() as u64), "{nodes} {synced}");
        until("the copy is saved", || files(&bay, "sidecars") == 1);
        bay.kill();
        bay.start();
        reads_here(&shared, &bay, "f", &data);
        fs::rename(bay.path("f"), bay.path("g")).expect("rename");
        reads_here(&shared, &bay, "g", &data);
        bay.umount();
        bay.start();
        reads_here(&shared, &bay, "g", &data);
        fs::remove_file(bay.path("g")).expect("remove");
        until("the copy is gone", || files(&bay, "all") == 0);
        bay.finish();
    }
}

/// S11.2: a file that is drained, and clean, again and again while it is being written.
#[test]
fn a_slow_writer_is_kept_as_a_whole() {
    for nodes in ["one", "many"] {
        let shared = sim();
        let mut bay = node(&shared, Drain::Immediate);
        bay.set("nodes", nodes).arg("--keep");
        bay.start();
        let data = Rng::new(8).bytes(4 * MIB);
        let file = open_rw(bay.path("f"));
        for (n, part) in data.chunks(MIB).enumerate() {
            sys::write_all_at(&file, part, (n * MIB) as u64).expect("write");
            bay.drain();
        }
        drop(file);
        bay.drain();
        assert_eq!(kept(&bay), (1, 4 * MIB as u64), "nodes = {nodes}");
        reads_here(&shared, &bay, "f", &data);
        // And one byte more, by the next daemon.
        until("the copy is saved", || files(&bay, "sidecars") == 1);
        bay.kill();
        bay.start();
        let file = open_rw(bay.path("f"));
        sys::write_all_at(&file, b"x", 5).expect("write");
        drop(file);
        bay.drain();
        let mut want = data;
        want[5] = b'x';
        reads_here(&shared, &bay, "f", &want);
        bay.finish();
    }
}

/// S11.4: the log comes first. Copies go, and no write goes past it.
#[test]
fn copies_make_room_for_the_log() {
    let shared = sim();
    for n in 0..4 {
        put(
            shared.canonical(&format!("f{n}")),
            Rng::new(n).bytes(8 * MIB),
        );
    }
    let mut bay = node(&shared, Drain::Never);
    bay.set("store-size", "64MiB").set("segment-size", "1MiB");
    bay.set_number("user-share", 1.0);
    bay.start();
    let report = prefetch(&bay, bay.mnt());
    assert_eq!(report["files"], 4, "{report:#}");
    assert_eq!(kept(&bay), (4, 32 * MIB as u64));
    let reader = File::open(bay.path("f0")).expect("open");
    put(bay.path("big"), Rng::new(7).bytes(44 * MIB));
    let status = bay.status();
    assert_eq!(status.number("/bytes/through"), 0, "{:#}", status.0);
    let (files, bytes) = kept(&bay);
    assert!(
        (1..4).contains(&files) && bytes < 20 * MIB as u64,
        "{files} files, {bytes} bytes"
    );
    // The one that was opened last is not the first to go, and is read as before.
    reads_here(&shared, &bay, "f0", &Rng::new(0).bytes(8 * MIB));
    drop(reader);
    for n in 1..4 {
        let name = format!("f{n}");
        assert_same(&name, &get(bay.path(&name)), &Rng::new(n).bytes(8 * MIB));
    }
    bay.finish();
}

/// S11.4: a store without room says so, and keeps what it has.
#[test]
fn a_prefetch_that_does_not_fit_says_so() {
    let shared = sim();
    for n in 0..5 {
        put(
            shared.canonical(&format!("f{n}")),
            Rng::new(n).bytes(16 * MIB),
        );
    }
    let mut bay = node(&shared, Drain::Never);
    bay.set("store-size", "64MiB").set("segment-size", "1MiB");
    bay.start();
    let out = bay.run(["prefetch", str(bay.mnt())]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    let said = text(&out);
    assert!(said.contains("3 files kept on this node"), "{said}");
    assert!(said.contains("the store has no room for"), "{said}");
    assert_eq!(kept(&bay), (3, 48 * MIB as u64));
    reads_here(&shared, &bay, "f1", &Rng::new(1).bytes(16 * MIB));
    bay.finish();
}

/// S11.3: a sidecar that was tampered with, or is of other bytes, is not believed.
#[test]
fn damaged_sidecars_and_leftovers_are_removed() {
    let shared = sim();
    let data = Rng::new(4).bytes(MIB);
    put(shared.canonical("f"), &data);
    put(shared.canonical("g"), &data);
    let mut bay = node(&shared, Drain::Never);
    bay.start();
    prefetch(&bay, bay.mnt());
    bay.umount();
    let dir = bay.store().join("kept");
    let mut sidecars = list(&dir);
    sidecars.retain(|p| p.extension().is_some_and(|e| e == "ranges"));
    assert_eq!(sidecars.len(), 2);
    let mut bytes = fs::read(&sidecars[0]).expect("read a sidecar");
    bytes[70] ^= 4;
    fs::write(&sidecars[0], bytes).expect("tamper with it");
    fs::remove_file(&sidecars[1]).expect("remove the other");
    fs::write(dir.join("2a.1-00000000000000ff"), "left by a kill").expect("a leftover");
    bay.start();
    assert_eq!(files(&bay, "all"), 0);
    assert_eq!(kept(&bay), (0, 0));
    assert_same("f", &get(bay.path("f")), &data);
    bay.finish();
}

/// S11.3: killed at any moment of a prefetch or a drain, nothing wrong is ever read.
#[test]
fn a_kill_leaves_whole_copies_or_none() {
    let shared = sim();
    let mut bay = node(&shared, Drain::OnClose);
    bay.arg("--keep");
    let mut rng = Rng::new(seed("a_kill_leaves_whole_copies_or_none"));
    let mut fetched = rng.bytes(4 * MIB);
    put(shared.canonical("fetched"), &fetched);
    let mut drained = Vec::new();
    for _ in 0..6 {
        bay.start();
        if !drained.is_empty() {
            assert_same("drained", &get(bay.path("drained")), &drained);
        }
        assert_same("fetched", &get(bay.path("fetched")), &fetched);
        drained = rng.bytes(3 * MIB);
        put(bay.path("drained"), &drained);
        let path = bay.path("fetched");
        let mut child = bay.forebay(["prefetch", str(&path)]);
        let mut child = child
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("start forebay");
        std::thread::sleep(std::time::Duration::from_millis(rng.below(60)));
        bay.kill();
        child.wait().expect("the prefetch ends");
        // Meanwhile nobody looks.
        fetched = rng.bytes(4 * MIB);
        put(shared.canonical("fetched"), &fetched);
    }
    bay.start();
    bay.drain();
    assert_same("drained", &get(bay.path("drained")), &drained);
    assert_same("fetched", &get(bay.path("fetched")), &fetched);
    bay.finish();
}

/// Sends one message to the daemon's socket, and gives the answer as it comes.
fn raw(bay: &Bay, request: &str) -> String {
    let sockets = list(&bay.root().join("run"));
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

/// S11.5: one fetches what one may read, and reads what one may read, copy or not.
#[test]
fn rights_are_those_of_the_file() {
    let shared = sim();
    let mut bay = node(&shared, Drain::Immediate);
    bay.start();
    let path = bay.path("secret");
    as_user(ALICE, &[], || {
        put(&path, b"alice's own");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    });
    bay.drain();
    let ask = |uid| {
        let mut command = bay.forebay(["prefetch", str(&path)]);
        as_user(uid, &[], || command.output().expect("start forebay"))
    };
    let out = ask(BOB);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    assert!(text(&out).contains("cannot read"), "{}", text(&out));
    assert_eq!(kept(&bay), (0, 0));
    // Nor by asking the daemon itself: bob has not opened it.
    let alices = as_user(ALICE, &[], || File::open(&path).expect("open"));
    let said = as_user(BOB, &[], || {
        let ino = fs::metadata(&path).expect("stat").ino();
        raw(
            &bay,
            &format!(r#"{{"prefetch":{{"ino":{ino},"since_ms":0}}}}"#),
        )
    });
    assert!(said.contains("denied"), "{said}");
    drop(alices);
    assert_eq!(kept(&bay), (0, 0));
    let out = ask(ALICE);
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!(kept(&bay), (1, 11));
    as_user(BOB, &[], || assert!(File::open(&path).is_err()));
    as_user(ALICE, &[], || assert_eq!(get(&path), b"alice's own"));
    // What is not drained is left out, and that is said.
    put(bay.path("dirty"), b"new");
    let file = open_rw(bay.path("dirty"));
    let out = bay.run(["prefetch", str(&bay.path("dirty"))]);
    assert!(out.status.success(), "{}", text(&out));
    assert!(text(&out).contains("is left out"), "{}", text(&out));
    drop(file);
    bay.finish();
}
