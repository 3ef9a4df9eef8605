use super::*;
use crate::args::Locks;
use crate::units::{Fraction, Size, Span};
use layout_index::policy::{Absorb, Drain, Subfiles};
use std::time::Duration;

#[test]
fn every_key_in_every_spelling() {
    let keys = parse(
        r#"
        store = "/nvme/forebay"
        backing = "/scratch"
        ost = ["/ost0", "/ost1"]
        ost-provider = "directories"
        subfiles = "always"
        subfile-width = 4
        probe = "on"
        probe-age = "10m"
        probe-size = "4MiB"
        ost-deadline = "5s"
        ost-retry = "30s"
        node = "n7"
        nodes = "one"
        close = "defer-next"
        fsync = "local"
        visibility-timeout = "30s"
        lease = "10s"
        absorb = "off"
        drain = "on-close"
        drain-rate = 0
        drain-concurrency = 8
        stripe = "4MiB"
        index-memory = 268435456
        store-size = "100GiB"
        segment-size = "16MiB"
        high-watermark = "80%"
        user-share = 0.5
        locks = "local"
        attr-timeout = "500ms"
        threads = 3
        verify = true
        keep = true
        "#,
    )
    .unwrap();
    assert_eq!(keys.ost.len(), 2);
    assert_eq!(keys.ost_provider, Some(flusher::ost::Kind::Directories));
    assert_eq!(keys.subfiles, Some(Subfiles::Always));
    assert_eq!(keys.absorb, Some(Absorb::Off));
    assert_eq!(keys.drain, Some(Drain::OnClose));
    assert_eq!(keys.drain_rate, Some(Size(0)));
    assert_eq!(keys.stripe, Some(Size(4 << 20)));
    assert_eq!(keys.high_watermark, Some(Fraction(0.8)));
    assert_eq!(keys.user_share, Some(Fraction(0.5)));
    assert_eq!(keys.locks, Some(Locks::Local));
    assert_eq!(keys.attr_timeout, Some(Span(Duration::from_millis(500))));
    assert_eq!(keys.verify, Some(true));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_known_ones() {
    let message = parse("node = \"a\"\ndrain-rat = 3\n").unwrap_err();
    assert!(message.contains("line 2"), "{message}");
    assert!(message.contains("drain-rat"), "{message}");
    assert!(message.contains("drain-rate"), "{message}");
}

#[test]
fn a_wrong_value_is_named() {
    let message = parse("stripe = \"big\"").unwrap_err();
    assert!(
        message.contains("big") && message.contains("64MiB"),
        "{message}"
    );
    assert!(parse("drain = \"later\"").unwrap_err().contains("later"));
}

#[test]
fn the_command_line_overrides_and_the_file_fills_in() {
    let command_line = Keys {
        node: Some("a".into()),
        ..Keys::default()
    };
    let file = parse("node = \"b\"\nthreads = 9\nost = [\"/o\"]").unwrap();
    let merged = command_line.or(file);
    assert_eq!(merged.node.as_deref(), Some("a"));
    assert_eq!(merged.threads, Some(9));
    assert_eq!(merged.ost, [PathBuf::from("/o")]);
}

#[test]
fn relative_paths_count_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.toml");
    std::fs::write(&path, "store = \"s\"\nost = [\"/abs\"]").unwrap();
    let keys = load(&path).unwrap().keys;
    assert_eq!(keys.store, Some(dir.path().join("s")));
    assert_eq!(keys.ost, [PathBuf::from("/abs")]);
    assert!(
        load(&dir.path().join("none"))
            .err()
            .unwrap()
            .message
            .contains("none")
    );
}

const RULES: &str = r#"
drain = "immediate"

[[policy]]
match = "ckpt/**/*.h5"
drain = "on-close"
close = "defer-next"

[[policy]]
match = "**"
keep = true
visibility-timeout = "5s"
"#;

fn read_rules(text: &str) -> Result<Rules, String> {
    let mut keys = parse(text)?;
    rules(&mut keys, text)
}

#[test]
fn rules_know_their_number_and_line() {
    let rules = read_rules(RULES).unwrap();
    let found = rules.matching(Path::new("ckpt/a/b.h5"));
    let places: Vec<_> = found.iter().map(|r| (r.number, r.line)).collect();
    assert_eq!(places, [(1, 4), (2, 9)]);
    assert_eq!(found[0].policy.drain, Some(Drain::OnClose));
    assert_eq!(found[1].policy.keep, Some(true));
    let time = found[1].policy.visibility_timeout;
    assert_eq!(time, Some(Duration::from_secs(5)));
    assert_eq!(rules.matching(Path::new("x")).len(), 1);
}

/// S8.12: a rule that would not do what it says is refused, and the error names its line.
#[test]
fn wrong_rules_are_refused() {
    for (rule, words) in [
        (
            "match = \"a\"\nstore = \"/s\"",
            &["line 2", "rule 1", "store", "whole mount"][..],
        ),
        (
            "match = \"a\"\nost-deadline = \"1s\"",
            &["ost-deadline", "whole mount"],
        ),
        (
            "match = \"a\"\ndrian = \"never\"",
            &["drian", "not a key", "subfiles"],
        ),
        ("drain = \"never\"", &["line 2", "which files", "match ="]),
        ("match = \"a\"", &["says nothing", "absorb"]),
        (
            "match = \"a\"\ndrain = \"later\"",
            &["line 4", "later", "on-close"],
        ),
        ("match = 3\ndrain = \"never\"", &["line 3", "string"]),
        (
            "match = \"/a\"\nkeep = true",
            &["line 2", "begins with a slash"],
        ),
        (
            "match = \"a\"\nvisibility-timeout = \"1ms\"",
            &["line 2", "too short"],
        ),
    ] {
        let text = format!("node = \"n\"\n[[policy]]\n{rule}\n");
        let said = read_rules(&text)
            .err()
            .unwrap_or_else(|| panic!("taken: {rule}"));
        for word in words {
            assert!(said.contains(word), "\"{word}\" is not in: {said}");
        }
    }
}

/// Every key of a rule is also a key of the whole mount, so that it can be set for all files.
#[test]
fn keys_of_files_are_keys_of_mounts() {
    for key in Key::ALL {
        assert!(is_mount_key(key.name()), "{key}");
    }
    assert!(!is_mount_key("match") && !is_mount_key("config"));
}
