//! Storage targets that hang, fill and fail while data is on its way to them: the job goes on, `status` names the
//! target, and the data ends elsewhere.
//!
//! The tests run on the simulated parallel file system with Lustre's calls. They check S1, S4, S6, S9.1, S9.4, S9.5
//! and S9.8 there: an OST that hangs for ever during a drain does not hang the job.

mod lustre_sim;

use forebay_tests::cli::{OK, code};
use forebay_tests::rng::Rng;
use forebay_tests::test_mount::{Drain, assert_same, get, put};
use forebay_tests::wait::{in_background, in_time};
use lustre_sim::{Lustre, MIB};
use pfs_sim::{Builder, Change, Failure, Sim};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const BROKEN: usize = 2;
const OTHERS: [usize; 3] = [0, 1, 3];

forebay_tests::with_one_node_and_many!(
    an_ost_that_hangs_does_not_hang_the_job,
    a_file_on_a_hanging_ost_is_served_from_subfiles_elsewhere,
    an_ost_that_fills_is_dropped_and_its_data_goes_elsewhere,
    an_ost_that_fails_is_dropped_and_its_data_goes_elsewhere,
);

/// Starts four OSTs that are all alike; canonical files are striped over all of them.
fn four(drain: Drain, nodes: &str) -> Lustre {
    let builder = Sim::builder().osts(4).bandwidth("50M").stripe("1M", 4);
    over(builder, drain, nodes)
}

fn over(builder: Builder, drain: Drain, nodes: &str) -> Lustre {
    let mut lustre = Lustre::new(builder, drain, nodes);
    lustre.test_mount.set("probe", "off");
    lustre.test_mount.allow_log("dropped: OST 2");
    lustre.test_mount.allow_log("OST 2 (sim-OST0002)");
    lustre
        .test_mount
        .allow_log("what is published of it goes to another layout");
    lustre
}

/// Does what a job does: writes and closes files, one after the other. (It does not sync: a sync waits for the
/// canonical file, which is striped over the hanging OST as long as the daemon does not know that the OST hangs.)
fn job(dir: PathBuf, files: u64) -> Vec<(String, Vec<u8>)> {
    let mut rng = Rng::new(files);
    let one = |n| {
        let (name, data) = (format!("job-{n}"), rng.bytes(MIB + 4321));
        let mut file = File::create(dir.join(&name)).expect("create");
        file.write_all(&data).expect("write");
        (name, data)
    };
    (0..files).map(one).collect()
}

/// S9.4: an OST hangs in the middle of a drain, for as long as the test wants.
fn an_ost_that_hangs_does_not_hang_the_job(nodes: &str) {
    let mut lustre = four(Drain::Immediate, nodes);
    lustre.test_mount.set("drain-rate", "4MiB");
    lustre
        .test_mount
        .allow_log("has data of it, has not answered");
    lustre.start();
    let mid = Rng::new(1).bytes(12 * MIB);
    put(lustre.test_mount.path("mid"), &mid);
    lustre.until("the drain is in the middle", |status| {
        let subfiled = status.number("/bytes/subfiled") as usize;
        subfiled > MIB && status.in_log() > 0
    });
    lustre.fail(BROKEN, Failure::Hang);
    let before = lustre.written();

    let dir = lustre.test_mount.mnt().to_owned();
    let files = in_time("the job", in_background(move || job(dir, 10)));
    let status = lustre.until("the OST is seen to hang", |status| {
        status.target(BROKEN)["state"] == "stalled"
    });
    let said = status.target(BROKEN)["error"].to_string();
    assert!(said.contains("OST 2 (sim-OST0002)"), "{said}");
    assert!(said.contains("has not come back"), "{said}");
    assert_eq!(status.chosen(), OTHERS);
    lustre.until("everything has left the log", |status| status.in_log() == 0);

    // A file that is made now does not use that OST, and is drained while the OST hangs.
    let new = Rng::new(2).bytes(3 * MIB + 17);
    let (made, data) = (lustre.test_mount.path("new"), new.clone());
    let synced = in_background(move || {
        put(&made, data);
        File::open(&made).and_then(|file| file.sync_all())
    });
    in_time("writing and syncing a new file", synced).expect("sync");
    let below = lustre.test_mount.canonical("new");
    assert_eq!(lustre.striped_over(&below), OTHERS);
    let out = lustre.drain("new", &["--wait", "--timeout", "60s"]);
    assert_eq!(code(&out), OK, "{out:?}");
    lustre.has_all("new", &new);
    let status = lustre.test_mount.status();
    assert_eq!(status.target(BROKEN)["state"], "stalled", "{:#}", status.0);

    let after = lustre.written();
    assert_eq!(after[BROKEN], before[BROKEN], "the OST does not hang");
    for ost in OTHERS {
        assert!(after[ost] > before[ost], "nothing went to OST {ost}");
    }

    lustre.fail(BROKEN, Failure::None);
    lustre.until("the OST is used again", |status| {
        status.chosen() == [0, 1, 2, 3]
    });
    lustre.test_mount.drain();
    lustre.has_all("mid", &mid);
    for (name, data) in &files {
        lustre.has_all(name, data);
    }
    lustre.finish();
}

