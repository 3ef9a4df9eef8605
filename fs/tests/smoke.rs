//! One real mount, as far as a single process can test it. The full suites are in the tests crate.

use forebay_fs::{Backing, Descriptors, MountOptions, Overlay, OverlayOptions, Requests, mount};
use layout_index::{RealDisk, SpaceOptions, Store, StoreOptions};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Fixture {
    overlay: Arc<Overlay>,
    mounted: Option<forebay_fs::Mounted>,
    dir: PathBuf,
    below: PathBuf,
    _tmp: tempfile::TempDir,
}

fn fixture(over_itself: bool) -> Fixture {
    let tmp = tempfile::tempdir().unwrap();
    fs::set_permissions(tmp.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let below = tmp.path().join("backing");
    fs::create_dir(&below).unwrap();
    let dir = if over_itself {
        below.clone()
    } else {
        let dir = tmp.path().join("mnt");
        fs::create_dir(&dir).unwrap();
        dir
    };
    let options = StoreOptions {
        dir: tmp.path().join("store"),
        node: "smoke".into(),
        backing: below.clone(),
        index_memory: 16 << 20,
        space: SpaceOptions {
            capacity: Some(256 << 20),
            ..SpaceOptions::default()
        },
    };
    let (store, _) = Store::open(options, Arc::new(RealDisk)).unwrap();
    let below_mount = Backing::open(&below).unwrap();
    let overlay = Overlay::new(OverlayOptions {
        descriptors: Descriptors::prepare(&below_mount).unwrap(),
        backing: below_mount,
        store,
        policies: Default::default(),
        ttl: Duration::from_secs(1),
        placement: None,
        others: None,
        shared_locks: true,
    });
    let requests = Requests::new(overlay.clone());
    let mounted = mount(requests, &dir, &MountOptions::default(), None)
        .unwrap_or_else(|e| panic!("cannot mount here ({e}); `make test-deps` installs fuse3"));
    Fixture {
        overlay,
        mounted: Some(mounted),
        dir,
        below,
        _tmp: tmp,
    }
}

impl Fixture {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            mounted.unmounter().unmount(true).unwrap();
            mounted.wait().unwrap();
        }
    }
}

fn rw(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

#[test]
fn bytes_names_and_attributes() {
    let f = fixture(false);
    let path = f.path("file");
    fs::write(&path, "hello world").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello world");
    assert_eq!(fs::metadata(&path).unwrap().len(), 11);
    // The data is absorbed: the backing has the name, the log has the bytes.
    assert_eq!(fs::metadata(f.below.join("file")).unwrap().len(), 0);

    let mut file = rw(&path);
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b"!").unwrap();
    file.sync_all().unwrap();
    file.set_len(5).unwrap();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
    let mut append = File::options().append(true).open(&path).unwrap();
    append.write_all(b"+more").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello+more");

    fs::create_dir_all(f.path("a/b/c")).unwrap();
    fs::rename(&path, f.path("a/b/c/file")).unwrap();
    assert_eq!(fs::read(f.path("a/b/c/file")).unwrap(), b"hello+more");
    fs::hard_link(f.path("a/b/c/file"), f.path("hard")).unwrap();
    assert_eq!(fs::metadata(f.path("hard")).unwrap().nlink(), 2);
    std::os::unix::fs::symlink("hard", f.path("soft")).unwrap();
    assert_eq!(fs::read(f.path("soft")).unwrap(), b"hello+more");
    let mut names: Vec<_> = fs::read_dir(&f.dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a", "hard", "soft"]);
    fs::remove_dir_all(f.path("a")).unwrap();
    fs::remove_file(f.path("hard")).unwrap();
    let e = File::options()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(&f.dir)
        .unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EOPNOTSUPP));
    let e = fs::create_dir(f.path(".forebay")).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_mount_over_its_own_backing() {
    let f = fixture(true);
    fs::write(f.path("x"), "over itself").unwrap();
    assert_eq!(fs::read(f.path("x")).unwrap(), b"over itself");
    let id = f.overlay.store().dirty_files()[0].id();
    assert_eq!(f.overlay.path_of(id), Some(PathBuf::from("x")));
}

