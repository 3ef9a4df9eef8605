//! Objects that no node puts into the shared directory. None is followed, opened or waited for;
//! each is named in an error or a listing.

use super::*;
use crate::sharing::shared_dir::Patience::Forever;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A directory outside of the shared directory, which must stay as it is.
fn outside(bench: &Bench) -> PathBuf {
    let outside = bench.dir.path().join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("file"), "kept").unwrap();
    outside
}

fn check_outside(bench: &Bench) {
    let outside = bench.dir.path().join("outside");
    let names: Vec<_> = std::fs::read_dir(&outside).unwrap().collect();
    assert_eq!(names.len(), 1);
    assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"kept");
}

fn fifo(at: &std::path::Path) {
    nix::unistd::mkfifo(at, nix::sys::stat::Mode::S_IRWXU).unwrap();
}

#[test]
fn links_in_the_place_of_directories_are_refused_and_named() {
    for step in ["", NODES, NOTES, FILES, "notes/0000000000000001"] {
        let bench = Bench::new();
        let outside = outside(&bench);
        let at = bench.path(step);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        for dir in [TOP, ".forebay/notes"] {
            let dir = bench.dir.path().join(dir);
            if dir.is_dir() {
                std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
            }
        }
        symlink(&outside, &at).unwrap();
        let join = SharedDir::join(bench.backing(), owner(1, 1), "n", LEASE);
        let said = join.unwrap_err();
        assert_eq!(said.kind(), io::ErrorKind::NotADirectory, "{step}: {said}");
        assert!(said.to_string().contains("remove it"), "{said}");
        check_outside(&bench);
    }
}

#[test]
fn a_link_in_the_place_of_a_file_s_directory_leads_nowhere() {
    for group in [true, false] {
        let bench = Bench::new();
        let outside = outside(&bench);
        let [ab, fid] = names_of(FILE);
        let at = bench.path(FILES).join(&ab);
        let a = bench.node(1);
        if group {
            std::fs::create_dir(outside.join(&fid)).unwrap();
            symlink(&outside, &at).unwrap();
        } else {
            std::fs::create_dir(&at).unwrap();
            std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o700)).unwrap();
            symlink(&outside, at.join(&fid)).unwrap();
        }
        for refused in [
            a.change_token(FILE).map(drop),
            a.list(FILE).map(drop),
            a.announce(FILE).map(drop),
            a.append_layout(FILE, 0, 0, b"x", Forever),
            a.read_layout(FILE, NodeId(1), 0, 0, 9).map(drop),
            a.terms.take_term(FILE).map(drop),
            a.put_plan(FILE, 1, b"x"),
            a.remove_layout(FILE, NodeId(1), 0, None),
        ] {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::NotADirectory);
        }
        if group {
            std::fs::remove_dir(outside.join(&fid)).unwrap();
        }
        check_outside(&bench);
    }
}

#[test]
fn directories_that_others_can_change_are_refused() {
    for step in ["", NODES, NOTES, FILES] {
        let bench = Bench::new();
        drop(bench.node(1));
        let at = bench.path(step);
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o770)).unwrap();
        for refused in [
            SharedDir::join(bench.backing(), owner(1, 1), "n", LEASE).map(drop),
            SharedDir::open_for_inspection(bench.backing()).map(drop),
        ] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("chmod it 700"), "{said}");
        }
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o700)).unwrap();
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&at, Some(65001), None).unwrap();
            let refused = SharedDir::join(bench.backing(), owner(1, 1), "n", LEASE);
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("owner 65001"), "{said}");
        }
    }
    let bench = Bench::new();
    let a = bench.node(1);
    a.announce(FILE).unwrap();
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(bench.of_file(""), mode).unwrap();
    a.change_token(FILE).unwrap_err();
    a.list(FILE).unwrap_err();
    bench.node(2).announce(FILE).unwrap_err();
}

/// Opening a FIFO would hang, and opening a device can have side effects.
#[test]
fn what_is_no_plain_file_is_not_opened() {
    let bench = Bench::new();
    let outside = outside(&bench);
    let a = bench.node(1);
    a.append_layout(FILE, 0, 0, b"x", Forever).unwrap();
    let name = |kind: u32| format!("l.0000000000000001.{kind:x}");
    symlink(outside.join("file"), bench.of_file(&name(1))).unwrap();
    fifo(&bench.of_file(&name(2)));
    std::fs::create_dir(bench.of_file(&name(3))).unwrap();
    std::fs::hard_link(outside.join("file"), bench.of_file(&name(4))).unwrap();
    let mut most = 4;
    if nix::unistd::geteuid().is_root() {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        let zero = makedev(1, 5);
        if mknod(
            &bench.of_file(&name(5)),
            SFlag::S_IFCHR,
            Mode::S_IRWXU,
            zero,
        )
        .is_ok()
        {
            most = 5;
        }
    }
    for kind in 1..=most {
        for refused in [
            a.append_layout(FILE, kind, 0, b"y", Forever),
            a.append_layout(FILE, kind, 1, b"y", Forever),
            a.read_layout(FILE, NodeId(1), kind, 0, 9).map(drop),
        ] {
            let said = refused.unwrap_err().to_string();
            assert!(
                said.contains(&name(kind)) && said.contains("remove"),
                "{said}"
            );
        }
    }
    check_outside(&bench);
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(bench.of_file(&name(0)), Some(65001), None).unwrap();
        let said = a
            .read_layout(FILE, NodeId(1), 0, 0, 9)
            .unwrap_err()
            .to_string();
        assert!(said.contains("user 65001"), "{said}");
    }
}

