//! Names: directories, links, renames, special files.

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put};
use forebay_tests::sys::{self, errno};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

/// A mounted bay for one test; whatever the test still holds open is closed before unmounting.
fn with(test: impl FnOnce(&mut Bay)) {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    test(&mut bay);
    bay.finish();
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
    with(|bay| {
        let file = open_rw(bay.path("f"));
        assert!(bay.canonical("f").exists());
        sys::write_all_at(&file, b"data", 0).expect("write");
        fs::create_dir(bay.path("d")).expect("mkdir");
        fs::rename(bay.path("f"), bay.path("d/g")).expect("rename");
        assert!(!bay.canonical("f").exists() && bay.canonical("d/g").exists());
        fs::remove_file(bay.path("d/g")).expect("unlink");
        assert!(!bay.canonical("d/g").exists());
        // And the other way round: what another client makes shows here.
        put(bay.canonical("theirs"), b"from outside");
        assert_eq!(get(bay.path("theirs")), b"from outside");
    });
}

/// S1.13: mkdir, rmdir and their errors.
#[test]
fn directories() {
    with(|bay| {
        let links = fs::metadata(bay.mnt()).expect("stat").nlink();
        fs::create_dir(bay.path("d")).expect("mkdir");
        assert_eq!(fs::metadata(bay.mnt()).expect("stat").nlink(), links + 1);
        assert_eq!(
            errno(fs::create_dir(bay.path("d")), "mkdir twice"),
            libc::EEXIST
        );
        put(bay.path("d/f"), b"x");
        assert_eq!(
            errno(fs::remove_dir(bay.path("d")), "rmdir"),
            libc::ENOTEMPTY
        );
        assert_eq!(
            errno(fs::remove_dir(bay.path("d/f")), "rmdir a file"),
            libc::ENOTDIR
        );
        assert_eq!(
            errno(fs::remove_file(bay.path("d")), "unlink a directory"),
            libc::EISDIR
        );
        fs::remove_file(bay.path("d/f")).expect("unlink");
        fs::remove_dir(bay.path("d")).expect("rmdir");
        assert_eq!(errno(fs::read_dir(bay.path("d")), "list"), libc::ENOENT);
    });
}

/// S1.13: a directory larger than one reply, listed while it changes.
#[test]
fn listing_a_large_directory() {
    with(|bay| {
        fs::create_dir(bay.path("d")).expect("mkdir");
        let mut want = BTreeSet::new();
        for i in 0..2500 {
            let name = format!("file-with-a-rather-long-name-{i:05}");
            File::create(bay.path("d").join(&name)).expect("create");
            want.insert(name);
        }
        assert_eq!(names(&bay.path("d")), want);
        // Entries that are neither created nor removed meanwhile appear exactly once.
        let mut seen = Vec::new();
        for (i, entry) in fs::read_dir(bay.path("d")).expect("list").enumerate() {
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
                    fs::remove_file(bay.path("d").join(&name)).expect("unlink");
                    want.remove(&name);
                }
            }
        }
        for name in &want {
            let times = seen.iter().filter(|seen| *seen == name).count();
            assert_eq!(times, 1, "{name} was listed {times} times");
        }
        assert_eq!(names(&bay.path("d")), want);
    });
}

/// S1.13: symbolic links, followed and not.
#[test]
fn symbolic_links() {
    with(|bay| {
        put(bay.path("f"), b"content");
        symlink("f", bay.path("link")).expect("symlink");
        symlink("nowhere", bay.path("dangling")).expect("symlink");
        assert_eq!(
            fs::read_link(bay.path("link")).expect("readlink"),
            Path::new("f")
        );
        assert_eq!(get(bay.path("link")), b"content");
        assert_eq!(
            errno(File::open(bay.path("dangling")), "open"),
            libc::ENOENT
        );
        let meta = fs::symlink_metadata(bay.path("link")).expect("lstat");
        assert!(meta.is_symlink() && meta.len() == 1);
        let nofollow = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(bay.path("link"));
        assert_eq!(errno(nofollow, "open with O_NOFOLLOW"), libc::ELOOP);
        symlink("loop", bay.path("loop")).expect("symlink");
        assert_eq!(errno(File::open(bay.path("loop")), "open"), libc::ELOOP);
    });
}

/// S1.13, S1.1: two names, one file, one log.
#[test]
fn hard_links() {
    with(|bay| {
        put(bay.path("a"), b"first");
        fs::hard_link(bay.path("a"), bay.path("b")).expect("link");
        let (a, b) = (
            fs::metadata(bay.path("a")).expect("stat"),
            fs::metadata(bay.path("b")).expect("stat"),
        );
        assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
        put(bay.path("b"), b"second");
        assert_eq!(get(bay.path("a")), b"second");
        fs::remove_file(bay.path("a")).expect("unlink");
        assert_eq!(get(bay.path("b")), b"second");
        assert_eq!(fs::metadata(bay.path("b")).expect("stat").nlink(), 1);
        assert_eq!(
            errno(fs::hard_link(bay.mnt(), bay.path("d")), "link a directory"),
            libc::EPERM
        );
        bay.drain();
        assert_eq!(get(bay.canonical("b")), b"second");
    });
}