#[test]
fn threads_write_one_file_at_once() {
    let f = fixture(false);
    const BLOCK: usize = 47_008;
    let path = f.path("shared");
    rw(&path);
    std::thread::scope(|s| {
        for rank in 0..4usize {
            let path = &path;
            s.spawn(move || {
                let file = rw(path);
                for i in 0..64 {
                    let at = ((i * 4 + rank) * BLOCK) as u64;
                    file.write_all_at(&vec![rank as u8 + 1; BLOCK], at).unwrap();
                }
            });
        }
    });
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 256 * BLOCK);
    for (i, block) in bytes.chunks(BLOCK).enumerate() {
        assert!(block.iter().all(|b| *b as usize == i % 4 + 1), "block {i}");
    }
}

#[test]
fn mapped_memory_is_the_file() {
    let f = fixture(false);
    let file = rw(&f.path("map"));
    file.write_all_at(&[b'a'; 8192], 0).unwrap();
    // SAFETY: a new mapping of a file that exists as long as the mapping is used below.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(&file),
            0,
        )
    };
    assert_ne!(map, libc::MAP_FAILED);
    // SAFETY: the mapping is 8192 bytes long and nothing else refers to it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), 8192) };
    assert_eq!(bytes[5000], b'a');
    bytes[5000] = b'b';
    // SAFETY: the range is that of the mapping.
    assert_eq!(unsafe { libc::msync(map, 8192, libc::MS_SYNC) }, 0);
    let mut one = [0];
    file.read_exact_at(&mut one, 5000).unwrap();
    assert_eq!(one, *b"b");
    file.write_all_at(b"c", 5001).unwrap();
    // SAFETY: as above; a volatile read, because the file has changed without the compiler's knowledge.
    assert_eq!(unsafe { map.cast::<u8>().add(5001).read_volatile() }, b'c');
    // SAFETY: mapped above, and not used after this.
    assert_eq!(unsafe { libc::munmap(map, 8192) }, 0);
}

#[test]
fn clean_files_pass_through_and_stay_coherent() {
    let f = fixture(false);
    fs::write(f.below.join("clean"), vec![b'x'; 1 << 20]).unwrap();
    let reader = File::open(f.path("clean")).unwrap();
    let mut buf = vec![0; 1 << 20];
    reader.read_exact_at(&mut buf, 0).unwrap();
    assert!(buf.iter().all(|b| *b == b'x'));
    let writer = rw(&f.path("clean"));
    writer.write_all_at(b"yy", 10).unwrap();
    // SAFETY: takes nothing and returns a number.
    // Only root can use passthrough, and not on every file system.
    if unsafe { libc::geteuid() } == 0 {
        let who = f.overlay.who_is_open();
        assert_eq!(who.len(), 2);
        assert!(who.iter().all(|w| w.passthrough), "{who:?}");
    }
    reader.read_exact_at(&mut buf[..2], 10).unwrap();
    assert_eq!(&buf[..2], b"yy");
    drop((reader, writer));
    // A close does not wait for the release.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !f.overlay.who_is_open().is_empty() {
        assert!(Instant::now() < deadline, "closed handles stay open");
        std::thread::yield_now();
    }
    let writer = rw(&f.path("clean"));
    writer.write_all_at(b"zz", 10).unwrap();
    let reader = File::open(f.path("clean")).unwrap();
    reader.read_exact_at(&mut buf[..3], 9).unwrap();
    assert_eq!(&buf[..3], b"xzz");
}

