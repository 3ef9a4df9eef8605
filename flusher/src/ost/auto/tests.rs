use super::*;
use std::fs::File;
use std::os::fd::AsFd;

fn on_a_local_directory(kind: Kind, osts: &[&str]) -> Result<Option<&'static str>, String> {
    let dir = tempfile::tempdir().unwrap();
    let backing = File::open(dir.path()).unwrap();
    let osts: Vec<PathBuf> = osts.iter().map(PathBuf::from).collect();
    let found = provider(kind, backing.as_fd(), &osts).map_err(|e| e.to_string())?;
    Ok(found.map(|provider| provider.kind()))
}

#[test]
fn what_was_named_or_nothing() {
    assert_eq!(on_a_local_directory(Kind::Auto, &[]), Ok(None));
    let directories = Ok(Some("directories"));
    assert_eq!(on_a_local_directory(Kind::Auto, &["/a"]), directories);
    assert_eq!(
        on_a_local_directory(Kind::Directories, &["/a"]),
        directories
    );
    // A configuration file may name OSTs, and the command line may switch them off.
    assert_eq!(on_a_local_directory(Kind::None, &["/a"]), Ok(None));
}

/// The numbers are those of `statfs(2)` and of Lustre's headers. There was no real Lustre to check
/// them with.
#[test]
fn the_type_of_the_file_system_decides() {
    let (lustre, fuse, ext4) = (0x0bd0_0bd0, 0x6573_5546, 0xef53);
    assert_eq!(kind_of(lustre), Kind::Lustre);
    assert_eq!(kind_of(fuse), Kind::Moosefs, "if its client says so");
    assert_eq!(kind_of(ext4), Kind::None);
}

#[test]
fn what_makes_no_sense_is_one_sentence() {
    for (kind, osts, says) in [
        (Kind::Lustre, &["/a"][..], "leave out --ost"),
        (Kind::Moosefs, &["/a"], "leave out --ost"),
        (Kind::Directories, &[], "name each of them with --ost DIR"),
        (
            Kind::Lustre,
            &[],
            "is not on Lustre (its file system has the type 0x",
        ),
        (Kind::Moosefs, &[], "is not on a MooseFS client mount"),
    ] {
        let said = on_a_local_directory(kind, osts).unwrap_err();
        assert!(said.contains(says), "{kind}: {said}");
    }
}
