//! Kept copies on one node, over a simulated parallel file system that counts what is read of it.
//!
//! Checks S11 and its parts; several nodes are in `kept_nodes.rs`.

mod nodes_pair;

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put, text};
use forebay_tests::cli::{FAILED, code, str};
use forebay_tests::rng::{Rng, seed};
use forebay_tests::sys;
use forebay_tests::users::{ALICE, BOB, as_user};
use nodes_pair::{MIB, Shared, list, until};
use pfs_sim::Sim;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

fn sim() -> Shared {
    Shared::simulated(Sim::builder().osts(2).stripe("1M", 2))
}

/// Bytes that were ever read from the files below.
fn bytes_read(shared: &Shared) -> u64 {
    let counters = shared.sim().counters().expect("read the counters");
    counters.total.bytes_read
}

fn prefetch(bay: &Bay, path: &Path) -> Value {
    let out = bay.run(["prefetch", str(path), "--json"]);
    serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("prefetch --json ({e}): {}", text(&out)))
}

fn kept(bay: &Bay) -> (u64, u64) {
    let status = bay.status();
    (status.number("/kept/files"), status.number("/kept/bytes"))
}

/// What there is in the store beside the log: data files and sidecars.
fn files(bay: &Bay, kind: &str) -> usize {
    let names = list(&bay.store().join("kept"));
    let is = |p: &&std::path::PathBuf| p.extension().is_some_and(|e| e == "ranges");
    match kind {
        "sidecars" => names.iter().filter(is).count(),
        _ => names.len(),
    }
}

/// Reads the file through the mount, and fails if that read anything below.
fn reads_here(shared: &Shared, bay: &Bay, name: &str, want: &[u8]) {
    let before = bytes_read(shared);
    assert_same(name, &get(bay.path(name)), want);
    assert_eq!(bytes_read(shared), before, "{name} was read below");
}

