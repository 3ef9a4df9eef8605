use super::*;
use std::os::unix::fs::PermissionsExt;

fn top(dir: &tempfile::TempDir) -> Arc<OwnedFd> {
    Arc::new(File::open(dir.path()).unwrap().into())
}

#[test]
fn files_are_made_found_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let top = top(&dir);
    let (plain, own) = (Place::new(top.clone()), Place::with_own(top.clone(), 3));
    for place in [&plain, &own] {
        assert_eq!(place.list().unwrap(), [""; 0]);
        place.remove("none").unwrap();
        let missing = place.open("none").unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let made = own.create("a", 0).unwrap();
    assert_eq!(made.metadata().unwrap().mode() & 0o7777, 0o600);
    assert!(dir.path().join(".forebay/subfiles/3/a").is_file());
    plain.create("b", 0).unwrap();
    // The directory "3" is not listed as a file.
    assert_eq!(plain.list().unwrap(), ["b"]);
    assert_eq!(own.list().unwrap(), ["a"]);
    let again = own.create("a", 0).unwrap_err();
    assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
    own.open("a").unwrap();
    own.remove("a").unwrap();
    assert_eq!(own.list().unwrap(), [""; 0]);
}

#[test]
fn a_name_does_not_lead_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let top = top(&dir);
    let place = Place::new(top.clone());
    place.create("a", 0).unwrap();
    let outside = dir.path().join(".forebay/outside");
    std::fs::write(&outside, "kept").unwrap();
    for name in ["../outside", "", ".", "..", "x/y", "nul\0"] {
        for refused in [
            place.create(name, 0).map(drop),
            place.open(name).map(drop),
            place.remove(name),
        ] {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
    let subfiles = dir.path().join(".forebay/subfiles");
    std::os::unix::fs::symlink(&outside, subfiles.join("link")).unwrap();
    std::fs::hard_link(subfiles.join("a"), subfiles.join("second")).unwrap();
    for name in ["link", "second", "a"] {
        place.open(name).unwrap_err();
    }
    assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
}

/// A user who can write to one of the directories could put another file in the place of Forebay's.
#[test]
fn a_directory_that_others_can_change_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let top = top(&dir);
    let place = Place::new(top.clone());
    place.create("a", 0).unwrap();
    let step = dir.path().join(".forebay");
    std::fs::set_permissions(&step, std::fs::Permissions::from_mode(0o777)).unwrap();
    let said = place.create("b", 0).unwrap_err().to_string();
    assert!(
        said.contains(".forebay") && said.contains("chmod"),
        "{said}"
    );
    std::fs::set_permissions(&step, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(place.list().unwrap(), ["a"]);
    place.create("b", 0).unwrap();
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&step, Some(65001), None).unwrap();
        let said = place.create("c", 0).unwrap_err().to_string();
        assert!(said.contains("owner 65001"), "{said}");
    }
}
