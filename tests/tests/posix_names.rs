//! Tests of names: directories, links, renames, special files.

use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

/// Runs a test on a mount of its own. Files that the test still holds open are closed before unmounting.
fn with(test: impl FnOnce(&mut TestMount)) {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    test(&mut mount);
    mount.finish();
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir)
        .expect("list")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

/// S1.11: the name is in the backing when create returns, and gone when unlink returns.
#[test]
fn names_are_in_the_backing_at_once() {
    with(|mount| {
        let file = open_rw(mount.path("f"));
        assert!(mount.canonical("f").exists());
        sys::write_all_at(&file, b"data", 0).expect("write");
        fs::create_dir(mount.path("d")).expect("mkdir");
        fs::rename(mount.path("f"), mount.path("d/g")).expect("rename");
        assert!(!mount.canonical("f").exists() && mount.canonical("d/g").exists());
        fs::remove_file(mount.path("d/g")).expect("unlink");
        assert!(!mount.canonical("d/g").exists());
        // It works the other way round as well: a file that another client makes shows here.
        put(mount.canonical("theirs"), b"from outside");
        assert_eq!(get(mount.path("theirs")), b"from outside");
    });
}

/// S1.13: mkdir, rmdir and their errors.
#[test]
fn directories() {
    with(|mount| {
        let links = fs::metadata(mount.mnt()).expect("stat").nlink();
        fs::create_dir(mount.path("d")).expect("mkdir");
        assert_eq!(fs::metadata(mount.mnt()).expect("stat").nlink(), links + 1);
        assert_eq!(
            errno(fs::create_dir(mount.path("d")), "mkdir twice"),
            libc::EEXIST
        );
        put(mount.path("d/f"), b"x");
        assert_eq!(
            errno(fs::remove_dir(mount.path("d")), "rmdir"),
            libc::ENOTEMPTY
        );
        assert_eq!(
            errno(fs::remove_dir(mount.path("d/f")), "rmdir a file"),
            libc::ENOTDIR
        );
        assert_eq!(
            errno(fs::remove_file(mount.path("d")), "unlink a directory"),
            libc::EISDIR
        );
        fs::remove_file(mount.path("d/f")).expect("unlink");
        fs::remove_dir(mount.path("d")).expect("rmdir");
        assert_eq!(errno(fs::read_dir(mount.path("d")), "list"), libc::ENOENT);
    });
}