/// S1.6: plain, into another directory, over a file, over a directory.
#[test]
fn rename() {
    with(|bay| {
        fs::create_dir(bay.path("d")).expect("mkdir");
        fs::create_dir(bay.path("empty")).expect("mkdir");
        put(bay.path("f"), b"f");
        fs::rename(bay.path("f"), bay.path("d/g")).expect("rename");
        assert_eq!(get(bay.path("d/g")), b"f");
        put(bay.path("h"), b"h");
        fs::rename(bay.path("d/g"), bay.path("h")).expect("rename over");
        assert_eq!(get(bay.path("h")), b"f");
        let e = errno(
            fs::rename(bay.path("h"), bay.path("d")),
            "file over directory",
        );
        assert_eq!(e, libc::EISDIR);
        let e = errno(
            fs::rename(bay.path("d"), bay.path("h")),
            "directory over file",
        );
        assert_eq!(e, libc::ENOTDIR);
        fs::rename(bay.path("d"), bay.path("empty")).expect("directory over empty directory");
        put(bay.path("empty/x"), b"x");
        fs::create_dir(bay.path("d")).expect("mkdir");
        let e = errno(
            fs::rename(bay.path("d"), bay.path("empty")),
            "over a full one",
        );
        assert!(e == libc::ENOTEMPTY || e == libc::EEXIST, "errno {e}");
        let e = errno(
            fs::rename(bay.path("d"), bay.path("d/inside")),
            "into itself",
        );
        assert_eq!(e, libc::EINVAL);
        bay.drain();
        assert_eq!(get(bay.canonical("h")), b"f");
    });
}

/// S1.6: the flags of renameat2, with undrained data on both sides.
#[test]
fn rename_with_flags() {
    with(|bay| {
        put(bay.path("a"), vec![1; 10_000]);
        put(bay.path("b"), vec![2; 20_000]);
        let rename = |flags| sys::rename_flags(&bay.path("a"), &bay.path("b"), flags);
        assert_eq!(
            errno(rename(libc::RENAME_NOREPLACE), "noreplace"),
            libc::EEXIST
        );
        rename(libc::RENAME_EXCHANGE).expect("exchange");
        assert_same("a", &get(bay.path("a")), &[2; 20_000]);
        assert_same("b", &get(bay.path("b")), &[1; 10_000]);
        sys::rename_flags(&bay.path("a"), &bay.path("c"), libc::RENAME_NOREPLACE)
            .expect("noreplace");
        bay.drain();
        assert_same("canonical b", &get(bay.canonical("b")), &[1; 10_000]);
        assert_same("canonical c", &get(bay.canonical("c")), &[2; 20_000]);
    });
}

/// S1.6: a whiteout leaves what the backing leaves, and the data goes along.
#[test]
fn rename_with_whiteout() {
    with(|bay| {
        put(bay.path("a"), vec![1; 10_000]);
        let done = sys::rename_flags(&bay.path("a"), &bay.path("b"), libc::RENAME_WHITEOUT);
        done.expect("whiteout");
        let left = fs::symlink_metadata(bay.path("a")).expect("stat");
        assert!(left.file_type().is_char_device() && left.rdev() == 0);
        assert_same("b", &get(bay.path("b")), &[1; 10_000]);
    });
}

/// S1.6: a directory renamed under open files and later paths.
#[test]
fn renaming_a_directory_keeps_its_files() {
    with(|bay| {
        fs::create_dir_all(bay.path("one/two")).expect("mkdir");
        let file = open_rw(bay.path("one/two/f"));
        sys::write_all_at(&file, &[1; 5000], 0).expect("write");
        fs::rename(bay.path("one"), bay.path("uno")).expect("rename");
        sys::write_all_at(&file, &[2; 5000], 5000).expect("write");
        let mut want = vec![1; 5000];
        want.resize(10_000, 2);
        assert_same("by the new path", &get(bay.path("uno/two/f")), &want);
        assert_eq!(
            errno(File::open(bay.path("one/two/f")), "open"),
            libc::ENOENT
        );
        bay.drain();
        assert_same("canonical", &get(bay.canonical("uno/two/f")), &want);
    });
}

