//! Users' files that another process drains: `forebay drain --adopt` as root, and rounds of other nodes' daemons.
//!
//! Checks S8.9 (the drain acts as the owner of the file, never as root), S4.3 and S8.4 (mode, owner and time stay as
//! the overlay showed them), and S8: forged files in the shared directory lead to no other user's data.

mod nodes_adopt_rig;
mod nodes_forge;
mod nodes_pair;

use forebay_tests::cli::{FAILED, OK, code};
use forebay_tests::sys;
use forebay_tests::test_mount::{TestMount, assert_same, get, put, text};
use forebay_tests::users::{ALICE, BOB, TEAM, as_user};
use nodes_adopt_rig::*;
use nodes_forge::{SECRET, Scene, head, in_subfile, inline, subfile};
use nodes_pair::{MIB, Shared, json, list, name_of, texts};
use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// Owner, group, mode and time.
type Shape = (u32, u32, u32, i64);

fn shape(path: &Path) -> Shape {
    let meta = fs::metadata(path).expect("stat");
    let mode = meta.mode() & 0o7777;
    (meta.uid(), meta.gid(), mode, sys::mtime(&meta))
}

/// Alice's files, written through a node, each with the attributes that the node shows.
struct Files {
    all: Vec<(&'static str, Vec<u8>, Shape)>,
}

impl Files {
    fn make(node: &TestMount) -> Files {
        fs::create_dir(node.path("closed")).expect("mkdir");
        chmod(&node.path("closed"), 0o777);
        let of_alice = |name: &str, bytes: &[u8]| {
            let path = node.path(name);
            as_user(ALICE, &[TEAM], || put(path, bytes));
        };
        let wants: Vec<(&str, Vec<u8>)> = [
            ("plain", 3 * MIB + 1),
            ("few", 700),
            ("team", MIB),
            ("program", 100_000),
            ("stripped", 100_000),
            ("readonly", 2 * MIB),
            ("closed/f", MIB),
        ]
        .into_iter()
        .zip(1..)
        .map(|((name, len), seed)| (name, data(seed, len)))
        .collect();
        for (name, bytes) in &wants {
            of_alice(name, bytes);
        }
        chmod(&node.path("plain"), 0o640);
        chown(node.path("team"), Some(ALICE), Some(TEAM)).expect("chown");
        chmod(&node.path("team"), 0o660);
        // Bits that were set after the last write are intended and stay; those from before it fell with it.
        chmod(&node.path("program"), 0o6755);
        chmod(&node.path("stripped"), 0o6777);
        let path = node.path("stripped");
        as_user(BOB, &[], || {
            let file = OpenOptions::new().write(true).open(path).expect("open");
            sys::write_all_at(&file, b"bob was here", 0).expect("write");
            sys::close(file).expect("close");
        });
        // The owner may not open `readonly` for writing any more, and cannot reach into `closed`.
        chmod(&node.path("readonly"), 0o400);
        chmod(&node.path("closed"), 0o700);
        let mut files = Files { all: Vec::new() };
        for (name, mut bytes) in wants {
            if name == "stripped" {
                bytes[..12].copy_from_slice(b"bob was here");
            }
            files.all.push((name, bytes, shape(&node.path(name))));
        }
        let mode = |name: &str| {
            let found = files.all.iter().find(|(n, ..)| *n == name);
            found.map(|(_, _, shape)| shape.2)
        };
        assert_eq!(mode("program"), Some(0o6755));
        assert_eq!(mode("stripped"), Some(0o777), "stripped by the write");
        files
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.all.iter().map(|(n, ..)| (*n).to_owned()).collect();
        names.sort();
        names
    }