#[test]
fn a_huge_plan_is_not_read() {
    let bench = Bench::new();
    let a = bench.node(1);
    a.put_plan(FILE, 3, b"x").unwrap();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(bench.of_file("p.3"));
    file.unwrap().set_len(1 << 40).unwrap();
    let said = a.read_plan(FILE, 3).unwrap_err();
    assert_eq!(said.kind(), io::ErrorKind::InvalidData);
    assert!(said.to_string().contains("p.3"), "{said}");
    // Only the requested part of a layout is read.
    a.append_layout(FILE, 0, 0, b"x", Forever).unwrap();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(bench.of_file("l.0000000000000001.0"));
    file.unwrap().set_len(1 << 40).unwrap();
    let read = a.read_layout(FILE, NodeId(1), 0, 0, 4).unwrap();
    assert_eq!(read.unwrap(), b"x\0\0\0");
}

#[test]
fn strange_names_are_listed_and_left_alone() {
    let bench = Bench::new();
    let a = bench.node(1);
    let announcement = a.announce(FILE).unwrap();
    let strange = ["c.5", "c.01", "host.1234", "c.7", "l.x", "\u{202e}"];
    for name in strange {
        std::fs::write(bench.of_file(name), "").unwrap();
    }
    std::fs::remove_file(bench.of_file("c.7")).unwrap();
    symlink("/etc/passwd", bench.of_file("c.7")).unwrap();
    let listing = a.list(FILE).unwrap().unwrap();
    assert_eq!(listing.announcements, [announcement]);
    assert!(listing.terms.is_empty());
    let mut found = listing.strange;
    found.sort();
    let mut expected = strange.to_vec();
    expected.sort();
    assert_eq!(found, expected);
    let term = mine(a.terms.take_term(FILE).unwrap());
    a.fulfil(FILE, &[announcement]).unwrap();
    assert!(!a.terms.tidy(FILE, term).unwrap());
    assert_eq!(bench.names().len(), strange.len() + 1);
}

/// A seal decides how much of a layout counts, so it counts itself only if the layout's own node
/// made it.
#[test]
fn seals_of_others_are_no_seals() {
    let bench = Bench::new();
    let a = bench.node(1);
    a.append_layout(FILE, 7, 0, b"whole", Forever).unwrap();
    let layout = (NodeId(1), 7);
    let seal = |end: &str| bench.of_file(&format!("s.0000000000000001.7.{end}"));
    fifo(&seal("0"));
    std::fs::create_dir(seal("1")).unwrap();
    std::fs::write(seal("2"), owner(1, 1).to_string()).unwrap();
    symlink(owner(2, 1).to_string(), seal("3")).unwrap();
    symlink("sealed", seal("4")).unwrap();
    symlink("/etc/passwd", seal("5")).unwrap();
    symlink(format!("{}.00", owner(1, 1)), seal("6")).unwrap();
    symlink("x".repeat(4000), seal("7")).unwrap();
    // Text that is no number, or a number written in another way.
    for end in ["10000000000000000", "-1", "+1", "0x1", "01", "A", ""] {
        symlink(owner(1, 1).to_string(), seal(end)).unwrap();
    }
    let listing = a.list(FILE).unwrap().unwrap();
    assert_eq!(listing.seal_of(layout), None);
    assert_eq!(listing.strange.len(), 15, "{:?}", listing.strange);
    // None of them is touched, not even by the holder that tidies.
    let term = mine(a.terms.take_term(FILE).unwrap());
    a.remove_layout(FILE, NodeId(1), 7, None).unwrap();
    assert!(!a.terms.tidy(FILE, term).unwrap());
    let left = a.list(FILE).unwrap().unwrap();
    assert_eq!(left.strange.len(), 15, "{:?}", left.strange);

    // Seals of the layout's own node count: the lowest of several, and also the largest number
    // there is.
    symlink(owner(1, 9).to_string(), seal("ffffffffffffffff")).unwrap();
    let listing = a.list(FILE).unwrap().unwrap();
    assert_eq!(listing.seal_of(layout), Some(u64::MAX));
    symlink(owner(1, 9).to_string(), seal("8")).unwrap();
    let listing = a.list(FILE).unwrap().unwrap();
    assert_eq!(listing.seal_of(layout), Some(8));
    assert_eq!(listing.seal_of((NodeId(1), 8)), None);
    assert_eq!(listing.seal_of((NodeId(2), 7)), None);
}