/// S11, S11.2: what was prefetched is read from the node's own disk, also by the next daemon.
#[test]
fn after_a_prefetch_nothing_is_read_below() {
    let shared = sim();
    let (a, b) = (Rng::new(1).bytes(5 * MIB + 7), Rng::new(2).bytes(100));
    fs::create_dir_all(shared.canonical("d/e")).expect("mkdir");
    put(shared.canonical("d/a"), &a);
    put(shared.canonical("d/e/b"), &b);
    put(shared.canonical("d/empty"), b"");
    let mut bay = shared.node("n0", Drain::Never);
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
        let mut bay = shared.node("n0", Drain::OnClose);
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
        let mut bay = shared.node("n0", Drain::Immediate);
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

/// S11.1: parts that are written again, cut off and punched while it drains in several jobs.
#[test]
fn a_copy_follows_every_change_of_a_life() {
    let shared = sim();
    let mut bay = shared.node("n0", Drain::Immediate);
    bay.arg("--keep").set("drain-rate", "32MiB");
    bay.start();
    let mut rng = Rng::new(seed("a_copy_follows_every_change_of_a_life"));
    for round in 0..4 {
        let mut want: Vec<u8> = Vec::new();
        let file = open_rw(bay.path("f"));
        file.set_len(0).expect("empty");
        for _ in 0..40 {
            let at = rng.below(3 * MIB as u64) as usize;
            let len = rng.size(600_000) as usize;
            match rng.below(8) {
                0 => {
                    file.set_len(at as u64).expect("truncate");
                    want.resize(at, 0);
                }
                1 => {
                    sys::fallocate(&file, sys::PUNCH, at as u64, len as u64).expect("punch");
                    let end = want.len().min(at + len);
                    if at < end {
                        want[at..end].fill(0);
                    }
                }
                _ => {
                    let data = rng.bytes(len);
                    sys::write_all_at(&file, &data, at as u64).expect("write");
                    want.resize(want.len().max(at + len), 0);
                    want[at..at + len].copy_from_slice(&data);
                }
            }
        }
        drop(file);
        bay.drain();
        assert_same("canonical", &get(shared.canonical("f")), &want);
        assert_same("mounted", &get(bay.path("f")), &want);
        assert_same("again", &get(bay.path("f")), &want);
        println!("round {round}: {} bytes, {:?} kept", want.len(), kept(&bay));
    }
    bay.finish();
}

/// S11.1: whoever changes the file, and whichever way, is seen by the next open.
#[test]
fn changes_are_seen() {
    let shared = sim();
    let mut want = Rng::new(5).bytes(2 * MIB);
    put(shared.canonical("f"), &want);
    let mut bay = shared.node("n0", Drain::Immediate);
    bay.start();
    let fetch = |bay: &Bay| {
        let report = prefetch(bay, &bay.path("f"));
        assert_eq!(report["files"], 1, "{report:#}");
    };
    fetch(&bay);
    // A program without the overlay: same size, another byte.
    let below = open_rw(shared.canonical("f"));
    want[77] ^= 1;
    sys::write_all_at(&below, &want[77..78], 77).expect("write");
    assert_same("written below", &get(bay.path("f")), &want);
    fetch(&bay);
    // The mount.
    let file = open_rw(bay.path("f"));
    want[MIB] ^= 1;
    sys::write_all_at(&file, &want[MIB..MIB + 1], MIB as u64).expect("write");
    assert_same("written", &get(bay.path("f")), &want);
    drop(file);
    bay.drain();
    assert_same("drained", &get(bay.path("f")), &want);
    fetch(&bay);
    sys::truncate(&bay.path("f"), 1_000_000).expect("cut");
    want.truncate(1_000_000);
    assert_same("cut", &get(bay.path("f")), &want);
    bay.drain();
    fetch(&bay);
    let file = open_rw(bay.path("f"));
    sys::fallocate(&file, sys::PUNCH, 5_000, 100_000).expect("punch");
    want[5_000..105_000].fill(0);
    drop(file);
    assert_same("punched", &get(bay.path("f")), &want);
    bay.drain();
    fetch(&bay);
    put(bay.path("new"), b"another file");
    bay.drain();
    fs::rename(bay.path("new"), bay.path("f")).expect("replace");
    assert_eq!(get(bay.path("f")), b"another file");
    bay.finish();
}

/// S11.1: a reader that stays open sees what is new after fsync, and at the end of the file.
#[test]
fn an_open_reader_sees_changes_at_its_sync_points() {
    let shared = sim();
    put(shared.canonical("f"), vec![1; MIB]);
    let mut bay = shared.node("n0", Drain::Immediate);
    bay.start();
    prefetch(&bay, &bay.path("f"));
    let reader = File::open(bay.path("f")).expect("open");
    assert_eq!(sys::read_at(&reader, 0, 10).expect("read"), [1; 10]);
    let below = open_rw(shared.canonical("f"));
    sys::write_all_at(&below, &[2; 100], 0).expect("write");
    reader.sync_all().expect("fsync");
    assert_eq!(sys::read_at(&reader, 0, 10).expect("read"), [2; 10]);
    drop(reader);
    prefetch(&bay, &bay.path("f"));
    let reader = File::open(bay.path("f")).expect("open");
    let end = MIB as u64;
    assert_eq!(sys::read_at(&reader, end, 10).expect("read"), [0; 0]);
    sys::write_all_at(&below, b"more", end).expect("append");
    assert_eq!(sys::read_at(&reader, end, 10).expect("read"), b"more");
    drop(reader);
    bay.finish();
}

/// S11.1, S1.1: a reader that stays open sees everything that is done through the mount, at once.
#[test]
fn an_open_reader_sees_what_is_done_through_the_mount() {
    for absorb in ["on", "off"] {
        let shared = sim();
        let mut want = vec![1; MIB];
        put(shared.canonical("f"), &want);
        let mut bay = shared.node("n0", Drain::Never);
        bay.set("absorb", absorb);
        bay.start();
        let opened = || {
            bay.drain();
            let report = prefetch(&bay, &bay.path("f"));
            assert_eq!(report["files"], 1, "{report:#}");
            File::open(bay.path("f")).expect("open")
        };
        let all = |reader: &File| sys::read_at(reader, 0, 2 * MIB).expect("read");
        let reader = opened();
        assert_same("kept", &all(&reader), &want);
        let writer = open_rw(bay.path("f"));
        want[5000..5100].fill(2);
        sys::write_all_at(&writer, &[2; 100], 5000).expect("write");
        assert_same("written", &all(&reader), &want);
        drop(writer);
        bay.drain();
        assert_same("drained", &all(&reader), &want);
        drop(reader);
        let reader = opened();
        sys::truncate(&bay.path("f"), 500_000).expect("cut");
        want.truncate(500_000);
        assert_same("cut", &all(&reader), &want);
        drop(reader);
        let reader = opened();
        let writer = open_rw(bay.path("f"));
        sys::fallocate(&writer, sys::PUNCH, 4096, 40_960).expect("punch");
        want[4096..45_056].fill(0);
        assert_same("punched", &all(&reader), &want);
        drop((reader, writer));
        bay.finish();
    }
}

/// S11.1, S1.1: readers come and go while the file is written and fetched over and over; nobody
/// sees it go back.
#[test]
fn readers_never_see_it_go_back() {
    let shared = sim();
    let size = 300_000;
    put(shared.canonical("f"), vec![0; size]);
    let mut bay = shared.node("n0", Drain::Immediate);
    bay.arg("--keep");
    bay.start();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let path = bay.path("f");
            scope.spawn(move || {
                let mut last = 0;
                while last < 40 {
                    let seen = get(&path);
                    assert_eq!(seen.len(), size);
                    let least = *seen.iter().min().expect("bytes");
                    assert!(least >= last, "went back from {last} to {least}");
                    last = least;
                }
            });
        }
        let mut rng = Rng::new(9);
        for value in 1..=40u8 {
            let place = match value % 3 {
                0 => shared.canonical("f"),
                _ => bay.path("f"),
            };
            if value % 3 == 0 {
                // Past the overlay only when nothing is undrained.
                bay.drain();
            }
            let file = open_rw(place);
            sys::write_all_at(&file, &vec![value; size], 0).expect("write");
            drop(file);
            match rng.below(3) {
                0 => bay.drain(),
                1 => drop(prefetch(&bay, &bay.path("f"))),
                _ => {}
            }
        }
    });
    bay.finish();
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
    let mut bay = shared.node("n0", Drain::Never);
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
    let mut bay = shared.node("n0", Drain::Never);
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
    let mut bay = shared.node("n0", Drain::Never);
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
    let mut bay = shared.node("n0", Drain::OnClose);
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
    let mut bay = shared.node("n0", Drain::Immediate);
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
