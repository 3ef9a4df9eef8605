//! `forebay probe` on the simulated parallel file system, with one directory for each OST whose files are all on
//! that OST, or with all OSTs behind one directory as on Lustre; and on a real MooseFS.
//!
//! Checks S8.8, S8.12.

use forebay_tests::cli::{DENIED, FAILED, OK, USAGE, assert_refused, code, str};
use forebay_tests::moosefs::MooseFs;
use forebay_tests::prereq;
use forebay_tests::test_mount::{Drain, TestMount, text};
use forebay_tests::users::{ALICE, as_user};
use pfs_sim::layout::Wish;
use pfs_sim::{Change, Failure, Sim, lov};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A simulated parallel file system with two clients, and a directory on each of its OSTs.
struct Pfs {
    sim: Sim,
    /// The directories, as the first client sees them.
    osts: Vec<PathBuf>,
    /// Dropped after the mounts in it.
    root: tempfile::TempDir,
}

impl Pfs {
    fn new(osts: usize, slow: Option<(&str, &str)>) -> Self {
        Pfs::with_bandwidth("5M", osts, slow)
    }

    fn with_bandwidth(bandwidth: &str, osts: usize, slow: Option<(&str, &str)>) -> Self {
        prereq::mounting();
        let root = tempfile::tempdir().expect("a directory");
        let mounts = ["pfs", "other"].map(|name| root.path().join(name));
        for mount in &mounts {
            std::fs::create_dir(mount).expect("mkdir");
        }
        let mut builder = Sim::builder().osts(osts).bandwidth(bandwidth).jitter("2%");
        if let Some((which, bandwidth)) = slow {
            builder = builder.slow(which, bandwidth);
        }
        let sim = builder
            .program(prereq::helper("pfs-sim"))
            .start(&mounts)
            .expect("start pfs-sim");
        let osts = (0..osts)
            .map(|n| {
                let dir = mounts[0].join(format!("ost-{n}"));
                std::fs::create_dir(&dir).expect("mkdir");
                let one = lov::of_wish(&Wish {
                    stripe_count: Some(1),
                    start: Some(n),
                    ..Wish::default()
                });
                forebay_tests::sys::set_xattr(&dir, lov::NAME, &one, 0).expect("set the layout");
                dir
            })
            .collect();
        Pfs { sim, osts, root }
    }

    fn command(&self, client: usize, options: &[&str]) -> Command {
        let mount = &self.sim.mounts()[client];
        let mut command = Command::new(prereq::forebay());
        command.arg("probe").arg(mount).args(options);
        for ost in &self.osts {
            let name = ost.file_name().expect("a name");
            command.arg("--ost").arg(mount.join(name));
        }
        command
    }

    fn probe(&self, options: &[&str]) -> Output {
        self.command(0, options).output().expect("start forebay")
    }

    fn nothing_is_left(&self) {
        for ost in &self.osts {
            let place = ost.join(".forebay/subfiles");
            let left = std::fs::read_dir(place).map_or(0, |entries| entries.count());
            assert_eq!(left, 0, "files are left on {}", ost.display());
        }
    }
}

fn report(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
}

fn chosen(report: &Value) -> Vec<u64> {
    let osts = report["osts"].as_array().expect("osts");
    let chosen = osts.iter().filter(|ost| ost["chosen"] == true);
    chosen
        .map(|ost| ost["index"].as_u64().expect("a number"))
        .collect()
}

/// Twelve of 156 OSTs are slow, as in the paper's figures 4 and 5; the bandwidths are scaled down to what the
/// machine can do at once. Among so many OSTs, one that a busy machine holds up for a tenth of a second is slower
/// than the others: then the probe is repeated.
#[test]
fn of_156_osts_the_12_slow_ones_are_left_out() {
    let slow = "3,17,29,41,58,66,79,90,101,123,140,155";
    let pfs = Pfs::with_bandwidth("1M", 156, Some((slow, "400K")));
    let slow: Vec<u64> = slow
        .split(',')
        .map(|n| n.parse().expect("a number"))
        .collect();
    let mut tries = 0;
    loop {
        let out = pfs.probe(&["--size", "4MiB", "--json"]);
        assert_eq!(code(&out), OK, "{out:?}");
        let report = report(&out);
        assert!(!chosen(&report).iter().any(|ost| slow.contains(ost)));
        pfs.nothing_is_left();
        if report["chosen"] == 144 {
            return;
        }
        tries += 1;
        assert!(tries < 5, "{report:#}");
    }
}