/// S1.13: a directory is larger than one reply, and is listed while it changes.
#[test]
fn listing_a_large_directory() {
    with(|mount| {
        fs::create_dir(mount.path("d")).expect("mkdir");
        let mut want = BTreeSet::new();
        for i in 0..2500 {
            let name = format!("file-with-a-rather-long-name-{i:05}");
            File::create(mount.path("d").join(&name)).expect("create");
            want.insert(name);
        }
        assert_eq!(names(&mount.path("d")), want);
        // Entries that are neither created nor removed meanwhile appear exactly once.
        let mut seen = Vec::new();
        for (i, entry) in fs::read_dir(mount.path("d")).expect("list").enumerate() {
            seen.push(
                entry
                    .expect("entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned(),
            );
            if i == 500 {
                for i in 2000..2500 {
                    let name = format!("file-with-a-rather-long-name-{i:05}");
                    fs::remove_file(mount.path("d").join(&name)).expect("unlink");
                    want.remove(&name);
                }
            }
        }
        for name in &want {
            let times = seen.iter().filter(|seen| *seen == name).count();
            assert_eq!(times, 1, "{name} was listed {times} times");
        }
        assert_eq!(names(&mount.path("d")), want);
    });
}

/// S1.13: symbolic links work, followed and not.
#[test]
fn symbolic_links() {
    with(|mount| {
        put(mount.path("f"), b"content");
        symlink("f", mount.path("link")).expect("symlink");
        symlink("nowhere", mount.path("dangling")).expect("symlink");
        assert_eq!(
            fs::read_link(mount.path("link")).expect("readlink"),
            Path::new("f")
        );
        assert_eq!(get(mount.path("link")), b"content");
        assert_eq!(
            errno(File::open(mount.path("dangling")), "open"),
            libc::ENOENT
        );
        let meta = fs::symlink_metadata(mount.path("link")).expect("lstat");
        assert!(meta.is_symlink() && meta.len() == 1);
        let nofollow = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(mount.path("link"));
        assert_eq!(errno(nofollow, "open with O_NOFOLLOW"), libc::ELOOP);
        symlink("loop", mount.path("loop")).expect("symlink");
        assert_eq!(errno(File::open(mount.path("loop")), "open"), libc::ELOOP);
    });
}

/// S1.13, S1.1: two names lead to one file with one log.
#[test]
fn hard_links() {
    with(|mount| {
        put(mount.path("a"), b"first");
        fs::hard_link(mount.path("a"), mount.path("b")).expect("link");
        let (a, b) = (
            fs::metadata(mount.path("a")).expect("stat"),
            fs::metadata(mount.path("b")).expect("stat"),
        );
        assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
        put(mount.path("b"), b"second");
        assert_eq!(get(mount.path("a")), b"second");
        fs::remove_file(mount.path("a")).expect("unlink");
        assert_eq!(get(mount.path("b")), b"second");
        assert_eq!(fs::metadata(mount.path("b")).expect("stat").nlink(), 1);
        assert_eq!(
            errno(
                fs::hard_link(mount.mnt(), mount.path("d")),
                "link a directory"
            ),
            libc::EPERM
        );
        mount.drain();
        assert_eq!(get(mount.canonical("b")), b"second");
    });
}

/// S1.6: a rename works as such, into another directory, over a file and over a directory.
#[test]
fn rename() {
    with(|mount| {
        fs::create_dir(mount.path("d")).expect("mkdir");
        fs::create_dir(mount.path("empty")).expect("mkdir");
        put(mount.path("f"), b"f");
        fs::rename(mount.path("f"), mount.path("d/g")).expect("rename");
        assert_eq!(get(mount.path("d/g")), b"f");
        put(mount.path("h"), b"h");
        fs::rename(mount.path("d/g"), mount.path("h")).expect("rename over");
        assert_eq!(get(mount.path("h")), b"f");
        let e = errno(
            fs::rename(mount.path("h"), mount.path("d")),
            "file over directory",
        );
        assert_eq!(e, libc::EISDIR);
        let e = errno(
            fs::rename(mount.path("d"), mount.path("h")),
            "directory over file",
        );
        assert_eq!(e, libc::ENOTDIR);
        fs::rename(mount.path("d"), mount.path("empty")).expect("directory over empty directory");
        put(mount.path("empty/x"), b"x");
        fs::create_dir(mount.path("d")).expect("mkdir");
        let e = errno(
            fs::rename(mount.path("d"), mount.path("empty")),
            "over a full one",
        );
        assert!(e == libc::ENOTEMPTY || e == libc::EEXIST, "errno {e}");
        let e = errno(
            fs::rename(mount.path("d"), mount.path("d/inside")),
            "into itself",
        );
        assert_eq!(e, libc::EINVAL);
        mount.drain();
        assert_eq!(get(mount.canonical("h")), b"f");
    });
}

/// S1.6: the flags of renameat2 work with undrained data on both sides.
#[test]
fn rename_with_flags() {
    with(|mount| {
        put(mount.path("a"), vec![1; 10_000]);
        put(mount.path("b"), vec![2; 20_000]);
        let rename = |flags| sys::rename_flags(&mount.path("a"), &mount.path("b"), flags);
        assert_eq!(
            errno(rename(libc::RENAME_NOREPLACE), "noreplace"),
            libc::EEXIST
        );
        rename(libc::RENAME_EXCHANGE).expect("exchange");
        assert_same("a", &get(mount.path("a")), &[2; 20_000]);
        assert_same("b", &get(mount.path("b")), &[1; 10_000]);
        sys::rename_flags(&mount.path("a"), &mount.path("c"), libc::RENAME_NOREPLACE)
            .expect("noreplace");
        mount.drain();
        assert_same("canonical b", &get(mount.canonical("b")), &[1; 10_000]);
        assert_same("canonical c", &get(mount.canonical("c")), &[2; 20_000]);
    });
}

/// S1.6: a whiteout leaves what the backing leaves, and the data goes along.
#[test]
fn rename_with_whiteout() {
    with(|mount| {
        put(mount.path("a"), vec![1; 10_000]);
        let done = sys::rename_flags(&mount.path("a"), &mount.path("b"), libc::RENAME_WHITEOUT);
        done.expect("whiteout");
        let left = fs::symlink_metadata(mount.path("a")).expect("stat");
        assert!(left.file_type().is_char_device() && left.rdev() == 0);
        assert_same("b", &get(mount.path("b")), &[1; 10_000]);
    });
}

/// S1.6: a directory is renamed, with an open file below it, and the file is found by its new path.
#[test]
fn renaming_a_directory_keeps_its_files() {
    with(|mount| {
        fs::create_dir_all(mount.path("one/two")).expect("mkdir");
        let file = open_rw(mount.path("one/two/f"));
        sys::write_all_at(&file, &[1; 5000], 0).expect("write");
        fs::rename(mount.path("one"), mount.path("uno")).expect("rename");
        sys::write_all_at(&file, &[2; 5000], 5000).expect("write");
        let mut want = vec![1; 5000];
        want.resize(10_000, 2);
        assert_same("by the new path", &get(mount.path("uno/two/f")), &want);
        assert_eq!(
            errno(File::open(mount.path("one/two/f")), "open"),
            libc::ENOENT
        );
        mount.drain();
        assert_same("canonical", &get(mount.canonical("uno/two/f")), &want);
    });
}

/// S1.13: FIFOs, sockets and device nodes are made and listed as what they are.
#[test]
fn special_files() {
    with(|mount| {
        sys::mknod(&mount.path("fifo"), libc::S_IFIFO | 0o600, 0).expect("mkfifo");
        sys::mknod(
            &mount.path("null"),
            libc::S_IFCHR | 0o666,
            libc::makedev(1, 3),
        )
        .expect("mknod");
        sys::mknod(&mount.path("plain"), libc::S_IFREG | 0o600, 0).expect("mknod");
        let _socket = std::os::unix::net::UnixListener::bind(mount.path("sock")).expect("bind");
        let kind = |name: &str| {
            fs::symlink_metadata(mount.path(name))
                .expect("stat")
                .file_type()
        };
        assert!(kind("fifo").is_fifo());
        assert!(kind("null").is_char_device());
        assert!(kind("plain").is_file());
        assert!(kind("sock").is_socket());
        let meta = fs::metadata(mount.path("null")).expect("stat");
        assert_eq!(meta.rdev(), libc::makedev(1, 3));
        put(mount.path("plain"), b"works");
        assert_eq!(get(mount.path("plain")), b"works");
        // A pipe between two processes goes through the kernel, not through the daemon.
        let path = mount.path("fifo");
        let writer = std::thread::spawn(move || put(path, b"through the pipe"));
        assert_eq!(get(mount.path("fifo")), b"through the pipe");
        writer.join().expect("the writer ends");
    });
}

/// S1.15: O_EXCL decides between two creators.
#[test]
fn exclusive_create() {
    with(|mount| {
        let create = || {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(mount.path("f"))
        };
        create().expect("create");
        assert_eq!(
            create().expect_err("create again").kind(),
            ErrorKind::AlreadyExists
        );
    });
}

/// S1.15: O_TMPFILE is refused in a way that programs know how to handle.
#[test]
fn o_tmpfile_is_refused_cleanly() {
    with(|mount| {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .mode(0o600);
        let e = errno(options.open(mount.mnt()), "open with O_TMPFILE");
        assert_eq!(e, libc::EOPNOTSUPP);
        assert!(names(mount.mnt()).is_empty());
    });
}

/// S1.16: a name may have 255 bytes, and not 256.
#[test]
fn long_names() {
    with(|mount| {
        let name = "n".repeat(255);
        put(mount.path(&name), b"long");
        assert_eq!(get(mount.path(&name)), b"long");
        assert!(names(mount.mnt()).contains(&name));
        let e = errno(File::create(mount.path("n".repeat(256))), "create");
        assert_eq!(e, libc::ENAMETOOLONG);
        mount.drain();
        assert_eq!(get(mount.canonical(&name)), b"long");
    });
}

/// S1.13: names are bytes, not text.
#[test]
fn names_that_are_not_text() {
    use std::os::unix::ffi::OsStrExt;
    with(|mount| {
        let name = std::ffi::OsStr::from_bytes(b"\xff\xfe new\nline\x01");
        put(mount.path(name), b"odd");
        assert_eq!(get(mount.path(name)), b"odd");
        let listed: Vec<_> = fs::read_dir(mount.mnt())
            .expect("list")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        assert_eq!(listed, [name]);
        mount.drain();
        assert_eq!(get(mount.canonical(name)), b"odd");
    });
}

/// S5.2, S1.13: fsync of a directory works.
#[test]
fn fsync_of_a_directory() {
    with(|mount| {
        fs::create_dir(mount.path("d")).expect("mkdir");
        put(mount.path("d/f"), b"x");
        File::open(mount.path("d"))
            .expect("open")
            .sync_all()
            .expect("fsync");
    });
}

/// S1.20: every change fails with EROFS; undrained data of an earlier mount shows.
#[test]
fn read_only_mounts() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    fs::create_dir(mount.path("d")).expect("mkdir");
    put(mount.path("f"), vec![1; 50_000]);
    mount.umount_with(&["--keep"]);
    mount.arg("-oro");
    mount.start();
    assert_same("still served", &get(mount.path("f")), &[1; 50_000]);
    let path = mount.path("f");
    let refused = |what: &str, e: i32| assert_eq!(e, libc::EROFS, "{what}");
    let write = OpenOptions::new().write(true).open(&path);
    refused("write", errno(write, "open for writing"));
    refused("create", errno(File::create(mount.path("new")), "create"));
    refused("truncate", errno(sys::truncate(&path, 0), "truncate"));
    refused("unlink", errno(fs::remove_file(&path), "unlink"));
    refused("mkdir", errno(fs::create_dir(mount.path("e")), "mkdir"));
    refused("rmdir", errno(fs::remove_dir(mount.path("d")), "rmdir"));
    refused(
        "rename",
        errno(fs::rename(&path, mount.path("g")), "rename"),
    );
    refused("link", errno(fs::hard_link(&path, mount.path("g")), "link"));
    refused("symlink", errno(symlink("f", mount.path("g")), "symlink"));
    refused("utimensat", errno(sys::set_times(&path, 1, 1), "utimensat"));
    refused(
        "setxattr",
        errno(sys::set_xattr(&path, "user.a", b"1", 0), "setxattr"),
    );
    mount.finish();
}
