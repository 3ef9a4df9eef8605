use super::*;

fn name(s: &str) -> Result<Name, FsError> {
    Name::parse(OsStr::new(s))
}

#[test]
fn names_are_single_components() {
    assert!(name("a").is_ok());
    assert!(name("..a").is_ok());
    for bad in ["", ".", "..", "a/b", "/"] {
        assert!(matches!(name(bad), Err(FsError::Invalid(_))), "{bad:?}");
    }
    assert!(Name::parse(OsStr::from_bytes(b"a\0b")).is_err());
}

#[test]
fn only_the_exact_reserved_name_is_reserved() {
    assert!(name(".forebay").unwrap().is_reserved());
    assert!(matches!(
        name(".forebay").unwrap().allowed(),
        Err(FsError::Reserved)
    ));
    for free in [".forebay2", "forebay", ".Forebay"] {
        assert!(name(free).unwrap().allowed().is_ok(), "{free}");
    }
}

#[test]
fn times_before_1970_clamp() {
    assert_eq!(Time { sec: -1, nsec: 5 }.as_nanos(), 0);
    let t = Time { sec: 7, nsec: 9 };
    assert_eq!(Time::from_nanos(t.as_nanos()), t);
}