/// Two nodes that probe at once see less of each target, and otherwise do not notice each other.
#[test]
fn two_probes_at_once() {
    let pfs = Pfs::new(8, Some(("5", "500K")));
    let start = |client| {
        let mut command = pfs.command(client, &["--size", "8MiB", "--json"]);
        command.stdout(std::process::Stdio::piped());
        command.spawn().expect("start forebay")
    };
    let both = [start(0), start(1)].map(|child| child.wait_with_output().expect("wait"));
    for out in &both {
        assert_eq!(code(out), OK, "{out:?}");
        let mut chosen = chosen(&report(out));
        chosen.sort_unstable();
        assert_eq!(chosen, [0, 1, 2, 3, 4, 6, 7]);
    }
    pfs.nothing_is_left();
}

/// Each way in which an OST can fail has a sentence, and the others are chosen all the same.
#[test]
fn an_ost_that_fails_is_named() {
    let pfs = Pfs::new(4, None);
    for (failure, says) in [
        (Failure::Eio, "the target or its network is broken"),
        (Failure::Enospc, "it is full"),
        (Failure::Edquot, "a quota is used up"),
        (Failure::Erofs, "it is mounted read-only"),
        (Failure::Hang, "it hangs"),
    ] {
        pfs.sim
            .set(2, Change::default().fail(failure))
            .expect("fail");
        let out = pfs.probe(&["--size", "4MiB", "--deadline", "5s", "--json"]);
        pfs.sim
            .set(2, Change::default().fail(Failure::None))
            .expect("mend");
        assert_eq!(code(&out), OK, "{out:?}");
        let report = report(&out);
        let last = &report["osts"][3];
        let error = last["error"].as_str().unwrap_or_default();
        assert!(
            error.contains("OST 2") && error.contains(says),
            "{failure:?}: {report:#}"
        );
        assert_eq!(report["chosen"], 3);
    }
}

#[test]
fn the_table_the_picture_and_bad_arguments() {
    let pfs = Pfs::new(3, Some(("1", "1M")));
    let picture = pfs.root.path().join("probe.svg");
    let out = pfs.probe(&["--size", "4MiB", "--svg", str(&picture)]);
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(code(&out), OK, "{said}");
    assert!(said.starts_with("2 OSTs of 3 chosen"), "{said}");
    let svg = std::fs::read_to_string(&picture).expect("the picture");
    assert!(svg.contains("<svg") && svg.contains("Bandwidth of each OST"));
    assert!(svg.contains("Together"), "the second of the two figures");
    let drawn = ["█", "●", " cut "].iter().all(|what| said.contains(what));
    assert!(drawn, "bars, a curve and the cut: {said}");

    let run = |args: &[&str]| {
        let out = Command::new(prereq::forebay())
            .arg("probe")
            .args(args)
            .output();
        out.expect("start forebay")
    };
    assert_refused(&run(&["/none"]), Some(USAGE), &["/none"]);
    let kind = |kind, rest: &[&str]| run(&[&["/", "--ost-provider", kind], rest].concat());
    let named = kind("lustre", &["--ost", "/"]);
    assert_refused(&named, Some(USAGE), &["leave out --ost"]);
    assert_refused(&kind("directories", &[]), Some(USAGE), &["--ost DIR"]);
    assert_refused(&kind("lustre", &[]), Some(FAILED), &["not on Lustre"]);
    assert_refused(&kind("moosefs", &[]), Some(FAILED), &["not on a MooseFS"]);
    let missing = run(&["/", "--ost", "/not-mounted"]);
    assert_eq!(code(&missing), FAILED);
    let said = String::from_utf8_lossy(&missing.stdout).into_owned();
    assert!(said.contains("is the target mounted?"), "{said}");
    assert!(!Path::new("/not-mounted").exists());
}

/// As on Lustre, the OSTs are found, and files are placed by their striping.
#[test]
fn the_osts_behind_one_directory_are_found() {
    let pfs = Pfs::new(4, Some(("2", "400K")));
    pfs.sim.lustre_root(pfs.root.path()).expect("the list");
    let out = Command::new(prereq::forebay())
        .arg("probe")
        .arg(&pfs.sim.mounts()[0])
        .args(["--ost-provider", "lustre", "--size", "1MiB", "--json"])
        .env("FOREBAY_LUSTRE_ROOT", pfs.root.path())
        .output()
        .expect("start forebay");
    assert_eq!(code(&out), OK, "{out:?}");
    let report = report(&out);
    assert_eq!(report["kind"], "lustre");
    assert_eq!(report["osts"][3]["name"], "sim-OST0002", "{report:#}");
    assert!(!chosen(&report).contains(&2), "{report:#}");
    let counters = pfs.sim.counters().expect("counters");
    assert!(
        counters
            .osts
            .iter()
            .all(|ost| ost.tally.bytes_written == 1 << 20)
    );
}

