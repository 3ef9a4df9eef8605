//! Each way in which a target can fail, on a file system that really fails like this: the sentence
//! names the target, says what is wrong and what to do; nothing is left behind; the other targets
//! go on.

mod ost_sim;

use flusher::ost::{Directories, Lustre, Ost, OstError, Provider};
use forebay_tests::loopfs::LoopFs;
use forebay_tests::users::{ALICE, as_user};
use forebay_tests::{prereq, sys};
use ost_sim::{Pfs, probe_all, quick, start};
use pfs_sim::layout::Wish;
use pfs_sim::{Builder, Change, Failure, lov};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

/// A file system that is mounted for the time of a test.
struct Mounted {
    at: PathBuf,
    _dir: tempfile::TempDir,
}

impl Mounted {
    fn new(kind: &str, options: &str) -> Mounted {
        prereq::mounting();
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("target");
        std::fs::create_dir(&at).expect("mkdir");
        mount(&["-t", kind, "-o", options, kind], &at);
        Mounted { at, _dir: dir }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(e) = sys::detach(&self.at) {
            eprintln!("umount -l {}: {e}", self.at.display());
        }
    }
}

fn mount(args: &[&str], at: &Path) {
    let status = Command::new("mount").args(args).arg(at).status();
    assert!(status.expect("start mount").success(), "mount {args:?}");
}

fn directories(paths: &[&Path]) -> Arc<dyn Provider> {
    let paths = paths.iter().map(|path| path.to_path_buf()).collect();
    Arc::new(Directories::new(paths))
}

/// Returns the error of a probe of the one target.
fn sentence(target: &Path) -> String {
    let probed = probe_all(directories(&[target]), LONG);
    let error = probed[0].result.as_ref().expect_err("it fails").to_string();
    let named = format!("OST 0 ({}): ", target.display());
    assert!(error.starts_with(&named), "{error}");
    error
}

fn assert_empty(target: &Path) {
    let place = target.join(".forebay/subfiles");
    let left = std::fs::read_dir(place).map_or(0, |entries| entries.count());
    assert_eq!(left, 0, "files are left in {}", target.display());
}

#[test]
fn full() {
    let target = Mounted::new("tmpfs", "size=1m");
    let said = sentence(&target.at);
    assert!(
        said.contains("No space left on device; it is full: free space on it"),
        "{said}"
    );
    assert_empty(&target.at);
}

#[test]
fn read_only() {
    let target = Mounted::new("tmpfs", "size=8m");
    // Once before the first file was made, and once afterwards.
    for _ in 0..2 {
        mount(&["-o", "remount,ro"], &target.at);
        let said = sentence(&target.at);
        assert!(
            said.contains("it is mounted read-only: mount it for writing"),
            "{said}"
        );
        mount(&["-o", "remount,rw"], &target.at);
        let probed = probe_all(directories(&[&target.at]), LONG);
        probed[0].result.as_ref().expect("it works again");
    }
}

#[test]
fn broken_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = LoopFs::new(
        &dir.path().join("image"),
        &dir.path().join("disk"),
        16 << 20,
    );
    disk.break_down().expect("break it");
    let said = sentence(disk.dir());
    assert!(
        said.contains("the target or its network is broken"),
        "{said}"
    );
}

#[test]
fn not_allowed() {
    prereq::mounting();
    let dir = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::chown(dir.path(), Some(0), Some(0)).expect("chown");
    let mode: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), mode).expect("chmod");
    // A probe's threads run as the user who asks for it.
    let said = as_user(ALICE, &[], || sentence(dir.path()));
    assert!(
        said.contains("may not write in ") && said.ends_with("change its owner or mode"),
        "{said}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
}

#[test]
fn missing_or_no_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = sentence(&dir.path().join("not-mounted"));
    assert!(
        said.contains("the directory is missing: is the target mounted?"),
        "{said}"
    );
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("write");
    let said = sentence(&file);
    assert!(said.contains("name a directory of the target"), "{said}");
    std::os::unix::fs::symlink("/", dir.path().join(".forebay")).expect("link");
    let said = sentence(dir.path());
    assert!(
        said.contains("a file or a link stands where its directory .forebay must be"),
        "{said}"
    );
}

