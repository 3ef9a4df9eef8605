use super::*;
use crate::sharing::shared_dir::Patience::Forever;

#[test]
fn what_one_node_puts_another_reads() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    assert_eq!(b.change_token(FILE).unwrap(), None);
    assert_eq!(b.list(FILE).unwrap(), None);
    assert_eq!(b.read_layout(FILE, NodeId(1), 0, 0, 10).unwrap(), None);
    assert_eq!(b.files().unwrap(), []);
    b.remove_layout(FILE, NodeId(1), 0, None).unwrap();
    b.touch(FILE).unwrap();
    a.append_layout(FILE, 0, 0, b"first", Forever).unwrap();
    a.append_layout(FILE, 0, 5, b"second", Forever).unwrap();
    a.append_layout(FILE, 1, 0, b"other", Forever).unwrap();
    let read = |from, most| {
        b.read_layout(FILE, NodeId(1), 0, from, most)
            .unwrap()
            .unwrap()
    };
    assert_eq!(read(0, 100), b"firstsecond");
    assert_eq!(read(5, 3), b"sec");
    assert_eq!(read(100, 3), b"");
    a.put_plan(FILE, 7, b"plan").unwrap();
    a.put_base(FILE, 6, b"base").unwrap();
    assert_eq!(b.read_plan(FILE, 7).unwrap().unwrap(), b"plan");
    assert_eq!(b.read_base(FILE, 6).unwrap().unwrap(), b"base");
    assert_eq!(b.read_base(FILE, 7).unwrap(), None);
    let mut listing = b.list(FILE).unwrap().unwrap();
    listing.layouts.sort();
    assert_eq!(listing.layouts, [(NodeId(1), 0), (NodeId(1), 1)]);
    assert_eq!((&listing.plans, &listing.bases), (&[7].into(), &[6].into()));
    assert_eq!(listing.unfinished_plan(), Some(7));
    assert_eq!(listing.temporary, []);
    assert_eq!(b.files().unwrap(), [FILE]);
    a.remove_layout(FILE, NodeId(1), 0, None).unwrap();
    a.remove_layout(FILE, NodeId(1), 0, None).unwrap();
    assert_eq!(b.read_layout(FILE, NodeId(1), 0, 0, 10).unwrap(), None);
}

/// A close that has returned is seen by every open after it.
#[test]
fn announcements_are_seen_and_change_the_token_until_they_are_fulfilled() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    let first = a.announce(FILE).unwrap();
    let token = b.change_token(FILE).unwrap();
    let second = a.announce(FILE).unwrap();
    assert_ne!(b.change_token(FILE).unwrap(), token);
    let mut seen = b.list(FILE).unwrap().unwrap().announcements;
    seen.sort();
    assert_eq!(seen, [first, second]);
    assert_eq!(first.owner, a.me());
    a.fulfil(FILE, &[first]).unwrap();
    a.fulfil(FILE, &[first]).unwrap();
    assert_eq!(b.list(FILE).unwrap().unwrap().announcements, [second]);
}

/// The change token must be a new one each time, also for a directory that was made anew.
#[test]
fn no_two_tokens_are_the_same() {
    let bench = Bench::new();
    let a = bench.node(1);
    let mut seen = HashSet::new();
    for _ in 0..100 {
        let announcement = a.announce(FILE).unwrap();
        assert!(seen.insert(a.change_token(FILE).unwrap().unwrap()));
        a.touch(FILE).unwrap();
        assert!(seen.insert(a.change_token(FILE).unwrap().unwrap()));
        a.fulfil(FILE, &[announcement]).unwrap();
        std::fs::remove_dir(bench.of_file("")).unwrap();
        assert_eq!(a.change_token(FILE).unwrap(), None);
    }
}

/// Bytes that other nodes have read must turn neither into zeros nor into other bytes.
#[test]
fn a_layout_that_is_gone_or_of_another_length_is_not_appended_to() {
    let bench = Bench::new();
    let a = bench.node(1);
    let gone = a.append_layout(FILE, 0, 5, b"x", Forever).unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    a.append_layout(FILE, 0, 0, b"abc", Forever).unwrap();
    for at in [5, 2] {
        let other = a.append_layout(FILE, 0, at, b"x", Forever).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::InvalidData, "at {at}");
    }
    let read = a.read_layout(FILE, NodeId(1), 0, 0, 100).unwrap();
    assert_eq!(read.unwrap(), b"abc");
}

/// A node that holds a descriptor of a removed directory makes a new directory.
#[test]
fn a_removed_directory_is_made_again() {
    let bench = Bench::new();
    let a = bench.node(1);
    let announcement = a.announce(FILE).unwrap();
    for _ in 0..3 {
        std::fs::remove_dir_all(bench.of_file("")).unwrap();
        a.announce(FILE).unwrap();
        a.append_layout(FILE, 0, 0, b"x", Forever).unwrap();
        assert_eq!(bench.names().len(), 2);
    }
    std::fs::remove_dir_all(bench.of_file("")).unwrap();
    a.fulfil(FILE, &[announcement]).unwrap();
    assert_eq!(a.read_layout(FILE, NodeId(1), 0, 0, 9).unwrap(), None);
    assert_eq!(a.list(FILE).unwrap(), None);
}

/// An open of an unchanged file costs one call on shared metadata, a deferred close two.
#[test]
fn calls_are_as_few_as_promised() {
    let bench = Bench::new();
    let a = bench.node(1);
    let (none, made) = calls::of(|| a.change_token(FILE).unwrap());
    assert_eq!((none, made), (None, vec!["open"]));
    a.announce(FILE).unwrap();
    let other = FileId {
        ino: FILE.ino + 0x100,
        ..FILE
    };
    let (there, made) = calls::of(|| a.change_token(FILE).unwrap());
    assert_eq!((there.is_some(), made), (true, vec!["stat"]));
    let (none, made) = calls::of(|| a.change_token(other).unwrap());
    assert_eq!((none, made), (None, vec!["stat"]));
    let (_, made) = calls::of(|| a.announce(FILE).unwrap());
    assert_eq!(made, ["link", "utime"]);
    a.append_layout(FILE, 0, 0, b"x", Forever).unwrap();
    let (_, made) = calls::of(|| {
        a.append_layout(FILE, 0, 1, b"y", Forever).unwrap();
        a.touch(FILE).unwrap();
    });
    // The file is checked before it is opened, and once more after that.
    let expected = ["open", "stat", "open", "stat", "write", "sync", "utime"];
    assert_eq!(made, expected);
    let (_, made) = calls::of(|| a.list(FILE).unwrap());
    assert_eq!(made, ["open", "stat", "list"]);
    let (_, made) = calls::of(|| a.membership.heartbeat().unwrap());
    assert_eq!(made, ["stat", "stat", "stat", "stat", "utime", "stat"]);
}