#[test]
fn a_slow_chunkserver_of_a_moosefs_is_left_out() {
    let cluster = MooseFs::start(3);
    let mount = cluster.mount("client");
    cluster.slow(1, 8);
    let mut command = Command::new(prereq::forebay());
    command
        .arg("probe")
        .arg(&mount)
        .args(["--size", "4MiB", "--json"]);
    cluster.enter(&mut command);
    let out = command.output().expect("start forebay");
    assert_eq!(code(&out), OK, "{out:?}");
    let report = report(&out);
    assert_eq!(report["kind"], "moosefs");
    assert_eq!(report["osts"][2]["index"], 1, "{report:#}");
    assert!(!chosen(&report).contains(&1), "{report:#}");
    let left = |label| std::fs::read_dir(mount.join(".forebay/subfiles").join(label));
    for label in ["A", "B", "C"] {
        assert_eq!(left(label).expect("its directory").count(), 0);
    }
}

/// S8.8, S8.12: on a mount the command asks the daemon, which has the targets and measures again when it is told to.
#[test]
fn on_a_mount_the_daemon_is_asked() {
    let mut test_mount = TestMount::new(Drain::Immediate);
    test_mount.with_osts(3).start();
    let probe = |options: &[&str]| {
        let mut command = test_mount.forebay(["probe", "--json"]);
        command.arg(test_mount.mnt()).args(options);
        command
    };
    let out = probe(&[]).output().expect("start forebay");
    assert!(out.status.success(), "{}", text(&out));
    let report = report(&out);
    assert_eq!(chosen(&report), [0, 1, 2], "{report}");
    assert!(
        report["osts"][0]["bandwidth"].is_null(),
        "not measured yet: {report}"
    );
    let mut others = probe(&["--fresh"]);
    let out = as_user(ALICE, &[], || others.output().expect("start forebay"));
    assert_refused(&out, Some(DENIED), &["--fresh"]);

    let out = probe(&["--fresh"]).output().expect("start forebay");
    assert!(out.status.success(), "{}", text(&out));
    let report = self::report(&out);
    assert_eq!(report["osts"].as_array().map(Vec::len), Some(3), "{report}");
    for ost in report["osts"].as_array().expect("a list") {
        assert!(
            ost["bandwidth"].as_f64().is_some_and(|b| b > 0.0),
            "{report}"
        );
    }
    assert!(
        report["measured_seconds_ago"].as_f64().is_some(),
        "{report}"
    );
    let mut others = probe(&[]);
    let out = as_user(ALICE, &[], || others.output().expect("start forebay"));
    assert_eq!(chosen(&self::report(&out)), chosen(&report));
    let out = test_mount.run([OsStr::new("probe"), test_mount.mnt().as_os_str()]);
    assert!(text(&out).contains("by the daemon"), "{}", text(&out));
    test_mount.finish();
}

/// S8.12: a mount is no target, and options that the daemon does not take are not left out in silence.
#[test]
fn what_makes_no_sense_on_a_mount_is_refused() {
    let mut test_mount = TestMount::new(Drain::Immediate);
    test_mount.with_osts(2).start();
    let mnt = str(test_mount.mnt());
    let ost = test_mount.root().join("ost0");
    for (options, word) in [
        (vec!["--ost-provider", "none"], "backing itself"),
        (vec!["--ost", mnt], "backing itself"),
        (vec!["--ost", str(&ost), "--ost", mnt], "backing itself"),
        (vec!["--size", "1MiB"], "--size"),
        (vec!["--fresh", "--deadline", "5s"], "--deadline"),
        (vec!["--delta", "5%"], "--delta"),
    ] {
        let mut args = vec!["probe", mnt];
        args.extend(&options);
        assert_refused(&test_mount.run(args), Some(USAGE), &[mnt, word]);
    }
    let out = test_mount.run(["probe", mnt, "--ost", str(&ost), "--size", "1MiB"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    test_mount.finish();
}

/// S8.12: where there is nothing to choose from the message says so, and not that something is not permitted.
#[test]
fn a_mount_without_targets_says_so() {
    let mut test_mount = TestMount::new(Drain::Immediate);
    test_mount.start();
    let out = test_mount.run([OsStr::new("probe"), test_mount.mnt().as_os_str()]);
    assert_refused(&out, None, &["no storage targets", "--ost"]);
    let bare = [
        OsStr::new("probe"),
        test_mount.backing().as_os_str(),
        OsStr::new("--fresh"),
    ];
    assert_refused(&test_mount.run(bare), Some(USAGE), &["--fresh"]);
    test_mount.finish();
}
