//! Each way in which a chunkserver or the way to it can fail, on a real MooseFS that really fails
//! like this: the sentence names the target, says what is wrong and what to do; nothing is left
//! behind.
//!
//! Quotas and a mount that is read-only are in `ost_moosefs.rs`. A MooseFS without O_DIRECT cannot
//! be tested here: its client is a FUSE file system, for which the kernel accepts the flag whatever
//! the client does with it, and the client takes any write.
//!
//! # How the client reports failures
//!
//! By default `mfsmount` turns none of these failures into an error before minutes have passed, so
//! the mounts here have options (seen with 3.0.117):
//! - A full target: the client asks again for two minutes, and then returns ENOSPC; `mfsioretries`
//!   sets how often. The provider does not send anything there (`a_full_chunkserver`).
//! - A target that is cut off: the client waits until it is back. With `mfstimeout` it returns EIO
//!   after so many seconds, but only until the master misses the target. After that a new chunk
//!   waits again in spite of the option, and a chunk that exists gives ENXIO after `mfsioretries`.

use flusher::ost::{MooseFs, Ost, OstError, ProbeOptions, Provider, probe};
use forebay_tests::moosefs::{ALL_RIGHTS, KEPT_FREE, MooseFs as Cluster};
use forebay_tests::users::{ALICE, as_user};
use forebay_tests::wait_until;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 64 * MIB;
const LONG: Duration = Duration::from_secs(60);

fn open(dir: &Path) -> MooseFs {
    let dir = File::open(dir).expect("open the directory");
    let found = MooseFs::open(dir.as_fd()).expect("look for a MooseFS");
    found.expect("it is one")
}

/// Makes a directory that only root may write to.
fn scratch(mount: &Path, name: &str) -> PathBuf {
    let dir = mount.join(name);
    std::fs::create_dir(&dir).expect("mkdir");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&dir, mode).expect("chmod");
    dir
}

/// Returns the error when no file can be made on `ost`.
fn refusal(moosefs: &MooseFs, ost: &Ost) -> OstError {
    let made = moosefs.create(ost, "new", false);
    let error = made.expect_err("no file can be made there");
    let named = format!("OST {} ({}): making a file: ", ost.index, ost.name);
    assert!(error.to_string().starts_with(&named), "{error}");
    error
}

fn write(file: &File, bytes: &[u8], at: u64) -> std::io::Result<()> {
    file.write_all_at(bytes, at)?;
    file.sync_all()
}

