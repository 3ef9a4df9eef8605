use super::*;
use std::cell::Cell;
use std::os::fd::BorrowedFd;

/// Counts the files that would be registered with the kernel.
#[derive(Default)]
struct Kernel {
    registered: Cell<usize>,
    refuses: bool,
}

impl Registrar for Kernel {
    fn register(&self, _fd: BorrowedFd<'_>) -> io::Result<crate::inode::Registered> {
        if self.refuses {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        self.registered.set(self.registered.get() + 1);
        Ok(Arc::new(()))
    }
}

fn clean_file(w: &World) -> u64 {
    std::fs::write(w.path("f"), "clean").unwrap();
    w.lookup("f").unwrap().attr.ino
}

fn open(w: &World, node: u64, flags: i32, kernel: &Kernel) -> (u64, bool) {
    let opened = w.fs.open(&me(), node, flags, Some(kernel)).unwrap();
    (opened.fh, opened.passthrough.is_some())
}

#[test]
fn readers_of_clean_files_pass_through_and_writers_follow() {
    let w = world();
    let node = clean_file(&w);
    let kernel = Kernel::default();
    let (reader, through) = open(&w, node, libc::O_RDONLY, &kernel);
    assert!(through);
    let (writer, through) = open(&w, node, RDWR, &kernel);
    assert!(through);
    assert_eq!(kernel.registered.get(), 1);
    // Requests that the kernel still sends for such a handle go to the canonical file.
    w.write(writer, 0, b"C");
    assert_eq!(w.canonical("f"), b"Clean");
    assert!(w.store_file(node).is_clean());
    w.fs.release(reader).unwrap();
    let (third, through) = open(&w, node, RDWR, &kernel);
    assert!(through);
    w.fs.release(writer).unwrap();
    w.fs.release(third).unwrap();
    // All handles are closed: the next open decides again.
    let (_, through) = open(&w, node, RDWR, &kernel);
    assert!(!through);
}

#[test]
fn readers_follow_writers() {
    let w = world();
    let node = clean_file(&w);
    let kernel = Kernel::default();
    let (writer, through) = open(&w, node, RDWR, &kernel);
    assert!(!through);
    let (reader, through) = open(&w, node, libc::O_RDONLY, &kernel);
    assert!(!through);
    w.write(writer, 0, b"D");
    w.fs.release(writer).unwrap();
    w.fs.release(reader).unwrap();
    // The file is dirty, so the canonical file is out of date.
    let (reader, through) = open(&w, node, libc::O_RDONLY, &kernel);
    assert!(!through);
    assert_eq!(w.read(reader, 0, 10), b"Dlean");
    w.fs.release(reader).unwrap();
    w.drain(&w.store_file(node));
    assert!(open(&w, node, libc::O_RDONLY, &kernel).1);
}

#[test]
fn a_refusal_means_direct() {
    let w = world();
    let node = clean_file(&w);
    let kernel = Kernel {
        refuses: true,
        ..Kernel::default()
    };
    let (fh, through) = open(&w, node, libc::O_RDONLY, &kernel);
    assert!(!through);
    assert_eq!(w.read(fh, 0, 10), b"clean");
}

#[test]
fn without_absorption_everything_passes_through() {
    let w = world_with(false);
    let node = clean_file(&w);
    assert!(open(&w, node, RDWR, &Kernel::default()).1);
}

#[test]
fn open_files_are_known() {
    let w = world();
    let (_, fh) = w.create("f");
    let who = w.fs.who_is_open();
    assert_eq!(w.fs.open_handles(), 1);
    assert_eq!(who[0].path.as_deref(), Some(std::path::Path::new("f")));
    assert_eq!(who[0].pid, std::process::id());
    assert!(who[0].writable);
    w.fs.release(fh).unwrap();
    assert_eq!(w.fs.open_handles(), 0);
    assert_eq!(w.fs.release(fh).unwrap_err().errno(), libc::EBADF);
}

#[test]
fn creating_what_exists_opens_it_or_refuses() {
    let w = world();
    clean_file(&w);
    let flags = RDWR | libc::O_CREAT;
    let create = |flags| w.fs.create(&me(), ROOT, os("f"), 0o644, 0, flags, None);
    let (entry, opened) = create(flags).unwrap();
    assert_eq!(entry.attr.size, 5);
    assert_eq!(w.read(opened.fh, 0, 10), b"clean");
    let e = create(flags | libc::O_EXCL).map(drop).unwrap_err();
    assert_eq!(e.errno(), libc::EEXIST);
}

#[test]
fn handles_do_what_they_were_opened_for() {
    let w = world();
    let node = clean_file(&w);
    let reader = w.fs.handle(w.open(node, libc::O_RDONLY)).unwrap();
    let e = w.fs.write(&reader, 0, b"x", false, false).unwrap_err();
    assert_eq!(e.errno(), libc::EBADF);
    let writer = w.fs.handle(w.open(node, libc::O_WRONLY)).unwrap();
    assert_eq!(
        w.fs.read(&writer, 0, &mut [0]).unwrap_err().errno(),
        libc::EBADF
    );
}

#[test]
fn a_writer_waits_for_releases_that_are_on_their_way() {
    let w = world();
    let node = clean_file(&w);
    let kernel = Kernel::default();
    let (reader, through) = open(&w, node, libc::O_RDONLY, &kernel);
    assert!(through);
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(2));
            w.fs.release(reader).unwrap();
        });
        assert!(!open(&w, node, RDWR, &kernel).1);
    });
}

#[test]
fn without_descriptors_new_files_are_refused_and_old_ones_work() {
    let w = world();
    std::fs::write(w.path("late"), "").unwrap();
    let (node, fh) = w.create("f");
    let dir = w.fs.opendir(&me(), ROOT).unwrap();
    w.fs.limit_descriptors(w.fs.known_inodes() * 2);
    let refused = |r: Result<()>| assert_eq!(r.unwrap_err().errno(), libc::ENFILE);
    refused(w.lookup("late").map(drop));
    refused(w.fs.mkdir(&me(), ROOT, os("d"), 0o755, 0).map(drop));
    let flags = RDWR | libc::O_CREAT;
    refused(
        w.fs.create(&me(), ROOT, os("g"), 0o644, 0, flags, None)
            .map(drop),
    );
    refused(w.fs.open(&me(), node, RDWR | libc::O_TRUNC, None).map(drop));
    // The refused operations have made or cut nothing.
    assert!(!w.path("d").exists() && !w.path("g").exists());
    w.write(fh, 0, b"goes on");
    assert_eq!(w.read(fh, 0, 10), b"goes on");
    assert_eq!(w.lookup("f").unwrap().attr.ino, node);
    // A listing has all names, also those of entries that get no node.
    let mut names = vec![];
    let mut at = 0;
    loop {
        let before = at;
        let listed = w.fs.readdirplus(&me(), dir, at, &mut |e, found| {
            at = e.next;
            names.push((e.name.clone().into_string().unwrap(), found.is_some()));
            false
        });
        listed.unwrap();
        if at == before {
            break;
        }
    }
    assert!(names.contains(&("late".into(), false)), "{names:?}");
    assert!(names.contains(&("f".into(), true)), "{names:?}");
}
