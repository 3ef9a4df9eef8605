use super::*;
use layout_index::policy::Key;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

fn rule(glob: &str) -> Rule {
    let mut policy = FilePolicy::default();
    policy.set(Key::Drain, "never").unwrap();
    Rule {
        number: 1,
        line: 7,
        glob: glob.into(),
        policy,
    }
}

fn matches(glob: &str, path: &[u8]) -> bool {
    let rules = Rules::new(vec![rule(glob)]).unwrap_or_else(|e| panic!("{glob}: {e}"));
    let path = Path::new(OsStr::from_bytes(path));
    !rules.matching(path).is_empty()
}

#[test]
fn stars_stay_within_a_directory_and_two_do_not() {
    for (glob, path, want) in [
        ("ckpt/**/*.h5", "ckpt/a/b/x.h5", true),
        ("ckpt/**/*.h5", "ckpt/x.h5", true),
        ("ckpt/**/*.h5", "old/ckpt/x.h5", false),
        ("ckpt/**/*.h5", "ckpt/x.h5.tmp", false),
        ("*.h5", "x.h5", true),
        ("*.h5", "a/x.h5", false),
        ("**/*.h5", "x.h5", true),
        ("**/*.h5", "a/b/x.h5", true),
        ("run?/out", "run7/out", true),
        ("run?/out", "run/x/out", false),
        ("run?/out", "run//out", false),
        ("a/**", "a", false),
        ("a/**", "a/b", true),
        ("{a,b}/[0-9]*", "b/7up", true),
        ("[!.]*", ".hidden", false),
        (r"a\*b", "a*b", true),
        (r"a\*b", "axb", false),
        ("**", "anything/at/all", true),
        ("A", "a", false),
    ] {
        assert_eq!(matches(glob, path.as_bytes()), want, "{glob} on {path}");
    }
}

/// Names are bytes; a glob is text, and its wildcards match any bytes: `?` matches one byte.
#[test]
fn odd_bytes_in_names() {
    assert!(matches("a/*.h5", b"a/\xff\xfe.h5"));
    assert!(matches("a/??.h5", "a/\u{e9}.h5".as_bytes()), "two bytes");
    assert!(matches("a/\u{e9}*", "a/\u{e9}.h5".as_bytes()));
    assert!(matches("**/f", b"\x01\n/\x80/f"));
    assert!(matches("a/**", b"a/new\nline"));
    assert!(!matches("a/b", b"a/b\n"));
}

#[test]
fn in_their_order_whatever_matches() {
    let mut rules: Vec<_> = ["**/*.h5", "x/*", "y/*", "x/a.h5"].map(rule).into();
    for (n, rule) in rules.iter_mut().enumerate() {
        rule.number = n + 1;
    }
    let rules = Rules::new(rules).unwrap();
    let found = rules.matching(Path::new("x/a.h5"));
    let numbers: Vec<_> = found.iter().map(|r| r.number).collect();
    assert_eq!(numbers, [1, 2, 4]);
}

/// S8.12: hostile globs are refused with a message, and none of them takes long or recurses deeply.
#[test]
fn hostile_globs() {
    let long = "a".repeat(LONGEST_GLOB + 1);
    let deep = "{".repeat(500) + "a" + &"}".repeat(500);
    for (glob, word) in [
        ("", "matches nothing"),
        ("/abs/*", "begins with a slash"),
        ("dir/", "ends with a slash"),
        ("../up", "\"..\""),
        ("a/../b", "\"..\""),
        ("a/./b", "\".\""),
        ("a//b", "\"//\""),
        ("a\0b", "zero byte"),
        ("[", "is not a glob"),
        ("[z-a]", "is not a glob"),
        ("{a,b", "is not a glob"),
        ("a}", "is not a glob"),
        ("a\\", "is not a glob"),
        (&long, "the most is 1024"),
        (&deep, "nests braces"),
    ] {
        let said = Rules::new(vec![rule(glob)]).err();
        let said = said.unwrap_or_else(|| panic!("taken: {glob:.40}"));
        assert!(said.contains(word) && said.contains("line 7"), "{said}");
        assert!(said.len() < 400 && !said.contains('\n'), "{said}");
    }
    let many = vec![rule("a"); MOST_RULES + 1];
    assert!(Rules::new(many).unwrap_err().contains("too many"));
}

/// Globs that make a backtracking matcher run for ever do not do so here.
#[test]
fn stars_without_end_take_no_time() {
    let glob = "*a".repeat(300) + "b";
    let slashes = "**/".repeat(300) + "b";
    let braces = "{a,aa,aaa}*".repeat(60) + "b";
    let path = "a".repeat(4000);
    let deep = "a/".repeat(1500) + "c";
    let begin = Instant::now();
    for glob in [glob, slashes, braces] {
        let rules = match Rules::new(vec![rule(&glob)]) {
            Ok(rules) => rules,
            // It is also right to refuse the glob as too large.
            Err(said) => {
                assert!(said.len() < 400, "{said}");
                continue;
            }
        };
        for path in [&path, &deep] {
            assert!(rules.matching(Path::new(path)).is_empty());
        }
    }
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
}