fn assert_says(error: &OstError, words: &[&str]) {
    let said = error.to_string();
    println!("{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

/// A subfile grows where no further chunk fits, and new files are made there. The classes are
/// strict: what does not fit on a chunkserver goes nowhere else.
#[test]
fn a_full_chunkserver() {
    // The second chunkserver has room for one chunk.
    let cluster = Cluster::start_on(&[None, Some(KEPT_FREE + CHUNK + 8 * MIB)]);
    let mount = cluster.mount_with("client", &["mfsioretries=3"]);
    let waits = cluster.mount("waits");
    cluster.inside(|| {
        let moosefs = open(&mount);
        let osts = moosefs.osts().expect("list");
        let full = "No space left on device; it is full: free space on it, or leave it out";
        let file = moosefs.create(&osts[1], "a", false).expect("create");
        write(&file, &vec![1; CHUNK as usize], 0).expect("the first chunk");

        // The error comes at once, where the client would wait. Chunkservers report how full they
        // are only now and then.
        let patient = open(&waits);
        let error = wait_until("the master knows how full it is", LONG, || {
            let began = Instant::now();
            let made = patient.create(&osts[1], "b", false);
            let took = began.elapsed();
            assert!(took < Duration::from_secs(5), "it took {took:?}");
            if made.is_ok() {
                patient.remove(&osts[1], "b").expect("remove");
            }
            made.err()
        });
        assert_says(&error, &["OST 1 (B at ", "making a file", full]);
        assert_eq!(error.errno(), Some(libc::ENOSPC));
        assert_eq!(moosefs.list(&osts[1]).expect("list"), ["a"]);

        let error = write(&file, b"the second chunk", CHUNK).expect_err("it is full");
        let error = OstError::new(&osts[1], "writing to a subfile", error);
        assert_says(&error, &["OST 1 (B at ", full]);

        let other: Arc<dyn Provider> = Arc::new(patient);
        let probed = probe(&other, &osts[..1], ProbeOptions::default()).remove(0);
        probed.result.expect("the other one works");
    });
}

/// Rights of the client in `mfsexports.cfg`, rights of the user, and a directory that is removed.
#[test]
fn not_allowed_and_missing() {
    let cluster = Cluster::start(1);
    let mount = cluster.mount("client");
    let dir = scratch(&mount, "scratch");
    cluster.inside(|| {
        let moosefs = open(&dir);
        let ost = moosefs.osts().expect("list").remove(0);
        let without_admin = ALL_RIGHTS.replace(",admin", "");

        cluster.export(&without_admin);
        let by_hand = "mfsscadmin MOUNT create -m s -K A forebay-on-A";
        let words = ["add 'admin' to its line in mfsexports.cfg", by_hand];
        assert_says(&refusal(&moosefs, &ost), &words);
        assert_eq!(std::fs::read_dir(&dir).expect("list").count(), 0);

        cluster.export(&format!("{ALL_RIGHTS},disable=setsclass"));
        let words = [
            "does not let user 0 give a file the storage class forebay-on-A",
            "take 'disable=setsclass' and 'mingoal' out of this client's line",
        ];
        assert_says(&refusal(&moosefs, &ost), &words);
        assert_eq!(moosefs.list(&ost).expect("list"), [""; 0]);

        // As the advice above says: the class exists now, and that is enough.
        cluster.export(&without_admin);
        moosefs.create(&ost, "a", false).expect("create");

        let theirs = scratch(&mount, "theirs");
        let denied = |moosefs: &MooseFs, place: &Path| {
            let error = as_user(ALICE, &[], || refusal(moosefs, &ost));
            let place = place.display();
            let who = format!("Permission denied: user {ALICE} may not write in {place}");
            assert_says(&error, &[&who, ": change its owner or mode"]);
        };
        denied(&open(&theirs), &theirs);
        assert_eq!(std::fs::read_dir(&theirs).expect("list").count(), 0);
        // The refusal names the directory or one below it: the client lets a user pass whose
        // directory is in the kernel's cache.
        denied(&moosefs, &dir.join(".forebay"));
        assert_eq!(moosefs.list(&ost).expect("list"), ["a"]);

        // Directories of subfiles are made again; the directory that was given is not.
        std::fs::remove_dir_all(dir.join(".forebay/subfiles/A")).expect("remove");
        let gone = moosefs.open(&ost, "a").expect_err("removed");
        assert_eq!(gone.errno(), Some(libc::ENOENT));
        moosefs.create(&ost, "a", false).expect("made again");
        std::fs::remove_dir_all(&dir).expect("remove");
        let error = refusal(&moosefs, &ost);
        let removed = format!(
            "the directory {} was removed while it was in use: make it again",
            dir.display()
        );
        assert_says(&error, &[&removed]);
        // The error must not look like that of a file that was drained.
        assert_eq!(error.errno(), None);
    });
}

/// A target that is cut off gives the errors that are listed at the top of this file.
#[test]
fn a_chunkserver_that_is_cut_off() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount_with("client", &["mfstimeout=2", "mfsioretries=3"]);
    cluster.inside(|| {
        let moosefs = open(&mount);
        let ost = moosefs.osts().expect("list").remove(1);
        let file = moosefs.create(&ost, "old", false).expect("create");
        write(&file, b"a chunk", 0).expect("write");

        cluster.cut_link(1);
        let broken = "the target or its network is broken: ask its administrator";
        let new = moosefs.create(&ost, "new", false);
        let new = new.expect("the master makes it alone");
        let error = write(&new, b"no chunk yet", 0).expect_err("no server answers");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        let error = OstError::new(&ost, "writing", error);
        assert_says(&error, &["OST 1 (B at ", "I/O error; ", broken]);

        cluster.wait_lost(1);
        let error = write(&file, b"a chunk", 0).expect_err("it is away");
        assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
        let error = OstError::new(&ost, "writing", error);
        assert_says(&error, &["OST 1 (B at ", "No such device", broken]);
        assert_says(&refusal(&moosefs, &ost), &["is its network up?"]);
    });
}