/// The probe measures through the page cache and says so; a caller that insists on O_DIRECT gets
/// the error.
#[test]
fn no_o_direct() {
    let target = Mounted::new("ramfs", "mode=755");
    let osts = directories(&[&target.at]);
    let ost = osts.osts().expect("list").remove(0);
    let error = osts.create(&ost, "a", true).expect_err("no O_DIRECT");
    assert_eq!(error.errno(), Some(libc::EINVAL));
    assert!(error.to_string().contains("no O_DIRECT there?"), "{error}");
    assert_empty(&target.at);
    osts.create(&ost, "a", false).expect("without");
    osts.remove(&ost, "a").expect("remove");
    let probed = probe_all(osts, LONG);
    assert!(!probed[0].result.as_ref().expect("measured").direct);
    assert_empty(&target.at);
}

const FAILURES: [(Failure, &str); 4] = [
    (
        Failure::Eio,
        "the target or its network is broken: ask its administrator",
    ),
    (
        Failure::Enospc,
        "it is full: free space on it, or leave it out",
    ),
    (
        Failure::Edquot,
        "a quota is used up: ask for more, or clean up",
    ),
    (
        Failure::Erofs,
        "it is mounted read-only: mount it for writing",
    ),
];

/// OST 1 fails in each way that the simulator knows; the other OST is not affected.
fn fails_on_the_simulator(pfs: &Pfs, provider: &Arc<dyn Provider>) {
    let set = |how| {
        let change = Change::default().fail(how);
        pfs.sim.set(1, change).expect("change the OST");
    };
    for (failure, says) in FAILURES {
        set(failure);
        let probed = probe_all(provider.clone(), LONG);
        set(Failure::None);
        let error = probed[1].result.as_ref().expect_err("it fails").to_string();
        assert!(
            error.starts_with("OST 1 (") && error.contains(says),
            "{error}"
        );
        probed[0].result.as_ref().expect("the other one works");
    }
    for ost in provider.osts().expect("list") {
        assert_eq!(provider.list(&ost).expect("list"), [""; 0]);
    }
    set(Failure::Hang);
    let probed = probe_all(provider.clone(), Duration::from_secs(5));
    let error = probed[1].result.as_ref().expect_err("it hangs").to_string();
    assert!(
        error.contains("it hangs: it is left out until it answers again"),
        "{error}"
    );
    probed[0].result.as_ref().expect("the other one works");
    set(Failure::None);
}

#[test]
fn lustre_osts_that_fail() {
    let pfs = Pfs::new(quick(2));
    let lustre: Arc<dyn Provider> = Arc::new(pfs.lustre());
    fails_on_the_simulator(&pfs, &lustre);
}

/// The same with one directory for each OST.
#[test]
fn directories_that_fail() {
    let pfs = Pfs::new(quick(2));
    let paths = [0, 1].map(|n| {
        let dir = pfs.mount().join(format!("ost{n}"));
        std::fs::create_dir(&dir).expect("mkdir");
        let one = lov::of_wish(&Wish {
            stripe_count: Some(1),
            start: Some(n),
            ..Wish::default()
        });
        sys::set_xattr(&dir, lov::NAME, &one, 0).expect("set the layout");
        dir
    });
    fails_on_the_simulator(&pfs, &directories(&[&paths[0], &paths[1]]));
}

/// A Lustre in a directory of its own, and one of its OSTs.
struct OneOst {
    lustre: Lustre,
    ost: Ost,
    dir: PathBuf,
    _pfs: Pfs,
}

impl OneOst {
    fn new(builder: Builder) -> OneOst {
        let pfs = Pfs::new(builder);
        let dir = pfs.mount().join("scratch");
        std::fs::create_dir(&dir).expect("mkdir");
        let held = std::fs::File::open(&dir).expect("open the directory");
        let lustre = Lustre::with_root(held.as_fd(), pfs.root()).expect("hold it");
        let ost = lustre.osts().expect("list").remove(1);
        OneOst {
            lustre,
            ost,
            dir,
            _pfs: pfs,
        }
    }

    /// Returns the error when no file can be made there.
    fn refusal(&self, direct: bool) -> OstError {
        let made = self.lustre.create(&self.ost, "new", direct);
        let error = made.expect_err("no file can be made there");
        let said = error.to_string();
        assert!(
            said.starts_with("OST 1 (sim-OST0001): making a file: "),
            "{said}"
        );
        error
    }

    fn files(&self) -> Vec<String> {
        self.lustre.list(&self.ost).expect("list")
    }
}