/// S9.1, S9.5: a canonical file with stripes on the OST cannot be had elsewhere. The file is reported, its bytes are
/// safe on other OSTs and read from there, and its drain ends when the OST answers.
fn a_file_on_a_hanging_ost_is_served_from_subfiles_elsewhere(nodes: &str) {
    let mut lustre = four(Drain::Never, nodes);
    lustre
        .test_mount
        .allow_log("has data of it, has not answered");
    lustre.start();
    let old = Rng::new(3).bytes(8 * MIB + 99);
    put(lustre.test_mount.path("old"), &old);
    let below = lustre.test_mount.canonical("old");
    assert_eq!(lustre.striped_over(&below), [0, 1, 2, 3]);
    lustre.fail(BROKEN, Failure::Hang);
    lustre.drain("old", &[]);

    lustre.until("everything has left the log", |status| status.in_log() == 0);
    let status = lustre.until("the file is reported", |status| {
        status.error_of("old").is_some()
    });
    let said = status.error_of("old").unwrap_or_default();
    assert!(said.contains("has not answered for"), "{said}");
    assert_eq!(status.undrained() as usize, old.len());
    assert_eq!(status.target(BROKEN)["state"], "stalled");
    assert_same("from subfiles", &lustre.read("old"), &old);
    let path = lustre.test_mount.path("old");
    let out = lustre
        .test_mount
        .run(["layout".as_ref(), path.as_os_str(), "--json".as_ref()]);
    let layout: Value = serde_json::from_slice(&out.stdout).expect("layout --json");
    for piece in layout["pieces"].as_array().expect("pieces") {
        assert_eq!(piece["tier"], "subfile", "{piece}");
        assert_ne!(piece["ost"], "sim-OST0002", "{piece}");
    }

    // A job that goes on with this very file does not wait for the OST either.
    let (at, more) = (3 * MIB, Rng::new(4).bytes(MIB / 2));
    let (path, data) = (lustre.test_mount.path("old"), more.clone());
    let write = in_background(move || {
        let file = File::options().write(true).open(path).expect("open");
        file.write_all_at(&data, at as u64).expect("write");
    });
    in_time("writing to the file", write);
    let mut want = old;
    want[at..at + more.len()].copy_from_slice(&more);
    assert_same("with new bytes", &lustre.read("old"), &want);
    let path = lustre.test_mount.path("old");
    let cut = in_background(move || {
        let file = File::options().write(true).open(path)?;
        file.set_len(5 * MIB as u64)
    });
    in_time("cutting the file", cut).expect("cut");
    want.truncate(5 * MIB);
    assert_same("cut", &lustre.read("old"), &want);
    let path = lustre.test_mount.path("old");
    let replaced = in_background(move || std::fs::write(path, b"all new"));
    in_time("replacing the file", replaced).expect("replace");
    want = b"all new".to_vec();
    assert_same("replaced", &lustre.read("old"), &want);

    lustre.fail(BROKEN, Failure::None);
    lustre.test_mount.drain();
    lustre.has_all("old", &want);
    lustre.until("the OST is used again", |status| {
        status.chosen() == [0, 1, 2, 3] && status.errors().is_empty()
    });
    lustre.finish();
}