/// S1.13: FIFOs, sockets and device nodes are made and listed as what they are.
#[test]
fn special_files() {
    with(|bay| {
        sys::mknod(&bay.path("fifo"), libc::S_IFIFO | 0o600, 0).expect("mkfifo");
        sys::mknod(
            &bay.path("null"),
            libc::S_IFCHR | 0o666,
            libc::makedev(1, 3),
        )
        .expect("mknod");
        sys::mknod(&bay.path("plain"), libc::S_IFREG | 0o600, 0).expect("mknod");
        let _socket = std::os::unix::net::UnixListener::bind(bay.path("sock")).expect("bind");
        let kind = |name: &str| {
            fs::symlink_metadata(bay.path(name))
                .expect("stat")
                .file_type()
        };
        assert!(kind("fifo").is_fifo());
        assert!(kind("null").is_char_device());
        assert!(kind("plain").is_file());
        assert!(kind("sock").is_socket());
        let meta = fs::metadata(bay.path("null")).expect("stat");
        assert_eq!(meta.rdev(), libc::makedev(1, 3));
        put(bay.path("plain"), b"works");
        assert_eq!(get(bay.path("plain")), b"works");
        // A pipe between two processes goes through the kernel, not through the daemon.
        let path = bay.path("fifo");
        let writer = std::thread::spawn(move || put(path, b"through the pipe"));
        assert_eq!(get(bay.path("fifo")), b"through the pipe");
        writer.join().expect("the writer ends");
    });
}

/// S1.15: O_EXCL decides between two creators.
#[test]
fn exclusive_create() {
    with(|bay| {
        let create = || {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(bay.path("f"))
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
    with(|bay| {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .mode(0o600);
        let e = errno(options.open(bay.mnt()), "open with O_TMPFILE");
        assert_eq!(e, libc::EOPNOTSUPP);
        assert!(names(bay.mnt()).is_empty());
    });
}

/// S1.16: 255 bytes are a name, 256 are not.
#[test]
fn long_names() {
    with(|bay| {
        let name = "n".repeat(255);
        put(bay.path(&name), b"long");
        assert_eq!(get(bay.path(&name)), b"long");
        assert!(names(bay.mnt()).contains(&name));
        let e = errno(File::create(bay.path("n".repeat(256))), "create");
        assert_eq!(e, libc::ENAMETOOLONG);
        bay.drain();
        assert_eq!(get(bay.canonical(&name)), b"long");
    });
}

/// S1.13: names are bytes, not text.
#[test]
fn names_that_are_not_text() {
    use std::os::unix::ffi::OsStrExt;
    with(|bay| {
        let name = std::ffi::OsStr::from_bytes(b"\xff\xfe new\nline\x01");
        put(bay.path(name), b"odd");
        assert_eq!(get(bay.path(name)), b"odd");
        let listed: Vec<_> = fs::read_dir(bay.mnt())
            .expect("list")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        assert_eq!(listed, [name]);
        bay.drain();
        assert_eq!(get(bay.canonical(name)), b"odd");
    });
}

/// S5.2, S1.13: fsync of a directory.
#[test]
fn fsync_of_a_directory() {
    with(|bay| {
        fs::create_dir(bay.path("d")).expect("mkdir");
        put(bay.path("d/f"), b"x");
        File::open(bay.path("d"))
            .expect("open")
            .sync_all()
            .expect("fsync");
    });
}

/// S1.20: every change is EROFS; undrained data of an earlier mount shows.
#[test]
fn read_only_mounts() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    fs::create_dir(bay.path("d")).expect("mkdir");
    put(bay.path("f"), vec![1; 50_000]);
    bay.umount_with(&["--keep"]);
    bay.arg("-oro");
    bay.start();
    assert_same("still served", &get(bay.path("f")), &[1; 50_000]);
    let path = bay.path("f");
    let refused = |what: &str, e: i32| assert_eq!(e, libc::EROFS, "{what}");
    let write = OpenOptions::new().write(true).open(&path);
    refused("write", errno(write, "open for writing"));
    refused("create", errno(File::create(bay.path("new")), "create"));
    refused("truncate", errno(sys::truncate(&path, 0), "truncate"));
    refused("unlink", errno(fs::remove_file(&path), "unlink"));
    refused("mkdir", errno(fs::create_dir(bay.path("e")), "mkdir"));
    refused("rmdir", errno(fs::remove_dir(bay.path("d")), "rmdir"));
    refused("rename", errno(fs::rename(&path, bay.path("g")), "rename"));
    refused("link", errno(fs::hard_link(&path, bay.path("g")), "link"));
    refused("symlink", errno(symlink("f", bay.path("g")), "symlink"));
    refused("utimensat", errno(sys::set_times(&path, 1, 1), "utimensat"));
    refused(
        "setxattr",
        errno(sys::set_xattr(&path, "user.a", b"1", 0), "setxattr"),
    );
    bay.finish();
}