    fn check(&self, shared: &Shared) {
        for (name, want, was) in &self.all {
            let path = shared.canonical(name);
            assert_same(name, &get(&path), want);
            assert_eq!(shape(&path), *was, "{name}: owner, group, mode, time");
        }
    }
}

/// After adoption by root every file still has its owner, mode and time, as the node showed them.
#[test]
fn adopted_files_keep_owner_mode_and_time() {
    let shared = Shared::plain();
    let mut a = publisher(&shared, "a");
    a.start();
    let files = Files::make(&a);
    a.kill();
    let out = adopt(&login(), &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(texts(&json(&out)["adopted"]), files.names());
    files.check(&shared);
}

/// The same for a round in which another node's daemon does everything, because the node that wrote the files is
/// dead.
#[test]
fn files_that_another_node_drains_keep_owner_mode_and_time() {
    let shared = Shared::plain();
    let (mut a, mut b) = (publisher(&shared, "a"), publisher(&shared, "b"));
    a.start();
    b.start();
    let files = Files::make(&a);
    a.kill();
    for name in files.names() {
        let path = b.path(name);
        let out = b.run(["drain".as_ref(), path.as_os_str(), "--wait".as_ref()]);
        assert_eq!(code(&out), OK, "{}", text(&out));
    }
    files.check(&shared);
    b.finish();
}

/// Bytes are written as the owner: space that a file system reserves for root is not used for Alice's data,
/// whichever process drains it. The failure is reported, nothing is lost, and with room the data is drained.
#[test]
fn bytes_are_written_as_the_owner() {
    let shared = Shared::with_reserve(64 * MIB as u64, 40);
    let mut a = publisher(&shared, "a");
    a.start();
    let want = data(71, 8 * MIB);
    let path = a.path("f");
    as_user(ALICE, &[], || put(&path, &want));
    a.kill();
    let filler = shared.fill(2 * want.len() as u64);

    let login = login();
    let out = adopt(&login, &shared, &["--json", "--timeout=10s"]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    let report = json(&out);
    assert_eq!(texts(&report["left"]), ["f"], "{report:#}");
    let problems = texts(&report["problems"]).join("; ");
    assert!(problems.contains("No space left"), "{problems}");
    assert!(!shared.subfiles().is_empty(), "the data is where it was");

    fs::remove_file(&filler).expect("make room");
    let out = adopt(&login, &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("canonical", &get(shared.canonical("f")), &want);
    assert_eq!(shape(&shared.canonical("f")).0, ALICE);
}

/// The same for a round of daemons: one node drains what another one has published.
#[test]
fn bytes_of_a_round_are_written_as_the_owner() {
    let shared = Shared::with_reserve(64 * MIB as u64, 40);
    let (mut a, mut b) = (publisher(&shared, "a"), publisher(&shared, "b"));
    b.allow_log("No space left");
    a.start();
    b.start();
    let want = data(72, 8 * MIB);
    let path = a.path("f");
    as_user(ALICE, &[], || put(&path, &want));
    let filler = shared.fill(2 * want.len() as u64);
    let path = b.path("f");
    let drain = ["drain".as_ref(), path.as_os_str(), "--timeout=60s".as_ref()];
    let out = b.run(drain);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    assert!(text(&out).contains("No space left"), "{}", text(&out));
    assert!(!shared.subfiles().is_empty(), "the data is where it was");
    assert_same("nothing is lost", &get(&path), &want);

    fs::remove_file(&filler).expect("make room");
    let out = b.run(drain);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("canonical", &get(shared.canonical("f")), &want);
    assert_eq!(shape(&shared.canonical("f")).0, ALICE);
    b.finish();
    a.finish();
}

/// A forged layout of Alice's file says that its bytes are in a file of Bob's: it is refused and reported, and
/// neither file is touched. The file that it names stays, too.
#[test]
fn a_forged_layout_does_not_lead_to_another_users_bytes() {
    let mut scene = Scene::new();
    scene.a.kill();
    scene.b.kill();
    let bobs = scene.subfile_path();
    fs::create_dir_all(bobs.parent().expect("a parent")).expect("mkdir");
    put(&bobs, SECRET);
    chown(&bobs, Some(BOB), Some(BOB)).expect("chown");
    scene.forge_batch(&in_subfile(&subfile("backing")));
    let before = get(scene.shared.canonical("alices"));
    let out = adopt(&scene.a, &scene.shared, &["--json", "--timeout=10s"]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    let report = json(&out);
    assert_eq!(texts(&report["left"]), ["alices"], "{report:#}");
    let problems = texts(&report["problems"]).join("; ");
    assert!(problems.contains("belongs to another user"), "{problems}");
    assert_same(
        "Alice's file",
        &get(scene.shared.canonical("alices")),
        &before,
    );
    assert_eq!(get(&bobs), SECRET, "Bob's bytes");

    // Without the forgery everything is as it should be.
    fs::remove_file(scene.layout_path()).expect("remove");
    fs::remove_file(&bobs).expect("remove");
    let out = adopt(&scene.a, &scene.shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same(
        "Alice's file",
        &get(scene.shared.canonical("alices")),
        &scene.want,
    );
    assert_eq!(shape(&scene.shared.canonical("alices")).0, ALICE);
}

/// A forged layout in the place of one of Alice's has a handle of Bob's file: the handle is not followed, and the
/// layout is reported.
#[test]
fn a_forged_handle_does_not_lead_to_another_users_file() {
    let mut scene = Scene::new();
    let path = scene.a.path("bobs-own");
    as_user(BOB, &[], || put(&path, SECRET));
    let dirs = scene.shared.file_dirs();
    let bobs = dirs.iter().find(|dir| **dir != scene.dir).expect("Bob's");
    let mut layouts = list(bobs).into_iter();
    let layout = layouts.find(|path| name_of(path).starts_with("l."));
    let header = get(layout.expect("Bob's layout"));
    let len = u32::from_le_bytes(header[44..48].try_into().expect("four bytes"));
    let handle = &header[48..48 + len as usize];
    assert!(!handle.is_empty(), "this file system has handles");
    scene.a.drain();
    scene.a.kill();
    scene.b.kill();
    fs::create_dir_all(&scene.dir).expect("mkdir");
    chmod(&scene.dir, 0o700);
    let id = scene.layout();
    let mut bytes = id.header(handle).to_vec();
    bytes.extend(inline(b"forged", head()).encode(&id).expect("encode"));
    scene.forge(&bytes);
    let out = adopt(&scene.a, &scene.shared, &["--json", "--timeout=10s"]);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    let report = json(&out);
    assert_eq!(texts(&report["left"]), [scene.id.to_string()], "{report:#}");
    let problems = texts(&report["problems"]).join("; ");
    assert!(problems.contains("leads to another file"), "{problems}");
    assert_eq!(get(scene.shared.canonical("bobs-own")), SECRET);
    let below = get(scene.shared.canonical("alices"));
    assert_same("Alice's file", &below, &scene.want);
}