/// A release may come late, and a writer waits a moment for it. Here it is late each time, because the reader
/// is closed while the writer is being opened.
#[test]
fn a_writer_after_a_reader_is_absorbed() {
    let f = fixture(false);
    fs::write(f.below.join("f"), "clean").unwrap();
    // All 50 are direct on an idle machine. On a busy machine the release comes too late now and then, but a
    // writer that does not wait for it never gets a direct handle.
    let mut best = 0;
    for _ in 0..5 {
        best = best.max(read_then_write(&f));
        if best >= 15 {
            return;
        }
    }
    panic!("{best} of 50");
}

/// Opens 50 writers while a reader is being closed, and returns how many get a direct handle.
fn read_then_write(f: &Fixture) -> usize {
    let mut direct = 0;
    for _ in 0..50 {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !f.overlay.who_is_open().is_empty() {
            assert!(Instant::now() < deadline, "closed handles stay open");
            std::thread::yield_now();
        }
        let mut reader = File::open(f.path("f")).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let writer = std::thread::scope(|s| {
            s.spawn(move || {
                std::thread::sleep(Duration::from_millis(2));
                drop(reader);
            });
            rw(&f.path("f"))
        });
        let who = f.overlay.who_is_open();
        direct += usize::from(who.iter().all(|w| !w.writable || !w.passthrough));
        drop(writer);
    }
    direct
}