/// The daemon of an ordinary user, before anything was made there, and after root's daemon has made
/// it. The name of the OST does not show the place, so the sentence names the directory.
#[test]
fn lustre_not_allowed() {
    let one = OneOst::new(quick(2));
    let denied = |dir: &Path| {
        let said = as_user(ALICE, &[], || one.refusal(false)).to_string();
        let rights = format!(
            "Permission denied: user {ALICE} may not write in {}: change its owner or mode",
            dir.display()
        );
        assert!(said.ends_with(&rights), "{said}");
    };
    denied(&one.dir);
    assert_eq!(std::fs::read_dir(&one.dir).expect("list").count(), 0);
    one.lustre.create(&one.ost, "a", false).expect("root may");
    denied(&one.dir.join(".forebay"));
    assert_eq!(one.files(), ["a"]);
}

/// The directories of subfiles are made again. The directory that was given is not, because nothing
/// tells where it should be.
#[test]
fn lustre_missing() {
    let one = OneOst::new(quick(2));
    one.lustre.create(&one.ost, "a", false).expect("create");
    std::fs::remove_dir_all(one.dir.join(".forebay/subfiles/1")).expect("remove");
    let gone = one.lustre.open(&one.ost, "a").expect_err("removed");
    assert_eq!(gone.errno(), Some(libc::ENOENT));
    assert_eq!(one.files(), [""; 0]);
    one.lustre.create(&one.ost, "a", false).expect("made again");
    assert_eq!(one.files(), ["a"]);

    std::fs::remove_dir_all(&one.dir).expect("remove");
    let error = one.refusal(false);
    let said = error.to_string();
    let removed = format!(
        "the directory {} was removed while it was in use: make it again",
        one.dir.display()
    );
    assert!(said.contains(&removed), "{said}");
    // The error must not look like that of a file that was drained.
    assert_eq!(error.errno(), None);
}

/// The probe measures through the page cache and says so; a caller that insists on O_DIRECT gets
/// the error.
#[test]
fn lustre_without_o_direct() {
    let one = OneOst::new(quick(2).no_direct());
    let error = one.refusal(true);
    assert_eq!(error.errno(), Some(libc::EINVAL));
    assert!(error.to_string().contains("no O_DIRECT there?"), "{error}");
    assert_eq!(one.files(), [""; 0]);
    let file = one.lustre.create(&one.ost, "new", false);
    let bytes = std::os::unix::fs::FileExt::write_all_at(&file.expect("without"), b"x", 0);
    bytes.expect("write");
    one.lustre.remove(&one.ost, "new").expect("remove");
    let (lustre, ost) = (Arc::new(one.lustre), &one.ost);
    for probed in probe_all(lustre.clone(), LONG) {
        assert!(!probed.result.expect("measured").direct);
    }
    assert_eq!(lustre.list(ost).expect("list"), [""; 0]);
}

#[test]
fn a_full_lustre_ost() {
    let pfs = Pfs::new(quick(2));
    let small = Change::default().capacity("1M");
    pfs.sim.set(0, small).expect("shrink it");
    let probed = probe_all(Arc::new(pfs.lustre()), LONG);
    let error = probed[0].result.as_ref().expect_err("full").to_string();
    assert!(error.contains("it is full"), "{error}");
    probed[1].result.as_ref().expect("the other one works");
}

/// The mount of a target dies and comes back. In between its mount point is a directory like any
/// other, and must not be filled.
#[test]
fn a_mount_that_died_is_taken_again_when_it_is_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().join("target");
    std::fs::create_dir(&at).expect("mkdir");
    let sim = start(quick(1), &at);
    let osts = directories(&[&at]);
    let ost: Ost = osts.osts().expect("list").remove(0);
    osts.create(&ost, "a", false).expect("create");
    sim.stop().expect("stop");
    let error = osts.create(&ost, "b", false).expect_err("it is gone");
    assert!(
        error
            .to_string()
            .contains("its mount is broken: mount the target again"),
        "{error}"
    );
    let error = osts
        .create(&ost, "b", false)
        .expect_err("nothing is mounted");
    assert!(
        error.to_string().contains("is the target mounted?"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(&at).expect("list").count(), 0);
    let sim = start(quick(1), &at);
    osts.create(&ost, "b", false).expect("create");
    assert_eq!(osts.list(&ost).expect("list"), ["b"]);
    drop(sim);
}
