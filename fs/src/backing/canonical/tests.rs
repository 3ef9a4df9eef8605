use super::*;
use layout_index::Timestamp;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

struct Tree {
    dir: tempfile::TempDir,
    backing: Backing,
}

fn tree() -> Tree {
    let dir = tempfile::tempdir().unwrap();
    let backing = Backing::open(dir.path()).unwrap();
    Tree { dir, backing }
}

impl Tree {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn make(&self, name: &str, content: &str) -> (FileId, Intro) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        self.describe(&path, name)
    }

    fn describe(&self, path: &Path, name: &str) -> (FileId, Intro) {
        let file = std::fs::File::open(path).unwrap();
        let it = self.backing.identify(file.as_fd()).unwrap();
        let intro = Intro {
            size: it.stat.size,
            mtime: Timestamp(it.stat.mtime.as_nanos()),
            uid: it.stat.uid,
            gid: it.stat.gid,
            handle: identity::handle(file.as_fd()),
            path: name.into(),
        };
        (it.id, intro)
    }
}

fn content(file: Option<Arc<dyn DiskFile>>) -> Option<String> {
    let file = file?;
    let mut buf = [0u8; 32];
    let n = file.read_at(&mut buf, 0).unwrap();
    Some(String::from_utf8_lossy(&buf[..n]).into_owned())
}

#[test]
fn a_file_is_found_by_handle_path_and_scan() {
    let t = tree();
    let (id, mut intro) = t.make("d/e/file", "hello");
    let find = |intro: &Intro| content(t.backing.open_canonical(id, intro).unwrap());
    assert_eq!(find(&intro).as_deref(), Some("hello"));
    intro.handle.clear();
    assert_eq!(find(&intro).as_deref(), Some("hello"));
    std::fs::rename(t.path("d/e/file"), t.path("moved")).unwrap();
    assert_eq!(find(&intro).as_deref(), Some("hello"));
}

#[test]
fn another_file_at_the_path_is_not_it() {
    let t = tree();
    let (id, mut intro) = t.make("file", "old");
    std::fs::rename(t.path("file"), t.path("elsewhere")).unwrap();
    t.make("file", "new");
    intro.handle.clear();
    let found = t.backing.open_canonical(id, &intro).unwrap();
    assert_eq!(content(found).as_deref(), Some("old"));
}

#[test]
fn a_removed_file_is_gone() {
    let t = tree();
    let (id, mut intro) = t.make("file", "x");
    std::fs::remove_file(t.path("file")).unwrap();
    assert!(t.backing.open_canonical(id, &intro).unwrap().is_none());
    intro.handle.clear();
    assert!(t.backing.open_canonical(id, &intro).unwrap().is_none());
}

/// The inode of a removed file may be on its way to become another file, which Linux reports as a lack of memory.
/// The removed file must still be reported as gone, and the file that is being made must not be affected.
#[test]
fn a_removed_file_is_gone_while_others_are_made() {
    let t = tree();
    let gone: Vec<_> = (0..8).map(|i| t.make(&format!("gone{i}"), "x")).collect();
    for i in 0..gone.len() {
        std::fs::remove_file(t.path(&format!("gone{i}"))).unwrap();
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                for i in 0..gone.len() {
                    let path = t.path(&format!("new{i}"));
                    std::fs::write(&path, "y").unwrap();
                    std::fs::remove_file(&path).unwrap();
                }
            }
        });
        let looked = std::panic::catch_unwind(|| {
            for (id, intro) in gone.iter().cycle().take(20_000) {
                assert!(t.backing.find(*id, intro).unwrap().is_none());
            }
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        looked.unwrap_or_else(|e| std::panic::resume_unwind(e));
    });
}

/// Changes the generation in the handle, so that it leads to no file.
fn make_stale(intro: &mut Intro) {
    let last = intro.handle.last_mut().expect("the backing has handles");
    *last ^= 0x5a;
}

#[test]
fn a_stale_handle_proves_nothing_where_others_have_a_say() {
    for handles in [Handles::Remote, Handles::Volatile] {
        let mut t = tree();
        t.backing.handles = handles;
        let (id, mut intro) = t.make("d/file", "alive");
        make_stale(&mut intro);
        let find = |intro: &Intro| content(t.backing.open_canonical(id, intro).unwrap());
        assert_eq!(find(&intro).as_deref(), Some("alive"));
        std::fs::rename(t.path("d/file"), t.path("moved")).unwrap();
        assert_eq!(find(&intro).as_deref(), Some("alive"));
        std::fs::remove_file(t.path("moved")).unwrap();
        assert_eq!(find(&intro), None);
    }
}

