//! S8.4 between nodes: a file that is open for writing on one node gets its setuid bit on another node or in the
//! backing. A user who may write to the file must not get bytes into it while it keeps the bit.

use forebay_tests::bystander::Bystander;
use forebay_tests::cluster::Cluster;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, get};
use forebay_tests::users::{ALICE, BOB, as_user};
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("stat").mode() & 0o7777
}

fn alice_sets(path: &Path, mode: u32) {
    as_user(ALICE, &[], || {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod")
    });
}

/// Makes a file of ALICE's that every user may write, and returns a handle of BOB's that has written to it.
fn open_to_bob(mount: &TestMount, name: &str) -> File {
    let path = mount.path(name);
    fs::write(&path, [1; 20_000]).expect("write");
    chown(&path, Some(ALICE), Some(ALICE)).expect("chown");
    fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("chmod");
    as_user(BOB, &[], || {
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        sys::write_all_at(&file, b"first", 0).expect("write");
        file
    })
}

/// Calls that BOB makes after the bits were set. The bits must be gone after each of them.
const ENDS: [&str; 5] = ["close", "fsync", "stat", "drain", "truncate"];

/// Writes as BOB and then makes the call `end`. Returns the handle if it is still open.
fn bob_writes(mount: &TestMount, name: &str, file: File, end: &str) -> Option<File> {
    let file = as_user(BOB, &[], || {
        if end == "truncate" {
            file.set_len(10).expect("truncate");
        } else {
            sys::write_all_at(&file, b"evil", 0).expect("write");
        }
        match end {
            "close" => {
                sys::close(file).expect("close");
                return None;
            }
            "fsync" => file.sync_all().expect("fsync"),
            "stat" => assert_eq!(mode(&mount.path(name)), 0o777, "where it was written"),
            _ => {}
        }
        Some(file)
    });
    if end == "drain" {
        mount.drain();
    }
    file
}

/// S8.4: wherever the bits were set, they are gone before the bytes are seen anywhere else.
#[test]
fn bits_of_another_node_fall() {
    for drain in [Drain::Never, Drain::Immediate] {
        let mut cluster = Cluster::new(2, drain, LIMIT);
        cluster.set("attr-timeout", "0s");
        cluster.start();
        let [here, there] = [0, 1].map(|node| cluster.mount(node));
        let bystander = Bystander::beside(here);
        for (n, end) in ENDS.into_iter().enumerate() {
            for below in [false, true] {
                let name = format!("f{n}{below}");
                let file = open_to_bob(here, &name);
                let from = match below {
                    true => here.canonical(&name),
                    false => there.path(&name),
                };
                alice_sets(&from, 0o6777);
                let _open = bob_writes(here, &name, file, end);
                let modes = [
                    mode(&here.canonical(&name)),
                    mode(&there.path(&name)),
                    mode(&here.path(&name)),
                ];
                assert_eq!(modes, [0o777; 3], "{drain:?} {end}, below: {below}");
            }
        }
        bystander.was_not_disturbed();
        cluster.finish();
    }
}

/// S8.4: with one node it is programs in the backing that set the bits.
#[test]
fn bits_of_the_backing_fall() {
    let mut mount = TestMount::new(Drain::Never);
    mount.set("nodes", "one");
    mount.start();
    for end in ["stat", "drain", "truncate"] {
        let file = open_to_bob(&mount, end);
        alice_sets(&mount.canonical(end), 0o6777);
        let _open = bob_writes(&mount, end, file, end);
        assert_eq!(mode(&mount.canonical(end)), 0o777, "{end}");
    }
    mount.finish();
}

/// S8.4, S4.3: bits that are set after the close are intended and stay, although the bytes are drained later.
#[test]
fn bits_that_are_set_after_the_close_stay() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.start();
    let [here, there] = [0, 1].map(|node| cluster.mount(node));
    fs::write(here.path("program"), []).expect("make it");
    chown(here.path("program"), Some(ALICE), Some(ALICE)).expect("chown");
    as_user(ALICE, &[], || {
        fs::write(here.path("program"), [7; 50_000]).expect("write")
    });
    alice_sets(&there.path("program"), 0o6755);
    here.drain();
    there.drain();
    assert_eq!(mode(&here.canonical("program")), 0o6755);
    assert_eq!(get(here.canonical("program")), [7; 50_000]);
    cluster.finish();
}

/// S8.4: bits that are set after the close stay also where nothing of the write was absorbed: the file was made
/// empty here, or it was written through.
#[test]
fn bits_that_are_set_after_an_unabsorbed_write_stay() {
    for absorb in ["on", "off"] {
        let mut cluster = Cluster::new(2, Drain::Immediate, LIMIT);
        cluster.set("absorb", absorb).set("attr-timeout", "0s");
        cluster.start();
        let [here, there] = [0, 1].map(|node| cluster.mount(node));
        let made = [7; 50_000];
        fs::write(here.path("program"), []).expect("make it");
        chown(here.path("program"), Some(ALICE), Some(ALICE)).expect("chown");
        as_user(ALICE, &[], || {
            let (empty, content): (&[u8], &[u8]) = (&[], &made);
            let first = if absorb == "on" { empty } else { content };
            fs::write(here.path("program"), first).expect("write here");
            fs::write(there.path("program"), made).expect("write there");
        });
        alice_sets(&there.path("program"), 0o4755);
        there.drain();
        let modes = [
            here.path("program"),
            there.path("program"),
            here.canonical("program"),
        ];
        assert_eq!(
            modes.map(|path| mode(&path)),
            [0o4755; 3],
            "absorb = {absorb}"
        );
        cluster.finish();
    }
}