#[test]
fn the_kernel_lets_idle_files_go() {
    let f = fixture(false);
    f.overlay.limit_descriptors(400);
    for dir in ["a", "b"] {
        fs::create_dir(f.below.join(dir)).unwrap();
        for i in 0..600 {
            fs::write(f.below.join(format!("{dir}/{i}")), "").unwrap();
        }
    }
    let kept = rw(&f.path("a/0"));
    kept.write_all_at(b"kept", 0).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    for dir in ["a", "b"] {
        for i in 0..600 {
            let path = f.path(&format!("{dir}/{i}"));
            loop {
                match fs::metadata(&path) {
                    Ok(_) => break,
                    Err(e) if e.raw_os_error() == Some(libc::ENFILE) => {}
                    Err(e) => panic!("{}: {e}", path.display()),
                }
                assert!(Instant::now() < deadline, "no file is let go of");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(f.overlay.known_inodes() <= 200);
        }
    }
    assert_eq!(fs::read(f.path("a/0")).unwrap(), b"kept");
}

#[test]
fn an_open_file_makes_the_mount_busy() {
    let f = fixture(false);
    let file = rw(&f.path("open"));
    let unmounter = f.mounted.as_ref().unwrap().unmounter();
    let e = unmounter.unmount(false).unwrap_err();
    assert!(matches!(e, forebay_fs::UnmountError::Busy(_)), "{e}");
    assert_eq!(f.overlay.who_is_open().len(), 1);
    drop(file);
}

/// Runs a line of shell as the user `uid`.
fn sh(uid: u32, f: &Fixture, line: &str) -> (bool, String) {
    use std::os::unix::process::CommandExt;
    let out = std::process::Command::new("sh")
        .args(["-c", line])
        .current_dir(&f.dir)
        .uid(uid)
        .gid(uid)
        .output()
        .unwrap();
    let said = [out.stdout, out.stderr].concat();
    (
        out.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

#[test]
fn users_are_kept_apart() {
    const ALICE: u32 = 4001;
    const BOB: u32 = 4002;
    // SAFETY: takes nothing and returns a number.
    let me = unsafe { libc::geteuid() };
    assert_eq!(me, 0, "run as root: this test acts as two users");
    let f = fixture(false);
    let ok = |uid, line: &str| {
        let (ok, said) = sh(uid, &f, line);
        assert!(ok, "{line}: {said}");
        said
    };
    let refused = |uid, line: &str| {
        let (ok, said) = sh(uid, &f, line);
        assert!(!ok, "{line} was allowed: {said}");
    };
    fs::create_dir(f.path("tmp")).unwrap();
    fs::set_permissions(f.path("tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
    ok(ALICE, "umask 077; echo secret > tmp/a; echo shared > tmp/s");
    ok(ALICE, "chmod 666 tmp/s; test \"$(stat -c %a tmp/a)\" = 600");
    refused(BOB, "cat tmp/a");
    refused(BOB, "echo x > tmp/a");
    refused(BOB, "rm -f tmp/a; test ! -e tmp/a");
    refused(BOB, "mv tmp/a tmp/b");
    refused(BOB, "chmod 777 tmp/a");
    ok(BOB, "cat tmp/s; echo more >> tmp/s");
    assert_eq!(ok(ALICE, "cat tmp/a tmp/s"), "secret\nshared\nmore\n");

    // Setuid is cleared by a write, absorbed or passed through, and by a truncation.
    let setuid = || {
        ok(ALICE, "chmod 4777 tmp/s");
        assert_eq!(ok(BOB, "stat -c %a tmp/s"), "4777\n");
    };
    setuid();
    ok(BOB, "echo x >> tmp/s");
    assert_eq!(ok(BOB, "stat -c %a tmp/s"), "777\n");
    setuid();
    ok(BOB, ": > tmp/s");
    assert_eq!(ok(BOB, "stat -c %a tmp/s"), "777\n");
    setuid();
    ok(BOB, "truncate -s 100 tmp/s");
    assert_eq!(ok(BOB, "stat -c %a tmp/s"), "777\n");
    fs::write(f.below.join("tmp/clean"), "clean").unwrap();
    std::os::unix::fs::chown(f.below.join("tmp/clean"), Some(ALICE), Some(ALICE)).unwrap();
    fs::set_permissions(f.below.join("tmp/clean"), PermissionsExt::from_mode(0o4777)).unwrap();
    let reader = File::open(f.path("tmp/clean")).unwrap();
    ok(BOB, "echo x >> tmp/clean");
    assert_eq!(ok(BOB, "stat -c %a tmp/clean"), "777\n");
    drop(reader);

    // Names can be listed without the right to search, and programs run without the right to read.
    fs::create_dir(f.path("list")).unwrap();
    fs::write(f.path("list/entry"), "").unwrap();
    fs::set_permissions(f.path("list"), PermissionsExt::from_mode(0o744)).unwrap();
    assert_eq!(ok(BOB, "ls list 2>/dev/null || true"), "entry\n");
    refused(BOB, "cat list/entry");
    fs::copy("/bin/true", f.path("run")).unwrap();
    fs::set_permissions(f.path("run"), PermissionsExt::from_mode(0o711)).unwrap();
    ok(BOB, "./run");
}

#[test]
fn odd_requests_get_clear_answers() {
    let f = fixture(false);
    let file = rw(&f.path("f"));
    file.write_all_at(b"x", 1 << 33).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 33) + 1);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: an ioctl that no file system knows; it takes no argument.
    let rc = unsafe { libc::ioctl(fd, 0xdead) };
    let e = std::io::Error::last_os_error();
    assert_eq!((rc, e.raw_os_error()), (-1, Some(libc::ENOTTY)));
    // SAFETY: plain numbers.
    let at = unsafe { libc::lseek(fd, 0, libc::SEEK_DATA) };
    assert_eq!(at, 1 << 33);
    fs::write(f.path(&"n".repeat(255)), "long").unwrap();
    let e = fs::write(f.path(&"n".repeat(256)), "").unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::ENAMETOOLONG));
    let sync = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DSYNC)
        .open(f.path("sync"))
        .unwrap();
    sync.write_all_at(b"durable", 0).unwrap();
    // A file without a name can still be used.
    let ghost = rw(&f.path("ghost"));
    fs::remove_file(f.path("ghost")).unwrap();
    ghost.write_all_at(b"boo", 0).unwrap();
    let mut buf = [0; 3];
    ghost.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"boo");
    assert_eq!(ghost.metadata().unwrap().nlink(), 0);
}
