use super::*;

fn info(mount: &str) -> Info {
    Info {
        pid: 7,
        node: "n0".into(),
        mount: mount.into(),
        store: "/nvme".into(),
        backing: "/scratch".into(),
        settings: 1,
    }
}

#[test]
fn the_name_depends_on_the_mount_point_alone_and_fits_a_socket() {
    let dir = Path::new("/run/forebay");
    let place = Place::of(dir, Path::new("/scratch"));
    assert_eq!(place, Place::of(dir, Path::new("/scratch")));
    assert_ne!(place, Place::of(dir, Path::new("/scratch2")));
    assert!(place.socket.as_os_str().len() < 108);
    assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
}

#[test]
fn publishing_replaces_what_a_dead_daemon_left() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::of(dir.path(), Path::new("/m"));
    drop(place.publish(&info("/m")).unwrap());
    let _listener = place.publish(&info("/m")).unwrap();
    let me = nix::unistd::geteuid().as_raw();
    assert_eq!(read_info(&place.info, me), Some(info("/m")));
    assert_eq!(read_info(&place.info, me + 1), None, "another user's word");
    place.retract(6).unwrap();
    assert_eq!(read_info(&place.info, me), Some(info("/m")), "another's");
    assert!(place.socket.exists());
    place.retract(7).unwrap();
    place.retract(7).unwrap();
    assert!(!place.socket.exists());
    assert_eq!(read_info(&place.info, me), None);
}

#[test]
fn a_directory_that_others_can_write_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(owner(dir.path()), Some(nix::unistd::geteuid().as_raw()));
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    assert_eq!(owner(dir.path()), None);
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/", &link).unwrap();
    assert_eq!(owner(&link), None);
}
