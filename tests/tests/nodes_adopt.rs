//! `forebay drain --adopt` drains the data that dead nodes have published, from a machine that mounts nothing.
//!
//! It keeps S2.3 (other nodes read the data even if its node never comes back) where no other node is left, S4 (the
//! canonical file is the file), S2.7 (a node that comes back publishes nothing again over newer bytes) and S6
//! (nothing is freed before what replaces it is there). Data that only a store has is reported, not lost (S2.2,
//! S5.5). Tests with users are in `nodes_adopt_users.rs`.

mod nodes_adopt_rig;
mod nodes_pair;

use forebay_tests::cli::{DENIED, OK, STILL_DIRTY, USAGE, assert_refused, code};
use forebay_tests::test_mount::{Drain, assert_same, get, open_rw, put, text};
use forebay_tests::users::{ALICE, as_user};
use forebay_tests::wait::{LONG, wait_until};
use forebay_tests::{prereq, sys};
use nodes_adopt_rig::*;
use nodes_pair::{MIB, Shared, json, list, name_of, texts, until};
use pfs_sim::{Change, Sim};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Two nodes have published and are dead for good; no node is left. All their data is drained, the newer over the
/// older; and a node that comes back after other nodes have changed the files undoes nothing.
#[test]
fn all_that_dead_nodes_had_published_is_drained() {
    let shared = Shared::plain();
    let (mut a, mut b) = (publisher(&shared, "a"), publisher(&shared, "b"));
    a.start();
    b.start();
    let (large, small) = (data(1, 5 * MIB + 123), data(2, 1234));
    put(a.path("large"), &large);
    put(a.path("small"), &small);
    let mut both = Vec::new();
    for (node, at, seed, len) in [
        (&a, 0, 3, 3 * MIB),
        (&b, MIB + 3, 4, MIB),
        (&a, 2 * MIB - 500, 5, 1000),
        (&b, 3 * MIB - 10, 6, 5000),
    ] {
        let bytes = data(seed, len);
        write_at(node, "both", at, &bytes);
        overlay(&mut both, at, &bytes);
    }
    let times = ["large", "small", "both"].map(|name| mtime(b.path(name)));
    let (id_a, id_b) = (shared.id_of("a"), shared.id_of("b"));
    let layouts = |id: &str| shared.layouts_of(id).len();
    assert_eq!((layouts(&id_a), layouts(&id_b)), (3, 1), "published");
    assert!(!shared.subfiles().is_empty(), "in subfiles");
    a.kill();
    b.kill();

    let login = login();
    let out = adopt(&login, &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let report = json(&out);
    assert_eq!(texts(&report["dead"]), ["a", "b"]);
    assert_eq!(texts(&report["adopted"]), ["both", "large", "small"]);
    for none in ["left", "only_in_stores", "problems"] {
        assert_eq!(report[none].as_array().map(Vec::len), Some(0), "{report:#}");
    }
    let canonical = |name: &str| get(shared.canonical(name));
    assert_same("large", &canonical("large"), &large);
    assert_same("small", &canonical("small"), &small);
    assert_same("both", &canonical("both"), &both);
    let now = ["large", "small", "both"].map(|name| mtime(shared.canonical(name)));
    assert_eq!(now, times, "mtimes");
    assert_eq!(shared.subfiles(), no_paths());
    let removed = report["removed_subfiles"].as_u64();
    assert!(
        removed >= Some(2),
        "subfiles that were removed: {removed:?}"
    );
    assert_eq!(
        (layouts(&id_a), layouts(&id_b)),
        (3, 1),
        "who comes back needs them"
    );
    assert_eq!(shared.names('p'), Vec::<String>::new(), "no plan is left");
    assert_eq!(shared.nodes(), ["a", "b"], "who adopted leaves no record");

    // A second run has nothing to do, and succeeds.
    let out = adopt(&login, &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("both, again", &canonical("both"), &both);

    b.start();
    until("its layouts are gone", || layouts(&id_b) == 0);
    let newer = data(7, MIB);
    write_at(&b, "both", 7, &newer);
    overlay(&mut both, 7, &newer);
    b.drain();
    // No node has anything of the file: a program without the overlay may write it, too.
    let newest = data(8, 100);
    let below = open_rw(shared.canonical("large"));
    sys::write_all_at(&below, &newest, 1000).expect("write past the overlay");
    drop(below);
    let mut large = large;
    overlay(&mut large, 1000, &newest);

    a.start();
    for (name, want) in [("large", &large), ("small", &small), ("both", &both)] {
        assert_same(&format!("{name}, on a"), &read_on(&a, name), want);
    }
    until("its layouts are gone", || layouts(&id_a) == 0);
    assert_eq!(a.status().undrained(), 0);
    a.drain();
    for (name, want) in [("large", &large), ("small", &small), ("both", &both)] {
        assert_same(name, &canonical(name), want);
        assert_same(&format!("{name}, on b"), &read_on(&b, name), want);
    }
    b.finish();
    a.finish();
}

/// A store was killed after its batch was in the layout and before it had recorded that. Only the layout can tell
/// the store that its bytes are published, so adoption leaves the layout, and the bytes do not come over newer ones.
#[test]
fn a_store_that_has_not_heard_of_its_publication_comes_back() {
    let shared = Shared::plain();
    let mut a = shared.mortal("a", Drain::Never);
    expects_deaths(&mut a);
    let mut b = publisher(&shared, "b");
    a.start();
    b.start();
    let (mut large, mut small) = (data(11, 3 * MIB + 9), data(12, 5000));
    put(a.path("large"), &large);
    put(a.path("small"), &small);
    a.kill();
    let before = a.root().join("store-before");
    let copied = Command::new("cp")
        .arg("-a")
        .args([a.store(), &before])
        .status();
    assert!(copied.expect("start cp").success(), "copy the store");
    a.start();
    // Reading on the other node makes this node publish.
    assert_same("large, on b", &read_on(&b, "large"), &large);
    assert_same("small, on b", &read_on(&b, "small"), &small);
    let id = shared.id_of("a");
    assert_eq!(shared.layouts_of(&id).len(), 2, "published");
    a.kill();
    b.kill();
    fs::remove_dir_all(a.store()).expect("remove the store");
    fs::rename(&before, a.store()).expect("put the old store back");

    let out = adopt(&login(), &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("large", &get(shared.canonical("large")), &large);
    assert_same("small", &get(shared.canonical("small")), &small);
    b.start();
    let newer = data(13, MIB);
    for (name, want, at, len) in [
        ("large", &mut large, MIB + 3, MIB),
        ("small", &mut small, 100, 2000),
    ] {
        write_at(&b, name, at, &newer[..len]);
        overlay(want, at, &newer[..len]);
    }
    b.drain();
    a.start();
    assert_same("large, on a", &read_on(&a, "large"), &large);
    assert_same("small, on a", &read_on(&a, "small"), &small);
    a.drain();
    b.drain();
    assert_same("large", &get(shared.canonical("large")), &large);
    assert_same("small", &get(shared.canonical("small")), &small);
    a.finish();
    b.finish();
}

/// Data that a dead node had closed and not published is only in its store: it is listed, with the node, and the
/// exit code says so. `forebay recover` on that store drains it, and then nothing is missing.
#[test]
fn what_only_a_store_has_is_listed() {
    let shared = Shared::plain();
    let mut a = shared.mortal("gone", Drain::Never);
    expects_deaths(&mut a);
    a.start();
    // One file is being appended to, of one nothing is published, and of one a part is.
    let appender = OpenOptions::new()
        .append(true)
        .create(true)
        .open(a.path("appended"));
    let mut appender = appender.expect("open");
    appender.write_all(b"acknowledged").expect("append");
    let deferred = data(21, 2 * MIB);
    put(a.path("deferred"), &deferred);
    let mut synced = data(22, MIB);
    let file = open_rw(a.path("synced"));
    sys::write_all_at(&file, &synced, 0).expect("write");
    file.sync_all().expect("fsync");
    let more = data(23, MIB);
    sys::write_all_at(&file, &more, MIB as u64 / 2).expect("write");
    sys::close(file).expect("close");
    assert_eq!(shared.names('i').len(), 2, "announced");
    a.kill();
    drop(appender);

    let login = login();
    let out = adopt(&login, &shared, &["--json"]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    let report = json(&out);
    assert_eq!(texts(&report["dead"]), ["gone"]);
    assert_eq!(texts(&report["adopted"]), ["synced"]);
    let held = report["only_in_stores"].as_array().expect("a list");
    assert_eq!(held.len(), 3, "{report:#}");
    for name in ["appended", "deferred", "synced"] {
        let ino = fs::metadata(shared.canonical(name)).expect("stat").ino();
        let of_it = held.iter().find(|held| held["inode"] == ino);
        let of_it = of_it.unwrap_or_else(|| panic!("{name} is not listed: {report:#}"));
        assert_eq!(of_it["node"], "gone");
    }
    // A layout leads to its file; for a file without a layout the report has the inode's number.
    assert!(
        held.iter().any(|held| held["file"] == "synced"),
        "{report:#}"
    );
    assert_same(
        "what was published",
        &get(shared.canonical("synced")),
        &synced,
    );
    let out = adopt(&login, &shared, &[]);
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    let said = text(&out);
    let ino = fs::metadata(shared.canonical("deferred"))
        .expect("stat")
        .ino();
    for words in [
        "only in the store of node gone",
        "forebay recover",
        &ino.to_string(),
    ] {
        assert!(said.contains(words), "{words:?} is missing: {said}");
    }

    let (store, backing) = (a.store().to_owned(), shared.backing());
    let out = login.run([
        "recover".as_ref(),
        "--store".as_ref(),
        store.as_os_str(),
        "--backing".as_ref(),
        backing.as_os_str(),
    ]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    overlay(&mut synced, MIB / 2, &more);
    assert_same("deferred", &get(shared.canonical("deferred")), &deferred);
    assert_same("synced", &get(shared.canonical("synced")), &synced);
    let out = adopt(&login, &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_eq!(shared.subfiles(), no_paths());
    assert_eq!(shared.names('i'), Vec::<String>::new());
}

/// Adoption beside a node that lives: that node does not count as dead, data that it alone has stays with it, and it
/// goes on with a file that it had open all the time.
#[test]
fn beside_a_node_that_lives() {
    let shared = Shared::plain();
    let (mut a, mut b) = (publisher(&shared, "dead"), publisher(&shared, "lives"));
    a.start();
    b.start();
    let mut both = data(31, 4 * MIB);
    put(a.path("both"), &both);
    let newer = data(32, MIB);
    write_at(&b, "both", MIB + 1, &newer);
    overlay(&mut both, MIB + 1, &newer);
    let own = data(33, 2 * MIB);
    put(b.path("own"), &own);
    let mut open = data(34, MIB);
    // No process may be started while the file is open: that would close a copy of its descriptor, which publishes.
    a.kill();
    let login = login();
    let mut adopting = adopter(&login, &shared);
    let file = open_rw(b.path("open"));
    sys::write_all_at(&file, &open, 0).expect("write");
    let status = wait_until("it has adopted", LONG, || {
        adopting.try_wait().expect("ask after it")
    });
    assert_eq!(status.code(), Some(OK));
    let more = data(35, MIB);
    sys::write_all_at(&file, &more, MIB as u64 - 100).expect("write");
    overlay(&mut open, MIB - 100, &more);
    assert_same(
        "through the handle",
        &sys::read_at(&file, 0, 3 * MIB).expect("read"),
        &open,
    );
    let out = adopting.wait_with_output().expect("its report");
    let report = json(&out);
    assert_eq!(texts(&report["dead"]), ["dead"]);
    assert_eq!(texts(&report["adopted"]), ["both"]);
    assert_same("both", &get(shared.canonical("both")), &both);
    assert_same("both, on the node that lives", &read_on(&b, "both"), &both);
    assert!(
        !shared.layouts_of(&shared.id_of("lives")).is_empty(),
        "what it has published is still its own"
    );
    assert!(get(shared.canonical("own")) != own, "no request was for it");
    assert_same("own", &read_on(&b, "own"), &own);
    sys::close(file).expect("close");
    assert_same("open", &read_on(&b, "open"), &open);
    b.drain();
    for (name, want) in [("both", &both), ("own", &own), ("open", &open)] {
        assert_same(name, &get(shared.canonical(name)), want);
    }
    assert_eq!(b.status().undrained(), 0);
    b.finish();
}

/// If the command is killed in the middle of a round, it leaves a plan, domains and a term that ends with its lease.
/// The next run goes on from there, and all is right.
#[test]
fn killed_in_the_middle_and_run_again() {
    let builder = Sim::builder().osts(4).bandwidth("500M").stripe("1M", 4);
    let shared = Shared::simulated(builder);
    let mut a = publisher(&shared, "a");
    a.set("ost-deadline", "10m").start();
    let want = data(41, 12 * MIB);
    put(a.path("f"), &want);
    a.kill();
    let speed = |bandwidth: &str| {
        let change = Change::default().bandwidth(bandwidth);
        shared.sim().set_all(change).expect("change the OSTs");
    };
    let login = login();
    // At this speed it takes seconds to read the first stripe, and to write it.
    speed("512K");
    let mut first = adopter(&login, &shared);
    let canonical = shared.canonical("f");
    until("it is in the middle of its round", || {
        !shared.made_by('d').is_empty() && fs::metadata(&canonical).expect("stat").len() > 0
    });
    first.kill().expect("kill it");
    first.wait().expect("wait for it");
    speed("500M");
    assert!(get(&canonical) != want, "it was in the middle");
    assert!(!shared.names('p').is_empty(), "a plan is left");
    assert!(!shared.names('c').is_empty(), "and a term");

    let out = adopt(&login, &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let report = json(&out);
    assert_eq!(texts(&report["adopted"]), ["f"]);
    assert_same("canonical", &get(&canonical), &want);
    assert_eq!(shared.names('p'), Vec::<String>::new());
    assert_eq!(shared.subfiles(), no_paths());
    assert_eq!(
        shared.nodes(),
        ["a"],
        "not even the one that was killed left a record"
    );
    a.start();
    assert_same("when it is back", &read_on(&a, "f"), &want);
    a.finish();
    assert_same("in the end", &get(&canonical), &want);
}

/// A backing that no node ever mounted, and paths that are no backing: the command prints one clear sentence for
/// each.
#[test]
fn nothing_to_adopt() {
    prereq::mounting();
    let (shared, login) = (Shared::plain(), login());
    put(shared.canonical("plain"), b"plain");
    let out = adopt(&login, &shared, &[]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let said = text(&out);
    assert!(said.contains("No node has ever mounted it."), "{said}");
    assert_eq!(said.lines().count(), 2, "the path and a sentence: {said}");
    let report = json(&adopt(&login, &shared, &["--json"]));
    for none in ["dead", "adopted", "left", "only_in_stores", "problems"] {
        assert_eq!(report[none].as_array().map(Vec::len), Some(0), "{none}");
    }
    let names: Vec<String> = list(&shared.backing()).iter().map(|p| name_of(p)).collect();
    assert_eq!(names, ["plain"], "it made nothing");

    // A user who may not look is told so. (The backing of the test is open to all.)
    let hidden = shared.shared_dir();
    fs::create_dir(&hidden).expect("mkdir");
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).expect("chmod");
    let out = as_user(ALICE, &[], || adopt(&login, &shared, &[]));
    assert_refused(&out, Some(DENIED), &["only root"]);

    let missing = shared.backing().join("no-such");
    let run = |path: &Path| login.run(["drain".as_ref(), "--adopt".as_ref(), path.as_os_str()]);
    assert_refused(&run(&missing), Some(USAGE), &["no-such", "does not exist"]);
    assert_refused(
        &run(&shared.canonical("plain")),
        Some(USAGE),
        &["plain", "not a directory"],
    );
}
