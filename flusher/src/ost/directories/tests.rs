use super::*;
use std::process::Command;

fn ost(index: u32) -> Ost {
    Ost {
        index,
        name: String::new(),
    }
}

#[test]
fn a_directory_that_comes_later_is_found_then() {
    let dir = tempfile::tempdir().unwrap();
    let late = dir.path().join("not/yet");
    let osts = Directories::new(vec![late.clone()]);
    let error = osts.create(&ost(0), "a", false).unwrap_err();
    assert!(
        error.to_string().contains("is the target mounted?"),
        "{error}"
    );
    // The error must not look like that of a file that was drained and removed.
    assert_eq!(osts.open(&ost(0), "a").unwrap_err().errno(), None);
    std::fs::create_dir_all(&late).unwrap();
    osts.create(&ost(0), "a", false).unwrap();
    assert_eq!(osts.list(&ost(0)).unwrap(), ["a"]);
    assert_eq!(
        osts.open(&ost(0), "b").unwrap_err().errno(),
        Some(libc::ENOENT)
    );
    let none = osts.create(&ost(1), "a", false).unwrap_err();
    assert!(
        none.to_string().contains("no such directory in the list"),
        "{none}"
    );
}

/// A directory that is made at the same path is the target again; the removed one takes nothing.
#[test]
fn a_directory_that_is_removed_and_made_again_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    std::fs::create_dir(&path).unwrap();
    let osts = Directories::new(vec![path.clone()]);
    osts.create(&ost(0), "a", false).unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    for _ in 0..2 {
        let error = osts.create(&ost(0), "b", false).unwrap_err();
        assert!(
            error.to_string().contains("is the target mounted?"),
            "{error}"
        );
        assert_eq!(error.errno(), None);
    }
    std::fs::create_dir(&path).unwrap();
    osts.create(&ost(0), "b", false).unwrap();
    assert!(path.join(".forebay/subfiles/b").is_file());
}

#[test]
fn every_directory_can_be_an_ost() {
    let (above, rest) = nearest_above(Path::new("/"));
    assert_eq!((above.is_ok(), rest), (true, PathBuf::from(".")));
    let (above, rest) = nearest_above(Path::new("/no/such/place"));
    assert_eq!(
        (above.is_ok(), rest),
        (true, PathBuf::from("no/such/place"))
    );
}

struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn new(at: &'a Path) -> Self {
        let mut mount = Command::new("mount");
        let status = mount.args(["-t", "tmpfs", "tmpfs"]).arg(at).status();
        assert!(status.unwrap().success(), "this test needs root, to mount");
        Mounted(at)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("-l").arg(self.0).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.0.display());
        }
    }
}

/// OSTs at the path of a mount and below it stay what they were, as when the overlay is mounted
/// over its backing. This includes one that was missing when the overlay was mounted.
#[test]
fn a_mount_over_the_path_is_not_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let (at, below) = (dir.path().join("scratch"), dir.path().join("scratch/ost"));
    std::fs::create_dir_all(&below).unwrap();
    let held = File::open(&at).unwrap();
    let late = at.join("late");
    let osts = Directories::new(vec![at.clone(), below.clone(), late.clone()]);
    let over = Mounted::new(&at);
    for index in [0, 1] {
        osts.create(&ost(index), "a", false).unwrap();
    }
    nix::sys::stat::mkdirat(&held, "late", Mode::S_IRWXU).unwrap();
    osts.create(&ost(2), "a", false).unwrap();
    assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
    drop(over);
    for dir in [at, below, late] {
        assert!(
            dir.join(".forebay/subfiles/a").is_file(),
            "{}",
            dir.display()
        );
    }
}