/// S9.5: what a node tells other nodes goes to another target when one does not answer. When all of the file is
/// drained, the node waits for nothing of the file, not even for a write to its layout that still hangs.
#[test]
fn a_layout_on_a_hanging_ost_holds_up_no_drain() {
    let builder = Sim::builder().osts(4).bandwidth("50M").stripe("1M", 1);
    let mut lustre = over(builder, Drain::Never, "many");
    lustre.test_mount.set("close", "publish");
    lustre.start();
    // The files are made below, where the file system gives each of them one OST.
    let mut names: Vec<String> = (0..12).map(|n| format!("f{n}")).collect();
    names.retain(|name| {
        let below = lustre.test_mount.canonical(name);
        put(&below, b"");
        lustre.striped_over(&below) != [BROKEN]
    });
    let write = |at: usize, bytes: [u8; 100]| {
        let paths: Vec<PathBuf> = names
            .iter()
            .map(|name| lustre.test_mount.path(name))
            .collect();
        let written = in_background(move || {
            for path in paths {
                let file = File::options().write(true).open(path).expect("open");
                file.write_all_at(&bytes, at as u64).expect("write");
            }
        });
        in_time("writing and publishing", written);
    };
    write(0, [1; 100]);
    assert_ne!(lustre.layouts_on(BROKEN), 0, "no layout is on OST {BROKEN}");
    lustre.fail(BROKEN, Failure::Hang);
    write(100, [2; 100]);
    let want = [[1; 100], [2; 100]].concat();
    for name in &names {
        let out = lustre.drain(name, &["--wait", "--timeout", "20s"]);
        assert_eq!(code(&out), OK, "{name}: {out:?}");
        lustre.has_all(name, &want);
    }
    assert_ne!(lustre.layouts_on(BROKEN), 0, "no write hung");
    lustre.fail(BROKEN, Failure::None);
    lustre.until("what was written late has removed itself", |_| {
        lustre.layouts_on(BROKEN) == 0
    });
    lustre.finish();
}

/// S9.4: breaks an OST in the middle of a drain in a way that the OST reports.
fn breaks(nodes: &str, change: Change, repair: Change, state: &str, says: &str) {
    let mut lustre = four(Drain::Never, nodes);
    lustre.test_mount.allow_log("draining old");
    lustre.start();
    let old = Rng::new(5).bytes(12 * MIB);
    put(lustre.test_mount.path("old"), &old);
    lustre.set(BROKEN, change);
    lustre.drain("old", &[]);
    let status = lustre.until("everything has left the log, and the OST is dropped", |s| {
        s.in_log() == 0 && s.target(BROKEN)["state"] == state
    });
    let said = status.target(BROKEN)["error"].to_string();
    assert!(said.contains("OST 2") && said.contains(says), "{said}");
    assert_eq!(status.chosen(), OTHERS);
    assert_same("from subfiles", &lustre.read("old"), &old);

    let new = Rng::new(6).bytes(4 * MIB);
    put(lustre.test_mount.path("new"), &new);
    assert_eq!(
        lustre.striped_over(&lustre.test_mount.canonical("new")),
        OTHERS
    );
    let out = lustre.drain("new", &["--wait", "--timeout", "60s"]);
    assert_eq!(code(&out), OK, "{out:?}");
    assert_same("new", &get(lustre.test_mount.canonical("new")), &new);

    lustre.set(BROKEN, repair);
    lustre.until("the OST is used again", |status| {
        status.chosen() == [0, 1, 2, 3]
    });
    lustre.test_mount.drain();
    lustre.has_all("old", &old);
    lustre.finish();
}

fn an_ost_that_fills_is_dropped_and_its_data_goes_elsewhere(nodes: &str) {
    breaks(
        nodes,
        Change::default().capacity("1M"),
        Change::default().capacity("1G"),
        "full",
        "it is full",
    );
}

fn an_ost_that_fails_is_dropped_and_its_data_goes_elsewhere(nodes: &str) {
    breaks(
        nodes,
        Change::default().fail(Failure::Eio),
        Change::default().fail(Failure::None),
        "failed",
        "the target or its network is broken",
    );
}