/// An object that stands where a link must be made is named in the error: otherwise no node could
/// ever take that term.
#[test]
fn what_stands_in_the_way_of_a_link_is_named() {
    let bench = Bench::new();
    let a = bench.node(1);
    let term = mine(a.terms.take_term(FILE).unwrap());
    a.terms.end_term(FILE, term).unwrap();
    let name = format!("c.{:x}", term + 1);
    fifo(&bench.of_file(&name));
    let said = a.terms.take_term(FILE).unwrap_err().to_string();
    assert!(said.contains(&name) && said.contains("remove it"), "{said}");
    std::fs::remove_file(bench.of_file(&name)).unwrap();
    symlink("elsewhere", bench.of_file(&name)).unwrap();
    a.terms.take_term(FILE).unwrap_err();
    std::fs::remove_file(bench.of_file(&name)).unwrap();
    let term = mine(a.terms.take_term(FILE).unwrap());
    a.put_plan(FILE, term, b"x").unwrap();
    std::fs::create_dir(bench.of_file(&format!("d.{term:x}.0.0"))).unwrap();
    a.domains.take_domain(FILE, term, 0).unwrap_err();
    // No term can follow the highest number there is.
    let highest = bench.of_file("c.ffffffffffffffff");
    symlink(owner(9, 9).to_string(), &highest).unwrap();
    a.terms.end_term(FILE, term).unwrap();
    let said = a.terms.take_term(FILE).unwrap_err().to_string();
    assert!(said.contains("c.ffffffffffffffff"), "{said}");
}

#[test]
fn damaged_records_of_nodes_are_reported_and_stop_no_node() {
    let bench = Bench::new();
    let a = bench.node(1);
    let record = |id: u64| bench.path(NODES).join(NodeId(id).to_string());
    std::fs::write(record(2), "name = 3").unwrap();
    std::fs::write(record(3), vec![b'#'; 1 << 20]).unwrap();
    std::fs::write(record(4), [0xff, 0xfe]).unwrap();
    fifo(&record(5));
    symlink("/etc/passwd", record(6)).unwrap();
    std::fs::create_dir(record(7)).unwrap();
    let written = |name: &str, lease: u64, version: u32| {
        format!("version = {version}\nname = {name:?}\nrun = \"1\"\nlease_ms = {lease}\n")
    };
    std::fs::write(record(8), written("two\nlines", 5, 1)).unwrap();
    std::fs::write(record(9), written("n", u64::MAX / 2, 1)).unwrap();
    std::fs::write(record(10), written("n", 5, 99)).unwrap();
    std::fs::write(record(11), written("good", 5, 1)).unwrap();
    std::fs::write(bench.path(NODES).join("stranger"), "").unwrap();
    let nodes = a.membership.nodes().unwrap();
    assert_eq!(nodes.len(), 11);
    for node in nodes {
        match node.state {
            Ok(_) => assert!(matches!(node.id.0, 1 | 11), "{}", node.id),
            Err(said) => {
                assert!(said.contains(&node.id.to_string()), "{said}");
                assert!(said.contains("remove it"), "{said}");
                // It is not known whether that node is alive, and the code must not guess.
                a.membership.is_dead(owner(node.id.0, 1)).unwrap_err();
                assert_eq!(a.membership.name_of(node.id), node.id.to_string());
            }
        }
    }
    let term = mine(a.terms.take_term(FILE).unwrap());
    a.terms.end_term(FILE, term).unwrap();
}

#[test]
fn strange_notes_and_files_are_passed_over() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    a.leave_note(NodeId(2), FILE).unwrap();
    let notes = bench.path("notes/0000000000000002");
    std::fs::write(notes.join("1.01"), "").unwrap();
    assert_eq!(b.take_notes().unwrap(), [FILE]);
    assert!(notes.join("1.01").exists());
    a.announce(FILE).unwrap();
    let files = bench.path(FILES);
    // The first directory is not a group, and the second is not in the group of its file.
    std::fs::create_dir(files.join("A0")).unwrap();
    std::fs::create_dir(bench.of_file("").parent().unwrap().join("1.1")).unwrap();
    assert_eq!(a.files().unwrap(), [FILE]);
}