#[test]
fn a_stale_handle_does_not_outweigh_the_path() {
    let t = tree();
    let (id, mut intro) = t.make("file", "alive");
    make_stale(&mut intro);
    let found = t.backing.open_canonical(id, &intro).unwrap();
    assert_eq!(content(found).as_deref(), Some("alive"));
}

#[test]
fn a_handle_that_leads_elsewhere_is_an_error() {
    let t = tree();
    let (id, mut intro) = t.make("file", "x");
    let (_, other) = t.make("other", "y");
    std::fs::remove_file(t.path("file")).unwrap();
    intro.handle = other.handle;
    let e = t.backing.open_canonical(id, &intro).unwrap_err();
    assert!(e.to_string().contains("another file"), "{e}");
}

#[test]
fn a_directory_that_cannot_be_read_is_an_error() {
    let t = tree();
    let (id, mut intro) = t.make("d/file", "x");
    std::fs::remove_file(t.path("d/file")).unwrap();
    intro.handle.clear();
    let user = Creds::owner(4001, 4001);
    std::fs::set_permissions(t.path("d"), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::set_permissions(t.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    if !creds::switches() {
        return;
    }
    let _as_user = user.enter().unwrap();
    assert!(t.backing.open_canonical(id, &intro).is_err());
}

#[test]
fn a_path_through_a_link_is_not_taken() {
    let t = tree();
    let (id, mut intro) = t.make("real/file", "x");
    std::os::unix::fs::symlink("real", t.path("link")).unwrap();
    intro.path = b"link/file".to_vec();
    let found = |path: &[u8]| {
        let found = t.backing.by_path(id, path).unwrap();
        matches!(found, ByPath::Found(_))
    };
    assert!(found(b"real/file"));
    assert!(!found(&intro.path));
    assert!(!found(b"../x"));
    assert!(!found(b"real/../real/file"));
}

#[test]
fn fifos_are_never_opened() {
    let t = tree();
    let path = t.path("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let fd = sys::open_path(t.backing.root(), c"fifo").unwrap();
    let it = t.backing.identify(fd.as_fd()).unwrap();
    let mut intro = Intro {
        size: 0,
        mtime: Timestamp(0),
        uid: 0,
        gid: 0,
        handle: identity::handle(fd.as_fd()),
        path: b"fifo".to_vec(),
    };
    // An open of the FIFO would block for ever.
    assert!(t.backing.open_canonical(it.id, &intro).is_err());
    intro.handle.clear();
    assert!(t.backing.open_canonical(it.id, &intro).unwrap().is_none());
    assert!(open_as_owner(fd.as_fd()).is_err());
}

#[test]
fn the_owner_writes_even_a_read_only_file() {
    let t = tree();
    let (id, intro) = t.make("file", "hello");
    std::fs::set_permissions(t.path("file"), PermissionsExt::from_mode(0o400)).unwrap();
    if !creds::switches() {
        return;
    }
    std::fs::set_permissions(t.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(t.path("file"), Some(1234), Some(1234)).unwrap();
    let file = t.backing.open_canonical(id, &intro).unwrap().unwrap();
    file.write_at(&[IoSlice::new(b"J")], 0).unwrap();
    file.set_mtime(5_000_000_000).unwrap();
    assert_eq!(std::fs::read(t.path("file")).unwrap(), b"Jello");
}

#[test]
fn the_drain_keeps_setuid_and_the_caller_does_not() {
    if !creds::switches() {
        return;
    }
    let t = tree();
    std::fs::set_permissions(t.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (id, intro) = t.make("file", "hello");
    let path = t.path("file");
    let suid = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o4000 != 0;
    std::os::unix::fs::chown(&path, Some(1234), Some(1234)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
    let drain = t.backing.open_canonical(id, &intro).unwrap().unwrap();
    drain.write_at(&[IoSlice::new(b"x")], 0).unwrap();
    assert!(suid());
    let fd = std::fs::File::options().write(true).open(&path).unwrap();
    let caller = AsUser::caller(fd.into(), Creds::owner(1234, 1234));
    caller.write_at(&[IoSlice::new(b"x")], 0).unwrap();
    assert!(!suid());
}
