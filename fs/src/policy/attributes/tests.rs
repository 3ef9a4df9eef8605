use super::*;
use layout_index::policy::Drain;
use std::os::fd::AsFd;
use std::path::Path;

fn file() -> std::fs::File {
    let file = tempfile::tempfile().unwrap();
    match sys::setxattr(file.as_fd(), c"user.x", b"y", 0) {
        Ok(()) => file,
        Err(e) => panic!("the temporary directory's file system has no user attributes: {e}"),
    }
}

fn set(file: &std::fs::File, name: &CStr, value: &[u8]) {
    sys::setxattr(file.as_fd(), name, value, 0).unwrap();
}

#[test]
fn a_file_without_any_says_nothing() {
    let file = file();
    assert_eq!(read(file.as_fd()).unwrap(), Attributes::default());
}

#[test]
fn own_and_inherited_ones() {
    let file = file();
    set(&file, c"user.forebay.drain", b"never");
    let mut given = Attributes::default();
    let mut above = FilePolicy::default();
    above.set(Key::Drain, "on-close").unwrap();
    above.set(Key::Keep, "true").unwrap();
    for key in Key::ALL {
        given.inherit(key, &above, "run 7/with blank");
    }
    // A nearer directory has set this key already.
    let mut higher = FilePolicy::default();
    higher.set(Key::Keep, "false").unwrap();
    given.inherit(Key::Keep, &higher, ".");
    write_record(file.as_fd(), &given).unwrap();
    let found = read(file.as_fd()).unwrap();
    assert_eq!(found.own.drain, Some(Drain::Never));
    assert_eq!(found.inherited, above);
    assert_eq!(found.from(Key::Keep), "run 7/with blank");
    assert!(found.bad.is_empty(), "{:?}", found.bad);
}

/// S10.3: an attribute that makes no sense is reported, counts as absent, and leaves the others as they are.
#[test]
fn nonsense_is_told_and_ignored() {
    let file = file();
    set(&file, c"user.forebay.drain", b"on-close");
    set(&file, c"user.forebay.absorb", b"OFF");
    set(&file, c"user.forebay.close", b"\xff\xfe");
    set(&file, c"user.forebay.keep", &[b'x'; 2000]);
    set(&file, c"user.forebay.store", b"/tmp");
    set(&file, c"user.forebay.visibility-timeout", b"1h");
    let found = read(file.as_fd()).unwrap();
    let mut want = FilePolicy::default();
    want.set(Key::Drain, "on-close").unwrap();
    assert_eq!(found.own, want);
    assert_eq!(found.bad.len(), 5, "{:#?}", found.bad);
    for bad in &found.bad {
        assert!(bad.len() < 300 && !bad.contains('\n'), "{bad}");
    }
}

#[test]
fn a_forged_record_is_no_more_than_a_policy() {
    for record in [
        &b"\xff\xff"[..],
        b"drain=never",
        b"drain=later x",
        b"visibility-timeout=10h x",
        b"store=/etc x",
        b"=\x00 \n\n= =\n",
        &[b'a'; 3000],
        &[b'\n'; 3000],
    ] {
        let file = file();
        set(&file, INHERITED, record);
        let found = read(file.as_fd()).unwrap();
        assert!(found.is_empty(), "{record:?}: {found:?}");
    }
    let file = file();
    set(
        &file,
        INHERITED,
        b"drain=never ../../etc\ndrain=on-close b\n",
    );
    let found = read(file.as_fd()).unwrap();
    assert_eq!(found.inherited.drain, Some(Drain::Never));
    assert_eq!(
        found.from(Key::Drain),
        "../../etc",
        "shown, and nothing else"
    );
}

#[test]
fn names_of_directories_are_fit_to_be_shown() {
    assert_eq!(directory(Path::new("")), ".");
    assert_eq!(directory(Path::new("a/b c")), "a/b c");
    assert_eq!(directory(Path::new("a\nb\x1b")), "a\\nb\\u{1b}");
    let long = directory(Path::new(&"x/".repeat(2000)));
    assert!(long.len() <= SHOWN && long.starts_with('…'), "{long}");
    let mut worst = Attributes::default();
    let defaults = FilePolicy::defaults();
    for key in Key::ALL.into_iter().filter(|key| key.is_attribute()) {
        worst.inherit(key, &defaults, &directory(Path::new(&"\u{1}".repeat(4000))));
    }
    let record = worst.record();
    assert!(record.len() < RECORD, "{}", record.len());
    let mut back = Attributes::default();
    back.read_record(record.as_bytes());
    assert_eq!(back, worst);
}
