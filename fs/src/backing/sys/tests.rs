use super::*;
use std::os::fd::AsFd;

#[test]
fn links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("etc")).unwrap();
    let root = std::fs::File::open(dir.path()).unwrap();
    let open = |name: &CStr| open_beneath(root.as_fd(), name, libc::O_RDONLY, 0);

    assert!(open(c"file").is_ok());
    assert_eq!(open(c"link").unwrap_err().raw_os_error(), Some(libc::ELOOP));
    assert!(open(c"etc/passwd").is_err());
    assert!(open(c"../x").is_err());
    let link = open_path(root.as_fd(), c"link").unwrap();
    assert_eq!(stat(link.as_fd()).unwrap().kind(), libc::S_IFLNK);
    assert_eq!(readlink(link.as_fd()).unwrap(), b"file");
}

#[test]
fn a_path_descriptor_outlives_its_names() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), "x").unwrap();
    let root = std::fs::File::open(dir.path()).unwrap();
    let fd = open_path(root.as_fd(), c"a").unwrap();
    std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
    assert!(path_of(fd.as_fd()).unwrap().ends_with(b"/b"));
    std::fs::remove_file(dir.path().join("b")).unwrap();
    assert_eq!(stat(fd.as_fd()).unwrap().nlink, 0);
    assert!(reopen(fd.as_fd(), libc::O_RDWR).is_ok());
}
